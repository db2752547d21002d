"""`privet epsilon` and `privet list schedules`, as a user types them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from privet.cli import epsilon, main
from privet.planning.recipe import steps_in_epochs

BASE = "epsilon --rate 256/60000 --noise 1.1 --steps 14063 --delta 1e-5"


def run(line: str, *more: str) -> Result:
    return CliRunner().invoke(main, [*line.split(), *more])


def shell(*words: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "privet", *words], capture_output=True, text=True, timeout=120, **options  # type: ignore[call-overload]
    )  # fmt: skip


def answer(line: str, *more: str) -> dict:  # type: ignore[type-arg]
    result = run(line, *more, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)  # type: ignore[no-any-return]


# --- answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [
    "epsilon --rate 0.01 --noise 2 --steps 10 --delta 1e-5 --curve a.csv",
    "compare --methods noisy-sgd --epsilon 1 --size 1000 --batch 10 --steps 5 --plot a.csv",
    "plan --explore --epsilon 1 --size 1000 --batches 10 --steps 5 --plot a.csv",
])  # fmt: skip
def test_an_answer_is_not_lost_with_its_figure(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("csv.writer", full)
    result = run(line)
    assert result.exit_code == 2
    assert "epsilon" in result.stdout
    assert "wrote" not in result.stdout
    assert result.stderr == "privet: a.csv: cannot be written: No space left on device.\n"


def test_the_short_answer_carries_its_label() -> None:
    result = run(BASE)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("epsilon <= 2.38")
    assert "[certified: pld" in lines[0]
    assert 4 <= len(lines) <= 5
    assert result.stderr == ""


def test_json_has_the_fields_of_a_guarantee() -> None:
    found = answer(BASE)
    assert found["epsilon_lower"] <= 2.38172 <= found["epsilon"] + 1e-3
    assert {
        "delta": 1e-5,
        "label": "certified",
        "method": "pld",
        "adjacency": "zero-out",
        "steps": 14063,
    }.items() <= found.items()


def test_batch_size_and_epochs_say_the_same() -> None:
    found = answer("epsilon --size 60000 --batch 256 --epochs 60 --noise 1.1 --delta 1e-5")
    assert found["steps"] == 14063
    assert found["epsilon"] == pytest.approx(answer(BASE)["epsilon"])


@pytest.mark.parametrize(
    ("epochs", "rate", "steps"), [(0.1, 100 / 60000, 60), (60, 256 / 60000, 14063), (1, 1.0, 1), (0.01, 1.0, 1)]
)
def test_epochs_are_rounded_up_to_whole_steps(epochs: float, rate: float, steps: int) -> None:
    assert steps_in_epochs(epochs, rate) == steps


def test_a_schedule_multiplies_the_noise() -> None:
    line = "epsilon --rate 0.01 --steps 50 --delta 1e-5"
    swept = answer(line, "--noise", "2", "--noise-schedule", "exponential:end=0.3")
    assert answer(line, "--noise", "2")["epsilon"] < swept["epsilon"] < answer(line, "--noise", "0.6")["epsilon"]
    flat = answer(line, "--noise-schedule", "constant:value=2")
    assert flat["epsilon"] == pytest.approx(answer(line, "--noise", "2")["epsilon"])


def test_all_accountants_stand_side_by_side() -> None:
    from privet.accounting import registry

    found = answer(BASE, "--accountant", "all")
    assert {row["method"] for row in found["accountants"]} == set(registry.names())
    assert all(("label" in row) != ("refused" in row) for row in found["accountants"])
    assert found["accountants"][0]["method"] == "pld"
    text = run(BASE, "--accountant", "all").stdout
    for word in ("pld", "certified", "gdp", "approximate", "may under-report"):
        assert word in text


def test_a_method_that_refuses_says_why_in_the_table() -> None:
    result = run("epsilon --rate 0.1 --noise 2 --steps 10 --delta 1e-5 --sampling fixed-size --accountant all")
    assert result.exit_code == 0
    assert "refused" in result.stdout
    assert "rdp" in result.stdout
    assert result.stdout.endswith("  sampling  fixed-size; adjacency: replace-one; unit: example\n")


def test_delta_at_an_epsilon() -> None:
    line = "epsilon --rate 256/60000 --noise 1.1 --steps 14063 --epsilon"
    found = answer(line, "2.382")
    assert found["delta_lower"] <= found["delta"] == pytest.approx(1e-5, rel=0.01)
    assert found["label"] == "certified"
    result = run(line, "2.3820001")
    assert result.stdout.startswith("delta <= ")
    assert " at epsilon 2.38201 [" in result.stdout
    assert "[certified: pld" in result.stdout.splitlines()[0]


@pytest.mark.parametrize("text", [
    '{"history": [], "mechanism": "rdp"}',
    '{"format": "privet-ledger", "version": 1, "steps": []}',
    '{"class_name": "ComposedDpEvent", "events": []}',
    "noise,rate",
])  # fmt: skip
def test_a_file_without_steps_certifies_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    result = run("epsilon --delta 1e-5 --from", str(tmp_path / "file"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"privet: {tmp_path / 'file'}: has no steps.")


def test_a_large_delta_draws_a_warning_on_standard_error() -> None:
    result = run(BASE, "--size", "60000", "--json")
    assert result.stderr == ""
    result = run("epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-3 --size 1000 --json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["label"] == "certified"
    assert result.stderr.startswith("privet: warning: delta=0.001 is at least 1/dataset_size")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("form", ["ledger", "opacus", "event", "csv"])
def test_an_old_run_is_checked_from_its_file(tmp_path: Path, form: str) -> None:
    from privet.accounting import Ledger, Step, exchange

    ledger = Ledger()
    ledger.add(Step(noise_multiplier=1.1, sample_rate=256 / 60000), 14063)
    text = {
        "ledger": json.dumps(exchange.to_json(ledger)),
        "opacus": json.dumps(exchange.to_opacus(ledger)),
        "event": json.dumps(exchange.to_event_json(ledger)),
        "csv": f"noise,rate,count\n1.1,{256 / 60000!r},14063\n",
    }[form]
    file = tmp_path / "old"
    file.write_text(text)
    found = answer("epsilon --delta 1e-5", "--from", str(file))
    assert found["epsilon"] == answer(BASE)["epsilon"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "csv"])
def test_a_curve_is_drawn(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"epsilon.{suffix}"
    line = "epsilon --rate 0.01 --noise 2 --noise-schedule step:factor=0.5,every=500 --steps 1000 --delta 1e-5"
    result = run(line, "--curve", str(file))
    assert result.exit_code == 0, result.output
    assert f"wrote {file}" in result.stdout
    head = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "csv": b"step,method,label,epsilon_lower,epsilon"}
    assert file.read_bytes().startswith(head[suffix])
    if suffix == "csv":
        last = [row.split(",") for row in file.read_text().splitlines() if row.startswith("1000,")]
        assert {(row[1], row[2]) for row in last} == {
            ("pld", "certified"),
            ("gdp", "approximate"),
            ("rdp", "certified"),
        }
        final = float(next(row[4] for row in last if row[1] == "pld"))
        assert final == pytest.approx(answer(line)["epsilon"], rel=1e-3)


@pytest.mark.parametrize("suffix", ["png", "csv"])
def test_a_trade_off_curve_is_drawn_and_named_in_json(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"attacker.{suffix}"
    found = answer(BASE, "--tradeoff", str(file))
    assert found["tradeoff"] == str(file)
    assert found["label"] == "certified"
    if suffix == "png":
        assert file.read_bytes().startswith(b"\x89PNG")
        return
    rows = [line.split(",") for line in file.read_text().splitlines()]
    assert rows[0] == ["false_positive_rate", "method", "label", "least_false_negative_rate"]
    assert {tuple(row[1:3]) for row in rows[1:]} == {("pld", "certified"), ("gdp", "approximate")}
    sums = [float(row[0]) + float(row[3]) for row in rows[1:] if row[1] == "pld"]
    assert 0.77 < min(sums) < 0.78  # the least sum of errors, 77.6 %


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(BASE, "--curve", str(tmp_path / "a.png"))
    assert result.exit_code == 2
    assert "pip install 'privet[plots]'" in result.stderr
    assert run(BASE, "--curve", str(tmp_path / "a.csv")).exit_code == 0


def test_schedules_are_listed_and_shown() -> None:
    result = run("list schedules")
    assert result.exit_code == 0
    assert "exponential" in result.stdout
    assert run("list schedules --show exponential:end=0.25 --steps 3").stdout.split() == ["1.0", "0.5", "0.25"]
    assert answer("list schedules --show exponential:end=0.25 --steps 3")["values"] == [1.0, 0.5, 0.25]
    assert "cosine" in answer("list schedules")["schedules"]


@pytest.mark.parametrize("line", ["", "--help", "-h", "epsilon --help", "list schedules --help"])
def test_help_shows_an_example(line: str) -> None:
    result = run(line)
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert "  privet " in result.stdout


# --- mistakes ----------------------------------------------------------------------------------------

MISTAKES = [
    "nonsense",
    "--nonsense",
    "epsilon",
    "epsilon --rate 0.01 --noise 1 --steps 10",
    "epsilon --rate 0.01 --noise 1 --delta 1e-5",
    "epsilon --rate 0.01 --steps 10 --delta 1e-5",
    "epsilon --noise 1 --steps 10 --delta 1e-5",
    "epsilon --rate 0 --noise 1 --steps 10 --delta 1e-5",
    "epsilon --rate 1.5 --noise 1 --steps 10 --delta 1e-5",
    "epsilon --rate -0.1 --noise 1 --steps 10 --delta 1e-5",
    "epsilon --rate 1/0 --noise 1 --steps 10 --delta 1e-5",
    "epsilon --rate nan --noise 1 --steps 10 --delta 1e-5",
    "epsilon --rate half --noise 1 --steps 10 --delta 1e-5",
    "epsilon --rate 1/2/3 --noise 1 --steps 10 --delta 1e-5",
    "epsilon --rate 0.01 --noise 0 --steps 10 --delta 1e-5",
    "epsilon --rate 0.01 --noise inf --steps 10 --delta 1e-5",
    "epsilon --rate 0.01 --noise -1 --steps 10 --delta 1e-5",
    "epsilon --rate 0.01 --noise 1 --steps 0 --delta 1e-5",
    "epsilon --rate 0.01 --noise 1 --steps 1.5 --delta 1e-5",
    "epsilon --rate 0.01 --noise 1 --steps 1e99 --delta 1e-5",
    "epsilon --rate 0.01 --noise 1 --steps ten --delta 1e-5",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 0",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta -1e-5",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --epsilon 1",
    "epsilon --rate 0.01 --noise 1 --steps 10 --epsilon -1",
    "epsilon --rate 0.01 --noise 1 --steps 10 --epsilon 1 --accountant gdp",
    "epsilon --rate 0.01 --noise 1 --steps 10 --epsilon 1 --curve a.png",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --accountant pdl",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --accountant no.such:Thing",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --relation sibling",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --relation replace",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --sampling fixed-size --accountant gdp",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --sampling poison",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --sampling truncated-poisson",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --sampling truncated-poisson:cap=a,size=3",
    "epsilon --rate 0.01 --noise 1 --steps 10 --epochs 3 --delta 1e-5",
    "epsilon --rate 1e-9 --noise 1 --epochs 1e300 --delta 1e-5",
    "epsilon --rate 0.01 --noise 1 --epochs 0 --delta 1e-5",
    "epsilon --rate 0.01 --batch 3 --size 9 --noise 1 --steps 10 --delta 1e-5",
    "epsilon --batch 256 --noise 1 --steps 10 --delta 1e-5",
    "epsilon --batch 10 --size 9 --noise 1 --steps 10 --delta 1e-5",
    "epsilon --batch 0 --size 9 --noise 1 --steps 10 --delta 1e-5",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --noise-schedule exponentail:end=0.3",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --noise-schedule exponential:ends=0.3",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --noise-schedule linear:end=-1",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --noise-schedule table:none.csv",
    "epsilon --rate 0.01 --noise 1 --steps 20000000 --delta 1e-5 --noise-schedule linear:end=0.5",
    "epsilon --from none.json --delta 1e-5",
    "epsilon --from . --delta 1e-5",
    "epsilon --from none.json --rate 0.1 --delta 1e-5",
    "epsilon --from none.json --sampling shuffled --delta 1e-5",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --curve a.jpeg",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --curve no/such/folder/a.csv",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 --size 0",
    "epsilon --rate 0.01 --noise 1 --steps 10 --delta 1e-5 surplus",
    "epsilon --rate",
    "list schedules --show wobble",
    "list schedules --show linear --steps 0",
    "list schedules --show linear --steps 1e11",
]


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_exit_2(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for result in (run(line), run(line, *(["--json"] if line.split()[0] in ("epsilon", "list") else []))):
        assert result.exit_code == 2, (result.output, result.exception)
        assert result.stdout == ""
        assert result.stderr.startswith("privet: ")
        assert result.stderr.count("\n") == 1
        assert len(result.stderr) < 500
        assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_noise_that_hides_nothing_is_named() -> None:
    result = run("epsilon --rate 0.01 --noise 1e-200 --steps 10 --delta 1e-5")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("privet: noise_multiplier=1e-200 must be at least 1e-100.")


def test_a_misspelt_name_gets_a_suggestion() -> None:
    assert "pld" in run(BASE, "--accountant", "pdl").stderr
    assert "exponential" in run(BASE, "--noise-schedule", "exponentail:end=0.3").stderr


def test_our_own_fault_is_one_line_and_exit_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(epsilon, "ledger_of", broken)
    result = run(BASE)
    assert result.exit_code == 1
    assert result.stderr == "privet: internal error: ZeroDivisionError: a b (PRIVET_DEBUG=1 shows where)\n"
    monkeypatch.setenv("PRIVET_DEBUG", "1")
    assert "Traceback" in run(BASE).stderr


def test_interrupting_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(epsilon, "ledger_of", interrupted)
    assert run(BASE).exit_code == 130


# --- as a real process -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_run() -> None:
    done = shell(*BASE.split(), "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["label"] == "certified"
    done = shell("epsilon", "--rate", "2")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.slow
def test_a_closed_pipe_is_silent() -> None:
    words = [sys.executable, "-m", "privet", "list", "schedules", "--show", "linear:end=0.5", "--steps", "300000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are sent as on Unix")
def test_ctrl_c_in_a_real_run() -> None:
    code = (
        "import sys, time\nfrom privet.cli import epsilon, main\n"
        "def wait(*a):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "epsilon.ledger_of = wait\nmain(['epsilon', '--delta', '1e-5'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read().split() == ["privet:", "interrupted"]
