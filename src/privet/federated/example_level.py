"""Where clients stand that protect their own records: what each has spent, by its own ledger; the worst, and all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from privet import _check
from privet._files import make_folder
from privet.accounting import Guarantee
from privet.accounting.guarantee import Label
from privet.errors import BudgetExceeded, InvalidValue
from privet.federated.settings import Losses
from privet.ledger import reading as ledger_reading
from privet.ledger.account import guarantee_of, mark_uncertified
from privet.ledger.file import LedgerFile
from privet.noise.randomness import Randomness
from privet.per_example.model_facts import trainable_parameters
from privet.planning import Plan, Recipe, plan as make_plan
from privet.planning.frontier import Extension, extend_rounds
from privet.training.run import PLAN, mark_guarantee, write_plan
from privet.training.training import Training

Row = Mapping[str, Any]  # epsilon, delta, label, steps, planned, left, why; None where it is not known
Standing = Mapping[int, Row]
WEAK = ("empirical", "claimed", "approximate")  # labels that prove nothing, the least first


def standing_row(spent: Guarantee | None, *, planned: float | None, left: int | None, why: str = "") -> dict[str, Any]:
    """Where a client stands, in plain values; `planned` is the epsilon of its whole plan."""
    figures = ("epsilon", "delta", "label", "steps")
    found = {name: None if spent is None else getattr(spent, name) for name in figures}
    return found | {"planned": planned, "left": left, "why": why}


def worst_row(standing: Standing) -> Row | None:
    """Where the client stands that has spent most; None if nobody has spent anything."""
    known = [row for row in standing.values() if row["epsilon"] is not None]
    return max(known, key=lambda row: float(row["epsilon"])) if known else None


def weakest_label(standing: Standing) -> Label:
    """The label of a figure that is said of all clients: certified if that of each is."""
    labels: dict[str, Label] = {row["label"]: row["label"] for row in standing.values() if row["epsilon"] is not None}
    return next((labels[name] for name in WEAK if name in labels), "certified")


def worst_guarantee(plan: Plan, standing: Standing) -> Guarantee | None:
    """The guarantee of the client that has spent most: it holds for the records of every client."""
    row = worst_row(standing)
    if row is None:
        return None
    return Guarantee(
        epsilon=row["epsilon"], epsilon_lower=None, delta=row["delta"], label=weakest_label(standing),
        steps=row["steps"], method="each client's own ledger, the worst", adjacency=plan.recipe.budget.adjacency,
        unit="example", sampling=str(plan.steps.sampling),
    )  # fmt: skip


def overall_guarantee(plan: Plan, standing: Standing) -> Guarantee:
    """What holds for the records of all clients, whenever they stop: the largest epsilon that one of them has planned.

    Clients of other sizes than the plan's have plans of their own, of the same recipe.
    """
    planned = [float(row["planned"]) for row in standing.values() if row["planned"] is not None]
    most = max([plan.guarantee.epsilon, *planned])
    if most == plan.guarantee.epsilon:
        return plan.guarantee
    return replace(plan.guarantee, epsilon=most, epsilon_lower=None)


def epsilon_distribution(standing: Standing) -> dict[str, float | int]:
    """How epsilon is spread over the clients: least, quartiles, most; how many took part, stopped, or refused."""
    known = [float(row["epsilon"]) for row in standing.values() if row["epsilon"] is not None]
    found: dict[str, float | int] = {
        "clients": len(known), "stopped": sum(row["left"] == 0 for row in standing.values()),
        "refused": sum(row["epsilon"] is None for row in standing.values()),
    }  # fmt: skip
    for name, at in (("least", 0.0), ("quarter", 0.25), ("median", 0.5), ("three quarters", 0.75), ("most", 1.0)):
        if known:
            found[name] = float(np.quantile(known, at, method="higher"))
    return found


def read_standings(
    folder: Path, plan: Plan, told: Mapping[str, Row], *, seeded: bool
) -> tuple[dict[int, dict[str, Any]], tuple[str, ...]]:
    """Where every client stands, by its own ledger where that lies in `folder`, else by what it told; and notes."""
    found = {int(client): dict(row) for client, row in told.items()}
    notes: list[str] = []
    for ledger in sorted((folder / "clients").glob(f"*/{ledger_reading.NAME}")):
        client, reading = int(ledger.parent.name), ledger_reading.read_ledger(ledger)
        notes += [f"client {client}: {note}" for note in reading.notes]
        made = reading.ledger.steps
        if made and (client not in found or (found[client]["steps"] or 0) < made):  # killed before it could tell
            own = Plan.load(ledger.parent / PLAN)
            spent = mark_guarantee(guarantee_of(reading.ledger, own), own, seeded=seeded)
            found[client] = standing_row(spent, planned=own.guarantee.epsilon, left=len(own.steps) - made)
    return found, tuple(notes)


class ExampleLevelClient:
    """The records of one client, with what it has spent of its plan in `folder`.

    Args:
        plan: for unit="example" and as many records as there are; it may be another for each client.
        data: its records.
        seed: makes it reproducible, and not private; `path` tells clients with one seed apart.

    >>> import tempfile, torch
    >>> p = make_plan(delta=1e-3, dataset_size=40, batch_size=8, steps=10, noise_multiplier=2.0, solve="epsilon")
    >>> x, y = torch.randn(40, 3), torch.randint(2, (40,))
    >>> model = nn.Linear(3, 2)
    >>> losses = lambda out, y: nn.functional.cross_entropy(out, y, reduction="none")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     client = ExampleLevelClient(folder + "/client", p, (x, y))
    ...     update = client.train_round(model, torch.optim.SGD(model.parameters(), lr=0.1), losses, steps=3)
    ...     client.made, client.left, client.spent().label
    (3, 7, 'certified')
    """

    def __init__(
        self, folder: str | Path, plan: Plan, data: Any, *, seed: int | None = None, path: tuple[int, ...] = ()
    ) -> None:
        if plan.recipe.budget.unit != "example":
            raise InvalidValue(
                f"unit={plan.recipe.budget.unit!r} of the plan must be 'example'. A client protects its own examples. "
                "Plan with --unit example."
            )
        self.folder, self.plan, self._data = Path(folder), plan, data
        self._seed, self._path = seed, path
        make_folder(self.folder)
        if not (self.folder / PLAN).exists():
            write_plan(self.folder, plan)
        self.made = self._charged_steps()

    @property
    def left(self) -> int:
        """Steps of the plan that are not charged."""
        return len(self.plan.steps) - self.made

    def train_round(self, model: nn.Module, optimizer: Optimizer, losses: Losses, *, steps: int) -> dict[str, Tensor]:
        """Private steps on its records from the model as it is; gives the update, and leaves the model moved.

        Fewer than `steps` are made if the plan has fewer left, and never more, whatever batches are empty: how many
        were made is told, and must not depend on the coins. They are charged on this client's disk, each before its
        noise is drawn, so a client that is killed goes on after what it had charged.
        """
        _check.whole(steps=steps)
        if not self.left:
            raise BudgetExceeded(
                f"steps={steps} are asked of a client whose plan is used up. More would exceed its budget. Continue "
                "without it, or plan more rounds for it."
            )
        before = {name: p.detach().clone() for name, p in trainable_parameters(model).items()}
        with self._open_training(model, optimizer) as training:
            for inputs, targets in training.until(min(len(training), training.steps_done + steps)):
                training.step(losses(model(inputs), targets))
            self.made = training.steps_done
        return {name: before[name] - p.detach() for name, p in trainable_parameters(model).items()}

    def spent(self) -> Guarantee:
        """What its ledger adds up to: the guarantee of its records for all that it has sent so far."""
        if not self.made:
            return self._mark_seeded(replace(self.plan.guarantee, epsilon=0.0, epsilon_lower=None, steps=0))
        return self._mark_seeded(_guarantee_after(self.plan, self.made))

    def outlook(self, rounds: Sequence[int], *, within: float | None = None) -> Extension:
        """What the client would have spent after so many steps more than planned: what it asks before it agrees."""
        return extend_rounds(self.plan, rounds, within=within)

    def _mark_seeded(self, guarantee: Guarantee) -> Guarantee:
        return guarantee if self._seed is None else mark_uncertified(guarantee, f"seed {self._seed}: not private")

    def _charged_steps(self) -> int:
        if not (self.folder / ledger_reading.NAME).exists():
            return 0
        found = ledger_reading.read_ledger(self.folder)
        if found.header.plan != self.plan.hash:
            raise InvalidValue(
                f"{self.folder}: its ledger belongs to another plan. Its cost would be computed with the wrong plan. "
                "Continue with its own plan and number of examples, or refuse."
            )
        return found.ledger.steps

    def _open_training(self, model: nn.Module, optimizer: Optimizer) -> Training:
        begun = (self.folder / ledger_reading.NAME).exists()
        ledger = LedgerFile.open(self.folder, self.plan) if begun else None
        try:
            source = Randomness(self._seed, *self._path, self.made)
            return Training(model, optimizer, self._data, self.plan, out=self.folder, ledger=ledger, randomness=source)
        except BaseException:
            if ledger is not None:
                ledger.close()
            raise


@lru_cache(maxsize=4096)
def client_plan(plan: Plan, size: int) -> Plan:
    """The plan of a client with `size` records: the same recipe and budget, its own rate and noise."""
    if size == plan.recipe.dataset_size:
        return plan
    given = {key: value for key, value in plan.recipe.as_dict().items() if value is not None}
    return make_plan(Recipe.of(**given | {"dataset_size": size}))


@lru_cache(maxsize=1024)
def _guarantee_after(plan: Plan, made: int) -> Guarantee:
    """The cost of the first steps of a plan, once for all clients that have it."""
    return guarantee_of(plan.ledger().first(made), plan)
