"""What was found out of a model by running it on a few examples: made once for each kind of batch, and checked.

The model runs on two and on three examples: a dimension that grows from 2 to 3 (or by that ratio) holds the examples.
Then one example after the other is changed, with the same random numbers: what moves are its rows, and nobody else's
may. What cannot be followed is left to a run of each example alone.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from privet.errors import Unsupported
from privet.per_example import trial_pass
from privet.per_example.derived_forms import gradient_of_parameter
from privet.per_example.forms import PerExampleGradient, without_autocast
from privet.per_example.forward_record import Facts, ForwardRecord, call_names
from privet.per_example.independence import model as independence
from privet.per_example.independence.buffers import NONE, BufferWrites, find_writes
from privet.per_example.interception import track_parameters
from privet.per_example.layers.base import (
    BatchDim,
    CallLayout,
    Found,
    Key,
    NoLayerRule,
    ParameterUse,
    UnseenCall,
    function_name,
)
from privet.per_example.trial_pass import (
    MANY,
    Call,
    Run,
    TrialPass,
    first_examples,
    preserving_state,
    same_random_state,
)

AGREE = {torch.float64: 1e-6, torch.float32: 1e-3}  # of a parameter's gradient; coarser types are rough themselves
ROUGH = 0.1
NOISE = 0.01  # of the tolerance: what a parameter whose gradients cancel may be off, beside the whole gradient
MOST_PASSES = 16
VANISHED = 1e-9  # that a norm may be too large by: it clips a little more, and hides no rule that is wrong


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model's calls, or why it must be run example by example."""

    facts: Facts | None
    calls: list[Call]
    why: str = ""
    is_sure: bool = True  # some example was finite, so that the rules could be compared with autograd
    writes: BufferWrites = NONE


_known: "weakref.WeakKeyDictionary[nn.Module, dict[Any, ModelFacts]]" = weakref.WeakKeyDictionary()


def model_facts(
    model: nn.Module, signature: Any, run: Run, forced: Mapping[str, str], *, again: bool = False
) -> ModelFacts:
    """What is known of the model for batches of this signature; `run(model, take)` gives losses, one per example."""
    of_model = _known.setdefault(model, {})
    signature = (signature, tuple([module.training for module in model.modules()]))
    found = None if again else of_model.get(signature)
    if found is None:
        found = _inspect_model(model, run, forced)
        if found.is_sure:
            of_model[signature] = found
    return found


def self_moving_buffers(model: nn.Module) -> frozenset[str]:
    """Those that a pass changes whatever its data are: counters, what spectral norm keeps."""
    return frozenset(name for known in _known.get(model, {}).values() for name in known.writes.moved)


def _inspect_model(model: nn.Module, run: Run, forced: Mapping[str, str]) -> ModelFacts:
    for name, p in trainable_parameters(model).items():
        if p.is_complex():
            raise Unsupported(f"{name}: complex parameters have no rule. Keep real and imaginary parts as real ones.")
    with preserving_state(model):
        try:
            facts, calls = find_batch_dims(model, run, forced=forced)
            is_sure = _check_against_autograd(model, run, facts, forced)
            independence.check_independent_gradients(model, run, trainable_parameters(model))
        except (NoLayerRule, UnseenCall) as error:
            return ModelFacts(None, [], str(error), writes=find_writes(model, run))
        return ModelFacts(facts, calls, is_sure=is_sure, writes=find_writes(model, run))


# --- where the examples lie -------------------------------------------------------------------------


