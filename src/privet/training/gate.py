"""The gate: what does not fit plan, model or batch is refused before anything happens, with the reason."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.hooks import RemovableHandle

from privet import _check
from privet.data.task import check_note
from privet.engine.batches import size_of
from privet.engine.contribution import Ids
from privet.engine.loading import Chooser
from privet.engine.randomness import Randomness
from privet.errors import InvalidValue, Unsupported
from privet.planning import Plan

LossFn = Callable[..., Tensor]
NOT_THESE = (torch.optim.LBFGS, torch.optim.SparseAdam)


def check_kinds(plan: Any, generator: Any) -> None:
    """Raise unless these are a plan and a source of randomness."""
    if not isinstance(plan, Plan):
        raise InvalidValue(f"plan={plan!r} must be a Plan. It says what may be spent. Make one with plan(...).")
    if not isinstance(generator, Randomness):
        raise InvalidValue(f"generator={generator!r} must be a Randomness. Leave it out, or use seeded(7) for tests.")


def check_optimizer(optimizer: Optimizer, named: Mapping[str, nn.Parameter], model: nn.Module) -> None:
    """Raise unless the optimizer moves parameters of this model, from one gradient in a step."""
    if not named:
        raise InvalidValue("model has no trainable parameter. Nothing can be trained. Set requires_grad on some.")
    if isinstance(optimizer, NOT_THESE):
        raise Unsupported(
            f"optimizer={type(optimizer).__name__} asks for the loss again, or for sparse gradients. A private step "
            "has one noisy gradient, which is dense. Use SGD, Adam, AdamW or Adagrad."
        )
    if type(optimizer).__module__.startswith("accelerate."):
        raise InvalidValue(
            f"optimizer={type(optimizer).__name__} leaves steps out while it accumulates gradients, and a private step "
            "that is charged must be made. Give torch's own: do not prepare it, or take its .optimizer."
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if held - {id(p) for p in model.parameters()}:
        raise InvalidValue(
            "optimizer holds parameters that are not the model's. They would be trained without clipping and noise, or "
            "not at all. Make it from model.parameters()."
        )
    if not held & {id(p) for p in named.values()}:
        raise InvalidValue("optimizer holds no trainable parameter. Nothing would move. Use model.parameters().")


class _Refuse:
    """A hook of an optimizer's step."""

    def __init__(self, is_raw: Callable[[], bool]) -> None:
        self._is_raw = is_raw

    def __call__(self, *_: Any) -> None:
        if self._is_raw():
            raise InvalidValue(
                "optimizer.step was called by another than training.step, with a batch at hand or on gradients that "
                "training did not put there. It would move the weights by gradients without clipping and noise. Call "
                "training.step(losses) alone; in a LightningModule set automatic_optimization = False."
            )


def refuse_raw_steps(optimizer: Optimizer, is_raw: Callable[[], bool]) -> RemovableHandle:
    """Let the optimizer refuse a step that is not private: it would follow gradients without clip and noise."""
    return optimizer.register_step_pre_hook(_Refuse(is_raw))


@contextmanager
def guarding_hooks(
    optimizer: Optimizer, *, check_weights: Callable[[], None], accept_weights: Callable[[], None]
) -> Iterator[None]:
    """An optimizer's step inside: hooks of it may look, and set a learning rate, but not move gradients or weights.

    Weights are checked after all hooks before the step, and accepted before all those after it.
    """
    before: Any = optimizer._optimizer_step_pre_hooks  # both in the order of their calls
    after: Any = optimizer._optimizer_step_post_hooks
    if not (after or _global_optimizer_pre_hooks or _global_optimizer_post_hooks) and all(
        isinstance(hook, _Refuse) for hook in before.values()
    ):
        try:
            yield
        finally:
            accept_weights()
        return
    params = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [None if p.grad is None else p.grad.clone() for p in params]
    begun: list[bool] = []
    done: list[bool] = []

    def check(*_: Any) -> None:
        check_weights()
        begun.append(True)
        if not all(_same(p.grad, grad) for p, grad in zip(params, kept, strict=True)):
            raise InvalidValue(
                "optimizer has a hook that changed the released gradients. Records could move the weights by it, "
                "without clip and noise. Let hooks look, or change weights in training.post_processing."
            )

    def keep(*_: Any) -> None:
        accept_weights()
        done.append(True)

    last, first = optimizer.register_step_pre_hook(check), optimizer.register_step_post_hook(keep)
    after.move_to_end(first.id, last=False)
    try:
        yield
        if not begun:  # a step that calls no hooks
            accept_weights()
    finally:
        if begun and not done:  # it failed on its way
            accept_weights()
        last.remove()
        first.remove()


def _same(grad: Tensor | None, kept: Tensor | None) -> bool:
    if grad is None or kept is None:
        return grad is kept
    return torch.equal(grad.nan_to_num(), kept.nan_to_num())


