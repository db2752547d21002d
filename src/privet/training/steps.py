"""Training: private steps for your own loop. It samples, clips, charges, adds noise; your optimizer does the rest."""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from privet import _check
from privet.accounting import Guarantee, Step
from privet.engine import ClippedSum, clipped_sum
from privet.engine.clip import is_published, rule_for
from privet.engine.clip.bounded import clip_in_force
from privet.engine.clipped import plain_model
from privet.engine.contribution import Ids, user_sampler
from privet.engine.knowledge import trainable
from privet.engine.loading import Chooser, Piece, batches
from privet.engine.randomness import Randomness
from privet.engine.release import laid_as, release
from privet.engine.sampling import sampler
from privet.engine.summing import nothing
from privet.engine.tape import tensors_in
from privet.errors import InvalidValue
from privet.planning import Plan
from privet.training.account import (
    Account,
    account_for,
    check_left,
    cost,
    facts_at_start,
    qualify,
    read_off,
    without_proof,
)
from privet.training.assumptions import LoopFacts
from privet.training.averaging import Average
from privet.training.distributed import Group
from privet.training.gate import (
    LossFn,
    Repeated,
    check_covered,
    check_kinds,
    check_optimizer,
    check_rule,
    check_unit,
    guarding_hooks,
    records_of,
    refuse_raw_steps,
    rows_at_once,
)
from privet.training.joint import JointAccount, Part, Turn, check_group, checksum, coins, join
from privet.training.joint_release import joint_release
from privet.training.ledger_file import LedgerFile
from privet.training.ledger_lines import Mark
from privet.training.loop_guard import LoopGuard
from privet.training.state_guard import StateGuard


