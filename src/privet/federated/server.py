"""The server of client-level privacy: it samples clients, clips what they send, adds one noise, and charges it all.

server = Server(model, optimizer, plan, clients=100, out="runs/f")
for chosen in server:                                   # the round is charged, then coins are tossed
    server.step((k, update_of(k)) for k in chosen)      # who does not answer has dropped out

Round t reads step t of the plan. It is charged before anybody is asked: a drop-out, a crash of a client or of the
server changes nothing in what is charged, and no round is ever done again.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from privet import _check
from privet.accounting import Guarantee
from privet.clipping.rule import bounded, clipping_rule
from privet.errors import InvalidValue
from privet.federated.clipped_updates import Update, sum_dense_updates, usable_updates
from privet.ledger.account import Charge, guarantee_of, mark_uncertified, open_account
from privet.ledger.file import LedgerFile
from privet.ledger.format import LedgerPosition
from privet.noise.randomness import Randomness
from privet.noise.release import match_strides, releaser_for
from privet.per_example.model_facts import trainable_parameters
from privet.planning import Plan
from privet.sampling.samplers import sampler
from privet.training import checkpoint, checkpoint_format
from privet.training.checks import check_arguments, check_optimizer


class Server:
    """The rounds of a plan with unit="client", one sample of clients after the other.

    Args:
        model: what is trained; its trainable parameters are sent to clients, and updates come back.
        optimizer: makes the server's step from the noisy average of the updates. SGD with lr 1 is FedAvg.
        clients: how many there are. Under zero-out that is public, and the plan's size.
        out: the folder where the ledger is kept; without it, the ledger is gone with the process.
        ledger: the open ledger of `out`, for a federation that goes on.
        randomness: where coins and noise come from; `seeded(7)` is reproducible and not private.
        secure_noise: noise that no rounding of floating-point numbers gives away.

    >>> import torch
    >>> from privet import plan
    >>> p = plan(delta=1e-3, dataset_size=50, batch_size=10, steps=3, noise_multiplier=2.0, solve="epsilon",
    ...          unit="client")
    >>> model = nn.Linear(3, 2)
    >>> server = Server(model, torch.optim.SGD(model.parameters(), lr=1.0), p, clients=50)
    >>> for chosen in server:
    ...     server.step((k, {"weight": torch.ones(2, 3), "bias": torch.ones(2)}) for k in chosen)
    >>> server.steps_done, server.spent().label, server.spent().unit
    (3, 'certified', 'client')

    Raises:
        InvalidValue: the plan is not for clients, or not for so many, or the optimizer does not fit.
        Unsupported: the plan's rule has no guarantee.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, plan: Plan, *, clients: int, out: "str | Path | None" = None,
        ledger: LedgerFile | None = None, randomness: Randomness | None = None, secure_noise: bool = False,
    ) -> None:  # fmt: skip
        self._generator = Randomness() if randomness is None else randomness
        check_arguments(plan, self._generator)
        _check.whole(clients=clients)
        if plan.recipe.budget.unit != "client":
            raise InvalidValue(
                f"unit={plan.recipe.budget.unit!r} of the plan must be 'client'. A round protects whole clients, and "
                "samples them. Plan with --unit client, where --size and --batch count clients."
            )
        self.model, self.optimizer, self.plan, self.clients = model, optimizer, plan, clients
        self.named = trainable_parameters(model)
        check_optimizer(optimizer, self.named, model)
        self.rule = clipping_rule(plan.rule)  # one object: it may learn from releases
        self._releaser = releaser_for(
            bounded(self.rule), self.named, randomness=self._generator, adjacency=plan.recipe.budget.adjacency,
            secure_noise=secure_noise,
        )  # fmt: skip
        self._charge: Charge | None = None  # of the round at hand
        self._chosen: frozenset[int] | None = None
        self._is_open = False
        self.out = None if out is None else Path(out)
        sampler(plan, records=clients, randomness=self._generator).check(plan)
        self._account = open_account(plan, out=out, ledger=ledger, steps_per_line=1, seeded=not self.noise_is_secret)

    @property
    def steps_done(self) -> int:
        """How many rounds are charged, the one at hand included."""
        return self._account.next_step

    def __len__(self) -> int:
        return len(self.plan.steps)

    @property
    def noise_is_secret(self) -> bool:
        """False for a seeded federation: reproducible, not private."""
        return self._generator.noise_is_secret

    @property
    def is_busy(self) -> bool:
        return self._chosen is not None

    @property
    def guarantee(self) -> Guarantee:
        """The plan's guarantee. It holds wherever the federation is stopped."""
        return self._mark_seeded(self.plan.guarantee)

    def spent(self) -> Guarantee:
        """What the ledger adds up to. It holds if the moment to stop was decided beforehand; else take `guarantee`."""
        return self._mark_seeded(guarantee_of(self._account.ledger(), self.plan))

    def _mark_seeded(self, guarantee: Guarantee) -> Guarantee:
        return guarantee if self.noise_is_secret else mark_uncertified(guarantee, str(self._generator))

    def close(self) -> None:
        self._account.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- a round ---

    def __iter__(self) -> Iterator[list[int]]:
        """The clients of each round that is left. When they are known, the round is charged."""
        if self._is_open:
            raise InvalidValue(
                "server is iterated over already. Two loops would share its rounds, and draw clients at each other's "
                "rates. End the first: leave its `for`, or close() what iter(server) gave."
            )
        self._is_open = True
        try:
            yield from self._rounds()
        finally:
            self._is_open = False

    def _rounds(self) -> Iterator[list[int]]:
        draws = iter(sampler(self.plan, records=self.clients, start=self.steps_done, randomness=self._generator))
        while self.steps_done < len(self):
            self._charge = self._account.charge(self.steps_done, self._releaser.rule.clip_in_force)
            chosen = next(draws).tolist()
            self._chosen = frozenset(chosen)
            try:
                yield chosen
                if self._chosen is not None:
                    raise InvalidValue(
                        f"round={self.steps_done - 1} was not ended. Skipping rounds changes the guarantee. Call "
                        "server.step once for each round, also if no client answered."
                    )
            finally:
                self._chosen = None  # a round that was left is charged, and over

    def step(self, updates: Iterable[tuple[int, Update]]) -> None:
        """Clip and add up what came back, add one noise, divide by the public expected count, let the optimizer step.

        `updates` are pairs (client, update). Who was asked and is not among them adds nothing, and is charged; so does
        one whose update cannot be used, whatever it is: the log of `privet.federated` says which fault it has.

        Raises:
            InvalidValue: no round is at hand; or an update is of a client that was not asked, or is there twice.
        """
        if self._chosen is None:
            raise InvalidValue("step was called without a round, or twice for one. Call it once inside the loop.")
        charge = self._charge
        assert charge is not None
        kept = usable_updates(_check_clients(updates, self._chosen), self.named, number=charge.number)
        whole = sum_dense_updates((update for _, update in kept), self.named, self.rule, charge.step.clipping_norm)
        self._chosen = None  # from here on noise is drawn: should anything fail, the round is over all the same
        released = self._releaser.release(
            whole, charge, batch_size=charge.step.sample_rate * self.plan.recipe.dataset_size
        )
        apply_update(self.optimizer, self.named, released.grads)

    @property
    def position(self) -> LedgerPosition | None:
        return self._account.position


