"""From samples to statements: limits on error rates, and whether a claimed trade-off curve can still be true.

A test that guesses which of two worlds it sees has two errors, a (a false alarm) and b (a miss). The claim says
b >= f(a) for every test. Limits above both, from samples that did not choose the test, reject it where b' < f(a').
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from privet import _check
from privet.accounting.tradeoff import Curve, Gaussian, advantage

Floats = NDArray[np.float64]

THRESHOLDS = 200  # candidates, at quantiles of both worlds together
MOST_SAMPLES = 10**9  # beyond, no sampling decides
DECIDES = 250.0  # samples per world that tell mu from mu' are about this over (mu - mu')^2


def upper_limit(count: ArrayLike, trials: int, alarm: float) -> Floats:
    """Above the true rate of `count` out of `trials`, but for a chance of `alarm`.

    Source: Clopper and Pearson 1934; exact, from the beta distribution.

    >>> round(float(upper_limit(0, 1000, 1e-3)), 5)
    0.00688
    """
    _check.whole(trials=trials)
    _check.between(0, 1, alarm=alarm)
    k = np.asarray(count, dtype=np.float64)
    found = special.betaincinv(k + 1, np.maximum(trials - k, 1e-9), 1 - alarm)
    return np.where(k >= trials, 1.0, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """The limits above both errors of one test, together true with confidence 1 - alarm; and the rates seen."""

    false_alarm: float
    miss: float
    seen_false_alarm: float
    seen_miss: float

    @property
    def mu(self) -> float:
        """The Gaussian reading: the least mu whose G_mu allows this test. No bound unless the law is Gaussian."""
        return max(0.0, float(-special.ndtri(self.false_alarm) - special.ndtri(self.miss)))

    def rejects(self, curve: Curve) -> bool:
        """Whether the claim cannot be true: b <= b' < f(a') <= f(a)."""
        return self.miss < float(curve(self.false_alarm))

    def epsilon(self, delta: float) -> float:
        """The least epsilon that any (epsilon, delta) guarantee can have: log((1 - delta - b) / a), or a and b swapped.

        A direct bound: it holds for any mechanism. With N samples it cannot exceed about log N.
        """
        a, b = self.false_alarm, self.miss
        found = [math.log((1 - delta - y) / x) if y < 1 - delta and x > 0 else 0.0 for x, y in ((a, b), (b, a))]
        return max(0.0, *found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A test: `sign` times feature number `feature` above `value` means that the record took part."""

    feature: int
    sign: float
    value: float

    def errors(self, without: Floats, with_: Floats, alarm: float) -> Errors:
        """What the test does on samples (N, features) that had no say in choosing it."""
        false = int((self.sign * without[:, self.feature] > self.value).sum())
        missed = int((self.sign * with_[:, self.feature] <= self.value).sum())
        return Errors(
            false_alarm=float(upper_limit(false, len(without), alarm / 2)),
            miss=float(upper_limit(missed, len(with_), alarm / 2)),
            seen_false_alarm=false / len(without), seen_miss=missed / len(with_),
        )  # fmt: skip


def chosen(without: Floats, with_: Floats, *, curve: Curve, delta: float, alarm: float) -> tuple[Threshold, Threshold]:
    """The tests that look best on these samples: against the curve, and for a direct bound on epsilon."""
    best: list[tuple[float, Threshold]] = [(-math.inf, Threshold(feature=0, sign=1.0, value=0.0))] * 2
    for feature in range(without.shape[1]):
        for sign in (1.0, -1.0):
            values, a, b = _candidates(sign * without[:, feature], sign * with_[:, feature], alarm)
            with np.errstate(divide="ignore", invalid="ignore"):
                margins = special.ndtri(np.clip(curve(a), 1e-300, 1 - 1e-16)) - special.ndtri(b)
                ratios = np.maximum(np.log(np.maximum(1 - delta - b, 0) / a), np.log(np.maximum(1 - delta - a, 0) / b))
            for kind, scores in enumerate((margins, ratios)):
                top = int(np.nanargmax(scores))
                if scores[top] > best[kind][0]:
                    test = Threshold(feature=feature, sign=sign, value=float(values[top]))
                    best[kind] = (float(scores[top]), test)
    return best[0][1], best[1][1]


def _candidates(without: Floats, with_: Floats, alarm: float) -> tuple[Floats, Floats, Floats]:
    """Thresholds, and the limits above both errors at each."""
    pooled = np.sort(np.concatenate([without, with_]))
    at = np.unique(np.linspace(0, len(pooled) - 1, THRESHOLDS).astype(int))
    values = pooled[at]
    false = len(without) - np.searchsorted(np.sort(without), values, side="right")
    missed = np.searchsorted(np.sort(with_), values, side="right")
    return (
        values, upper_limit(false, len(without), alarm / 2), upper_limit(missed, len(with_), alarm / 2),
    )  # fmt: skip


def mu_like(curve: Curve) -> float:
    """The mu whose G_mu gives the same advantage as a curve: 2 Phi^-1((1 + advantage) / 2)."""
    return float(2 * special.ndtri((1 + min(advantage(curve), 1 - 1e-15)) / 2))


def would_see(claimed: float, mu: float, *, samples: int, alarm: float) -> bool:
    """Whether the testing half of `samples` per world would reject G_claimed, were errors those expected of G_mu."""
    trials, at = samples // 2, np.linspace(-8.0, mu + 8.0, 801)
    a, b = (upper_limit(np.ceil(trials * special.ndtr(x)), trials, alarm / 2) for x in (-at, at - mu))
    return bool((b < Gaussian(mu=claimed)(a)).any())


def samples_to_see(claimed: float, mu: float, *, least: int, alarm: float) -> int | None:
    """Samples per world at which `would_see` is true, `least` or that doubled; None beyond a billion.

    >>> samples_to_see(1.0, 1.5, least=1000, alarm=1e-3), samples_to_see(20.0, 30.0, least=1000, alarm=1e-3)
    (1000, None)
    """
    samples = least
    while samples <= MOST_SAMPLES:
        if would_see(claimed, mu, samples=samples, alarm=alarm):
            return samples
        samples *= 2
    return None


def samples_to_tell(mu: float, other: float) -> int:
    """Samples per world that tell two values of mu apart at the usual alarm, roughly: 250 / (mu - mu')^2."""
    gap = abs(mu - other)
    return math.ceil(DECIDES / gap**2) if gap > 1e-6 else 10**12
