"""Rows that attack: what the update of one step gives away, by the attacks of `privet attack`."""

import time
from dataclasses import dataclass
from pathlib import Path

from privet.attacks.attack import attack
from privet.attacks.outcome import Outcome
from privet.attacks.sources import REFERENCE
from privet.data.files import Where
from privet.experiments.row import Figure, Row

VICTIMS, QUICK_VICTIMS = 100, 10
INVERTS, CHOOSES = "invert-l2", "prior"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The figures of a row, and how long its attacks took."""

    figures: dict[str, Figure]
    seconds: float


def attacked(row: Row, *, seed: int, folder: Path, where: Where | None = None, is_quick: bool = False) -> Tried:
    """The first step of a row's plan, attacked; of a row called non-private, the same step without privacy.

    Outcomes are kept in `folder`, and shared by the rows of a table: training without privacy is attacked once.
    """
    begun = time.monotonic()
    found = attack(
        row.plan(), row.task, attacks=[INVERTS, CHOOSES], seed=seed, out=folder, model=row.model, where=where,
        examples=QUICK_VICTIMS if is_quick else VICTIMS,
    )  # fmt: skip
    name = REFERENCE if row.name.endswith(REFERENCE) else "plan"
    figures = _figures(found.outcome(name, INVERTS), found.outcome(name, CHOOSES))
    return Tried(figures=figures, seconds=time.monotonic() - begun)


def _figures(inverted: Outcome, chosen: Outcome) -> dict[str, Figure]:
    """The paper's three, then what says more: success over noise alone, and identification beside its ceiling."""
    records = inverted.found.records
    values = {
        "iterations": inverted.iterations, "MSE < 0.70": inverted.found.paper / records, "MSE": inverted.found.mse,
        "SSIM": inverted.found.ssim, "success - control": inverted.difference,
        "identified": chosen.found.top1 / records, "ceiling of it": chosen.ceiling,
    }  # fmt: skip
    return {name: Figure(value=value) for name, value in values.items() if value is not None}
