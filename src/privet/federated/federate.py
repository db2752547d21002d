"""Federated training of a plan on a task, all clients in this process: from the first round to a folder on disk.

found = federate(plan, clients=100, out="runs/f", task="mnist")
found = go_on("runs/f")                                # after a stop or a crash

runs/f/plan.json, federation.json        what was to be done
runs/f/ledger.jsonl                      client-level privacy: what the server has spent
runs/f/clients/00007/                    record-level privacy: the plan and the ledger of each client
runs/f/checkpoint.safetensors, metrics.jsonl
"""

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from privet._files import make_folder
from privet.accounting import Guarantee
from privet.data.files import DataFolders
from privet.data.task import Task, task as task_of
from privet.errors import InvalidValue
from privet.federated import settings as description
from privet.federated.clients import ClientPool, InProcess, Worker
from privet.federated.example_level import Standing, overall_guarantee, read_standings, worst_guarantee
from privet.federated.loop import FederatedLoop, Records, Tell, check_rounds
from privet.federated.partition import partition
from privet.federated.server import Server, resume
from privet.federated.settings import Settings
from privet.ledger import reading as ledger_reading
from privet.ledger.account import guarantee_of
from privet.ledger.total import refuse_within
from privet.noise.randomness import Randomness
from privet.planning import Plan
from privet.training import checkpoint, checkpoint_format, metrics
from privet.training.checks import check_preprocessing
from privet.training.evaluation import catch_interrupts
from privet.training.run import PLAN, mark_guarantee, write_plan
from privet.training.settings import Settings as Optimizing
from privet.training.setup import build_optimizer, check_sound, seed_torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Federated:
    """A federation as it lies in its folder.

    `guarantee` is what holds wherever it was stopped: the plan's. `spent` is what was charged by now: of the server's
    ledger, or of the client that has spent most; then `standing` has every client.
    """

    folder: Path
    plan: Plan
    settings: Settings
    rounds: int  # charged (client-level), or over (record-level)
    planned: int
    guarantee: Guarantee
    spent: Guarantee | None
    standing: Standing
    metrics: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    seed: int | None

    @property
    def is_over(self) -> bool:
        return self.rounds >= (self.settings.rounds or self.planned)

    @property
    def scores(self) -> dict[str, Any] | None:
        found = metrics.evaluation_lines(self.metrics)
        return found[-1] if found else None

    @classmethod
    def load(cls, folder: str | Path) -> "Federated":
        """The federation in a folder, going on or not."""
        place = Path(folder)
        chosen, about = description.read(place)
        plan = Plan.load(place / PLAN)
        seed, seeded = about["seed"], about["seed"] is not None
        spent, standing, held = None, dict[int, dict[str, Any]](), plan.guarantee
        if plan.recipe.budget.unit == "client":
            reading = ledger_reading.read_ledger(place)
            rounds, notes = reading.ledger.steps, reading.notes
            if rounds:
                spent = mark_guarantee(guarantee_of(reading.ledger, plan), plan, seeded=seeded)
        else:
            kept = _checkpoint_extra(place)
            standing, notes = read_standings(place, plan, kept["standing"], seeded=seeded)
            rounds, spent, held = int(kept["round"]), worst_guarantee(plan, standing), overall_guarantee(plan, standing)
        return cls(
            folder=place, plan=plan, settings=chosen, metrics=metrics.read(place), seed=seed, rounds=rounds,
            planned=planned_rounds(plan, chosen), guarantee=mark_guarantee(held, plan, seeded=seeded), spent=spent,
            standing=standing, notes=notes,
        )  # fmt: skip


