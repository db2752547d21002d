"""Auto DP-SGD, Dual Improvements of Privacy and Accuracy: Tables 1 to 6 and 8 to 17, Figures 1 and 2.

As published each example's clip is its own norm: nothing is clipped, and there is no guarantee. Epsilon is then the
closed form of Table 8 at the mean of these norms over the training, which is known only after it: a claim. Beside each
row of Table 14 stands the same schedule made sound, at the certified epsilon of DP-SGD in Table 2."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.optimize import brentq

from privet.accounting import gdp, spent
from privet.published.accountants import auto_exponential, auto_linear, auto_step, auto_time, epsilon_of_rho
from privet.training.run import Run
from privet_papers.reproduce.kinds import sensitivity
from privet_papers.reproduce.results import Result
from privet_papers.reproduce.table_row import Curve, Figure, Paper, Row, Table, keyed
from privet_papers.tables.auto2023_printed import BUDGETS, NOISES, TABLE2, TABLE5, TABLE6, TABLES_3_4, TABLES_14_17

NAME = "auto2023"
DELTA = 1e-5
MNIST: dict[str, Any] = {"dataset_size": 60000, "batch_size": 64, "epochs": 100, "delta": DELTA}
NEWS: dict[str, Any] = {"dataset_size": 120_000, "batch_size": 256, "epochs": 40, "delta": DELTA}
DATA = {"mnist": ("mnist", "pool-cnn", MNIST), "ag-news": ("ag-news", "bilstm", NEWS)}
CLIPS = {"mnist": 50.0, "cifar10": 10.0, "cifar100": 20.0, "ag-news": 10.0}  # of DP-SGD and adaptive DP-SGD
VARIANTS = {"L": "auto-linear", "T": "auto-time", "S": "auto-step", "E": "auto-exp"}
ADAMW = {"optimizer": "adamw", "weight_decay": 1e-3, "lr": 1e-3, "scheduler": "one-cycle"}
BY_TABLE_8 = "epsilon by Table 8"
_ABSENT = "weights or data not available"
_SCALE = "sensitivity: the mean of each example's own norm times W, raw: shown on a public dataset"
OF_100 = "the printed epsilon is that of 100 epochs, not of 40"  # with 40, it would need norms eight times as large
_NEWS = "needs all 120,000 texts; how they are prepared is not in the paper"


def trains(table: str, name: str, place: str, data: str, recipe: dict[str, Any], **rest: Any) -> Row:
    """A row that trains by AdamW and one cycle of the learning rate, if nothing else is said."""
    task, model, common = DATA[data]
    given = {"training": ADAMW, "notes": ()} | rest
    given["notes"] += (_NEWS,) if data == "ag-news" else ()
    return Row(
        paper=NAME, table=table, name=name, place=place, kind="trains", task=task, model=model,
        recipe={**common, **recipe}, **given,
    )  # fmt: skip


def absent(table: str, name: str, place: str, published: dict[str, float], why: str = _ABSENT) -> Row:
    """A row that is listed and not run; its epsilon is of a Rényi bound, of the CLT, or claimed."""
    label = "certified" if "rdp epsilon" in published else "approximate" if "gdp epsilon" in published else "claimed"
    return Row(
        paper=NAME, table=table, name=name, place=place, kind="not run", published=published, label=label, why=why
    )


def uncertified(table: str, name: str, place: str, data: str, variant: str, noise: float, **rest: Any) -> Row:
    """A variant as published, with what it claims at the mean norm of its run; `scale` is the paper's W."""
    scale = rest.pop("scale", 1.0)
    rule = {} if scale == 1.0 else {"rule": f"own_norm:scale={scale:g}"}
    recipe = {"method": VARIANTS[variant], "noise_multiplier": noise, "uncertified": True, **rule}
    is_news = data == "ag-news" and BY_TABLE_8 in rest.get("published", {})
    return trains(
        table,
        name,
        place,
        data,
        recipe,
        label="claimed",
        after=partial(_claimed, epochs=100 if is_news else None),
        notes=(_SCALE, *((OF_100,) if is_news else ()), *rest.pop("notes", ())),
        **rest,
    )


def _claimed(row: Row, result: Result, run: Run | None, epochs: int | None) -> Result:
    """The mean norm of the run, and the closed form of Table 8 at it."""
    found = None if run is None else sensitivity(run)
    if found is None:
        return result
    figures = {
        "sensitivity": Figure(value=found),
        BY_TABLE_8: Figure(value=by_table_8(row, clip=found, epochs=epochs), label="claimed"),
    }
    return replace(result, figures=result.figures | figures)


