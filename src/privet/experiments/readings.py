"""What only a finished run can tell: the reading where its accuracy stopped it, its speed, the sensitivity it took."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from privet.accounting import Ledger, spent
from privet.experiments.results import Result
from privet.experiments.row import Curve, Figure, Row
from privet.training.run import Run

After = Callable[[Row, Result, Run | None], Result]
POINTS = 200  # of a line over the steps


def at_the_stop(accountants: Sequence[str]) -> After:
    """Steps and epsilons where the target was reached, as papers show them; nothing where it was not.

    Outputs decided the stop, so these are claims: what holds is the epsilon of the whole plan.
    """
    return partial(_at_the_stop, accountants=accountants)


def _at_the_stop(_: Row, result: Result, run: Run | None, *, accountants: Sequence[str]) -> Result:
    assert run is not None
    if run.end is None or "was reached" not in run.end:
        names = [f"{name} epsilon" for name in accountants]
        return replace(result, figures={name: f for name, f in result.figures.items() if name not in names})
    delta = run.plan.recipe.budget.delta
    found = {"iterations": Figure(value=float(run.steps))}
    for name in accountants:
        epsilon = spent(run.ledger, delta, accountant=name, relation=run.plan.recipe.budget.relation).epsilon
        found[f"{name} epsilon"] = Figure(value=epsilon, label="claimed")
    return replace(result, figures=result.figures | found)


def seconds_a_step(_: Row, result: Result, __: Run | None) -> Result:
    """The time of a run over its steps, evaluations included."""
    return replace(result, figures=result.figures | {"seconds a step": Figure(value=result.seconds / result.steps)})


def sensitivity(run: Run) -> float | None:
    """The mean of what a rule without a guarantee took for the sensitivity; None of any other rule. Not private."""
    found = [line["raw_sensitivity"] for line in run.metrics if line.get("raw_sensitivity") is not None]
    return sum(found) / len(found) if found else None


def noise_over_steps(_: Row, result: Result, run: Run | None) -> Result:
    """The standard deviation of the noise on the clipped sum, drawn in place of the accuracy.

    Of a rule without a guarantee it is what it read off the batches, as means between two evaluations; else clip times
    noise, from the ledger.
    """
    assert run is not None
    raw = [line for line in run.metrics if line.get("raw_sensitivity") is not None]
    if not raw:
        return replace(result, curve=noise_of(run.ledger))
    noises = run.plan.steps.noises
    points = [(float(line["step"]), line["raw_sensitivity"] * float(noises[line["step"] - 1])) for line in raw]
    return replace(result, curve=Curve(x=tuple(x for x, _ in points), y=tuple(y for _, y in points)))


def noise_of(ledger: Ledger) -> Curve:
    """Clip times noise at some steps of a ledger.

    >>> from privet.accounting import Step
    >>> ledger = Ledger()
    >>> ledger.add(Step(noise=6.0, clip=4.0), 3)
    >>> noise_of(ledger).y
    (24.0, 24.0)
    """
    points, total = [], 0
    for step, count in ledger:
        points += [(float(total + 1), step.noise * step.clip), (float(total + count), step.noise * step.clip)]
        total += count
    kept = points[:: max(1, len(points) // POINTS)]
    kept = kept if kept[-1] == points[-1] else [*kept, points[-1]]
    return Curve(x=tuple(x for x, _ in kept), y=tuple(y for _, y in kept))
