"""The Accountant protocol, its registry, and `spent`: what does this ledger cost?

The planned ledger and the spent ledger are one type, so "what will it cost" and "what did it cost" are
one function. An accountant answers only for what it has a theorem for; the rest is refused with the reason.
"""

import math
import warnings
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from privet import _check
from privet._registry import Registry
from privet._text import one_line
from privet.accounting.guarantee import ADJACENCIES, LABELS, UNITS, Adjacency, Guarantee, Label, Unit, parse_adjacency
from privet.accounting.ledger import Floats, Ledger, Step
from privet.accounting.sampling import POISSON, TruncatedPoisson, registry as samplings
from privet.errors import InvalidValue, PrivetError, Unsupported

LEAST_NOISE = 1e-100  # its square, over any number of steps, is still a number


class Accountant(Protocol):
    """Turns a ledger into an interval for epsilon. One class, one file, three methods."""

    def unsupported_reason(self, step: Step, adjacency: Adjacency) -> str | None:
        """Why this step has no theorem here, or None if it has."""

    def bounds(self, ledger: Ledger, delta: float) -> tuple[float | None, float]:
        """(lower or None, upper) for epsilon at `delta`; rounding goes outward."""

    def label(self, ledger: Ledger, delta: float) -> Label:
        """What is proven about the upper value for this ledger."""


NAMES = (
    "gdp", "basic", "advanced", "optimal", "basic-wei", "advanced-wei", "optimal-wei", "proactive", "rdp", "moments",
    "zcdp", "tcdp", "pld",
)  # fmt: skip
registry: Registry[Accountant] = Registry(
    "accountant", needs=("unsupported_reason", "bounds", "label"), order=NAMES, published="accountants"
)
register = registry.register


def spent(
    ledger: Ledger, delta: float, *, accountant: str = "pld", adjacency: Adjacency = "zero-out", unit: Unit = "example",
    dataset_size: int | None = None,
) -> Guarantee:  # fmt: skip
    """The guarantee of everything in `ledger`, at `delta`.

    Args:
        accountant: a registered name, or `my.module:Class`. What is not of this package is labelled `claimed` at most.
        adjacency: which datasets are neighbours. Poisson sampling gives the same numbers under
            `zero-out` (n is public) and `add-remove`; `replace-one` needs sample rate 1 or fixed-size sampling,
            with the noise counted in units of the doubled sensitivity.
        dataset_size: the number of records, if known: a delta of 1 / size or more draws a warning.

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=1.1, sample_rate=256 / 60000), count=14063)
    >>> guarantee = spent(ledger, delta=1e-5)
    >>> guarantee.label, round(guarantee.epsilon, 3)
    ('certified', 2.382)
    """
    _check.delta(delta)
    adjacency = parse_adjacency(adjacency)
    _check.one_of(ADJACENCIES, adjacency=adjacency)
    _check.one_of(UNITS, unit=unit)
    _check.whole(least=0, steps=ledger.steps)
    if dataset_size is not None:
        warn_large_delta(delta, dataset_size, unit=unit)
    chosen = registry.make(accountant)
    refuse_unsupported(chosen, ledger, adjacency=adjacency, accountant=accountant)
    lower: float | None = None
    if registry.is_ours(chosen):
        (lower, upper), label = _ledger_bounds(chosen, ledger, delta), chosen.label(ledger, delta)
    else:
        upper, label = _check_plugin_bound(chosen, ledger, delta, adjacency=adjacency, accountant=accountant)
    return Guarantee(
        epsilon=upper, epsilon_lower=lower, delta=delta, label=label, method=accountant, adjacency=adjacency,
        sampling=" + ".join(sorted(str(kind) for kind in ledger.columns().samplings)) or "poisson", unit=unit,
        steps=ledger.steps,
    )  # fmt: skip


def _ledger_bounds(chosen: Accountant, ledger: Ledger, delta: float) -> tuple[float | None, float]:
    return truncated_bounds(chosen, ledger, delta) if is_truncated(ledger) else chosen.bounds(ledger, delta)


