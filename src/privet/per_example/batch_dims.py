"""Before the first step: where do the examples lie in each tensor, and does any example see another?

The model runs on two and on three examples: a dimension that grows from 2 to 3 (or by that ratio) holds the examples.
Then one example after the other is changed, with the same random numbers: what moves are its rows, and nobody else's
may. What cannot be followed is left to a run of each example alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from privet.errors import PrivetError, Unsupported
from privet.per_example.forward_record import BatchDim, CallLayout, Facts, Key, function_name
from privet.per_example.independence.model import (
    changed_rows,
    check_buffers,
    check_independent,
    check_path,
    check_single_example,
    check_whole_batch,
    growing_dim,
    refuse_batch_norm,
)
from privet.per_example.layers.base import NoLayerRule
from privet.per_example.trial_pass import (
    FEW,
    MANY,
    Call,
    Run,
    TrialPass,
    change_example,
    first_examples,
    swap_example,
    trial_pass,
)

__all__ = ["MANY", "Call", "Run", "find_batch_dims"]

MOST_PASSES = 16


def find_batch_dims(model: nn.Module, run: Run, *, forced: Mapping[str, str]) -> tuple[Facts, list[Call]]:
    """Facts of every call, once no example sees another; and the calls themselves, for people."""
    refuse_batch_norm(model)
    uses: dict[tuple[Key, int], bool] = {}
    many = trial_pass(model, run, first_examples(MANY), uses, forced)
    check_buffers(many, _pass_with_change(model, run, 0, uses, forced))
    check_path(many)
    for _ in range(MOST_PASSES):
        few = trial_pass(model, run, first_examples(FEW), uses, forced)
        many = trial_pass(model, run, first_examples(MANY), uses, forced)
        check_buffers(many, few)
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
        check_independent(few, many, other, which)
    check_single_example(model, run, is_random=many.is_random)
    check_whole_batch(model, run)
    return _find_row_orders(facts, many, changed), [replace(call, inputs=[], outputs=[]) for call in many.calls]


def _pass_with_change(
    model: nn.Module, run: Run, which: int, uses: dict[tuple[Key, int], bool], forced: Mapping[str, str]
) -> TrialPass:
    try:
        return trial_pass(model, run, change_example(which), uses, forced)
    except PrivetError:
        raise
    except Exception:  # some models take no other values than those of the data, and say so in many ways
        return trial_pass(model, run, swap_example(which), uses, forced)


def _call_path(found: TrialPass) -> object:
    return [call.key for call in found.calls], [name for name, *_ in found.modules]


def _compare_shapes(few: TrialPass, many: TrialPass) -> tuple[dict[Key, list[CallLayout]], dict[tuple[Key, int], bool]]:
    """The facts by shape alone, and the calls whose kind was taken wrongly."""
    if _call_path(few) != _call_path(many):
        raise NoLayerRule("its path changes from pass to pass")
    facts: dict[Key, list[CallLayout]] = {}
    wrong: dict[tuple[Key, int], bool] = {}
    for a, b in zip(few.calls, many.calls, strict=True):
        places = [[_to_batch_dim(growing_dim(x, y)) for x, y in zip(one, two, strict=True)]
                  for one, two in ((a.inputs, b.inputs), (a.outputs, b.outputs))]  # fmt: skip
        fact = CallLayout(tuple(places[0]), tuple(places[1]))
        facts.setdefault(b.key, []).append(fact)
        if fact.is_use != b.is_use:
            wrong[(b.key, b.turn)] = fact.is_use
        elif not fact.is_use and any(places[0]):
            raise Unsupported(
                f"{function_name(b.key[0])} of {', '.join(b.key[1])} sums over the examples of a batch, so one "
                "example's share cannot be told from the others'. Keep one row per example."
            )
    return facts, wrong


def _to_batch_dim(dim: int | None) -> BatchDim | None:
    return None if dim is None else BatchDim(dim)


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
        differ = changed_rows(base, other, where.dim).cpu()
        seen |= bool(differ.any())
        together &= bool((rows[differ] // (len(rows) // MANY) == which).all())
        strided &= bool((rows[differ] % MANY == which).all())
    if not seen or together == strided:
        raise NoLayerRule("the rows of an example cannot be told from those of the others")
    return BatchDim(where.dim, together)