def check_rule(is_unsound: bool, plan: Plan, *, secure: bool = False) -> None:
    """Raise if a rule without a guarantee runs under a plan that says it has one, or with noise that proves one."""
    if is_unsound and not plan.is_unsound:
        raise Unsupported(
            f"rule={plan.rule!r} has no guarantee, and the plan says it has. Its ledger would promise what does not "
            "hold. Plan with a sound rule."
        )
    if is_unsound and secure:
        raise Unsupported(
            f"rule={plan.rule!r} has no guarantee that secure noise could keep. Leave it out, or use a sound rule."
        )


def check_covered(not_private: str, *, as_published: bool | None = None) -> None:
    """Raise if something was read off the records without noise, unless a run without a guarantee was asked for.

    None: it cannot be asked for.
    """
    check_note(not_private)
    if not_private and not as_published:
        way = ", or plan with --method noisy-sgd and train with --as-published: then the run has no guarantee"
        raise Unsupported(
            f"{not_private}: was read off the training records without noise. No epsilon covers it. Leave it "
            f"out{'' if as_published is None else way}."
        )


def check_unit(plan: Plan, records: int, users: Ids | None) -> None:
    """Raise unless records are what the plan protects, or it protects users and their owners are known."""
    unit = plan.recipe.budget.unit
    if unit == "client":
        raise Unsupported(
            "unit='client' protects clients of federated training, and here records are sampled. "
            "Plan with unit='example', or with unit='user' and give users=."
        )
    if unit == "user" and users is None:
        raise InvalidValue(
            "unit='user' protects users, and whose a record is, is not known. Give users=, the owner of each record."
        )
    if users is not None and len(users) != records:
        raise InvalidValue(f"users={len(users)} must be one owner for each of {records} records. Give as many.")


def records_of(dataset: Any) -> int:
    """How many records a dataset has: the rows of a tuple of tensors, else its length."""
    if isinstance(dataset, tuple) and dataset and all(isinstance(part, Tensor) for part in dataset):
        return len(dataset[0])
    try:
        return len(dataset)
    except TypeError:
        raise Unsupported(
            f"dataset={type(dataset).__name__} has no length. A coin is tossed for every record. "
            "Give tensors or a map-style dataset."
        ) from None


def rows_at_once(most: int | None, views: int) -> int | None:
    """The rows of one piece: at most `most`, the views of a record together."""
    _check.whole(views=views)
    if most is None:
        return None
    _check.whole(max_physical_batch=most)
    if most < views:
        raise InvalidValue(
            f"max_physical_batch={most} must be at least views={views}. The views of a record are clipped together. "
            "Use larger pieces, or fewer views."
        )
    return most // views * views


class Repeated:
    """The batches of a sampler with each record `views` times in a row; read as often, so augmented each time anew."""

    def __init__(self, over: Chooser, views: int) -> None:
        self._over, self._views = over, views

    def __iter__(self) -> Iterator[Tensor]:
        for indices in self._over:
            yield indices.repeat_interleave(self._views)

    def split(self, indices: Tensor, most: int) -> tuple[Tensor, ...]:
        return self._over.split(indices, most)


# --- a batch ----------------------------------------------------------------------------------------


def check_batch(loss_fn: Any, batch: Sequence[Any], rows: int) -> None:
    """Raise unless a loss function came with inputs and targets of as many rows as the batch at hand."""
    if not callable(loss_fn) or len(batch) != 2:
        raise InvalidValue(
            f"step({type(loss_fn).__name__}, and {len(batch)} more) must have losses alone, or a loss function, inputs "
            "and targets. Write training.step(loss_fn(model(x), y)), or training.step(loss_fn, x, y)."
        )
    found = size_of(tuple(batch))
    if found != rows:
        raise InvalidValue(_another(f"batch={found} rows", rows))


def check_losses(losses: Tensor, rows: int, outputs: "Sequence[Node] | None") -> None:
    """Raise unless there is one loss for each row at hand, and they come from the model's outputs in this round."""
    if outputs is None:
        raise InvalidValue(
            "losses of this batch were used up by a `step` that failed. Its forward pass is not recorded any more. "
            "Give the loss function: training.step(loss_fn, x, y)."
        )
    if losses.shape != (rows,):
        raise InvalidValue(_another(f"losses={tuple(losses.shape)}", rows))
    if not outputs or not leads_to(losses.grad_fn, set(outputs)):
        raise InvalidValue(
            "losses do not come from a call of the model on the batch at hand. Its examples could not be clipped. "
            "Compute them in the loop, from model(x), with gradients on."
        )


def _another(given: str, rows: int) -> str:
    return (
        f"{given} must be one for each of the {rows} rows of the batch at hand. Another number is another batch, or a "
        "mean. Use reduction='none', and average what is left of each example."
    )


def leads_to(node: Node | None, ends: set[Node]) -> bool:
    """Whether one of `ends` lies below `node` in autograd's graph."""
    left, seen = [node], {node}
    while left:
        at = left.pop()
        if at in ends:
            return True
        for below, _ in at.next_functions if at is not None else ():
            if below is not None and below not in seen:
                seen.add(below)
                left.append(below)
    return False
