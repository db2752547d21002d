"""What the rows of Wei and Liu 2021 are made of: datasets, recipes, decays; a method as published and made sound."""

from typing import Any

from privet.accounting import spent
from privet.experiments.row import Figure, Row
from privet.experiments.wei2021_printed import ACCOUNTANTS, TABLE2
from privet.planning.methods import METHODS

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
    data: str, method: str, *, clip: float | str = CLIP, noise: float | str | None = None, steps: int | None = None
) -> dict[str, Any]:
    """A method on a dataset, as published; where it lets the clip fall, C is C/2 after the steps of Table II."""
    size, batch, most = data_of(data)
    steps, free = steps or most, METHODS[method].free
    given = {
        "size": size, "batch": batch, "steps": steps, "delta": DELTA, "method": method,
        "clip": _falling(clip, steps / most) if "clip" in free and not isinstance(clip, str) else clip,
        "noise": noise or (DECAYS["exponential"] if "noise" in free else NOISE),
    }  # fmt: skip
    return given if METHODS[method].sound else given | {"as_published": True}


def _falling(clip: float, part: float) -> str:
    """The line from C to C/2, or the first part of it."""
    return f"linear:start={clip:g},end={clip * (1 - part / 2):g},grid=before"


def trains(table: str, name: str, place: str, data: str, recipe: dict[str, Any], **rest: Any) -> Row:
    """A row that trains; `-sound` in its name says that it is the sibling with a guarantee."""
    method, notes = METHODS[recipe["method"]], list(rest.pop("notes", ()))
    notes += [_C_DECAY] * str(recipe["clip"]).startswith("linear")
    notes += _on_decay(recipe["noise"])
    notes += [_SOUND] * (not method.sound and "as_published" not in recipe and bool(rest.get("published")))
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
    if not METHODS[method].sound:
        rest.pop("figures", None)
        kept = {key: value for key, value in published.items() if not key.endswith("epsilon")}
        sibling = {key: value for key, value in made.items() if key != "as_published"}
        found.append(trains(table, f"{name}-sound", f"{place}, made sound", data, sibling, published=kept, **rest))
    return found


def plain(table: str, name: str, place: str, data: str, published: dict[str, float], **rest: Any) -> Row:
    """The same network without clipping and noise."""
    size, batch, steps = data_of(data)
    recipe = {"size": size, "batch": batch, "steps": rest.pop("steps", steps)}
    notes = (_RATE_NOTE, *([_STANDS_IN] if data == STAND_IN else []), *rest.pop("notes", ()))
    return Row(
        paper=NAME, table=table, name=name, place=place, kind="baseline", task=data, published=published,
        model=MLP if data == STAND_IN else CNN, recipe=recipe, training=SGD | {"lr": LR}, notes=notes, **rest,
    )  # fmt: skip
