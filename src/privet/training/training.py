"""Training: private steps for your own loop. It samples, clips, charges, adds noise; your optimizer does the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from privet import _check
from privet.accounting import Guarantee
from privet.clipping.clipped_sum import ClippedSum, Clipper, sum_batch
from privet.errors import InvalidValue
from privet.ledger import account
from privet.noise.randomness import Randomness
from privet.noise.release import releaser_for
from privet.training.checks import check_start, resolve_rule
from privet.training.distributed import Batches, Standing, join_run, make_account
from privet.training.loop_watch import LoopGuard
from privet.training.weights import Weights

if TYPE_CHECKING:
    from privet.ledger.account import Charge
    from privet.ledger.assumptions import LoopFacts
    from privet.ledger.file import LedgerFile
    from privet.ledger.format import LedgerPosition
    from privet.planning import Plan
    from privet.sampling.loading import PhysicalBatch
    from privet.sampling.users import UserIds
    from privet.training.checks import LossFn
    from privet.training.processes import Group
    from privet.training.weights import WeightAverage


@_check.known_keywords
class Training:
    """The steps of a plan, one Poisson batch after the other, for a loop of your own.

    Iterate to get batches; give each to `step` as losses, one per example. A batch above `max_physical_batch_size` rows
    comes in pieces: `step` adds them up, and releases once with the last. A batch without records is released by the
    iterator. Each step is charged before its batch is handed out; with its release the noisy average lies in `.grad` of
    the parameters, and the optimizer makes its step. A batch that was left is lost, and stays charged: a loop that was
    left goes on with the next step in another one. Nothing else may move the model while this is open.

    Args:
        dataset: tensors, or a map-style dataset. Under zero-out its size must be the plan's.
        out: the run's folder, where the ledger is kept; without it, the ledger is gone with the process.
        ledger: the open ledger of `out`, for a run that goes on at `ledger.next`.
        users: the owner of each record, for a plan with unit="user": of a chosen user, one record takes part.
        augmentations: rows of each record, lying together, to be augmented each in its own way; clipped as one.
        ema_decay: the decay of a moving average of the weights, 0.999 say.
        randomness: where coins and noise come from; `seeded(7)` gives a run that is reproducible and not private.
        secure_noise: release whole cells of a grid with noise from a cryptographic generator: docs/howto-sampling.md.
        steps_per_line: steps that one line of the ledger charges, where steps take milliseconds.
        uncertified: train by a rule that has no guarantee, or on what was read off the records without noise.
        non_private_preprocessing: what of the dataset was read off its records without noise: a vocabulary, say. See
            `uncertified`.
        own_loop: False where Privet's own loop calls this one, so that its guarantee needs no assumption on a loop.
        dataset_name: the name of the records: what all runs on them cost is found by it. docs/howto-budget.md.
        group: the processes that make each step together, from `processes.group()`; each is given all of the above.

    >>> import torch
    >>> from privet import plan
    >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
    >>> p = plan(delta=1e-3, dataset_size=100, batch_size=10, steps=5, noise_multiplier=2.0, solve="epsilon")
    >>> model = nn.Linear(3, 2)
    >>> training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), p)
    >>> for inputs, targets in training:
    ...     done = training.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    >>> training.steps_done, training.spent().label, training.spent().epsilon == p.guarantee.epsilon
    (5, 'certified', True)

    Raises:
        InvalidValue: the dataset, the optimizer or an option does not fit the plan or the model.
        Unsupported: the plan's rule is unsound, or its unit is not one that this loop protects.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, dataset: Any, plan: "Plan", *, out: "str | Path | None" = None,
        ledger: "LedgerFile | None" = None, users: "UserIds | None" = None, max_physical_batch_size: int | None = None,
        workers: int = 0, augmentations: int = 1, ema_decay: float | None = None, randomness: Randomness | None = None,
        secure_noise: bool = False, steps_per_line: int = 1, uncertified: bool = False,
        non_private_preprocessing: str = "",
        group: "Group | None" = None, own_loop: bool = True, dataset_name: str | None = None,
    ) -> None:  # fmt: skip
        randomness = Randomness() if randomness is None else randomness
        self.model, self.optimizer, self.dataset, self.plan = model, optimizer, dataset, plan
        self._inner, named, self.group = check_start(model, optimizer, plan, randomness, group)
        rule = resolve_rule(
            plan, secure_noise=secure_noise, uncertified=uncertified,
            non_private_preprocessing=non_private_preprocessing,
        )  # fmt: skip
        self.rule: Any = rule.rule  # one object: it may learn from releases
        self._not_private, self._views = non_private_preprocessing, augmentations
        rows = max_physical_batch_size
        self._batches = Batches(
            dataset, plan, self.group, users=users, most=rows, workers=workers, augmentations=augmentations
        )
        self._batches.make_sampler(randomness, start=0 if ledger is None else ledger.next_step)  # it checks the dataset
        settings = (
            augmentations, self._batches.rows, secure_noise, ema_decay, steps_per_line, non_private_preprocessing,
        )  # fmt: skip
        self._generator = join_run(self.group, self._inner, optimizer, plan, dataset, randomness, users, settings)
        self._clipper = Clipper(rule, named)
        self._releaser = releaser_for(
            rule, named, randomness=self._generator, adjacency=plan.recipe.budget.adjacency, secure_noise=secure_noise,
            ranks=self.group,
        )  # fmt: skip
        self._weights = Weights(self._inner, named, optimizer, average=ema_decay, is_busy=self._is_mid_batch)
        self.out = None if out is None else Path(out)

        begin_account = partial(
            account.open_account, plan, out=out, ledger=ledger, steps_per_line=steps_per_line,
            seeded=not self.noise_is_secret,
            preprocessing_is_private=not non_private_preprocessing, dataset=dataset_name,
        )  # fmt: skip
        self._consistency_digest = Standing(weights=list(named.values()))
        self._account = make_account(self.group, plan, begin_account, self._consistency_digest)
        self._number = self._account.next_step  # the step at hand
        self._charge: Charge | None = None  # of the step at hand, once its first batch is about to be handed out
        self._piece: PhysicalBatch[Any] | None = None  # the physical batch at hand
        self._sum: ClippedSum | None = None  # over those before it in the step
        self._is_lent = self._is_open = self._is_done = self._has_begun = self._is_closed = False
        self._loop = LoopGuard(
            self._inner, named, account.facts_at_start(self._account, own_loop=own_loop), number=self._number,
            augmentations=augmentations, dataset=dataset, note=self._account.note,
        )  # fmt: skip
        self._weights.refuse_others()

    # --- what is known ---

    @property
    def steps_done(self) -> int:
        """The number of the step at hand, from 0: so many are over, made or lost."""
        return self._number

    @property
    def facts(self) -> "LoopFacts":
        """What was checked of this loop, and what was not: the assumptions of its guarantee."""
        return self._loop.facts

    def __len__(self) -> int:
        """The plan's steps; a loop has a round more for each further piece, one less for each empty batch."""
        return len(self.plan.steps)

    @property
    def noise_is_secret(self) -> bool:
        return self._generator.noise_is_secret

    @property
    def position(self) -> "LedgerPosition | None":
        """The place in the ledger on disk, for a checkpoint; None if there is no folder."""
        return self._account.position

    @property
    def has_pending_batch(self) -> bool:
        """Whether a batch is at hand, or the averaged weights are in place."""
        return self._piece is not None or self._weights.are_averaged

    @property
    def average(self) -> "WeightAverage | None":
        return self._weights.average

    @property
    def claimed_sensitivity(self) -> float | None:
        """Of a rule without a guarantee: the sensitivity it took last; not private."""
        return self._releaser.claimed_sensitivity

    @property
    def guarantee(self) -> Guarantee:
        """The plan's guarantee, marked if the run has none. It holds wherever the run is stopped."""
        return self._mark_guarantee(self.plan.guarantee)

    def spent(self) -> Guarantee:
        """The guarantee of what is charged so far, from the ledger, reserved steps included.

        It holds for a run that is stopped here if that was decided beforehand. If outputs decided it, take `guarantee`.
        """
        return self._mark_guarantee(account.guarantee_of(self._account.ledger(), self.plan))

    def _mark_guarantee(self, guarantee: Guarantee) -> Guarantee:
        guarantee = account.qualify(guarantee, self.facts)
        if self.facts.void_from is not None:
            return guarantee
        if not self._weights.is_stepping and (name := self._weights.find_changed()):
            return account.mark_uncertified(guarantee, f"{name} was changed by something else than a private step")
        if self._releaser.rule.is_uncertified:
            return account.mark_uncertified(guarantee, f"rule {self.plan.rule!r} is unsound")
        if self._not_private:
            return account.mark_uncertified(guarantee, account.preprocessing_reason(self._not_private))
        return guarantee if self.noise_is_secret else account.mark_uncertified(guarantee, str(self._generator))

    def __str__(self) -> str:
        return f"step {self.steps_done} of {len(self)}; plan: {self.guarantee}; randomness: {self._generator}"

    @contextmanager
    def ema_weights(self) -> Iterator[nn.Module]:
        """The model with its averaged weights, for evaluation; it has its own again after it."""
        if self.average is None:
            raise InvalidValue("ema_decay=None keeps no average. It is made along the way. Give ema_decay=0.999, say.")
        if self.has_pending_batch:
            raise InvalidValue(
                "ema_weights() was called inside a batch, or twice. Its step needs the weights. Step first."
            )
        with self._weights.use_average():
            yield self.model

    @contextmanager
    def post_processing(self, reason: str) -> Iterator[None]:
        """Change the model from what was released, and from no records: a projection, lookahead, averages put in place.

        The reason is listed among the assumptions of the guarantee, since nobody can check it.
        """
        if self.has_pending_batch or self._sum is not None:
            raise InvalidValue("post_processing was called inside a batch. Its step needs the weights. Step first.")
        if self._is_closed:
            raise InvalidValue("post_processing was called after close(). Nothing can be noted. Do it before.")
        self._weights.check(deep=True)
        self._loop.record_post_processing(reason)
        with self._weights.post_processing():
            yield

    def accept_state(self) -> None:
        """What the model holds before the first batch is right: a checkpoint was loaded."""
        if self._has_begun:
            raise InvalidValue(
                "accept_state() was called after a batch. Weights could be moved by records, and the guarantee would "
                'not say so. Change them in `with training.post_processing("why"):`.'
            )
        self._weights.accept()

    def check_state(self) -> None:
        self._weights.check(deep=True)

    def note(self) -> None:
        """Write what is known of the loop to the ledger, for whoever reads it after a crash."""
        self._loop.update_facts(durably=True)

    def close(self) -> None:
        """Let another process have the ledger; no step can be made any more."""
        if self._is_closed:
            return
        self._is_closed = True
        self._drop_batch()
        self._weights.close()
        name = self._weights.find_changed()
        try:
            if name:
                self._loop.void(self.steps_done, f"{name} was changed by something else than a private step")
            self._loop.update_facts(durably=True)
        finally:
            self._account.close()
        if name:
            self._weights.check(deep=True)

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
        return self.until(len(self))

    def until(self, end: int) -> Iterator[Any]:
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
            yield from self._hand_out(end)
        finally:
            self._drop_batch()
            self._is_open = False

    def _hand_out(self, end: int) -> Iterator[Any]:
        pieces = self._batches.load(self._generator, start=self._number)
        while (piece := self._next_physical_batch(pieces, end)) is not None:
            if self._number >= end:  # drawn ahead, and dropped: nobody saw it
                return
            self._weights.check_model()
            self._consistency_digest.sample, self._is_lent = self._batches.next_turn(piece.is_last)
            if self._charge is None:  # with the first of the physical batches of a step
                self._charge_step()
            if not len(piece.indices):  # nobody takes part: a step like any other, of noise alone
                self._release(self._zero_sum())
                continue
            self._piece, self._is_done = piece, False
            self._loop.open(piece, is_checked=self._consistency_digest.is_checked)
            yield piece.data
            if not self._is_done:
                raise InvalidValue(
                    f"step={self.steps_done} was not made: its batch was passed over, or `step` failed. Leaving "
                    "batches out changes the sampling that the guarantee is for. Call training.step once for each "
                    "batch."
                )

    def _next_physical_batch(self, pieces: "Iterator[PhysicalBatch[Any]]", end: int) -> "PhysicalBatch[Any] | None":
        """The next piece; a dataset that fails has seen whose turn it is, so that its batch is charged, and lost."""
        try:
            return next(pieces, None)
        except BaseException as error:
            if self._number >= end and isinstance(error, Exception):
                return None  # drawn ahead, and dropped
            if self._number < end and self._charge is None and self.group.size == 1:
                self._charge_step()
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
            account.check_left(self.steps_done, self.plan)
            raise InvalidValue("step was called without a batch, or twice for one. Call it once inside the loop.")
        found = self._clip(losses, batch, rows=len(piece.indices))
        self._piece, self._sum = None, found if self._sum is None else self._sum + found
        if piece.is_last:
            whole, self._sum = self._sum, None
            self._release(whole)
        self._is_done = True
        return piece.is_last

    # --- the parts of a step ---

    def _charge_step(self) -> None:
        """Charge the step whose batch is about to be handed out: what was seen is spent, whatever becomes of it."""
        self._consistency_digest.is_checked = self._loop.wants_check()
        in_force = self._clipper.rule.clip_in_force
        self._charge = self._account.charge(self._number, in_force)  # on the disk, when this returns

    def _is_mid_batch(self) -> bool:
        """Whether a batch is at hand, when an optimizer's step is refused for it: nothing more is recorded then."""
        is_mid_batch = self._piece is not None or self._sum is not None
        if is_mid_batch:
            self._loop.drop()
        return is_mid_batch

    def _zero_sum(self) -> ClippedSum:
        assert self._charge is not None
        return self._clipper.zero(self._charge.clip)

    def _clip(self, losses: "Tensor | LossFn", batch: tuple[Any, ...], *, rows: int) -> ClippedSum:
        """The clipped sum over the physical batch at hand, once it is sure that these are its losses."""
        is_checked = self._consistency_digest.is_checked

        def verify() -> None:
            try:
                self._weights.check_model()
                self._weights.check(deep=is_checked)
            except InvalidValue:
                self._loop.drop()
                raise
            self._loop.close(losses, batch, rows=rows, number=self._number)

        if is_checked:
            self.group.run_on_first(verify)  # what one rank finds stops all
        else:
            verify()
        assert self._charge is not None
        found = sum_batch(self._inner, losses, batch, self._clipper, self._charge.clip, augmentations=self._views)
        return self._zero_sum() if self._is_lent else found

    def _release(self, whole: ClippedSum) -> None:
        """Make the step that is charged: whatever goes wrong here, it is over."""
        charge, number = self._charge, self._number
        assert charge is not None
        self._number, self._charge = number + 1, None
        is_made = False
        try:
            released = self._releaser.release(
                whole, charge, batch_size=charge.step.sample_rate * self.plan.recipe.dataset_size
            )
            self._weights.step(released.grads)
            is_made = True
        finally:
            self._loop.end_step(number, is_made=is_made)

    def _drop_batch(self) -> None:
        """Forget a batch that was begun: it is charged, and lost. The model is itself again."""
        self._piece = self._sum = None
        self._loop.drop()
        if self._charge is not None:
            self._number, self._charge = self._number + 1, None
            self._loop.end_step(self._number - 1, is_made=False)
