"""What the rows of Auto DP-SGD are made of: a variant as published, and the epsilon that it claims."""

from dataclasses import replace
from functools import partial
from typing import Any

from privet.accounting import spent
from privet.accounting.tcdp import auto_exponential, auto_linear, auto_step, auto_time
from privet.accounting.zcdp import epsilon_of_rho
from privet.experiments.readings import sensitivity
from privet.experiments.results import Result
from privet.experiments.row import Figure, Row
from privet.training.run import Run

NAME = "auto2023"
DELTA = 1e-5
MNIST: dict[str, Any] = {"size": 60000, "batch": 64, "epochs": 100, "delta": DELTA}
NEWS: dict[str, Any] = {"size": 120_000, "batch": 256, "epochs": 40, "delta": DELTA}
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


def as_published(table: str, name: str, place: str, data: str, variant: str, noise: float, **rest: Any) -> Row:
    """A variant as published, with what it claims at the mean norm of its run; `scale` is the paper's W."""
    scale = rest.pop("scale", 1.0)
    rule = {} if scale == 1.0 else {"rule": f"own_norm:scale={scale:g}"}
    recipe = {"method": VARIANTS[variant], "noise": noise, "as_published": True, **rule}
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

    >>> recipe = {**MNIST, "method": "auto-time", "noise": 1.0}
    >>> row = Row(paper=NAME, table="table8", name="time", place="Table 8", kind="accounts", recipe=recipe)
    >>> round(by_table_8(row, clip=1.0), 2)
    0.23
    """
    recipe = row.as_recipe()
    assert recipe.base_rate is not None
    assert recipe.count is not None
    epochs = epochs or max(1, round(recipe.count * recipe.base_rate))
    noise, rate = float(recipe.noise), recipe.base_rate
    form = {"auto-step": auto_step, "auto-exp": auto_exponential, "auto-time": auto_time}
    rho = form.get(str(recipe.method), auto_linear)(noise=noise, rate=rate, epochs=epochs, clip=clip)[0]
    return epsilon_of_rho(rho, recipe.budget.delta)


def if_clipped(row: Row) -> dict[str, Figure]:
    """What the same noise would cost if each example were clipped to 1. Of the exponential decay it is beyond use."""
    if row.recipe["method"] == "auto-exp":
        return {}
    # without a label: a bound of what did not run certifies nothing
    return {"clipped epsilon": Figure(value=spent(row.plan().ledger(), DELTA).epsilon)}
