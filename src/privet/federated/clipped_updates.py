"""From clients' updates to one: a sum, each clipped, or an average, none far longer than the others.

What a client sends is read once, by `plain`, before anything is done with it: a client that sends no plain tensors of
the model's shapes has dropped out, and the others go on.
"""

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from privet.clipping.clipped_sum import ClippedSum, Clipper, float_dtype
from privet.clipping.rule import ClippingRule
from privet.per_example.forms import MOST_HELD, Dense, PerExampleGradient

Update = Mapping[str, Tensor]  # by the names of trainable parameters: which way the client would go, times -1
Named = Mapping[str, nn.Parameter]

TOGETHER = 64  # updates clipped at once: less time than one by one, and no more memory than so many models
WIDEST = 3.0  # medians that an update may be long in an average without clips: of one plan, noise makes all alike
PLAIN = (Tensor, nn.Parameter)  # a subclass runs code of its own, and may say another thing each time it is asked

log = logging.getLogger("privet.federated")  # for who runs the server: it tells who was asked, which is no metric


class Unusable(Exception):
    """Why an update cannot be used: the kind of fault, in our words alone. Its values are a client's own."""


def clipped_updates(updates: Iterable[Update], named: Named, rule: ClippingRule, clipping_norm: float) -> ClippedSum:
    """The sum over clients of what `rule` leaves of each update; they are read a few at a time.

    An update that `plain` cannot use counts as zero: its client has dropped out.
    """
    return sum_dense_updates(
        (kept for u in updates if (kept := _try_dense_update(u, named))), named, rule, clipping_norm
    )


def sum_dense_updates(updates: Iterable[Update], named: Named, rule: ClippingRule, clipping_norm: float) -> ClippedSum:
    """The same, of updates that `plain` gave."""
    clipper = Clipper(rule, named)
    in_force = clipper.rule.clip_in_force(clipping_norm)
    total = clipper.zero(in_force)
    most = max(1, min(TOGETHER, MOST_HELD // max(1, sum(p.numel() for p in named.values()))))
    left = iter(updates)
    while some := list(itertools.islice(left, most)):
        shares: dict[str, PerExampleGradient] = {name: Dense(torch.stack([u[name] for u in some])) for name in named}
        total = total + clipper.sum(shares, len(some), in_force)
    return total


def usable_updates(answers: Iterable[tuple[int, object]], named: Named, *, number: int) -> Iterator[tuple[int, Update]]:
    """The updates of round `number` that can be used, by client. Of the others the log has the client and the fault."""
    for client, update in answers:
        try:
            yield client, to_dense_update(update, named)
        except Unusable as fault:
            log_dropout(number, client, str(fault))


def log_dropout(number: int, client: int, fault: str) -> None:
    log.warning("round %d: client %d has dropped out: %s", number, client, fault)


def to_dense_update(update: object, named: Named) -> dict[str, Tensor]:
    """An update as dense finite tensors in float32 or better, on the devices of the model's parameters."""
    try:
        given = _read(update, named)
        return {name: _to_dense_tensor(given[name], p, name) for name, p in named.items()}
    except Unusable:
        raise
    except Exception:  # its message might quote what the client sent
        raise Unusable("its update cannot be read") from None


def average_updates(updates: Sequence[tuple[float, Update]], named: Named) -> dict[str, Tensor]:
    """The average of updates that `plain` gave, by their weights, none longer than `WIDEST` times the median.

    The median is of their norms, the lower of the two in the middle. So as long as fewer than half of them are made to
    harm, one moves the average by at most its weight's share of `WIDEST` honest updates. All were private before.
    """
    norms = [_update_norm(update) for _, update in updates]
    most = WIDEST * sorted(norms)[(len(norms) - 1) // 2]
    whole = math.fsum(weight for weight, _ in updates)
    total = {name: torch.zeros_like(p, dtype=float_dtype(p), requires_grad=False) for name, p in named.items()}
    for (weight, update), norm in zip(updates, norms, strict=True):
        scale = weight / whole * (most / norm if norm > most else 1.0)
        for name, value in update.items():
            total[name].add_(value, alpha=scale)
    return total


def _update_norm(update: Update) -> float:
    """The norm over all tensors, in parts of the largest entry: squares of large ones would overflow."""
    largest = max((float(t.abs().max()) for t in update.values() if t.numel()), default=0.0)
    if largest == 0:
        return 0.0
    return largest * math.sqrt(math.fsum(float((t.double() / largest).square().sum()) for t in update.values()))


def _try_dense_update(update: object, named: Named) -> Update | None:
    try:
        return to_dense_update(update, named)
    except Unusable:
        return None


def _read(update: object, named: Named) -> dict[str, object]:
    """The names and values of an update, read once: a mapping may give others the next time."""
    if not isinstance(update, Mapping):
        raise Unusable("its update is not a mapping from names to tensors")
    given = dict(itertools.islice(update.items(), len(named) + 1))
    if given.keys() != named.keys():
        raise Unusable("its update lacks a parameter of the model, or has something else beside them")
    return given


def _to_dense_tensor(value: object, p: nn.Parameter, name: str) -> Tensor:
    if type(value) not in PLAIN:
        what = "a subclass of Tensor" if isinstance(value, Tensor) else "not a tensor"
        raise Unusable(f"its {name!r} is {what}")
    t = Tensor.detach(value)  # type: ignore[arg-type]  # a new object: what was set on the old one is not asked
    if t.layout != torch.strided or t.is_nested or t.is_meta:
        raise Unusable(f"its {name!r} is {'on the meta device' if t.is_meta else 'not dense'}")
    if not t.is_floating_point():
        raise Unusable(f"its {name!r} is not of real floating-point numbers")
    if t.shape != p.shape:
        raise Unusable(f"its {name!r} is not of the parameter's shape")
    if not _has_memory(t):
        raise Unusable(f"its {name!r} has no memory behind it")
    t = t.to(p.device, float_dtype(p))
    if not bool(t.isfinite().all()):
        raise Unusable(f"its {name!r} is not finite")
    return t


def _has_memory(t: Tensor) -> bool:
    """Whether the storage holds all that shape and strides speak of: reading beyond it ends the process."""
    if not t.numel():
        return True
    last = t.storage_offset() + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size() <= t.untyped_storage().nbytes()
