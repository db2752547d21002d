"""What must fit before a checkpoint is restored: names, shapes, kinds of numbers, ties, and finite weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from privet._text import shorten
from privet.errors import InvalidValue
from privet.training.checkpoint_format import OTHER, format_place, memory_identity

# Their state is one number, or one for each entry of the parameter.
_ENTRYWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "ASGD", "Rprop")


def class_name(thing: object) -> str | None:
    return None if thing is None else type(thing).__qualname__


def parameter_order(model: nn.Module, optimizer: Optimizer) -> list[list[str | None]]:
    """The names of the parameters as the optimizer counts them; None is one that is not the model's."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        names.setdefault(id(parameter), name)
    return [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]


def check_finite(state: Mapping[str, Any], model: nn.Module, place: str, advice: str) -> None:
    for name, _ in model.named_parameters(remove_duplicate=False):
        value = state.get(name)
        if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            raise InvalidValue(f"{place}.{name} has values that are not finite. Training cannot go on. {advice}")


def check_own_memory(state: Mapping[str, Any]) -> None:
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
                f"{place} {what} {describe_names(these)}, unlike the one to restore. It is of another run. "
                "Make everything as for that run, or give another folder."
            )
    return found


def describe_names(names: set[Any]) -> str:
    return repr(shorten(min(map(str, names)))) + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def check_model(found: object, model: nn.Module, state: Mapping[str, Any]) -> None:
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
    check_finite(saved, model, "model", OTHER)


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


def check_average(average: Mapping[str, Any], model: nn.Module, state: Mapping[str, Any], advice: str) -> None:
    for name, value in average.items():
        of = state.get(name)
        if not isinstance(value, Tensor) or not isinstance(of, Tensor) or of.shape != value.shape:
            raise InvalidValue(
                f"average.{format_place(str(name))} is {_describe_value(value)}, the model's is "
                f"{_describe_value(of)}. {advice}"
            )
    check_finite(average, model, "average", advice)


def check_kinds(kinds: object, optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
    now = {"optimizer": class_name(optimizer), "scheduler": class_name(scheduler)}
    for name, found in _check_table(kinds, now, "kinds").items():
        if found != now[name]:
            found = format_place(str(found or "none"))
            raise InvalidValue(f"its {name} is {found}, not {now[name] or 'none'}. Give the {name} of that run.")


def check_optimizer(found: object, names: object, model: nn.Module, optimizer: Optimizer) -> None:
    now = optimizer.state_dict()
    saved = _check_table(found, now, "optimizer")
    if names != parameter_order(model, optimizer) or not _same_groups(saved["param_groups"], now["param_groups"]):
        raise InvalidValue(
            "its optimizer has other groups of parameters or other settings. It is of another run. "
            "Make the optimizer as for that run."
        )
    if not isinstance(saved["state"], dict):
        raise InvalidValue(f"optimizer.state is not a table. {OTHER}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in saved["state"].items():
        if type(number) is int:  # a word stands for something that all parameters share
            _check_state(number, values, parameters, entrywise=class_name(optimizer) in _ENTRYWISE)


def _same_groups(saved: object, groups: list[dict[str, Any]]) -> bool:
    """Whether the groups have the same parameters, and at least these settings (a scheduler adds some)."""
    return (
        isinstance(saved, list)
        and len(saved) == len(groups)
        and all(isinstance(one, dict) and set(group) <= set(one) for one, group in zip(saved, groups, strict=True))
        and all(one["params"] == group["params"] for one, group in zip(saved, groups, strict=True))
    )


def _check_state(number: int, values: object, parameters: list[Tensor], *, entrywise: bool) -> None:
    if not 0 <= number < len(parameters):
        raise InvalidValue(f"optimizer.state.{number} is of no parameter. {OTHER}")
    of = parameters[number].shape
    tensors = {k: v for k, v in values.items() if isinstance(v, Tensor)} if isinstance(values, dict) else {}
    wrong = {key for key, value in tensors.items() if value.shape not in (of, ())}
    if wrong and entrywise:
        raise InvalidValue(
            f"optimizer.state.{number}: {describe_names(wrong)} has not the shape of its parameter. {OTHER}"
        )


def check_keys(found: Any, now: Any, place: str) -> None:
    """Raise unless the tables in `found` have the keys of those in `now`: torch would set any attribute."""
    if type(found) is not type(now) and (isinstance(found, dict | list) or isinstance(now, dict | list)):
        raise InvalidValue(f"{place} is of another kind. It is of another run. Give the scheduler of that run.")
    if type(now) is dict:
        _check_table(found, now, place)
        for key in now:
            check_keys(found[key], now[key], f"{place}.{key}")
    elif isinstance(now, list) and len(found) == len(now):
        for i, (one, other) in enumerate(zip(found, now, strict=True)):
            check_keys(one, other, f"{place}.{i}")
