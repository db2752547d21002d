"""The rounds of a federation: ask, aggregate, evaluate, save; the same over any pool."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from privet import _check
from privet.accounting import Guarantee
from privet.data.task import Task
from privet.errors import InvalidValue
from privet.federated.clients import ClientPool, ClientReply
from privet.federated.clipped_updates import Update, average_updates, log_dropout, usable_updates
from privet.federated.example_level import standing_row, weakest_label, worst_row
from privet.federated.server import Server, apply_update, save
from privet.federated.settings import Settings
from privet.noise.randomness import Randomness
from privet.per_example.model_facts import trainable_parameters
from privet.sampling.samplers import poisson_indices
from privet.training import checkpoint
from privet.training.evaluation import evaluate
from privet.training.metrics import Metrics

Stop = Callable[[], bool]  # whether somebody asked to stop after the round
Tell = Callable[[Mapping[str, Any]], None]  # who is told of a line of the metrics
EVALUATIONS = 20
SAVE_SECONDS = 10.0


@dataclass(slots=True, kw_only=True, eq=False)
class Records:
    """The server of record-level privacy. It adds no noise and keeps no ledger: what it gets is private already.

    It asks each client with the public chance `sample`, and averages what comes back, by the public `sizes` that the
    clients registered with, or all alike where it knows none: what a client says of itself gives it no weight. No
    amplification is claimed from asking only some: every client charges itself for each step that it makes.
    """

    model: nn.Module
    optimizer: Optimizer
    sample: float
    clients: int
    seed: int | None = None
    steps_done: int = 0  # rounds that are over
    standing: dict[int, dict[str, Any]]  # by client: epsilon, label, steps, left
    sizes: Sequence[int] | None = None  # public, by client

    def __post_init__(self) -> None:
        if self.sizes is None:
            return
        if len(self.sizes) != self.clients:
            raise InvalidValue(
                f"sizes has {len(self.sizes)} numbers and must have {self.clients}, one for each client. They are the "
                "weights of the average. Give the number of examples that each registered, or leave it out."
            )
        for size in self.sizes:
            _check.whole(least=0, sizes=size)

    def choose_clients(self) -> list[int]:
        """The clients of the next round; one that said that its plan is spent is not asked again."""
        source = Randomness(self.seed, 3, self.steps_done)
        found: list[int] = poisson_indices(self.clients, self.sample, source.numpy_generator()).tolist()
        return [client for client in found if self.standing.get(client, {}).get("left") != 0]

    def step(self, answers: Iterable[ClientReply]) -> None:
        """The optimizer's step along the average of the updates; who sends none that can be used adds nothing."""
        named = trainable_parameters(self.model)
        kept = [
            ((1 if self.sizes is None else self.sizes[client]), update) for client,
            update in usable_updates(self._accept_answers(answers), named, number=self.steps_done)
        ]  # fmt: skip
        if sum(weight for weight, _ in kept) > 0:
            average = average_updates(kept, named)
            if all(bool(value.isfinite().all()) for value in average.values()):
                apply_update(self.optimizer, named, average)
        self.steps_done += 1

    def _accept_answers(self, answers: Iterable[ClientReply]) -> Iterator[tuple[int, Update]]:
        """What each client sent, once, and only with word of what it has spent."""
        seen: set[int] = set()
        for answer in answers:
            if answer.client in seen or not 0 <= answer.client < self.clients:
                log_dropout(self.steps_done, answer.client, "it has answered twice, or was not asked")
                continue
            seen.add(answer.client)
            self._record_answer(answer)
            if answer.update is None:
                continue
            if answer.spent is None:  # of a client with a plan of another unit: no noise is on it, and none will be
                log_dropout(self.steps_done, answer.client, "its update has no noise: its plan is of another unit")
                continue
            yield answer.client, answer.update

    def _record_answer(self, answer: ClientReply) -> None:
        row = standing_row(answer.spent, planned=answer.planned, left=answer.left, why=answer.why)
        before = self.standing.get(answer.client, {})
        if (before.get("epsilon") or 0.0) > (row["epsilon"] or 0.0):  # it refuses, or has forgotten: spent is spent
            row |= {key: before[key] for key in ("epsilon", "delta", "label", "steps", "planned")}
        self.standing[answer.client] = row


