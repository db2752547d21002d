"""van Dijk et al. 2021, Bringing Differential Private SGD to Practice: the planning view, from its abstract.

The paper's closed form for the noise does not mention the number of rounds. Each row takes that noise and asks the
certified accountant what it costs; `privet plan --explore` gives the same view for a budget of your own.
"""

from functools import partial

from privet.accounting import spent
from privet.planning import ahead
from privet.planning.calibrate import proactive_noise
from privet_papers.reproduce.table_row import Curve, Figure, Paper, Row, Table, keyed

NAME = "proactive2021"
PLACE = "abstract, closed form for sigma"
_ROUNDS = (100, 300, 1000, 3000, 10_000, 30_000, 60_000)
# epsilon, delta, records, batch, rounds
_CASES = (
    (2.0, 1e-5, 60000, 64, 60000),
    (2.0, 1e-5, 60000, 256, 60000),
    (2.0, 1e-5, 60000, 600, 60000),
    (2.0, 1e-5, 60000, 256, 14063),
    (2.0, 1e-5, 10000, 1000, 10000),
    (0.1, 1e-5, 60000, 60000, 1),
)


def rows() -> list[Row]:
    """The closed form in six cases, and the noise against the rounds."""
    return [*_closed_form(), *_rounds()]


def _closed_form() -> list[Row]:
    return [
        Row(
            paper=NAME, table="closed-form", name=f"epsilon-{epsilon:g}-n-{size}-batch-{batch}-rounds-{rounds}",
            place=PLACE, kind="accounts", label="claimed",
            recipe={
                "dataset_size": size, "batch_size": batch, "steps": rounds, "delta": delta, "clipping_norm": 1.0,
                "noise_multiplier": proactive_noise(epsilon=epsilon, delta=delta),
            },
            figures=partial(_view, epsilon=epsilon),
        )
        for epsilon, delta, size, batch, rounds in _CASES
    ]  # fmt: skip


@keyed("_view")
def _view(row: Row, epsilon: float) -> dict[str, Figure]:
    """What the closed form claims and what holds; its noise, and the least that is proven to be enough."""
    recipe, ledger = row.recipe, row.plan().ledger()
    readings = {name: spent(ledger, recipe["delta"], accountant=name) for name in ("proactive", "pld")}
    view = ahead(
        epsilon=epsilon,
        delta=recipe["delta"],
        dataset_size=recipe["dataset_size"],
        batches=[recipe["batch_size"]],
        steps=[recipe["steps"]],
    )
    needed = view.cells[0].noise_multiplier
    found = {f"{name} epsilon": Figure(value=read.epsilon, label=read.label) for name, read in readings.items()}
    found["noise of the closed form"] = Figure(value=recipe["noise_multiplier"])
    return found if needed is None else found | {"noise that is enough": Figure(value=needed)}


def _rounds() -> list[Row]:
    budget = {"dataset_size": 60000, "delta": 1e-5, "epsilon": 2.0, "steps": 60000}
    batches = (64, 256, 1024)
    return [
        Row(
            paper=NAME, table="rounds", name="closed-form", place=PLACE, kind="accounts", label="claimed",
            recipe={**budget, "batch_size": 256}, curve=_claimed,
        ),
        *(
            Row(
                paper=NAME, table="rounds", name=f"batch-{batch}", place="recomputed", kind="accounts",
                recipe={**budget, "batch_size": batch}, curve=_needed,
            )
            for batch in batches
        ),
    ]  # fmt: skip


@keyed("_claimed")
def _claimed(row: Row) -> Curve:
    noise = proactive_noise(epsilon=row.recipe["epsilon"], delta=row.recipe["delta"])
    return Curve(x=tuple(float(t) for t in _ROUNDS), y=(noise,) * len(_ROUNDS), label="claimed")


@keyed("_needed")
def _needed(row: Row) -> Curve:
    recipe = row.recipe
    view = ahead(
        epsilon=recipe["epsilon"], delta=recipe["delta"], dataset_size=recipe["dataset_size"],
        batches=[recipe["batch_size"]],
        steps=list(_ROUNDS),
    )  # fmt: skip
    cells = sorted((cell.steps, cell.noise_multiplier) for cell in view.cells if cell.noise_multiplier is not None)
    return Curve(x=tuple(float(t) for t, _ in cells), y=tuple(noise for _, noise in cells), label="certified")


PAPER = Paper(
    name=NAME,
    title="van Dijk et al. 2021, Bringing Differential Private SGD to Practice",
    tables={
        "closed-form": Table(title="The closed form's noise, and what it really costs"),
        "rounds": Table(title="Noise for epsilon 2 at delta 1e-5, 60,000 records", x="rounds", y="noise multiplier"),
    },
    rows=rows,
)
