"""Accountants of papers without a proof for what is run: zCDP and tCDP, the closed form of Proactive DP-SGD, `-wei`.

zCDP is a theorem for whole-dataset Gaussians, and a published rule for sampled ones. Truncated concentrated
differential privacy (tCDP) has conditions, which are checked, and Auto DP-SGD's closed forms. Its four lemmas (Bun,
Dwork, Rothblum, Steinke 2018, as quoted by Auto DP-SGD, Lemmas 1 to 4), sensitivity 1:

    1  a Gaussian release is (1/(2 noise^2), infinity)-tCDP
    2  composition adds rho and takes the least omega
    3  epsilon = rho + 2 sqrt(rho log(1/delta)), if delta >= exp(-(omega - 1)^2 rho)
    4  on a uniformly random share c of the records (rho, omega) becomes (13 c^2 rho, log(1/c) / (4 rho)),
       if rho, c <= 0.1, log(1/c) >= 3 rho (2 + log(1/rho)) and omega >= log(1/c) / (2 rho)

Lemma 4 draws exactly c n of n records, and neighbours differ by replacing one. Poisson sampling with a record
zeroed, added or removed is another mechanism under another relation, so the number is then only `claimed`.
"""

import math

import numpy as np

from privet import _check
from privet.accounting.accountant import GaussianAccountant, register, spent
from privet.accounting.composition import amplified_epsilon, basic_composition, sum_of_squares, third_bound
from privet.accounting.guarantee import Adjacency, Label
from privet.accounting.ledger import Bools, Floats, Ledger, LedgerArrays, Step

# --- zCDP -------------------------------------------------------------------------------------------


# A sum, a product and a root in float64: pairwise summation of a million random terms measured no error at 1e-16.
ROUNDING = 1e-12


def epsilon_of_rho(rho: float, delta: float) -> float:
    """The epsilon that follows from rho-zCDP at `delta`.

        epsilon = rho + 2 sqrt(rho log(1/delta))

    Holds for any rho-zCDP mechanism; loose against the exact curve of a Gaussian.
    Source: Bun and Steinke 2016, arXiv:1605.02065, Proposition 1.3.

    >>> round(epsilon_of_rho(0.5, 1e-5), 3)
    5.299
    """
    _check.non_negative(rho=rho)
    _check.delta(delta)
    return rho + 2 * math.sqrt(rho * -math.log(delta))


def rho_of(ledger: Ledger) -> float:
    """The rho of a ledger: the theorem at rate 1, the published rule below.

        rate 1:    rho = sum_t 1 / (2 noise_t^2)        Bun and Steinke 2016, Proposition 1.6 and Lemma 1.7
        rate < 1:  rho = sum_t rate_t^2 / noise_t^2     Wei and Liu 2021, eq. (6)

    The published rule is not a theorem: a sampled Gaussian is not zCDP for any rho near this one, since its Rényi
    divergence of high order approaches that of the unsampled one. With rate 0.01, noise 0.5, 100 steps it gives
    epsilon 1.397 at delta 1e-5 where the truth is 6.476. At rate 1 it would be twice the theorem, so that is used.

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=6.0, sample_rate=0.01), count=10000)
    >>> round(epsilon_of_rho(rho_of(ledger), 1e-5), 3)
    1.159
    """
    columns = ledger.columns()
    share = np.where(columns.sample_rate < 1, columns.sample_rate**2, 0.5)
    return float((columns.count * share * columns.noise_multiplier**-2.0).sum())


@register("zcdp")
class Zcdp(GaussianAccountant):
    """Adds up rho and converts it: `certified` if every step has rate 1, else `claimed`."""

    def rho(self, ledger: Ledger) -> float:
        return rho_of(ledger)

    def upper(self, ledger: Ledger, delta: float) -> float:
        slack = ROUNDING if self.label(ledger, delta) == "certified" else 0.0
        return epsilon_of_rho(self.rho(ledger), delta) * (1 + slack)

    def label(self, ledger: Ledger, delta: float) -> Label:
        return "claimed" if (ledger.columns().sample_rate < 1).any() else "certified"


