"""Per-example gradients of a model, a loss and a batch: one forward and one backward, or chunks of examples by vmap."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from privet import _check
from privet.engine import layer as _layer  # registers the rules
from privet.engine.analysis import MANY
from privet.engine.batches import kinds, mapped, size_of
from privet.engine.intercept import tracking
from privet.engine.knowledge import Known, known_of, shares_of, trainable
from privet.engine.share import Share
from privet.engine.state import Held
from privet.engine.tape import Facts, Tape, Unforeseen, names_of
from privet.engine.whole import WAYS, shares_in_chunks
from privet.errors import InvalidValue, Unsupported

assert _layer

Loss = Callable[..., Tensor]
Force = Mapping[str, str] | str


@dataclass(frozen=True, slots=True)
class Work:
    """A model, a loss and a batch of examples, `views` rows each."""

    model: nn.Module
    loss_fn: Loss
    inputs: Any
    targets: Any
    size: int
    views: int
    named: dict[str, nn.Parameter]
    force: Force

    def losses(self, model: Any = None, take: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """One loss per row of what `take` takes of the batch: all, if it is not given."""
        inputs, targets, rows = self.inputs, self.targets, self.size * self.views
        if take is not None:
            inputs, targets = mapped((inputs, targets), take)
            rows = size_of((inputs, targets))
        model = self.model if model is None else model
        if isinstance(inputs, dict):
            out = model(**inputs)
        else:
            out = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        try:
            found = self.loss_fn(out, targets)
        except (RuntimeError, ValueError, IndexError) as error:
            if take is None:
                raise
            raise Unsupported(
                f"loss_fn fails on {rows} rows of the batch, with a {type(error).__name__}. It is asked for some of "
                "them, to see that examples are independent, so it cannot use what has the size of the whole batch. "
                "Give that as inputs or targets."
            ) from error
        check_losses(found, rows)
        return found

    def known(self, *, again: bool = False) -> Known:
        """What is known of the model; a way that is forced is taken only once no example sees another."""
        signature = (tuple(self.named), tuple(sorted(self.forced)), kinds((self.inputs, self.targets)),
                     kind_of_loss(self.loss_fn), self.size * self.views > MANY)  # fmt: skip
        found = known_of(self.model, signature, self.losses, self.forced, again=again)
        if isinstance(self.force, str) and self.force != "auto":
            return replace(found, facts=None, calls=[], why=f"force={self.force!r}")
        return found

    @property
    def forced(self) -> Mapping[str, str]:
        return {} if isinstance(self.force, str) else self.force

    def parts(self) -> Iterator[tuple[dict[str, Share], int]]:
        """The shares of some examples, and their number: of all at once, where the rules cover the model.

        All must be asked for: after the last it is looked at whether the model has written where it must not.
        """
        for again in (False, True):
            known = self.known(again=again)
            if known.facts is None:
                break
            with suppress(Unforeseen):  # the model took another way with this batch
                held = Held(self.model, known.writes)
                shares = self.shares(known.facts)
                held.check()
                yield shares, self.size
                return
        held = Held(self.model, known.writes)
        yield from shares_in_chunks(self, by=self.force if isinstance(self.force, str) else "auto")
        held.check()

    def shares(self, facts: Facts) -> dict[str, Share]:
        """One forward, one backward."""
        tape = Tape(names_of(self.named), facts, self.size, self.size * self.views, self.forced)
        with torch.enable_grad(), tracking(list(self.named.values()), tape):
            losses = self.losses()
        return shares_of(tape.uses, losses / self.views if self.views > 1 else losses, self.named, self.size)


def work_on(model: nn.Module, loss_fn: Loss, batch: Any, *, views: int = 1, force: Force = "auto") -> Work:
    """The work, checked."""
    model = plain_model(model)
    named = trainable(model)
    if not named:
        raise InvalidValue("model has no trainable parameter. Nothing can be clipped. Set requires_grad on some.")
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InvalidValue(
            f"batch={type(batch).__name__} must be a pair (inputs, targets). Inputs may be a tensor, a tuple or a dict."
        )
    _check.whole(views=views)
    rows = size_of(tuple(batch))
    if rows % views:
        raise InvalidValue(f"views={views} must divide the {rows} rows of the batch. Give each example {views} rows.")
    if isinstance(force, str):
        _check.one_of(WAYS, force=force)
    return Work(model, loss_fn, batch[0], batch[1], rows // views, views, named, force)


def kind_of_loss(loss_fn: Any) -> Any:
    """What tells two losses apart, though each step may make its own: a function's code, a module's settings."""
    if isinstance(loss_fn, partial):
        return kind_of_loss(loss_fn.func), kinds(loss_fn.args), kinds(loss_fn.keywords)
    if isinstance(loss_fn, nn.Module):
        settings = ((k, v) for k, v in vars(loss_fn).items() if isinstance(v, (str, int, float, bool)))
        return type(loss_fn), tuple(settings)
    return getattr(loss_fn, "__code__", None) or loss_fn


def check_losses(losses: Any, rows: int) -> None:
    """Raise unless there is one loss for each row, and a parameter enters it."""
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InvalidValue(
            f"loss_fn gave {shape}, not one loss for each of {rows} examples. Use reduction='none', and average what "
            "is left of each example."
        )


def plain_model(model: nn.Module) -> nn.Module:
    """The model under torch.compile or a parallel wrapper, whose parameters are the same."""
    while len(model._modules) == 1 and type(model).__module__.startswith("torch."):
        if hasattr(model, "_orig_mod"):
            warnings.warn("torch.compile is bypassed: private steps run the model uncompiled.", stacklevel=4)
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model
