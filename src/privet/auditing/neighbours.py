"""Neighbouring datasets that bring out mistakes: a canary among records of some kind, and the same without it.

Records belong to a logistic regression whose weight lies in four layers, so that their gradients can be chosen: the
gradient of (x, y) is -y x / (1 + exp(y <w, x>)), and <w, x> is small for all that is not huge. A record with target 0
is a null record, as zero-out puts in the place of another: it may be chosen, and adds nothing, not even to a count.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privet import _check
from privet.accounting.guarantee import Adjacency
from privet.errors import Unsupported

Records = tuple[Tensor, Tensor]  # inputs (n, d) and targets (n,): the whole dataset

CANARIES = ("aligned", "opposed", "dirac", "mislabelled", "huge", "nan")
BATCHES = ("normal", "quiet", "aligned", "empty", "single")
LAYERS, WIDTH = 4, 32
SIZE = 12  # records, canary included
FAR = 10.0  # a canary's input is this many clips long


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NeighbouringPair:
    """Two neighbours: the dataset with the canary, which is its last record, and without it."""

    name: str
    with_: Records
    without: Records


def neighbouring_pairs(*, adjacency: Adjacency = "zero-out", clip: float = 1.0) -> tuple[NeighbouringPair, ...]:
    """Every canary in every batch, for gradients clipped near `clip`. Under zero-out the canary becomes a null record.

    Under add-remove the canary is left out.

    >>> found = neighbouring_pairs()
    >>> len(found), found[0].name, found[0].with_[0].shape
    (30, 'aligned canary, normal batch', torch.Size([12, 128]))
    """
    _check.positive(clip=clip)
    if adjacency == "replace-one":
        raise Unsupported(
            "adjacency='replace-one' has no neighbouring datasets here. They remove an example, or set it to null. "
            "Give your own scenes."
        )
    found = []
    for canary in CANARIES:
        for batch in BATCHES:
            x, y = _make_batch(batch, SIZE - 1, clip)
            cx, cy = _make_canary(canary, clip)
            with_ = torch.cat([x, cx[None]]), torch.cat([y, cy[None]])
            null = torch.cat([x, torch.zeros_like(cx)[None]]), torch.cat([y, torch.zeros(1)])
            without = null if adjacency == "zero-out" else (x, y)
            found.append(NeighbouringPair(name=f"{canary} canary, {batch} batch", with_=with_, without=without))
    return tuple(found)


class Sliced(nn.Module):
    """The logistic regression of the scenes: each layer sees its own slice of the input."""

    def __init__(self, clip: float = 1.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 1, bias=False) for _ in range(LAYERS))
        with torch.no_grad():
            for layer, part in zip(self.layers, torch.split(initial_weights(clip), WIDTH), strict=True):
                layer.weight.copy_(part[None])  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        out = torch.stack([layer(part) for layer, part in zip(self.layers, torch.split(x, WIDTH, 1), strict=True)])
        return out.sum(0)  # (B, 1)


def logistic_losses(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.softplus(-y * out.view(-1))


def logistic_gradients(records: Records, clip: float = 1.0, *, at: Tensor | None = None) -> Tensor:
    """The gradient of each record, (n, d), in closed form; one that is not finite is zero. `at`: other weights."""
    x, y = records[0].double(), records[1].double()
    w = initial_weights(clip).double() if at is None else at
    found = -(y * torch.sigmoid(-y * (x @ w)))[:, None] * x
    return torch.where(found.isfinite().all(1, keepdim=True), found, torch.zeros_like(found))


def select_present(records: Records, chosen: Tensor) -> Tensor:
    """Those of the chosen records that are not null."""
    return chosen[records[1][chosen] != 0]


def aligned_direction() -> Tensor:
    """Where aligned gradients point: equally far in every layer, and not along the last coordinate of any."""
    u = torch.ones(LAYERS, WIDTH)
    u[:, -1] = 0.0
    found: Tensor = u.view(-1) / u.sum().sqrt()
    return found


def initial_weights(clip: float = 1.0) -> Tensor:
    return aligned_direction() * (0.1 / clip)


def _make_batch(kind: str, count: int, clip: float) -> Records:
    g = torch.Generator().manual_seed(3)
    y = torch.randint(2, (count,), generator=g) * 2.0 - 1
    x = (1.5 * y[:, None] * aligned_direction() + torch.randn(count, LAYERS * WIDTH, generator=g) * 0.12) * clip
    if kind == "quiet":
        x = x * 1e-3
    elif kind == "aligned":
        x, y = FAR * clip * aligned_direction().repeat(count, 1), -torch.ones(count)
    elif kind != "normal":
        first = 0 if kind == "empty" else 1
        x[first:], y[first:] = 0.0, 0.0
    return x, y


def _make_canary(kind: str, clip: float) -> tuple[Tensor, Tensor]:
    x, y = FAR * clip * aligned_direction(), torch.tensor(-1.0)  # gradient 7.3 clips along the direction
    if kind == "opposed":
        y = torch.tensor(1.0)  # gradient 2.7 clips against it
    elif kind == "dirac":
        x = torch.zeros(LAYERS * WIDTH)
        x[WIDTH - 1] = FAR * clip
    elif kind == "mislabelled":
        usual, label = _make_batch("normal", 1, clip)
        x, y = FAR * usual[0], -label[0]
    elif kind == "huge":
        x = x * 1e19
    elif kind == "nan":
        x = torch.full((LAYERS * WIDTH,), torch.nan)
    return x, y