def find_batch_dims(model: nn.Module, run: Run, *, forced: Mapping[str, str]) -> tuple[Facts, list[Call]]:
    """Facts of every call, once no example sees another; and the calls themselves, for people."""
    independence.refuse_batch_norm(model)
    uses: dict[tuple[Key, int], bool] = {}
    many = trial_pass.trial_pass(model, run, first_examples(MANY), uses, forced)
    independence.check_buffers(many, _pass_with_change(model, run, 0, uses, forced))
    independence.check_path(many)
    for _ in range(MOST_PASSES):
        few = trial_pass.trial_pass(model, run, first_examples(trial_pass.FEW), uses, forced)
        many = trial_pass.trial_pass(model, run, first_examples(MANY), uses, forced)
        independence.check_buffers(many, few)
        facts, wrong = _compare_shapes(few, many)
        if not wrong:
            break
        uses |= wrong
    else:
        raise NoLayerRule("its parameters are used in ways that change from pass to pass")
    changed = [_pass_with_change(model, run, which, uses, forced) for which in range(MANY)]
    if any(_call_path(other) != _call_path(many) for other in [few, *changed]):
        raise NoLayerRule("its path changes from pass to pass")
    for which, other in enumerate(changed):
        independence.check_independent(few, many, other, which)
    independence.check_single_example(model, run, is_random=many.is_random)
    independence.check_whole_batch(model, run)
    return _find_row_orders(facts, many, changed), [replace(call, inputs=[], outputs=[]) for call in many.calls]


def _pass_with_change(
    model: nn.Module, run: Run, which: int, uses: dict[tuple[Key, int], bool], forced: Mapping[str, str]
) -> TrialPass:
    return trial_pass.with_changed_example(lambda take: trial_pass.trial_pass(model, run, take, uses, forced), which)


def _call_path(found: TrialPass) -> object:
    return [call.key for call in found.calls], [name for name, *_ in found.modules]


def _compare_shapes(few: TrialPass, many: TrialPass) -> tuple[dict[Key, list[CallLayout]], dict[tuple[Key, int], bool]]:
    """The facts by shape alone, and the calls whose kind was taken wrongly."""
    if _call_path(few) != _call_path(many):
        raise NoLayerRule("its path changes from pass to pass")
    facts: dict[Key, list[CallLayout]] = {}
    wrong: dict[tuple[Key, int], bool] = {}
    for a, b in zip(few.calls, many.calls, strict=True):
        dims = [[independence.growing_dim(x, y) for x, y in zip(one, two, strict=True)]
                for one, two in ((a.inputs, b.inputs), (a.outputs, b.outputs))]  # fmt: skip
        places = [tuple(None if dim is None else BatchDim(dim) for dim in some) for some in dims]
        fact = CallLayout(places[0], places[1])
        facts.setdefault(b.key, []).append(fact)
        if fact.is_use != b.is_use:
            wrong[(b.key, b.turn)] = fact.is_use
        elif not fact.is_use and any(fact.inputs):
            raise Unsupported(
                f"{function_name(b.key[0])} of {', '.join(b.key[1])} sums over the examples of a batch, so one "
                "example's share cannot be told from the others'. Keep one row per example."
            )
    return facts, wrong


def _find_row_orders(facts: dict[Key, list[CallLayout]], base: TrialPass, changed: Sequence[TrialPass]) -> Facts:
    """The facts with the order of rows where an example has several: together, or strided."""
    found: dict[Key, list[CallLayout]] = {}
    for number, call in enumerate(base.calls):
        fact = facts[call.key][call.turn]
        others = [other.calls[number] for other in changed]
        inputs = [_find_row_order(w, t, [o.inputs[i] for o in others])
                  for i, (w, t) in enumerate(zip(fact.inputs, call.inputs, strict=True))]  # fmt: skip
        outputs = [_find_row_order(w, t, [o.outputs[i] for o in others])
                   for i, (w, t) in enumerate(zip(fact.outputs, call.outputs, strict=True))]  # fmt: skip
        found.setdefault(call.key, []).append(CallLayout(tuple(inputs), tuple(outputs)))
    return {key: _require_call_count(ways) for key, ways in found.items()}


