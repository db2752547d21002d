"""Checkpoints: model, optimizer, scheduler and progress in one file, restored bit for bit or not at all.

It holds no generator of noise: a resumed run draws fresh noise. Nor does it say what was spent: the ledger does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from privet._text import one_line, shorten
from privet.errors import InvalidValue, name_errors
from privet.noise.release import match_strides
from privet.training import checkpoint_format as layout
from privet.training.checkpoint_format import NAME, OTHER, format_place, memory_identity

__all__ = ["NAME", "Checkpoint", "load", "load_weights", "peek", "save"]

_SECTIONS = ("model", "optimizer", "scheduler", "rule", "average", "extra")
# Their state is one number, or one for each entry of the parameter.
_ENTRYWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "ASGD", "Rprop")


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
    state, tensors, kind = model.state_dict(), dict[str, Tensor](), _class_name
    document = {
        "kinds": {"optimizer": kind(optimizer), "scheduler": kind(scheduler)},
        "order": _parameter_order(model, optimizer),
        "model": layout.encode_state(dict(state), "model", tensors),
        "optimizer": layout.encode_state(optimizer.state_dict(), "optimizer", tensors),
        "scheduler": layout.encode_state(None if scheduler is None else scheduler.state_dict(), "scheduler", tensors),
        "rule": layout.encode_state(rule_state, "rule", tensors),
        "average": layout.encode_state(None if average is None else dict(average), "average", tensors),
        "extra": layout.encode_state(dict(extra), "extra"),
    }
    stays = "The checkpoint before it stays. Go back to it with a lower learning rate."
    _check_finite(state, model, "model", stays)
    _check_own_memory(state)
    if average is not None:
        _check_average(average, model, state, stays)
    return layout.write(Path(folder) / NAME, document, tensors)


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
    with name_errors(file):
        state = model.state_dict()
        _check_model(found["model"], model, state)
        _check_kinds(found["kinds"], optimizer, scheduler)
        _check_optimizer(found["optimizer"], found["order"], model, optimizer)
        if scheduler is not None:
            _check_keys(found["scheduler"], scheduler.state_dict(), "scheduler")
        if checkpoint.average is not None:
            _check_average(checkpoint.average, model, state, OTHER)
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
    with name_errors(file):
        state = model.state_dict()
        _check_model(found["model"], model, state)
        average = checkpoint.average or {}
        _check_average(average, model, state, OTHER)
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


def _read_sections(file: Path) -> tuple[dict[str, Any], Checkpoint]:
    document, tensors, digest = layout.read(file)
    with name_errors(file):
        if set(document) != {"format", "version", "kinds", "order", *_SECTIONS}:
            raise InvalidValue(f"it does not have the sections of a checkpoint. {OTHER}")
        used: set[str] = set()
        found = {
            key: layout.decode_state(document[key], key, tensors if key != "extra" else {}, used) for key in _SECTIONS
        }
        if used != set(tensors):
            raise InvalidValue(
                f"it holds {_describe_names(set(tensors) - used)}, which nothing in it speaks of. {OTHER}"
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


# --- what must fit before anything is restored -------------------------------------------------------


def _class_name(thing: object) -> str | None:
    return None if thing is None else type(thing).__qualname__


def _parameter_order(model: nn.Module, optimizer: Optimizer) -> list[list[str | None]]:
    """The names of the parameters as the optimizer counts them; None is one that is not the model's."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        names.setdefault(id(parameter), name)
    return [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]


def _check_finite(state: Mapping[str, Any], model: nn.Module, place: str, advice: str) -> None:
    for name, _ in model.named_parameters(remove_duplicate=False):
        value = state.get(name)
        if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            raise InvalidValue(f"{place}.{name} has values that are not finite. Training cannot go on. {advice}")


def _check_own_memory(state: Mapping[str, Any]) -> None:
    """Raise if a tensor has one number in several places: torch saves it, and cannot load it."""
    for name, value in state.items():
        if isinstance(value, Tensor) and any(n > 1 and not s for n, s in zip(value.shape, value.stride(), strict=True)):
            raise InvalidValue(
                f"model.{name} is an expanded tensor, which torch cannot load into. The checkpoint would be useless. "
                "Use `.contiguous()` where the model makes it."
            )


