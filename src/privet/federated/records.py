"""A client that protects its own records: its own plan and ledger on its own disk, kept across rounds and restarts.

Nobody need be trusted with it: what leaves the client is private already. The client decides whether it takes part.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from privet import _check
from privet.accounting import Guarantee
from privet.engine.knowledge import trainable
from privet.engine.randomness import Randomness
from privet.errors import BudgetExceeded, InvalidValue
from privet.federated.local import Losses
from privet.planning import Plan, Recipe
from privet.planning import plan as make_plan
from privet.planning.more import Outlook, more
from privet.training import ledger_reading
from privet.training.account import cost, without_proof
from privet.training.append_file import make_folder
from privet.training.ledger_file import LedgerFile
from privet.training.run import PLAN, write_plan
from privet.training.steps import Training


class RecordClient:
    """The records of one client, with what it has spent of its plan in `folder`.

    Args:
        plan: for unit="example" and as many records as there are; it may be another for each client.
        data: its records.
        seed: makes it reproducible, and not private; `path` tells clients with one seed apart.

    >>> import tempfile, torch
    >>> p = make_plan(delta=1e-3, size=40, batch=8, steps=10, noise=2.0, solve="epsilon")
    >>> x, y = torch.randn(40, 3), torch.randint(2, (40,))
    >>> model = nn.Linear(3, 2)
    >>> losses = lambda out, y: nn.functional.cross_entropy(out, y, reduction="none")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     client = RecordClient(folder + "/client", p, (x, y))
    ...     update = client.round(model, torch.optim.SGD(model.parameters(), lr=0.1), losses, steps=3)
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
        kept = self.folder / PLAN
        if not kept.exists():
            write_plan(self.folder, plan)
        self.made = self._charged()

    @property
    def left(self) -> int:
        """Steps of the plan that are not charged."""
        return len(self.plan.steps) - self.made

    def round(self, model: nn.Module, optimizer: Optimizer, losses: Losses, *, steps: int) -> dict[str, Tensor]:
        """Private steps on its records from the model as it is; gives the update, and leaves the model moved.

        Fewer than `steps` are made if the plan has fewer left, and never more, whatever batches are empty: how many
        were made is told, and must not depend on the coins. They are charged on this client's disk, each before its
        noise is drawn, so a client that is killed goes on after what it had charged.

        Raises:
            BudgetExceeded: the plan is spent; the client takes no part any more.
        """
        _check.whole(steps=steps)
        if not self.left:
            raise BudgetExceeded(
                f"steps={steps} are asked of a client whose plan is used up. More would exceed its budget. Continue "
                "without it, or plan more rounds for it."
            )
        before = {name: p.detach().clone() for name, p in trainable(model).items()}
        with self._training(model, optimizer) as training:
            for inputs, targets in training.upto(min(len(training), training.number + steps)):
                training.step(losses(model(inputs), targets))
            self.made = training.number
        return {name: before[name] - p.detach() for name, p in trainable(model).items()}

    def spent(self) -> Guarantee:
        """What its ledger adds up to: the guarantee of its records for all that it has sent so far."""
        if not self.made:
            return self._marked(replace(self.plan.guarantee, epsilon=0.0, epsilon_lower=None, steps=0))
        return self._marked(_priced(self.plan, self.made))

    def outlook(self, rounds: Sequence[int], *, within: float | None = None) -> Outlook:
        """What the client would have spent after so many steps more than planned: what it asks before it agrees."""
        return more(self.plan, rounds, within=within)

    def _marked(self, guarantee: Guarantee) -> Guarantee:
        return guarantee if self._seed is None else without_proof(guarantee, f"seed {self._seed}: not private")

    def _charged(self) -> int:
        if not (self.folder / ledger_reading.NAME).exists():
            return 0
        found = ledger_reading.read(self.folder)
        if found.header.plan != self.plan.hash:
            raise InvalidValue(
                f"{self.folder}: its ledger belongs to another plan. Its cost would be computed with the wrong plan. "
                "Continue with its own plan and number of examples, or refuse."
            )
        return found.ledger.steps

    def _training(self, model: nn.Module, optimizer: Optimizer) -> Training:
        begun = (self.folder / ledger_reading.NAME).exists()
        ledger = LedgerFile.open(self.folder, self.plan) if begun else None
        try:
            source = Randomness() if self._seed is None else Randomness(self._seed, *self._path, self.made)
            return Training(model, optimizer, self._data, self.plan, out=self.folder, ledger=ledger, generator=source)
        except BaseException:
            if ledger is not None:
                ledger.close()
            raise


def plan_for(plan: Plan, size: int) -> Plan:
    """The plan of a client with `size` records: the same recipe and budget, its own rate and noise.

    >>> p = make_plan(epsilon=2.0, delta=1e-3, size=100, batch=10, steps=20)
    >>> q = plan_for(p, 50)
    >>> q.recipe.size, q.guarantee.epsilon <= 2.0, q.steps[0].noise > p.steps[0].noise
    (50, True, True)

    Raises:
        NoSolution: the budget cannot be met with so few records.
    """
    return plan if size == plan.recipe.size else _planned(plan, size)


@lru_cache(maxsize=4096)
def _planned(plan: Plan, size: int) -> Plan:
    given = {key: value for key, value in plan.recipe.as_dict().items() if value is not None}
    return make_plan(Recipe.of(**given | {"size": size}))


@lru_cache(maxsize=1024)
def _priced(plan: Plan, made: int) -> Guarantee:
    """The cost of the first steps of a plan, once for all clients that have it."""
    return cost(plan.ledger().first(made), plan)
