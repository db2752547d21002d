"""Wei, Liu 2021, Gradient Leakage Attack Resilient Deep Learning: its tables, and Figures 3 and 4.

Table III and Figure 3 are attacks (wei2021_attacks.py). In the others each method stands here as published, where it
has no guarantee (its epsilons are claims), and as `-sound`, its sibling with the same noise. The paper states batch,
steps, noise and clip; learning rate and the constants of the decays are not in it."""

from functools import partial
from typing import Any

from privet.accounting import spent
from privet.attacks.attack import REFERENCE
from privet.planning.methods import METHODS
from privet.published.figures_printed import TABLE
from privet_papers.reproduce.kinds import noise_of, noise_over_steps, seconds_a_step
from privet_papers.reproduce.table_row import Curve, Figure, Paper, Row, Table, keyed
from privet_papers.tables.wei2021_printed import ACCOUNTANTS, CLIPS, TABLE2, TABLE4, TABLE5, TABLE8, TABLE10, TABLE11

NAME = "wei2021"
DELTA, CLIP, NOISE = 1e-5, 4.0, 6.0
FOUR = ("dp-baseline", "dyn-s-cdecay", "dyn-s-l2max", "dyn-s")
EIGHT = (*FOUR, "dyn-sigma", "dyn-s-cdecay-sigma", "dyn-s-l2max-sigma", "dyn-s-sigma")
STAND_IN = "location30"
CNN, MLP = "shallow-cnn:activation=relu", "mlp:layers=2,hidden=128"
SGD = {"optimizer": "sgd", "momentum": 0.0}  # Algorithm 2, line 14
LR = 0.1

# How fast sigma falls from 6 in Table VIII: the constants with which the zCDP reading is used up at its iteration there
DECAYS = {
    "linear": "linear:start=6,decay=5.33e-6",
    "exponential": "exponential:start=6,decay=4.75e-6",
    "cyclic": "cyclic:start=6,half=500,decay=0.00034,fade=5.3e-6",
}
# From 15 (Figure 4) in Table IX, whose readings are too small for 6. The end of the second and the depth of the third
# have the printed zCDP reading at the printed iteration. No straight line over 10,000 steps has: it takes the same end.
FROM_15 = {
    "linear": "linear:start=15,end=3.5,grid=before",
    "exponential": "exponential:start=15,end=3.5,grid=before",
    "cyclic": "cyclic:start=15,half=500,decay=0.00131,fade=6e-5",
}
MISSING = {
    "lfw": "data not available: the faces in the wild",
    "purchase-10": "data not available: Purchase in 10 classes; location30 stands in for it",
    "purchase-50": "data not available: Purchase in 50 classes; location30 stands in for it",
}
_RATE_NOTE = f"lr {LR}: not in the paper"
GAMMA_NOTE = "the decay of the noise: not in the paper, found from the zCDP readings of its table"
_CYCLE_NOTE = "the cycle falls for 500 steps and rises for 500: not in the paper"
_FROM_15_NOTE = "noise from 15: that of Figure 4; Table IX names 6 alone, which is too small for its readings"
_LINE_NOTE = "no straight line has the reading of this row: it takes the end of the exponential one"
_C_DECAY = "the clip falls on a line from C to C/2 over the steps of Table II"
_SOUND = "the published figure is of the method without a guarantee"
_STANDS_IN = "no published figure: stands in for Purchase, at its rate 0.01 and number of steps"


def data_of(name: str) -> tuple[int, int, int]:
    """(records, batch, steps); location30 has the rate and the steps of Purchase."""
    return (4008, 40, 5000) if name == STAND_IN else TABLE2[name][:3]


def recipe_of(
    data: str,
    method: str,
    *,
    clipping_norm: float | str = CLIP,
    noise_multiplier: float | str | None = None,
    steps: int | None = None,
) -> dict[str, Any]:
    """A method on a dataset, as published; where it lets the clip fall, C is C/2 after the steps of Table II."""
    size, batch, most = data_of(data)
    steps, free = steps or most, METHODS[method].free
    given = {
        "dataset_size": size, "batch_size": batch, "steps": steps, "delta": DELTA, "method": method,
        "clipping_norm": _falling(clipping_norm, steps / most)
        if "clip" in free and not isinstance(clipping_norm, str) else clipping_norm,
        "noise_multiplier": noise_multiplier or (DECAYS["exponential"] if "noise" in free else NOISE),
    }  # fmt: skip
    return given if METHODS[method].is_certified else given | {"uncertified": True}


