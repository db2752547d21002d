"""Sampling and noise on one core: ours beside the plain way and Opacus. Ratios, not limits; nothing fails here.

    python benchmarks/sampling.py                  a minute
    python benchmarks/sampling.py --quick          one setting, some seconds

A line is one step: indices of a Poisson batch, the same with the records gathered, and noise for a million parameters.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain, islice, repeat
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from _measure import Function, Measured, Result, measured, one_core

SETTINGS = ((60_000, 256), (60_000, 2048), (1_000_000, 256), (60_000, 30_000))
FEATURES = 784
PARAMETERS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to do one thing; `base` marks what the others are compared with."""

    what: str
    who: str
    maker: Callable[[], Function]
    steps: int
    base: bool = False


# --- indices ----------------------------------------------------------------------------------------


def skips() -> Function:
    from privet.planning.planned_steps import PlannedSteps
    from privet.sampling.samplers import Sampler

    def run(*, size: int, batch: int, steps: int) -> Result:
        chosen = Sampler(dataset_size=size, steps=PlannedSteps(length=steps, sample_rate=batch / size))
        return {"drawn": sum(len(indices) for indices in chosen)}

    return run


def mask() -> Function:
    import torch

    def run(*, size: int, batch: int, steps: int) -> Result:
        return {"drawn": sum(len((torch.rand(size) < batch / size).nonzero().view(-1)) for _ in range(steps))}

    return run


def opacus_sampler() -> Function:
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    def run(*, size: int, batch: int, steps: int) -> Result:
        chosen = UniformWithReplacementSampler(num_samples=size, sample_rate=batch / size, steps=steps)
        return {"drawn": sum(len(indices) for indices in chosen)}

    return run


# --- indices and records ----------------------------------------------------------------------------


def our_batches() -> Function:
    import torch

    from privet.planning.planned_steps import PlannedSteps
    from privet.sampling.loading import physical_batches
    from privet.sampling.samplers import Sampler

    def run(*, size: int, batch: int, steps: int) -> Result:
        chosen = Sampler(dataset_size=size, steps=PlannedSteps(length=steps, sample_rate=batch / size))
        return {"drawn": sum(len(piece.data[1]) for piece in physical_batches(data, chosen))}

    data = torch.rand(60_000, FEATURES), torch.zeros(60_000, dtype=torch.int64)
    return run


def opacus_loader() -> Function:
    import warnings

    import torch
    from opacus.data_loader import DPDataLoader
    from torch.utils.data import TensorDataset

    warnings.simplefilter("ignore")
    data = TensorDataset(torch.rand(60_000, FEATURES), torch.zeros(60_000, dtype=torch.int64))

    def run(*, size: int, batch: int, steps: int) -> Result:
        epochs = chain.from_iterable(repeat(DPDataLoader(data, sample_rate=batch / size)))
        return {"drawn": sum(len(labels) for _, labels in islice(epochs, steps))}

    return run


# --- noise ------------------------------------------------------------------------------------------


def torch_normal() -> Function:
    import torch

    flat = torch.empty(PARAMETERS)
    return lambda *, steps, **_: {"last": [float(flat.normal_()[0]) for _ in range(steps)][-1]}


def our_noise() -> Function:
    import torch

    from privet.noise.gaussian import draw
    from privet.noise.randomness import os_randomness

    flat, source = torch.empty(PARAMETERS), os_randomness()

    def run(*, steps: int, **_: int) -> Result:
        drawn = [draw(flat, std=1.0, generator=source) for _ in range(steps)]
        return {"last": float(drawn[-1][0])}

    return run


def secure_noise() -> Function:
    import torch

    from privet.noise.discrete import add_secure_noise, choose_grid
    from privet.noise.randomness import os_randomness

    sums, source = {"w": torch.zeros(PARAMETERS)}, os_randomness()
    grid = choose_grid(sums, std=1.0, noise=1.0, batch=256)

    def run(*, steps: int, **_: int) -> Result:
        drawn = [add_secure_noise(sums, grid=grid, randomness=source)["w"] for _ in range(steps)]
        return {"last": float(drawn[-1][0])}

    return run


def cases(size: int) -> list[Case]:
    found = [
        Case(what="indices", who="privet, gaps", maker=skips, steps=200, base=True),
        Case(what="indices", who="a coin each", maker=mask, steps=20),
        Case(what="indices", who="opacus sampler", maker=opacus_sampler, steps=20),
    ]
    if size == 60_000:
        found += [
            Case(what="indices and records", who="privet batches", maker=our_batches, steps=50, base=True),
            Case(what="indices and records", who="opacus loader", maker=opacus_loader, steps=5),
        ]
    return found


NOISE = [
    Case(what="noise", who="torch normal_", maker=torch_normal, steps=20),
    Case(what="noise", who="privet", maker=our_noise, steps=20, base=True),
    Case(what="noise", who="privet, secure", maker=secure_noise, steps=5),
]


def per_step(found: Measured, steps: int) -> float | None:
    """Milliseconds of the processor for one step."""
    return None if found.failure or found.cpu is None else 1e3 * found.cpu / steps


def lines(case_list: list[Case], inputs: Result, title: str) -> list[dict[str, object]]:
    """One row for each case: milliseconds of a step, and how many times the base that is."""
    found = {
        (case.what, case.who): measured(case.maker, inputs | {"steps": case.steps}, limit=60, memory=4.0)
        for case in case_list
    }
    base = {c.what: per_step(found[c.what, c.who], c.steps) for c in case_list if c.base}
    rows = []
    for case in case_list:
        taken, ours = per_step(found[case.what, case.who], case.steps), base[case.what]
        ratio = taken / ours if taken is not None and ours else None
        answer = asdict(found[case.what, case.who])
        rows.append({"setting": title, "what": case.what, "who": case.who, "ms": taken, "ratio": ratio} | answer)
    return rows


def show(rows: list[dict[str, object]], console: Console) -> None:
    table = Table("setting", "what", "who", "ms a step", "time / ours", box=box.SIMPLE)
    for row in rows:
        ms, ratio = row["ms"], row["ratio"]
        shown = str(row["failure"]) if ms is None else f"{ms:.3f}"
        table.add_row(str(row["setting"]), str(row["what"]), str(row["who"]), shown, f"{ratio:.1f}" if ratio else "–")
    console.print(table)


@click.command()
@click.option("--quick", is_flag=True, help="The first setting only.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Keep all numbers here.")
@click.option("--cpu", type=int, help="The core to use.")
def main(quick: bool, out: Path | None, cpu: int | None) -> None:
    """Time of one step's sampling and noise, by the processor."""
    one_core(cpu)
    rows = []
    for size, batch in SETTINGS[:1] if quick else SETTINGS:
        rows += lines(cases(size), {"size": size, "batch": batch}, f"{batch} of {size}")
    rows += lines(NOISE, {}, f"{PARAMETERS} values")
    show(rows, Console())
    if out:
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
