"""The command line: parse, call one verb, print. A user's mistake is one line on standard error and exit code 2.

Nothing heavy is imported until a command needs it, so that `privet --help` is quick.
"""

import json
import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _check, _registry
from privet.errors import InvalidValue, MissingExtra, PrivetError, Unsupported

if TYPE_CHECKING:
    from privet.accounting import EpsilonCurve, Guarantee, Ledger
    from privet.planning import Method, Plan

MOST_STEPS = 10**12
MOST_SCHEDULED = 10**7  # one value is held for each
BESIDE = ("pld", "gdp", "rdp")  # what a figure shows beside the chosen accountant


# --- errors and exit codes ---------------------------------------------------------------------------


class _Commands(click.Group):
    """Turns every failure into one line and an exit code: 2 a user's mistake, 1 ours, 130 Ctrl-C."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name or "privet", complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
            sys.exit(code if isinstance(code, int) else 0)
        except (click.exceptions.Abort, KeyboardInterrupt):
            _fail("interrupted", 130)
        except BrokenPipeError:
            # The reader left (`| head`). Nothing can be said; a second failure at exit must not be either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except click.ClickException as error:
            _fail(_usage(error), 2)
        except PrivetError as error:
            _debug()
            _fail(str(error), 2)
        except Exception as error:
            _debug()
            _fail(f"internal error: {type(error).__name__}: {error} (PRIVET_DEBUG=1 shows where)", 1)


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" See {context.command_path} --help." if context is not None else ""
    return error.format_message().rstrip(".") + "." + hint


def _debug() -> None:
    if os.environ.get("PRIVET_DEBUG", "") not in ("", "0"):
        traceback.print_exc()


def _fail(message: str, code: int) -> None:
    click.echo(f"privet: {' '.join(message.split())}", err=True)
    sys.exit(code)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Warnings raised inside are printed on standard error, one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(" ".join(str(w.message).split()) for w in caught):
        click.echo(f"privet: warning: {message}", err=True)


# --- values ------------------------------------------------------------------------------------------


def number(text: str) -> float:
    """A finite number, or a fraction such as 256/60000."""
    try:
        found = float(_registry.number(text.strip()))
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise click.BadParameter(f"{text!r} is not a finite number or a fraction such as 256/60000")
    return found


def integer(text: str | int) -> int:
    """A whole number of at least 1; 6e4 is one too."""
    try:
        found = float(text)
    except (ValueError, OverflowError):
        found = 0.0
    if not (1 <= found <= MOST_STEPS and found.is_integer()):
        raise click.BadParameter(f"{text!r} is not a whole number from 1 to {MOST_STEPS:.0e}")
    return int(found)


OUT = click.Path(path_type=Path)


# --- the commands ------------------------------------------------------------------------------------


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        import privet

        click.echo(f"privet {privet.__version__}")
        context.exit()


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
              help="Show the version and exit.")  # fmt: skip
@click.pass_context
def main(context: click.Context) -> None:
    """Differentially private deep learning: what it costs, planned, spent and proven.

    \b
    Examples:
      privet plan --size 60000 --batch 256 --epochs 60 --epsilon 2 --delta 1e-5 --out plan.json
      privet epsilon --rate 256/60000 --noise 1.1 --steps 14063 --delta 1e-5
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@main.command("epsilon", short_help="What a run costs: epsilon with its label.")
@click.option("--rate", type=number, help="Chance q that a record takes part in a step, e.g. 256/60000.")
@click.option("--batch", type=number, help="Expected batch size; with --size it gives the rate.")
@click.option("--size", type=integer, help="Number of records n (public). Also checks that delta is below 1/n.")
@click.option("--noise", type=number, help="Noise multiplier sigma: standard deviation over sensitivity.")
@click.option("--noise-schedule", metavar="SHAPE", help="Shape that multiplies --noise over the steps; "
              "see `privet schedules`.")  # fmt: skip
@click.option("--steps", type=integer, help="Number of steps T.")
@click.option("--epochs", type=number, help="In place of --steps: T = ceil(epochs / rate).")
@click.option("--from", "source", type=click.Path(), metavar="FILE",
              help="A plan, a ledger, an Opacus history or a dp_accounting event (JSON), or a CSV.")  # fmt: skip
@click.option("--delta", type=number, help="The delta of the guarantee, below 1/size.")
@click.option("--epsilon", "at", type=number, help="In place of --delta: the delta at this epsilon.")
@click.option("--accountant", default="pld", show_default=True, metavar="NAME",
              help="A method, `all` for all of them side by side, or your own as my.module:Class.")  # fmt: skip
