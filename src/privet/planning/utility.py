"""An estimate of what training gains from a plan. It orders plans of one budget; it is no promise and no guarantee."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import optimize

from privet import _check
from privet._files import read_start
from privet.accounting.ledger import Floats, Ints
from privet.errors import InvalidValue, Unsupported, name_errors
from privet.planning.plan import Plan
from privet.planning.planned_steps import PlannedSteps
from privet.schedules import Table

MOST_BLOCKS = 1024  # a longer run is summed up in so many stretches of equal length
RATES = np.geomspace(1e-12, 1.0, 121)  # learning rates that are tried, over the largest that is stable
_EXP_FALL = np.geomspace(2.0, 0.5, 17)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is assumed about the training: how large gradients are, and how quickly it learns without noise.

    The defaults are assumptions, not measurements: norms that fall from 2 to 0.5, a network of 26,010 parameters (the
    small MNIST network of the papers), 200 steps to halve what is left to learn. Measure your own on public data.

    Attributes:
        norms: the typical norm of one example's gradient, evenly spaced over the run, stretched to its length.
        dimension: the number of parameters d.
        alignment: the norm of the mean gradient over the norm of one example's, at the start.
        half_life: steps without noise and at the best learning rate that halve the gap to the best loss.
    """

    norms: tuple[float, ...] = tuple(float(f"{norm:.4g}") for norm in _EXP_FALL)
    dimension: int = 26010
    alignment: float = 0.3
    half_life: float = 200.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "norms", Table(rows=tuple(self.norms)).rows if self.norms else ())
        if not self.norms:
            raise InvalidValue(
                "norms=() is empty. A profile needs one norm or more. Give (2.0, 1.0, 0.5), for example."
            )
        _check.whole(dimension=self.dimension)
        _check.positive(half_life=self.half_life, alignment=self.alignment)
        if self.half_life < 1:
            raise InvalidValue(
                f"half_life={self.half_life!r} must be at least 1. It counts steps. Give 200, for example."
            )
        if self.alignment > 1:
            raise InvalidValue(f"alignment={self.alignment!r} must be at most 1. A mean is no longer than its parts.")

    @classmethod
    def load(cls, path: str | Path, **rest: Any) -> "Profile":
        """The profile with the norms in a CSV file: one column, or the one called `norm`; `rest` is the other fields.

        Raises:
            InvalidValue: the file is missing or empty, or a norm is not a finite number above 0; says which row.
        """
        with name_errors("profile", kind=InvalidValue):
            head = read_start(Path(path), 10_000).decode("utf-8-sig", "ignore").partition("\n")[0]
            column = "norm" if "," in head else None  # the reader of the table says what is wrong
            return cls(norms=Table(file=path, column=column).rows, **rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """How much of what there is to learn a plan is estimated to learn: 1 is all, 0 nothing.

    `gap` is the rest, 1 - utility; `kept` the average share of a gradient that clipping keeps; `noise_energy` the
    expected squared norm of the noise on the averaged gradients, summed over the steps.
    """

    utility: float
    gap: float
    kept: float
    noise_energy: float
    label: ClassVar[str] = "estimate"

    def as_dict(self) -> dict[str, Any]:
        return {"label": self.label} | asdict(self)


def utility(plan: Plan, profile: Profile | None = None) -> Utility:
    """The estimate for a plan: the share of the loss that training removes, at the best constant learning rate.

        x_0 = 1,  x_(t+1) = (1 - kappa z_t (2 - z_t)) x_t + kappa y^2 v_t / m^2,  utility = 1 - min over y of x_T
        z_t = y k_t <= 1,   k_t = min(1, C_t / G_t)                          the share of the gradient that is kept
        v_t = (1 - q_t) min(G_t, C_t)^2 / B_t  +  d (noise_t C_t / B_t)^2    sampling, and the noise of privacy

    x is the loss above its least, over that of the start; y the learning rate over 1/L; G_t the profile's norm;
    m = alignment G_0; kappa = 1 - 2^(-1/half_life). This is the descent lemma of an L-smooth loss with the
    Polyak-Lojasiewicz condition |grad|^2 >= 2 kappa L (loss - least), taken with equality.

    What it assumes: plain SGD with one learning rate, tuned; all gradients of a step equally long, so clipping shortens
    and never turns the mean; a loss as easy as that condition says. Momentum, Adam, learning-rate schedules and the
    bias of clipping are not in it; every rule but `normalised` is taken as flat. More noise never scores higher.

    >>> from privet.planning import plan
    >>> p = plan(epsilon=2.0, delta=1e-5, dataset_size=60000, batch_size=256, epochs=15)
    >>> utility(p).label, round(utility(p).utility, 2)
    ('estimate', 0.89)

    Raises:
        Unsupported: the clipping rule as published does not clip to C, so there is nothing to estimate from.
    """
    if plan.is_unsound:
        raise Unsupported(f"rule={plan.rule!r} does not clip to C. The estimate needs it. Plan without uncertified.")
    return estimate(
        plan.steps, dataset_size=plan.recipe.dataset_size, sensitivity=sensitivity(plan), rule=plan.rule,
        profile=profile,
    )  # fmt: skip


def estimate(
    steps: PlannedSteps, *, dataset_size: int, sensitivity: float = 1.0, rule: str = "flat",
    profile: Profile | None = None,
) -> Utility:  # fmt: skip
    """The same for steps that are no plan yet. `sensitivity` is over the clip: 2 for replace-one neighbours."""
    given = Profile() if profile is None else profile
    at = _Blocks(steps)
    clip, rate = at.mean(steps.clipping_norms), at.mean(steps.sample_rates)
    std = at.root_mean_square(steps)  # of noise * clip / rate
    norm = np.interp(at.middle, np.linspace(0, 1, len(given.norms)), given.norms)
    kept = clip / norm if rule == "normalised" else np.minimum(1.0, clip / norm)
    most = float(kept.max())  # y * most <= 1: the learning rate makes up for clipping, up to the stable one
    with np.errstate(over="ignore", under="ignore"):
        private = given.dimension * (sensitivity * std / (most * dataset_size)) ** 2
        sampling = (1 - rate) * (kept * norm / most) ** 2 / (rate * dataset_size)
        spread = (private + sampling) / (given.alignment * given.norms[0]) ** 2
        gap = _least_remaining_loss(kept / most, spread, at.count, 1 - 2 ** (-1 / given.half_life))
        energy = float(private @ at.count) * most**2
    share = float(kept @ at.count / at.count.sum())
    return Utility(utility=1 - gap, gap=gap, kept=min(share, 1.0), noise_energy=energy)


def noise_std(plan: Plan, at: Ints) -> Floats:
    """The standard deviation of the noise on the sum of gradients at some steps: noise * clip (twice for replace-one).

    >>> from privet.planning import plan
    >>> p = plan(dataset_size=60000, batch_size=256, steps=100, noise_multiplier=1.1, clipping_norm=0.5,
    ...          solve="epsilon")
    >>> noise_std(p, np.array([0, 99])).round(3).tolist()
    [0.55, 0.55]
    """
    return plan.steps.noise_multipliers[at] * plan.steps.clipping_norms[at] * sensitivity(plan)


def sensitivity(plan: Plan) -> float:
    """How far one record moves the sum, over the clip."""
    return 2.0 if plan.recipe.budget.adjacency == "replace-one" else 1.0


# --- the recursion ----------------------------------------------------------------------------------
def _least_remaining_loss(kept: Floats, spread: Floats, count: Floats, kappa: float) -> float:
    """The least x_T over the learning rates; `kept` is at most 1. Learning nothing (1) is always possible."""

    def remaining_loss(y: Floats) -> Floats:
        z = y[:, None] * kept
        fall = np.log1p(-kappa * z * (2 - z))
        whole = fall * count  # a stretch of c equal steps: x -> f^c x + e (1 - f^c) / (1 - f)
        after = np.cumsum(whole[:, ::-1], axis=1)[:, ::-1] - whole
        added = y[:, None] ** 2 * kappa * spread * np.expm1(whole) / np.expm1(fall)
        x: Floats = np.exp(whole.sum(axis=1)) + np.nansum(added * np.exp(after), axis=1)
        return x

    tried = remaining_loss(RATES)
    best = int(np.argmin(tried))
    low, high = RATES[max(best - 1, 0)], RATES[min(best + 1, len(RATES) - 1)]
    found = optimize.minimize_scalar(
        lambda log_y: float(remaining_loss(np.exp([log_y]))[0]), bounds=(np.log(low), np.log(high)), method="bounded",
        options={"xatol": 1e-5},
    )  # fmt: skip
    return float(min(tried[best], found.fun, 1.0))


class _Blocks:
    """The steps in at most MOST_BLOCKS stretches; one step each if there are no more."""

    def __init__(self, steps: PlannedSteps) -> None:
        edges = np.unique(np.linspace(0, len(steps), min(len(steps), MOST_BLOCKS) + 1).round().astype(np.int64))
        self.starts = edges[:-1]
        self.count: Floats = np.diff(edges).astype(np.float64)
        self.middle: Floats = (edges[:-1] + edges[1:]) / (2.0 * len(steps))

    def mean(self, values: Floats) -> Floats:
        if values.strides == (0,):  # a constant, held once
            return np.full(len(self.count), float(values[0]))
        return np.asarray(np.add.reduceat(values, self.starts) / self.count)

    def root_mean_square(self, steps: PlannedSteps) -> Floats:
        """noise * clip / rate, squared, averaged over each stretch, and its root."""
        if steps.is_constant:
            first = steps[0]
            return np.full(len(self.count), first.noise_multiplier * first.clipping_norm / first.sample_rate)
        size = steps.clipping_norms.max()  # no square may overflow or vanish
        return np.asarray(
            size
            * np.sqrt(self.mean((steps.noise_multipliers * (steps.clipping_norms / size) / steps.sample_rates) ** 2))
        )
