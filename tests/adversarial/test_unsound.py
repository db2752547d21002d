"""Loops that no guarantee covers: each moves what one record may not move, and is refused within ten steps."""

import pytest

from adversarial import unsound_inputs, unsound_losses, unsound_models, unsound_rows, unsound_state, unsound_steps
from adversarial.replay import STEPS, run, violations

PARTS = unsound_inputs, unsound_losses, unsound_models, unsound_rows, unsound_state, unsound_steps
LOOPS = [loop for part in PARTS for loop in part.LOOPS]
CHOSEN = [loop for loop in LOOPS if loop.point == 1]
MARKED = [loop for loop in LOOPS if loop.is_marked]
REFUSED = [loop for loop in LOOPS if loop not in CHOSEN + MARKED]


def test_there_are_enough_of_them():
    assert len(REFUSED) >= 60
    assert {loop.name for loop in MARKED} == {
        "a_queue_of_features", "an_attribute_of_the_model", "a_learning_rate_from_raw_losses",
        "momentum_from_raw_gradients", "classes_counted_by_a_counter", "sign_by_item", "closure_over_an_item",
        "classes_counted_by_a_length", "sign_by_comparison",
    }  # fmt: skip


def over(loops):
    return pytest.mark.parametrize("loop", loops, ids=lambda loop: f"{loop.point}-{loop.name}")


@over(LOOPS)
def test_one_record_moves_what_it_must_not(loop):
    assert violations(loop)


@over(REFUSED)
def test_the_loop_is_refused(loop, monkeypatch):
    trace = run(loop, monkeypatch=monkeypatch)
    assert trace.error is not None, f"accepted: {len(trace.sums)} steps"
    assert len(trace.sums) <= 10 or loop.name.endswith("after_the_loop")


@over(MARKED)
def test_what_cannot_be_seen_is_said(loop, monkeypatch):
    trace = run(loop, monkeypatch=monkeypatch)
    assert trace.error is not None or trace.training.spent().assumptions
    assert trace.error is not None or loop.point not in (3, 4) or trace.training.facts.taken_out >= 8


@over(CHOSEN)
def test_a_batch_that_was_left_is_charged(loop, monkeypatch):
    """No more batches are seen than are charged, so that none of them is chosen for nothing."""
    trace = run(loop, monkeypatch=monkeypatch)
    if trace.error is None:
        assert trace.scene.begun <= trace.training.spent().steps <= STEPS
        assert trace.training.spent().assumptions
