"""Several runs on the same records: every one is found, what cannot be counted is refused, the sum is one guarantee."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privet import plan, spent
from privet.accounting import compose_ledgers
from privet.errors import InvalidValue, PrivetError, Unsupported
from privet.ledger.assumptions import NOT_RECORDED, LoopFacts
from privet.ledger.file import LedgerFile
from privet.ledger.format import check_dataset
from privet.ledger.reading import NAME
from privet.ledger.runs import BEFOREHAND, compose_runs, find_runs, read_runs, select_dataset, single_dataset

pytestmark = pytest.mark.usefixtures("few_checks")

GIVEN = {
    "delta": 1e-5,
    "dataset_size": 1000,
    "batch_size": 10,
    "steps": 40,
    "noise_multiplier": 2.0,
    "solve": "epsilon",
}
PLAN = plan(**GIVEN)
OURS = LoopFacts(own_loop=False)


def spend(
    folder: Path, steps: int = 40, *, dataset: str | None = "people", facts: LoopFacts | None = OURS, **given: Any
) -> Path:
    """The folder of a run that charged so many steps."""
    made = given.pop("plan", PLAN)
    with LedgerFile.create(folder, made, steps_per_line=40, dataset=dataset, **given) as ledger:
        if steps:
            ledger.reserve(steps)
        if facts is not None:
            ledger.note(facts)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


# --- the name ---


@pytest.mark.parametrize("name", ["", "People", "a b", "ä", "-a", "a/b", "a\n", "x" * 65, 7, "../a"])
def test_a_name_has_one_spelling(name: Any) -> None:
    with pytest.raises(InvalidValue, match="dataset_name=") as caught:
        check_dataset(name)
    assert "\n" not in str(caught.value)


def test_the_name_is_in_the_ledger_and_older_ledgers_have_none(runs: Path) -> None:
    spend(runs / "a")
    spend(runs / "b", dataset=None)
    assert [run.header.dataset for run in read_runs(runs)] == ["people", None]
    assert b'"dataset"' not in (runs / "b" / NAME).read_bytes()  # its bytes are those of old


def test_runs_without_a_name_are_counted_with_any(runs: Path) -> None:
    for name, dataset in (("a", "people"), ("b", "cars"), ("c", None)):
        spend(runs / name, dataset=dataset)
    assert [Path(run.name).name for run in select_dataset(read_runs(runs), "people")] == ["a", "c"]
    with pytest.raises(InvalidValue, match="on cars, people"):
        single_dataset(read_runs(runs))
    assert single_dataset(read_runs(runs), "cars") == "cars"
    assert single_dataset([run for run in read_runs(runs) if run.header.dataset != "cars"]) == "people"


def test_a_name_that_nobody_has_is_refused(runs: Path) -> None:
    spend(runs / "a")
    with pytest.raises(InvalidValue, match="there are people"):
        single_dataset(read_runs(runs), "cats")


# --- finding ---


def test_every_run_is_found_at_any_depth_in_one_order(runs: Path) -> None:
    for name in ("b", "a/inner", "c/d/e", "b/inside"):
        spend(runs / name)
    (runs / "b" / "best").mkdir()
    (runs / "b" / "best" / "checkpoint.safetensors").write_bytes(b"")
    (runs / "empty").mkdir()
    (runs / "again").symlink_to(runs / "b")  # found once already
    assert [str(Path(run.name).relative_to(runs)) for run in read_runs(runs)] == ["a/inner", "b", "b/inside", "c/d/e"]


def gone(runs: Path) -> None:
    (runs / "a" / NAME).unlink()


def torn(runs: Path) -> None:
    lines = (runs / "a" / NAME).read_bytes()
    (runs / "a" / NAME).write_bytes(lines.replace(b'"people"', b'"peopla"', 1))


def linked(runs: Path) -> None:
    (runs.parent / "elsewhere").mkdir()
    (runs / "link").symlink_to(runs.parent / "elsewhere")


def tuning(runs: Path) -> None:
    (runs / "a" / "tuning.json").write_text("{}")


def federation(runs: Path) -> None:
    (runs / "f").mkdir()
    (runs / "f" / "federation.json").write_text("{}")


def weights(runs: Path) -> None:
    (runs / "w").mkdir()
    (runs / "w" / "checkpoint.safetensors").write_bytes(b"")


def pipe(runs: Path) -> None:
    (runs / "p").mkdir()
    os.mkfifo(runs / "p" / NAME)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (gone, "What it spent cannot be determined"), (torn, "line 1"),
        (linked, "is a link to"), (tuning, "is a tuning"),
        (federation, "is a federation"), (weights, "has checkpoint.safetensors of a run"), (pipe, "is no plain file"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_refused_and_never_skipped(
    runs: Path, harm: Callable[[Path], None], words: str
) -> None:
    spend(runs / "a")
    spend(runs / "b")
    harm(runs)
    with pytest.raises(PrivetError, match=words) as caught:
        read_runs(runs)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read_is_refused(runs: Path) -> None:
    spend(runs / "a")
    (runs / "a").chmod(0)
    with pytest.raises(InvalidValue, match="cannot be read"):
        read_runs(runs)
    (runs / "a").chmod(0o700)


def test_a_run_that_is_named_twice_counts_once(runs: Path) -> None:
    spend(runs / "a")
    assert len(find_runs([str(runs / "a"), str(runs / "a"), str(runs)])) == 1


# --- the sum ---


def test_the_sum_is_that_of_the_ledgers_together(runs: Path) -> None:
    spend(runs / "a", 40)
    spend(runs / "b", 10)
    found = compose_runs(read_runs(runs))
    wanted = spent(compose_ledgers(PLAN.ledger(), PLAN.ledger().first(10)), 1e-5)
    assert (found.epsilon, found.label, found.method, found.steps) == (wanted.epsilon, "certified", "pld", 50)
    assert found.assumptions == (BEFOREHAND,)
    whole = compose_runs(read_runs(runs), planned=True)
    assert whole.epsilon == spent(compose_ledgers(PLAN.ledger(), PLAN.ledger()), 1e-5).epsilon > found.epsilon


def test_shuffled_epochs_end_with_their_run(runs: Path) -> None:
    made = plan(
        delta=1e-5,
        dataset_size=1000,
        batch_size=250,
        steps=3,
        noise_multiplier=4.0,
        solve="epsilon",
        sampling="shuffled",
    )
    for name in ("a", "b"):
        spend(runs / name, 3, plan=made)
    assert compose_runs(read_runs(runs)).epsilon == spent(compose_ledgers(made.ledger(), made.ledger()), 1e-5).epsilon
    assert compose_runs(read_runs(runs)).epsilon > made.guarantee.epsilon


def test_the_delta_is_the_smallest_of_theirs_unless_it_is_given(runs: Path) -> None:
    spend(runs / "a")
    spend(runs / "b", plan=plan(**GIVEN | {"delta": 1e-6}))
    assert compose_runs(read_runs(runs)).delta == 1e-6
    assert compose_runs(read_runs(runs), delta=1e-4).delta == 1e-4


def test_a_run_that_outputs_ended_counts_with_its_plan(runs: Path) -> None:
    spend(runs / "a", 10)
    about = runs / "a" / "run.json"
    for text, planned in (('{"end": null}', False), ('{"end": "accuracy 0.9 was reached"}', True), ("torn", True)):
        about.write_text(text)
        [run] = read_runs(runs)
        assert run.spent.steps == (40 if planned else 10)


def test_assumptions_name_their_run(runs: Path) -> None:
    spend(runs / "a")
    spend(runs / "b", facts=LoopFacts(steps=40, checked=3))
    spend(runs / "c", facts=None)
    (runs / "d").mkdir()
    spend(runs / "d", facts=None)
    (runs / "d" / "run.json").write_text(json.dumps({"end": None}))  # of `train`, from before anything was noted
    found = compose_runs(read_runs(runs)).assumptions
    assert found[0] == BEFOREHAND
    assert not any(said.startswith((f"{runs}/a:", f"{runs}/d:")) for said in found)
    assert any(said.startswith(f"{runs}/b: independence of examples was checked in 3 of 40") for said in found)
    assert f"{runs}/c: {NOT_RECORDED}" in found


TUNED = plan(
    **{**GIVEN, "solve": "noise", "noise_multiplier": None, "epsilon": 2.0}, trials=3, trial_count_distribution="fixed"
)
UNSOUND = plan(**GIVEN, method="auto-linear", uncertified=True)
VOID = LoopFacts(void_from=3, void_reason="coupled examples were found")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seeded": True}, "came from a seed"), ({"preprocessing_is_private": False}, "read off the records"),
        ({"plan": UNSOUND}, "does not bound"), ({"facts": VOID}, "guarantee: none, coupled examples"),
        ({"plan": TUNED}, "one run of several"),
        ({"plan": plan(**GIVEN, unit="user")}, "each user"),
        ({"plan": plan(**GIVEN, adjacency="add-remove")}, "under add-remove"),
    ],
)  # fmt: skip
def test_one_run_without_a_guarantee_leaves_the_sum_without(runs: Path, given: dict[str, Any], words: str) -> None:
    spend(runs / "a")
    spend(runs / "b", **given)
    with pytest.raises(Unsupported, match=words) as caught:
        compose_runs(read_runs(runs))
    assert str(runs / "b") in str(caught.value)


def test_fixed_size_runs_are_summed_by_rdp(runs: Path) -> None:
    fixed = plan(**GIVEN, adjacency="replace-one", sampling="fixed-size", accountant="rdp")
    for name in ("a", "b"):
        spend(runs / name, plan=fixed)
    found = compose_runs(read_runs(runs))
    assert (found.method, found.label, found.adjacency) == ("rdp", "certified", "replace-one")
