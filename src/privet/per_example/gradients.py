"""Per-example gradients of a model, a loss and a batch: one forward and one backward, or chunks of examples by vmap."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from privet import _check
from privet.errors import InvalidValue, Unsupported
from privet.per_example import layers as _layer
from privet.per_example.forms import MOST_HELD, Dense, PerExampleGradient, widen
from privet.per_example.forward_record import Facts, ForwardRecord, batch_size_of, call_names, map_tensors, tensor_kinds
from privet.per_example.independence.buffers import BufferGuard
from privet.per_example.interception import track_parameters
from privet.per_example.layers.base import PerFunction, UnseenCall, function_name
from privet.per_example.model_facts import ModelFacts, model_facts, per_example_gradients, trainable_parameters
from privet.per_example.trial_pass import MANY

assert _layer

Loss = Callable[..., Tensor]
Force = Mapping[str, str] | str
WAYS = ("auto", "vmap", "loop")


@dataclass(frozen=True, slots=True)
class Work:
    """A model, a loss and a batch of examples, `augmentations` rows each."""

    model: nn.Module
    loss_fn: Loss
    inputs: Any
    targets: Any
    size: int
    augmentations: int
    named: dict[str, nn.Parameter]
    force: Force

    def losses(self, model: Any = None, take: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """One loss per row of what `take` takes of the batch: all, if it is not given."""
        inputs, targets, rows = self.inputs, self.targets, self.size * self.augmentations
        if take is not None:
            inputs, targets = map_tensors((inputs, targets), take)
            rows = batch_size_of((inputs, targets))
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

    def facts(self, *, again: bool = False) -> ModelFacts:
        """What is known of the model; a way that is forced is taken only once no example sees another."""
        signature = (tuple(self.named), tuple(sorted(self.forced_methods)), tensor_kinds((self.inputs, self.targets)),
                     loss_signature(self.loss_fn), self.size * self.augmentations > MANY)  # fmt: skip
        found = model_facts(self.model, signature, self.losses, self.forced_methods, again=again)
        if isinstance(self.force, str) and self.force != "auto":
            return replace(found, facts=None, calls=[], why=f"force={self.force!r}")
        return found

    @property
    def forced_methods(self) -> Mapping[str, str]:
        return {} if isinstance(self.force, str) else self.force

    def parts(self) -> Iterator[tuple[dict[str, PerExampleGradient], int]]:
        """The shares of some examples, and their number: of all at once, where the rules cover the model.

        All must be asked for: after the last it is looked at whether the model has written where it must not.
        """
        for again in (False, True):
            known = self.facts(again=again)
            if known.facts is None:
                break
            with suppress(UnseenCall):  # the model took another way with this batch
                held = BufferGuard(self.model, known.writes)
                shares = self.gradients(known.facts)
                held.check()
                yield shares, self.size
                return
        held = BufferGuard(self.model, known.writes)
        yield from gradients_in_chunks(self, by=self.force if isinstance(self.force, str) else "auto")
        held.check()

    def gradients(self, facts: Facts) -> dict[str, PerExampleGradient]:
        """One forward, one backward."""
        tape = ForwardRecord(
            call_names(self.named), facts, self.size, self.size * self.augmentations, self.forced_methods
        )
        with torch.enable_grad(), track_parameters(list(self.named.values()), tape):
            losses = self.losses()
        return per_example_gradients(
            tape.uses, losses / self.augmentations if self.augmentations > 1 else losses, self.named, self.size
        )


def prepare_work(model: nn.Module, loss_fn: Loss, batch: Any, *, augmentations: int = 1, force: Force = "auto") -> Work:
    model = unwrap_model(model)
    named = trainable_parameters(model)
    if not named:
        raise InvalidValue("model has no trainable parameter. Nothing can be clipped. Set requires_grad on some.")
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InvalidValue(
            f"batch={type(batch).__name__} must be a pair (inputs, targets). Inputs may be a tensor, a tuple or a dict."
        )
    _check.whole(augmentations=augmentations)
    rows = batch_size_of(tuple(batch))
    if rows % augmentations:
        raise InvalidValue(
            f"augmentations={augmentations} must divide the {rows} rows of the batch. Give each example "
            f"{augmentations} rows."
        )
    if isinstance(force, str):
        _check.one_of(WAYS, force=force)
    return Work(model, loss_fn, batch[0], batch[1], rows // augmentations, augmentations, named, force)


def loss_signature(loss_fn: Any) -> Any:
    """What tells two losses apart, though each step may make its own: a function's code, a module's settings."""
    if isinstance(loss_fn, partial):
        return loss_signature(loss_fn.func), tensor_kinds(loss_fn.args), tensor_kinds(loss_fn.keywords)
    if isinstance(loss_fn, nn.Module):
        settings = ((k, v) for k, v in vars(loss_fn).items() if isinstance(v, (str, int, float, bool)))
        return type(loss_fn), tuple(settings)
    return getattr(loss_fn, "__code__", None) or loss_fn


def check_losses(losses: Any, rows: int) -> None:
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InvalidValue(
            f"loss_fn gave {shape}, not one loss for each of {rows} examples. Use reduction='none', and average what "
            "is left of each example."
        )


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model under torch.compile or a parallel wrapper, whose parameters are the same."""
    while len(model._modules) == 1 and type(model).__module__.startswith("torch."):
        if hasattr(model, "_orig_mod"):
            warnings.warn("torch.compile is bypassed: private steps run the model uncompiled.", stacklevel=4)
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model


