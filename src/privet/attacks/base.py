"""What an attack gets and gives: an Observation of updates in, a Reconstruction of inputs out.

class Mine:
    def run(self, observation): ...   # -> Reconstruction

Register it and it is in the command line and in every comparison. One observation holds many victims: independent
updates made with the same weights, so that all of them are attacked at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from privet._registry import Registry
from privet.clipping.rule import ClippingRule, bounded
from privet.errors import InvalidValue
from privet.per_example.forms import Dense
from privet.planning.clipping_rules import registry as rules

Grads = Mapping[str, Tensor]

MOST_HELD = 4_000_000  # numbers of gradients of a piece: a few hundred megabytes with all that is kept beside them
MOST_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """What an attacker may see: weights, one update of each of N victims, and what is public about the step.

    An update is the noisy sum of the clipped gradients of `batch` unknown records: the attacker knows all the others
    of the step, as privacy must allow for, and has taken them out. `rule` is None for an attacker who does not know of
    clipping, and where there is none.
    """

    model: nn.Module  # the architecture, in evaluation mode; its weights are not looked at
    state: Grads  # the weights before the update
    update: Grads  # (N, *shape) for each parameter
    shape: tuple[int, ...]  # of one input
    classes: int
    batch: int = 1
    labels: Tensor | None = None  # (N, batch), if they are known
    step: int = 0
    rule: ClippingRule | None = None
    clipping_norm: float = math.inf
    std: float | None = 0.0  # of the noise on each entry of an update; None where it is not public
    candidates: tuple[Tensor, Tensor] | None = None  # K known inputs and labels, the victims' among them

    def __post_init__(self) -> None:
        if not self.update or set(self.update) - set(self.state):
            raise InvalidValue(
                "update must hold a tensor for parameters of the model. Their names tell what belongs together. Give "
                "{name: tensor (N, *shape)}."
            )
        for name, seen in self.update.items():
            if seen.shape != (self.size, *self.state[name].shape):
                raise InvalidValue(
                    f"update[{name!r}] has shape {tuple(seen.shape)}, not (N, *{tuple(self.state[name].shape)}). The "
                    "first dimension counts the victims. Use unsqueeze(0) for one."
                )

    @property
    def size(self) -> int:
        return len(next(iter(self.update.values())))

    @property
    def rows(self) -> int:
        """How many records' gradients to hold at once."""
        return max(1, min(MOST_ROWS, MOST_HELD // sum(u[0].numel() for u in self.update.values())))

    def of(self, rows: Tensor) -> Grads:
        """The updates of some victims."""
        return {name: seen[rows] for name, seen in self.update.items()}

    def gradients(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What each of R records would add to an update: its gradient, clipped if the attacker knows how.

        `inputs` is (R, *shape), `labels` (R, classes), each row a distribution. Both may be differentiated through.
        """
        grads = example_gradients(self.model, self.state, inputs, labels, names=self.update)
        return grads if self.rule is None else clip_gradients(grads, self.rule, self.clipping_norm)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reconstruction:
    """What an attack made of N updates. Of several tries, the one whose gradient fits best was kept."""

    inputs: Tensor  # (N, batch, *shape)
    labels: Tensor  # (N, batch)
    loss: Tensor  # (N,): how far its gradient is from the update
    iterations: Tensor  # (N,)
    evaluations: Tensor  # (N,): gradients computed, line searches included
    seconds: float = 0.0  # for all together
    frames: Mapping[int, Tensor] = field(default_factory=dict)  # inputs after so many iterations
    scores: Tensor | None = None  # (N, K): how well each candidate fits, for attacks that choose one


class Attack(Protocol):
    def run(self, observation: Observation) -> Reconstruction:
        """The inputs behind each update, as well as can be told."""


registry: Registry[Attack] = Registry("attack", needs=("run",))
register = registry.register


def resolve_attack(spelling: Any) -> Attack:
    """The attack that a user wrote: a name with options, an address, or the attack itself."""
    if isinstance(spelling, str):
        name, options = registry.split(spelling)
        return registry.make(name, **registry.options(name, options))
    if not callable(getattr(spelling, "run", None)):
        known = ", ".join(registry.names())
        raise InvalidValue(f"attack={spelling!r} must be a name, or an object with run. Known: {known}.")
    found: Attack = spelling
    return found


# --- gradients --------------------------------------------------------------------------------------


def example_gradients(
    model: nn.Module, state: Grads, inputs: Tensor, labels: Tensor, *, names: Grads
) -> dict[str, Tensor]:
    """The gradient of the cross-entropy of each record, (R, *shape) for each of `names`; differentiable."""
    wanted = {name: state[name] for name in names}
    rest = {name: value for name, value in state.items() if name not in wanted}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(model, {**rest, **parameters}, (x[None],))[0]
        return -(torch.log_softmax(outputs, -1) * y).sum()

    found: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0))(wanted, inputs, labels)
    return found


def clip_gradients(grads: Grads, rule: ClippingRule, clip: float) -> dict[str, Tensor]:
    held = bounded(rule)
    shares = held.transform({name: Dense(g) for name, g in grads.items()}, {name: g[0] for name, g in grads.items()})
    moved, threshold = {name: share.materialize() for name, share in shares.items()}, held.clip_in_force(clip)
    groups = held.groups(list(moved))
    sq = torch.stack([sum_tensors([moved[n].flatten(1).square().sum(1) for n in group]) for group in groups], dim=1)
    norms = sq.clamp(min=1e-30).sqrt()  # (R, G); a root has no slope at zero
    scales = held.unbounded_scales(norms, threshold)
    if not rules.is_ours(rule):
        bound = held.bound(threshold, len(groups))
        scales = held.scales(norms, threshold, bound=bound, dtype=norms.dtype)
    return {
        name: moved[name] * scales[:, g].view(-1, *[1] * (moved[name].dim() - 1))
        for g, group in enumerate(groups) for name in group
    }  # fmt: skip


def sum_tensors(parts: "list[Tensor]") -> Tensor:
    return torch.stack(parts).sum(0)


def squared_distances(grads: Grads, update: Grads) -> Tensor:
    return sum_tensors([(grads[name] - update[name]).flatten(1).square().sum(1) for name in update])
