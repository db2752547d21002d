"""Slow, obvious answers for the tests, sharing no code with the library.

    psi          E[w^s] in many digits
    one_step     delta(epsilon) of one release, by integrating max(0, P - e^eps Q)
    two_steps    the same for two releases, nested; three_steps for three
    bracket      a lattice of rounded losses, multiplied out by FFT: proven from above and below, for any releases
    inverted     Gil-Pelaez inversion of the characteristic functions, level by level: many digits for many steps

A release is (noise, rate); releases are {(noise, rate): count}. The law of x is N(0, 1) without the record and
(1 - rate) N(0, 1) + rate N(mu, 1) with it, mu = 1/noise; `remove` measures with against without, `add` the reverse.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping

import mpmath
import numpy as np
from scipy import optimize, special

Releases = Mapping[tuple[float, float], int]

DIRECTIONS = ("remove", "add")


def counted(noises: Iterable[float], rates: Iterable[float]) -> dict[tuple[float, float], int]:
    """Releases one by one, as levels with counts."""
    found: dict[tuple[float, float], int] = {}
    for noise, rate in zip(noises, rates, strict=True):
        found[float(noise), float(rate)] = found.get((float(noise), float(rate)), 0) + 1
    return found


# --- one release -------------------------------------------------------------------------------------


def psi(noise: float, rate: float, s: complex, digits: int = 30) -> mpmath.mpc:
    """E[w(x)^s], x ~ N(0, 1), w = 1 - rate + rate exp(mu x - mu^2/2), panel by panel."""
    with mpmath.workdps(digits):
        mu, q, order = 1 / mpmath.mpf(noise), mpmath.mpf(rate), mpmath.mpmathify(s)

        def integrand(x: mpmath.mpf) -> mpmath.mpc:
            return mpmath.npdf(x) * (1 - q + q * mpmath.exp(mu * x - mu**2 / 2)) ** order

        ends = sorted((mpmath.mpf(0), mu * order.real))
        low, high = int(mpmath.floor(ends[0])) - 13, int(mpmath.ceil(ends[1])) + 13
        return mpmath.quad(integrand, list(range(low, high + 1)), method="gauss-legendre")


def one_step(noise: float, rate: float, epsilon: float, direction: str) -> float:
    """delta(epsilon) of one release: the integral of P - e^eps Q over where it is positive."""
    with mpmath.workdps(30):
        mu, q, bound = 1 / mpmath.mpf(noise), mpmath.mpf(rate), mpmath.exp(mpmath.mpf(epsilon))

        def gap(x: mpmath.mpf) -> mpmath.mpf:
            mixed = (1 - q) * mpmath.npdf(x) + q * mpmath.npdf(x, mu)
            plain = mpmath.npdf(x)
            return mixed - bound * plain if direction == "remove" else plain - bound * mixed

        low, high = mpmath.mpf(-14), mpmath.ceil(mu) + 14
        left, right = low, high
        rising = direction == "remove"  # gap changes sign once, as w rises with x
        for _ in range(110):
            middle = (left + right) / 2
            left, right = (left, middle) if (gap(middle) > 0) == rising else (middle, right)
        start, stop = (left, high) if rising else (low, left)
        inner = (mpmath.mpf(k) for k in range(int(low), int(high) + 1) if start < k < stop)
        return float(mpmath.quad(gap, [start, *inner, stop], method="gauss-legendre"))


def log_psi(noise: float, rate: float, s: np.ndarray) -> np.ndarray:
    """log E[w^s] for an array of complex s with one real part: Gauss-Legendre panels in doubles."""
    point, weight = np.polynomial.legendre.leggauss(20)
    real = float(s.real[0])
    peak = real / noise  # of w^s phi, at most
    edges = np.linspace(min(0.0, peak) - 9.5, max(0.0, peak) + 9.5, 2 * math.ceil(abs(peak)) + 41)
    half = np.diff(edges) / 2
    x = ((edges[:-1] + half)[:, None] + half[:, None] * point).ravel()
    loss = _loss(noise, rate, x)
    log_mass = np.log((half[:, None] * weight).ravel()) - x**2 / 2 - 0.5 * math.log(2 * math.pi) + real * loss
    most = log_mass.max()
    return np.log(np.exp(1j * np.outer(s.imag, loss)) @ np.exp(log_mass - most)) + most


def _loss(noise: float, rate: float, x: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-rate), math.log(rate) + x / noise - 0.5 / noise**2)


def _density(noise: float, rate: float, x: np.ndarray, direction: str) -> np.ndarray:
    """Density of x under the law that the loss is measured with."""
    plain = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    if direction == "add":
        return plain
    return (1 - rate) * plain + rate * np.exp(-((x - 1 / noise) ** 2) / 2) / math.sqrt(2 * math.pi)


def _profile(noise: float, rate: float, epsilon: np.ndarray, direction: str) -> np.ndarray:
    """delta(epsilon) of one release for an array, any sign: P(beyond the threshold) - e^eps Q(beyond it)."""
    mu, level = 1 / noise, np.exp(np.clip(epsilon, -700, 700))
    w = level if direction == "remove" else 1 / level
    with np.errstate(divide="ignore"):
        x = (np.log(np.maximum(w - 1 + rate, 0.0) / rate) + mu**2 / 2) / mu
    if direction == "remove":
        plain, moved = special.ndtr(-x), special.ndtr(mu - x)
        return (1 - rate) * plain + rate * moved - level * plain
    plain, moved = special.ndtr(x), special.ndtr(x - mu)
    return plain - level * ((1 - rate) * plain + rate * moved)


def _nodes(noise: float, points: int) -> tuple[np.ndarray, float]:
    x = np.linspace(-9.5, 9.5 + 1 / noise, points)
    return x, float(x[1] - x[0])


def two_steps(first: tuple[float, float], second: tuple[float, float], epsilon: float, direction: str) -> float:
    """delta(epsilon) of two releases: the profile of the second, averaged over the loss of the first."""
    x, width = _nodes(first[0], 4001)
    inner = _profile(*second, epsilon - _signed(*first, x, direction), direction)
    return float((_density(*first, x, direction) * inner).sum() * width)


def three_steps(releases: tuple[tuple[float, float], ...], epsilon: float, direction: str, points: int = 901) -> float:
    """delta(epsilon) of three releases: averaged over the losses of the first two."""
    (first, second, third), total = releases, 0.0
    x, width = _nodes(first[0], points)
    y, height = _nodes(second[0], points)
    weights = _density(*second, y, direction) * height
    loss = _signed(*second, y, direction)
    for mass, here in zip(_density(*first, x, direction) * width, _signed(*first, x, direction), strict=True):
        total += mass * float(weights @ _profile(*third, epsilon - here - loss, direction))
    return total


def _signed(noise: float, rate: float, x: np.ndarray, direction: str) -> np.ndarray:
    return _loss(noise, rate, x) if direction == "remove" else -_loss(noise, rate, x)


def epsilon_where(curve: Callable[[float], float], delta: float, most: float = 200.0) -> float:
    """The epsilon >= 0 where a falling curve of deltas reaches `delta`."""
    if curve(0.0) <= delta:
        return 0.0
    return float(optimize.brentq(lambda e: curve(e) - delta, 0.0, most, xtol=1e-12, rtol=1e-13))


# --- any releases, on a lattice ----------------------------------------------------------------------

TAIL = 1e-16


def bracket(releases: Releases, delta: float, points: int = 1 << 17) -> tuple[float, float]:
    """(lower, upper) for epsilon at `delta`, both directions, from rounded losses. For delta of 1e-8 or more."""
    found = [_directed(releases, delta, direction, points) for direction in DIRECTIONS]
    return max(low for low, _ in found), max(high for _, high in found)


def _directed(releases: Releases, delta: float, direction: str, points: int) -> tuple[float, float]:
    bottom, top = _reach(releases, direction)
    steps = sum(releases.values())
    assert points > 6 * steps, "rounding alone would go around the circle"
    spacing = (top - bottom) / (points - 3 * steps)  # each rounding moves a loss down by 2 cells, or up by 1, at most
    bottom, top = bottom - 2 * steps * spacing, top + steps * spacing
    lower = _multiplied(releases, direction, spacing, points, bottom, upper=False)
    upper = _multiplied(releases, direction, spacing, points, bottom, upper=True)
    return epsilon_where(lower, delta, top), epsilon_where(upper, delta, top)


def _reach(releases: Releases, direction: str) -> tuple[float, float]:
    """Losses beyond these have a chance of about TAIL by Chernoff, estimated on a coarse grid of x."""
    slopes = np.geomspace(0.01, 2000, 60)
    bounds = {}
    for sign in (1, -1):
        moment = np.zeros(len(slopes))
        for (noise, rate), count in releases.items():
            x, width = _nodes(noise, 2001)
            mass = np.log(np.maximum(_density(noise, rate, x, direction) * width, 1e-300))
            loss = _signed(noise, rate, x, direction)
            moment += count * special.logsumexp(mass + sign * slopes[:, None] * loss, axis=1)
        bounds[sign] = float(((moment - math.log(TAIL)) / slopes).min())
    return -max(bounds[-1], 0.1) * 1.05, max(bounds[1], 0.1) * 1.05


def _cells(noise: float, rate: float, edges: np.ndarray, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """(P, Q) between consecutive losses: normal probabilities between the x where the losses are reached."""
    w = np.exp(edges if direction == "remove" else -edges)
    with np.errstate(divide="ignore"):
        x = noise * np.log(np.maximum(w - 1 + rate, 0.0) / rate) + 0.5 / noise
    plain, moved = (_between(x - shift) for shift in (0.0, 1 / noise))
    mixed = (1 - rate) * plain + rate * moved
    return (mixed, plain) if direction == "remove" else (plain, mixed)


def _between(x: np.ndarray) -> np.ndarray:
    """P(N(0, 1) between neighbours), in the tail where it is small."""
    right = np.minimum(x[1:], x[:-1]) > 0
    return np.abs(np.where(right, np.diff(special.ndtr(-x)), np.diff(special.ndtr(x))))


def _multiplied(
    releases: Releases, direction: str, spacing: float, points: int, bottom: float, *, upper: bool
) -> Callable[[float], float]:
    """delta as a function of epsilon, with every loss rounded up (keeping P and Q) or cells merged and rounded down."""
    first = math.floor(bottom / spacing)
    transform, outside, drift = np.ones(points // 2 + 1, dtype=complex), 0.0, 0.0
    for (noise, rate), count in releases.items():
        high = float(np.abs(_loss(noise, rate, np.array([-9.0, 9.0 + 1 / noise]))).max())
        reach = min(math.ceil(high / spacing) + 1, points // 2 - 1)
        number = np.arange(-reach, reach + 1)
        p, q = _cells(noise, rate, number * spacing, direction)
        mass, shift = (_up(p, q, number, spacing), 0.0) if upper else _down(p, q, number, spacing)
        outside += count * max(0.0, 1 - float(p.sum())) if upper else 0.0
        drift += count * shift
        circle = np.bincount(np.arange(-reach - 1, reach + 1) % points, weights=mass, minlength=points)
        transform = transform * np.fft.rfft(circle) ** count
    mass = np.roll(np.fft.irfft(transform, points), -(first % points))
    losses = (first + np.arange(points)) * spacing + drift
    outside += 4 * TAIL + 1e-13  # what wraps around the circle, and rounding of the FFT

    def delta(epsilon: float) -> float:
        total = float(mass @ np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0.0))))
        return total + outside if upper else total - outside

    return delta


def _up(p: np.ndarray, q: np.ndarray, number: np.ndarray, spacing: float) -> np.ndarray:
    """Each cell's mass on its two ends, so that P and Q are both kept: the true release post-processes this."""
    to_high = np.clip((p - np.exp(number[:-1] * spacing) * q) / -math.expm1(-spacing), 0.0, p)
    mass = np.zeros(len(number) + 1)
    mass[1:-1] += p - to_high
    mass[2:] += to_high
    return mass