def federate(
    plan: Plan, task: "str | Task | None" = None, *, out: str | Path, seed: int | None = None,
    where: DataFolders | None = None, tell: Tell = lambda line: None, pool: ClientPool | None = None, **settings: Any,
) -> Federated:  # fmt: skip
    """A federation in a folder of its own; its clients are simulated, or those of `pool`. `settings`: see `Settings`.

    With unit="client" in the plan, its size and batch count clients: the server samples, clips, adds noise. With
    unit="example" each client spends the same recipe on its own records, with its own plan and ledger.

    >>> import tempfile, torch
    >>> from privet import plan
    >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
    >>> own = Task(name="own", train=(x, y), held_out=(x, y), evaluation="made up", model=lambda: nn.Linear(3, 2))
    >>> p = plan(epsilon=4.0, delta=1e-2, dataset_size=20, batch_size=5, steps=3, unit="client")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = federate(p, own, out=folder + "/f", clients=20)
    >>> found.rounds, found.is_over, found.guarantee.unit, found.guarantee.label
    (3, True, 'client', 'certified')

    Raises:
        InvalidValue: the folder is in use, the plan is not for so many clients, or a setting does not fit.
    """
    folder = Path(out)
    check_sound(plan, uncertified=False)
    refuse_within(folder, "a federation")
    _check_unit(plan)
    description.check_read(settings, plan.recipe.budget.unit)
    given = {**settings, "task": task.name if isinstance(task, Task) else task}
    chosen = Settings.of(given)
    _check_training(plan, None if isinstance(task, Task) else chosen.task)
    check_rounds(chosen, plan.guarantee, planned_rounds(plan, chosen))
    loaded = task_of(chosen.task if task is None else task, where=where)
    _check_new(folder)
    weights_seed = secrets.randbits(48) if seed is None else seed
    parts = _Parts(plan, loaded, chosen, weights_seed=weights_seed, seed=seed, folder=folder, pool=pool)
    server = parts.new_server()
    write_plan(folder, plan)
    description.write(folder, chosen, weights_seed=weights_seed, seed=seed, own_task=isinstance(task, Task))
    return parts.run_rounds(server, tell=tell)


def resume_federation(
    out: str | Path, *, task: Task | None = None, rounds: int | None = None, where: DataFolders | None = None,
    tell: Tell = lambda line: None, pool: ClientPool | None = None,
) -> Federated:  # fmt: skip
    """The federation in a folder, at the next round of its ledger, with the weights of its last checkpoint.

    Args:
        task: the object that it began with, if it was given as one.
        rounds: make so many in all; the plan must pay for them.
    """
    found = Federated.load(out)
    chosen, about = description.read(found.folder)
    if rounds is not None:
        chosen = Settings.of({**asdict(chosen), "rounds": rounds})
        check_rounds(chosen, found.plan.guarantee, found.planned)
    elif found.is_over:
        return found
    if task is None and about.get("own_task"):
        raise InvalidValue(
            f"{out}: task={chosen.task!r} was given as an object. It cannot be rebuilt from a file. Give it."
        )
    loaded = task_of(chosen.task if task is None else task, where=where)
    parts = _Parts(
        found.plan, loaded, chosen, weights_seed=about["weights_seed"], seed=found.seed, folder=found.folder,
        pool=pool,
    )  # fmt: skip
    server, weights_of = parts.resume_server(found.rounds)
    if rounds is not None:
        description.write(found.folder, chosen, **{k: about[k] for k in ("weights_seed", "seed", "own_task")})
    return parts.run_rounds(server, tell=tell, weights_of=weights_of)


