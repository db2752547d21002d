"""Lines that several papers draw: epsilon over a run, and what an attacker can achieve."""

from functools import partial
from typing import Literal

import numpy as np

from privet.accounting import epsilon_curve
from privet.accounting.tradeoff import Gaussian, Tradeoff, tradeoff
from privet.experiments.row import Curve, Row

POINTS = 60  # of epsilon over a run
ERRORS = 101  # of a trade-off curve


def spending(row: Row, accountant: str = "pld", unit: Literal["step", "epoch"] = "step") -> Curve:
    """Epsilon at the row's delta after each part of its plan, by an accountant.

    >>> from privet.experiments.papers import rows_of
    >>> found = spending(rows_of("bu2019:fig4-epsilon")[0], "gdp", "epoch")
    >>> round(found.x[-1]), round(found.y[-1], 2), found.label
    (20, 0.98, 'approximate')
    """
    plan = row.plan()
    budget = plan.recipe.budget
    found = epsilon_curve(plan.ledger(), budget.delta, accountant=accountant, points=POINTS, relation=budget.relation)
    places = found.steps * (plan.steps[0].rate if unit == "epoch" else 1.0)
    return Curve(x=tuple(places.tolist()), y=tuple(found.upper.tolist()), label=found.label)


def over_steps(accountant: str = "pld") -> partial[Curve]:
    """`spending` by an accountant, as the `curve` of a row."""
    return partial(spending, accountant=accountant)


def over_epochs(accountant: str = "pld") -> partial[Curve]:
    """The same, against epochs."""
    return partial(spending, accountant=accountant, unit="epoch")


def errors(curve: "Tradeoff | Gaussian") -> Curve:
    """The least type II error at each type I error, evenly spaced."""
    alpha = np.linspace(0, 1, ERRORS)
    return Curve(x=tuple(alpha.tolist()), y=tuple(curve(alpha).tolist()), label=curve.label)


def attacker(row: Row, accountant: str = "pld") -> Curve:
    """What an attacker can achieve against the row's plan, by `pld` or `gdp`."""
    return errors(tradeoff(row.plan().ledger(), accountant=accountant))
