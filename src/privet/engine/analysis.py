"""Before the first step: where do the examples lie in each tensor, and does any example see another?

The model runs on two and on three examples: a dimension that grows from 2 to 3 (or by that ratio) holds the examples.
Then one example is changed, with the same random numbers, and every tensor of the others must stay as it was.
Parameters are moved a little meanwhile, so that layers that start at zero hide nothing; all is put back.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from privet.engine.intercept import is_tracked, tracking
from privet.engine.layer.base import TooHard, rule_of
from privet.engine.tape import Fact, Facts, Key, Names, Where, is_forced, name_of, names_of, tensors_in
from privet.errors import Unsupported

FEW, MANY = 2, 3
TOLERANCE = 1e-5  # relative: kernels may add in another order
MOST_PASSES = 8


@dataclass(slots=True)
class Call:
    """One function call that a tracked tensor entered, with copies of what went in and out."""

    key: Key
    turn: int
    is_use: bool
    inputs: list[Tensor]
    outputs: list[Tensor]
    rule: str


@dataclass(slots=True)
class Survey:
    """Listens to one pass; `uses` says which calls are known to be uses, contrary to first appearance."""

    names: Names
    uses: dict[tuple[Key, int], bool]
    forced: Mapping[str, str]
    calls: list[Call] = field(default_factory=list)
    modules: list[tuple[str, list[Tensor], list[Tensor]]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        key, turn = self.names.key(func, args, kwargs)
        plain = [t for t in tensors_in((list(args), kwargs)) if not is_tracked(t) and t.dim() > 0]
        inputs = _copies(plain)
        is_use = self.uses.get((key, turn), bool(plain))
        rule = rule_of(func, args, kwargs, forced=is_forced(key[1], self.forced))
        out = rule.run(func, args, kwargs)[0] if is_use else func(*args, **kwargs)
        self.calls.append(Call(key, turn, is_use, inputs, _copies(tensors_in(out)), rule.name))
        if not is_use:
            self.names.derive(out, key, turn, (list(args), kwargs))
        return out


def _copies(tensors: Any) -> list[Tensor]:
    return [t.detach().clone().as_subclass(Tensor) for t in tensors]


Run = Callable[[nn.Module, Callable[[Tensor], Tensor]], Any]  # run(model, which examples) -> outputs


def analyse(model: nn.Module, run: Run, *, forced: Mapping[str, str]) -> tuple[Facts, list[Call]]:
    """Facts of every call, once no example sees another; and the calls themselves, for people.

    Raises:
        Unsupported: examples are coupled; names the module and what to use in its place.
        TooHard: the examples cannot be found in some tensor.
    """
    _refuse_batch_norm(model)
    with _set_aside(model):
        uses: dict[tuple[Key, int], bool] = {}
        for _ in range(MOST_PASSES):
            few = _survey(model, run, _first(FEW), uses, forced)
            many = _survey(model, run, _first(MANY), uses, forced)
            facts, wrong = _compare(few, many)
            if not wrong:
                break
            uses |= wrong
        else:
            raise TooHard("its parameters are used in ways that change from pass to pass")
        changed = [_survey(model, run, _changing(which), uses, forced) for which in (0, 1)]
    for which, other in enumerate(changed):
        _check_apart(few, many, other, which)
    return _ordered(facts, many, changed), many.calls


# --- passes -----------------------------------------------------------------------------------------


def _first(count: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t[torch.arange(count, device=t.device) % t.shape[0]]


def _changing(which: int) -> Callable[[Tensor], Tensor]:
    """The first examples, one of them replaced by something else of the same kind."""

    def take(t: Tensor) -> Tensor:
        found = _first(MANY)(t).clone()
        row = found[which]
        if t.is_floating_point() or t.is_complex():
            moved = torch.randn(row.shape, generator=torch.Generator().manual_seed(which + 1)).to(row)
            found[which] = 1.25 * row + moved * (row.abs().mean() + 0.1)
        elif t.dtype == torch.bool:
            found[which] = ~row
        else:
            found[which] = _others(t, row)
        return found

    return take


def _others(t: Tensor, row: Tensor) -> Tensor:
    """Whole numbers from the same column range of the batch, so that they stay valid: each differs where it can."""
    low, high = t.min(), t.max()
    return torch.where(row + 1 > high, low, row + 1) if bool(high > low) else row


def _survey(model: nn.Module, run: Run, take: Callable[[Tensor], Tensor], uses: Any, forced: Any) -> Survey:
    found = Survey(names_of(model), uses, forced)
    parameters = [p for p in model.parameters() if p.requires_grad]
    hooks = [module.register_forward_hook(_remember(found, name), with_kwargs=True)
             for name, module in model.named_modules()]  # fmt: skip
    try:
        torch.manual_seed(0)
        with torch.enable_grad(), tracking(parameters, found):
            found.outputs = _copies(tensors_in(run(model, take)))
    finally:
        for hook in hooks:
            hook.remove()
    found.buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    return found


def _remember(survey: Survey, name: str) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        survey.modules.append((name, _copies(tensors_in((args, kwargs))), _copies(tensors_in(out))))

    return hook


@contextmanager
def _set_aside(model: nn.Module) -> Iterator[None]:
    """Parameters moved a little; they, the buffers and the random numbers are put back at the end."""
    kept = {name: t.detach().clone() for name, t in [*model.named_parameters(), *model.named_buffers()]}
    devices = sorted({t.device.index or 0 for t in kept.values() if t.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(1)
        try:
            with torch.no_grad():
                for p in model.parameters():
                    if p.requires_grad and p.numel():
                        p.add_(torch.randn_like(p) * (0.1 * p.float().abs().mean() + 0.01).to(p.dtype))
            yield
        finally:
            with torch.no_grad():
                for name, t in [*model.named_parameters(), *model.named_buffers()]:
                    t.copy_(kept[name])


# --- where the examples lie -------------------------------------------------------------------------


def _place(few: Tensor, many: Tensor) -> int | None:
    """The dimension that holds the examples: the one whose size grows as their number does."""
    if few.dim() != many.dim():
        raise TooHard("a tensor changes its number of dimensions with the number of examples")
    grown = [d for d in range(few.dim()) if few.shape[d] != many.shape[d]]
    if not grown:
        return None
    if len(grown) > 1 or few.shape[grown[0]] * MANY != many.shape[grown[0]] * FEW:
        raise TooHard(f"sizes {tuple(few.shape)} and {tuple(many.shape)} do not follow the number of examples")
    return grown[0]


def _compare(few: Survey, many: Survey) -> tuple[dict[Key, list[Fact]], dict[tuple[Key, int], bool]]:
    """The facts by shape alone, and the calls whose kind was taken wrongly."""
    if [c.key for c in few.calls] != [c.key for c in many.calls]:
        raise TooHard("its path depends on the data")
    facts: dict[Key, list[Fact]] = {}
    wrong: dict[tuple[Key, int], bool] = {}
    for a, b in zip(few.calls, many.calls, strict=True):
        places = [[_where(_place(x, y)) for x, y in zip(one, two, strict=True)]
                  for one, two in ((a.inputs, b.inputs), (a.outputs, b.outputs))]  # fmt: skip
        fact = Fact(tuple(places[0]), tuple(places[1]))
        facts.setdefault(b.key, []).append(fact)
        if fact.is_use != b.is_use:
            wrong[(b.key, b.turn)] = fact.is_use
            break  # what follows may be called differently once this is known
        if not fact.is_use and any(places[0]):
            raise Unsupported(
                f"{name_of(b.key[0])} of {', '.join(b.key[1])} sums over the examples of a batch, so one example's "
                "share cannot be told from the others'. Keep one row per example."
            )
    return facts, wrong


def _where(dim: int | None) -> Where | None:
    return None if dim is None else Where(dim)


def _rows(t: Tensor, dim: int) -> Tensor:
    return t.movedim(dim, 0).flatten(1) if t.dim() > 1 else t[:, None]


def _moved(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Which rows differ, (rows,)."""
    x, y = _rows(a, dim), _rows(b, dim)
    if not x.is_floating_point():
        return (x != y).any(1)
    scale = x.nan_to_num(0, 0, 0).abs().amax() if x.numel() else x.new_zeros(())
    return ((x - y).abs() > TOLERANCE * scale).any(1) | (x.isfinite() != y.isfinite()).any(1)


