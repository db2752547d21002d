"""What a row does other than train one model privately: trace, attack, federate, account; and what it measures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from privet.accounting import Ledger, gdp, spent
from privet.attacks.attack import REFERENCE, attack
from privet.attacks.outcome import Outcome
from privet.data.files import DataFolders
from privet.data.task import Task, task as task_of
from privet.federated import federate, resume_federation
from privet.federated.federate import Federated
from privet.federated.settings import NAME as ABOUT
from privet.ledger.account import guarantee_of
from privet.ledger.reading import read_ledger
from privet.noise.randomness import seeded
from privet.planning import Plan
from privet.training.baseline import Look, train_plainly
from privet.training.evaluation import evaluate
from privet.training.run import Run, build_network
from privet.training.settings import Settings
from privet.training.setup import (
    build_optimizer,
    learning_rate_schedule,
    load_first_weights,
    seed_torch,
    steps_per_epoch,
)
from privet.training.training import Training
from privet_papers.reproduce.results import Result, proven
from privet_papers.reproduce.table_row import Curve, Figure, Row

# --- tracing ----------------------------------------------------------------------------------------


LOOKS = 100  # so many looks over a training


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """What was seen on the way, and what is proven of the steps."""

    curve: Curve
    certified: tuple[float | None, float] | None
    steps: int
    seconds: float


def gradient_norms(row: Row, *, seed: int, where: DataFolders | None = None) -> Trace:
    """The row trained once, with a look at the gradient at every hundredth of its steps."""
    every, points = max(1, (row.steps or 1) // LOOKS), []

    def look(number: int, model: nn.Module, task: Task, inputs: Tensor, targets: Tensor) -> None:
        if number % every == 0:
            points.append((float(number), _norm(model, task, inputs, targets)))

    start = time.monotonic()
    if row.kind == "baseline":
        steps, certified = train_plainly(row.plan(), seed=seed, where=where, look=look).steps, None
    else:
        steps, certified = _privately(row, seed, where, look)
    curve = Curve(x=tuple(x for x, _ in points), y=tuple(y for _, y in points))
    return Trace(curve=curve, certified=certified, steps=steps, seconds=time.monotonic() - start)


def _privately(
    row: Row, seed: int, where: DataFolders | None, look: Look
) -> tuple[int, tuple[float | None, float] | None]:  # fmt: skip
    """Train as the plan says, `look` before each step; (steps, what is proven of them)."""
    plan = row.plan()
    settings = Settings.of(plan.recipe.training)
    task = task_of(settings.task, where=where)
    with seed_torch(seed):
        model, twin = build_network(task, settings), build_network(task, settings)
        load_first_weights(model, settings)
        optimizer = build_optimizer(settings, plan, model)
        pace, published = learning_rate_schedule(settings, plan, optimizer), plan.recipe.uncertified
        with Training(
            model, optimizer, task.train, plan, randomness=seeded(seed), uncertified=published,
            non_private_preprocessing=task.non_private_preprocessing,
        ) as training:  # fmt: skip
            for inputs, targets in training:
                twin.load_state_dict(model.state_dict())  # the model itself is watched: its gradients are clipped
                look(training.steps_done, twin, task, inputs, targets)
                training.step(task.losses(model(inputs), targets))
                pace.follow(training.steps_done)
                if pace.reads_scores and training.steps_done % steps_per_epoch(plan) == 0:
                    pace.observe_loss(evaluate(model, task).loss)
    found = None if plan.is_unsound or task.non_private_preprocessing else guarantee_of(plan.ledger(), plan)
    return len(plan.steps), proven(found)


def _norm(model: nn.Module, task: Task, inputs: Tensor, targets: Tensor) -> float:
    """The mean absolute gradient of the mean loss, a coordinate."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(task.losses(model(inputs), targets).mean(), parameters)
    total = sum(float(grad.abs().sum()) for grad in grads)
    return total / sum(p.numel() for p in parameters)


# --- attacking --------------------------------------------------------------------------------------


VICTIMS, QUICK_VICTIMS = 100, 10
INVERTS, CHOOSES = "invert-l2", "prior"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackEvidence:
    """The figures of a row, and how long its attacks took."""

    figures: dict[str, Figure]
    seconds: float


def attacked(
    row: Row, *, seed: int, folder: Path, where: DataFolders | None = None, is_quick: bool = False
) -> AttackEvidence:
    """The first step of a row's plan, attacked; of a row called non-private, the same step without privacy.

    Outcomes are kept in `folder`, and shared by the rows of a table: training without privacy is attacked once.
    """
    begun = time.monotonic()
    found = attack(
        row.plan(), row.task, attacks=[INVERTS, CHOOSES], seed=seed, out=folder, model=row.model, where=where,
        examples=QUICK_VICTIMS if is_quick else VICTIMS,
    )  # fmt: skip
    name = REFERENCE if row.name.endswith(REFERENCE) else "plan"
    figures = _figures(found.outcome(name, INVERTS), found.outcome(name, CHOOSES))
    return AttackEvidence(figures=figures, seconds=time.monotonic() - begun)


