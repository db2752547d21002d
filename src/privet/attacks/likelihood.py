"""Scores that tell members from others, from what shadow models say, and how often they are right on other models."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from privet.accounting.tradeoff import Curve, true_positive_rate
from privet.attacks.shadows import Shadows

RATES = (0.001, 0.01)  # false-positive rates that are reported
ATTACKS = ("lira-online", "lira-offline", "loss")
ALARM = 1e-3  # how often a sound plan is accused, over all attacks and thresholds
LEAST_SPREAD = 1e-3

Floats = NDArray[np.float64]


# --- scores -----------------------------------------------------------------------------------------


def scores(attack: str, seen: Shadows, learnt: Shadows, *, leave_out: bool = False) -> Tensor:
    """How much each model of `seen` (M, R) speaks for each record's membership, from what `learnt` tells of records.

    lira-online: log N(x; in) - log N(x; out), lira-offline: (x - mean out) / spread out, x the confidence; means are
    each record's own, spreads are those of all records, which few shadows can tell better. loss: minus the loss.
    `leave_out`: `seen` is `learnt`, and no model is judged by itself.
    Sources: Carlini et al. 2022, arXiv:2112.03570; Yeom, Giacomelli, Fredrikson, Jha 2018, arXiv:1709.01604 (loss).
    """
    if attack == "loss":
        return -seen.losses
    x = seen.confidence
    mean_out, spread_out = _fitted(seen, learnt, ~learnt.members, leave_out=leave_out)
    if attack == "lira-offline":
        return (x - mean_out) / spread_out
    mean_in, spread_in = _fitted(seen, learnt, learnt.members, leave_out=leave_out)
    return (
        ((x - mean_out) / spread_out).square() / 2 + spread_out.log()
        - ((x - mean_in) / spread_in).square() / 2 - spread_in.log()
    )  # fmt: skip


def _fitted(seen: Shadows, learnt: Shadows, chosen: Tensor, *, leave_out: bool) -> tuple[Tensor, Tensor]:
    """The mean of each record over the chosen models, (M, R) or (R,), and the spread around it, one for all."""
    w, x = chosen.double(), learnt.confidence
    count, total = w.sum(0), (w * x).sum(0)
    overall = total.sum() / count.sum().clamp(min=1)
    mean = torch.where(count > 0, total / count.clamp(min=1), overall)
    left = (w * (x - mean).square()).sum() / (count - 1).clamp(min=0).sum().clamp(min=1)
    spread = left.sqrt().clamp(min=LEAST_SPREAD)
    if leave_out:
        rest = count - w
        mean = torch.where(rest > 0, (total - w * x) / rest.clamp(min=1), overall)
    return mean, spread


# --- rates ------------------------------------------------------------------------------------------


def roc(values: Tensor, members: Tensor) -> tuple[Floats, Floats]:
    """(false-positive rates, true-positive rates) at every threshold, from strict to lax."""
    flat, inside = values.flatten().numpy(), members.flatten().numpy()
    order = np.argsort(-flat, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(flat[order])), len(flat) - 1)  # equal scores pass together
    true, false = np.cumsum(inside[order])[ends], np.cumsum(~inside[order])[ends]
    return np.append(0.0, false / max((~inside).sum(), 1)), np.append(0.0, true / max(inside.sum(), 1))


def mean_limits(means: Floats, alarm: float) -> tuple[float, float]:
    """Limits of the expectation behind the mean of independent values in [0, 1], each wrong with chance `alarm`.

    All p with n KL(mean || p) <= log(1/alarm): Hoeffding 1963, Theorem 1. Records of one model depend on each other,
    so a model is one value: its share of records above the threshold (`shares`).

    >>> [round(limit, 3) for limit in mean_limits(np.zeros(20), 0.01)]
    [0.0, 0.206]
    """
    mean, bound = float(np.mean(means)), math.log(1 / alarm) / len(means)

    def apart(p: float) -> float:
        first = mean * math.log(mean / p) if mean > 0 else 0.0
        return first + ((1 - mean) * math.log((1 - mean) / (1 - p)) if mean < 1 else 0.0)

    def end(inner: float, outer: float) -> float:
        for _ in range(60):
            middle = (inner + outer) / 2
            fits = 0 < middle < 1 and apart(middle) <= bound
            inner, outer = (middle, outer) if fits else (inner, middle)
        return outer

    return end(mean, 0.0) if mean > 0 else 0.0, end(mean, 1.0) if mean < 1 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Score:
    """What one attack did on the target models."""

    attack: str
    roc: tuple[Floats, Floats]
    tpr: dict[float, float]  # at each of RATES
    advantage: float  # at the threshold that was best on shadows
    is_violation: bool

    def as_dict(self) -> dict[str, Any]:
        return {
            "attack": self.attack, "tpr_at_fpr": {f"{rate:g}": value for rate, value in self.tpr.items()},
            "advantage": self.advantage, "violation": self.is_violation,
        }  # fmt: skip


def judged(attack: str, learnt: Shadows, targets: Shadows, curve: Curve | None, alarm: float) -> Score:
    """An attack that learnt from some models, on others. A violation: a rate beyond the curve, with confidence."""
    known = scores(attack, learnt, learnt, leave_out=True)
    values = scores(attack, targets, learnt)
    thresholds = [float(np.quantile(known[~learnt.members].numpy(), 1 - rate)) for rate in RATES]
    false, true = roc(known, learnt.members)
    cut = np.unique(known.numpy())[::-1]
    best = float(cut[max(int(np.argmax(true - false)) - 1, 0)])
    passed = (values >= best).numpy()
    inside = targets.members.numpy()
    false, true = roc(values, targets.members)
    return Score(
        attack=attack, roc=(false, true), tpr={rate: float(true[false <= rate].max()) for rate in RATES},
        advantage=float(passed[inside].mean() - passed[~inside].mean()),
        is_violation=curve is not None and any(
            _exceeds(values, targets.members, t, curve, alarm / (2 * len(RATES) + 2)) for t in (*thresholds, best)
        ),
    )  # fmt: skip


def _exceeds(values: Tensor, members: Tensor, threshold: float, curve: Curve, alarm: float) -> bool:
    """Whether members pass more often than f allows at this false-positive rate: TPR_low > 1 - f(FPR_high)."""
    true, false = shares(values >= threshold, members)
    low, high = mean_limits(true, alarm)[0], mean_limits(false, alarm)[1]
    whole = mass(members.shape[1])
    return low / whole > true_positive_rate(curve, min(high / whole, 1.0))


def shares(passed: Tensor, members: Tensor) -> tuple[Floats, Floats]:
    """What the members and the others that passed weigh in each model, (M,) and (M,), each in [0, 1].

    A record weighs g(j) = 1 / max(j + 1, R - j), j the members among the R - 1 others: the same whether it is in or
    out. Counts of members and of others as denominators would be random, and weigh the two rates differently. With
    these, the expectations over `mass(R)` are averages of the records' true- and false-positive rates by one law, so
    that TPR <= 1 - f(FPR) holds for them as it does for each record and each set of others: 1 - f is concave.
    """
    inside, records = members.double(), members.shape[1]
    count = inside.sum(1, keepdim=True)
    weights = 1 / torch.maximum(count - inside + 1, records - (count - inside))
    found = [(passed * part * weights).sum(1).numpy() for part in (inside, 1 - inside)]
    return found[0], found[1]


def mass(records: int) -> float:
    """What all records weigh on average, in or out by fair coins: R / 2 E[g(J)], J binomial(R - 1, 1/2); at most 1.

    >>> mass(1), round(mass(200), 3)
    (0.5, 0.944)
    """
    j = np.arange(records)
    return float(records / 2 * (stats.binom.pmf(j, records - 1, 0.5) / np.maximum(j + 1, records - j)).sum())