@_check.known_keywords
class Training:
    """The steps of a plan, one Poisson batch after the other, for a loop of your own.

    Iterate to get batches; give each to `step` as losses, one per example. A batch above `max_physical_batch` rows
    comes in pieces: `step` adds them up, and releases once with the last. A batch without records is released by the
    iterator. Each step is charged before its batch is handed out; with its release the noisy average lies in `.grad` of
    the parameters, and the optimizer makes its step. A batch that was left is lost, and stays charged: a loop that was
    left goes on with the next step in another one. Nothing else may move the model while this is open.

    Args:
        dataset: tensors, or a map-style dataset. Under zero-out its size must be the plan's.
        out: the run's folder, where the ledger is kept; without it, the ledger is gone with the process.
        ledger: the open ledger of `out`, for a run that goes on at `ledger.next`.
        users: the owner of each record, for a plan with unit="user": of a chosen user, one record takes part.
        views: rows of each record, lying together, to be augmented each in its own way; clipped as one.
        average: the decay of a moving average of the weights, 0.999 say.
        generator: where coins and noise come from; `seeded(7)` gives a run that is reproducible and not private.
        secure: release whole cells of a grid with noise from a cryptographic generator: docs/howto-sampling.md.
        reserve: steps that one line of the ledger charges, where steps take milliseconds.
        as_published: train by a rule that has no guarantee, or on what was read off the records without noise.
        not_private: what of the dataset was read off its records without noise: a vocabulary, say. See `as_published`.
        own_loop: False where Privet's own loop calls this one, so that its guarantee needs no assumption on a loop.
        dataset_name: the name of the records: what all runs on them cost is found by it. docs/howto-budget.md.
        group: the processes that make each step together, from `distributed.group()`; each is given all of the above.

    >>> import torch
    >>> from privet import plan
    >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
    >>> p = plan(delta=1e-3, size=100, batch=10, steps=5, noise=2.0, solve="epsilon")
    >>> model = nn.Linear(3, 2)
    >>> training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), p)
    >>> for inputs, targets in training:
    ...     done = training.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    >>> training.number, training.spent().label, training.spent().epsilon == p.guarantee.epsilon
    (5, 'certified', True)

    Raises:
        InvalidValue: the dataset, the optimizer or an option does not fit the plan or the model.
        Unsupported: the plan's rule is unsound, or its unit is not one that this loop protects.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, dataset: Any, plan: Plan, *, out: "str | Path | None" = None,
        ledger: LedgerFile | None = None, users: Ids | None = None, max_physical_batch: int | None = None,
        workers: int = 0, views: int = 1, average: float | None = None, generator: Randomness | None = None,
        secure: bool = False, reserve: int = 1, as_published: bool = False, not_private: str = "",
        group: Group | None = None, own_loop: bool = True, dataset_name: str | None = None,
    ) -> None:  # fmt: skip
        self._generator = Randomness() if generator is None else generator
        check_kinds(plan, self._generator)
        check_group(model, plan, group)
        self.model, self.optimizer, self.dataset, self.plan = model, optimizer, dataset, plan
        self._inner = plain_model(model)
        self._named = trainable(self._inner)
        self._shapes = {name: p.shape for name, p in self._named.items()}
        check_optimizer(optimizer, self._named, self._inner)
        self.rule = rule_for(plan.rule, as_published=as_published)  # one object: it may learn from releases
        check_rule(is_published(self.rule), plan, secure=secure)
        check_covered(not_private, as_published=as_published)
        self._not_private = not_private
        self._views, self._physical = views, rows_at_once(max_physical_batch, views)
        _check.whole(least=0, workers=workers)
        self._workers, self._users, self._secure = workers, users, secure
        records = None if self._physical is None else self._physical // views  # of a piece
        self.group, self._part = group, None if group is None else Part(group, records)
        self._chooser(self._generator, start=0 if ledger is None else ledger.next)  # checks dataset and plan
        if group is not None:  # before the average: rank 0's weights are everyone's
            owners = None if users is None else [str(user) for user in users]
            settings = (owners, views, self._physical, secure, average, reserve, not_private)
            self._generator = join(group, self._inner, optimizer, plan, dataset, self._generator, settings)
        self.average = None if average is None else Average(self._named, decay=average)
        self._is_averaged = self._is_open = self._is_done = self._is_stepping = self._is_closed = False
        self._has_begun = self._is_post_processing = False
        self._piece: Piece[Any] | None = None
        self._turn = Turn()
        self._sum: ClippedSum | None = None
        self.raw_scale: float | None = None  # of a rule without a guarantee: the sensitivity it took last; not private
        self.out = None if out is None else Path(out)

        def account() -> Account:
            return account_for(
                plan, out=out, ledger=ledger, reserve=reserve, seeded=not self.private, covered=not not_private,
                dataset=dataset_name,
            )  # fmt: skip

        self._account = account() if group is None else JointAccount(group, plan, account, self._standing)
        self._number, self._is_charged = self._account.next, False  # the step at hand, and whether it is charged
        self._wants_check = self._is_checked = False
        self._step: Step = plan.steps[0]  # the one that is charged
        self._loop = LoopGuard(
            self._inner, facts_at_start(self._account, own_loop=own_loop), number=self._number, views=views,
            private=tensors_in(getattr(dataset, "tensors", dataset)), note=self._account.note,
        )  # fmt: skip
        self._state = StateGuard(self._inner, self._named)
        here = weakref.ref(self)  # the optimizer must not keep this object, and its ledger, alive
        self._hook = refuse_raw_steps(optimizer, lambda: (found := here()) is not None and found._is_raw())

    # --- what is known ---

    @property
    def number(self) -> int:
        """The number of the step at hand, from 0: so many are over, made or lost."""
        return self._number

    @property
    def facts(self) -> LoopFacts:
        """What was checked of this loop, and what was not: the assumptions of its guarantee."""
        return self._loop.facts

    def __len__(self) -> int:
        """The plan's steps; a loop has a round more for each further piece, one less for each empty batch."""
        return len(self.plan.steps)

    @property
    def private(self) -> bool:
        """False for a seeded run: reproducible, not private."""
        return self._generator.private

    @property
    def mark(self) -> Mark | None:
        """The place in the ledger on disk, for a checkpoint; None if there is no folder."""
        return self._account.mark

    @property
    def is_busy(self) -> bool:
        """Whether a batch is at hand, or the averaged weights are in place."""
        return self._piece is not None or self._is_averaged

    @property
    def guarantee(self) -> Guarantee:
        """The plan's guarantee, marked if the run has none. It holds wherever the run is stopped."""
        return self._marked(self.plan.guarantee)

    def spent(self) -> Guarantee:
        """The guarantee of what is charged so far, from the ledger, reserved steps included.

        It holds for a run that is stopped here if that was decided beforehand. If outputs decided it, take `guarantee`.
        """
        return self._marked(cost(self._account.ledger(), self.plan))

    def _marked(self, guarantee: Guarantee) -> Guarantee:
        guarantee = qualify(guarantee, self.facts)
        if self.facts.void_from is not None:
            return guarantee
        if not self._is_averaged and not self._is_stepping and (name := self._state.moved(deep=True)):
            return without_proof(guarantee, f"{name} was changed by something else than a private step")
        if is_published(self.rule):
            return without_proof(guarantee, f"rule {self.plan.rule!r} is unsound")
        if self._not_private:
            return without_proof(guarantee, read_off(self._not_private))
        return guarantee if self.private else without_proof(guarantee, str(self._generator))

    def __str__(self) -> str:
        return f"step {self.number} of {len(self)}; plan: {self.guarantee}; randomness: {self._generator}"

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """The model with its averaged weights, for evaluation; it has its own again after it."""
        if self.average is None:
            raise InvalidValue("average=None keeps no average. It is made along the way. Give average=0.999, say.")
        if self.is_busy:
            raise InvalidValue(
                "averaged() was called inside a batch, or twice. Its step needs the weights. Step first."
            )
        self._is_averaged = True
        try:
            with self.average.in_place():
                yield self.model
        finally:
            self._is_averaged = False

    @contextmanager
    def post_processing(self, reason: str) -> Iterator[None]:
        """Change the model from what was released, and from no records: a projection, lookahead, averages put in place.

        The reason is listed among the assumptions of the guarantee, since nobody can check it.
        """
        if self.is_busy or self._sum is not None:
            raise InvalidValue("post_processing was called inside a batch. Its step needs the weights. Step first.")
        if self._is_closed:
            raise InvalidValue("post_processing was called after close(). Nothing can be noted. Do it before.")
        self._state.check(deep=True)
        self._loop.post_process(reason)
        self._is_post_processing = True
        try:
            yield
        finally:
            self._is_post_processing = False
            self._state.accept(deep=True)

    def accept_state(self) -> None:
        """What the model holds before the first batch is right: a checkpoint was loaded.

        Raises:
            InvalidValue: a batch was handed out already; what moves weights then is among the assumptions.
        """
        if self._has_begun:
            raise InvalidValue(
                "accept_state() was called after a batch. Weights could be moved by records, and the guarantee would "
                'not say so. Change them in `with training.post_processing("why"):`.'
            )
        self._state.accept(deep=True)

    def check_state(self) -> None:
        """Raise if the model was changed by something else than private steps: before a checkpoint, say."""
        if not self._is_averaged:
            self._state.check(deep=True)

    def note(self) -> None:
        """Write what is known of the loop to the ledger, for whoever reads it after a crash."""
        self._loop.learn(durably=True)

    def close(self) -> None:
        """Let another process have the ledger; no step can be made any more.

        Raises:
            InvalidValue: the model was changed by something else than private steps; then its run has no guarantee.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._drop()
        self._hook.remove()
        name = "" if self._is_averaged else self._state.moved(deep=True)
        try:
            if name:
                self._loop.void(self.number, f"{name} was changed by something else than a private step")
            self._loop.learn(durably=True)
        finally:
            self._account.close()
        if name:
            self._state.check(deep=True)

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, kind: "type[BaseException] | None", *_: object) -> None:
        try:
            self.close()
        except InvalidValue:
            if kind is None:  # else what went wrong first is told; the ledger knows of both
                raise

    # --- the loop ---

    def __iter__(self) -> Iterator[Any]:
        return self.upto(len(self))

    def upto(self, end: int) -> Iterator[Any]:
        """The batches of the steps before step `end`; no step more is made, so that how many were made is public.

        Left by `break` instead, a loop has also released the empty batches before the next one that is not.
        """
        if self._is_open:
            raise InvalidValue(
                "training is iterated over already. Two loops would share its steps. End the first: leave its `for`, "
                "or close() what iter(training) gave."
            )
        if not self._has_begun:
            self.note()
        self._is_open = self._has_begun = True
        try:
            yield from self._batches(end)
        finally:
            self._drop()
            self._is_open = False

    def _batches(self, end: int) -> Iterator[Any]:
        source = self._generator if self.group is None else coins(self._generator, self.group, self.number)
        chosen = self._chooser(source, start=self.number)
        pieces = batches(self.dataset, chosen, workers=self._workers, physical=self._physical)
        while (piece := self._next(pieces, end)) is not None:
            if self.number >= end:  # drawn ahead, and dropped: nobody saw it
                return
            self._check_model()
            self._turn = self._part.turn(piece.is_last) if self._part is not None else Turn()
            if not self._is_charged:  # with the first of the physical batches of a step
                self._charge()
            if not len(piece.indices):  # nobody takes part: a step like any other, of noise alone
                self._release(self._nothing())
                continue
            self._piece, self._is_done = piece, False
            self._loop.open(piece, is_checked=self._is_checked)
            yield piece.data
            if not self._is_done:
                raise InvalidValue(
                    f"step={self.number} was not made: its batch was passed over, or `step` failed. Leaving batches "
                    "out changes the sampling that the guarantee is for. Call training.step once for each batch."
                )

    def _next(self, pieces: Iterator[Piece[Any]], end: int) -> Piece[Any] | None:
        """The next piece; a dataset that fails has seen whose turn it is, so that its batch is charged, and lost."""
        try:
            return next(pieces, None)
        except BaseException as error:
            if self.number >= end and isinstance(error, Exception):
                return None  # drawn ahead, and dropped
            if self.number < end and not self._is_charged and self.group is None:
                self._charge()
            raise

    def step(self, losses: "Tensor | LossFn", *batch: Any) -> bool:
        """Clip and add up this batch; with its last piece, charge the step, add noise, and let the optimizer step.

        `losses` are those of the batch at hand, one per row, from `model(...)` in the loop. Where the model cannot be
        followed there, give the loss function, inputs and targets: `step(loss_fn, x, y)`.

        Returns whether the step is over; False while pieces are missing.

        Raises:
            BudgetExceeded: the plan has no step left.
            InvalidValue: there is no batch at hand, or these are not its losses, or the model was changed.
        """
        piece = self._piece
        if piece is None:
            check_left(self.number, self.plan)
            raise InvalidValue("step was called without a batch, or twice for one. Call it once inside the loop.")
        found = self._clipped(losses, batch, rows=len(piece.indices))
        found = self._nothing() if self._turn.is_lent else found
        self._piece, self._sum = None, found if self._sum is None else self._sum + found
        if piece.is_last:
            whole, self._sum = self._sum, None
            self._release(whole)
        self._is_done = True
        return piece.is_last

    # --- the parts of a step ---

    def _charge(self) -> None:
        """Charge the step whose batch is about to be handed out: what was seen is spent, whatever becomes of it."""
        step = self._step = self.plan.steps[self.number]
        in_force = clip_in_force(self.rule, step.clip)
        self._wants_check = self._loop.wants_check()
        charged = step if in_force == step.clip else replace(step, clip=in_force)
        self._account.charge(self.number, charged)  # on the disk, when this returns
        self._is_charged = True
        account = self._account
        self._is_checked = account.is_checked if isinstance(account, JointAccount) else self._wants_check

    def _is_raw(self) -> bool:
        """Whether an optimizer's step that is about to happen is another than ours, on gradients that are not ours."""
        if self._is_stepping:
            return False
        if self._piece is not None or self._sum is not None:
            self._loop.drop()  # nothing more is recorded, as a step on it has failed
            return True
        return any(p.grad is not None for group in self.optimizer.param_groups for p in group["params"])

    def _nothing(self) -> ClippedSum:
        return nothing(self._named, self.rule, self._step.clip)

    def _standing(self, is_due: bool) -> tuple[int, int, int]:
        """What must be the same on all ranks, the sample and, where it is due, the weights; and what rank 0 decides."""
        return self._turn.sample, checksum(list(self._named.values())) if is_due else 0, int(self._wants_check)

    def _chooser(self, source: Randomness, *, start: int) -> Chooser:
        """The plan's own sampler from a step on; in a group, this rank's part of its batches."""
        plan, records = self.plan, records_of(self.dataset)
        check_unit(plan, records, self._users)
        chosen: Chooser = (
            sampler(plan, records=records, start=start, generator=source)
            if self._users is None
            else user_sampler(plan, users=self._users, start=start, generator=source)
        )
        chosen = chosen if self._part is None else self._part.of(chosen)
        return chosen if self._views == 1 else Repeated(chosen, self._views)

    def _clipped(self, losses: "Tensor | LossFn", batch: tuple[Any, ...], *, rows: int) -> ClippedSum:
        is_checked = self._loop.is_checking

        def verify() -> tuple[int, ...]:
            try:
                self._check_model()
                self._state.check(deep=is_checked)
            except InvalidValue:
                self._loop.drop()
                raise
            self._loop.close(losses, batch, rows=rows, number=self.number)
            return ()

        if self.group is not None and is_checked:
            self.group.together(verify, 0)  # what one rank finds stops all
        else:
            verify()
        return clipped_sum(
            self._inner, losses, batch, rule=self.rule, clip=self._step.clip, views=self._views,
            as_published=is_published(self.rule),
        )  # fmt: skip

    def _release(self, whole: ClippedSum) -> None:
        """Make the step that is charged: whatever goes wrong here, it is over."""
        step = self._step
        self._number, self._is_charged = self.number + 1, False
        batch = step.rate * self.plan.recipe.size  # public, whatever the realised batch
        one = partial(release, in_place=True) if self.group is None else partial(joint_release, self.group)
        try:
            released = one(
                whole, self.rule, step=step, batch=batch, generator=self._generator, secure=self._secure,
                relation=self.plan.recipe.budget.relation, as_published=is_published(self.rule),
            )  # fmt: skip
            if is_published(self.rule):
                self.raw_scale = float(self.rule.raw_scale(whole.raw_norms, step.clip))
            self._move(released.grads)
        except BaseException:
            self._loop.end_step(self.number - 1, is_made=False)
            raise
        self._loop.end_step(self.number - 1, is_made=True)

    def _move(self, grads: Mapping[str, Tensor]) -> None:
        """Let the optimizer make its step by what was released, and by nothing else."""
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                p.grad = None  # what was not released must not reach the weights
        for name, grad in grads.items():
            self._named[name].grad = laid_as(self._named[name], grad)
        self._is_stepping = True
        try:
            with guarding_hooks(self.optimizer, check_weights=self._state.check, accept_weights=self._state.accept):
                self.optimizer.step()
        finally:
            self._is_stepping = False
            self._inner.zero_grad()
        if self.average is not None:
            self.average.add()

    def _check_model(self) -> None:
        if self._is_post_processing:
            raise InvalidValue(
                "a batch was asked for inside of post_processing. What is done there to the model must not come from "
                "records. Leave it first."
            )
        now = trainable(self._inner)
        if now.keys() != self._shapes.keys() or any(
            p is not self._named[name] or p.shape != self._shapes[name] for name, p in now.items()
        ):
            odd = sorted(now.keys() ^ self._shapes.keys()) or ["a parameter was replaced"]
            raise InvalidValue(
                f"model: its trainable parameters are not those of the start ({', '.join(odd[:3])}). Clip, noise and "
                "optimizer are for those. Freeze or change layers first, then make a Training."
            )
        if self._is_averaged:
            raise InvalidValue("model: it holds its averaged weights. A step on them would be lost. Leave averaged().")

    def _drop(self) -> None:
        """Forget a batch that was begun: it is charged, and lost. The model is itself again."""
        self._piece = self._sum = None
        self._loop.drop()
        if self._is_charged:
            self._number, self._is_charged = self.number + 1, False
            self._loop.end_step(self.number - 1, is_made=False)
