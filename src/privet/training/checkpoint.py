"""Checkpoints: model, optimizer, scheduler and progress in one file, restored bit for bit or not at all.

It holds no generator of noise: a resumed run draws fresh noise. Nor does it say what was spent: the ledger does.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from privet._text import one_line, shorten
from privet.errors import InvalidValue, PrivetError
from privet.noise.release import match_strides
from privet.training import checkpoint_compat
from privet.training.checkpoint_compat import check_finite
from privet.training.checkpoint_format import NAME, OTHER, decode_state, encode_state, read, write

__all__ = ["NAME", "Checkpoint", "load", "load_weights", "peek", "save"]

_SECTIONS = ("model", "optimizer", "scheduler", "rule", "average", "extra")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint holds beside the states that are restored."""

    extra: Mapping[str, Any]
    rule_state: Any  # the memory of an adaptive clipping rule, or None
    average: Mapping[str, Tensor] | None  # the averaged weights
    digest: str  # SHA-256 of the file before it, in hexadecimal


def save(
    folder: str | Path, *, model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None = None,
    rule_state: object = None, average: Mapping[str, Tensor] | None = None, extra: Mapping[str, object],
) -> str:  # fmt: skip
    """Replace the checkpoint in a folder, once the new one is on the disk; gives its checksum.

    A crash at any moment, or an error, leaves the old one or the new one, whole.

    Args:
        rule_state: the memory of an adaptive clipping rule: numbers and tensors.
        average: averaged weights by the names of the model's.
        extra: plain values: the step, the ledger's mark, metrics, versions.

    Raises:
        InvalidValue: something cannot be kept (the place is named), a weight is not finite, or the disk is full.
    """
    state, tensors, kind = model.state_dict(), dict[str, Tensor](), checkpoint_compat.class_name
    document = {
        "kinds": {"optimizer": kind(optimizer), "scheduler": kind(scheduler)},
        "order": checkpoint_compat.parameter_order(model, optimizer),
        "model": encode_state(dict(state), "model", tensors),
        "optimizer": encode_state(optimizer.state_dict(), "optimizer", tensors),
        "scheduler": encode_state(None if scheduler is None else scheduler.state_dict(), "scheduler", tensors),
        "rule": encode_state(rule_state, "rule", tensors),
        "average": encode_state(None if average is None else dict(average), "average", tensors),
        "extra": encode_state(dict(extra), "extra"),
    }
    stays = "The checkpoint before it stays. Go back to it with a lower learning rate."
    check_finite(state, model, "model", stays)
    checkpoint_compat.check_own_memory(state)
    if average is not None:
        checkpoint_compat.check_average(average, model, state, stays)
    return write(Path(folder) / NAME, document, tensors)


def load(
    folder: str | Path, *, model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None = None
) -> Checkpoint:
    """Restore what `save` was given, bit for bit, on the devices of `model`; nothing is changed unless all of it fits.

    Make them as for a new run first; functions (of `LambdaLR`) are not in the file, and stay those given here.

    >>> import tempfile, torch
    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     digest = save(folder, model=model, optimizer=optimizer, extra={"step": 7})
    ...     load(folder, model=model, optimizer=optimizer).extra
    {'step': 7}

    Raises:
        InvalidValue: there is no checkpoint, it is damaged, or it is of another model, optimizer or scheduler.
    """
    file = Path(folder) / NAME
    found, checkpoint = _read_sections(file)
    with _name_file_in_errors(file):
        state = model.state_dict()
        checkpoint_compat.check_model(found["model"], model, state)
        checkpoint_compat.check_kinds(found["kinds"], optimizer, scheduler)
        checkpoint_compat.check_optimizer(found["optimizer"], found["order"], model, optimizer)
        if scheduler is not None:
            checkpoint_compat.check_keys(found["scheduler"], scheduler.state_dict(), "scheduler")
        if checkpoint.average is not None:
            checkpoint_compat.check_average(checkpoint.average, model, state, OTHER)
            there = {name: value.to(state[name].device) for name, value in checkpoint.average.items()}
            checkpoint = replace(checkpoint, average=there)
        _restore(found, model, optimizer, scheduler)
    return checkpoint