def apply_update(optimizer: Optimizer, named: Any, average: Update) -> None:
    optimizer.zero_grad(set_to_none=True)
    for name, value in average.items():
        named[name].grad = match_strides(named[name], value)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _check_clients(updates: Iterable[tuple[int, Update]], chosen: frozenset[int]) -> Iterator[tuple[int, Update]]:
    """The updates, once it is sure that each is of another client of this round."""
    seen: set[int] = set()
    for client, update in updates:
        if client not in chosen or client in seen:
            why = "answered twice" if client in seen else "was not asked"
            raise InvalidValue(
                f"client={client!r} {why} in this round. The sum would change by more than was charged. Give one "
                "update for each sampled client."
            )
        seen.add(client)
        yield client, update


# --- going on ----------------------------------------------------------------------------------------


def save(server: Server, *, extra: "dict[str, Any] | None" = None) -> str:
    """Replace the checkpoint beside the ledger: weights, the optimizer's memory, the clipping rule's."""
    mark = server.position
    if server.out is None or mark is None:
        raise InvalidValue(
            "out=None keeps nothing. A checkpoint lies beside its ledger. Give out='runs/f', for example."
        )
    if server.is_busy:
        raise InvalidValue("a round is in progress. Its clients have not answered. Save between two rounds.")
    return checkpoint.save(
        server.out, model=server.model, optimizer=server.optimizer,
        rule_state=bounded(server.rule).state_dict(),
        extra={"round": server.steps_done, "lines": mark.lines, "digest": mark.digest, "more": dict(extra or {})},
    )  # fmt: skip


def resume(
    model: nn.Module, optimizer: Optimizer, plan: Plan, *, clients: int, out: str | Path, **options: Any
) -> tuple[Server, dict[str, Any]]:
    """The federation in a folder, at the ledger's next round, with the weights of its last checkpoint, and its `extra`.

    Rounds that were charged after that checkpoint stay charged and are never done again; coins and noise are fresh.
    """
    folder = Path(out)
    kept = checkpoint.peek(folder) if (folder / checkpoint_format.NAME).exists() else None
    mark = None if kept is None else LedgerPosition(int(kept.extra["lines"]), str(kept.extra["digest"]))
    ledger = LedgerFile.open(folder, plan, at_least=mark)
    with ExitStack() as undo:
        undo.callback(ledger.close)
        server = Server(model, optimizer, plan, clients=clients, out=folder, ledger=ledger, **options)
        if kept is not None:
            checkpoint.load(folder, model=model, optimizer=optimizer)
            bounded(server.rule).load_state_dict(kept.rule_state)
        undo.pop_all()  # the server closes it
    return server, {} if kept is None else dict(kept.extra["more"])
