"""What a recipe asks, with its method filled in: which steps a choice of knobs means, and what they cost."""

from dataclasses import dataclass, field, replace

from privet._registry import format_number
from privet.accounting import Budget, Guarantee, Ledger, spent
from privet.accounting.accountant import warn_large_delta
from privet.accounting.guarantee import LABELS, Label
from privet.accounting.pld import accountant as pld
from privet.accounting.pld.levels import loss_levels
from privet.accounting.sampling import sampling
from privet.accounting.selection import private_selection
from privet.errors import InvalidValue, PrivetError
from privet.planning.clipping_rules import is_unsound
from privet.planning.methods import Method, ScheduleContext, method
from privet.planning.planned_steps import PlannedSteps
from privet.planning.recipe import Recipe
from privet.schedules import to_spec

_SHAPED = {"noise": "noise_multiplier", "clip": "clipping_norm"}  # what a method shapes, and the recipe's key for it


@dataclass(frozen=True, slots=True)
class PricedRecipe:
    """A recipe and its method; the knobs (scale, count, rate) are arguments."""

    recipe: Recipe
    _prices: dict[PlannedSteps, Guarantee] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_method(self.recipe, self.method)

    @property
    def method(self) -> Method | None:
        return None if self.recipe.method is None else method(self.recipe.method)

    @property
    def accountant(self) -> str:
        """The recipe's own, else the paper's as published, else rdp for a random number of runs, else pld."""
        if self.recipe.accountant is not None:
            return self.recipe.accountant
        if self.recipe.tuning is not None and self.recipe.tuning.is_random:
            return "rdp"
        return self.method.accountant if self.recipe.uncertified and self.method else "pld"

    @property
    def rule(self) -> str:
        if self.recipe.rule is not None or self.method is None:
            return self.recipe.rule or "flat"
        return self.method.published_rule if self.recipe.uncertified else self.method.rule

    @property
    def has_claim(self) -> bool:
        """Whether the price is a closed form of the paper, not an accountant."""
        return self.recipe.uncertified and self.method is not None and self.method.claim is not None

    def steps(self, *, peak_noise_multiplier: float, count: int, sample_rate: float) -> PlannedSteps:
        recipe = self.recipe
        given = recipe.noise_multiplier if isinstance(recipe.noise_multiplier, float) else 1.0
        at = ScheduleContext(
            recipe=recipe, sample_rate=sample_rate, count=count, peak_noise_multiplier=peak_noise_multiplier * given
        )
        shapes = [_resolve_shape(self.method, recipe, name, at) for name in _SHAPED]
        return PlannedSteps(
            length=count, sample_rate=sample_rate, peak_noise_multiplier=peak_noise_multiplier * given,
            noise_schedule=shapes[0], clip_schedule=shapes[1],
            batch_schedule=recipe.batch_size if isinstance(recipe.batch_size, str) else "constant",
            sampling=sampling(recipe.sampling),
        )  # fmt: skip

    def own_steps(self, scale: float) -> PlannedSteps:
        """The steps of the recipe's own number and rate, where it says both."""
        assert self.recipe.count is not None
        assert self.recipe.base_rate is not None
        return self.steps(peak_noise_multiplier=scale, count=self.recipe.count, sample_rate=self.recipe.base_rate)

    def charged_ledger(self, steps: PlannedSteps) -> Ledger:
        """The releases that are charged: those of one run, or of all trials where their number is fixed."""
        tuning, ledger = self.recipe.tuning, steps.ledger()
        return ledger if tuning is None else tuning.charged_ledger(ledger)

    def cost(self, steps: PlannedSteps, *, warn: bool = False) -> Guarantee:
        """What the steps cost, by the recipe's accountant or the paper's closed form, with the weaker label."""
        budget, row = self.recipe.budget, self.method
        if self.has_claim:
            assert row is not None
            assert row.claim is not None
            at = ScheduleContext(
                recipe=self.recipe, sample_rate=steps.sample_rate, count=steps.length,
                peak_noise_multiplier=steps.peak_noise_multiplier,
            )  # fmt: skip
            return Guarantee(
                epsilon=row.claim(at, budget.delta), epsilon_lower=None, delta=budget.delta, label="claimed",
                method=f"{row.name} closed form", adjacency=budget.adjacency, sampling=self.recipe.sampling,
                unit=budget.unit, steps=steps.length,
            )  # fmt: skip
        if warn:
            warn_large_delta(budget.delta, self.recipe.dataset_size, unit=budget.unit)
        if steps not in self._prices:
            found = self._guarantee_of_steps(steps, self.accountant)
            paper = row if self.recipe.uncertified and self.recipe.accountant is None else None
            # under the weaker of the accountant's label and the method's
            label: Label = "claimed" if is_unsound(self.rule) else "certified" if paper is None else paper.label
            is_weaker = LABELS.index(label) > LABELS.index(found.label)
            self._prices[steps] = replace(found, label=label, epsilon_lower=None) if is_weaker else found
        return self._prices[steps]

    def quick_upper_bound(self, steps: PlannedSteps) -> float:
        """An upper bound on the price that is quick to have and may be some per cent wide: for advice."""
        if self.accountant != "pld" or self.has_claim or steps.sampling.name == "truncated-poisson":
            return self.cost(steps).epsilon
        return pld.epsilon_bounds(loss_levels(self.charged_ledger(steps)), self.recipe.budget.delta, quick=True)[1]

    def certified_guarantee(self, steps: PlannedSteps) -> Guarantee | None:
        """What is proven of the same steps, tuning included; None if no proof covers the rule, or no theorem.

        By `pld`, or for a random number of runs by the one theorem there is; often it is the price already.
        """
        cost, random = self.cost(steps), self.recipe.tuning is not None and self.recipe.tuning.is_random
        if cost.label == "certified" and not self.has_claim and (random or self.accountant == "pld"):
            return cost
        if is_unsound(self.rule):
            return None
        try:
            return self._guarantee_of_steps(steps, "pld")
        except PrivetError:
            return None

    def guarantee_of_one_run(self, steps: PlannedSteps) -> Guarantee | None:
        """What is proven of one run of several; None if there is no tuning."""
        if self.recipe.tuning is None or is_unsound(self.rule):
            return None
        for accountant in ("pld", self.accountant):
            found = try_guarantee(steps.ledger(), self.recipe.budget, accountant)
            if found is not None and found.label == "certified":
                return found
        return None

    def _guarantee_of_steps(self, steps: PlannedSteps, accountant: str) -> Guarantee:
        budget, tuning = self.recipe.budget, self.recipe.tuning
        if tuning is None:
            return guarantee_for(steps.ledger(), budget, accountant)
        if tuning.is_random:
            return private_selection(
                steps.ledger(), budget.delta, law=tuning.trial_count_distribution, mean=tuning.runs,
                adjacency=budget.adjacency, unit=budget.unit,
            )  # fmt: skip
        found = guarantee_for(self.charged_ledger(steps), budget, accountant)
        count = steps.length * (int(tuning.runs) if tuning.trial_count_distribution == "fixed" else 1)
        return replace(found, method=f"{found.method}, {tuning.name}", steps=count)


