"""`privet doctor`: the machine, findings about models, tasks and plans, replacements, and what cannot be looked at."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from click.testing import Result
from torch import nn

from privet import plan
from privet.cli.common import in_words, size_in_bytes
from typed import refused, run

MODELS = """
from dataclasses import replace

import torch
from torch import nn
from privet.data import Task

LOSS, BATCH = nn.CrossEntropyLoss(reduction="none"), (torch.randn(8, 4), torch.randint(3, (8,)))

def fine():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3)), LOSS, BATCH

class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

def coupled():
    return Normed(), LOSS, BATCH

def centred():
    class Centred(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))
    return nn.Sequential(nn.BatchNorm1d(4), Centred(4, 3)), LOSS, BATCH

def summed():
    return nn.Linear(4, 3), nn.CrossEntropyLoss(), BATCH

def lazy():
    return nn.Sequential(nn.LazyLinear(3)), LOSS, BATCH

def wrong():
    return 3

def no_batch():
    return nn.Linear(4, 3), LOSS, 3

def failing():
    raise RuntimeError("two\\nlines")

def records(model=fine):
    x, y = torch.full((500, 4), torch.nan), torch.full((500,), 10**6)
    return Task(name="own", train=(x, y), held_out=(x, y), evaluation="none", facts={"classes": 3}, model=model)

def task() -> Task:
    return records(lambda: fine()[0])

def counted() -> Task:
    return replace(task(), non_private_preprocessing="vocabulary=counted")

def misfit() -> Task:
    return records(lambda: nn.Linear(9, 3))

def burnt() -> Task:
    raise OSError("disk on fire")

def modelless() -> Task:
    return records(lambda: 1 / 0)
