"""What was found out of a model by running it on a few examples: made once for each kind of batch, and checked."""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privet.engine.analysis import MANY, Call, Run, analyse
from privet.engine.derived import share_of
from privet.engine.intercept import tracking
from privet.engine.layer.base import TooHard
from privet.engine.share import Share
from privet.engine.tape import Facts, Tape, Unforeseen, Use, names_of, roots

AGREE = {torch.float64: 1e-6, torch.float32: 1e-3}  # of the whole gradient; coarser types are rough themselves
ROUGH = 0.1


@dataclass(frozen=True, slots=True)
class Known:
    """Facts of a model's calls, or why it must be run example by example."""

    facts: Facts | None
    calls: list[Call]
    why: str = ""


_known: "weakref.WeakKeyDictionary[nn.Module, dict[Any, Known]]" = weakref.WeakKeyDictionary()


def known_of(model: nn.Module, signature: Any, run: Run, forced: Mapping[str, str], *, again: bool = False) -> Known:
    """What is known of the model for batches of this signature; `run(model, take)` gives losses, one per example."""
    of_model = _known.setdefault(model, {})
    if again or signature not in of_model:
        of_model[signature] = _find_out(model, run, forced)
    return of_model[signature]


def _find_out(model: nn.Module, run: Run, forced: Mapping[str, str]) -> Known:
    try:
        facts, calls = analyse(model, run, forced=forced)
        _check_agreement(model, run, facts, forced)
    except (TooHard, Unforeseen) as error:
        return Known(None, [], str(error))
    return Known(facts, calls)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def shares_of(uses: list[Use], losses: Tensor, named: Mapping[str, nn.Parameter], size: int) -> dict[str, Share]:
    """The share of each parameter that was used; parameters' own gradients are never computed."""
    edges = [edge for use in uses for edge in use.edges]
    if not edges:
        return {}
    grads = list(torch.autograd.grad(losses.sum(), edges, allow_unused=True))
    found: dict[int, list[tuple[Tensor, Share]]] = {}
    while uses:  # what is done with is let go
        use = uses.pop()
        mine = [grads.pop() for _ in use.edges][::-1]
        if all(g is None for g in mine):
            continue
        use.check_unchanged()
        with torch.no_grad():
            for tensor, share in use.rule.shares(use, mine):
                for root in roots(tensor):
                    found.setdefault(root, []).append((tensor, share))
    return {name: share_of(p, found[id(p)], size) for name, p in named.items() if id(p) in found}


def _check_agreement(model: nn.Module, run: Run, facts: Facts, forced: Mapping[str, str]) -> None:
    """Raise TooHard unless the rules give what autograd gives, on a few examples with the same random numbers."""
    named = trainable(model)

    def take(t: Tensor) -> Tensor:
        return t[torch.arange(MANY, device=t.device) % t.shape[0]]

    devices = sorted({p.device.index or 0 for p in named.values() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.enable_grad(), _buffers_kept(model):
        torch.manual_seed(0)
        tape = Tape(names_of(model), facts, MANY, MANY, forced)
        with tracking(list(named.values()), tape):
            losses = run(model, take)
        shares = shares_of(tape.uses, losses, named, MANY)
        torch.manual_seed(0)
        losses = run(model, take)
        _compare(shares, losses, named)


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    kept = [(b, b.detach().clone()) for b in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)


def _compare(shares: Mapping[str, Share], losses: Tensor, named: Mapping[str, nn.Parameter]) -> None:
    for row in range(MANY):
        grads = torch.autograd.grad(losses[row], list(named.values()), retain_graph=True, allow_unused=True)
        size = torch.stack([g.double().norm() for g in grads if g is not None]).norm()
        if not bool(size.isfinite()):
            continue
        weights = torch.zeros(MANY, device=losses.device)
        weights[row] = 1
        for (name, p), grad in zip(named.items(), grads, strict=True):
            true = torch.zeros_like(p) if grad is None else grad
            wide = p.dtype if p.dtype in AGREE else torch.float32
            mine = shares[name].weighted_sum(weights.to(wide)).view(p.shape) if name in shares else torch.zeros_like(p)
            off = (mine.double() - true.double()).norm()
            norm = shares[name].sq_norms()[row].double().sqrt() if name in shares else off * 0
            off = torch.maximum(off, (norm - true.double().norm()).abs())
            if off > AGREE.get(p.dtype, ROUGH) * size + 1e-30:
                raise TooHard(f"the rules for {name} do not agree with autograd (off by {float(off / size):.1g})")
