"""From samples to statements: limits on error rates, and whether a claimed trade-off curve can still be true.

A test that guesses which of two worlds it sees has two errors, a (a false alarm) and b (a miss). The claim says
b >= f(a) for every test. Limits above both, from samples that did not choose the test, reject it where b' < f(a').
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from privet import _check
from privet.accounting.tradeoff import Curve, Gaussian, Tradeoff, advantage
from privet.errors import InvalidValue

Floats = NDArray[np.float64]

THRESHOLDS = 200  # candidates, at quantiles of both worlds together
MOST_SAMPLES = 10**9  # beyond, no sampling decides
DECIDES = 250.0  # samples per world that tell mu from mu' are about this over (mu - mu')^2


def upper_limit(count: ArrayLike, trials: int, significance: float) -> Floats:
    """Above the true rate of `count` out of `trials`, but for a chance of `significance`.

    Source: Clopper and Pearson 1934; exact, from the beta distribution.
    """
    _check.whole(trials=trials)
    _check.between(0, 1, significance=significance)
    k = np.asarray(count, dtype=np.float64)
    found = special.betaincinv(k + 1, np.maximum(trials - k, 1e-9), 1 - significance)
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

    def errors(self, without: Floats, with_: Floats, significance: float) -> Errors:
        """What the test does on samples (N, features) that had no say in choosing it."""
        false = int((self.sign * without[:, self.feature] > self.value).sum())
        missed = int((self.sign * with_[:, self.feature] <= self.value).sum())
        return Errors(
            false_alarm=float(upper_limit(false, len(without), significance / 2)),
            miss=float(upper_limit(missed, len(with_), significance / 2)),
            seen_false_alarm=false / len(without), seen_miss=missed / len(with_),
        )  # fmt: skip


def choose_tests(
    without: Floats, with_: Floats, *, curve: Curve, delta: float, significance: float
) -> tuple[Threshold, Threshold]:
    """The tests that look best on these samples: against the curve, and for a direct bound on epsilon."""
    best: list[tuple[float, Threshold]] = [(-math.inf, Threshold(feature=0, sign=1.0, value=0.0))] * 2
    for feature in range(without.shape[1]):
        for sign in (1.0, -1.0):
            values, a, b = _candidate_thresholds(sign * without[:, feature], sign * with_[:, feature], significance)
            with np.errstate(divide="ignore", invalid="ignore"):
                margins = special.ndtri(np.clip(curve(a), 1e-300, 1 - 1e-16)) - special.ndtri(b)
                ratios = np.maximum(np.log(np.maximum(1 - delta - b, 0) / a), np.log(np.maximum(1 - delta - a, 0) / b))
            for kind, scores in enumerate((margins, ratios)):
                top = int(np.nanargmax(scores))
                if scores[top] > best[kind][0]:
                    test = Threshold(feature=feature, sign=sign, value=float(values[top]))
                    best[kind] = (float(scores[top]), test)
    return best[0][1], best[1][1]


def _candidate_thresholds(without: Floats, with_: Floats, significance: float) -> tuple[Floats, Floats, Floats]:
    pooled = np.sort(np.concatenate([without, with_]))
    at = np.unique(np.linspace(0, len(pooled) - 1, THRESHOLDS).astype(int))
    values = pooled[at]
    false = len(without) - np.searchsorted(np.sort(without), values, side="right")
    missed = np.searchsorted(np.sort(with_), values, side="right")
    return (
        values, upper_limit(false, len(without), significance / 2), upper_limit(missed, len(with_), significance / 2),
    )  # fmt: skip


def equivalent_mu(curve: Curve) -> float:
    """The mu whose G_mu gives the same advantage as a curve: 2 Phi^-1((1 + advantage) / 2)."""
    return float(2 * special.ndtri((1 + min(advantage(curve), 1 - 1e-15)) / 2))


def has_power(claimed: float, mu: float, *, samples: int, significance: float) -> bool:
    """Whether the testing half of `samples` per world would reject G_claimed, were errors those expected of G_mu."""
    trials, at = samples // 2, np.linspace(-8.0, mu + 8.0, 801)
    a, b = (upper_limit(np.ceil(trials * special.ndtr(x)), trials, significance / 2) for x in (-at, at - mu))
    return bool((b < Gaussian(mu=claimed)(a)).any())


def samples_to_detect(claimed: float, mu: float, *, least: int, significance: float) -> int | None:
    """Samples per world at which `would_see` is true, `least` or that doubled; None beyond a billion."""
    samples = least
    while samples <= MOST_SAMPLES:
        if has_power(claimed, mu, samples=samples, significance=significance):
            return samples
        samples *= 2
    return None


def samples_to_distinguish(mu: float, other: float) -> int:
    """Samples per world that tell two values of mu apart at the usual alarm, roughly: 250 / (mu - mu')^2."""
    gap = abs(mu - other)
    return math.ceil(DECIDES / gap**2) if gap > 1e-6 else 10**12


ROUNDING = 1e-9  # the recursion's sums are moved by this much, relatively, to the safe side
HALVINGS = 60


def pair_p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """A limit above P[W >= v] under (epsilon, delta).

        P[W >= v] <= P[B >= v] + 2 m delta max_i P[v - i <= B < v] / i,   B ~ Binomial(r, 1 / (1 + e^-eps))

    Source: Steinke, Nasr, Jagielski 2023, arXiv:2305.08846, Theorem 5.2.
    """
    _check_counts(canaries, guesses, right)
    _check.non_negative(epsilon=epsilon, delta=delta)
    law = stats.binom(guesses, special.expit(epsilon))
    beyond = float(law.sf(right - 1))
    if delta == 0 or right == 0:
        return min(1.0, beyond)
    below = law.pmf(np.arange(right - 1, -1, -1)).cumsum()
    return min(1.0, beyond + 2 * canaries * delta * float((below / np.arange(1, right + 1)).max()))


def curve_p_value(curve: Curve, *, canaries: int, guesses: int, right: int) -> float:
    """A limit above P[W >= v] under a trade-off curve f that is symmetric, as ours are.

    Let p_j = P[W = j]. Flipping the coin of a canary that is guessed right turns W = j into W = j - 1, and f bounds how
    much likelier the one is than the other. Summed over all canaries, with f's concavity: for every j

        sum_{i >= j} (i / m) p_i  <=  1 - f( sum_{i >= j - 1} ((r - i) / m) p_i )

    The answer is the largest P[W >= v] that these allow. It is found by going down from v: all of it is put on v, then
    each p_j is the least that its inequality asks for; what needs more than probability 1 is impossible.
    Source: Mahloujifar, Melis, Chaudhuri 2024, arXiv:2410.22235 (two choices per canary). The proof is in
    docs/howto-audit.md, and a linear program is the oracle in tests/unit/auditing/test_bounds_canaries.py.
    """
    _check_counts(canaries, guesses, right)
    if right == 0:
        return 1.0
    if _least_probability(curve, canaries, guesses, right, 1.0) <= 1:
        return 1.0
    low, high = -80.0, 0.0  # in logarithms: P[W >= v] of e^low is always allowed
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = _least_probability(curve, canaries, guesses, right, math.exp(middle)) <= 1
        low, high = (middle, high) if fits else (low, middle)
    return min(1.0, math.exp(high))


def is_rejected(curve: Curve, *, canaries: int, guesses: int, right: int, significance: float) -> bool:
    """Whether so many right guesses have a chance below `significance` under the curve: quicker than the p-value."""
    return right > 0 and _least_probability(curve, canaries, guesses, right, significance) > 1


def _least_probability(curve: Curve, m: int, r: int, v: int, tail: float) -> float:
    """The least total probability of a law with P[W >= v] = tail; rounded down, so that a limit is never too low."""
    inverse = _inverse_curve(curve)
    total: float = tail
    rights, wrongs = tail * v / m, tail * (r - v) / m
    for j in range(v - 1, -1, -1):
        more = inverse(rights) * (1 - ROUNDING) - wrongs
        if more > 0:
            p = m * more / (r - j)
            total += p
            if total * (1 - ROUNDING) > 1:
                return total
            wrongs += more
            rights += j * p / m
    return total * (1 - ROUNDING)


def _inverse_curve(curve: Curve) -> Callable[[float], float]:
    """y -> the least x with 1 - f(x) >= y, which is f(1 - y) for a symmetric f; quick for single numbers."""
    if isinstance(curve, Gaussian):
        mu = curve.mu
        return lambda y: float(special.ndtr(special.ndtri(min(y, 1.0)) - mu))
    if isinstance(curve, Tradeoff):
        eps, delta = np.array(curve.epsilon), np.array(curve.delta)
        rise, fall = np.exp(np.minimum(eps, 700.0)), np.exp(-eps)
        return lambda y: max(0.0, float(np.maximum(1 - delta - rise * (1 - y), fall * (y - delta)).max()))
    return lambda y: float(curve(max(0.0, 1 - y)))


def mu_bound(*, canaries: int, guesses: int, right: int, significance: float) -> float:
    """The largest mu whose G_mu is rejected at `significance`: the Gaussian reading of the guesses; 0 if none is."""
    return _largest_rejected(
        lambda mu: is_rejected(
            Gaussian(mu=mu), canaries=canaries, guesses=guesses, right=right, significance=significance
        ),
        most=64.0,
    )


def epsilon_bound(*, canaries: int, guesses: int, right: int, delta: float, significance: float) -> float:
    """The largest epsilon whose (epsilon, delta) is rejected at `significance`, by the direct bound; 0 if none is."""
    return _largest_rejected(
        lambda eps: (
            pair_p_value(canaries=canaries, guesses=guesses, right=right, epsilon=eps, delta=delta) <= significance
        ),
        most=64.0,
    )


def _largest_rejected(rejected: Callable[[float], bool], *, most: float) -> float:
    """Where `rejected` turns from true to false, from below."""
    if not rejected(0.0):
        return 0.0
    low, high = 0.0, most
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _check_counts(canaries: int, guesses: int, right: int) -> None:
    _check.whole(canaries=canaries, guesses=guesses)
    _check.whole(least=0, right=right)
    if not right <= guesses <= canaries:
        raise InvalidValue(
            f"right={right}, guesses={guesses} and canaries={canaries} must rise in this order. Each guess is about "
            "one canary. Check the counts."
        )