# --- tCDP -------------------------------------------------------------------------------------------
def tcdp_of(ledger: Ledger) -> tuple[float, float]:
    """(rho, omega) of a ledger, step by step: lemmas 1 and 4, then lemma 2. Conditions are `lemma_4_holds`.

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=1.0), count=2)
    >>> tcdp_of(ledger)
    (1.0, inf)
    """
    columns = ledger.columns()
    if not len(columns.noise_multiplier):
        return 0.0, math.inf
    rho = 0.5 * columns.noise_multiplier**-2.0
    sampled = columns.sample_rate < 1
    total = (columns.count * np.where(sampled, 13 * columns.sample_rate**2 * rho, rho)).sum()
    omega = np.where(sampled, -np.log(columns.sample_rate) / (4 * rho), math.inf).min()
    return float(total), float(omega)


def lemma_3_holds(rho: float, omega: float, delta: float) -> bool:
    """Whether delta >= exp(-(omega - 1)^2 rho), and there is an order to use (omega > 1)."""
    if not rho or omega == math.inf:
        return True
    return omega > 1 and -math.log(delta) <= (omega - 1) ** 2 * rho


def lemma_4_holds(columns: LedgerArrays) -> Bools:
    """Per run of the ledger: whether amplification is proven (or not needed, rate 1)."""
    rho = 0.5 * columns.noise_multiplier**-2.0
    # log2 where the quoted lemma has log: the stricter reading, and implied by rho, rate <= 0.1 in either.
    numeric = (
        (rho <= 0.1) & (columns.sample_rate <= 0.1) & (-np.log(columns.sample_rate) >= 3 * rho * (2 - np.log2(rho)))
    )
    return np.asarray((columns.sample_rate == 1) | (numeric & columns.uses("fixed-size")))


@register("tcdp")
class Tcdp(Zcdp):
    """`certified` at rate 1, and for fixed-size sampling under `replace` where lemmas 3 and 4 hold; else `claimed`."""

    def unsupported_reason(self, step: Step, adjacency: Adjacency) -> str | None:
        if step.sampling.name == "fixed-size" and step.sample_rate < 1:
            if adjacency == "replace-one":
                return None
            return f"adjacency={adjacency!r} with fixed-size sampling has no theorem here. Use adjacency='replace-one'."
        return super().unsupported_reason(step, adjacency)

    def rho(self, ledger: Ledger) -> float:
        return tcdp_of(ledger)[0]

    def label(self, ledger: Ledger, delta: float) -> Label:
        proven = lemma_4_holds(ledger.columns()).all() and lemma_3_holds(*tcdp_of(ledger), delta)
        return "certified" if proven else "claimed"


# --- Auto DP-SGD, Table 8: the closed forms as published ------------------------------------------------
#
# All four return (rho, omega) and are claims, not bounds, for three reasons: they compose one release per epoch, E,
# where training makes E / rate of them; the lemmas' conditions fail at every noise the paper uses (rho <= 0.1 needs
# noise >= 2.24, and lemma 3 then needs a delta near 1); and `clip` is the average of the records' own norms, so nothing
# is clipped. Epsilon is `epsilon_of_rho(rho, delta)`.


def auto_linear(
    *, noise_multiplier: float, sample_rate: float, epochs: int, decay: float = 0.99, clipping_norm: float = 1.0
) -> tuple[float, float]:
    """Linear decay, noise_e^2 = noise^2 decay^e (geometric in fact), as published.

        rho = 13 rate^2 clip^2 (1 - R^E) / (2 noise^2 (R^(E-1) - R^E))
        omega = log(1/rate) noise^2 R^(E-1) / (2 clip^2)

    The sum of lemma 4 over E epochs; training makes E / rate steps, so rho is 1/rate too small.
    Source: Auto DP-SGD, Table 8 and eq. (17), (20).

    >>> rho, omega = auto_linear(noise_multiplier=1.0, sample_rate=64 / 60000, epochs=100)
    >>> round(epsilon_of_rho(rho, 1e-5), 4)
    0.2429
    """
    _check_auto(noise_multiplier, sample_rate, clipping_norm, epochs, decay)
    last = decay ** (epochs - 1)
    total = (1 - decay**epochs) / (last - decay**epochs)
    return _published_tcdp(noise_multiplier, sample_rate, clipping_norm, total=total, last=last)