def _require_call_count(ways: list[CallLayout]) -> list[CallLayout]:
    """Where the calls of one kind differ, their number must stay: else one could be taken for another."""
    if all(fact == ways[0] for fact in ways):
        return ways
    count = sum(fact.is_use for fact in ways)
    return [replace(fact, calls=count) for fact in ways]


def _find_row_order(where: BatchDim | None, base: Tensor, changed: Sequence[Tensor]) -> BatchDim | None:
    if where is None or base.shape[where.dim] == MANY:
        return where
    rows = torch.arange(base.shape[where.dim])
    together = strided = True
    seen = False
    for which, other in enumerate(changed):
        if other.shape != base.shape:
            raise NoLayerRule("the number of rows depends on the data")
        differ = independence.changed_rows(base, other, where.dim).cpu()
        seen |= bool(differ.any())
        together &= bool((rows[differ] // (len(rows) // MANY) == which).all())
        strided &= bool((rows[differ] % MANY == which).all())
    if not seen or together == strided:
        raise NoLayerRule("the rows of an example cannot be told from those of the others")
    return BatchDim(where.dim, together)


# --- the gradients of a pass ------------------------------------------------------------------------


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def per_example_gradients(
    uses: list[ParameterUse], losses: Tensor, named: Mapping[str, nn.Parameter], size: int
) -> dict[str, PerExampleGradient]:
    _check_counts(uses)
    _check_first_derivatives(losses, uses, named)
    _request_gradients(uses)
    found: Found = {}
    asked: list[ParameterUse] = []
    edges: list[GradientEdge] = []
    for use in uses:
        if use.is_asked:
            asked.append(use)
            edges += use.edges
        else:  # no gradient is kept longer than its shares need it
            use.edges[0].node.register_prehook(partial(_collect_gradient, use, found))
    if not asked:
        return {}
    with torch.no_grad(), without_autocast(losses.device.type):
        grads = list(torch.autograd.grad(losses, edges, torch.ones_like(losses), allow_unused=True))
        while asked:
            use = asked.pop()
            first = len(grads) - len(use.edges)
            of_use = grads[first:]
            del grads[first:]
            use.add_shares(of_use, found)
    shares: dict[str, PerExampleGradient] = {}
    for name, p in named.items():
        pairs = found.get(id(p))
        if pairs is not None:  # used once, as it is: by far the most are
            shares[name] = (
                pairs[0][1] if len(pairs) == 1 and pairs[0][0] is p else gradient_of_parameter(p, pairs, size)
            )
    found.clear()  # nodes of the graph hold it, and Python cannot see through them to break a circle
    for use in uses:
        if use.args or use.edges:  # else that was done with its shares
            use.release_tensors()
    return shares


def _check_first_derivatives(losses: Tensor, uses: list[ParameterUse], named: Mapping[str, nn.Parameter]) -> None:
    """Raise if losses reach a parameter by another way than its uses: by a gradient with create_graph=True.

    Per-example gradients are read off the uses, so what comes by another way would be left out, silently.
    """
    mine = set(map(id, named.values()))
    left, seen = [losses.grad_fn], set[Node]()
    for use in uses:
        for edge in use.edges:
            seen.add(edge.node)
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if id(getattr(node, "variable", None)) in mine:
                raise UnseenCall(
                    "losses hold a gradient (create_graph=True, as a gradient penalty has), or a parameter is used "
                    "where it is not seen: what it does there would be left out of the sum"
                )
            for below, _ in node.next_functions:
                left.append(below)


def _collect_gradient(use: ParameterUse, found: Found, grads: tuple[Tensor | None, ...]) -> None:
    if use.edges:
        use.add_shares([grads[use.edges[0].output_nr]], found)


def _request_gradients(uses: list[ParameterUse]) -> None:
    """Ask for the gradients of a use from which no way leads to one that is asked for: autograd would not come there.

    So it is where the data need gradients for reasons of their own.
    """
    for use in uses:
        if not use.is_asked:
            break
    else:
        return
    sure = {edge.node for use in uses if use.is_asked for edge in use.edges}
    for use in uses:
        if not use.is_asked:
            node = use.edges[0].node
            use.is_asked = not reaches_any([below for below, _ in node.next_functions], sure)
            sure.add(node)


def reaches_any(starts: Iterable[Node | None], ends: "set[Node]") -> bool:
    """Whether one of `ends` is among `starts` or below them, in autograd's graph."""
    left, seen = list(starts), set[Node]()
    while left:
        node = left.pop()
        if node in ends:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            for below, _ in node.next_functions:
                left.append(below)
    return False


def _check_counts(uses: list[ParameterUse]) -> None:
    """Raise if a function was called another number of times than when its calls were told apart by their order."""
    counts: Counter[Key] = Counter()
    for use in uses:
        if use.fact.calls:
            counts[use.name] += 1
    if not counts:
        return
    for use in uses:
        if use.fact.calls and use.fact.calls != counts[use.name]:
            raise UnseenCall(
                f"{function_name(use.name[0])} of {', '.join(use.name[1])} was called another number of times"
            )


def _check_against_autograd(model: nn.Module, run: Run, facts: Facts, forced: Mapping[str, str]) -> bool:
    """Raise TooHard unless the rules give what autograd gives, on a few examples with the same random numbers.

    False if none of the examples has a finite gradient, so that nothing could be compared.
    """
    named = trainable_parameters(model)
    with torch.enable_grad():
        with same_random_state(model):
            tape = ForwardRecord(call_names(named), facts, MANY, MANY, forced)
            with track_parameters(list(named.values()), tape):
                losses = run(model, first_examples(MANY))
            try:
                shares = per_example_gradients(tape.uses, losses, named, MANY)
                mine = [_example_row(shares, named, row) for row in range(MANY)]
            except RuntimeError as error:
                raise NoLayerRule(f"the rules fail: {error}") from None
        with same_random_state(model):
            losses = run(model, first_examples(MANY))
        compared = [_compare_with_autograd(mine[row], losses[row], named) for row in range(MANY)]
        return any(compared)


Row = dict[str, tuple[Tensor, Tensor]]  # the gradient of each parameter for one example, and its norm


@torch.no_grad()
def _example_row(shares: Mapping[str, PerExampleGradient], named: Mapping[str, nn.Parameter], row: int) -> Row:
    found: Row = {}
    for name, share in shares.items():
        p = named[name]
        weights = torch.zeros(MANY, device=p.device, dtype=p.dtype if p.dtype in AGREE else torch.float32)
        weights[row] = 1
        found[name] = share.weighted_sum(weights).view(p.shape).double(), share.squared_norms()[row].double().sqrt()
    return found


def _compare_with_autograd(mine: Row, loss: Tensor, named: Mapping[str, nn.Parameter]) -> bool:
    """Whether the example's gradient is finite; raise TooHard if the rules' is another."""
    grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
    size = torch.stack([loss.new_zeros(()).double(), *(g.double().norm() for g in grads if g is not None)]).norm()
    if not bool(size.isfinite()):
        return False
    rough = torch.is_autocast_enabled(loss.device.type)
    for (name, p), grad in zip(named.items(), grads, strict=True):
        true = torch.zeros_like(p, dtype=torch.float64) if grad is None else grad.double()
        found, norm = mine.get(name, (torch.zeros_like(true), torch.zeros_like(size)))
        above = (norm - true.norm() - VANISHED).clamp(min=0)  # a little more than nothing, where squares may vanish
        off = torch.stack([(found - true).norm(), true.norm() - norm, above]).amax()
        allowed = ROUGH if rough else AGREE.get(p.dtype, ROUGH)
        if off > allowed * (true.norm() + NOISE * size) + 1e-30:
            raise NoLayerRule(f"the rules for {name} do not agree with autograd")
    return True
