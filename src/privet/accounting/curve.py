"""Epsilon after each step of a run, cheap enough to plot."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet import _check
from privet.accounting.base import is_truncated, spent
from privet.accounting.guarantee import Label, Relation
from privet.accounting.ledger import Ledger
from privet.accounting.levels import levels_of
from privet.accounting.pld import epsilon_bounds
from privet.errors import InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonCurve:
    """Epsilon at `delta` after the first `steps[i]` releases: at most `upper[i]`, at least `lower[i]` (if known)."""

    steps: NDArray[np.int64]
    lower: NDArray[np.float64] | None
    upper: NDArray[np.float64]
    delta: float
    method: str
    label: Label


def epsilon_curve(
    ledger: Ledger,
    delta: float,
    *,
    points: int = 200,
    accountant: str = "pld",
    relation: Relation = "zero-out",
) -> EpsilonCurve:
    """Epsilon over the run, at about `points` evenly spaced steps (all of them if there are fewer).

    >>> ledger = Ledger()
    >>> ledger.extend(noise=[2.0, 1.8, 1.6, 1.4], rate=0.01)
    >>> epsilon_curve(ledger, 1e-5).upper.round(3).tolist()
    [0.005, 0.009, 0.016, 0.038]
    """
    _check.whole(points=points)
    if not ledger:
        raise InvalidValue("ledger=empty has no curve. Add at least one step.")
    steps = np.unique(np.linspace(1, ledger.steps, min(points, ledger.steps)).round().astype(np.int64))
    last = spent(ledger, delta, accountant=accountant, relation=relation)  # checks that the accountant covers it
    find = _quick_pld if accountant == "pld" and not is_truncated(ledger) else _by_spent
    found = [find(ledger.first(int(n)), delta, accountant, relation) for n in steps[:-1]]
    found.append((last.epsilon_lower, last.epsilon))
    lower = [low for low, _ in found]
    # A bound for more steps bounds fewer, from above and below alike: no wobble.
    upper = np.minimum.accumulate([high for _, high in found][::-1])[::-1]
    return EpsilonCurve(
        steps=steps,
        lower=None if any(low is None for low in lower) else np.maximum.accumulate(np.array(lower, dtype=np.float64)),
        upper=upper,
        delta=delta,
        method=accountant,
        label=last.label,
    )


def _quick_pld(ledger: Ledger, delta: float, accountant: str, relation: Relation) -> tuple[float | None, float]:
    return epsilon_bounds(levels_of(ledger), delta, quick=True)


def _by_spent(ledger: Ledger, delta: float, accountant: str, relation: Relation) -> tuple[float | None, float]:
    found = spent(ledger, delta, accountant=accountant, relation=relation)
    return found.epsilon_lower, found.epsilon
