"""explain: which rule serves each use of each parameter, or why the model is run example by example."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from privet.engine.clipped import Force, Loss, work_on
from privet.engine.layer.fallback import PerFunction
from privet.engine.tape import name_of
from privet.errors import InvalidValue


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
        """Plain values, for JSON."""
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
    work = work_on(model, loss_fn, batch, force=force)
    if work.size == 0:
        raise InvalidValue("batch has no example. The model is run on some of them. Give one or more.")
    known = work.known()
    uses = tuple(
        Line(function=name_of(call.key[0]), parameters=call.key[1], rule=call.rule)
        for call in known.calls if call.is_use
    )  # fmt: skip
    return Explanation(uses=uses, whole=known.why, parameters={name: tuple(p.shape) for name, p in work.named.items()})