# --- the last resort: each example alone, all of a chunk at once by vmap, else one after the other ----


def gradients_in_chunks(work: Work, *, by: str = "auto") -> Iterator[tuple[dict[str, PerExampleGradient], int]]:
    """(shares, number of examples) for one chunk after the other, so that memory stays bounded."""
    numel = sum(p.numel() for p in work.named.values())
    at_once = max(1, min(work.size, MOST_HELD // max(numel, 1)))
    for examples in torch.split(torch.arange(work.size), at_once):
        yield _chunk_gradients(work, examples, by), len(examples)


def _chunk_gradients(work: Work, examples: Tensor, by: str) -> dict[str, PerExampleGradient]:
    if by == "loop":
        return _gradients_by_loop(work, examples)
    try:
        return _gradients_by_vmap(work, examples)
    except (RuntimeError, ValueError, NotImplementedError, TypeError, AttributeError):
        if by == "vmap":
            raise
        return _gradients_by_loop(work, examples)  # what vmap cannot do, it says in many ways


def _gradients_by_vmap(work: Work, examples: Tensor) -> dict[str, PerExampleGradient]:
    values = {name: p.detach() for name, p in work.named.items()}
    rest = {name: t.detach() for name, t in [*work.model.named_buffers(), *work.model.named_parameters()]
            if name not in values}  # fmt: skip
    tensors: list[Tensor] = []

    def gather(t: Tensor) -> Tensor:
        tensors.append(torch.unflatten(t, 0, (-1, work.augmentations))[examples.to(t.device)])
        return t

    map_tensors((work.inputs, work.targets), gather)

    def loss(parameters: dict[str, Tensor], *pieces: Tensor) -> Tensor:
        left = iter(pieces)

        def call(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(work.model, (parameters, rest), args, kwargs)

        return work.losses(call, lambda _: next(left)).mean()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, *[0] * len(tensors)), randomness="different")(
        values, *tensors
    )
    return {name: Dense(widen(grad)) for name, grad in grads.items()}


def _gradients_by_loop(work: Work, examples: Tensor) -> dict[str, PerExampleGradient]:
    found: dict[str, list[Tensor]] = {name: [] for name in work.named}
    for example in examples.tolist():
        rows = slice(example * work.augmentations, (example + 1) * work.augmentations)
        with torch.enable_grad():
            loss = work.losses(None, itemgetter(rows)).mean()
        grads = torch.autograd.grad(loss, list(work.named.values()), allow_unused=True)
        for (name, p), grad in zip(work.named.items(), grads, strict=True):
            found[name].append(torch.zeros_like(p) if grad is None else grad)
    return {name: Dense(widen(torch.stack(grads))) for name, grads in found.items()}


# --- for people -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One use: the torch function, the parameters that enter it, and the rule that serves it."""

    function: str
    parameters: tuple[str, ...]
    rule: str

    @property
    def is_slow(self) -> bool:
        """Whether no rule is for this function: its gradients are made and held for each example."""
        return self.rule == PerFunction.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How the engine goes through a model."""

    uses: tuple[Line, ...]
    whole: str  # why the whole model is run example by example; empty if it is not
    parameters: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        if self.whole:
            return f"whole model, example by example: {self.whole}"
        width = max((len(", ".join(line.parameters)) for line in self.uses), default=0)
        return "\n".join(f"{', '.join(line.parameters):<{width}}  {line.function} -> {line.rule}" for line in self.uses)

    def as_dict(self) -> dict[str, Any]:
        uses = [{"function": u.function, "parameters": list(u.parameters), "rule": u.rule} for u in self.uses]
        return {"uses": uses, "whole": self.whole, "parameters": {k: list(v) for k, v in self.parameters.items()}}


def explain(model: nn.Module, loss_fn: Loss, batch: Any, *, force: Force = "auto") -> Explanation:
    """Which rule serves each use, found by running the model on a few examples of the batch.

    >>> import torch
    >>> batch = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    >>> print(explain(nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"), batch))
    weight, bias  linear -> linear

    Raises:
        Unsupported: the model couples examples, or does what no rule covers; names the module and the way out.
    """
    work = prepare_work(model, loss_fn, batch, force=force)
    if work.size == 0:
        raise InvalidValue("batch has no example. The model is run on some of them. Give one or more.")
    known = work.facts()
    uses = tuple(
        Line(function=function_name(call.key[0]), parameters=call.key[1], rule=call.rule)
        for call in known.calls if call.is_use
    )  # fmt: skip
    return Explanation(uses=uses, whole=known.why, parameters={name: tuple(p.shape) for name, p in work.named.items()})
