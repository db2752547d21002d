"""Wei, Liu 2021, Gradient Leakage Attack Resilient Deep Learning: its tables, and Figures 3 and 4.

Table III and Figure 3 are attacks (wei2021_attacks.py). In the others each method stands here as published, where it
has no guarantee (its epsilons are claims), and as `-sound`, its sibling with the same noise. The paper states batch,
steps, noise and clip; learning rate and the constants of the decays are not in it.
"""

from functools import partial

from privet.accounting import spent
from privet.experiments.readings import noise_of, noise_over_steps, seconds_a_step
from privet.experiments.row import Curve, Figure, Paper, Row, Table
from privet.experiments.wei2021_attacks import figure3, table3
from privet.experiments.wei2021_parts import (
    DECAYS,
    DELTA,
    EIGHT,
    FOUR,
    FROM_15,
    GAMMA_NOTE,
    MISSING,
    NAME,
    STAND_IN,
    by_five,
    data_of,
    epsilons_of,
    pair,
    plain,
    recipe_of,
    trains,
    unavailable,
)
from privet.experiments.wei2021_printed import ACCOUNTANTS, CLIPS, TABLE2, TABLE4, TABLE5, TABLE8, TABLE10, TABLE11
from privet.experiments.wei2021_targets import table6, table7, table9
from privet.planning.methods import METHODS

_TIMED = 200  # steps of a row that is timed


def rows() -> list[Row]:
    """All rows, in the order of the paper."""
    return [
        *_table1(), *figure3(), *_figure4(), *_table2(), *table3(), *_table4(), *_table5(), *table6(), *table7(),
        *_table8(), *table9(), *_table10(), *_table11(),
    ]  # fmt: skip


# --- definitions, baselines -------------------------------------------------------------------------


def _table1() -> list[Row]:
    """What decays in each of the eight methods: with Table VIII's two more than the paper's Table I."""
    return [
        Row(
            paper=NAME, table="table1", name=method, kind="accounts", label="claimed", figures=_moves,
            place="Table I" if method not in ("dyn-s-cdecay-sigma", "dyn-s-l2max-sigma") else "Table VIII",
            recipe=recipe_of("mnist", method), curve=_noise_of,
            notes=(f"sensitivity: {'the largest norm of the batch' if 'l2_max' in found.published_rule else 'C'}",),
        )
        for method, found in ((method, METHODS[method]) for method in EIGHT)
    ]  # fmt: skip


def _moves(row: Row) -> dict[str, Figure]:
    steps = row.plan().steps
    return {
        "clip last / first": Figure(value=float(steps.clips[-1] / steps.clips[0])),
        "noise last / first": Figure(value=float(steps.noises[-1] / steps.noises[0])),
    }


def _noise_of(row: Row) -> Curve:
    return noise_of(row.plan().ledger())


def _figure4() -> list[Row]:
    """The standard deviation S sigma of the noise over the training: read off the batches as published."""
    found = []
    for method, noise in (("dp-baseline", None), ("dyn-s", None), ("dyn-s-sigma", FROM_15["exponential"])):
        found += pair("fig4", method, "Figure 4", "mnist", method, {}, {"noise": noise}, after=noise_over_steps)
    return [row for row in found if row.name != "dp-baseline-sound"]  # the same line


def _table2() -> list[Row]:
    found = []
    for data in (*TABLE2, STAND_IN):
        published = {} if data == STAND_IN else {"accuracy": TABLE2[data][3]}
        if data in MISSING:
            found.append(unavailable("table2", data, f"Table II, {data}", published, MISSING[data]))
        else:
            notes = ("Table IV prints 98.92",) if data == "mnist" else ()
            found.append(plain("table2", data, f"Table II, {data}", data, published, notes=notes))
    return found


# --- accuracy at a fixed budget ---------------------------------------------------------------------


def _table4() -> list[Row]:
    found = []
    for data in (*TABLE4, STAND_IN):
        for method in FOUR:
            for number, clip in enumerate(CLIPS):
                name, place = f"{data}-c{clip}-{method}", f"Table IV, {data}, C = {clip}, {method}"
                published = {} if data == STAND_IN else {"accuracy": TABLE4[data][method][number]}
                if data in MISSING:
                    found.append(unavailable("table4", name, place, published, MISSING[data]))
                else:
                    recipe = recipe_of(data, method, clip=clip)
                    found.append(trains("table4", name, place, data, recipe, published=published))
    return found


def _table5() -> list[Row]:
    found = []
    for data in (*TABLE4, STAND_IN):
        for method in FOUR:
            name, place = f"{data}-{method}", f"Table V, {data}, {method}"
            published = epsilons_of(TABLE5[data_of(data)[2]]) if data != STAND_IN else {}
            if data != STAND_IN:
                published = {"accuracy": TABLE4[data][method][CLIPS.index(4)]} | published
            if data in MISSING:
                found.append(unavailable("table5", name, place, published, MISSING[data]))
            else:
                found += pair("table5", name, place, data, method, published, figures=by_five)
    return found


