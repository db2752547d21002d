"""How many guesses to make in a one-run audit: decided beforehand, by where too small a claim would show best."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from privet.accounting.tradeoff import Curve, Gaussian
from privet.auditing.canary_bounds import epsilon_bound, is_rejected

Floats = NDArray[np.float64]

FRACTIONS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
MOST_CANARIES = 2**17
MOST_GUESSES = 20_000  # beyond, a bound takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """The canaries with the highest scores are said to be in; if `both`, as many with the lowest to be out."""

    count: int
    both: bool

    def right(self, scores: Floats, coins: NDArray[np.bool_]) -> int:
        """How many guesses are right."""
        order = np.argsort(-scores, kind="stable")
        top = self.count - self.count // 2 if self.both else self.count
        bottom = self.count - top
        return int(coins[order[:top]].sum()) + int((~coins[order[len(order) - bottom :]]).sum())

    def expected(self, mu: float, canaries: int) -> int:
        """The right guesses to expect if scores are N(0, 1) without and N(mu, 1) with, rounded down."""
        share = self.count / canaries / (2 if self.both else 1)
        if share >= 0.5 and self.both:
            return int(self.count * special.ndtr(mu / 2))

        def above(t: float) -> float:
            return float(special.ndtr(-t) + special.ndtr(mu - t)) / 2 - share

        t = optimize.brentq(above, -40.0, 40.0 + mu)
        return int(self.count * min(1.0, float(special.ndtr(mu - t)) / 2 / share))


def options(canaries: int) -> list[Guesses]:
    """Some or all canaries, on both sides or the top alone."""
    counts = sorted({max(1, min(int(fraction * canaries), MOST_GUESSES)) for fraction in FRACTIONS})
    return [Guesses(count=count, both=both) for count in counts for both in (True, False)]


def best_against(curve: Curve, *, mu: float, canaries: int, alarm: float) -> tuple[Guesses, bool]:
    """The guesses that would reject the curve most clearly if the truth were G_mu; and whether they would at all."""
    found, clearest = options(canaries)[0], 0.0
    for guesses in options(canaries):
        right, level = guesses.expected(mu, canaries), alarm
        while level > 1e-60 and is_rejected(curve, canaries=canaries, guesses=guesses.count, right=right, alarm=level):
            found, clearest = (guesses, level) if not clearest or level < clearest else (found, clearest)
            level *= 1e-4
    return found, bool(clearest)


def best_for_epsilon(*, mu: float, canaries: int, delta: float, alarm: float) -> Guesses:
    """The guesses whose direct bound on epsilon would be largest if the truth were G_mu."""

    def bound(guesses: Guesses) -> float:
        right = guesses.expected(mu, canaries)
        return epsilon_bound(canaries=canaries, guesses=guesses.count, right=right, delta=delta, alarm=alarm)

    return max(options(canaries), key=bound)


def canaries_to_reject(claimed: float, *, mu: float, alarm: float, start: int) -> int | None:
    """How many canaries would reject G_claimed if the truth were G_mu, within a factor of 2; None beyond 131,072."""
    canaries = start
    while canaries <= MOST_CANARIES:
        if best_against(Gaussian(mu=claimed), mu=mu, canaries=canaries, alarm=alarm)[1]:
            return canaries
        canaries *= 2
    return None