def _down(p: np.ndarray, q: np.ndarray, number: np.ndarray, spacing: float) -> tuple[np.ndarray, float]:
    """Each cell merged (a post-processing); its loss log(P/Q) rounded down to a lattice moved up by `shift`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num((np.log(p) - np.log(q)) / spacing - number[:-1], nan=0.0, posinf=0.0, neginf=0.0)
    share = np.where((p > 1e-250) & (q > 1e-250), np.clip(share, 0.0, 1.0) - 1e-9, 0.0)
    tried = np.linspace(0, 0.5, 101)
    waste = [float(p @ (share - s + (share < s))) for s in tried]
    shift = float(tried[int(np.argmin(waste))])
    mass = np.zeros(len(number) + 1)
    mass[1:-1] += np.where(share >= shift, p, 0.0)
    mass[:-2] += np.where(share < shift, p, 0.0)
    return mass, shift * spacing


# --- many steps, by inversion ------------------------------------------------------------------------


def inverted(releases: Releases, delta: float, panels: int = 400) -> float:
    """Epsilon at `delta` by Gil-Pelaez: P[L > e] = 1/2 + (1/pi) int Im(e^(-iue) phi(u)) / u du, under P and under Q.

    For so many steps that phi dies out, and delta of 1e-7 or more; good to about 1e-9 / delta in log delta.
    """
    return max(_directed_inverted(releases, delta, direction, panels) for direction in DIRECTIONS)


def _directed_inverted(releases: Releases, delta: float, direction: str, panels: int) -> float:
    other = "add" if direction == "remove" else "remove"
    spread = [math.sqrt(_variance(releases, side)) for side in (direction, other)]
    u, weight = _panels(12 / min(spread), panels)
    under_p = _log_characteristic(releases, u, direction, direction)
    under_q = _log_characteristic(releases, u, direction, other)
    assert max(under_p[-1].real, under_q[-1].real) < -36, "too few steps: the characteristic function does not die"

    def chance(epsilon: float, log_phi: np.ndarray) -> float:
        return 0.5 + float(weight @ (np.exp(log_phi - 1j * u * epsilon).imag / u)) / math.pi

    def curve(epsilon: float) -> float:
        return chance(epsilon, under_p) - math.exp(epsilon) * chance(epsilon, under_q)

    most = next(e for e in itertools.count(0.25, 0.25) if curve(e) < delta)  # far out e^eps magnifies rounding
    return epsilon_where(curve, delta, most)


def _panels(last: float, panels: int) -> tuple[np.ndarray, np.ndarray]:
    point, weight = np.polynomial.legendre.leggauss(8)
    edges = np.linspace(0.0, last, panels // 8 + 1)
    half = np.diff(edges) / 2
    return ((edges[:-1] + half)[:, None] + half[:, None] * point).ravel(), (half[:, None] * weight).ravel()


def _gauss(noise: float) -> tuple[np.ndarray, np.ndarray]:
    point, weight = np.polynomial.legendre.leggauss(24)
    edges = np.linspace(-9.0, 9.0 + 1 / noise, math.ceil(9 + 1 / noise) + 1)
    half = np.diff(edges) / 2
    return ((edges[:-1] + half)[:, None] + half[:, None] * point).ravel(), (half[:, None] * weight).ravel()


def _variance(releases: Releases, law: str) -> float:
    total = 0.0
    for (noise, rate), count in releases.items():
        x, weight = _gauss(noise)
        mass, loss = weight * _density(noise, rate, x, law), _loss(noise, rate, x)
        total += count * float(mass @ (loss - mass @ loss) ** 2)
    return total


def _log_characteristic(releases: Releases, u: np.ndarray, direction: str, law: str) -> np.ndarray:
    """sum_t log E[e^(iuL)], L the loss of `direction`, x under `law`."""
    total = np.zeros(len(u), dtype=complex)
    for (noise, rate), count in releases.items():
        x, weight = _gauss(noise)
        mass = weight * _density(noise, rate, x, law)
        total += count * np.log(np.exp(1j * np.outer(u, _signed(noise, rate, x, direction))) @ mass)
    return total