def _check_plugin_bound(
    chosen: Accountant, ledger: Ledger, delta: float, *, adjacency: Adjacency, accountant: str
) -> tuple[float, Label]:
    """The upper bound of an accountant from outside, and its label; refused where `pld` proves that more is spent.

    Nobody here has seen its proof, so it is `claimed` at most, whatever it says, and its lower bound is left out.
    """
    try:
        upper, label = float(_ledger_bounds(chosen, ledger, delta)[1]), chosen.label(ledger, delta)
    except PrivetError:
        raise
    except Exception as error:  # a user's own class may fail in any way
        raise InvalidValue(
            f"accountant={accountant!r} fails on this ledger, with a {type(error).__name__}: {one_line(error)}. Let "
            "bounds(ledger, delta) return (None, upper), and label one of the four."
        ) from error
    _check.one_of(LABELS, label=label)
    _check.non_negative(epsilon=upper)
    proven = _pld_lower_bound(ledger, delta, adjacency)
    if upper < proven:
        raise InvalidValue(
            f"accountant={accountant!r} gives epsilon={upper:.6g}, but 'pld' proves that {proven:.6g} or more is "
            f"spent at delta={delta!r}. An upper bound cannot be below it. Use accountant='pld', or correct yours."
        )
    return upper, label if label == "empirical" else "claimed"


def _pld_lower_bound(ledger: Ledger, delta: float, adjacency: Adjacency) -> float:
    """What `pld` proves is spent; 0 where it has no theorem."""
    exact = registry.make("pld")
    try:
        refuse_unsupported(exact, ledger, adjacency=adjacency, accountant="pld")
        return _ledger_bounds(exact, ledger, delta)[0] or 0.0
    except Unsupported:
        return 0.0


def warn_large_delta(delta: float, size: int, *, unit: Unit = "example") -> None:
    """Warn when delta is so large that publishing a random record (or client) whole would meet it."""
    _check.whole(dataset_size=size)
    if delta >= 1 / size:
        warnings.warn(
            f"delta={delta!r} is at least 1/dataset_size={1 / size:.3g}: publishing one {unit} at random would "
            f"satisfy it. Use 1/(10 dataset_size)={0.1 / size:.3g} or less.",
            stacklevel=3,
        )


def refuse_unsupported(chosen: Accountant, ledger: Ledger, *, adjacency: Adjacency, accountant: str) -> None:
    """Raise Unsupported with the accountant's reason, if it has no theorem for a step of the ledger."""
    adjacency = parse_adjacency(adjacency)
    _check.one_of(ADJACENCIES, adjacency=adjacency)  # an unknown one must not pass for one with a theorem
    for step in representative_steps(ledger):
        if step.noise_multiplier < LEAST_NOISE:
            raise Unsupported(
                f"noise_multiplier={float(step.noise_multiplier)!r} must be at least {LEAST_NOISE:g}. Below it epsilon "
                "overflows. Use more noise."
            )
        if registry.is_ours(chosen) and not samplings.is_ours(step.sampling):  # what it is called proves nothing
            raise Unsupported(
                f"sampling={str(step.sampling)!r} has no theorem here. It is not Privet's own. "
                "Use 'poisson', or an accountant of your own: accountant='my_lab.module:Class'."
            )
        reason = chosen.unsupported_reason(step, adjacency)
        if reason:
            raise Unsupported(f"accountant={accountant!r} does not cover this ledger: {reason}")


def representative_steps(ledger: Ledger) -> list[Step]:
    """One step per (sampling, rate below 1 or not) and the least and largest noise of each: all a theorem asks of."""
    columns = ledger.columns()
    found = []
    for kind, chosen in enumerate(columns.samplings):
        for full in (False, True):
            here = np.flatnonzero((columns.sampling_index == kind) & ((columns.sample_rate == 1) == full))
            for pick in (
                {int(here[f(columns.noise_multiplier[here])]) for f in (np.argmin, np.argmax)} if len(here) else ()
            ):
                found.append(
                    Step(
                        noise_multiplier=columns.noise_multiplier[pick],
                        sample_rate=columns.sample_rate[pick],
                        sampling=chosen,
                    )
                )
    return found


