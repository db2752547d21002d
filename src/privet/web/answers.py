"""What the page shows: plain values from the library, every epsilon with its label and rounded to the safe side."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from privet.accounting import Guarantee, epsilon_curve, registry
from privet.accounting.accountant import refuse_unsupported
from privet.accounting.guarantee import MEANING, format_bound, format_outward
from privet.accounting.pld.accountant import delta_curve
from privet.accounting.tradeoff import Gaussian, Tradeoff, advantage, from_deltas, tradeoff, true_positive_rate
from privet.errors import NoSolution, PrivetError
from privet.planning import Plan, Recipe, ahead, compare
from privet.planning.compare import Row
from privet.web.questions import MOST_STEPS, recipe_to_command, recipe_to_toml

POINTS = 240  # of a schedule
CURVE = {"pld": 60, "gdp": 30, "rdp": 12}  # points of epsilon over the steps, about: the line is a staircase
ATTACKER = 16  # epsilons that make the trade-off curve
BATCHES, STEPS = (0.25, 1, 4), (0.3, 1, 3)  # the view ahead, times the recipe's own
FALSE_ALARMS = 0.01


def plan_answer(planned: Plan, seconds: float) -> dict[str, Any]:
    """The plan in numbers: what is promised, proven and said beside, the schedule, and how to have it elsewhere."""
    row = compare({"plan": planned}).rows[0]
    recipe = planned.recipe
    return {
        "guarantee": guarantee_answer(planned.guarantee),
        "certified": guarantee_answer(planned.certified),
        "beside": {"clt": guarantee_answer(row.clt), "renyi": guarantee_answer(row.renyi)},
        "unsound": planned.is_unsound, "rule": planned.rule, "over_budget": row.over_budget,
        "steps": len(planned.steps), "epochs": len(planned.steps) * float(planned.steps.sample_rates[0]),
        "schedule": _schedule(planned, row), "utility": None if row.utility is None else row.utility.utility,
        "toml": recipe_to_toml(recipe), "command": recipe_to_command(recipe), "hash": planned.hash, "seconds": seconds,
    }  # fmt: skip


def curves_answer(planned: Plan) -> dict[str, Any]:
    """Epsilon over the steps by three accountants; none where no theorem covers it."""
    start = time.perf_counter()
    lines = []
    for name in () if planned.is_unsound else CURVE:
        lines += _try_make(_curve_line, planned, name)
    return {"lines": lines, "why": _no_curve_reason(planned, lines), "seconds": time.perf_counter() - start}


def attacker_answer(planned: Plan) -> dict[str, Any]:
    """The trade-off of an attacker's two errors, and what the best attacker can do; none where no theorem covers it."""
    start = time.perf_counter()
    lines: list[Tradeoff | Gaussian] = []
    for name in () if planned.is_unsound else ("pld", "gdp"):
        lines += _try_make(_attacker_curve, planned, name)
    certified = next((line for line in lines if line.label == "certified"), None)
    return {
        "lines": [_curve_points(line) for line in lines],
        "best": None if certified is None else _best_attacker(certified),
        "why": _no_curve_reason(planned, lines),
        "seconds": time.perf_counter() - start,
    }


def ahead_answer(recipe: Recipe) -> dict[str, Any]:
    """The noise of the same budget around the recipe's own batch and steps, and which choices stand out."""
    start = time.perf_counter()
    if recipe.uncertified:
        raise NoSolution("uncertified cannot be explored: only certified noise is shown. Untick it.")
    count, batch = recipe.count or 1, float(recipe.batch_size)
    batches = sorted({min(recipe.dataset_size, max(1, round(batch * by))) for by in BATCHES})
    steps = sorted({min(MOST_STEPS, max(1, round(count * by))) for by in STEPS})
    cells = [
        {
            "steps": cell.steps, "batch_size": cell.batch_size, "epochs": cell.epochs, "std": cell.std,
            "frontier": cell.frontier,
            "noise_multiplier": _shown(cell.noise_multiplier),
            "noise_last": _shown(cell.noise_last),
            "label": None if cell.guarantee is None else cell.guarantee.label, "why": cell.why,
        }
        for cell in ahead(recipe, batches=batches, steps=steps).cells
    ]  # fmt: skip
    return {"batches": batches, "steps": steps, "cells": cells, "seconds": time.perf_counter() - start}