class _Parts:
    """What a federation needs beside the ledgers."""

    def __init__(
        self, plan: Plan, task: Task, settings: Settings, *, weights_seed: int, seed: int | None, folder: Path,
        pool: ClientPool | None,
    ) -> None:  # fmt: skip
        check_preprocessing(task.non_private_preprocessing)
        self.plan, self.task, self.settings, self.folder, self.seed = plan, task, settings, folder, seed
        with seed_torch(weights_seed):
            self.model: nn.Module = task.network(settings.model)
        self.optimizer: Optimizer = server_optimizer(settings, plan, self.model)
        if pool is None:
            cut = partition(task, settings.clients, way=settings.split, seed=settings.split_seed)
            worker = Worker(plan=plan, settings=settings, losses=task.losses, seed=seed)
            pool = InProcess(worker, task, cut, folder)
        self.pool: ClientPool = pool
        self.until = check_rounds(settings, plan.guarantee, planned_rounds(plan, settings))

    @property
    def by_client(self) -> bool:
        return self.plan.recipe.budget.unit == "client"

    def new_server(self) -> "Server | Records":
        if not self.by_client:
            make_folder(self.folder)
            return self._example_level_server(0, {})
        return Server(
            self.model, self.optimizer, self.plan, clients=self.settings.clients, out=self.folder,
            randomness=Randomness(self.seed, 0, 0),
        )  # fmt: skip

    def resume_server(self, rounds: int) -> "tuple[Server | Records, int]":
        kept = _checkpoint_extra(self.folder)
        if self.by_client:
            server, _ = resume(
                self.model, self.optimizer, self.plan, clients=self.settings.clients, out=self.folder,
                randomness=Randomness(self.seed, 0, rounds),
            )  # fmt: skip
            return server, int(kept["round"])
        if (self.folder / checkpoint_format.NAME).exists():
            checkpoint.load(self.folder, model=self.model, optimizer=self.optimizer)
        standing, _ = read_standings(self.folder, self.plan, kept["standing"], seeded=self.seed is not None)
        return self._example_level_server(int(kept["round"]), standing), int(kept["round"])

    def _example_level_server(self, number: int, standing: dict[int, dict[str, Any]]) -> Records:
        return Records(
            model=self.model, optimizer=self.optimizer, sample=self.settings.sample, clients=self.settings.clients,
            seed=self.seed, steps_done=number, standing=standing, sizes=self.pool.sizes,
        )  # fmt: skip

    def run_rounds(self, server: "Server | Records", *, tell: Tell, weights_of: int | None = None) -> Federated:
        """All rounds, then the federation as it lies in its folder."""
        try:
            with catch_interrupts() as interrupt:
                rounds = FederatedLoop(
                    server, self.pool, self.task, self.settings, folder=self.folder, until=self.until, tell=tell,
                    stop=lambda: interrupt.asked,
                )  # fmt: skip
                if weights_of is not None:
                    rounds.record_resume(weights_of)
                rounds.run()
        finally:
            if isinstance(server, Server):
                server.close()
        return Federated.load(self.folder)


def server_optimizer(settings: Settings, plan: Plan, model: nn.Module) -> Optimizer:
    """The server's optimizer: SGD without momentum at rate 1 is FedAvg; momentum and Adam are FedAvgM and FedAdam."""
    momentum = settings.momentum or None  # 0 is none, also for optimizers that know no momentum
    if momentum is None and settings.optimizer == "sgd":
        momentum = 0.0
    chosen = Optimizing.of({"optimizer": settings.optimizer, "lr": settings.server_lr, "momentum": momentum})
    return build_optimizer(chosen, plan, model)


def planned_rounds(plan: Plan, settings: Settings) -> int:
    """The rounds that a plan pays for: a step each, or `local_steps` of each client where records are protected."""
    steps = len(plan.steps)
    return steps if plan.recipe.budget.unit == "client" else -(-steps // settings.local_steps)


def _checkpoint_extra(folder: Path) -> Mapping[str, Any]:
    """What the last checkpoint says beside the weights; what a new federation would say, if there is none."""
    begun = {"round": 0, "standing": dict[str, Any]()}
    return checkpoint.peek(folder).extra if (folder / checkpoint_format.NAME).exists() else begun


def _check_unit(plan: Plan) -> None:
    if plan.recipe.budget.unit == "user":
        raise InvalidValue(
            "unit='user' of the plan does not apply here. A federation protects clients or their examples. Plan with "
            "--unit client and --split user, where each user is a client; or with --unit example."
        )


def _check_training(plan: Plan, task: str | None) -> None:
    """Raise if the plan's [training] table asks for what a federation would pass over."""
    table = plan.recipe.training
    if "weights" in table:
        raise InvalidValue(
            f"training.weights={table['weights']!r} of the plan does not apply to a federation. It starts from random "
            "weights, all of which are trained. Plan without it."
        )
    if task is not None and table.get("task", task) != task:
        raise InvalidValue(
            f"task={task!r} is not training.task={table['task']!r} of the plan. The plan may be for another dataset. "
            "Give that one, or plan again."
        )


def _check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidValue(
            f"out={str(folder)!r} is not an empty folder. A federation needs its own folder. Resume it by `privet "
            f"federate --resume {folder}`, or choose another."
        )
