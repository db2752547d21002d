"""Rows that federate: the plan's units are clients, and its rounds are made by `privet.federated` in one process."""

from pathlib import Path

from privet.data.files import Where
from privet.data.task import Task
from privet.experiments import results
from privet.experiments.row import Row
from privet.federated import federate, go_on
from privet.federated.federate import Federated
from privet.federated.settings import NAME as ABOUT
from privet.training.account import cost
from privet.training.ledger_reading import read


def federated(row: Row, task: Task | None, folder: Path, *, seed: int, where: Where | None) -> Federated:
    """The row's federation in a folder of its own, begun or gone on with.

    Raises:
        KeyboardInterrupt: it was asked to stop.
    """
    if (folder / ABOUT).exists():
        found = go_on(folder, task=task, where=where)
    else:
        found = federate(
            row.plan(), row.task if task is None else task, out=folder, seed=seed, where=where, model=row.model,
            clients=row.recipe["size"], **row.training,
        )  # fmt: skip
    if not found.is_over:
        raise KeyboardInterrupt
    return found


def proven(found: Federated) -> tuple[float | None, float] | None:
    """What is certified of the rounds that were made, with the system's randomness in place of the seed's."""
    return results.proven(cost(read(found.folder).ledger, found.plan))
