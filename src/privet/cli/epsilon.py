"""`privet epsilon`: the epsilon of a training run, from its folder, a plan, a file of another library, or options."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _check
from privet.cli import common, epsilon_answer as answer
from privet.cli.common import PATH, integer, number
from privet.cli.recipe_options import JSON, option, words_of
from privet.errors import InvalidValue, Unsupported

if TYPE_CHECKING:
    from privet.accounting import Ledger


@click.command("epsilon", cls=common.GroupedCommand, short_help="Compute epsilon of a training run, with its label.")
@option("--sample-rate", "--rate", "sample_rate", type=number,
        help="Probability q that an example is in the batch of a step, e.g. 256/60000.")  # fmt: skip
@option("--batch-size", "--batch", "batch_size", type=number,
        help="Expected batch size; with --dataset-size it gives the sample rate.")  # fmt: skip
@option("--dataset-size", "--size", "dataset_size", type=integer,
        help="Number of examples n (public). Also checks that delta is below 1/n.")  # fmt: skip
@option("--noise-multiplier", "--noise", "noise_multiplier", type=number,
        help="Noise multiplier sigma: standard deviation over sensitivity.")  # fmt: skip
@option("--noise-schedule", metavar="SHAPE", help="Schedule that multiplies --noise-multiplier over the steps; "
        "see `privet list schedules`.")  # fmt: skip
@option("--steps", type=integer, help="Number of steps T.")
@option("--epochs", type=number, help="In place of --steps: T = ceil(epochs / sample rate).")
@option("--from", "sources", type=common.Place(), metavar="FILE", multiple=True,
        help="A run's folder, a plan, a ledger, an Opacus history or a dp_accounting event (JSON), "
        "or a CSV. Several runs, or a folder of runs: what they cost together.")  # fmt: skip
@click.argument("more", nargs=-1, type=common.Place(), metavar="")
@option("--dataset-name", metavar="NAME", help="Of several runs, those on this dataset.")
@option("--delta", type=number, help="Delta of the guarantee, below 1/n. Default for a plan or a run: its own.")
@option("--epsilon", "at", type=number, help="In place of --delta: the delta at this epsilon.")
@option("--accountant", default="pld", show_default=True, metavar="NAME",
        help="A method, `all` for all of them side by side, or your own as my.module:Class.")  # fmt: skip
@option("--adjacency", "--relation", "adjacency", metavar="NAME", type=common.adjacency_of,
        help="Neighbouring datasets: zero-out (default), add-remove or replace-one.")  # fmt: skip
@option("--sampling", default="poisson", show_default=True, metavar="NAME",
        help="poisson, truncated-poisson:cap=C,size=N, fixed-size or shuffled.")  # fmt: skip
@option("--same-epsilon-by", metavar="NAMES", help="For a plan or recipe in --from: the noise multiplier that these "
        "accountants allow at the plan's epsilon, and what is certified of it: gdp,rdp.")  # fmt: skip
@option("--curve", type=PATH, metavar="FILE", help="Draw epsilon over the steps (.png, .svg, .pdf or .csv).")
@option("--tradeoff", type=PATH, metavar="FILE",
        help="Draw the trade-off curve: the best an attacker can achieve (.png, .svg, .pdf or .csv).")  # fmt: skip
@JSON
def epsilon_command(
    *, sources: tuple[str, ...], more: tuple[str, ...], dataset_name: str | None, delta: float | None, at: float | None,
    accountant: str, adjacency: str | None, dataset_size: int | None, same_epsilon_by: str | None, curve: Path | None,
    tradeoff: Path | None, as_json: bool, **steps: Any,
) -> None:  # fmt: skip
    """Compute epsilon at delta, as an interval, with the label that says what is proven.

    \b
    Examples:
      privet epsilon --rate 256/60000 --noise 1.1 --steps 14063 --delta 1e-5
      privet epsilon --size 60000 --batch 256 --epochs 60 --delta 1e-5 \\
          --noise 2.0 --noise-schedule exponential:end=0.3 --accountant all --curve epsilon.png --tradeoff attacker.png
      privet epsilon --from opacus.json --delta 1e-5 --json
      privet epsilon --from runs/a
      privet epsilon --from runs/a runs/b runs/c
      privet epsilon --from plan.json --same-epsilon-by gdp,rdp
    """
    from privet.reporting.figures import check_path

    if more and not sources:
        raise click.UsageError(f"Got an unexpected argument ({more[0]}). Give runs after --from.")
    if same_epsilon_by is not None:
        given = {
            "delta": delta, "epsilon": at, "adjacency": adjacency, "dataset_size": dataset_size, "curve": curve,
            **steps,
        }  # fmt: skip
        if len(sources) + len(more) != 1:
            raise click.UsageError("--same-epsilon-by needs --from with one plan (JSON) or recipe (TOML).")
        _check_nothing_beside(given | {"tradeoff": tradeoff}, "--same-epsilon-by", "the plan says it")
        names = words_of("--same-epsilon-by", same_epsilon_by)
        answer.answer_same_epsilon(Path(sources[0]), names, as_json=as_json)
        return
    source = answer.find_source((*sources, *more), dataset_name)
    if source is not None and delta is None and at is None:  # a plan or a run has its own
        delta = source.delta
    figures = {name: path for name, path in (("curve", curve), ("tradeoff", tradeoff)) if path is not None}
    _check_question(delta=delta, at=at, accountant=accountant, figures=bool(figures))
    for name, path in figures.items():
        check_path(path, option=f"--{name}")
    if source is not None:
        _check_nothing_beside(steps)
        if adjacency is not None and adjacency != source.adjacency:
            raise Unsupported(
                f"--adjacency={adjacency!r} is not the {source.kind}'s, {source.adjacency!r}. Its noise was calibrated "
                "for that. Leave it out."
            )
        ledger, adjacency, unit = source.ledger(), source.adjacency, source.unit
        dataset_size = dataset_size or source.dataset_size
    else:
        ledger = ledger_of(sources[0] if sources else None, dataset_size, steps)
        fixed_size = any(kind.name == "fixed-size" for kind in ledger.columns().samplings)
        adjacency, unit = adjacency or ("replace-one" if fixed_size else "zero-out"), "example"
    if at is not None:
        answer.answer_delta(ledger, at, adjacency, as_json, source)
        return
    assert delta is not None
    with common.warnings_as_lines():
        answers = answer.answers_of(
            ledger, delta, accountant, () if source is None else source.assumptions, adjacency=adjacency,
            dataset_size=dataset_size, unit=unit,
        )  # fmt: skip
    if as_json:
        answer.print_json(answers, accountant, delta, figures, source)
    else:
        answer.print_answers(answers, accountant, ledger, delta)
        common.print_lines([] if source is None else source.lines)
    with common.warnings_as_lines():
        if curve is not None:
            answer.draw_curve(ledger, delta, accountant, adjacency, curve)
        if tradeoff is not None:
            answer.draw_tradeoff(ledger, adjacency, tradeoff)
    common.say_written(*figures.values(), as_json=as_json)


def _check_question(*, delta: float | None, at: float | None, accountant: str, figures: bool) -> None:
    if (delta is None) == (at is None):
        raise click.UsageError("Give --delta, or --epsilon to ask for the delta there: one of the two.")
    if delta is not None:
        _check.delta(delta)
    if at is None:
        return
    _check.non_negative(epsilon=at)
    if accountant != "pld" or figures:
        raise click.UsageError("--epsilon is answered by --accountant pld only, and without --curve or --tradeoff.")


def _check_nothing_beside(given: dict[str, Any], option: str = "--from", why: str = "the file says it") -> None:
    for name, value in given.items():
        if value is not None and (name, value) != ("sampling", "poisson"):
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be given with {option}: {why}.")


def ledger_of(source: str | None, size: int | None, given: dict[str, Any]) -> "Ledger":
    """The ledger a user described, from a file or from the options."""
    from privet.accounting import Ledger, Step, exchange
    from privet.accounting.sampling import sampling as sampling_of
    from privet.planning.recipe import steps_in_epochs
    from privet.schedules import schedule_values

    if source is not None:
        _check_nothing_beside(given)
        ledger = exchange.read(source)
        if not ledger.steps:
            raise InvalidValue(f"{source}: has no steps. Its epsilon would be 0. Give the file of a run.")
        return ledger
    rate = _rate_of(given["sample_rate"], given["batch_size"], size)
    _check.rate(sample_rate=rate)
    steps, epochs = given["steps"], given["epochs"]
    if (steps is None) == (epochs is None):
        raise click.UsageError("Give --steps or --epochs: one of the two.")
    if steps is None:
        _check.positive(epochs=epochs)
        steps = steps_in_epochs(epochs, rate)
    noise, shape = given["noise_multiplier"], given["noise_schedule"]
    if noise is None and shape is None:
        raise click.UsageError("Give --noise-multiplier (or --noise-schedule, or --from FILE).")
    if noise is not None:
        _check.positive(noise_multiplier=noise)
    ledger, height, sampling = Ledger(), 1.0 if noise is None else noise, sampling_of(given["sampling"])
    if shape is None:
        ledger.add(Step(noise_multiplier=height, sample_rate=rate, sampling=sampling), steps)
    else:
        common.check_scheduled(steps)
        ledger.extend(noise_multiplier=height * schedule_values(shape, steps), sample_rate=rate, sampling=sampling)
    return ledger


def _rate_of(rate: float | None, batch: float | None, size: int | None) -> float:
    if (rate is None) == (batch is None):
        raise click.UsageError("Give --sample-rate, or --batch-size with --dataset-size (or --from FILE): one of them.")
    if rate is not None:
        return rate
    assert batch is not None
    if size is None:
        raise click.UsageError("--batch-size needs --dataset-size.")
    _check.positive(batch_size=batch)
    if batch > size:
        raise InvalidValue(
            f"batch_size={batch:g} must be at most dataset_size={size}. An example takes part at most once in a step."
        )
    return batch / size