def load_weights(folder: str | Path, *, model: nn.Module) -> Checkpoint:
    """Restore the weights alone, to use a model and not to train it: the averaged ones where there are any.

    Raises:
        InvalidValue: there is no checkpoint, it is damaged, or it is of another model. Then nothing is changed.
    """
    file = Path(folder) / NAME
    found, checkpoint = _read_sections(file)
    with _name_file_in_errors(file):
        state = model.state_dict()
        checkpoint_compat.check_model(found["model"], model, state)
        average = checkpoint.average or {}
        checkpoint_compat.check_average(average, model, state, OTHER)
        state.update(found["model"])
        model.load_state_dict(state)
        for name, parameter in model.named_parameters():
            if name in average:
                parameter.data.copy_(average[name])
    return checkpoint


def peek(folder: str | Path) -> Checkpoint:
    """What a checkpoint says, with nothing restored: which step it is of, before a model is made.

    Raises:
        InvalidValue: there is no checkpoint, or it is damaged.
    """
    return _read_sections(Path(folder) / NAME)[1]


# --- the content ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _name_file_in_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except PrivetError as error:
        raise type(error)(f"{file}: {error}") from None


def _read_sections(file: Path) -> tuple[dict[str, Any], Checkpoint]:
    document, tensors, digest = read(file)
    with _name_file_in_errors(file):
        if set(document) != {"format", "version", "kinds", "order", *_SECTIONS}:
            raise InvalidValue(f"it does not have the sections of a checkpoint. {OTHER}")
        used: set[str] = set()
        found = {key: decode_state(document[key], key, tensors if key != "extra" else {}, used) for key in _SECTIONS}
        if used != set(tensors):
            raise InvalidValue(
                f"it holds {checkpoint_compat.describe_names(set(tensors) - used)}, which nothing in it speaks of. "
                f"{OTHER}"
            )
        if not isinstance(found["extra"], dict) or not isinstance(found["average"], dict | None):
            raise InvalidValue(f"extra and average must be tables. {OTHER}")
    found |= {"kinds": document["kinds"], "order": document["order"]}
    rest = {"rule_state": found["rule"], "average": found["average"], "extra": found["extra"]}
    return found, Checkpoint(**rest, digest=digest)


# --- restoring --------------------------------------------------------------------------------------


def _restore(found: Mapping[str, Any], model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
    """Put everything in its place; should torch or a user's class refuse it after all, everything is as before."""
    take_back = _snapshot(model, optimizer, scheduler)
    try:
        _restore_optimizer(optimizer, found["optimizer"])
        if scheduler is not None:
            scheduler.load_state_dict(found["scheduler"])
        state = model.state_dict()  # also has the versions of the layers, which loading asks for
        state.update(found["model"])
        model.load_state_dict(state)
    except BaseException as error:
        take_back()
        if not isinstance(error, Exception):
            raise
        raise InvalidValue(f"cannot be restored: {shorten(one_line(error))}. {OTHER}") from error


def _snapshot(model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None) -> Callable[[], None]:
    weights = [(now, now.clone()) for now in model.state_dict().values() if isinstance(now, Tensor)]
    state, groups = optimizer.state, optimizer.param_groups  # torch replaces these, and leaves their content alone
    plan = None if scheduler is None else scheduler.state_dict()

    def take_back() -> None:
        optimizer.state, optimizer.param_groups = state, groups
        for now, before in weights:
            now.copy_(before)
        if scheduler is not None and plan is not None:
            scheduler.load_state_dict(plan)

    return take_back


def _restore_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    optimizer.load_state_dict(dict(saved))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in saved["state"].items():
        if type(number) is int and isinstance(values, dict):
            state = optimizer.state[parameters[number]]
            for key, value in values.items():
                now = state.get(key)
                if isinstance(value, Tensor) and isinstance(now, Tensor) and now.dtype != value.dtype:
                    state[key] = now = value.to(now.device)  # torch had cast it to the parameter's
                if isinstance(now, Tensor) and now.shape == parameters[number].shape:
                    state[key] = match_strides(parameters[number], now, dtype=now.dtype)