def by_table_8(row: Row, *, clip: float, epochs: int | None = None) -> float:
    """Epsilon by the closed form of a row's decay, `clip` being the mean sensitivity C.

    >>> recipe = {**MNIST, "method": "auto-time", "noise_multiplier": 1.0}
    >>> row = Row(paper=NAME, table="table8", name="time", place="Table 8", kind="accounts", recipe=recipe)
    >>> round(by_table_8(row, clip=1.0), 2)
    0.23
    """
    recipe = row.as_recipe()
    assert recipe.base_rate is not None
    assert recipe.count is not None
    epochs = epochs or max(1, round(recipe.count * recipe.base_rate))
    noise, rate = float(recipe.noise_multiplier), recipe.base_rate
    form = {"auto-step": auto_step, "auto-exp": auto_exponential, "auto-time": auto_time}
    rho = form.get(str(recipe.method), auto_linear)(
        noise_multiplier=noise, sample_rate=rate, epochs=epochs, clipping_norm=clip
    )[0]
    return epsilon_of_rho(rho, recipe.budget.delta)


@keyed("if_clipped")
def if_clipped(row: Row) -> dict[str, Figure]:
    """What the same noise would cost if each example were clipped to 1. Of the exponential decay it is beyond use."""
    if row.recipe["method"] == "auto-exp":
        return {}
    # without a label: a bound of what did not run certifies nothing
    return {"clipped epsilon": Figure(value=spent(row.plan().ledger(), DELTA).epsilon)}


# --- the tables -------------------------------------------------------------------------------------


RHO = 2.0  # of the clip
_COLUMNS = {"dp": "rdp epsilon", "dynamic": "gdp epsilon", "adaptive": BY_TABLE_8, "auto-s": BY_TABLE_8}
_RHO = "rho_mu: with it the noise starts at sigma_0, as the paper says; clip 50 and its rho 2: not in the paper"


def rows() -> list[Row]:
    """All rows, in the order of the paper."""
    from privet_papers.tables.auto2023_tuning import tuning  # it builds on this file

    return [
        *_table1(), *_table2(), *_tables_3_4(), *_table5(), *_table6(), *_table8(), *tuning(), *_figure1(),
        *_tables_14_17(), *_figure2(),
    ]  # fmt: skip


# --- decays -----------------------------------------------------------------------------------------


def _decays(table: str, place: str, printed: Mapping[str, float] | None = None, **rest: Any) -> list[Row]:
    """The four decays from sigma 1 over 100 epochs of MNIST."""
    return [
        Row(
            paper=NAME, table=table, name=name, place=place, kind="accounts", label="claimed",
            recipe={**MNIST, "method": VARIANTS[letter], "noise_multiplier": 1.0, "uncertified": True},
            published={} if printed is None else {BY_TABLE_8: printed[name]}, **rest,
        )
        for letter, name in zip(VARIANTS, ("linear", "time", "step", "exponential"), strict=True)
    ]  # fmt: skip


def _table1() -> list[Row]:
    return _decays("table1", "Table 1", figures=_falls)


@keyed("_falls")
def _falls(row: Row) -> dict[str, Figure]:
    noises = row.plan().steps.noise_multipliers
    return {"noise last / first": Figure(value=float(noises[-1] / noises[0]))}


def _table8() -> list[Row]:
    """The closed forms at sigma 1, C = 1, batch 64, 100 epochs; and the same schedules with real clipping."""
    printed = {"linear": 0.24, "time": 0.23, "step": 0.19, "exponential": 9.99}
    return _decays("table8", "Table 8 and Appendix D", printed, figures=_both)


@keyed("_both")
def _both(row: Row) -> dict[str, Figure]:
    return {BY_TABLE_8: Figure(value=by_table_8(row, clip=1.0), label="claimed")} | if_clipped(row)


def _figure1() -> list[Row]:
    return _decays("fig1", "Figure 1", curve=_noise_an_epoch, notes=("sigma_0 = 1: not in the paper",))


@keyed("_noise_an_epoch")
def _noise_an_epoch(row: Row) -> Curve:
    steps = row.plan().steps
    at = [
        math.ceil(epoch / steps.sample_rate - 1e-6) for epoch in range(round(len(steps) * steps.sample_rate))
    ]  # their first steps
    return Curve(
        x=tuple(float(epoch) for epoch in range(len(at))), y=tuple(float(steps.noise_multipliers[i]) for i in at)
    )


# --- against other methods --------------------------------------------------------------------------