def _check_table(found: object, wanted: Mapping[str, Any], place: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InvalidValue(f"{place} is not a table. {OTHER}")
    for these, what in ((set(wanted) - set(found), "lacks"), (set(found) - set(wanted), "has")):
        if these:
            raise InvalidValue(
                f"{place} {what} {_describe_names(these)}, unlike the one to restore. It is of another run. "
                "Make everything as for that run, or give another folder."
            )
    return found


def _describe_names(names: set[Any]) -> str:
    return repr(shorten(min(map(str, names)))) + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _check_model(found: object, model: nn.Module, state: Mapping[str, Any]) -> None:
    saved = _check_table(found, state, "model")
    for name, now in state.items():
        if name.endswith(nn.modules.module._EXTRA_STATE_KEY_SUFFIX):  # anything: its layer looks at it
            continue
        if _describe_value(saved[name]) != _describe_value(now):
            raise InvalidValue(
                f"model.{name} is {_describe_value(saved[name])}, the model's is {_describe_value(now)}. It is of "
                "another model. Make the model as for that run."
            )
    if _tied_names(saved) != _tied_names(state):
        raise InvalidValue("other parameters are tied in it than in the model. Make the model as for that run.")
    _check_finite(saved, model, "model", OTHER)


def _describe_value(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"no tensor ({type(value).__name__})"
    return f"{value.dtype} {tuple(value.shape)}{' without memory' if value.is_meta else ''}"


def _tied_names(state: Mapping[str, Any]) -> set[frozenset[str]]:
    groups: dict[object, list[str]] = {}
    for name, value in state.items():
        if isinstance(value, Tensor) and (same := memory_identity(value)) is not None:
            groups.setdefault(same, []).append(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def _check_average(average: Mapping[str, Any], model: nn.Module, state: Mapping[str, Any], advice: str) -> None:
    for name, value in average.items():
        of = state.get(name)
        if not isinstance(value, Tensor) or not isinstance(of, Tensor) or of.shape != value.shape:
            raise InvalidValue(
                f"average.{format_place(str(name))} is {_describe_value(value)}, the model's is "
                f"{_describe_value(of)}. {advice}"
            )
    _check_finite(average, model, "average", advice)


def _check_kinds(kinds: object, optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
    now = {"optimizer": _class_name(optimizer), "scheduler": _class_name(scheduler)}
    for name, found in _check_table(kinds, now, "kinds").items():
        if found != now[name]:
            found = format_place(str(found or "none"))
            raise InvalidValue(f"its {name} is {found}, not {now[name] or 'none'}. Give the {name} of that run.")


def _check_optimizer(found: object, names: object, model: nn.Module, optimizer: Optimizer) -> None:
    now = optimizer.state_dict()
    saved = _check_table(found, now, "optimizer")
    if names != _parameter_order(model, optimizer) or not _same_groups(saved["param_groups"], now["param_groups"]):
        raise InvalidValue(
            "its optimizer has other groups of parameters or other settings. It is of another run. "
            "Make the optimizer as for that run."
        )
    if not isinstance(saved["state"], dict):
        raise InvalidValue(f"optimizer.state is not a table. {OTHER}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in saved["state"].items():
        if type(number) is int:  # a word stands for something that all parameters share
            _check_state(number, values, parameters, entrywise=_class_name(optimizer) in _ENTRYWISE)


def _same_groups(saved: object, groups: list[dict[str, Any]]) -> bool:
    """Whether the groups have the same parameters, and at least these settings (a scheduler adds some)."""
    if not isinstance(saved, list) or len(saved) != len(groups):
        return False
    return all(
        isinstance(one, dict) and set(group) <= set(one) and one["params"] == group["params"]
        for one, group in zip(saved, groups, strict=True)
    )


def _check_state(number: int, values: object, parameters: list[Tensor], *, entrywise: bool) -> None:
    if not 0 <= number < len(parameters):
        raise InvalidValue(f"optimizer.state.{number} is of no parameter. {OTHER}")
    of = parameters[number].shape
    tensors = {k: v for k, v in values.items() if isinstance(v, Tensor)} if isinstance(values, dict) else {}
    wrong = {key for key, value in tensors.items() if value.shape not in (of, ())}
    if wrong and entrywise:
        raise InvalidValue(
            f"optimizer.state.{number}: {_describe_names(wrong)} has not the shape of its parameter. {OTHER}"
        )


def _check_keys(found: Any, now: Any, place: str) -> None:
    """Raise unless the tables in `found` have the keys of those in `now`: torch would set any attribute."""
    if type(found) is not type(now) and (isinstance(found, dict | list) or isinstance(now, dict | list)):
        raise InvalidValue(f"{place} is of another kind. It is of another run. Give the scheduler of that run.")
    if type(now) is dict:
        _check_table(found, now, place)
        for key in now:
            _check_keys(found[key], now[key], f"{place}.{key}")
    elif isinstance(now, list) and len(found) == len(now):
        for i, (one, other) in enumerate(zip(found, now, strict=True)):
            _check_keys(one, other, f"{place}.{i}")