def _table8() -> list[Row]:
    """The eight methods when each accountant's budget is used up; the sound siblings at the moments accountant's."""
    found = []
    for decay, printed in TABLE8.items():
        iterations = printed["iterations"]
        for method in (name for name in printed if name != "iterations"):
            for number, accountant in enumerate(ACCOUNTANTS[: len(iterations)]):
                place = f"Table VIII, {decay}, {method}, {accountant}"
                name = f"{decay}-{accountant}-{method}" if decay in DECAYS else f"{decay}-{method}"
                given = {"steps": int(iterations[number]), "noise": DECAYS.get(decay)}
                published = {"accuracy": printed[method][number]}
                made = pair("table8", name, place, "mnist", method, published, given)
                found += made if accountant == "moments" or decay == "fixed" else made[:1]
    return found + _iterations()


def _iterations() -> list[Row]:
    """Where each accountant finds the budget of Table V used up, under our constants."""
    return [
        Row(
            paper=NAME, table="table8-iterations", name=f"{decay}-{accountant}", kind="accounts",
            place=f"Table VIII, {decay}, iteration", label="claimed",
            recipe=recipe_of("mnist", "dyn-sigma", noise=DECAYS[decay]),
            published={"iterations": TABLE8[decay]["iterations"][number]}, notes=(GAMMA_NOTE,),
            figures=partial(_used_up, accountant=accountant, budget=TABLE5[10000][number]),
        )
        for decay in DECAYS
        for number, accountant in enumerate(ACCOUNTANTS)
    ]  # fmt: skip


def _used_up(row: Row, accountant: str, budget: float) -> dict[str, Figure]:
    """The last step at which the accountant's reading is at most the printed budget."""
    ledger = row.plan().ledger()
    fits, fails = 1, ledger.steps + 1
    while fails - fits > 1:
        here = (fits + fails) // 2
        within = spent(ledger.first(here), DELTA, accountant=accountant).epsilon <= budget
        fits, fails = (here, fails) if within else (fits, here)
    return {"iterations": Figure(value=float(fits))}


# --- time, and other adaptive clipping --------------------------------------------------------------


def _table10() -> list[Row]:
    """Seconds a step, of 200 steps."""
    found = []
    for method, printed in TABLE10.items():
        for data, seconds in zip(("mnist", "fashion-mnist", "cifar10", "lfw", "purchase"), printed, strict=True):
            name, place, published = f"{data}-{method}", f"Table X, {data}, {method}", {"seconds a step": seconds}
            note = (f"{_TIMED} steps and one evaluation, on a CPU that other work shared",)
            if data not in TABLE2 or data in MISSING:
                why = MISSING.get(data, "data not available: Purchase")
                found.append(unavailable("table10", name, place, published, why))
            elif method == "non-private":
                found.append(plain("table10", name, place, data, published, steps=_TIMED, after=seconds_a_step))
            else:
                recipe = recipe_of(data, method, steps=_TIMED)
                found.append(trains("table10", name, place, data, recipe, published=published, notes=note,
                                    after=seconds_a_step, training={"evaluate_every": _TIMED}))  # fmt: skip
    return found


def _table11() -> list[Row]:
    found = []
    for method, (accuracies, seconds) in TABLE11.items():
        for number, data in enumerate(("mnist", "fashion-mnist", "cifar10", "lfw")):
            name, place = f"{data}-{method}", f"Table XI, {data}, {method}"
            published = {"accuracy": accuracies[number], "seconds a step": seconds[number]}
            if data in MISSING:
                found.append(unavailable("table11", name, place, published, MISSING[data]))
            else:
                found += pair("table11", name, place, data, method, published, after=seconds_a_step)
    return found


PAPER = Paper(
    name=NAME,
    title="Wei, Liu 2021, Gradient Leakage Attack Resilient Deep Learning",
    tables={
        "table1": Table(title="What decays in each method, by our constants"),
        "fig3": Table(title="What the first gradient gives away, without privacy and at two settings of dp-baseline"),
        "fig4": Table(title="Standard deviation of the noise on the clipped sum, MNIST (as published it is read off "
                      "the batches: raw, not private)", x="step", y="standard deviation", log_y=True),
        "table2": Table(title="Without privacy"),
        "table3": Table(title="What the gradient of the first step gives away, C = 4, noise 6"),
        "table4": Table(title="Accuracy at noise 6 and clips from 1 to 32, delta 1e-5"),
        "table5": Table(title="Accuracy and five readings of epsilon, C = 4, noise 6, delta 1e-5"),
        "table6": Table(title="Epsilon where the accuracy of dp-baseline is reached, noise 6"),
        "table6-epsilon": Table(title="The same readings, at the printed iterations"),
        "table7": Table(title="The same with noise of a fixed standard deviation, 6 C"),
        "table8": Table(title="Accuracy of eight methods on MNIST when a budget is used up"),
        "table8-iterations": Table(title="When each accountant finds the budget used up, by our constants"),
        "table9": Table(title="Epsilon where dyn-s-sigma has 95.96 % on MNIST"),
        "table10": Table(title="Seconds a step"),
        "table11": Table(title="Against adaptive clipping, C = 4, noise 6, delta 1e-5"),
    },
    rows=rows,
)  # fmt: skip