def _ordered(facts: dict[Key, list[Fact]], base: Survey, changed: Sequence[Survey]) -> Facts:
    """The facts with the order of rows where an example has several: together, or strided."""
    found: dict[Key, list[Fact]] = {}
    for number, call in enumerate(base.calls):
        fact = facts[call.key][call.turn]
        others = [other.calls[number] for other in changed]
        inputs = [_order(w, t, [o.inputs[i] for o in others])
                  for i, (w, t) in enumerate(zip(fact.inputs, call.inputs, strict=True))]  # fmt: skip
        outputs = [_order(w, t, [o.outputs[i] for o in others])
                   for i, (w, t) in enumerate(zip(fact.outputs, call.outputs, strict=True))]  # fmt: skip
        found.setdefault(call.key, []).append(Fact(tuple(inputs), tuple(outputs)))
    return found


def _order(where: Where | None, base: Tensor, changed: Sequence[Tensor]) -> Where | None:
    if where is None or base.shape[where.dim] == MANY:
        return where
    rows = torch.arange(base.shape[where.dim])
    together = strided = True
    seen = False
    for which, other in enumerate(changed):
        moved = _moved(base, other, where.dim).cpu()
        seen |= bool(moved.any())
        together &= bool((rows[moved] // (len(rows) // MANY) == which).all())
        strided &= bool((rows[moved] % MANY == which).all())
    if not seen or together == strided:
        raise TooHard("the rows of an example cannot be told from those of the others")
    return Where(where.dim, together)


# --- does any example see another -------------------------------------------------------------------

ADVICE = "Use a layer that stays within an example (nn.GroupNorm, nn.LayerNorm), or take the statistic out."


def _refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            channels = module.num_features
            raise Unsupported(
                f"{name or 'the model'}: {type(module).__name__} mixes the examples of a batch, so no clip bounds what "
                f"one of them does. Use nn.GroupNorm({_groups(channels)}, {channels}) in its place, or call "
                f"{name + '.' if name else ''}eval() to freeze its statistics."
            )


def _groups(channels: int) -> int:
    return next(g for g in range(min(32, channels), 0, -1) if channels % g == 0)


def _check_apart(few: Survey, base: Survey, other: Survey, which: int) -> None:
    """Raise if a change of one example moved a row of another, or a buffer."""
    for name, before in base.buffers.items():
        if not torch.equal(before, other.buffers[name]):
            raise Unsupported(
                f"{name}: the model writes its data into this buffer, without noise. Leave it out, or freeze it by "
                "eval()."
            )
    if not len(few.modules) == len(base.modules) == len(other.modules) or len(base.calls) != len(other.calls):
        raise TooHard("its path depends on the data")
    for small, big, moved in zip(few.modules, base.modules, other.modules, strict=True):
        name = big[0]
        if _leaks(small[2], big[2], moved[2], which) and not _leaks(small[1], big[1], moved[1], which):
            raise Unsupported(
                f"{name or 'the model itself'}: an example's output depends on the other examples of the batch, so no "
                f"clip bounds what one of them does. {ADVICE}"
            )
    if _leaks(few.outputs, base.outputs, other.outputs, which):
        raise Unsupported(f"the loss of one example depends on the others. {ADVICE}")


def _leaks(few: Sequence[Tensor], base: Sequence[Tensor], other: Sequence[Tensor], which: int) -> bool:
    """Whether the row of an example that was not changed has moved."""
    for small, a, b in zip(few, base, other, strict=False):
        try:
            dim = _place(small, a)
        except TooHard:
            continue  # packed or otherwise shapeless: judged by what comes of it
        if dim is None or a.shape != b.shape:
            continue
        moved = _moved(a, b, dim).cpu()
        rows = torch.arange(len(moved))
        together, strided = rows // (len(rows) // MANY) != which, rows % MANY != which
        if bool(moved[together].any()) and bool(moved[strided].any()):
            return True
    return False
