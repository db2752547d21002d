"""The privacy figures of a row: what each accountant that its paper prints says of the recipe."""

from privet.accounting import gdp, spent
from privet.experiments.row import Figure, Row
from privet.planning import Plan


def accounted(row: Row) -> dict[str, Figure]:
    """The privacy figures of a row, by name: `<accountant> epsilon` and `gdp mu` of its steps, and its own.

    The papers that use the central limit theorem do not round the number of steps; nor is it rounded here.

    >>> from privet.experiments.papers import rows_of
    >>> found = accounted(rows_of("bu2019:table1")[0])
    >>> {name: round(figure.value, 2) for name, figure in found.items()}
    {'gdp mu': 0.23, 'gdp epsilon': 0.83, 'moments epsilon': 1.19, 'pld epsilon': 0.86}
    """
    wanted = list(filter(is_accounted, row.published))
    own = {} if row.figures is None else dict(row.figures(row))
    wanted = [name for name in wanted if name not in own]
    if not wanted:
        return own
    plan = row.plan()
    found = {name: _accounted(plan, name) for name in dict.fromkeys([*wanted, "pld epsilon"])}
    return found | own


def is_accounted(name: str) -> bool:
    """Whether a figure of that name is a reading of the steps."""
    return name.endswith((" epsilon", " mu"))


def _accounted(plan: Plan, name: str) -> Figure:
    accountant, what = name.rsplit(" ", 1)
    recipe, ledger = plan.recipe, plan.ledger()
    if accountant == "claimed":
        return Figure(value=plan.guarantee.epsilon, label=plan.guarantee.label)
    if accountant == "gdp":
        mu = gdp.extended_clt_mu(ledger)
        if plan.steps.is_constant and recipe.epochs is not None and recipe.base_rate is not None:
            mu = gdp.clt_mu(noise=plan.steps[0].noise, rate=recipe.base_rate, steps=recipe.epochs / recipe.base_rate)
        if what == "mu":
            return Figure(value=mu)
        return Figure(value=gdp.epsilon_of_mu(mu, recipe.budget.delta), label="approximate")
    found = spent(ledger, recipe.budget.delta, accountant=accountant, relation=recipe.budget.relation)
    return Figure(value=found.epsilon, label=found.label)
