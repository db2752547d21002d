"""Plans side by side: what each adds, what each costs by three accountants, and an estimate of what each learns.

And a plan beside its noise swap: the noise that another accountant allows at the same epsilon and delta, and what is
proven of it. Bu et al. 2019 (section 3.2, Fig. 1) trade one accountant for another: at the (epsilon, delta) of the
moments accountant, the central limit theorem allows less noise. What that really costs, the certified accountant says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privet.accounting import Budget, Guarantee
from privet.errors import InvalidValue, NoSolution, Unsupported
from privet.planning.methods import method
from privet.planning.plan import Plan, plan
from privet.planning.pricing import PricedRecipe, try_guarantee
from privet.planning.recipe import Recipe
from privet.planning.utility import Profile, Utility, noise_std, utility

MOST_PLANS = 12
BESIDE = {"clt": "gdp", "renyi": "rdp"}  # what is asked beside the certified accountant, on the same steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan of a comparison. What no theorem covers is None: all epsilons but the claim, for an unsound rule."""

    name: str
    plan: Plan
    clt: Guarantee | None
    renyi: Guarantee | None
    utility: Utility | None

    @property
    def noise_multiplier(self) -> tuple[float, float]:
        return self.plan.steps[0].noise_multiplier, self.plan.steps[-1].noise_multiplier

    @property
    def clipping_norm(self) -> tuple[float, float]:
        return self.plan.steps[0].clipping_norm, self.plan.steps[-1].clipping_norm

    @property
    def noise_std(self) -> tuple[float, float]:
        """The standard deviation of the noise on the sum of gradients, at the first and the last step."""
        first, last = noise_std(self.plan, np.array([0, len(self.plan.steps) - 1]))
        return float(first), float(last)

    @property
    def over_budget(self) -> bool:
        """Whether what is proven of the steps exceeds the budget, or nothing is proven."""
        return self.plan.certified is None or self.plan.certified.epsilon > self.plan.recipe.budget.epsilon

    def as_dict(self) -> dict[str, Any]:
        plan, spent = self.plan, {"guarantee": self.plan.guarantee, "certified": self.plan.certified, "clt": self.clt}
        return {
            "name": self.name, "method": plan.recipe.method, "steps": len(plan.steps), "batch_size": plan.batch_size,
            "rule": plan.rule,
            **{key: list(getattr(self, key)) for key in ("noise_multiplier", "clipping_norm", "noise_std")},
            **{key: None if one is None else one.as_dict() for key, one in (spent | {"renyi": self.renyi}).items()},
            "over_budget": self.over_budget, "utility": None if self.utility is None else self.utility.as_dict(),
            "hash": plan.hash,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Plans side by side, in the order they were given."""

    rows: tuple[Row, ...]
    profile: Profile

    @property
    def same_budget(self) -> bool:
        """Whether all have one budget. If not, the figures are no contest."""
        return len({_row_budget(row) for row in self.rows}) == 1

    @property
    def notes(self) -> list[str]:
        """What a reader must know before drawing a conclusion, in sentences."""
        said = []
        if not self.same_budget:
            budgets = [(row.name, _row_budget(row)) for row in self.rows]
            each = [
                f"{name} epsilon {b.epsilon:.6g} at delta {b.delta:g}, {b.adjacency}, per {b.unit}"
                for name, b in budgets
            ]
            said.append(f"The budgets differ, so less noise is no merit: {'; '.join(each)}.")
        if len({row.plan.recipe.dataset_size for row in self.rows}) > 1:
            said.append("The sizes of the datasets differ, so the plans are for different tasks.")
        for row in self.rows:
            if row.plan.is_unsound:
                said.append(f"{row.name}: no proof covers its clipping rule {row.plan.rule!r}; epsilon is a claim.")
            elif row.over_budget:
                said.append(f"{row.name}: what is certified exceeds its budget.")
            if row.plan.recipe.tuning is not None:
                said.append(
                    f"{row.name}: its epsilon is for all runs that are tried; CLT, Rényi and curves are for one."
                )
        return said

    def as_dict(self) -> dict[str, Any]:
        profile = {name: getattr(self.profile, name) for name in ("dimension", "alignment", "half_life")}
        return {
            "plans": [row.as_dict() for row in self.rows], "same_budget": self.same_budget, "notes": self.notes,
            "profile": profile | {"norms": list(self.profile.norms)},
        }  # fmt: skip


def compare(
    plans: "Sequence[Plan | Recipe] | Mapping[str, Plan | Recipe]", *, profile: Profile | None = None
) -> Comparison:
    """Plans side by side; recipes are planned first. Names come from a mapping, else from the methods.

    >>> common = {"epsilon": 2.0, "delta": 1e-5, "dataset_size": 60000, "batch_size": 600, "steps": 2000}
    >>> found = compare(method_recipes(["noisy-sgd", "growing-mu"], rho_noise=2.0, **common))
    >>> [row.name for row in found.rows], found.same_budget, found.rows[1].clt.label
    (['noisy-sgd', 'growing-mu'], True, 'approximate')
    """
    given = dict(plans) if isinstance(plans, Mapping) else dict(zip(_plan_names(plans), plans, strict=True))
    if not given or len(given) > MOST_PLANS:
        raise InvalidValue(f"plans={len(given)} must be from 1 to {MOST_PLANS}. They stand side by side. Give some.")
    profile = Profile() if profile is None else profile
    rows = [_compare_plan(name, plan(one) if isinstance(one, Recipe) else one, profile) for name, one in given.items()]
    return Comparison(rows=tuple(rows), profile=profile)


def method_recipes(methods: Sequence[str], **common: Any) -> dict[str, Recipe]:
    """One recipe for each method, alike in all else; `common` as for `Recipe.of`. rho goes to the methods that need it.

    >>> common = dict(epsilon=1.2, dataset_size=60000, epochs=60)
    >>> found = method_recipes(["noisy-sgd", "dynamic"], rho_noise=3.3, rho_clip=3.3, **common)
    >>> found["noisy-sgd"].rho_noise, found["dynamic"].rho_noise
    (None, 3.3)
    """
    if isinstance(methods, str) or not methods:
        raise InvalidValue(f"methods={methods!r} must be a list of names. Give ['noisy-sgd', 'dynamic'], say.")
    rows = [method(name) for name in dict.fromkeys(methods)]
    rhos = {key: common.pop(key) for key in ("rho_noise", "rho_clip") if common.get(key) is not None}
    for key, value in rhos.items():
        if not any(key in row.needs for row in rows):
            raise InvalidValue(
                f"{key}={value!r} has no meaning for any of methods={', '.join(row.name for row in rows)}. Leave it "
                "out, or add dynamic."
            )
    return {
        row.name: Recipe.of(method=row.name, **common, **{key: rhos[key] for key in row.needs if key in rhos})
        for row in rows
    }


def _compare_plan(name: str, one: Plan, profile: Profile) -> Row:
    if not isinstance(one, Plan):
        raise InvalidValue(f"plans: {name}={one!r} must be a Plan or a Recipe. Use Plan.load or Recipe.load.")
    if one.is_unsound:
        return Row(name=name, plan=one, clt=None, renyi=None, utility=None)
    beside = {key: try_guarantee(one.ledger(), one.recipe.budget, accountant) for key, accountant in BESIDE.items()}
    return Row(name=name, plan=one, **beside, utility=utility(one, profile))


def _plan_names(plans: "Sequence[Plan | Recipe]") -> list[str]:
    """A name for each: the method, or `own shapes`; the second of a name gets a number."""
    names: list[str] = []
    for one in plans:
        recipe = one.recipe if isinstance(one, Plan) else one
        stem = getattr(recipe, "method", None) or "own shapes"
        stem += " as published" if getattr(recipe, "uncertified", False) else ""
        names.append(unique_name(stem, names))
    return names


def unique_name(stem: str, taken: "Sequence[str]") -> str:
    """`stem`, or `stem (2)` and so on if it is taken."""
    name, k = stem, 1
    while name in taken:
        k += 1
        name = f"{stem} ({k})"
    return name


def _row_budget(row: Row) -> Budget:
    """The plan's budget; what it costs, if epsilon was what it was asked for."""
    budget = row.plan.recipe.budget
    return replace(budget, epsilon=row.plan.guarantee.epsilon) if row.plan.recipe.solve == "epsilon" else budget


# --- noise swap -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A plan, and the plan with the same shapes and steps whose noise another accountant allows."""

    before: Plan
    after: Plan

    @property
    def accountant(self) -> str:
        """Who allows the noise of `after`."""
        return PricedRecipe(self.after.recipe).accountant

    @property
    def ratio(self) -> float:
        return self.after.peak_noise_multiplier / self.before.peak_noise_multiplier

    @property
    def excess(self) -> float | None:
        """How far the certified epsilon after is above the epsilon both share, as a share of it; 0 if it is not.

        None if nothing is certified.
        """
        after, shared = self.after, self.before.guarantee.epsilon
        if after.certified is None:
            return None
        if after.guarantee.label == "certified":
            return 0.0  # by its own proof, whatever the last digits of the other one
        return max(0.0, after.certified.epsilon / shared - 1)

    def as_dict(self) -> dict[str, Any]:
        proven = self.after.certified
        return {
            "accountant": self.accountant, "label": self.after.guarantee.label,
            "noise_multiplier": self.after.peak_noise_multiplier,
            "ratio": self.ratio, "guarantee": self.after.guarantee.as_dict(),
            "certified": None if proven is None else proven.as_dict(), "over_budget": self.excess,
        }  # fmt: skip


def swap(before: Plan, *, accountant: str) -> Swap:
    """The noise that `accountant` allows at the epsilon and delta of a plan, the shapes and steps unchanged.

    Source: Bu et al. 2019, eq. (7) and (8), for a constant noise and the central limit theorem; any accountant here.

    >>> moments = plan(delta=1e-5, dataset_size=60000, batch_size=256, epochs=20, noise_multiplier=1.3,
    ...                accountant="moments", solve="epsilon")
    >>> found = swap(moments, accountant="gdp")
    >>> round(moments.guarantee.epsilon, 2), round(found.after.peak_noise_multiplier, 2), found.after.guarantee.label
    (1.35, 1.06, 'approximate')
    """
    if before.is_unsound:
        raise Unsupported(
            f"method={before.recipe.method!r} as published has no noise to swap: no accountant covers its clipping "
            f"rule {before.rule!r}. Plan without uncertified."
        )
    if not before.guarantee.epsilon:
        raise NoSolution("epsilon=0 has no noise to swap: the plan costs nothing at its delta. Plan with less noise.")
    recipe, steps = before.recipe, before.steps  # the noise is to be found: what was solved for is now given
    by_rate = recipe.solve == "batch"
    asked = replace(
        recipe, budget=replace(recipe.budget, epsilon=before.guarantee.epsilon),
        noise_multiplier=recipe.noise_multiplier if isinstance(recipe.noise_multiplier, str) else None,
        batch_size=None if by_rate else recipe.batch_size,
        sample_rate=steps.sample_rate if by_rate else recipe.sample_rate, steps=steps.length, epochs=None,
        accountant=accountant,
        solve="noise",
    )  # fmt: skip
    return Swap(before=before, after=plan(asked))