def guarantee_for(ledger: Ledger, budget: Budget, accountant: str = "pld") -> Guarantee:
    """What a ledger costs at the delta of a budget, for its unit and neighbouring relation."""
    return spent(ledger, budget.delta, accountant=accountant, adjacency=budget.adjacency, unit=budget.unit)


def try_guarantee(ledger: Ledger, budget: Budget, accountant: str = "pld") -> Guarantee | None:
    """The same; None where no theorem covers a step, or the relation."""
    try:
        return guarantee_for(ledger, budget, accountant)
    except PrivetError:
        return None


def _resolve_shape(row: Method | None, recipe: Recipe, name: str, at: ScheduleContext) -> str:
    """The spelling of a shape: the recipe's own where the method leaves it open, else the method's."""
    own = getattr(recipe, _SHAPED[name])
    shape_of = None if row is None else getattr(row, name)
    if name == "noise" and recipe.uncertified and row is not None and row.published_noise is not None:
        shape_of = row.published_noise
    if isinstance(own, str) or shape_of is None:
        return own if isinstance(own, str) else "constant" if name == "noise" else to_spec(own)
    shape = to_spec(shape_of(at))
    return shape if name == "noise" or own == 1 else f"{format_number(own)} * {shape}"


def _check_method(recipe: Recipe, row: Method | None) -> None:
    for name in ("rho_noise", "rho_clip"):
        given, needed = getattr(recipe, name) is not None, row is not None and name in row.needs
        if needed and not given:
            raise InvalidValue(f"{name} is missing. method={recipe.method!r} needs it. Give {name}=3.3, for example.")
        if given and not needed:
            raise InvalidValue(
                f"{name}={getattr(recipe, name)!r} does not apply to method={recipe.method!r}. Leave it out, or use "
                f"method={'growing-mu' if name == 'rho_noise' else 'sensitivity-decay'!r}."
            )
    if row is None:
        if recipe.uncertified:
            raise InvalidValue("uncertified needs a method. It stands for a paper. Give method='dynamic', for example.")
        return
    for name, key in _SHAPED.items():
        own = getattr(recipe, key)
        if isinstance(own, str) and name not in row.free:
            raise InvalidValue(
                f"{key}={own!r} does not apply to method={row.name!r}, which says it is "
                f"{row.noise_says if name == 'noise' else row.clip_says}. Leave out {key}, or the method."
            )
    if recipe.uncertified and row.claim is not None and recipe.accountant is not None:
        raise InvalidValue(
            f"accountant={recipe.accountant!r} does not apply to method={row.name!r} as published: its epsilon is a "
            "closed form. Leave out the accountant."
        )
