"""Where `privet epsilon` finds its ledger: a run, a plan, a file of another library, or the options."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _check
from privet.cli.shell import check_scheduled
from privet.errors import InvalidValue, Unsupported

if TYPE_CHECKING:
    from privet.accounting import Ledger
    from privet.planning import Plan
    from privet.training.ledger_reading import Reading


def plan_of(source: str | None) -> "Plan | None":
    """The plan in a file, if it says that it is one; else the file is some other kind of ledger."""
    if source is None:
        return None
    from privet.planning.plan_file import is_plan

    if not is_plan(Path(source)):
        return None
    from privet.planning import Plan

    return Plan.load(source)


def planned_ledger(planned: "Plan", source: str | None, relation: str | None, given: dict[str, Any]) -> "Ledger":
    """The ledger of a plan; refused if no proof covers its clipping rule, or another relation is asked for."""
    _check_nothing_beside(given)
    _check_relation(relation, planned.guarantee.relation, "plan")
    if planned.is_unsound:
        raise Unsupported(
            f"{source}: no accountant covers method={planned.recipe.method!r} as published: its clipping rule "
            f"{planned.rule!r} bounds nothing that is charged. Plan without --as-published."
        )
    if planned.recipe.tuning is not None:
        raise Unsupported(
            f"{source}: its guarantee is for {planned.recipe.tuning.name} together: {planned.guarantee}. "
            "`privet plan` shows it, and what one run costs."
        )
    return planned.ledger()


def run_of(source: str | None) -> "Reading | None":
    """What a run has spent, if the source is the folder or the ledger of one; it may be going on."""
    if source is None:
        return None
    from privet.training.ledger_reading import is_run, read

    return read(source) if is_run(Path(source)) else None


def spent_ledger(run: "Reading", source: str | None, relation: str | None, given: dict[str, Any]) -> "Ledger":
    """The ledger of a run; refused if its noise hides nothing, or another relation is asked for."""
    _check_nothing_beside(given)
    _check_relation(relation, run.header.relation, "run")
    if run.header.seeded:
        raise Unsupported(
            f"{source}: is not private: its noise came from a seed and can be drawn again, so no epsilon holds for it. "
            "Train without --seed."
        )
    if not run.header.sound:
        from privet.planning.rules import is_unsound

        why = "something was read off the records without noise, before the first step"
        if is_unsound(run.header.rule):
            why = f"its clipping rule {run.header.rule!r} bounds nothing that is charged"
        raise Unsupported(f"{source}: no accountant covers the run: {why}. Train without --as-published.")
    if run.loop is not None and run.loop.void_from is not None:
        from privet.training.account import why_void

        raise Unsupported(f"{source}: guarantee: none, {why_void(run.loop)}. No epsilon holds for it. Train anew.")
    return run.ledger


def _check_relation(relation: str | None, own: str, source: str) -> None:
    if relation is not None and relation != own:
        raise Unsupported(
            f"--relation={relation!r} is not the {source}'s, {own!r}. Its noise counts for that. Leave it out."
        )


def _check_nothing_beside(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and (name, value) != ("sampling", "poisson"):
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be given with --from: the file says it.")


def ledger_of(source: str | None, size: int | None, given: dict[str, Any]) -> "Ledger":
    """The ledger a user described, from a file or from the options."""
    from privet.accounting import Ledger, exchange

    if source is not None:
        _check_nothing_beside(given)
        ledger = exchange.read(source)
        if not ledger.steps:
            raise InvalidValue(f"{source}: has no steps. Its epsilon would be 0, of nothing. Give the file of a run.")
        return ledger
    rate = _rate_of(given["rate"], given["batch"], size)
    _check.rate(rate=rate)
    steps = _steps_of(given["steps"], given["epochs"], rate)
    noise, shape = given["noise"], given["noise_schedule"]
    if noise is None and shape is None:
        raise click.UsageError("Give --noise, the noise multiplier (or --noise-schedule, or --from FILE).")
    if noise is not None:
        _check.positive(noise=noise)
    ledger = Ledger()
    _charge(ledger, 1.0 if noise is None else noise, shape, steps, rate, given["sampling"])
    return ledger


def _charge(ledger: "Ledger", noise: float, shape: str | None, steps: int, rate: float, sampling: str) -> None:
    from privet.accounting import Step
    from privet.accounting.sampling import sampling as sampling_of

    chosen = sampling_of(sampling)
    if shape is None:
        ledger.add(Step(noise=noise, rate=rate, sampling=chosen), steps)
        return
    from privet.schedules import values_of

    check_scheduled(steps)
    ledger.extend(noise=noise * values_of(shape, steps), rate=rate, sampling=chosen)


def _rate_of(rate: float | None, batch: float | None, size: int | None) -> float:
    if (rate is None) == (batch is None):
        raise click.UsageError("Give --rate, or --batch with --size (or --from FILE): one of them.")
    if rate is not None:
        return rate
    assert batch is not None
    if size is None:
        raise click.UsageError("--batch needs --size, the number of records.")
    _check.positive(batch=batch)
    if batch > size:
        raise InvalidValue(f"batch={batch:g} must be at most size={size}. A record takes part at most once in a step.")
    return batch / size


def _steps_of(steps: int | None, epochs: float | None, rate: float) -> int:
    if (steps is None) == (epochs is None):
        raise click.UsageError("Give --steps or --epochs: one of the two.")
    if steps is not None:
        return steps
    assert epochs is not None
    _check.positive(epochs=epochs)
    from privet.planning.recipe import steps_of

    return steps_of(epochs, rate)


def fixed_size(ledger: "Ledger") -> bool:
    return any(kind.name == "fixed-size" for kind in ledger.columns().samplings)