@click.option("--relation", metavar="NAME", help="Neighbouring datasets: zero-out (default), add-remove or replace.")
@click.option("--sampling", default="poisson", show_default=True, metavar="NAME",
              help="poisson, truncated-poisson:cap=C,size=N, fixed-size or shuffled.")  # fmt: skip
@click.option("--curve", type=OUT, metavar="FILE", help="Draw epsilon over the steps (.png, .svg, .pdf or .csv).")
@click.option("--tradeoff", type=OUT, metavar="FILE",
              help="Draw what an attacker can achieve at best (.png, .svg, .pdf or .csv).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def epsilon_command(
    *,
    source: str | None,
    delta: float | None,
    at: float | None,
    accountant: str,
    relation: str | None,
    size: int | None,
    curve: Path | None,
    tradeoff: Path | None,
    as_json: bool,
    **steps: Any,
) -> None:
    """What a run costs: epsilon at delta, as an interval, with the label that says what is proven.

    \b
    Examples:
      privet epsilon --rate 256/60000 --noise 1.1 --steps 14063 --delta 1e-5
      privet epsilon --size 60000 --batch 256 --epochs 60 --delta 1e-5 \\
          --noise 2.0 --noise-schedule exponential:end=0.3 --accountant all --curve epsilon.png --tradeoff attacker.png
      privet epsilon --from opacus.json --delta 1e-5 --json
    """
    figures = {name: path for name, path in (("curve", curve), ("tradeoff", tradeoff)) if path is not None}
    _check_question(delta=delta, at=at, accountant=accountant, figures=bool(figures))
    for name, path in figures.items():
        _check_figure(f"--{name}", path)
    planned = _plan_of(source)
    ledger = _ledger_of(source, size, steps) if planned is None else _planned_ledger(planned, source, relation, steps)
    relation = (
        relation or (planned and planned.guarantee.relation) or ("replace" if _fixed_size(ledger) else "zero-out")
    )
    if at is not None:
        _answer_delta(ledger, at, relation, as_json)
        return
    assert delta is not None
    with _warnings_as_lines():
        answers = _answers(ledger, delta, accountant, relation, size)
        if curve is not None:
            _draw_curve(ledger, delta, accountant, relation, curve)
        if tradeoff is not None:
            _draw_tradeoff(ledger, relation, tradeoff)
    if as_json:
        _print_json(answers, accountant, delta, figures)
    else:
        _print(answers, accountant, ledger, delta)
        for path in figures.values():
            click.echo(f"wrote {path}")