def gaussian_unsupported_reason(step: Step, adjacency: Adjacency) -> str | None:
    """The rule shared by accountants of Poisson-sampled Gaussians (and of whole-dataset ones, rate 1)."""
    if step.sampling.name == "fixed-size" and step.sample_rate < 1:
        return "fixed-size sampling has a theorem in 'rdp' only. Use accountant='rdp', or Poisson sampling."
    if step.sampling.name == "shuffled":
        return "shuffled batches are not Poisson-sampled. Use accountant='pld' (no amplification) or Poisson sampling."
    if adjacency == "replace-one" and step.sample_rate < 1:
        return (
            f"adjacency='replace-one' at sample_rate={step.sample_rate:g} has no theorem here. "
            "Use adjacency='zero-out', rate 1, or fixed-size sampling with accountant='rdp'."
        )
    return None


class GaussianAccountant:
    """What accountants of Poisson-sampled Gaussians share: what they refuse, and one label for all ledgers.

    Shuffled epochs without amplification are covered, if at all, where n is public and a record is blanked out.
    """

    proven: Label = "certified"
    covers_shuffled = False

    def unsupported_reason(self, step: Step, adjacency: Adjacency) -> str | None:
        if not self.covers_shuffled or step.sampling.name != "shuffled":
            return gaussian_unsupported_reason(step, adjacency)
        if adjacency == "zero-out":
            return None
        return f"shuffled batches have no theorem for {adjacency=}. Use adjacency='zero-out', or Poisson sampling."

    def upper(self, ledger: Ledger, delta: float) -> float:
        """The upper bound of a ledger that has steps, where there is no lower one."""
        raise NotImplementedError

    def bounds(self, ledger: Ledger, delta: float) -> tuple[float | None, float]:
        return (None, self.upper(ledger, delta)) if ledger else (0.0, 0.0)

    def label(self, ledger: Ledger, delta: float) -> Label:
        return self.proven


# --- truncated Poisson -------------------------------------------------------------------------------
def is_truncated(ledger: Ledger) -> bool:
    """Whether some step's batch is cut to a cap."""
    return any(isinstance(kind, TruncatedPoisson) for kind in ledger.columns().samplings)


def truncated_bounds(chosen: Accountant, ledger: Ledger, delta: float) -> tuple[float | None, float]:
    """Bounds for batches cut to a cap: delta' = delta + (1 + e^eps) sum_t P[Bin(n, q_t) > cap].

    By coupling with the untruncated run: the two differ only if some batch overflows, with the larger
    neighbour's n in the binomial. The same coupling gives the lower bound with the sign reversed.
    """
    chance = overflow_probability(ledger)
    plain = to_poisson(ledger)
    lower, upper = chosen.bounds(plain, delta)
    for _ in range(100):
        left = delta - float(_truncation_delta(chance, upper))
        if left <= 0:
            raise Unsupported(
                f"cap: a batch overflows with probability {chance:.3g} over the run, more than delta={delta!r} can "
                "absorb. Use a larger cap."
            )
        following = chosen.bounds(plain, left)[1]
        if following <= upper:
            break
        # A fixed point from below: step a little past it so that the check above can succeed.
        upper = following * (1 + 1e-12) + 1e-300
    else:
        raise Unsupported(f"cap: no epsilon absorbs an overflow probability of {chance:.3g}. Use a larger cap.")
    if lower is not None:
        more = delta + float(_truncation_delta(chance, upper))
        lower = chosen.bounds(plain, more)[0] if more < 1 else 0.0
    return lower, upper


