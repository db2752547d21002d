"""What privacy costs in a training step: Privet, the modes of Opacus and plain vmap over a step without privacy.

    python benchmarks/engine.py                      everything, with one thread and with two (half an hour)
    python benchmarks/engine.py --quick              one thread, few rounds, slow peers estimated (some minutes)
    python benchmarks/engine.py --only a,e --threads 1 --rounds 40

benchmarks/README.md says what is measured and how to read it.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from _arena import bench
from _contenders import CONTENDERS, PEERS
from _measure import THREADS, Result, measured
from _models import GROWTH, WORKLOADS
from accounting import environment

Printed = tuple[str, list[str], list[list[str]]]  # a table: title, heading, lines

TIME_GOALS = {"a": 1.15, "b": 1.15, "c": 1.4, "d": 1.4, "e": 1.3, "f": 1.25, "g": 1.25}
MEMORY_GOALS = {"a": 1.8, "b": 1.4, "c": 1.2, "d": 1.3, "e": 1.0, "f": 1.6, "g": 1.2}
FASTER_GOALS = {"d": 10.0, "e": 10.0}  # than the best peer; elsewhere at all
SLOW = 6.0  # times plain: with --quick, such a peer is estimated from three steps
DASH = "–"


# --- what came out -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contender on one workload: ratios to the plain step of the same round, or why there are none."""

    key: str
    name: str
    threads: int
    contender: str
    seconds: float | None = None  # of a step, the median
    ratio: float | None = None  # to plain, the median over rounds
    quartiles: tuple[float, float] | None = None  # None if `ratio` is an estimate from three steps
    megabytes: float | None = None
    memory: float | None = None  # over plain
    error: float | None = None
    failure: str | None = None


def rows_of(key: str, name: str, threads: int, found: dict[str, dict[str, Any]]) -> list[Row]:
    plain = found["plain"]
    usual = statistics.median(plain["seconds"])
    rows = []
    for contender, one in found.items():
        given: dict[str, Any] = {"error": one.get("error"), "failure": one.get("failure")}
        if "bytes" in one:
            given |= {"megabytes": one["bytes"] / 1e6, "memory": one["bytes"] / plain["bytes"]}
        if one["seconds"]:
            pairs = [(a, b) for a, b in zip(one["seconds"], plain["seconds"], strict=True) if a is not None]
            low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4, method="inclusive")
            given |= {"seconds": statistics.median(a for a, _ in pairs), "ratio": middle, "quartiles": (low, high)}
        elif "rough" in one:
            given |= {"seconds": one["rough"], "ratio": one["rough"] / usual}
        rows.append(Row(key=key, name=name, threads=threads, contender=contender, **given))
    return rows


def tables(rows: Sequence[Row]) -> list[Printed]:
    """Time, memory and growth; the goals stand beside what was reached."""
    groups: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row.key, row.threads), {})[row.contender] = row
    main = [group for (key, _), group in groups.items() if key in WORKLOADS]
    growth = [group for (key, _), group in groups.items() if key in GROWTH]
    once = list({group["plain"].key: group for group in reversed(main)}.values())[::-1]  # threads change no memory
    found = [
        (
            "Time of a step over the step without privacy: median (quartiles), peers median ± half the quartile range",
            ["workload", "threads", "plain", "privet", "goal", *PEERS, "times faster", "goal"],
            [_time_line(group) for group in main],
        ),
        (
            "Peak memory of a step over the step without privacy",
            ["workload", "plain", "privet", "goal", *PEERS],
            [_memory_line(group) for group in once],
        ),
        (
            "How the cost grows",
            ["workload", "threads", "plain", "privet", "time ratio", "plain", "privet", "memory ratio"],
            [_growth_line(group) for group in growth],
        ),
    ]
    return [table for table in found if table[2]]


