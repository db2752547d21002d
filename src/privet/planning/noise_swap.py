"""Noise swap: the noise that another accountant allows at the same epsilon and delta, and what is proven of it.

Bu et al. 2019 (section 3.2, Fig. 1) trade one accountant for another: at the (epsilon, delta) of the moments
accountant, the central limit theorem allows less noise. What that noise really costs, the certified accountant says.
"""

from dataclasses import dataclass, replace
from typing import Any

from privet.errors import NoSolution, Unsupported
from privet.planning.plan import Plan, plan
from privet.planning.pricing import PricedRecipe


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
        return self.after.scale / self.before.scale

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
            "accountant": self.accountant, "label": self.after.guarantee.label, "noise": self.after.scale,
            "ratio": self.ratio, "guarantee": self.after.guarantee.as_dict(),
            "certified": None if proven is None else proven.as_dict(), "over_budget": self.excess,
        }  # fmt: skip


def swap(before: Plan, *, accountant: str) -> Swap:
    """The noise that `accountant` allows at the epsilon and delta of a plan, the shapes and steps unchanged.

    Source: Bu et al. 2019, eq. (7) and (8), for a constant noise and the central limit theorem; any accountant here.

    >>> moments = plan(delta=1e-5, size=60000, batch=256, epochs=20, noise=1.3, accountant="moments", solve="epsilon")
    >>> found = swap(moments, accountant="gdp")
    >>> round(moments.guarantee.epsilon, 2), round(found.after.scale, 2), found.after.guarantee.label
    (1.35, 1.06, 'approximate')
    """
    if before.is_unsound:
        raise Unsupported(
            f"method={before.recipe.method!r} as published has no noise to swap: no accountant covers its clipping "
            f"rule {before.rule!r}. Plan without as_published."
        )
    if not before.guarantee.epsilon:
        raise NoSolution("epsilon=0 has no noise to swap: the plan costs nothing at its delta. Plan with less noise.")
    recipe, steps = before.recipe, before.steps  # the noise is to be found: what was solved for is now given
    by_rate = recipe.solve == "batch"
    asked = replace(
        recipe, budget=replace(recipe.budget, epsilon=before.guarantee.epsilon),
        noise=recipe.noise if isinstance(recipe.noise, str) else None, batch=None if by_rate else recipe.batch,
        rate=steps.rate if by_rate else recipe.rate, steps=steps.length, epochs=None, accountant=accountant,
        solve="noise",
    )  # fmt: skip
    return Swap(before=before, after=plan(asked))
