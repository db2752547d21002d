"""A total over runs: no run begins that would exceed it, and no charge is ever lost from it."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from privet import Training, plan
from privet.accounting.filter import Filter
from privet.data.task import dataset_name_of
from privet.errors import BudgetExceeded, InvalidValue, PrivetError, Unsupported
from privet.federated.federate import federate
from privet.ledger.account import open_account
from privet.ledger.assumptions import LoopFacts
from privet.ledger.file import LedgerFile
from privet.ledger.reading import NAME as LEDGER
from privet.ledger.total import NAME, Standing, check_total, read_standings, set_total
from privet.noise.randomness import seeded
from privet.planning import Plan
from privet.training.train import train
from privet.tuning.tune import tune
from tiny_task import SIZE, task as tiny

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
ONE = PLAN.guarantee.epsilon


def two_plans(p: Plan = PLAN) -> float:
    """A total that has room for two runs of a plan, and not for three."""
    ledger, least = p.ledger(), p.guarantee.epsilon
    for total in np.geomspace(1.2 * least, 4 * least, 40).tolist():
        fixed = Filter.for_first_run(ledger, epsilon=total, delta=p.guarantee.delta)
        if fixed.cost([ledger] * 2) <= total < fixed.cost([ledger] * 3):
            return float(total)
    raise AssertionError("no total is for two")


TWO = two_plans()


def begin(out: Path, p: Plan = PLAN, *, dataset: str | None = "people", seeded: bool = False) -> None:
    """A run that has begun, and ended before its first step: it may be resumed."""
    open_account(p, out=out, ledger=None, steps_per_line=1, seeded=seeded, dataset=dataset).close()


def go_on(out: Path) -> None:
    open_account(PLAN, out=out, ledger=LedgerFile.open(out, PLAN), steps_per_line=1, seeded=False).close()


def standing(runs: Path, dataset: str = "people") -> Standing:
    [found] = read_standings(runs / "any", dataset)
    return found


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a total for two runs."""
    set_total(tmp_path / "runs", TWO, dataset="people", plan=PLAN)
    return tmp_path / "runs"


# --- what may begin ---


def test_runs_begin_until_their_whole_plans_come_to_the_total(runs: Path) -> None:
    begin(runs / "a")
    begin(runs / "deep" / "b")
    with pytest.raises(BudgetExceeded) as caught:
        begin(runs / "c")
    words = str(caught.value)
    assert "\n" not in words
    for said in (
        "total_epsilon=",
        "'people'",
        "what has begun (2 runs)",
        "with its whole plans",
        "is left",
        "Plan a sm",
    ):
        assert said in words
    assert not (runs / "c").exists()
    found = standing(runs)
    assert len(found.runs) == 2
    assert ONE < found.planned <= TWO == found.guarantee.epsilon
    assert found.guarantee.label == "certified"
    assert found.guarantee.assumptions == tuple(
        f"{runs / name}: not recorded: what was checked of the loop that made this run is not known"
        for name in ("a", "deep/b")
    )


def test_a_plan_above_the_total_never_begins(tmp_path: Path) -> None:
    with pytest.raises(BudgetExceeded, match="0 runs"):
        set_total(tmp_path, ONE / 2, dataset="people", plan=PLAN)
    assert not (tmp_path / NAME).exists()


def test_one_run_may_spend_it_all_and_then_no_other(tmp_path: Path) -> None:
    """Alone it needs no filter: nothing was released before its plan was fixed."""
    set_total(tmp_path, ONE, dataset="people", plan=PLAN)
    begin(tmp_path / "a")
    go_on(tmp_path / "a")
    with pytest.raises(BudgetExceeded, match="1 run"):
        begin(tmp_path / "b", plan(**GIVEN | {"steps": 1}))


def test_other_records_have_a_budget_of_their_own(runs: Path) -> None:
    begin(runs / "a")
    begin(runs / "b")
    begin(runs / "cars", dataset="cars")
    set_total(runs, TWO, dataset="dogs", plan=PLAN)
    begin(runs / "dogs", dataset="dogs")
    assert len(standing(runs).runs) == 2
    assert len(standing(runs, "dogs").runs) == 1
    assert read_standings(runs / "any", "cars") == []


