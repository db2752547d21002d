"""The sum of clients' updates, each clipped: what one client sends moves it by at most the clip, whatever that is."""

import itertools
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from privet.engine.clip import Rule
from privet.engine.share import MOST_HELD, Dense, Share
from privet.engine.summing import ClippedSum, clipped, nothing

Update = Mapping[str, Tensor]  # by the names of trainable parameters: which way the client would go, times -1
Named = Mapping[str, nn.Parameter]

TOGETHER = 64  # updates clipped at once: less time than one by one, and no more memory than so many models


def clipped_updates(updates: Iterable[Update], named: Named, rule: Rule, clip: float) -> ClippedSum:
    """The sum over clients of what `rule` leaves of each update; they are read a few at a time.

    An update that is not finite, or not of the model's shapes, counts as zero: its client has dropped out.

    >>> from privet.engine.clip import rule_for
    >>> model = nn.Linear(2, 1, bias=False)
    >>> named = dict(model.named_parameters())
    >>> found = clipped_updates([{"weight": torch.tensor([[3.0, 4.0]])}], named, rule_for("flat"), 1.0)
    >>> found.grads["weight"].round(decimals=3), found.norm_bound
    (tensor([[0.6000, 0.8000]]), 1.0)
    """
    total = nothing(named, rule, clip)
    most = max(1, min(TOGETHER, MOST_HELD // max(1, sum(p.numel() for p in named.values()))))
    for some in _batched((u for u in updates if fits(u, named)), most):
        shares: dict[str, Share] = {
            name: Dense(torch.stack([u[name].detach().to(p.device, _wide(p)) for u in some]))
            for name, p in named.items()
        }
        total = total + clipped(shares, named, len(some), rule, clip)
    return total


def fits(update: object, named: Named) -> bool:
    """Whether something has a real tensor of the right shape for each parameter, and nothing else."""
    return (
        isinstance(update, Mapping)
        and update.keys() == named.keys()
        and all(isinstance(t, Tensor) and t.is_floating_point() and t.shape == named[n].shape
                for n, t in update.items())
    )  # fmt: skip


def _batched(updates: Iterator[Update], most: int) -> Iterator[list[Update]]:
    while some := list(itertools.islice(updates, most)):
        yield some


def _wide(p: Tensor) -> torch.dtype:
    return torch.float64 if p.dtype == torch.float64 else torch.float32