def _falling(clip: float, part: float) -> str:
    """The line from C to C/2, or the first part of it."""
    return f"linear:start={clip:g},end={clip * (1 - part / 2):g},grid=before"


def trains(table: str, name: str, place: str, data: str, recipe: dict[str, Any], **rest: Any) -> Row:
    """A row that trains; `-sound` in its name says that it is the sibling with a guarantee."""
    method, notes = METHODS[recipe["method"]], list(rest.pop("notes", ()))
    notes += [_C_DECAY] * str(recipe["clipping_norm"]).startswith("linear")
    notes += _on_decay(recipe["noise_multiplier"])
    notes += [_SOUND] * (not method.is_certified and "uncertified" not in recipe and bool(rest.get("published")))
    notes += [_RATE_NOTE, *([_STANDS_IN] if data == STAND_IN else [])]
    training = SGD | {"lr": LR} | rest.pop("training", {})
    label = method.label if recipe["method"] in EIGHT else None  # it has no epsilon of the others
    return Row(
        paper=NAME, table=table, name=name, place=place, kind="trains", task=data, recipe=recipe, training=training,
        model=MLP if data == STAND_IN else CNN, label=label, notes=tuple(notes), **rest,
    )  # fmt: skip


def _on_decay(noise: Any) -> list[str]:
    """Where the constants of a decay come from."""
    cycle = [_CYCLE_NOTE] * str(noise).startswith("cyclic")
    if noise in DECAYS.values():
        return [GAMMA_NOTE, *cycle]
    if noise not in FROM_15.values():
        return []
    return [_FROM_15_NOTE, _LINE_NOTE if noise == FROM_15["linear"] else GAMMA_NOTE, *cycle]


def unavailable(table: str, name: str, place: str, published: dict[str, float], why: str) -> Row:
    """A row that is listed and not run."""
    return Row(
        paper=NAME, table=table, name=name, place=place, kind="not run", published=published, label="claimed", why=why
    )


def epsilons_of(printed: tuple[float, ...]) -> dict[str, float]:
    """The five printed epsilons by the names of our accountants."""
    return {f"{name} epsilon": value for name, value in zip(ACCOUNTANTS, printed, strict=True)}


@keyed("by_five")
def by_five(row: Row) -> dict[str, Figure]:
    """The readings of all steps. None is certified: no proof covers the methods as published."""
    plan = row.plan()
    found = {name: spent(plan.ledger(), DELTA, accountant=name) for name in ACCOUNTANTS}
    return {f"{name} epsilon": Figure(value=g.epsilon, label="claimed") for name, g in found.items()}


def pair(
    table: str, name: str, place: str, data: str, method: str, published: dict[str, float],
    recipe: dict[str, Any] | None = None, **rest: Any,
) -> list[Row]:  # fmt: skip
    """A method as published, and its sound sibling; one row where they are the same."""
    made = recipe_of(data, method, **(recipe or {}))
    found = [trains(table, name, place, data, made, published=published, **rest)]
    if not METHODS[method].is_certified:
        rest.pop("figures", None)
        kept = {key: value for key, value in published.items() if not key.endswith("epsilon")}
        sibling = {key: value for key, value in made.items() if key != "uncertified"}
        found.append(trains(table, f"{name}-sound", f"{place}, made sound", data, sibling, published=kept, **rest))
    return found


def plain(table: str, name: str, place: str, data: str, published: dict[str, float], **rest: Any) -> Row:
    """The same network without clipping and noise."""
    size, batch, steps = data_of(data)
    recipe = {"dataset_size": size, "batch_size": batch, "steps": rest.pop("steps", steps)}
    notes = (_RATE_NOTE, *([_STANDS_IN] if data == STAND_IN else []), *rest.pop("notes", ()))
    return Row(
        paper=NAME, table=table, name=name, place=place, kind="baseline", task=data, published=published,
        model=MLP if data == STAND_IN else CNN, recipe=recipe, training=SGD | {"lr": LR}, notes=notes, **rest,
    )  # fmt: skip