def guarantee_answer(guarantee: Guarantee | None) -> dict[str, Any] | None:
    """A guarantee with its numbers spelled: an upper bound rounded up, a lower one down."""
    if guarantee is None:
        return None
    lower = guarantee.epsilon_lower
    return {
        "epsilon": guarantee.epsilon, "shown": format_outward(guarantee.epsilon, up=True), "lower": lower,
        "shown_lower": None if lower is None else format_outward(lower, up=False), "delta": guarantee.delta,
        "label": guarantee.label, "meaning": MEANING[guarantee.label], "method": guarantee.method,
        "adjacency": guarantee.adjacency, "sampling": guarantee.sampling, "unit": guarantee.unit,
        "line": str(guarantee),
        "assumptions": list(guarantee.assumptions),
    }  # fmt: skip


# --- parts ------------------------------------------------------------------------------------------
def _schedule(planned: Plan, row: Row) -> dict[str, Any]:
    count = len(planned.steps)
    places = np.unique(np.linspace(0, count - 1, min(POINTS, count)).round().astype(np.int64))
    noises, clips = planned.steps.noise_multipliers[places], planned.steps.clipping_norms[places]
    return {
        "step": (places + 1).tolist(),
        "noise": noises.tolist(),
        "clip": clips.tolist(),
        "std": (noises * clips).tolist(),
        "ends": {
            "noise": _format_ends(row.noise_multiplier),
            "clip": _format_ends(row.clipping_norm),
            "std": _format_ends(row.noise_std),
        },
        "batch": planned.batch_size,
    }


def _format_ends(ends: tuple[float, float]) -> list[str]:
    """First and last, rounded up: with so much noise the budget is kept, and no share is above such a clip."""
    return [format_bound(value, up=True, digits=5) for value in ends]


def _try_make(make: Callable[[Plan, str], Any], planned: Plan, accountant: str) -> list[Any]:
    try:
        return [make(planned, accountant)]
    except PrivetError:
        return []


def _no_curve_reason(planned: Plan, lines: list[Any]) -> str:
    if planned.is_unsound:
        return f"No proof covers the clipping rule {planned.rule}, so there is no curve to show."
    return "" if lines else "No accountant covers this plan."


def _curve_line(planned: Plan, accountant: str) -> dict[str, Any]:
    budget = planned.recipe.budget
    found = epsilon_curve(
        planned.ledger(), budget.delta, points=CURVE[accountant], accountant=accountant, adjacency=budget.adjacency
    )
    return {"method": found.method, "label": found.label, "x": found.steps.tolist(), "y": found.upper.tolist()}


def _attacker_curve(planned: Plan, accountant: str) -> Tradeoff | Gaussian:
    """The curve of the first half of the epsilons alone: also a bound, and the rest costs seconds to see nothing."""
    ledger, adjacency = planned.ledger(), planned.recipe.budget.adjacency
    if accountant != "pld":
        return tradeoff(ledger, accountant=accountant, adjacency=adjacency)
    refuse_unsupported(registry.make("pld"), ledger, adjacency=adjacency, accountant="pld")
    top = planned.guarantee if planned.certified is None else planned.certified
    epsilons = np.linspace(0.0, top.epsilon / 2, ATTACKER)
    return from_deltas(epsilons, delta_curve(ledger, epsilons)[1], method="pld")


def _curve_points(curve: Tradeoff | Gaussian) -> dict[str, Any]:
    alpha = np.unique(np.concatenate([np.geomspace(1e-4, 0.1, 24), np.linspace(0, 1, 61)]))
    return {"method": curve.method, "label": curve.label, "x": alpha.tolist(), "y": curve(alpha).tolist()}


def _best_attacker(curve: Tradeoff | Gaussian) -> dict[str, Any]:
    """What the best attacker can do, in per cent, rounded up: the lead of hits over false alarms, the hits at few."""
    return {
        "label": curve.label,
        "advantage": format_outward(100 * advantage(curve), up=True, digits=3),
        "false_alarms": f"{100 * FALSE_ALARMS:g}",
        "hits": format_outward(100 * true_positive_rate(curve, FALSE_ALARMS), up=True, digits=3),
    }


def _shown(noise: float | None) -> str | None:
    return None if noise is None else format_outward(noise, up=True, digits=4)
