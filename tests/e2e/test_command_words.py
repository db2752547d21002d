"""Names of commands and options: the field's words, the short ones, and those of other libraries."""

import json

import click
import pytest

from privet import Budget, Recipe, Training, plan
from privet.cli import main
from privet.errors import InvalidValue
from typed import answer, refused, run

EPSILON = "epsilon --steps 20 --delta 1e-5"
PLAN = "plan --size 600 --batch 60 --steps 20 --epsilon 2 --delta 1e-5"
GONE = {
    "ahead": "plan --explore", "search": "plan --optimize", "swap": "epsilon --from PLAN --same-epsilon-by ACCOUNTANT",
    "methods": "list methods", "schedules": "list schedules",
}  # fmt: skip
LONG = {
    "plan": ("noise-multiplier", "sample-rate", "clipping-norm", "batch-size", "dataset-size", "adjacency",
             "uncertified", "trial-count-distribution"),
    "epsilon": ("noise-multiplier", "sample-rate", "batch-size", "dataset-size", "adjacency"),
    "train": ("max-physical-batch-size", "augmentations", "ema-decay", "steps-per-line", "uncertified"),
    "tune": ("selection", "validation-fraction"),
    "audit": ("significance", "uncertified"),
}  # fmt: skip


@pytest.mark.parametrize("name", GONE)
def test_a_former_command_says_which_to_use(name: str) -> None:
    refused(run(name, "--size", "100"), f"`privet {name}` is now `privet {GONE[name]}`")


def test_a_misspelt_command_gets_a_suggestion() -> None:
    refused(run("pln"), "No such command 'pln'. Did you mean 'plan'?")


@pytest.mark.parametrize("command", LONG)
def test_options_have_the_field_s_names(command: str) -> None:
    text = run(command, "--help").stdout
    for name in LONG[command]:
        assert f"--{name}" in text
    for former in ("--as-published", "--alarm"):  # accepted, and not shown
        assert former not in text


def test_long_and_short_names_give_the_same() -> None:
    short = answer(f"{EPSILON} --rate 0.01 --noise 1.1")
    long = answer(f"{EPSILON} --sample-rate 0.01 --noise-multiplier 1.1 --adjacency zero-out")
    assert {**short, "seconds": 0} == {**long, "seconds": 0}
    assert answer(PLAN)["hash"] == answer(
        "plan --dataset-size 600 --batch-size 60 --steps 20 --epsilon 2 --delta 1e-5 --clipping-norm 1"
    )["hash"]  # fmt: skip


def test_replace_one_is_another_name_of_replace() -> None:
    line = "epsilon --steps 20 --delta 1e-5 --rate 1 --noise 9 --adjacency"
    one, other = answer(f"{line} replace-one"), answer(f"{line} replace")
    assert one["adjacency"] == other["adjacency"] == "replace-one"
    assert one["epsilon"] == other["epsilon"]
    refused(run("epsilon --steps 20 --delta 1e-5 --rate 0.1 --noise 9 --adjacency replace-one"), "has no theorem here")
    assert Budget(epsilon=1.0, delta=1e-5, adjacency="replace-one") == Budget(
        epsilon=1.0, delta=1e-5, adjacency="replace"
    )


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("plan --max-grad-norm 1", "--clipping-norm"),
        ("plan --target-epsilon 1", "--epsilon"),
        ("train --target-delta 1e-5", "--delta"),
        ("epsilon --sigma 1", "--noise-multiplier"),
        ("train --physical-batch-size 4", "--max-physical-batch-size"),
        ("audit --alpha 0.1", "--significance"),
    ],
)
def test_words_of_other_libraries_are_answered_with_ours(line: str, ours: str) -> None:
    refused(run(line), f"Privet calls it {ours}.")


@pytest.mark.parametrize(
    ("given", "ours"),
    [({"max_grad_norm": 1.0}, "clipping_norm"), ({"target_epsilon": 1.0}, "epsilon"), ({"target_delta": 0.1}, "delta"),
     ({"rate": 0.1}, "sample_rate"), ({"noise": 1.0}, "noise_multiplier"), ({"size": 3}, "dataset_size"),
     ({"clip": 1.0}, "clipping_norm"), ({"batch": 60}, "batch_size"), ({"as_published": True}, "uncertified")],
)  # fmt: skip
def test_python_answers_them_too(given: dict[str, float], ours: str) -> None:
    with pytest.raises(InvalidValue, match=f"Did you mean {ours!r}"):
        plan(**{"epsilon": 2.0, "dataset_size": 600, "steps": 5} | given)
    if ours not in ("epsilon", "delta"):
        with pytest.raises(InvalidValue, match=f"Did you mean {ours!r}"):
            Recipe(**{"budget": Budget(epsilon=2.0, delta=1e-5), "dataset_size": 600, "steps": 5} | given)


def test_training_says_what_belongs_to_the_plan() -> None:
    with pytest.raises(InvalidValue, match=r"no keyword 'max_grad_norm'. The plan has it: plan\(clipping_norm=...\)"):
        Training(max_grad_norm=1.0)  # type: ignore[call-arg]
    with pytest.raises(InvalidValue, match="Did you mean 'dataset'"):
        Training(data_loader=[])  # type: ignore[call-arg]


@pytest.mark.parametrize("command", ["plan", "train", "compare", "tune"])
def test_help_groups_its_options(command: str) -> None:
    lines = run(command, "--help").stdout.splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert "Budget:" in headings
    assert "Data, sampling and steps:" in headings
    assert headings[-1] == "Other options:"


def test_every_command_says_in_one_line_what_it_does() -> None:
    text = run("--help").stdout
    assert "differential privacy (DP-SGD)" in text.splitlines()[2]
    for name, command in main.commands.items():
        assert isinstance(command, click.Command)
        assert f"\n  {name} " in text
    assert len(main.commands) <= 15


def test_lists_have_one_line_for_each_name() -> None:
    everything = answer("list")
    assert list(everything) == [
        "methods", "schedules", "tasks", "models", "accountants", "clipping_rules", "attacks", "samplings",
    ]  # fmt: skip
    for kind, lines in everything.items():
        assert lines
        if kind != "methods":
            assert answer("list", kind.replace("_", "-")) == {kind: lines}
            assert all(line for line in lines.values()), kind
    assert json.loads(run("list clipping-rules --json").stdout)["clipping_rules"]["flat"]
    refused(run("list shapes"), "list='shapes' is not known")
    refused(run("list tasks digits"), "unexpected argument")
    refused(run("list tasks --show cosine"), "--show needs `privet list schedules`")


def test_plan_modes_do_not_mix() -> None:
    refused(run(f"{PLAN} --explore --optimize"), "Give one of them")
    refused(run(f"{PLAN} --over rho-noise"), "--over needs --optimize")
    refused(run(f"{PLAN} --batches 5"), "--batches needs --explore")
    refused(run("plan --size 600 --steps 20,30 --epsilon 2"), "A list needs --explore")
    refused(run("plan --size 600 --epsilon 2 --explore --batch 60"), "--batch-size cannot be combined with --explore")
    refused(run("plan --size 600 --epsilon 2 --explore --out p.json"), "--out cannot be combined with --explore")
