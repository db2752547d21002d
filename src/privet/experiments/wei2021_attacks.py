"""Wei, Liu 2021, Table III and Figure 3: attacks on the gradient of the first step. Figure 5 is pictures of the first.

The pictures, Figures 2, 3 and 5, are drawn by `privet attack --plot`.
"""

from typing import Any

from privet.attacks.published import TABLE
from privet.attacks.sources import REFERENCE
from privet.experiments.row import Row
from privet.experiments.wei2021_parts import MISSING, NAME, recipe_of, unavailable

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
        "c1-sigma1": ("dp-baseline", {"clip": 1.0, "noise": 1.0}),
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