def test_a_run_without_a_name_does_not_begin_below_a_total(runs: Path) -> None:
    with pytest.raises(InvalidValue, match="dataset_name is missing"):
        begin(runs / "a", dataset=None)
    assert not (runs / "a").exists()


def test_the_total_is_said_once(runs: Path) -> None:
    set_total(runs, TWO, dataset="people", plan=PLAN)
    with pytest.raises(InvalidValue, match="is not the total"):
        set_total(runs, TWO * 2, dataset="people", plan=PLAN)
    check_total(runs, dataset="people", plan=PLAN)
    with pytest.raises(InvalidValue, match="has no total for dataset_name='cats'"):
        check_total(runs, dataset="cats", plan=PLAN)


def test_runs_from_before_the_total_count_and_are_assumed(tmp_path: Path) -> None:
    begin(tmp_path / "a")
    begin(tmp_path / "unnamed", dataset=None)
    with pytest.raises(BudgetExceeded, match="2 runs"):
        set_total(tmp_path, TWO, dataset="people", plan=PLAN)
    set_total(tmp_path, 3 * TWO, dataset="people", plan=PLAN)
    assert "set after 2 runs had begun" in standing(tmp_path).guarantee.assumptions[0]


@pytest.mark.parametrize(
    ("p", "is_seeded", "words"),
    [
        (PLAN, True, "came from a seed"), (plan(**GIVEN, unit="user"), False, "each user"),
        (plan(**GIVEN, method="auto-linear", uncertified=True), False, "does not bound"),
        (plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=40, epsilon=2.0, trials=2,
        trial_count_distribution="fixed"), False, "several"),
    ],
)  # fmt: skip
def test_what_has_no_guarantee_or_another_does_not_begin(runs: Path, p: Plan, is_seeded: bool, words: str) -> None:
    begin(runs / "a")
    with pytest.raises(Unsupported, match=words):
        begin(runs / "b", p, seeded=is_seeded)
    assert not (runs / "b").exists()


def test_a_run_that_voided_its_loop_leaves_nothing_to_add_to(runs: Path) -> None:
    begin(runs / "a")
    with LedgerFile.open(runs / "a", PLAN) as ledger:
        ledger.note(LoopFacts(void_from=0, void_reason="coupled examples were found"))
    with pytest.raises(Unsupported, match="coupled examples"):
        begin(runs / "b")


# --- what is never lost ---


def test_a_folder_that_is_moved_or_removed_stays_counted(runs: Path, tmp_path: Path) -> None:
    begin(runs / "a")
    begin(runs / "b")
    shutil.move(runs / "a", tmp_path / "moved")
    shutil.rmtree(runs / "b")
    with pytest.raises(BudgetExceeded, match="2 runs"):
        begin(runs / "c")
    assert any("a run that is gone" in said for said in standing(runs).guarantee.assumptions)


