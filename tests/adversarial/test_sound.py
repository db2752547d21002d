"""Loops that keep their guarantee: accepted, with the sums of the obvious loop, whether steps are checked or not."""

import pytest
import torch

from adversarial import sound_inputs, sound_models
from adversarial.replay import ROUNDING, STEPS, bare, run, violations

LOOPS = [*sound_inputs.LOOPS, *sound_models.LOOPS]
over = pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)


def test_there_are_enough_of_them():
    assert len(LOOPS) >= 40


@over
def test_one_record_moves_no_more_than_its_bound(loop):
    assert not violations(loop)


@over
def test_the_loop_is_accepted_and_no_check_changes_it(loop, monkeypatch):
    trace = run(loop, monkeypatch=monkeypatch)
    if trace.error is not None:
        raise trace.error
    assert len(trace.sums) == STEPS
    if loop.is_exact:
        for ours, obvious in zip(trace.sums, bare(loop).sums, strict=False):
            assert float((ours - obvious).norm()) <= ROUNDING
    unchecked = run(loop, is_checked=False, monkeypatch=monkeypatch)
    assert all(map(torch.equal, trace.sums, unchecked.sums))
    assert all(map(torch.equal, trace.seen, unchecked.seen))
