"""f-DP: what an attacker can achieve at best, as a trade-off of its two errors.

A test guesses from the released outputs whether a record was used. With type I error alpha (a false alarm) its type
II error (a miss) is at least f(alpha). Bu et al. 2019, arXiv:1911.11607v3, section 2; Dong, Roth, Su 2019,
arXiv:1905.02383v3.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from privet import _check
from privet.accounting import gdp
from privet.accounting.accountant import overflow_probability, refuse_unsupported, registry
from privet.accounting.guarantee import Adjacency, Label
from privet.accounting.ledger import Floats, Ledger
from privet.accounting.pld import accountant as pld
from privet.errors import InvalidValue, Unsupported

Curve = Callable[[ArrayLike], Floats]

POINTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """The curve that (epsilon, delta) pairs imply; convex, falling, symmetric. Below the true one if they are bounds.

        f(a) = max over pairs of max(0, 1 - delta - e^eps a, e^-eps (1 - delta - a))

    Dong, Roth, Su 2019, Proposition 2.5 (one pair) and 2.12 (all pairs).
    """

    epsilon: tuple[float, ...]
    delta: tuple[float, ...]
    method: str = ""
    label: Label = "certified"

    def __post_init__(self) -> None:
        if not self.epsilon or len(self.epsilon) != len(self.delta):
            raise InvalidValue(f"epsilon, delta: {len(self.epsilon)} and {len(self.delta)} values must pair up.")
        _check.non_negative(**{f"epsilon[{i}]": e for i, e in enumerate(self.epsilon)})
        _check.non_negative(**{f"delta[{i}]": d for i, d in enumerate(self.delta)})

    def __call__(self, alpha: ArrayLike) -> Floats:
        a = _check_errors(alpha)[..., None]
        eps, delta = np.array(self.epsilon), np.array(self.delta)
        with np.errstate(over="ignore", invalid="ignore"):
            steep = np.where(a > 0, 1 - delta - np.exp(eps) * a, 1 - delta)
        flat = np.exp(-eps) * (1 - delta - a)
        return np.asarray(np.maximum(np.maximum(steep, flat).max(axis=-1), 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """G_mu(a) = Phi(Phi^-1(1 - a) - mu): telling N(0, 1) from N(mu, 1)."""

    mu: float
    method: str = "gdp"
    label: Label = "certified"

    def __post_init__(self) -> None:
        _check.non_negative(mu=self.mu)

    def __call__(self, alpha: ArrayLike) -> Floats:
        return np.asarray(special.ndtr(-special.ndtri(_check_errors(alpha)) - self.mu))


def tradeoff(
    ledger: Ledger, *, accountant: str = "pld", adjacency: Adjacency = "zero-out", points: int = POINTS
) -> Tradeoff | Gaussian:
    """The trade-off curve of a ledger: certified from `pld`, approximate from `gdp` (the CLT).

    Where batches are cut to a cap, with chance tau at most, the errors are those of the uncut run moved by tau:
    f(a + tau) - tau, by the deltas of `pld.delta_curve`.

    >>> from privet.accounting.ledger import Step
    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=1.1, sample_rate=256 / 60000), count=14063)
    >>> round(least_error_sum(tradeoff(ledger)), 3), round(least_error_sum(tradeoff(ledger, accountant="gdp")), 3)
    (0.776, 0.774)
    """
    if accountant not in ("pld", "gdp"):
        raise InvalidValue(f"accountant={accountant!r} has no trade-off curve. Use 'pld' or 'gdp'.")
    chosen = registry.make(accountant)
    refuse_unsupported(chosen, ledger, adjacency=adjacency, accountant=accountant)
    if accountant == "gdp":
        if overflow_probability(ledger):
            raise Unsupported(
                "accountant='gdp' has no trade-off curve for batches cut to a cap. A cut is no Gaussian. Use 'pld'."
            )
        return Gaussian(mu=gdp.extended_clt_mu(ledger), label=chosen.label(ledger, 0.5))
    _check.whole(least=2, points=points)
    if not ledger:
        return Tradeoff(epsilon=(0.0,), delta=(0.0,), method="pld")
    top = chosen.bounds(ledger, 1e-12)[1]
    epsilons = np.linspace(0.0, max(top, 1e-9), points)
    upper = pld.delta_curve(ledger, epsilons)[1]
    return Tradeoff(epsilon=tuple(epsilons.tolist()), delta=tuple(upper.tolist()), method="pld")


# --- reading a curve ---------------------------------------------------------------------------------
def delta_of(curve: Curve, epsilon: float) -> float:
    """The delta a trade-off curve implies at `epsilon`: 1 + f*(-e^eps) = sup over a of 1 - f(a) - e^eps a.

    Dong, Roth, Su 2019, Proposition 2.12. For a pair curve the supremum is found to 1e-9; G_mu has a closed form.
    """
    _check.finite(epsilon=epsilon)
    if isinstance(curve, Gaussian):
        return gdp.delta_of_mu(curve.mu, epsilon) if curve.mu > 0 else max(0.0, -math.expm1(epsilon))
    # The top is at a <= e^-eps, as f >= 0. Beyond the range of doubles the delta at a smaller epsilon is a bound.
    scale, slope = math.exp(-min(max(epsilon, 0.0), 700.0)), math.exp(min(epsilon, 0.0))
    low, high, best = 0.0, 1.0, 0.0
    for _ in range(40):  # 1 - f - e^eps a is concave: close in on its top
        grid = np.linspace(low, high, 33)
        values = 1 - curve(scale * grid) - slope * grid
        top = int(np.argmax(values))
        low, high, best = float(grid[max(top - 1, 0)]), float(grid[min(top + 1, 32)]), max(best, float(values[top]))
    return best


def from_deltas(epsilon: ArrayLike, delta: ArrayLike, *, method: str = "", label: Label = "certified") -> Tradeoff:
    """The trade-off curve of a list of (epsilon, delta) guarantees: duality the other way."""
    eps, deltas = np.atleast_1d(np.asarray(epsilon, float)), np.atleast_1d(np.asarray(delta, float))
    return Tradeoff(epsilon=tuple(eps.tolist()), delta=tuple(deltas.tolist()), method=method, label=label)


def least_error_sum(curve: Curve) -> float:
    """The least sum of type I and type II errors any test can have: min over a of a + f(a), which is 1 - delta(0).

    >>> round(least_error_sum(Gaussian(mu=0.57)), 3)
    0.776
    """
    return 1 - delta_of(curve, 0.0)


def advantage(curve: Curve) -> float:
    """The most by which a membership guess can beat a coin: max over a of (1 - f(a)) - a."""
    return delta_of(curve, 0.0)


def true_positive_rate(curve: Curve, false_positive_rate: float) -> float:
    """The best power at a false-positive rate: 1 - f(rate).

    >>> round(true_positive_rate(Gaussian(mu=1.0), 0.01), 4)
    0.0924
    """
    _check.non_negative(false_positive_rate=false_positive_rate)
    return float(1 - curve(false_positive_rate))


def group_tradeoff(curve: Curve, size: int) -> Curve:
    """The curve for `size` records changed together: 1 - (1 - f) composed `size` times.

    Dong, Roth, Su 2019, Theorem 2.14. G_mu becomes G_(size mu).
    """
    _check.whole(size=size)
    if isinstance(curve, Gaussian):
        return Gaussian(mu=size * curve.mu, method=curve.method, label=curve.label)

    def compose(alpha: ArrayLike) -> Floats:
        a = _check_errors(alpha)
        for _ in range(size):
            a = 1 - curve(a)
        return 1 - a

    return compose


def _check_errors(alpha: ArrayLike) -> Floats:
    a = np.asarray(alpha, dtype=np.float64)
    if not ((a >= 0) & (a <= 1)).all():
        raise InvalidValue(f"alpha={alpha!r} must lie between 0 and 1.")
    return a
