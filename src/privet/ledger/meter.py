"""What a run has spent so far, at next to no cost: read off a curve made once; and how much one ledger line charges."""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from privet._files import sync, write_all
from privet.accounting import EpsilonCurve, Guarantee, epsilon_curve
from privet.errors import PrivetError
from privet.ledger.account import guarantee_of
from privet.planning import Plan

LONG = 1200  # steps of a plan that is worth a curve: it costs as much as some 15 moments priced by themselves
EARLY = 600  # steps up to which the curve has few points
LINE_SHARE = 0.01  # of the steps' time, that their ledger line may take
MOST_RESERVED = 32  # steps that a crash can cost, whatever the disk
LEAST_LINES = 100  # of a whole run: nor may a crash cost more than a hundredth of it


class Meter:
    """Epsilon after n steps of a plan: an upper bound, never below the truth.

    A plan of 1,200 steps or more is read off one curve of 200 points, at the next point: what is shown may be ahead of
    the ledger by half a percent of the steps, never behind. Its first 600 steps, and shorter plans, are priced when
    asked, each moment once.

    >>> from privet import plan
    >>> p = plan(epsilon=1.0, delta=1e-5, dataset_size=1000, batch_size=10, steps=40)
    >>> meter = Meter(p)
    >>> meter.guarantee_at(0).epsilon, meter.guarantee_at(20).label
    (0.0, 'certified')
    >>> meter.guarantee_at(40).epsilon == p.guarantee.epsilon
    True
    """

    def __init__(self, plan: Plan, mark: Callable[[Guarantee], Guarantee] = lambda guarantee: guarantee) -> None:
        self._plan, self._mark = plan, mark  # `mark` labels what has no guarantee
        self._curve: EpsilonCurve | None = None
        self._is_covered = True
        self._priced: dict[int, Guarantee] = {}

    def guarantee_at(self, steps: int) -> Guarantee:
        """What the first so many steps cost together."""
        if steps not in self._priced:
            self._priced[steps] = self._price(steps)
        return self._mark(self._priced[steps])

    def quick_guarantee(self, steps: int, later: int) -> Guarantee:
        """The same or more, for a line that is looked at often: of a short plan, at a `later` moment that is asked for
        anyway; of the first steps of a long one, at one of the few points that its curve has there."""
        found = self._read(steps) if len(self._plan.steps) >= LONG else None
        return self.guarantee_at(later) if found is None else self._mark(found)

    def _price(self, steps: int) -> Guarantee:
        length = len(self._plan.steps)
        if steps == 0:
            return replace(self._one_step_guarantee(), epsilon=0.0, epsilon_lower=0.0, steps=0)
        read = self._read(steps) if length >= LONG and steps > EARLY else None
        return guarantee_of(self._plan.ledger().first(steps), self._plan) if read is None else read

    def _read(self, steps: int) -> Guarantee | None:
        curve = self._plan_curve()
        if curve is None:
            return None
        place = int(np.searchsorted(curve.steps, steps))
        lower = None if curve.lower is None or curve.steps[place] != steps else float(curve.lower[place])
        return replace(self._one_step_guarantee(), epsilon=float(curve.upper[place]), epsilon_lower=lower, steps=steps)

    def _one_step_guarantee(self) -> Guarantee:
        if 1 not in self._priced:
            self._priced[1] = guarantee_of(self._plan.ledger().first(1), self._plan)
        return self._priced[1]

    def _plan_curve(self) -> EpsilonCurve | None:
        """The curve of the plan, by pld; None where pld does not cover it."""
        if self._curve is None and self._is_covered:
            budget = self._plan.recipe.budget
            try:
                self._curve = epsilon_curve(self._plan.ledger(), budget.delta, adjacency=budget.adjacency)
            except PrivetError:
                self._is_covered = False
        return self._curve


def choose_steps_per_line(*, steps: int, step_seconds: float, line_seconds: float) -> int:
    """How many steps one line should charge, so that lines take a hundredth of the time, within what may be lost.

    >>> choose_steps_per_line(steps=5000, step_seconds=0.01, line_seconds=0.0003)
    3
    >>> choose_steps_per_line(steps=5000, step_seconds=0.5, line_seconds=0.001)
    1
    """
    wanted = math.ceil(line_seconds / (LINE_SHARE * max(step_seconds, 1e-9)))
    return max(1, min(wanted, MOST_RESERVED, steps // LEAST_LINES))


def measure_line_seconds(folder: Path, *, rounds: int = 5) -> float:
    """How long a synced line takes on the disk of a folder (or of the nearest above it): the median of a few."""
    place = next(above for above in (folder, *folder.absolute().parents) if above.is_dir())
    taken = []
    with tempfile.TemporaryFile(dir=place) as stream:
        for _ in range(rounds):
            start = time.perf_counter()
            write_all(stream.fileno(), b"x" * 200)
            sync(stream.fileno())
            taken.append(time.perf_counter() - start)
    return sorted(taken)[rounds // 2]
