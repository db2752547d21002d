"""How `privet epsilon` answers: lines, a table or JSON; figures."""

import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet.cli.shell import print_object, warnings_as_lines
from privet.errors import InvalidValue, MissingExtra, PrivetError, Unsupported

if TYPE_CHECKING:
    from privet.accounting import EpsilonCurve, Guarantee, Ledger
    from privet.cli.epsilon_runs import Beside

BESIDE = ("pld", "gdp", "rdp")  # what a figure shows beside the chosen accountant

Answer = tuple[str, "Guarantee | str", float]  # name, guarantee or why it is refused, seconds


def answers_of(
    ledger: "Ledger", delta: float, accountant: str, relation: str, size: int | None, unit: str,
    assumptions: tuple[str, ...] = (),
) -> list[Answer]:  # fmt: skip
    """What each accountant says, with what is assumed."""
    found = _answers(ledger, delta, accountant, {"relation": relation, "size": size, "unit": unit})
    return [
        (name, one if isinstance(one, str) else replace(one, assumptions=assumptions), seconds)
        for name, one, seconds in found
    ]


def _answers(ledger: "Ledger", delta: float, accountant: str, asked: dict[str, Any]) -> list[Answer]:
    from privet.accounting import registry, spent

    if accountant != "all":
        start = time.perf_counter()
        found = spent(ledger, delta, accountant=accountant, **asked)
        return [(accountant, found, time.perf_counter() - start)]
    answers: list[Answer] = []
    for name in registry.names():
        start = time.perf_counter()
        try:
            answer: Guarantee | str = spent(ledger, delta, accountant=name, **asked)
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


def answer_delta(ledger: "Ledger", at: float, relation: str, as_json: bool, beside: "Beside | None") -> None:
    from privet.accounting import delta_at
    from privet.accounting.guarantee import printed, rounded

    start = time.perf_counter()
    with warnings_as_lines():
        lower, upper = delta_at(ledger, at, relation)  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    if as_json:
        found = {
            "delta": upper, "delta_lower": lower, "epsilon": at, "label": "certified", "method": "pld",
            "relation": relation, "steps": ledger.steps, "seconds": seconds,
        }  # fmt: skip
        print_object(found | ({} if beside is None else beside.as_dict()))
        return
    click.echo(
        f"delta <= {rounded(upper, up=True)} at epsilon {printed(at, up=True)} "
        f"[certified: pld, true value >= {rounded(lower, up=False)}; {relation}]"
    )
    click.echo(f"  releases  {_described(ledger)}\n  time      {seconds:.3f} s")
    print_beside(beside)


def print_answers(answers: list[Answer], accountant: str, ledger: "Ledger", delta: float) -> None:
    if accountant == "all":
        _print_table(answers, ledger, delta)
        return
    _, guarantee, seconds = answers[0]
    assert not isinstance(guarantee, str)
    click.echo(str(guarantee))
    click.echo(f"  interval  {_interval(guarantee)}")
    click.echo(f"  sampling  {terms(guarantee)}")
    click.echo(f"  releases  {_described(ledger)}")
    click.echo(f"  time      {seconds:.3f} s")


def print_beside(beside: "Beside | None") -> None:
    for name, text in () if beside is None else beside.lines():
        click.echo(f"  {name:<10}{text}")


def terms(guarantee: "Guarantee") -> str:
    """What an epsilon is for."""
    return f"{guarantee.sampling}; neighbours: {guarantee.relation}; unit: {guarantee.unit}"


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

    from privet.accounting.guarantee import MEANING, printed, rounded

    table = Table(title=f"epsilon at delta {printed(delta, up=True)} after {_described(ledger)}", title_justify="left",
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
    click.echo(f"  sampling  {terms(next(found for _, found, _ in answers if not isinstance(found, str)))}")


def print_json(
    answers: list[Answer], accountant: str, delta: float, figures: dict[str, Path], beside: "Beside | None"
) -> None:
    rows: list[dict[str, Any]] = []
    for name, found, seconds in answers:
        said = {"method": name, "refused": found} if isinstance(found, str) else found.as_dict()
        rows.append(said | {"seconds": seconds})
    drawn = {name: str(path) for name, path in figures.items()}
    first = rows[0] if accountant != "all" else {"delta": delta, "accountants": rows}
    print_object(first | drawn | ({} if beside is None else beside.as_dict()))


def draw_curve(ledger: "Ledger", delta: float, accountant: str, relation: str, path: Path) -> None:
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


def draw_tradeoff(ledger: "Ledger", relation: str, path: Path) -> None:
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