def _time_line(group: dict[str, Row]) -> list[str]:
    plain, ours = group["plain"], group.get("privet")
    reached = None if ours is None else ours.ratio
    goal, wanted = TIME_GOALS[plain.key[0]], FASTER_GOALS.get(plain.key[0], 1.0)
    known = [r.ratio for r in (group.get(peer) for peer in PEERS) if r is not None and r.ratio is not None]
    faster = min(known) / reached if known and reached else None  # than the best mode of any peer
    return [
        plain.name, str(plain.threads), _milliseconds(plain), _spread(ours), _goal("<=", goal, reached),
        *(_cell(group.get(peer)) for peer in PEERS),
        DASH if faster is None else f"{faster:.3g}", _goal(">=" if wanted > 1 else ">", wanted, faster),
    ]  # fmt: skip


def _memory_line(group: dict[str, Row]) -> list[str]:
    plain, ours = group["plain"], group.get("privet")
    reached = None if ours is None else ours.memory
    goal = _goal("<=", MEMORY_GOALS[plain.key[0]], reached)
    return [plain.name, _megabytes(plain), _times(reached), goal,
            *(_times(group[peer].memory) if peer in group else DASH for peer in PEERS)]  # fmt: skip


def _growth_line(group: dict[str, Row]) -> list[str]:
    plain, ours = group["plain"], group["privet"]
    time_of = [_milliseconds(plain), _milliseconds(ours), _spread(ours)]
    return [plain.name, str(plain.threads), *time_of, _megabytes(plain), _megabytes(ours), _times(ours.memory)]


def _goal(sign: str, wanted: float, reached: float | None) -> str:
    if reached is None:
        return f"{sign} {wanted:g}"
    met = {"<=": reached <= wanted, ">=": reached >= wanted, ">": reached > wanted}[sign]
    return f"{sign} {wanted:g} {'met' if met else 'MISSED'}"


def _spread(row: Row | None) -> str:
    if row is None or row.ratio is None or row.quartiles is None:
        return _cell(row)
    return f"{row.ratio:.2f} ({row.quartiles[0]:.2f}-{row.quartiles[1]:.2f})"


def _cell(row: Row | None) -> str:
    if row is None or row.ratio is None:
        return DASH if row is None else _short(row.failure or DASH)
    if row.quartiles is None:
        return f"about {row.ratio:.2g}"
    return f"{_times(row.ratio)} ±{(row.quartiles[1] - row.quartiles[0]) / 2:.1g}"


def _short(failure: str) -> str:
    """The kind of failure; notes under the table have the words."""
    return failure if failure.startswith(("none in", "plain: none in")) else "failed"


def _times(ratio: float | None) -> str:
    return DASH if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def _milliseconds(row: Row) -> str:
    return DASH if row.seconds is None else f"{1e3 * row.seconds:.3g} ms"


def _megabytes(row: Row) -> str:
    return DASH if row.megabytes is None else f"{row.megabytes:.3g} MB"


def notes(rows: Sequence[Row]) -> list[str]:
    """Why cells are empty, and how well the sums agree."""
    failed = [r for r in rows if r.failure and _short(r.failure) == "failed"]
    words = dict.fromkeys(f"{r.key}, {r.contender}: {r.failure}" for r in failed)
    errors = [r.error for r in rows if r.contender == "privet" and r.error is not None]
    if errors:
        agreement = f"Privet's clipped sums are within {max(errors):.1e} of one example at a time"
        return [f"{agreement}, in {len(errors)} checks.", *words]
    return list(words)


# --- the command -------------------------------------------------------------------------------------


def show(rows: Sequence[Row], where: Result, *, markdown: bool) -> None:
    versions = ", ".join(f"{name} {where['versions'][name]}" for name in ("privet", "torch", "opacus"))
    print(f"{where['cores']} cores ({where['cpu']}), load {where['load'][0]}; Python {where['python']}, {versions}.")
    console = Console(width=None if sys.stdout.isatty() else 190, highlight=False, markup=False)
    for title, heading, lines in tables(rows):
        if markdown:
            print(f"\n**{title}**\n")
            for line in (heading, ["---"] * len(heading), *lines):
                print("| " + " | ".join(line) + " |")
            continue
        table = Table(*heading, title=title, box=box.SIMPLE, title_justify="left", title_style="bold", padding=(0, 1))
        for line in lines:
            table.add_row(*line)
        console.print(table)
    for note in notes(rows):
        print(note)