def _table2() -> list[Row]:
    found = []
    for noise, (dp, dynamic, (adp_epsilon, adp), (auto_epsilon, auto)) in TABLE2.items():
        epsilon, place = BUDGETS[NOISES["mnist"].index(noise)], f"Table 2, sigma {noise:g}"
        clip = {"clipping_norm": CLIPS["mnist"]}
        found += [
            trains("table2", f"dp-{noise:g}", f"{place}, DP", "mnist",
                    {"method": "noisy-sgd", "noise_multiplier": noise, **clip},
                    label="certified", published={"accuracy": dp, "rdp epsilon": epsilon}),
            trains("table2", f"dynamic-{noise:g}", f"{place}, Dynamic DP", "mnist", label="approximate", notes=(_RHO,),
                    recipe={"method": "dynamic", "rho_noise": _growth(noise, epsilon), "rho_clip": RHO,
                            "epsilon": epsilon, "uncertified": True, **clip},
                    published={"accuracy": dynamic, "gdp epsilon": epsilon}),
            _adaptive("table2", f"adaptive-{noise:g}", f"{place}, ADP", "mnist", noise,
                      {"accuracy": adp, BY_TABLE_8: adp_epsilon}),
            uncertified("table2", f"auto-s-{noise:g}", f"{place}, Auto DP-S", "mnist", "S", noise, figures=if_clipped,
                  published={"accuracy": auto, BY_TABLE_8: auto_epsilon}),
        ]  # fmt: skip
    return found


@cache
def _growth(noise: float, epsilon: float) -> float:
    """rho_mu with which mu_t = rho_mu^(t/T) / noise costs epsilon by the extended CLT (Du et al. 2021, eq. 9, 12)."""
    rate, goal = MNIST["batch_size"] / MNIST["dataset_size"], gdp.mu_of(epsilon, DELTA)
    times = (np.arange(1000) + 0.5) / 1000

    def excess(rho: float) -> float:
        squares = (rho**times / noise) ** 2
        return float(rate * math.sqrt(MNIST["epochs"] / rate * np.mean(np.expm1(squares)))) - goal

    return round(float(brentq(excess, 0.1, 10.0)), 4)


def _adaptive(table: str, name: str, place: str, data: str, noise: float, published: dict[str, float]) -> Row:
    """Zhang et al. 2021: linear decay at a constant clip, which the closed form takes for the sensitivity."""
    recipe = {"method": "noise-decay-tcdp", "noise_multiplier": noise, "clipping_norm": CLIPS[data]}
    figures = partial(_at_the_clip, clip=CLIPS[data], epochs=100)
    notes: tuple[str, ...] = (OF_100,) if data == "ag-news" else ()
    notes += ("16.86 is printed; the closed form gives 16.06",) if published.get(BY_TABLE_8) == 16.86 else ()
    return trains(table, name, place, data, recipe, label="claimed", published=published, figures=figures, notes=notes)


@keyed("_at_the_clip")
def _at_the_clip(row: Row, clip: float, epochs: int) -> dict[str, Figure]:
    return {BY_TABLE_8: Figure(value=by_table_8(row, clip=clip, epochs=epochs), label="claimed")}


def _tables_3_4() -> list[Row]:
    """Pretrained networks, not run; what adaptive DP claims is computed."""
    found = []
    for table, (data, noises) in TABLES_3_4.items():
        for noise, columns in noises.items():
            for (name, kind), (epsilon, accuracy) in zip(_COLUMNS.items(), columns, strict=True):
                place = f"Table {table[-1]}, sigma {noise:g}, {name}"
                found.append(absent(table, f"{name}-{noise:g}", place, {"accuracy": accuracy, kind: epsilon}))
            found.append(Row(
                paper=NAME, table=table, name=f"adaptive-{noise:g}-epsilon", kind="accounts", label="claimed",
                place=f"Table {table[-1]}, sigma {noise:g}, adaptive", published={BY_TABLE_8: columns[2][0]},
                recipe={**MNIST, "dataset_size": 50000, "method": "noise-decay-tcdp", "noise_multiplier": noise},
                figures=partial(_at_the_clip, clip=CLIPS[data], epochs=100),
            ))  # fmt: skip
    return found


def _table5() -> list[Row]:
    found = []
    for noise, (dp, (adp_epsilon, adp), (auto_epsilon, auto)) in TABLE5.items():
        place = f"Table 5, sigma {noise:g}"
        recipe = {"method": "noisy-sgd", "noise_multiplier": noise, "clipping_norm": CLIPS["ag-news"]}
        epsilon = BUDGETS[NOISES["ag-news"].index(noise)]
        found += [
            trains("table5", f"dp-{noise:g}", f"{place}, DP", "ag-news", recipe, label="certified",
                    published={"accuracy": dp, "rdp epsilon": epsilon}),
            _adaptive("table5", f"adaptive-{noise:g}", f"{place}, ADP", "ag-news", noise,
                      {"accuracy": adp, BY_TABLE_8: adp_epsilon}),
            uncertified("table5", f"auto-s-{noise:g}", f"{place}, Auto DP-S", "ag-news", "S", noise,
                  published={"accuracy": auto, BY_TABLE_8: auto_epsilon}),
        ]  # fmt: skip
    return found


