"""Where clients stand that protect their own records: what each has spent, by its own ledger; the worst, and all."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privet.accounting import Guarantee
from privet.accounting.guarantee import Label
from privet.planning import Plan
from privet.training import ledger_reading
from privet.training.account import cost
from privet.training.run import PLAN, marked

Row = Mapping[str, Any]  # epsilon, delta, label, steps, planned, left, why; None where it is not known
Standing = Mapping[int, Row]
WEAK = ("empirical", "claimed", "approximate")  # labels that prove nothing, the least first


def row_of(spent: Guarantee | None, *, planned: float | None, left: int | None, why: str = "") -> dict[str, Any]:
    """Where a client stands, in plain values; `planned` is the epsilon of its whole plan."""
    figures = ("epsilon", "delta", "label", "steps")
    found = {name: None if spent is None else getattr(spent, name) for name in figures}
    return found | {"planned": planned, "left": left, "why": why}


def worst(standing: Standing) -> Row | None:
    """Where the client stands that has spent most; None if nobody has spent anything.

    >>> worst({0: {"epsilon": 1.0}, 1: {"epsilon": 2.0}, 2: {"epsilon": None}})
    {'epsilon': 2.0}
    """
    known = [row for row in standing.values() if row["epsilon"] is not None]
    return max(known, key=lambda row: float(row["epsilon"])) if known else None


def weakest(standing: Standing) -> Label:
    """The label of a figure that is said of all clients: certified if that of each is.

    >>> weakest({0: {"epsilon": 2.0, "label": "certified"}, 1: {"epsilon": 1.0, "label": "claimed"}})
    'claimed'
    """
    labels: dict[str, Label] = {row["label"]: row["label"] for row in standing.values() if row["epsilon"] is not None}
    return next((labels[name] for name in WEAK if name in labels), "certified")


def worst_of(plan: Plan, standing: Standing) -> Guarantee | None:
    """The guarantee of the client that has spent most: it holds for the records of every client."""
    row = worst(standing)
    if row is None:
        return None
    return Guarantee(
        epsilon=row["epsilon"], epsilon_lower=None, delta=row["delta"], label=weakest(standing), steps=row["steps"],
        method="each client's own ledger, the worst", relation=plan.recipe.budget.relation, unit="example",
        sampling=str(plan.steps.sampling),
    )  # fmt: skip


def held(plan: Plan, standing: Standing) -> Guarantee:
    """What holds for the records of all clients, whenever they stop: the largest epsilon that one of them has planned.

    Clients of other sizes than the plan's have plans of their own, of the same recipe.
    """
    planned = [float(row["planned"]) for row in standing.values() if row["planned"] is not None]
    most = max([plan.guarantee.epsilon, *planned])
    if most == plan.guarantee.epsilon:
        return plan.guarantee
    return replace(plan.guarantee, epsilon=most, epsilon_lower=None)


def distribution(standing: Standing) -> dict[str, float | int]:
    """How epsilon is spread over the clients: least, quartiles, most; how many took part, stopped, or refused.

    >>> rows = {k: {"epsilon": 1.0 + k, "left": k, "why": ""} for k in range(5)}
    >>> distribution(rows)["median"], distribution(rows)["stopped"]
    (3.0, 1)
    """
    known = [float(row["epsilon"]) for row in standing.values() if row["epsilon"] is not None]
    found: dict[str, float | int] = {
        "clients": len(known), "stopped": sum(row["left"] == 0 for row in standing.values()),
        "refused": sum(row["epsilon"] is None for row in standing.values()),
    }  # fmt: skip
    for name, at in (("least", 0.0), ("quarter", 0.25), ("median", 0.5), ("three quarters", 0.75), ("most", 1.0)):
        if known:
            found[name] = float(np.quantile(known, at, method="higher"))
    return found


def standing_in(
    folder: Path, plan: Plan, told: Mapping[str, Row], *, seeded: bool
) -> tuple[dict[int, dict[str, Any]], tuple[str, ...]]:
    """Where every client stands, by its own ledger where that lies in `folder`, else by what it told; and notes."""
    found = {int(client): dict(row) for client, row in told.items()}
    notes: list[str] = []
    for ledger in sorted((folder / "clients").glob(f"*/{ledger_reading.NAME}")):
        client, reading = int(ledger.parent.name), ledger_reading.read(ledger)
        notes += [f"client {client}: {note}" for note in reading.notes]
        made = reading.ledger.steps
        if made and (client not in found or (found[client]["steps"] or 0) < made):  # killed before it could tell
            own = Plan.load(ledger.parent / PLAN)
            spent = marked(cost(reading.ledger, own), own, seeded=seeded)
            found[client] = row_of(spent, planned=own.guarantee.epsilon, left=len(own.steps) - made)
    return found, tuple(notes)