def auto_time(
    *, noise_multiplier: float, sample_rate: float, epochs: int, clipping_norm: float = 1.0
) -> tuple[float, float]:
    """Time decay, noise_e^2 = noise^2 / (1 + R e), R = noise / E, as published. In a short run R may be above 1.

        rho = 13 rate^2 clip^2 (2 E + R E (E-1)) / (4 noise^2)
        omega = log(1/rate) noise^2 / (2 clip^2 (1 + R (E-1)))

    The sum of lemma 4 over E epochs; training makes E / rate steps, so rho is 1/rate too small.
    Source: Auto DP-SGD, Tables 1 and 8, eq. (26), (29).

    >>> rho, omega = auto_time(noise_multiplier=1.0, sample_rate=64 / 60000, epochs=100)
    >>> round(epsilon_of_rho(rho, 1e-5), 4)
    0.2268
    """
    _check_auto(noise_multiplier, sample_rate, clipping_norm, epochs)
    total, last = epochs + noise_multiplier * (epochs - 1) / 2, 1 / (1 + noise_multiplier / epochs * (epochs - 1))
    return _published_tcdp(noise_multiplier, sample_rate, clipping_norm, total=total, last=last)


def auto_step(
    *, noise_multiplier: float, sample_rate: float, epochs: int, decay: float = 0.5, every: int = 10,
    clipping_norm: float = 1.0,
) -> tuple[float, float]:  # fmt: skip
    """Step decay, noise_e^2 = noise^2 R^floor(e / D), as published, D = `every`, P = E / D.

        rho = 13 rate^2 clip^2 (1 - R^P) / (2 noise^2 D (R^(P-1) - R^P))
        omega = log(1/rate) noise^2 R^(P-1) / (2 clip^2)

    Wrong by D^2 before anything else: D epochs at one noise cost D / noise^2, but eq. (36) gives them one release of
    variance D noise^2, that is 1 / (D noise^2). Then E / rate steps are counted as E. The table's omega has lost the
    D of eq. (45). Source: Auto DP-SGD, Table 8 and eq. (42).

    >>> rho, omega = auto_step(noise_multiplier=1.0, sample_rate=64 / 60000, epochs=100)
    >>> round(epsilon_of_rho(rho, 1e-5), 4)
    0.1874
    """
    _check_auto(noise_multiplier, sample_rate, clipping_norm, epochs, decay)
    _check.whole(every=every)
    drops = epochs / every
    last = decay ** (drops - 1)
    total = (1 - decay**drops) / (last - decay**drops) / every
    return _published_tcdp(noise_multiplier, sample_rate, clipping_norm, total=total, last=last)


def auto_exponential(
    *, noise_multiplier: float, sample_rate: float, epochs: int, decay: float = 0.1, clipping_norm: float = 1.0
) -> tuple[float, float]:
    """Exponential decay, noise_e^2 = noise^2 e^(-R e), as published.

        rho = 13 rate^2 clip^2 (e^(R E) - 1) / (2 noise^2 (e^R - 1))
        omega = log(1/rate) noise^2 / (2 clip^2 e^(R (E-1)))

    The sum of lemma 4 over E epochs; training makes E / rate steps, so rho is 1/rate too small.
    Source: Auto DP-SGD, Table 8 and eq. (50), (53).

    >>> rho, omega = auto_exponential(noise_multiplier=1.0, sample_rate=64 / 60000, epochs=100)
    >>> round(epsilon_of_rho(rho, 1e-5), 3)
    9.994
    """
    _check_auto(noise_multiplier, sample_rate, clipping_norm, epochs, decay)
    total, last = math.expm1(decay * epochs) / math.expm1(decay), math.exp(-decay * (epochs - 1))
    return _published_tcdp(noise_multiplier, sample_rate, clipping_norm, total=total, last=last)


def _published_tcdp(
    noise_multiplier: float, sample_rate: float, clipping_norm: float, *, total: float, last: float
) -> tuple[float, float]:
    """Eq. (10) and (11): `total` is the sum of noise^2 / noise_e^2, `last` the least noise_e^2 / noise^2."""
    rho = 13 * sample_rate**2 * clipping_norm**2 * total / (2 * noise_multiplier**2)
    return rho, -math.log(sample_rate) * noise_multiplier**2 * last / (2 * clipping_norm**2)


def _check_auto(
    noise_multiplier: float, sample_rate: float, clipping_norm: float, epochs: int, decay: float | None = None
) -> None:
    _check.positive(noise_multiplier=noise_multiplier, clipping_norm=clipping_norm)
    _check.rate(sample_rate=sample_rate)
    _check.whole(epochs=epochs)
    if decay is not None:
        _check.between(0, 1, decay=decay)