class FederatedLoop:
    """A federation on its way: `go` makes the rounds until `until`, and leaves metrics and a checkpoint behind."""

    def __init__(
        self, server: "Server | Records", pool: ClientPool, task: Task, settings: Settings, *, folder: Path,
        until: int, stop: Stop = lambda: False, tell: Tell = lambda line: None,
    ) -> None:  # fmt: skip
        self._server, self._pool, self._task, self._settings = server, pool, task, settings
        self._folder, self._until, self._stop, self._tell = folder, until, stop, tell
        self._every = settings.evaluate_every or math.ceil(until / EVALUATIONS)
        self._saved = -math.inf
        self._start = time.monotonic()
        self._metrics = Metrics(folder)

    def run(self) -> None:
        try:
            server = self._server
            if server.steps_done < self._until:
                self._run_client_rounds(server) if isinstance(server, Server) else self._run_example_rounds(server)
            self._save()
        finally:
            self._metrics.close()

    def record_resume(self, weights_of: int) -> None:
        self._metrics.add({"step": self._server.steps_done, "event": "resumed", "weights_of": weights_of})

    def _run_client_rounds(self, server: Server) -> None:
        for chosen in server:
            asked = self._pool.ask(server.steps_done - 1, chosen, server.model)
            server.step((answer.client, answer.update) for answer in asked if answer.update is not None)
            if self._is_over():
                break

    def _run_example_rounds(self, server: Records) -> None:
        while True:
            server.step(self._pool.ask(server.steps_done, server.choose_clients(), server.model))
            if self._is_over():
                break

    def _is_over(self) -> bool:
        number = self._server.steps_done
        last = number >= self._until
        if last or number % self._every == 0:
            self._evaluate(number)
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self._save()
        return last or self._stop()

    def _evaluate(self, number: int) -> None:
        scores = evaluate(self._server.model, self._task)
        line = {
            "step": number, "held_out_loss": scores.loss, f"held_out_{scores.name}": scores.measure,
            "seconds": round(time.monotonic() - self._start, 3),
        } | _spending_line(self._server)  # fmt: skip
        self._metrics.add(line)
        self._tell(line)

    def _save(self) -> None:
        server = self._server
        self._saved = time.monotonic()
        if isinstance(server, Server):
            save(server, extra={})
        else:
            extra = {"round": server.steps_done, "standing": {str(k): v for k, v in server.standing.items()}}
            checkpoint.save(self._folder, model=server.model, optimizer=server.optimizer, extra=extra)


def _spending_line(server: "Server | Records") -> dict[str, Any]:
    """Epsilon so far with its label: of clients, or of the records of the client that has spent most."""
    if isinstance(server, Server):
        spent = server.spent()
        return {"epsilon": spent.epsilon, "delta": spent.delta, "label": spent.label, "private": server.noise_is_secret}
    found = worst_row(server.standing)
    if found is None:
        return {}
    return {"epsilon": found["epsilon"], "delta": found["delta"], "label": weakest_label(server.standing)}


def check_rounds(settings: Settings, guarantee: Guarantee, planned: int) -> int:
    """How many rounds to make: as asked, else all that are planned."""
    if settings.rounds is not None and settings.rounds > planned:
        raise InvalidValue(
            f"rounds={settings.rounds} must be at most {planned}, those of the plan. Its epsilon of "
            f"{guarantee.epsilon:.4g} ({guarantee.label}) does not cover more. Plan with --steps {settings.rounds}."
        )
    return planned if settings.rounds is None else settings.rounds