@main.command("plan", short_help="A budget in, a certified schedule out.")
@click.argument("recipe", required=False, type=click.Path(path_type=Path))
@click.option("--epsilon", type=number, help="The budget.")
@click.option("--delta", type=number, help="The delta of the budget. Default: 1 / (10 size).")
@click.option("--size", type=integer, help="Number of records n (public).")
@click.option("--batch", type=number, help="Expected batch size. Default: 256.")
@click.option("--rate", type=number, help="In place of --batch: chance that a record takes part in a step.")
@click.option("--batch-schedule", metavar="SHAPE", help="Shape that multiplies --batch over the steps.")
@click.option("--steps", type=integer, help="Number of steps T.")
@click.option("--epochs", type=number, help="In place of --steps: T = ceil(epochs * size / batch).")
@click.option("--method", metavar="NAME", help="A method of the papers; see `privet methods`.")
@click.option("--rho-noise", type=number, help="First noise over last noise, for growing-mu and dynamic.")
@click.option("--rho-clip", type=number, help="First clip over last clip, for sensitivity-decay and dynamic.")
@click.option("--noise", type=number, help="Noise multiplier, when another knob is solved for.")
@click.option("--noise-schedule", metavar="SHAPE", help="Shape of the noise; see `privet schedules`.")
@click.option("--clip", type=number, help="Clip C, the bound on one record's share. Default: 1.")
@click.option("--clip-schedule", metavar="SHAPE", help="Shape that multiplies --clip over the steps.")
@click.option("--rule", metavar="NAME", help="Clipping rule: flat, per_layer, normalised, quantile, adaclip.")
@click.option("--accountant", metavar="NAME", help="Who prices the plan. Default: pld, certified.")
@click.option("--relation", metavar="NAME", help="Neighbouring datasets: zero-out (default), add-remove or replace.")
@click.option("--unit", metavar="NAME", help="Whom a record stands for: example (default), client or user.")
@click.option("--sampling", metavar="NAME", help="poisson (default), truncated-poisson:..., fixed-size or shuffled.")
@click.option("--solve", metavar="KNOB", help="noise (default), steps, batch or epsilon, given the other three.")
@click.option("--as-published", is_flag=True, default=None, help="The paper's own rule, formula and label.")
@click.option("--out", type=OUT, metavar="FILE", help="Write the plan (JSON).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def plan_command(*, recipe: Path | None, out: Path | None, as_json: bool, **flags: Any) -> None:
    """The noise that meets a budget, for every step, before any data is touched.

    RECIPE is a TOML file with the same keys as the options (rho_noise for --rho-noise); options win over it.

    \b
    Examples:
      privet plan --size 60000 --batch 256 --epochs 60 --epsilon 1.2 --delta 1e-5 \\
          --method dynamic --rho-noise 3.3 --rho-clip 3.3 --clip 1.0 --out plan.json
      privet plan recipe.toml --epsilon 2
      privet plan --size 60000 --batch 256 --noise 1.1 --epsilon 2 --solve steps
    """
    from privet.planning import Recipe, plan

    start = time.perf_counter()
    given = _with_shapes(flags)
    with _warnings_as_lines():
        asked = Recipe.of(**given) if recipe is None else Recipe.load(recipe, **given)
        found = plan(asked)
        closed = _closed_form(found)
    seconds = time.perf_counter() - start
    if out is not None:
        found.save(out)
    if as_json:
        _print_object(_plan_object(found, seconds, out, closed))
        return
    _print_plan(found, seconds, closed)
    if out is not None:
        click.echo(f"wrote {out}")


@main.command("methods", short_help="The methods of the papers, and what is proven of them.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def methods_command(name: str | None, as_json: bool) -> None:
    """The methods of the papers: paper, label as published, and what is wrong; or one of them in full.

    \b
    Examples:
      privet methods
      privet methods auto-linear
    """
    from privet.planning import METHODS, method

    if name is not None:
        row = method(name)
        if as_json:
            _print_object(row.as_dict())
        else:
            _print_method(row)
        return
    if as_json:
        _print_object({"methods": [row.as_dict() for row in METHODS.values()]})
        return
    width = max(map(len, METHODS))
    for row in METHODS.values():
        click.echo(f"{row.name:<{width}}  {row.label:<11}  {row.paper}")
        if row.wrong:
            click.echo(f"{'':<{width}}  {row.wrong}")
    click.echo("\nThe label is that of the paper. By default each name means its sound sibling, certified by pld.")


@main.command("schedules", short_help="The shapes a schedule can have.")
@click.option("--show", metavar="SHAPE", help="Print the values of this shape.")
@click.option("--steps", type=integer, default=10, show_default=True,
              help="Over how many steps.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def schedules_command(show: str | None, steps: int, as_json: bool) -> None:
    """The shapes a schedule can have, or the values of one.

    \b
    Examples:
      privet schedules
      privet schedules --show exponential:end=0.3 --steps 5
    """
    from privet import schedules

    _check_scheduled(steps)
    if show is not None:
        values = schedules.values_of(show, steps).tolist()
        click.echo(json.dumps({"schedule": show, "values": values}) if as_json else "\n".join(map(repr, values)))
        return
    shapes = {name: _first_line(schedules.registry.maker(name)) for name in schedules.registry.names()}
    if as_json:
        click.echo(json.dumps({"schedules": shapes}))
        return
    width = max(map(len, shapes))
    for name, line in shapes.items():
        click.echo(f"{name:<{width}}  {line}")
    click.echo(
        "\nWritten shape:key=value,...; your own as my.module:Class. Try: privet schedules --show cosine:end=0.1"
    )


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


# --- privet epsilon: the question --------------------------------------------------------------------


def _check_question(*, delta: float | None, at: float | None, accountant: str, figures: bool) -> None:
    if (delta is None) == (at is None):
        raise click.UsageError("Give --delta, or --epsilon to ask for the delta there: one of the two.")
    if delta is not None:
        _check.between(0, 1, delta=delta)
    if at is None:
        return
    _check.non_negative(epsilon=at)
    if accountant != "pld" or figures:
        raise click.UsageError("--epsilon is answered by --accountant pld only, and without --curve or --tradeoff.")


def _check_figure(option: str, path: Path) -> None:
    from privet.reporting.figures import check_path

    check_path(path, option=option)


def _plan_of(source: str | None) -> "Plan | None":
    """The plan in a file, if it says that it is one; else the file is some other kind of ledger."""
    if source is None:
        return None
    from privet.planning.plan_file import is_plan

    if not is_plan(Path(source)):
        return None
    from privet.planning import Plan

    return Plan.load(source)


def _planned_ledger(planned: "Plan", source: str | None, relation: str | None, given: dict[str, Any]) -> "Ledger":
    """The ledger of a plan; refused if no proof covers its clipping rule, or another relation is asked for."""
    _check_nothing_beside(given)
    if relation is not None and relation != planned.guarantee.relation:
        raise Unsupported(
            f"--relation={relation!r} is not the plan's, {planned.guarantee.relation!r}. Its noise counts for that. "
            "Leave it out."
        )
    if planned.is_unsound:
        raise Unsupported(
            f"{source}: no accountant covers method={planned.recipe.method!r} as published: its clipping rule "
            f"{planned.rule!r} bounds nothing that is charged. Plan without --as-published."
        )
    return planned.ledger()


def _check_nothing_beside(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and (name, value) != ("sampling", "poisson"):
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be given with --from: the file says it.")


def _ledger_of(source: str | None, size: int | None, given: dict[str, Any]) -> "Ledger":
    """The ledger a user described, from a file or from the options."""
    from privet.accounting import Ledger, exchange

    if source is not None:
        _check_nothing_beside(given)
        return exchange.read(source)
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

    _check_scheduled(steps)
    ledger.extend(noise=noise * values_of(shape, steps), rate=rate, sampling=chosen)


def _check_scheduled(steps: int) -> None:
    if steps > MOST_SCHEDULED:
        raise InvalidValue(
            f"steps={steps} of a schedule must be at most {MOST_SCHEDULED:.0e}. One value is held for each."
        )


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
    # Less a few roundings of the quotient, so that 0.1 epochs of 60000 in batches of 100 are 60 steps, not 61.
    found = math.ceil(epochs / rate * (1 - 2.0**-49)) if epochs / rate <= 2 * MOST_STEPS else 2 * MOST_STEPS
    if found > MOST_STEPS:
        raise InvalidValue(f"epochs={epochs:g} at rate={rate:g} is more than {MOST_STEPS:.0e} steps.")
    return max(1, found)


def _fixed_size(ledger: "Ledger") -> bool:
    return any(kind.name == "fixed-size" for kind in ledger.columns().samplings)


# --- privet epsilon: the answer ----------------------------------------------------------------------

Answer = tuple[str, "Guarantee | str", float]  # name, guarantee or why it is refused, seconds


def _answers(ledger: "Ledger", delta: float, accountant: str, relation: str, size: int | None) -> list[Answer]:
    from privet.accounting import registry, spent

    if accountant != "all":
        start = time.perf_counter()
        found = spent(ledger, delta, accountant=accountant, relation=relation, size=size)  # type: ignore[arg-type]
        return [(accountant, found, time.perf_counter() - start)]
    answers: list[Answer] = []
    for name in registry.names():
        start = time.perf_counter()
        try:
            answer: Guarantee | str = spent(ledger, delta, accountant=name, relation=relation, size=size)  # type: ignore[arg-type]
        except PrivetError as error:
            answer = " ".join(str(error).split()).partition("does not cover this ledger: ")[2] or str(error)
        answers.append((name, answer, time.perf_counter() - start))
    if all(isinstance(answer, str) for _, answer, _ in answers):
        raise Unsupported(f"no accountant covers this ledger. {answers[0][1]}")
    return sorted(answers, key=_rank)


def _rank(answer: Answer) -> tuple[int, int, float]:
    """Certified first and the tightest of them on top; what refused comes last."""
    from privet.accounting.guarantee import LABELS

    found = answer[1]
    return (1, 0, 0.0) if isinstance(found, str) else (0, LABELS.index(found.label), found.epsilon)


def _answer_delta(ledger: "Ledger", at: float, relation: str, as_json: bool) -> None:
    from privet.accounting import delta_at
    from privet.accounting.guarantee import rounded

    start = time.perf_counter()
    with _warnings_as_lines():
        lower, upper = delta_at(ledger, at, relation)  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    if as_json:
        _print_object({"delta": upper, "delta_lower": lower, "epsilon": at, "label": "certified", "method": "pld",
                       "relation": relation, "steps": ledger.steps, "seconds": seconds})  # fmt: skip
        return
    click.echo(
        f"delta <= {rounded(upper, up=True)} at epsilon {at:g} "
        f"[certified: pld, true value >= {rounded(lower, up=False)}; {relation}]"
    )
    click.echo(f"  releases  {_described(ledger)}\n  time      {seconds:.3f} s")


def _print(answers: list[Answer], accountant: str, ledger: "Ledger", delta: float) -> None:
    if accountant == "all":
        _print_table(answers, ledger, delta)
        return
    _, guarantee, seconds = answers[0]
    assert not isinstance(guarantee, str)
    click.echo(str(guarantee))
    click.echo(f"  interval  {_interval(guarantee)}")
    click.echo(f"  sampling  {guarantee.sampling}; neighbours: {guarantee.relation}; unit: {guarantee.unit}")
    click.echo(f"  releases  {_described(ledger)}")
    click.echo(f"  time      {seconds:.3f} s")


def _interval(guarantee: "Guarantee") -> str:
    from privet.accounting.guarantee import MEANING, rounded

    upper = rounded(guarantee.epsilon, up=True)
    if guarantee.epsilon_lower is None:
        return f"none below; {upper} is {MEANING[guarantee.label]}"
    lower = rounded(guarantee.epsilon_lower, up=False)
    return f"{lower} to {upper} ({guarantee.label}, relative width {guarantee.width:.1e})"


def _described(ledger: "Ledger") -> str:
    columns = ledger.columns()
    if not ledger.steps:
        return "no step"
    spans = [
        f"{name} {low:.6g}" + (f" to {high:.6g}" if high > low else "")
        for name, low, high in (
            ("noise", columns.noise.min(), columns.noise.max()),
            ("rate", columns.rate.min(), columns.rate.max()),
        )
    ]
    return f"{ledger.steps} steps, {', '.join(spans)}"


def _print_table(answers: list[Answer], ledger: "Ledger", delta: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from privet.accounting.guarantee import MEANING, rounded

    table = Table(title=f"epsilon at delta {delta:g} after {_described(ledger)}", title_justify="left",
                  title_style="bold", box=box.SIMPLE_HEAD)  # fmt: skip
    for name in ("method", "label"):
        table.add_column(name, no_wrap=True)
    for name in ("lower", "epsilon", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what the label means")
    for name, found, seconds in answers:
        if isinstance(found, str):
            table.add_row(name, "refused", "", "", f"{seconds:.3f}", found)
            continue
        lower = "" if found.epsilon_lower is None else rounded(found.epsilon_lower, up=False)
        table.add_row(name, found.label, lower, rounded(found.epsilon, up=True), f"{seconds:.3f}", MEANING[found.label])
    Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False).print(table)


def _print_json(answers: list[Answer], accountant: str, delta: float, figures: dict[str, Path]) -> None:
    rows: list[dict[str, Any]] = []
    for name, found, seconds in answers:
        said = {"method": name, "refused": found} if isinstance(found, str) else found.as_dict()
        rows.append(said | {"seconds": seconds})
    drawn = {name: str(path) for name, path in figures.items()}
    _print_object((rows[0] if accountant != "all" else {"delta": delta, "accountants": rows}) | drawn)


def _print_object(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, allow_nan=False))


# --- privet plan and methods --------------------------------------------------------------------------


def _with_shapes(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags as a recipe's keys: a number and its shape are one schedule."""
    given = dict(flags)
    if given["batch_schedule"] is not None and given["batch"] is None:
        raise click.UsageError("--batch-schedule needs --batch, the height of the shape.")
    for name in ("noise", "clip", "batch"):
        shape = given.pop(f"{name}_schedule")
        if shape is not None:
            given[name] = shape if given[name] is None else f"{given[name]!r} * ({shape})"
    return given


def _closed_form(found: "Plan") -> "Plan | None":
    """For `proactive`: the plan with the published noise, to be shown beside the certified one."""
    from dataclasses import replace

    from privet.planning import plan

    if found.recipe.method != "proactive" or found.recipe.solve != "noise":
        return None
    return found if found.recipe.as_published else plan(replace(found.recipe, as_published=True, accountant=None))


def _holds(closed: "Plan") -> bool:
    return closed.certified is not None and closed.certified.epsilon <= closed.recipe.budget.epsilon


def _plan_object(found: "Plan", seconds: float, out: Path | None, closed: "Plan | None") -> dict[str, Any]:
    first, last = found.steps[0], found.steps[-1]
    said: dict[str, Any] = {
        "guarantee": found.guarantee.as_dict(),
        "certified": None if found.certified is None else found.certified.as_dict(),
        "scale": found.scale,
        "steps": len(found.steps),
        "batch": found.batch,
        "noise": [first.noise, last.noise],
        "clip": [first.clip, last.clip],
        "rate": [first.rate, last.rate],
        "shapes": found.shapes,
        "rule": found.rule,
        "recipe": found.recipe.as_dict(),
        "hash": found.hash,
        "seconds": seconds,
        "out": None if out is None else str(out),
    }
    return said if closed is None else said | {"closed_form": {"noise": closed.scale, "holds": _holds(closed)}}


def _print_plan(found: "Plan", seconds: float, closed: "Plan | None") -> None:
    from privet.accounting.guarantee import rounded

    recipe, steps = found.recipe, found.steps
    click.echo(str(found.guarantee))
    if found.is_unsound:
        click.echo(
            f"  guarantee none: no proof covers the clipping rule {found.rule!r} (privet methods {recipe.method})"
        )
    elif found.certified is not None and found.certified != found.guarantee:
        click.echo(f"  certified {found.certified}")
    if closed is not None and closed.certified is not None:
        verdict = "holds" if _holds(closed) else "fails"
        proven = rounded(closed.certified.epsilon, up=True)
        click.echo(f"  formula   noise {closed.scale:.6g}; its condition {verdict} here: certified epsilon {proven}")
    click.echo(
        f"  noise     {_span(steps[0].noise, steps[-1].noise)} ({_shown(steps.noise)}, height {found.scale:.6g})"
    )
    click.echo(f"  clip      {_span(steps[0].clip, steps[-1].clip)}, rule {found.rule}")
    epochs = len(steps) * steps[0].rate
    click.echo(f"  releases  {len(steps)} steps of {found.batch:.6g} of {recipe.size} records ({epochs:.4g} epochs)")
    click.echo(f"  time      {seconds:.3f} s")


def _span(first: float, last: float) -> str:
    return f"{first:.6g}" + ("" if first == last else f" to {last:.6g}")


def _shown(shape: str) -> str:
    return _registry.shortened(shape, 60)


def _print_method(row: "Method") -> None:
    """One method in full."""
    lines = {
        "paper": row.paper,
        "noise": row.noise_says,
        "clip": row.clip_says,
        "needs": ", ".join(row.needs),
        "as published": f"rule {row.published_rule}, {row.accountant}: {row.label}",
        "what is wrong": row.wrong,
        "by default": f"rule {row.rule}, pld: certified ({row.sibling})",
    }
    click.echo(row.name)
    for name, line in lines.items():
        if line:
            click.echo(f"  {name:<13} {line}")


# --- privet epsilon: the figure ---------------------------------------------------------------------


def _draw_curve(ledger: "Ledger", delta: float, accountant: str, relation: str, path: Path) -> None:
    import numpy as np

    from privet.accounting import epsilon_curve
    from privet.reporting.figures import save_epsilon

    if not ledger.steps:
        raise InvalidValue("steps=0: there is nothing to draw.")
    curves: list[EpsilonCurve] = []
    for name in dict.fromkeys(([] if accountant == "all" else [accountant]) + list(BESIDE)):
        try:
            curves.append(epsilon_curve(ledger, delta, accountant=name, relation=relation))  # type: ignore[arg-type]
        except MissingExtra:
            raise
        except PrivetError as error:
            warnings.warn(f"{path} has no line for {name}: {error}", stacklevel=1)
    columns = ledger.columns()
    starts = np.concatenate(([0.0], np.cumsum(columns.count)[:-1]))
    save_epsilon(curves, path, delta=delta, noise=columns.noise, starts=starts)


def _draw_tradeoff(ledger: "Ledger", relation: str, path: Path) -> None:
    from privet.accounting.tradeoff import tradeoff
    from privet.reporting.figures import save_tradeoff

    curves = []
    for name in ("pld", "gdp"):
        try:
            curves.append(tradeoff(ledger, accountant=name, relation=relation))  # type: ignore[arg-type]
        except PrivetError as error:
            warnings.warn(f"{path} has no line for {name}: {error}", stacklevel=1)
    if not curves:
        raise Unsupported(f"--tradeoff={str(path)!r}: no accountant has a trade-off curve for this ledger.")
    save_tradeoff(curves, path)
