"""Every command with numbers, words and files as nobody should give them: one line and exit code 2, or an answer."""

import json
import os
import random
from pathlib import Path

import click
import pytest

from privet.cli import main
from typed import run

NUMBERS = (
    "1e-320", "5e-324", "1e-300", "1e-5", "0.5", "0.999", "1", "20", "600", "1e12", "1e30", "1e308", "-1", "-0.0", "0",
    "nan", "inf", "1/0", "1/3", str(10**30), str(10**400), "", "½", "x" * 9000, "\x1b[31m",
)  # fmt: skip
SHAPES = ("exponential:end=1e-300", "linear:end=0.1", "piecewise:0=1,1=1e-320", "table:1e-320,1", "1e-320", "table:")
LEAST = {
    "epsilon": {"sample-rate": "0.01", "noise-multiplier": "1.1", "steps": "20", "delta": "1e-5"},
    "plan": {"dataset-size": "600", "batch-size": "60", "steps": "20", "epsilon": "2", "delta": "1e-5"},
    "compare": {
        "methods": "noisy-sgd",
        "dataset-size": "600",
        "batch-size": "60",
        "steps": "20",
        "epsilon": "2",
        "delta": "1e-5",
    },
}
MORE = {
    "epsilon": {"accountant": ("rdp", "gdp", "pld"), "adjacency": ("replace-one", "replace", "nobody"),
                "dataset-size": NUMBERS, "batch-size": NUMBERS, "epochs": NUMBERS, "noise-schedule": SHAPES},
    "plan": {"clipping-norm": NUMBERS, "noise-schedule": SHAPES, "batch-schedule": SHAPES, "clip-schedule": SHAPES,
             "method": ("dynamic", "auto-linear"), "rho-noise": NUMBERS, "rho-clip": NUMBERS, "epochs": NUMBERS},
    "compare": {"methods": ("noisy-sgd,dynamic", "x"), "rho-noise": NUMBERS, "rho-clip": NUMBERS},
}  # fmt: skip
CASES = 25
SLOW = {"1e-320", "5e-324"}  # as an epsilon: a search over many heights, some seconds each


def check_clean(line: str, *more: str) -> None:
    """An answer, or one line that says what is wrong."""
    result = run(line, *more)
    said = (line, *(word[:80] for word in more), result.stderr[-300:])
    assert result.exit_code in (0, 2), said
    assert "internal error" not in result.stderr, said
    assert "Traceback" not in result.output, said
    if result.exit_code == 2:
        assert result.stderr.count("\n") == 1, said
        assert len(result.stderr) < 12_000, said


def drawn(draw: random.Random) -> tuple[str, list[str]]:
    """A command with one or two of its options as nobody should give them."""
    command = draw.choice(list(LEAST))
    given = dict(LEAST[command])
    for _ in range(draw.choice((1, 1, 2))):
        options = dict.fromkeys(LEAST[command], NUMBERS) | MORE[command]
        name = draw.choice(list(options))
        given[name] = draw.choice(options[name])
    if given.get("epsilon") in SLOW:
        given["epsilon"] = "nan"
    return command, [f"--{name}={value}" for name, value in given.items()]


@pytest.mark.slow
def test_no_number_ends_in_an_internal_error() -> None:
    draw = random.Random(20261118)
    for _ in range(CASES):
        command, options = drawn(draw)
        check_clean(command, *options)


@pytest.mark.parametrize("delta", ["1e-320", "5e-324", "9e-301"])
@pytest.mark.parametrize("command", sorted(LEAST))
def test_a_delta_that_doubles_cannot_hold_is_refused(command: str, delta: str) -> None:
    result = run(command, *(f"--{name}={value}" for name, value in (LEAST[command] | {"delta": delta}).items()))
    assert result.exit_code == 2
    assert f"delta={float(delta)!r} must be at least 1e-300" in result.stderr


# --- files ------------------------------------------------------------------------------------------

READ = (
    "plan {}", "compare {}", "search {}", "ahead {}", "swap {}", "train {}", "train --task digits --plan {}",
    "train --resume {}", "tune {}", "federate --task digits --plan {}", "federate --resume {}", "report {}",
    "audit --plan {}", "audit --run {}", "attack --plan {}", "attack --run {}", "epsilon --delta 1e-5 --from {}",
    "plan --size 9 --batch 3 --steps 3 --epsilon 1 --noise-schedule table:{}",
    "search --size 9 --batch 3 --steps 3 --epsilon 1 --profile {}", "doctor --plan {} --task digits",
    "train --size 9 --batch 3 --steps 3 --epsilon 1 --task npz:path={}",
    "train --size 9 --batch 3 --steps 3 --epsilon 1 --task csv:target=y,path={}",
)  # fmt: skip
WRITTEN = (
    "plan --size 600 --batch 60 --steps 20 --epsilon 2 --out {}",
    "compare --size 600 --batch 60 --steps 20 --epsilon 2 --plot {}.svg",
)


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is no plain file, or holds a great deal of nothing."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with open("zeros", "wb") as sparse:
        sparse.truncate(10**9)
    Path("nowhere").symlink_to("missing")
    return ["/dev/zero", "pipe", "zeros", "nowhere"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [*READ, *WRITTEN])
def test_no_odd_file_is_waited_for_or_fills_the_memory(odd: list[str], command: str) -> None:
    """A file that is no plain one would be read or waited for without end: then this test has no end."""
    for name in odd:
        if command in READ:
            result = run(command.format(name))
            assert result.exit_code == 2, (name, result.output)
        check_clean(command.format(name))


def test_every_file_that_a_command_takes_is_of_the_checked_kind() -> None:
    """An empty name, one too long, or one with a null in it is refused before it reaches a system call."""
    from privet.cli.common import Place

    context = click.Context(main)
    for command in (main.get_command(context, name) for name in main.list_commands(context)):
        for one in command.params:
            if isinstance(one.type, click.Path):
                assert isinstance(one.type, Place), (command.name, one.name)
    for name in ("", "a\0b", "a" * 256, "b/" * 3000):
        result = run("plan --out", name)
        assert result.exit_code == 2
        assert "--out" in result.stderr


def test_a_picture_s_side_is_bounded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for side in (4097, 10**9):
        result = run(f"train --size 9 --batch 3 --steps 3 --epsilon 1 --task folder:side={side},path={tmp_path}")
        assert result.exit_code == 2
        assert f"side={side} must be at most 4096" in result.stderr


def test_a_table_of_many_columns_is_read_in_time_that_grows_with_them(tmp_path: Path) -> None:
    """A hundred thousand of them: looked up one by one, each would be compared with all, for more than a minute."""
    from privet.data.task import task

    names = [f"c{number}" for number in range(100_000)]
    rows = [",".join([str(number % 2)] * len(names)) for number in range(4)]
    (tmp_path / "wide.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
    found = task(f"csv:path={tmp_path}/wide.csv,target=c7,every=2")
    assert found.facts == {"shape": (99_999,), "classes": 2}


def test_what_the_system_refuses_is_the_user_s_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system names the file, and lack of memory is told as such; neither is a mistake of ours."""
    from privet.cli.list import list_command

    assert json.loads(run("list methods --json").stdout)
    for error, words in (
        (PermissionError(13, "Permission denied", str(tmp_path / "a")), f"{tmp_path / 'a'}: Permission denied"),
        (MemoryError(), "not enough memory"),
    ):

        def failing(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(list_command, "callback", failing)
        result = run("list methods")
        assert result.exit_code == 2
        assert words in result.stderr