def _figures(inverted: Outcome, chosen: Outcome) -> dict[str, Figure]:
    """The paper's three, then what says more: success over noise alone, and identification beside its ceiling."""
    records = inverted.found.records
    values = {
        "iterations": inverted.iterations, "MSE < 0.70": inverted.found.paper / records, "MSE": inverted.found.mse,
        "SSIM": inverted.found.ssim, "success - control": inverted.difference,
        "identified": chosen.found.top1 / records, "ceiling of it": chosen.ceiling,
    }  # fmt: skip
    return {name: Figure(value=value) for name, value in values.items() if value is not None}


# --- federating -------------------------------------------------------------------------------------


def federated(row: Row, task: Task | None, folder: Path, *, seed: int, where: DataFolders | None) -> Federated:
    """The row's federation in a folder of its own, begun or gone on with.

    Raises:
        KeyboardInterrupt: it was asked to stop.
    """
    if (folder / ABOUT).exists():
        found = resume_federation(folder, task=task, where=where)
    else:
        found = federate(
            row.plan(), row.task if task is None else task, out=folder, seed=seed, where=where, model=row.model,
            clients=row.recipe["dataset_size"], **row.training,
        )  # fmt: skip
    if not found.is_over:
        raise KeyboardInterrupt
    return found


def proven_of_rounds(found: Federated) -> tuple[float | None, float] | None:
    """What is certified of the rounds that were made, with the system's randomness in place of the seed's."""
    return proven(guarantee_of(read_ledger(found.folder).ledger, found.plan))


# --- accounting -------------------------------------------------------------------------------------


def accounted(row: Row) -> dict[str, Figure]:
    """The privacy figures of a row, by name: `<accountant> epsilon` and `gdp mu` of its steps, and its own.

    The papers that use the central limit theorem do not round the number of steps; nor is it rounded here.

    >>> from privet_papers.tables import rows_of
    >>> found = accounted(rows_of("bu2019:table1")[0])
    >>> {name: round(figure.value, 2) for name, figure in found.items()}
    {'gdp mu': 0.23, 'gdp epsilon': 0.83, 'moments epsilon': 1.19, 'pld epsilon': 0.86}
    """
    wanted = list(filter(is_accounted, row.published))
    own = {} if row.figures is None else dict(row.figures(row))
    wanted = [name for name in wanted if name not in own]
    if not wanted:
        return own
    plan = row.plan()
    found = {name: _accounted(plan, name) for name in dict.fromkeys([*wanted, "pld epsilon"])}
    return found | own


def is_accounted(name: str) -> bool:
    """Whether a figure of that name is a reading of the steps."""
    return name.endswith((" epsilon", " mu"))


def _accounted(plan: Plan, name: str) -> Figure:
    accountant, what = name.rsplit(" ", 1)
    recipe, ledger = plan.recipe, plan.ledger()
    if accountant == "claimed":
        return Figure(value=plan.guarantee.epsilon, label=plan.guarantee.label)
    if accountant == "gdp":
        mu = gdp.extended_clt_mu(ledger)
        if plan.steps.is_constant and recipe.epochs is not None and recipe.base_rate is not None:
            mu = gdp.clt_mu(
                noise_multiplier=plan.steps[0].noise_multiplier,
                sample_rate=recipe.base_rate,
                steps=recipe.epochs / recipe.base_rate,
            )
        if what == "mu":
            return Figure(value=mu)
        return Figure(value=gdp.epsilon_of_mu(mu, recipe.budget.delta), label="approximate")
    found = spent(ledger, recipe.budget.delta, accountant=accountant, adjacency=recipe.budget.adjacency)
    return Figure(value=found.epsilon, label=found.label)


# --- what only a finished run can tell --------------------------------------------------------------


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
        epsilon = spent(run.ledger, delta, accountant=name, adjacency=run.plan.recipe.budget.adjacency).epsilon
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
    noises = run.plan.steps.noise_multipliers
    points = [(float(line["step"]), line["raw_sensitivity"] * float(noises[line["step"] - 1])) for line in raw]
    return replace(result, curve=Curve(x=tuple(x for x, _ in points), y=tuple(y for _, y in points)))


def noise_of(ledger: Ledger) -> Curve:
    """Clip times noise at some steps of a ledger.

    >>> from privet.accounting import Step
    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=6.0, clipping_norm=4.0), 3)
    >>> noise_of(ledger).y
    (24.0, 24.0)
    """
    points, total = [], 0
    for step, count in ledger:
        points += [
            (float(total + 1), step.noise_multiplier * step.clipping_norm),
            (float(total + count), step.noise_multiplier * step.clipping_norm),
        ]
        total += count
    kept = points[:: max(1, len(points) // POINTS)]
    kept = kept if kept[-1] == points[-1] else [*kept, points[-1]]
    return Curve(x=tuple(x for x, _ in kept), y=tuple(y for _, y in kept))
