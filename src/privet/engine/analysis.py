"""Before the first step: where do the examples lie in each tensor, and does any example see another?

The model runs on two and on three examples: a dimension that grows from 2 to 3 (or by that ratio) holds the examples.
Then one example after the other is changed, with the same random numbers: what moves are its rows, and nobody else's
may. What cannot be followed is left to a run of each example alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from privet.engine.apart import (
    check_alone,
    check_apart,
    check_buffers,
    check_path,
    check_whole_batch,
    moved,
    place,
    refuse_batch_norm,
)
from privet.engine.layer.base import TooHard
from privet.engine.survey import FEW, MANY, Call, Run, Survey, another_for, changing, first, survey
from privet.engine.tape import Fact, Facts, Key, Where, name_of
from privet.errors import PrivetError, Unsupported

__all__ = ["MANY", "Call", "Run", "analyse"]

MOST_PASSES = 16


def analyse(model: nn.Module, run: Run, *, forced: Mapping[str, str]) -> tuple[Facts, list[Call]]:
    """Facts of every call, once no example sees another; and the calls themselves, for people.

    Raises:
        Unsupported: examples are coupled; names the module and what to use in its place.
        TooHard: the examples cannot be found in some tensor.
    """
    refuse_batch_norm(model)
    uses: dict[tuple[Key, int], bool] = {}
    many = survey(model, run, first(MANY), uses, forced)
    check_buffers(many, _changed(model, run, 0, uses, forced))
    check_path(many)
    for _ in range(MOST_PASSES):
        few = survey(model, run, first(FEW), uses, forced)
        many = survey(model, run, first(MANY), uses, forced)
        check_buffers(many, few)
        facts, wrong = _compare(few, many)
        if not wrong:
            break
        uses |= wrong
    else:
        raise TooHard("its parameters are used in ways that change from pass to pass")
    changed = [_changed(model, run, which, uses, forced) for which in range(MANY)]
    if any(_path(other) != _path(many) for other in [few, *changed]):
        raise TooHard("its path changes from pass to pass")
    for which, other in enumerate(changed):
        check_apart(few, many, other, which)
    check_alone(model, run, is_random=many.is_random)
    check_whole_batch(model, run)
    return _ordered(facts, many, changed), [replace(call, inputs=[], outputs=[]) for call in many.calls]


def _changed(
    model: nn.Module, run: Run, which: int, uses: dict[tuple[Key, int], bool], forced: Mapping[str, str]
) -> Survey:
    try:
        return survey(model, run, changing(which), uses, forced)
    except PrivetError:
        raise
    except Exception:  # some models take no other values than those of the data, and say so in many ways
        return survey(model, run, another_for(which), uses, forced)


def _path(found: Survey) -> object:
    return [call.key for call in found.calls], [name for name, *_ in found.modules]


def _compare(few: Survey, many: Survey) -> tuple[dict[Key, list[Fact]], dict[tuple[Key, int], bool]]:
    """The facts by shape alone, and the calls whose kind was taken wrongly."""
    if _path(few) != _path(many):
        raise TooHard("its path changes from pass to pass")
    facts: dict[Key, list[Fact]] = {}
    wrong: dict[tuple[Key, int], bool] = {}
    for a, b in zip(few.calls, many.calls, strict=True):
        places = [[_where(place(x, y)) for x, y in zip(one, two, strict=True)]
                  for one, two in ((a.inputs, b.inputs), (a.outputs, b.outputs))]  # fmt: skip
        fact = Fact(tuple(places[0]), tuple(places[1]))
        facts.setdefault(b.key, []).append(fact)
        if fact.is_use != b.is_use:
            wrong[(b.key, b.turn)] = fact.is_use
        elif not fact.is_use and any(places[0]):
            raise Unsupported(
                f"{name_of(b.key[0])} of {', '.join(b.key[1])} sums over the examples of a batch, so one example's "
                "share cannot be told from the others'. Keep one row per example."
            )
    return facts, wrong


def _where(dim: int | None) -> Where | None:
    return None if dim is None else Where(dim)


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
    return {key: _counted(ways) for key, ways in found.items()}


def _counted(ways: list[Fact]) -> list[Fact]:
    """Where the calls of one kind differ, their number must stay: else one could be taken for another."""
    if all(fact == ways[0] for fact in ways):
        return ways
    count = sum(fact.is_use for fact in ways)
    return [replace(fact, calls=count) for fact in ways]


def _order(where: Where | None, base: Tensor, changed: Sequence[Tensor]) -> Where | None:
    if where is None or base.shape[where.dim] == MANY:
        return where
    rows = torch.arange(base.shape[where.dim])
    together = strided = True
    seen = False
    for which, other in enumerate(changed):
        if other.shape != base.shape:
            raise TooHard("the number of rows depends on the data")
        differ = moved(base, other, where.dim).cpu()
        seen |= bool(differ.any())
        together &= bool((rows[differ] // (len(rows) // MANY) == which).all())
        strided &= bool((rows[differ] % MANY == which).all())
    if not seen or together == strided:
        raise TooHard("the rows of an example cannot be told from those of the others")
    return Where(where.dim, together)