# --- attacks on the first step ----------------------------------------------------------------------


STEPS = 100  # the first is attacked; the others only move the ceiling of the run
MODEL = "shallow-cnn"  # with sigmoids: L-BFGS needs them
IMAGES = ("mnist", "fashion-mnist", "cifar10", "lfw")
_ITERATIONS = "iterations: the paper's code counts calls of L-BFGS, of up to 20 each; ours are single"
_TRIVIAL = (
    "MSE < 0.70 is met by a black image: it says nothing; the paper's MSE is of successes alone, or where there is "
    "none, at 300 iterations"
)
_KNOWN = "the attacker knows of the clipping, the weights and every other record"


def table3() -> list[Row]:
    """The published columns, by method and dataset, each method as published."""
    found = []
    for method, columns in TABLE.items():
        for data in IMAGES:
            beside, place = columns[data], f"Table III, {data}, {method}"
            published = {"iterations": beside.iterations, "MSE < 0.70": beside.success, "MSE": beside.mse}
            if data in MISSING:
                found.append(unavailable("table3", f"{data}-{method}", place, published, MISSING[data]))
            else:
                found.append(_row("table3", f"{data}-{method}", place, data, method, published))
    return found


def figure3() -> list[Row]:
    """dp-baseline at clip 1 and noise 1, and at clip 4 and noise 6, beside training without privacy.

    Pictures, no printed figures; that of LFW is left out, since its data is not available.
    """
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        REFERENCE: (REFERENCE, {}),
        "c1-sigma1": ("dp-baseline", {"clipping_norm": 1.0, "noise_multiplier": 1.0}),
        "c4-sigma6": ("dp-baseline", {}),
    }
    return [
        _row("fig3", f"{data}-{name}", f"Figure 3, {data}, {name}", data, method, {}, **given)
        for data in IMAGES if data not in MISSING for name, (method, given) in settings.items()
    ]  # fmt: skip


def _row(table: str, name: str, place: str, data: str, method: str, published: dict[str, float], **given: Any) -> Row:
    recipe = recipe_of(data, "dp-baseline" if method == REFERENCE else method, steps=STEPS, **given)
    return Row(
        paper=NAME, table=table, name=name, place=place, kind="attacks", task=data, model=MODEL, recipe=recipe,
        published=published, notes=(_ITERATIONS, _TRIVIAL, _KNOWN),
    )  # fmt: skip


# --- the tables -------------------------------------------------------------------------------------


_TIMED = 200  # steps of a row that is timed


def rows() -> list[Row]:
    """All rows, in the order of the paper."""
    from privet_papers.tables.wei2021_targets import table6, table7, table9  # it builds on this file

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


@keyed("_moves")
def _moves(row: Row) -> dict[str, Figure]:
    steps = row.plan().steps
    return {
        "clip last / first": Figure(value=float(steps.clipping_norms[-1] / steps.clipping_norms[0])),
        "noise last / first": Figure(value=float(steps.noise_multipliers[-1] / steps.noise_multipliers[0])),
    }


@keyed("_noise_of")
def _noise_of(row: Row) -> Curve:
    return noise_of(row.plan().ledger())


def _figure4() -> list[Row]:
    """The standard deviation S sigma of the noise over the training: read off the batches as published."""
    found = []
    for method, noise in (("dp-baseline", None), ("dyn-s", None), ("dyn-s-sigma", FROM_15["exponential"])):
        found += pair(
            "fig4", method, "Figure 4", "mnist", method, {}, {"noise_multiplier": noise}, after=noise_over_steps
        )
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
                    recipe = recipe_of(data, method, clipping_norm=clip)
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
                given = {"steps": int(iterations[number]), "noise_multiplier": DECAYS.get(decay)}
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
            recipe=recipe_of("mnist", "dyn-sigma", noise_multiplier=DECAYS[decay]),
            published={"iterations": TABLE8[decay]["iterations"][number]}, notes=(GAMMA_NOTE,),
            figures=partial(_used_up, accountant=accountant, budget=TABLE5[10000][number]),
        )
        for decay in DECAYS
        for number, accountant in enumerate(ACCOUNTANTS)
    ]  # fmt: skip


@keyed("_used_up")
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
