"""What a check finds late, and batches that were left: said in the guarantee and on the disk, also after a resume."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from scipy import stats

from adversarial.replay import a_plan, linear, records, sgd
from adversarial.unsound_inputs import each
from privet import Training
from privet.cli import main
from privet.errors import Unsupported
from privet.ledger.reading import read_ledger
from privet.training import loop_watch
from privet.training.loop_watch import ALWAYS_CHECKED, FOUND_WITHIN, ONE_OF, LoopGuard
from privet.training.resume import resume
from ranks import fine, on_ranks

LONG = a_plan(steps=20, batch_size=30)  # no batch is empty or alone, but once in 10^8 runs
ALARM = 1e-6
DOCS = Path(__file__).parents[2] / "docs"


def a_training(planned=LONG, make=Training, **given):
    torch.manual_seed(1)
    model = linear()
    return make(model, sgd(model), records(), planned, **given)


def couple_from(training, first):
    """A loop that is sound up to a step, and turns all losses by the sign of a mean from there on."""
    for x, y in training:
        losses = each(training.model(x), y)
        training.step(losses if training.steps_done < first else losses * torch.sign(x.mean()))


@pytest.fixture
def check_at(monkeypatch):
    """Steps after the first ones that are checked; otherwise nobody can tell them beforehand."""

    def choose(training, *numbers):
        monkeypatch.setattr(
            loop_watch.secrets, "randbelow", lambda most: 0 if training.steps_done in numbers else most - 1
        )  # fmt: skip

    return choose


# --- coupled late -----------------------------------------------------------------------------------


def test_coupling_that_is_found_late_voids_the_run_from_the_last_check_on(tmp_path, check_at):
    training = a_training(out=tmp_path)
    check_at(training, 12, 16)
    with pytest.raises(Unsupported, match="depends on the records of others"):
        couple_from(training, 14)
    for said in (training.spent(), training.guarantee):
        assert said.label == "claimed"
        assert "guarantee: none" in str(said)
        assert "from step 13 on" in str(said)
    training.close()
    assert read_ledger(tmp_path).loop.void_from == 13
    again = a_training(make=resume, out=tmp_path)
    assert again.steps_done == 17
    couple_from(again, 99)  # sound from now on: too late
    assert again.steps_done == len(LONG.steps)
    assert again.spent().label == "claimed"
    again.close()
    answer = CliRunner().invoke(main, ["epsilon", "--from", str(tmp_path)])
    assert answer.exit_code == 2
    assert "guarantee: none" in answer.output
    assert "from step 13 on" in answer.output


def test_the_ledger_says_void_before_the_loop_hears_of_it(tmp_path, check_at):
    training = a_training(out=tmp_path)
    check_at(training, 16)
    said = []
    try:
        couple_from(training, 9)
    except Unsupported:
        said.append(read_ledger(tmp_path).loop.void_from)
    assert said == [ALWAYS_CHECKED]


def test_what_was_not_checked_is_an_assumption(check_at):
    """Coupled from step 9 on and ended before a check: nobody can know, and the guarantee says that nobody looked."""
    training = a_training(a_plan(steps=12, batch_size=30))
    check_at(training)
    couple_from(training, 9)
    assert training.spent().label == "certified"
    assert "checked in 8 of 12 steps, and holds in the others" in training.spent().assumptions[0]


def test_a_step_is_checked_in_all_its_physical_batches(check_at):
    """A loop that couples in each second piece alone."""
    training = a_training(max_physical_batch_size=8)
    check_at(training)

    def loop():
        is_first = True
        for x, y in training:
            losses = each(training.model(x), y)
            is_first = training.step(losses if is_first else losses * torch.sign(x.mean()))

    with pytest.raises(Unsupported, match="depends on the records of others"):
        loop()
    assert training.steps_done == 1


def test_later_steps_are_checked_by_chance_and_soon_enough():
    draws = 40_000
    guard = object.__new__(LoopGuard)
    guard._checks = ALWAYS_CHECKED
    found = sum(guard.wants_check() for _ in range(draws))
    low, high = stats.binom.ppf([ALARM / 2, 1 - ALARM / 2], draws, 1 / ONE_OF)
    assert low <= found <= high
    assert (1 - 1 / ONE_OF) ** FOUND_WITHIN < 0.05
    assert math.ceil(math.log(0.05) / math.log(1 - 1 / ONE_OF)) == FOUND_WITHIN
    assert f"before s + {FOUND_WITHIN} with a chance of 95 %" in " ".join((DOCS / "sharp-edges.md").read_text().split())


# --- left batches -----------------------------------------------------------------------------------

OPTIONS = {
    "plain": {}, "reserved": {"steps_per_line": 4}, "physical": {"max_physical_batch_size": 8},
    "workers": {"workers": 2},
    "all": {"steps_per_line": 4, "max_physical_batch_size": 8, "workers": 1},
}  # fmt: skip
over_options = pytest.mark.parametrize("given", OPTIONS.values(), ids=OPTIONS)


def leave(training, times):
    """Look at a batch and leave it, so many times."""
    for _ in range(times):
        for _ in training:
            break


@over_options
def test_a_batch_that_is_left_is_charged_on_the_disk_and_never_drawn_again(tmp_path, given):
    training = a_training(out=tmp_path, **given)
    reserved = given.get("steps_per_line", 1)
    for seen in range(1, 6):
        leave(training, 1)
        charged = read_ledger(tmp_path).ledger.steps
        assert seen <= charged < seen + reserved  # and what workers drew ahead is not charged
        assert training.steps_done == training.facts.lost == seen
        assert training.spent().steps == charged
    couple_from(training, 99)
    assert (training.steps_done, training.facts.steps, training.facts.lost) == (20, 15, 5)
    assert training.spent().epsilon == LONG.guarantee.epsilon
    assert any(text.startswith("5 batches were handed out, charged and never released")
               for text in training.spent().assumptions)  # fmt: skip


@over_options
def test_a_batch_that_a_crash_left_is_charged_and_counted(tmp_path, given):
    """The folder as a killed process leaves it, with a batch at hand."""
    training = a_training(out=tmp_path / "a", **given)
    batches = iter(training)
    x, y = next(batches)
    while not training.step(each(training.model(x), y)):
        x, y = next(batches)
    next(batches)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    batches.close()
    again = a_training(make=resume, out=tmp_path / "b", **given)
    assert again.steps_done >= 2
    assert again.steps_done == again.spent().steps
    assert again.facts.lost >= 1
    couple_from(again, 99)
    assert again.steps_done == len(LONG.steps)
    assert any("never released" in text for text in again.spent().assumptions)


def test_a_batch_that_all_ranks_leave_is_charged_once(tmp_path):
    def work(group):
        training = a_training(out=tmp_path, group=group)
        leave(training, 2)
        couple_from(training, 99)
        training.close()
        return training.steps_done, training.facts.steps, training.facts.lost

    assert fine(on_ranks(2, work)) == [(20, 18, 2)] * 2
    assert read_ledger(tmp_path).ledger.steps == 20
    assert read_ledger(tmp_path).loop.lost == 2
