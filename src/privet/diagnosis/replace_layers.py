"""Replacements for layers that cannot be trained privately: what takes their place, and what becomes of the weights."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from privet.errors import InvalidValue
from privet.per_example.independence.model import group_count

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReplacement:
    """One replacement: the module's name, what stood there and what does now, why, and what became of its weights."""

    name: str
    before: str
    after: str
    why: str
    weights: str


def replace_layers(model: nn.Module) -> tuple[nn.Module, tuple[LayerReplacement, ...]]:
    """A copy of the model with every layer replaced that has a private counterpart, and the changes made.

    Parameters keep their names and values, so a checkpoint of the model still loads into the copy; running statistics
    in it are passed over. Make the optimizer from the copy's parameters.

    >>> model, changes = replace_layers(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)))
    >>> [(change.name, change.before, change.after) for change in changes]
    [('1', 'BatchNorm2d(16)', 'GroupNorm(8, 16)')]

    Raises:
        InvalidValue: the model cannot be copied, or the sizes of a lazy layer are not known yet.
    """
    check_sizes(model)
    try:
        made = copy.deepcopy(model)
    except RuntimeError:  # a tensor that autograd has computed, as older weight norms keep
        raise InvalidValue(
            f"model={type(model).__name__} cannot be copied. It holds a tensor that autograd has computed. "
            "Give a model that was not run yet."
        ) from None
    changes: list[LayerReplacement] = []
    instead: dict[int, nn.Module] = {}
    for name, module in made.named_modules():
        for mend in (_to_group_norm, _drop_statistics, _simplify_embedding):
            found = mend(name, module)
            if found is not None:
                instead[id(module)] = found[0]
                changes.append(found[1])
    for parent in list(made.modules()):
        for key, child in parent._modules.items():  # also where one layer has two names
            if child is not None and id(child) in instead:
                parent._modules[key] = instead[id(child)]
    made = instead.get(id(made), made)
    if changes:
        made.register_load_state_dict_pre_hook(partial(_skip_statistics, tuple(c.name for c in changes)))  # type: ignore[no-untyped-call]
    return made, tuple(changes)


def check_sizes(model: nn.Module) -> None:
    for name, module in model.named_modules():
        is_lazy: Callable[[], bool] | None = getattr(module, "has_uninitialized_params", None)
        if is_lazy is not None and is_lazy():
            raise InvalidValue(
                f"{name or 'the model'}: {type(module).__name__} does not know its sizes yet. They would be read off "
                "private records. Give them, or run the model once on random data, in eval()."
            )


def mixes_examples(module: nn.Module) -> bool:
    """Whether this is a batch norm that reads the batch: in training, or one that keeps no statistics."""
    return isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)


# --- one kind each ----------------------------------------------------------------------------------

Mended = tuple[nn.Module, LayerReplacement]


def _to_group_norm(name: str, module: nn.Module) -> Mended | None:
    """Batch norm of any kind; its own subclasses only where they compute the same, where not, a human must look."""
    if not isinstance(module, _BatchNorm) or not mixes_examples(module):
        return None
    channels = module.num_features
    if type(module).forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward) or channels < 2:
        return None
    new = nn.GroupNorm(group_count(module), channels, eps=module.eps, affine=module.affine)
    if module.affine:
        new.weight, new.bias = module.weight, module.bias  # the bias may be none
    new.train(module.training)
    weights = "weights are kept" if module.affine else "it has no weights"
    if module.running_mean is not None:
        weights += "; running statistics are dropped"
    return new, LayerReplacement(
        name=name, before=f"{type(module).__name__}({channels})",
        after=f"GroupNorm({new.num_groups}, {channels}{'' if module.affine else ', affine=False'})",
        why="mixes the examples of a batch, so no clip bounds what one of them does", weights=weights,
    )  # fmt: skip


def _drop_statistics(name: str, module: nn.Module) -> Mended | None:
    if not isinstance(module, _InstanceNorm) or not module.training or module.running_mean is None:
        return None
    module.track_running_stats = False
    for key in STATISTICS:
        setattr(module, key, None)
    kind = f"{type(module).__name__}({module.num_features}"
    return module, LayerReplacement(
        name=name, before=f"{kind}, track_running_stats=True)", after=f"{kind}, track_running_stats=False)",
        why="writes averages of the batch into the model, without noise",
        weights="weights are kept; running statistics are dropped, also for evaluation",
    )  # fmt: skip


def _simplify_embedding(name: str, module: nn.Module) -> Mended | None:
    if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return None
    odd = [key for key, off in (("max_norm", None), ("scale_grad_by_freq", False)) if getattr(module, key) != off]
    if not odd:
        return None
    kind = f"{type(module).__name__}({module.num_embeddings}, {module.embedding_dim}"
    before = f"{kind}, {', '.join(f'{key}={getattr(module, key)}' for key in odd)})"
    module.max_norm, module.scale_grad_by_freq = None, False
    return module, LayerReplacement(
        name=name, before=before, after=f"{kind})",
        why="rewrites its rows from the batch, before any noise" if "max_norm" in odd
        else "divides an example's gradient by how often others have its words",
        weights="weights are kept",
    )  # fmt: skip


def _skip_statistics(names: tuple[str, ...], module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A hook for loading: a checkpoint from before has statistics that no layer takes any more."""
    for name in names:
        for key in STATISTICS:
            state.pop(f"{prefix}{name}.{key}" if name else f"{prefix}{key}", None)