def truncated_deltas(ledger: Ledger, epsilon: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> tuple[Floats, Floats]:
    """Bounds on delta at each `epsilon` for batches cut to a cap, from those of the untruncated run.

    The same coupling as in `truncated`, read the other way: (1 + e^eps) sum_t P[Bin(n, q_t) > cap] goes to both sides.
    """
    chance = overflow_probability(ledger)
    added = _truncation_delta(chance, epsilon)
    if added.size and added.min() >= 1:
        raise Unsupported(
            f"cap: a batch overflows with probability {chance:.3g} over the run, which leaves no delta below 1 at "
            f"epsilon={float(np.min(epsilon))!r}. Use a larger cap."
        )
    return np.maximum(np.subtract(lower, added), 0.0), np.minimum(np.add(upper, added), 1.0)


def _truncation_delta(chance: float, epsilon: ArrayLike) -> Floats:
    """What cut batches add to delta at `epsilon`, (1 + e^eps) chance, and 1 at most."""
    if not chance:
        return np.zeros(np.shape(epsilon))
    return np.asarray(np.exp(np.minimum(np.logaddexp(0.0, epsilon) + math.log(chance), 0.0)))


def overflow_probability(ledger: Ledger) -> float:
    """An upper bound on the chance that some batch of the run is larger than its cap; 0 if none can be."""
    total = 0.0
    for step, count in ledger:
        kind = step.sampling
        if isinstance(kind, TruncatedPoisson) and kind.cap < kind.size:
            total += count * (
                float(special.bdtrc(kind.cap, kind.size, step.sample_rate)) + 1e-300
            )  # what may underflow
    return total * (1 + 1e-9)


def to_poisson(ledger: Ledger) -> Ledger:
    """The same releases with every truncated Poisson step taken as a Poisson one."""
    plain = Ledger()
    for step, count in ledger:
        plain.add(replace(step, sampling=POISSON) if isinstance(step.sampling, TruncatedPoisson) else step, count)
    return plain


# --- shuffled epochs ---------------------------------------------------------------------------------
def compose_ledgers(*ledgers: Ledger) -> Ledger:
    """One ledger of several runs on the same records, one after the other: what they cost together.

    Each run draws permutations of its own, so a shuffled epoch ends with its run. What is left of the last one is
    charged with the run, for nothing, since a record takes part once in an epoch; the next run begins a new one. Steps
    put together by `add` are taken for steps of one run.

    >>> run = Ledger()
    >>> run.add(Step(noise_multiplier=2.0, sample_rate=0.25, sampling="shuffled"), count=3)
    >>> [round(spent(ledger, delta=1e-5).epsilon, 2) for ledger in (run, compose_ledgers(run, run))]
    [1.99, 2.94]
    """
    whole = Ledger()
    for ledger in ledgers:
        for step, count in ledger:
            whole.add(step, count)
        left = _scan_epochs(ledger)[1]
        if left:
            whole.add([step for step, _ in ledger if step.sampling.name == "shuffled"][-1], left)
    return whole


def epoch_noises(ledger: Ledger) -> list[float]:
    """For shuffled steps: the least noise of each epoch, an epoch being ceil(1/rate) consecutive steps of one run."""
    return _scan_epochs(ledger)[0]


def _scan_epochs(ledger: Ledger) -> tuple[list[float], int]:
    """The least noise of each shuffled epoch, and how many steps of the last one are still to come."""
    left, least, found = 0, math.inf, []
    rate_before = None
    for step, count in ledger:
        if step.sampling.name != "shuffled":
            continue
        length = math.ceil(1 / step.sample_rate - 1e-9)
        if left and step.sample_rate != rate_before:
            raise InvalidValue(
                f"sample_rate={step.sample_rate!r} changes within a shuffled epoch: {left} steps of it remain. Change "
                "the rate between epochs only."
            )
        rate_before = step.sample_rate
        while count:
            if not left:
                left, least = length, math.inf
            taken = min(left, count)
            least = min(least, step.noise_multiplier)
            left, count = left - taken, count - taken
            if not left:
                found.append(least)
    if left:
        found.append(least)
    return found, left