# --- proactive DP-SGD -------------------------------------------------------------------------------
def proactive_epsilon(*, noise_multiplier: float, delta: float) -> float:
    """The epsilon for which `proactive_noise` gives `noise_multiplier`; infinite unless noise^2 > 2.

        epsilon = 2 log(1/delta) / (noise^2 - 2)

    >>> from privet.planning.calibrate import proactive_noise
    >>> round(proactive_epsilon(noise_multiplier=proactive_noise(epsilon=2.0, delta=1e-5), delta=1e-5), 9)
    2.0
    """
    _check.positive(noise_multiplier=noise_multiplier)
    _check.delta(delta)
    return 2 * -math.log(delta) / (noise_multiplier**2 - 2) if noise_multiplier**2 > 2 else math.inf


def closed_form_holds(ledger: Ledger, delta: float) -> bool:
    """Whether the closed form is true for this ledger: the certified epsilon is at most the claimed one.

    The published condition has an unnamed constant, so it is decided by the certified accountant `pld`, not by T / N^2.
    """
    claimed = spent(ledger, delta, accountant="proactive").epsilon
    return spent(ledger, delta, accountant="pld").epsilon <= claimed


@register("proactive")
class Proactive(GaussianAccountant):
    """The closed form read backwards, at the least noise of the ledger. Always `claimed`: `holds` checks a case.

    It does not see rate or number of steps, so more steps cost nothing here; that is the claim.
    """

    proven = "claimed"

    def unsupported_reason(self, step: Step, adjacency: Adjacency) -> str | None:
        if step.noise_multiplier**2 <= 2:
            return (
                f"noise_multiplier={step.noise_multiplier:g} must be above sqrt(2) for the closed form 2 log(1/delta) "
                "/ (noise^2 - 2). Use more noise, or accountant='pld'."
            )
        return super().unsupported_reason(step, adjacency)

    def upper(self, ledger: Ledger, delta: float) -> float:
        return proactive_epsilon(noise_multiplier=float(ledger.columns().noise_multiplier.min()), delta=delta)


# --- composition as Wei and Liu 2021 print it --------------------------------------------------------
class _Wei(GaussianAccountant):
    """c = log(1 + rate (e^epsilon_0 - 1)), epsilon_0 = sqrt(2 log(1.25/delta)) / noise, the deltas not added up.

    The steps alone spend sum_t rate_t delta; the printed value leaves that out, and the formula for epsilon_0 is
    proven for epsilon_0 < 1 only. `places` reproduces the rounding of epsilon_0 in the printed tables.
    """

    places: int | None = 3
    proven = "claimed"

    def total(self, epsilons: Floats, counts: Floats, delta: float) -> float:
        raise NotImplementedError

    def upper(self, ledger: Ledger, delta: float) -> float:
        columns = ledger.columns()
        single = math.sqrt(2 * math.log(1.25 / delta)) / columns.noise_multiplier
        single = single if self.places is None else np.round(single, self.places)
        return self.total(amplified_epsilon(single, columns.sample_rate), columns.count.astype(np.float64), delta)


@register("basic-wei")
class BasicWei(_Wei):
    """BaseC of Tables V and VI: sum_t c_t."""

    def total(self, epsilons: Floats, counts: Floats, delta: float) -> float:
        return basic_composition(epsilons, counts)


@register("advanced-wei")
class AdvancedWei(_Wei):
    """AdvC of Tables V and VI: sum_t c_t (e^c_t - 1) + sqrt(2 log(1/delta) sum_t c_t^2), not the paper's eq. (3)."""

    def unsupported_reason(self, step: Step, adjacency: Adjacency) -> str | None:
        if step.noise_multiplier < 0.06:
            return (
                f"noise_multiplier={step.noise_multiplier:g} is below 0.06, where e^epsilon of one step overflows. Use "
                "more noise."
            )
        return super().unsupported_reason(step, adjacency)

    def total(self, epsilons: Floats, counts: Floats, delta: float) -> float:
        with np.errstate(over="ignore"):
            drift = float((counts * epsilons * np.expm1(epsilons)).sum())
        return drift + math.sqrt(2 * -math.log(delta) * sum_of_squares(epsilons, counts))


@register("optimal-wei")
class OptimalWei(_Wei):
    """OptC of Tables V and VI: the paper's eq. (4), with epsilon_0 not rounded."""

    places = None

    def total(self, epsilons: Floats, counts: Floats, delta: float) -> float:
        return third_bound(epsilons, counts, delta)