"""


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = f"models_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def ask(*words: str) -> Result:
        rounds = ("--rounds", "1") if words and words[-1] != "alone" else ()
        return run("doctor", *(word.replace("models", name) for word in words if word != "alone"), *rounds)

    return ask


def planned(folder: Path, **more: Any) -> str:
    given: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-4, "dataset_size": 500, "batch_size": 50, "steps": 40}
    path = folder / "plan.json"
    plan(**given | more).save(path)
    return str(path)


def stopped(result: Result, *said: str, problems: int = 1) -> None:
    """Findings with these words on standard output, one line on standard error, and exit code 2."""
    assert result.exit_code == 2, result.output
    for words in said:
        assert words in result.stdout
    assert result.stderr.startswith(f"privet: {problems} problem")
    assert result.stderr.count("\n") == 1


def test_the_machine(doctor) -> None:
    found = json.loads(doctor("--json", "alone").stdout)
    assert {"python", "torch", "numpy", "threads", "gpu"} <= found.keys()
    assert f"torch       {found['torch']}" in doctor().stdout


def test_a_model_with_the_rule_of_each_parameter(doctor) -> None:
    result = doctor("models:fine")
    assert result.exit_code == 0, result.output
    assert "nothing found: training can start" in result.stdout
    assert "2.weight, 2.bias  layer_norm -> layer norm" in result.stdout
    assert "63 parameters to train in 6 tensors" in result.stdout
    assert result.stderr == ""


def test_json_has_the_same(doctor) -> None:
    result = doctor("models:fine", "--json")
    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert [use["rule"] for use in found["uses"]] == ["linear", "layer norm", "linear"]
    assert found["whole"] == ""
    assert found["milliseconds"].keys() == {"private", "plain"}
    assert (found["findings"], found["changes"], found["fixed"]) == ([], [], False)
    assert found["estimate"]["peak_bytes"] > 0


def test_problems_are_found_with_the_way_out(doctor) -> None:
    stopped(
        doctor("models:coupled"), "stop  1  BatchNorm1d(6) mixes the examples of a batch",
        "-> Use GroupNorm(1, 6) in its place.", "clipping, once the replacements are made:",
    )  # fmt: skip
    stopped(doctor("models:centred"), "stop  0  BatchNorm1d(4)", "an example's output depends on the other examples",
            problems=2)  # fmt: skip
    stopped(doctor("models:summed"), "loss_fn gave (), not one loss for each of", "Use reduction='none'")
    stopped(doctor("models:lazy"), "LazyLinear does not know its sizes yet")


def test_json_of_a_model_that_cannot_be_trained(doctor) -> None:
    result = doctor("models:coupled", "--json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["severity"], finding["where"]) == ("stop", "1")
    stopped(result)


def test_fix_shows_each_replacement_and_looks_again(doctor) -> None:
    result = doctor("models:coupled", "--fix")
    assert result.exit_code == 0, result.output
    assert "1: BatchNorm1d(6) -> GroupNorm(1, 6); weights are kept; running statistics are dropped" in result.stdout
    assert (
        "from privet.diagnosis.replace_layers import replace_layers; model, changes = replace_layers(model)"
        in result.stdout
    )
    assert "nothing found: training can start" in result.stdout
    assert "1.weight, 1.bias  group_norm -> group norm" in result.stdout


def test_what_cannot_be_fixed_still_stops(doctor) -> None:
    stopped(doctor("models:centred", "--fix"), "0: BatchNorm1d(4) -> GroupNorm(1, 4)", "stop  1")
    assert "nothing to replace" in doctor("models:fine", "--fix").stdout


def test_a_task_and_a_plan_that_fit(doctor, tmp_path: Path) -> None:
    """Records are NaN and labels far too large: a look at them would fail."""
    result = doctor("--task", "models:task", "--plan", planned(tmp_path))
    assert result.exit_code == 0, result.output
    assert "nothing found: training can start" in result.stdout
    assert "40 steps, expected batch size 50, 500 examples (4 epochs), poisson sampling, rule flat" in result.stdout
    assert "certified" in result.stdout
    assert "at batch size 50" in result.stdout
    assert "; the whole plan about" in result.stdout


def test_the_plans_figures_in_json(doctor, tmp_path: Path) -> None:
    found = json.loads(doctor("--task", "models:task", "--plan", planned(tmp_path), "--json").stdout)
    assert found["plan"]["epochs"] == pytest.approx(4.0)
    assert found["plan"]["guarantee"]["label"] == "certified"
    assert found["plan"]["seconds"] == pytest.approx(40 * found["milliseconds"]["private"] / 1e3)
    assert found["estimate"]["batch_size"] == 50


@pytest.mark.slow
def test_a_task_and_a_plan_that_do_not_fit(doctor, tmp_path: Path) -> None:
    stopped(
        doctor("--task", "models:task", "--plan", planned(tmp_path, dataset_size=501)),
        "stop  dataset  examples=500 must be the plan's dataset_size=501", "-> Plan with this size",
    )  # fmt: skip
    stopped(doctor("--task", "models:misfit", "--plan", planned(tmp_path)), "It fails on a trial batch: RuntimeError")
    stopped(doctor("--task", "models:task", "--model", "models:Normed"), "BatchNorm1d(6) mixes")
    stopped(doctor("--task", "models:counted"), "stop  dataset  vocabulary=counted: was read off the training records")


@pytest.mark.slow
def test_the_weights_that_a_plan_begins_with(doctor, tmp_path: Path) -> None:
    file = tmp_path / "body.safetensors"
    path = planned(tmp_path, training={"weights": str(file), "train": ["3.*"]})
    stopped(doctor("--task", "models:task", "--plan", path), "stop  plan", "body.safetensors: cannot be read")
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3))
    safetensors.torch.save_file(body.state_dict(), file)
    found = doctor("--task", "models:task", "--plan", path)
    assert found.exit_code == 0, found.output
    assert "21 parameters to train in 2 tensors" in found.stdout


def test_another_network_by_name(doctor) -> None:
    result = doctor("--task", "models:task", "--model", "models:Normed", "--fix")
    assert result.exit_code == 0, result.output


def test_memory_that_is_short(doctor, tmp_path: Path) -> None:
    result = doctor("models:fine", "--plan", planned(tmp_path), "--memory", "12K")
    assert result.exit_code == 0, result.output
    assert "use max_physical_batch_size=" in result.stdout
    assert "warn  model  One record at a time takes about" in doctor("models:fine", "--memory", "500").stdout


def test_a_plan_alone(doctor, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="delta"):
        path = planned(tmp_path, delta=0.01)
    result = doctor("--plan", path)
    assert result.exit_code == 0, result.output
    assert "warn  plan  delta=0.01 is not below 1/500" in result.stdout


@pytest.mark.slow
def test_a_plan_names_its_task_and_options_win(doctor, tmp_path: Path) -> None:
    path = planned(tmp_path, training={"task": "no-such-task"})
    refused(doctor("--plan", path), "task='no-such-task' is not known")
    assert "task models_of" in doctor("--task", "models:task", "--plan", path).stdout
    refused(doctor("--plan", planned(tmp_path, training={"task": 3})), "task=3 in the plan must be a name")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("models:wrong", "must be a function without arguments that returns (model, loss_fn, (inputs, targets))"),
        ("models:no_batch", "batch has tensors of sizes []"),
        ("models:failing", "model='models:failing' cannot be made: RuntimeError: two lines."),
        ("models:missing", "has no 'missing'"),
        ("models", "must be an address such as my.module:name"),
        ("no_such_module:make", "cannot be imported"),
        ("models:lazy --fix", "LazyLinear does not know its sizes yet"),
        ("models:fine --task digits", "--task is for a task"),
        ("models:fine --data-dir .", "--data-dir is for a task"),
        ("models:fine --memory much", "'much' is not a size such as 500M or 4G"),
        ("models:fine --memory 0", "'0' is not a size"),
        ("models:fine --plan nothing.json", "there is no such file"),
        ("--model cnn", "--model and --fix need --task"),
        ("--fix", "--model and --fix need --task"),
        ("--task no-such-task", "task='no-such-task' is not known"),
        ("--task models:fine", "must be a function that says it returns a Task"),
        ("--task models:burnt", "cannot be made: disk on fire."),
        ("--task models:modelless", "cannot be made: ZeroDivisionError"),
        ("--task models:task --model cnnn", "model='cnnn' is not known. Did you mean 'cnn'?"),
        ("--task models:task --model models:fine", "nn.Module"),
    ],
)
def test_what_cannot_be_looked_at_is_one_line(doctor, words: str, said: str) -> None:
    result = doctor(*words.split())
    refused(result, "")
    assert said in re.sub(r"models_of_\w+", "models", result.stderr)


def test_a_broken_plan_is_one_line(doctor, tmp_path: Path) -> None:
    path = Path(planned(tmp_path))
    path.write_text(path.read_text().replace('"length": 40', '"length": 41'))
    refused(doctor("--task", "models:task", "--plan", str(path)), "The file was edited or is damaged")


@pytest.mark.parametrize(("text", "size"), [("4G", 4 * 2**30), ("1.5 MiB", 3 * 2**19), ("700", 700), ("2kb", 2048)])
def test_sizes(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


def test_sizes_in_words() -> None:
    assert [in_words(size) for size in (12, 2048, 3 * 2**19, 2**34, 2**45)] == [
        "12 B", "2 KiB", "1.5 MiB", "16 GiB", "32 TiB",
    ]  # fmt: skip
