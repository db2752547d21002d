"""Gaussian differential privacy: exact for whole-dataset Gaussians, the central limit theorem for sampled ones.

A mechanism is mu-GDP if telling two neighbours apart is at least as hard as telling N(0, 1) from N(mu, 1).
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from privet import _check
from privet.accounting.accountant import GaussianAccountant, epoch_noises, register
from privet.accounting.guarantee import Adjacency, Label
from privet.accounting.ledger import Floats, Ledger, Step

# Certified values are moved outward by this much of epsilon, plus this much of mu where epsilon itself is near 0.
# The error measured against 80-digit arithmetic, mu from 1e-6 to 300 and delta from 1e-300 to 0.9, was 400 times less.
ROUNDING = 1e-12
ROUNDING_NEAR_ZERO = 1e-13

# Below this noise e^(1/noise^2) is about to leave the range of floating point.
LEAST_SAMPLED_NOISE = 0.04

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def delta_of_mu(mu: float, epsilon: float) -> float:
    """The smallest delta at which every mu-GDP mechanism is (epsilon, delta)-DP.

        delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)

    Exact: one Gaussian release with noise 1/mu attains it. Source: Bu, Dong, Long, Su 2019, eq. (6).

    >>> round(delta_of_mu(1.0, 1.0), 6)
    0.126937
    """
    _check.positive(mu=mu)
    _check.non_negative(epsilon=epsilon)
    return float(np.exp(_log_delta(np.asarray(epsilon / mu - mu / 2), np.asarray(mu))))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The smallest epsilon at which every mu-GDP mechanism is (epsilon, delta)-DP; 0 if delta >= 2 Phi(mu/2) - 1.

    The inverse of `delta_of_mu` in epsilon.

    >>> round(epsilon_of_mu(1.0, 1e-5), 4)
    4.3772
    """
    _check.non_negative(mu=mu)
    _check.delta(delta)
    return float(epsilons_of_mu(mu, delta)) if mu else 0.0


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu such that every mu-GDP mechanism is (epsilon, delta)-DP: the inverse of `epsilon_of_mu`.

    >>> round(mu_of(epsilon_of_mu(1.13, 1e-5), 1e-5), 6)
    1.13
    """
    _check.non_negative(epsilon=epsilon)
    _check.delta(delta)

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        return float(_log_delta(np.asarray(epsilon / mu - mu / 2), np.asarray(mu))) - math.log(delta)

    low = high = 0.0
    while excess(low) > 0:
        low -= 2.0
    while excess(high) < 0:
        high += 2.0
    return math.exp(float(optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14))) if high > low else 1.0


def clt_mu(*, noise_multiplier: float, sample_rate: float, steps: float) -> float:
    """The mu that the central limit theorem gives equal Poisson-sampled steps.

        mu = rate sqrt(steps (e^(1/noise^2) - 1))

    A limit for steps -> infinity with rate sqrt(steps) held fixed: no bound in either direction at any finite number.
    `steps` may be a fraction: published tables use epochs / rate unrounded. Source: Bu et al. 2019, eq. (5).

    >>> round(clt_mu(noise_multiplier=1.1, sample_rate=256 / 60000, steps=60 * 60000 / 256), 2)
    0.57
    """
    _check.positive(noise_multiplier=noise_multiplier)
    _check.rate(sample_rate=sample_rate)
    _check.non_negative(steps=steps)
    return sample_rate * math.sqrt(steps * float(_expm1(1 / noise_multiplier**2)))


def extended_clt_mu(ledger: Ledger) -> float:
    """The mu of a ledger: the extended central limit theorem for sampled steps, exact for whole-dataset ones.

        mu^2 = sum over rate < 1 of rate_t^2 (e^(1/noise_t^2) - 1)  +  sum over rate 1 of 1/noise_t^2
             + sum over shuffled epochs of max 1/noise_t^2

    At rate 1 the first term would charge e^(1/noise^2) - 1 for what is exactly 1/noise^2, so it is used below 1
    only; squares of mu add up. Source: Du et al. 2021, Theorem 1 (with one rate for all steps).

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=2.0), count=4)
    >>> extended_clt_mu(ledger)
    1.0
    """
    columns = ledger.columns()
    shuffled = columns.uses("shuffled")
    cost = np.where(
        columns.sample_rate < 1,
        columns.sample_rate**2 * _expm1(columns.noise_multiplier**-2.0),
        columns.noise_multiplier**-2.0,
    )
    total = float((columns.count * cost)[~shuffled].sum())
    if shuffled.any():
        total += float((np.array(epoch_noises(ledger)) ** -2.0).sum())
    return math.sqrt(total)


@register("gdp")
class Gdp(GaussianAccountant):
    """The extended central limit theorem: `approximate`; `certified` where no step is Poisson-sampled.

    At rate 1 the composition is a Gaussian with mu^2 = sum_t 1/noise_t^2, exactly, so both bounds are known.
    Shuffled batches claim no amplification: a record takes part in one step of each epoch, at worst the least
    noisy, mu^2 = sum over epochs of max 1/noise_t^2: a bound (zero-out neighbours only) without a lower one.
    """

    covers_shuffled = True

    def unsupported_reason(self, step: Step, adjacency: Adjacency) -> str | None:
        if step.sampling.name != "shuffled" and step.sample_rate < 1 and step.noise_multiplier < LEAST_SAMPLED_NOISE:
            return (
                f"noise_multiplier={step.noise_multiplier:g} is below {LEAST_SAMPLED_NOISE:g}, where e^(1/noise^2) "
                "overflows. Use more noise."
            )
        return super().unsupported_reason(step, adjacency)

    def bounds(self, ledger: Ledger, delta: float) -> tuple[float | None, float]:
        mu = extended_clt_mu(ledger)
        if not math.isfinite(mu):
            return None, math.inf
        epsilon = epsilon_of_mu(mu, delta)
        lower, upper = round_outward(epsilon, mu)
        if self.label(ledger, delta) == "approximate":
            return None, epsilon
        shuffled = ledger.columns().uses("shuffled") & (ledger.columns().sample_rate < 1)
        return (None if shuffled.any() else lower), upper

    def label(self, ledger: Ledger, delta: float) -> Label:
        columns = ledger.columns()
        return "approximate" if ((columns.sample_rate < 1) & ~columns.uses("shuffled")).any() else "certified"


def round_outward(epsilon: float, mu: float) -> tuple[float, float]:
    """(down, up): epsilon of a mu-GDP mechanism, moved by more than its numerical error. 0 stays 0."""
    if not epsilon:
        return 0.0, 0.0
    slack = ROUNDING * epsilon + ROUNDING_NEAR_ZERO * mu
    return max(0.0, epsilon - slack), epsilon + slack


def epsilons_of_mu(mu: ArrayLike, delta: ArrayLike) -> Floats:
    """`epsilon_of_mu` over arrays; a delta of 1 or more gives 0.

    With x = epsilon/mu - mu/2, log delta is concave and falling in x, and Phi(-x) >= delta. So Newton's method
    from Phi(-x) = delta starts right of the root and stays there: every iterate is an upper bound.
    """
    mus, deltas = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(delta, dtype=np.float64))
    free = deltas >= special.erf(mus / math.sqrt(8))  # 2 Phi(mu/2) - 1, the whole distance between the two
    safe = np.where(free, 0.5 * special.erf(mus / math.sqrt(8)), deltas)
    x = -special.ndtri(safe)
    target = np.log(safe)
    for _ in range(100):
        log_ratio, log_gap = _log_mills_ratio(x, mus)
        step = (special.log_ndtr(-x) + log_gap - target) * np.exp(log_gap - log_ratio) / mus
        x = np.maximum(x + step, -mus / 2)
        if (np.abs(step) <= 1e-15 * (1 + np.abs(x))).all():
            break
    return np.where(free, 0.0, np.maximum(mus * (x + mus / 2), 0.0))


def _log_delta(x: Floats, mu: Floats) -> Floats:
    """log of delta at epsilon = mu (x + mu/2): log Phi(-x) + log(1 - r)."""
    return np.asarray(special.log_ndtr(-x) + _log_mills_ratio(x, mu)[1])


def _log_mills_ratio(x: Floats, mu: Floats) -> tuple[Floats, Floats]:
    """log r and log(1 - r), r = e^epsilon Phi(-x-mu) / Phi(-x) = R(x+mu) / R(x), with R = Phi(-x)/phi(x) (Mills).

    For small mu the difference R(x) - R(x+mu) is the integral of 1 - t R(t), taken by 12-point Gauss quadrature
    (relative error measured at most 5e-14, x up to 37, mu 1/2) because subtracting would lose log10(1/mu) digits.
    """
    small = mu < 0.5
    log_phi = -(x**2) / 2 - math.log(2 * math.pi) / 2
    log_mills = np.where(x > 0, np.log(_mills(np.maximum(x, 0.0))), special.log_ndtr(-x) - log_phi)
    log_ratio = np.minimum(np.log(_mills(np.maximum(x + mu, 0.0))) - log_mills, -1e-300)
    if not small.any():
        return np.asarray(log_ratio), np.asarray(np.log(-np.expm1(log_ratio)))
    nodes = np.where(small[..., None], x[..., None] + mu[..., None] * (1 + _NODES) / 2, 0.0)
    log_gap = np.log((mu / 2) * (_mills_fall(nodes) @ _WEIGHTS)) - log_mills
    log_gap = np.where(small, log_gap, np.log(-np.expm1(log_ratio)))
    return np.asarray(np.where(small, np.log1p(-np.exp(np.minimum(log_gap, -1e-300))), log_ratio)), np.asarray(log_gap)


def _mills(t: Floats) -> Floats:
    return np.asarray(math.sqrt(math.pi / 2) * special.erfcx(t / math.sqrt(2)))


def _mills_fall(t: Floats) -> Floats:
    """-R'(t) = 1 - t R(t); beyond t = 1000, where subtracting has lost 6 digits, its series 1/t^2 - 3/t^4."""
    far = np.maximum(t, 1000.0) ** -2.0
    return np.where(t > 1000, far - 3 * far**2, 1 - t * _mills(t))


def _expm1(exponent: ArrayLike) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(np.expm1(exponent))