def _cores(threads: int, all_cores: Sequence[int]) -> None:
    """Keep this process, and those it starts from now on, to so many threads on as many cores."""
    for name in THREADS:
        os.environ[name] = str(threads)
    if all_cores:
        os.sched_setaffinity(0, all_cores[-threads:])


def _keys(_: click.Context, __: click.Parameter, text: str | None) -> list[str]:
    """Workloads by name or first letter, and `growth`."""
    if text is None:
        return [*WORKLOADS, *GROWTH]
    found = []
    for word in text.split(","):
        some = list(GROWTH) if word == "growth" else [key for key in WORKLOADS if key == word or key[0] == word]
        if not some:
            raise click.BadParameter(f"{word!r} is no workload. Use {', '.join(WORKLOADS)}, a first letter or growth.")
        found += some
    return list(dict.fromkeys(found))


def _counts(_: click.Context, __: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    words = text.split(",")
    most = os.cpu_count() or 1
    if not all(word.isdigit() and 1 <= int(word) <= most for word in words):
        raise click.BadParameter(f"{text!r} must be whole numbers from 1 to {most}, the cores here, with commas.")
    return [int(word) for word in words]


@click.command()
@click.option("--quick", is_flag=True, help="One thread, 7 rounds; peers far slower than plain are estimated.")
@click.option("--only", "keys", callback=_keys, help="Workloads, with commas: a, a600, b ... g, growth.")
@click.option("--threads", "counts", callback=_counts, help="Numbers of threads, with commas.  [default: 1,2]")
@click.option("--rounds", type=click.IntRange(2), help="Turns of every contender.  [default: 25]")
@click.option("--limit", default=60.0, show_default=True, help="Seconds for each contender on a workload.")
@click.option("--memory", default=12.0, show_default=True, help="GB for each workload (Linux).")
@click.option("--markdown", is_flag=True, help="Print tables in Markdown.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write all numbers there.")
@click.option("--show", "saved", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Measure nothing: print what --json wrote.")  # fmt: skip
def main(
    quick: bool, keys: list[str], counts: list[int] | None, rounds: int | None, limit: float, memory: float,
    markdown: bool, file: Path | None, saved: Path | None,
) -> None:  # fmt: skip
    """Measure what privacy costs in a training step. Example: engine.py --quick --only a"""
    if saved:
        stored = json.loads(saved.read_text())
        show([Row(**row) for row in stored["rows"]], stored["environment"], markdown=markdown)
        return
    counts, rounds = counts or ([1] if quick else [1, 2]), rounds or (7 if quick else 25)
    all_cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    where = environment(limit, -1) | {"pinned to": None, "rounds": rounds}
    rows: list[Row] = []
    for number, threads in enumerate(counts):
        _cores(threads, all_cores)
        for key in keys:
            given = {"rounds": rounds, "threads": threads, "limit": limit, "skip": SLOW if quick else None}
            rows += _measure(key, given | {"check": number == 0 and key in WORKLOADS}, memory)
    if file:
        file.write_text(json.dumps({"environment": where, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    show(rows, where, markdown=markdown)


def _measure(key: str, given: Result, memory: float) -> list[Row]:
    growing = key in GROWTH
    names = ["plain", "privet"] if growing else list(CONTENDERS)
    name, threads = (GROWTH if growing else WORKLOADS)[key].name, given["threads"]
    print(f"{time.strftime('%H:%M:%S')} {key}, threads {threads} ...", end=" ", file=sys.stderr, flush=True)
    # twice the limit for each: to get ready, and to be timed
    whole = measured(bench, {"key": key, "names": names, **given}, limit=2 * len(names) * given["limit"], memory=memory)
    found = whole.result.get("found", {})
    print(whole.failure or f"{whole.seconds:.0f} s", file=sys.stderr, flush=True)
    if "rough" not in found.get("plain", {}):
        failure = whole.failure or f"plain: {found['plain']['failure']}"
        return [Row(key=key, name=name, threads=threads, contender=one, failure=failure) for one in names]
    return rows_of(key, name, threads, found)


if __name__ == "__main__":
    main()
