"""What the ledger on disk costs: charging a step, by how many steps a line reserves, and reading a long ledger back.

    python benchmarks/ledger.py                    some seconds, on the disk of the temporary folder
    python benchmarks/ledger.py --folder runs      on another disk

A line is written and synced before the steps it charges are done, so the disk decides: beside each figure stands the
same number of bytes appended and synced by hand. Times by the clock, the median of some runs; nothing fails here.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from _measure import one_core
from privet.ledger.file import LedgerFile
from privet.ledger.format import chain_line, charge_row, header_line, make_header
from privet.ledger.reading import NAME, read_ledger
from privet.planning import Plan, plan

RESERVED = (1, 4, 16)
RUNS = 5


def planned(steps: int) -> Plan:
    run = {"dataset_size": 60_000, "batch_size": 256, "steps": steps, "noise_multiplier": "2 * exponential:end=0.3"}
    return plan(**run, delta=1e-6, solve="epsilon")


def charging(folder: Path, p: Plan, steps: int, reserved: int) -> float:
    """Seconds to charge `steps` steps, `reserved` with each line."""
    wanted = p.steps[:steps]
    with LedgerFile.create(folder, p, steps_per_line=reserved) as ledger:
        start = time.perf_counter()
        for number, step in enumerate(wanted):
            if number % reserved == 0 and reserved > 1:
                ledger.reserve(min(reserved, steps - number))
            ledger.charge(number, step)
        return time.perf_counter() - start


def by_hand(folder: Path, lines: list[bytes]) -> float:
    """Seconds to append and sync the same lines, and nothing else."""
    file = os.open(folder / "by-hand", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    start = time.perf_counter()
    for line in lines:
        os.write(file, line)
        os.fdatasync(file)
    taken = time.perf_counter() - start
    os.close(file)
    return taken


def compared(place: Path, p: Plan, steps: int, reserved: int) -> tuple[float, float]:
    """Median seconds of a step charged, and of its share of the bare syncs."""
    ours, bare = [], []
    for run in range(RUNS):  # in turn, so that a busy moment of the disk meets both
        folder = place / f"{reserved}-{run}"
        ours.append(charging(folder, p, steps, reserved))
        bare.append(by_hand(folder, (folder / NAME).read_bytes().splitlines(keepends=True)[1:]))
    return statistics.median(ours) / steps, statistics.median(bare) / steps


def long_ledger(folder: Path, p: Plan, reserved: int) -> int:
    """A finished run, written without syncs; gives its number of lines."""
    line, digest = header_line(make_header(p, run="0" * 32, steps_per_line=reserved, seeded=False))
    lines, steps = [line], p.steps
    noises, rates = steps.noise_multipliers, steps.sample_rates
    clips = np.linspace(1, 2, len(steps))  # a clipping norm that moves, too
    for first in range(0, len(steps), reserved):
        here = slice(first, first + reserved)
        row = charge_row(first, noises=noises[here], rates=rates[here], clips=clips[here], kind="poisson")
        line, digest = chain_line(digest, row)
        lines.append(line)
    folder.mkdir()
    (folder / NAME).write_bytes(b"".join(lines))
    return len(lines)


def median(function: Callable[[], object]) -> tuple[float, float]:
    """Median seconds by the clock and of the processor."""
    taken = []
    for _ in range(RUNS):
        start, work = time.perf_counter(), time.process_time()
        function()
        taken.append((time.perf_counter() - start, time.process_time() - work))
    clock, processor = (statistics.median(column) for column in zip(*taken, strict=True))
    return clock, processor


@click.command()
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="On which disk.")
@click.option("--steps", default=400, show_default=True, help="Steps that are charged in each run.")
@click.option("--lines", default=100_000, show_default=True, help="Lines that are read.")
@click.option("--cpu", type=int, help="The core to use.")
def main(folder: Path | None, steps: int, lines: int, cpu: int | None) -> None:
    """Time of charging a step, and of reading a ledger."""
    one_core(cpu)
    console, p = Console(), planned(steps)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        table = Table("steps in a line", "us a step", "bare sync, us", "lines a second", box=box.SIMPLE)
        for reserved in RESERVED:
            ours, bare = compared(place, p, steps, reserved)
            table.add_row(str(reserved), f"{1e6 * ours:.0f}", f"{1e6 * bare:.0f}", f"{1 / ours / reserved:.0f}")
        console.print(table)
        table = Table("read", "steps", "MB", "seconds", "of the processor", box=box.SIMPLE)
        for reserved in RESERVED:
            run = place / f"long-{reserved}"
            count = long_ledger(run, planned(lines), reserved)
            clock, processor = median(lambda run=run: read_ledger(run))  # type: ignore[misc]
            size = (run / NAME).stat().st_size / 1e6
            table.add_row(f"{count} lines", str(lines), f"{size:.1f}", f"{clock:.2f}", f"{processor:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