def test_a_run_that_began_and_was_not_yet_registered_is_counted(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that is killed between its ledger and the register leaves it."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("privet.ledger.total.write", killed)
        for name in ("a", "b"):
            with pytest.raises(KeyboardInterrupt):
                begin(runs / name)
    assert json.loads((runs / NAME).read_text())["datasets"]["people"]["runs"] == {}
    with pytest.raises(BudgetExceeded, match="2 runs"):
        begin(runs / "c")
    go_on(runs / "a")  # and it may go on, and is registered then
    assert len(json.loads((runs / NAME).read_text())["datasets"]["people"]["runs"]) == 1


def test_a_copy_of_a_run_is_a_run_of_its_own(runs: Path) -> None:
    """Both may go on and draw noise of their own."""
    begin(runs / "a")
    begin(runs / "b")
    go_on(runs / "a")
    shutil.copytree(runs / "a", runs / "copy")
    with pytest.raises(BudgetExceeded):
        go_on(runs / "copy")


def test_a_run_that_was_brought_in_goes_on_only_within_the_total(runs: Path, tmp_path: Path) -> None:
    begin(runs / "a")
    begin(runs / "b")
    begin(tmp_path / "c")
    shutil.move(tmp_path / "c", runs / "c")
    with pytest.raises(BudgetExceeded):
        go_on(runs / "c")


def test_a_damaged_ledger_or_budget_stops_all(runs: Path) -> None:
    begin(runs / "a")
    kept = (runs / NAME).read_text()
    (runs / NAME).write_text(kept.replace('"epsilon": ', '"epsilon": 9'))
    with pytest.raises(InvalidValue, match="not as it was written"):
        begin(runs / "b")
    (runs / NAME).write_text(kept)
    ledger = (runs / "a" / LEDGER).read_bytes()
    (runs / "a" / LEDGER).write_bytes(ledger[:50])
    with pytest.raises(InvalidValue, match="line 1"):
        begin(runs / "b")
    (runs / "a" / LEDGER).unlink()
    with pytest.raises(InvalidValue, match=r"has ledger\.count of a run"):
        begin(runs / "b")


# --- every way to begin ---


def test_a_loop_of_ones_own_is_held_too(runs: Path) -> None:
    begin(runs / "a")
    x, y = torch.randn(1000, 3), torch.zeros(1000).long()

    def training(name: str, **given: Any) -> Training:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Training(model, optimizer, (x, y), PLAN, **{"out": runs / name, "dataset_name": "people"} | given)

    with pytest.raises(InvalidValue, match="dataset_name is missing"):
        training("b", dataset_name=None)
    with pytest.raises(InvalidValue, match="given without out"):
        training("b", out=None)
    with pytest.raises(Unsupported, match="came from a seed"):
        training("b", randomness=seeded(1))
    with training("b") as made:
        for inputs, targets in made.until(2):
            made.step(nn.functional.cross_entropy(made.model(inputs), targets, reduction="none"))
    with pytest.raises(BudgetExceeded):
        training("c")
    assert any("independence of examples" in said for said in standing(runs).guarantee.assumptions)


def test_federations_and_tunings_do_not_begin_below_a_total(runs: Path) -> None:
    with pytest.raises(Unsupported, match="the cost of a tuning"):
        tune({"lr": [0.1]}, out=runs / "t", task=tiny(), epsilon=2.0, delta=1e-3, batch_size=10, steps=5)
    p = plan(epsilon=4.0, delta=1e-2, dataset_size=20, batch_size=5, steps=3, unit="client")
    with pytest.raises(Unsupported, match="the cost of a federation"):
        federate(p, tiny(), out=runs / "f", clients=20)
    assert {path.name for path in runs.iterdir()} <= {NAME, "budget.lock"}


def unread() -> Any:
    raise AssertionError("a record was read")


def test_train_refuses_before_a_record_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p = plan(delta=1e-3, dataset_size=SIZE, batch_size=20, steps=4, noise_multiplier=2.0, solve="epsilon")
    given = {"ledger_dir": tmp_path, "dataset_name": "tiny"}
    train(p, "tiny_task:task", out=tmp_path / "a", total_epsilon=two_plans(p), **given)
    run = train(p, "tiny_task:task", out=tmp_path / "b", **given)
    assert run.dataset == "tiny"
    monkeypatch.setattr(sys.modules["privet.data.task"], "task", lambda *_, **__: unread())
    with pytest.raises(BudgetExceeded):
        train(p, "tiny_task:task", out=tmp_path / "c", **given)
    for wrong, words in (
        ({"dataset_name": None}, "dataset_name is missing"), ({"ledger_dir": tmp_path / "b"}, "is not in ledger_dir"),
        ({"ledger_dir": None, "total_epsilon": 3.0}, "without ledger_dir"), ({"seed": 1}, "came from a seed"),
        ({"ledger_dir": tmp_path / "c"}, "is not in ledger_dir"), ({"dataset_name": "A"}, "small letters"),
    ):  # fmt: skip
        with pytest.raises(PrivetError, match=words):
            train(p, "tiny_task:task", out=tmp_path / "c", **{**given, **wrong})
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("mnist", "mnist"), ("mnist:features=scattering,size=100", "mnist"), ("infinite-mnist", "mnist"),
        ("imdb:vocabulary=counted", "imdb"), ("csv:path=a.csv,target=y", None), ("folder:path=x", None),
        ("npz:path=x", None), ("tiny_task:task", None),
    ],
)  # fmt: skip
def test_a_task_of_privets_has_the_name_of_its_records(spelling: str, name: str | None) -> None:
    assert dataset_name_of(spelling) == name
