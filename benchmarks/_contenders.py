"""Who is compared: each makes one training step on a batch, with the same SGD, clip, noise and normaliser.

A contender is a class made from (model, batch, clip, noise, rate) with one method, `step(x, y)`, that leaves in
`p.grad` of the parameters of its `model` the clipped sum plus noise, over the batch size. The model that is given is
its own, to change as it needs. Peers are called as their documentation shows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

MODES = ("hooks", "functorch", "ew", "ghost")  # of Opacus: its `grad_sample_mode`


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What all contenders are given alike. With noise 0 and rate 0, a step leaves the clipped sum and moves nothing."""

    batch: int
    clip: float
    noise: float = 1.0
    rate: float = 1e-3  # of learning: small, so that the work stays the same from the first step to the last


class Contender(Protocol):
    model: nn.Module

    def step(self, x: Tensor, y: Tensor) -> None: ...


def losses(outputs: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(outputs, y, reduction="none")


class Plain:
    """No privacy at all: what the others are compared with."""

    def __init__(self, model: nn.Module, terms: Terms) -> None:
        self.model, self.optimizer = model, _sgd(model, terms)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        losses(self.model(x), y).mean().backward()
        self.optimizer.step()


class Privet:
    """The engine alone: clipped sums in one flat buffer, noise on top in place, the normaliser folded in.

    `privet.training` makes the same sums from recorded losses, and `release` noises a copy of them.
    """

    def __init__(self, model: nn.Module, terms: Terms) -> None:
        from privet.clipping.clipped_sum import clipped_sum
        from privet.noise import gaussian
        from privet.noise.randomness import Randomness

        self.model, self.optimizer, self.terms = model, _sgd(model, terms), terms
        self.named = dict(model.named_parameters())
        self.clipped_sum, self.noise, self.source = clipped_sum, gaussian, Randomness()

    def step(self, x: Tensor, y: Tensor) -> None:
        terms = self.terms
        self.optimizer.zero_grad()
        clipped = self.clipped_sum(self.model, losses, (x, y), rule="flat", clipping_norm=terms.clip)
        if terms.noise:
            std = terms.noise * self.noise.sensitivity(clipped.l2_bound)
            source, divisor = self.source, terms.batch
            grads = self.noise.add_noise(clipped.grads, std=std, randomness=source, divisor=divisor, in_place=True)
        else:
            grads = {name: grad / terms.batch for name, grad in clipped.grads.items()}
        for name, p in self.named.items():
            p.grad = grads[name]
        self.optimizer.step()


class Vmap:
    """The few lines of `torch.func` that a tutorial shows: all gradients of all examples, then their norms."""

    def __init__(self, model: nn.Module, terms: Terms) -> None:
        from torch.func import functional_call, grad, vmap

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return losses(functional_call(model, parameters, (x.unsqueeze(0),)), y.unsqueeze(0)).sum()

        self.model, self.optimizer, self.terms = model, _sgd(model, terms), terms
        self.per_example = vmap(grad(loss), in_dims=(None, 0, 0))

    def step(self, x: Tensor, y: Tensor) -> None:
        terms = self.terms
        grads = self.per_example({name: p.detach() for name, p in self.model.named_parameters()}, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)  # (B,)
        factors = (terms.clip / norms).clamp(max=1.0)
        for name, p in self.model.named_parameters():
            p.grad = torch.tensordot(factors, grads[name], 1)
            p.grad += torch.randn_like(p) * (terms.noise * terms.clip)
            p.grad /= terms.batch
        self.optimizer.step()


class Opacus:
    """Opacus in one of its modes, with the layers it asks for in place of LSTM and attention (same weights)."""

    def __init__(self, model: nn.Module, terms: Terms, *, mode: str) -> None:
        from opacus.grad_sample.utils import prepare_module
        from opacus.optimizers import get_optimizer_class
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        self.model = as_held(mode, model)
        given: dict[str, Any] = {"max_grad_norm": terms.clip} if mode == "ghost" else {}
        self.wrapped = prepare_module(self.model, mode, **given)
        kind = get_optimizer_class(clipping="flat", distributed=False, grad_sample_mode=mode)
        self.optimizer = kind(
            _sgd(self.wrapped, terms),
            noise_multiplier=terms.noise,
            max_grad_norm=terms.clip,
            expected_batch_size=terms.batch,
        )
        self.criterion: Any = nn.CrossEntropyLoss()
        if mode == "ghost":
            self.criterion = DPLossFastGradientClipping(self.wrapped, self.optimizer, self.criterion)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.criterion(self.wrapped(x), y).backward()
        self.optimizer.step()


CONTENDERS: dict[str, Callable[[nn.Module, Terms], Contender]] = {
    "plain": Plain,
    "privet": Privet,
    **{mode: partial(Opacus, mode=mode) for mode in MODES},
    "vmap": Vmap,
}
PEERS = tuple(CONTENDERS)[2:]


def as_held(name: str, model: nn.Module) -> nn.Module:
    """The model a contender really trains: Opacus puts its own layers in place of LSTM and attention.

    Its attention is another function than PyTorch's when the batch comes first (Opacus 1.6.0), so what is checked is
    whether a contender clips right what it computes.
    """
    if name not in MODES:
        return model
    from opacus.validators import ModuleValidator

    return ModuleValidator.fix(model)


def one_at_a_time(model: nn.Module, x: Tensor, y: Tensor, clip: float | None = None) -> tuple[Tensor, float]:
    """The clipped sum the obvious way, flat and in float64, and the clip: by default the median norm."""
    grads = []
    for i in range(len(x)):
        loss = losses(model(x[i : i + 1]), y[i : i + 1]).sum()
        grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    norms = torch.stack([g.double().norm() for g in grads])  # (B,)
    clip = float(norms.median()) if clip is None else clip
    total = torch.zeros_like(grads[0], dtype=torch.float64)
    for norm, g in zip(norms.tolist(), grads, strict=True):
        total += min(1.0, clip / max(norm, 1e-300)) * g.double()
    return total, clip


def error_of(contender: Contender, wanted: Tensor, terms: Terms, x: Tensor, y: Tensor) -> float:
    """How far one step without noise is from the clipped sum that is `wanted`: relative, in norm."""
    contender.step(x, y)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in contender.model.parameters()]
    found = terms.batch * torch.cat([g.flatten().double() for g in grads])
    return float((found - wanted).norm() / wanted.norm())


def _sgd(model: nn.Module, terms: Terms) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=terms.rate)