def _table6() -> list[Row]:
    found = []
    for data, accuracy in TABLE6.items():
        place, published = f"Table 6, {data}", {"accuracy": accuracy}
        if data not in DATA:
            found.append(absent("table6", data, place, published))
            continue
        made = trains("table6", data, place, data, {}, published=published)
        found.append(replace(made, kind="baseline"))
    return found


# --- the variants -----------------------------------------------------------------------------------


def _tables_14_17() -> list[Row]:
    """As published; on MNIST run, and each schedule made sound at the certified budget of DP-SGD."""
    found = []
    for table, (data, noises) in TABLES_14_17.items():
        for number, (noise, columns) in enumerate(noises.items()):
            for letter, (epsilon, accuracy) in zip(VARIANTS, columns, strict=True):
                name, place = f"{letter.lower()}-{noise:g}", f"Table {table[5:]}, sigma {noise:g}, Auto DP-{letter}"
                published = {"accuracy": accuracy, BY_TABLE_8: epsilon}
                if data != "mnist":
                    found.append(absent(table, name, place, published))
                    continue
                found.append(
                    uncertified(table, name, place, data, letter, noise, published=published, figures=if_clipped)
                )
                found.append(trains(
                    table, f"{name}-sound", f"{place}, made sound", data,
                    {"method": VARIANTS[letter], "epsilon": float(BUDGETS[number])},
                    notes=(f"gradients scaled to norm 1, noise for epsilon {BUDGETS[number]}: not in the paper",),
                ))  # fmt: skip
    return found


def _figure2() -> list[Row]:
    """The gradient over the training: SGD, DP-SGD, adaptive DP-SGD and Auto DP-SGD at noise 2.8, raw."""
    common: dict[str, Any] = {"trace": "raw_gradient_norm", "notes": (
        "raw: shown on a public dataset; the paper does not define its average norm, this is the mean coordinate",
        "noise 2.8 and the linear decay: not in the paper; AdamW and one cycle: what its B.1 has for the tables",
    )}  # fmt: skip
    clip = {"noise_multiplier": 2.8, "clipping_norm": CLIPS["mnist"]}
    return [
        replace(trains("fig2", "sgd", "Figure 2", "mnist", {}, **common), kind="baseline"),
        trains("fig2", "dp-sgd", "Figure 2", "mnist", {"method": "noisy-sgd", **clip}, **common),
        trains("fig2", "adaptive", "Figure 2", "mnist", {"method": "noise-decay-tcdp", **clip}, **common),
        uncertified("fig2", "auto-l", "Figure 2", "mnist", "L", 2.8, **common),
    ]


PAPER = Paper(
    name=NAME,
    title="Auto DP-SGD: Dual Improvements of Privacy and Accuracy (anonymous, 2023)",
    tables={
        "table1": Table(title="How the noise falls, sigma_0 = 1, 100 epochs"),
        "table2": Table(title="CNN on MNIST, delta 1e-5"),
        "table3": Table(title="Pretrained NFNet-F0 on CIFAR10"),
        "table4": Table(title="Pretrained NFNet-F1 on CIFAR100"),
        "table5": Table(title="BiLSTM on AG News, delta 1e-5"),
        "table6": Table(title="Without privacy"),
        "table8": Table(title="The closed forms at sigma_0 = C = 1, and what the same noise costs"),
        "table9": Table(title="DP-SGD at several clips, SGD, noise 2.8"),
        "table10": Table(title="Adaptive DP-SGD at several clips, SGD, noise 2.8"),
        "table11": Table(title="Auto DP-SGD-L under learning-rate schedulers, MNIST, noise 2.8"),
        "table12": Table(title="Auto DP-SGD-L with scale factor W, noise 2.8"),
        "table13": Table(title="The four decays, noise 2.8"),
        "fig1": Table(title="The four decays of the noise, sigma_0 = 1", x="epoch", y="noise multiplier"),
        "table14": Table(title="The four variants on MNIST, as published and made sound"),
        "table15": Table(title="The four variants, pretrained NFNet-F0 on CIFAR10"),
        "table16": Table(title="The four variants, pretrained NFNet-F1 on CIFAR100"),
        "table17": Table(title="The four variants, BiLSTM on AG News"),
        "fig2": Table(title="The gradient over the training, MNIST, noise 2.8 (raw: not private)", x="step",
                      y="mean absolute gradient", log_y=True),
    },
    rows=rows,
)  # fmt: skip
