"""What privacy costs in an epoch: 60,000 digits, the papers' CNN, batches of 256, one thread.

    python benchmarks/training.py                    a whole epoch of each (a quarter of an hour)
    python benchmarks/training.py --quick            some steps of each (two minutes)

A plain loop, a loop with `Training` (in memory and with a ledger on disk), `privet train` itself, and Opacus with hooks
and ghost clipping. All are in one process and take turns; benchmarks/README.md says how to read it.
"""

import contextlib
import gc
import json
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from _arena import Arena
from _contenders import CONTENDERS, Terms, losses
from _measure import one_core
from _models import Workload
from accounting import environment
from privet import Training, plan, train
from privet.accounting import Guarantee
from privet.data import Task, task
from privet.errors import PrivetError
from privet.ledger import account as accounts  # where Training finds what opens its account
from privet.ledger.account import Account, Charge
from privet.ledger.meter import Meter, choose_steps_per_line, measure_line_seconds
from privet.planning import Plan
from privet.training.progress import Progress

SIZE, BATCH, EPOCHS = 60_000, 256, 60
EPOCH = round(SIZE / BATCH)  # steps
GOAL = 0.02  # of a step, for ledger and accounting together
TERMS = Terms(batch=BATCH, clip=1.0)
Clocks = tuple[float, float]  # of the processor, and on the wall


def now() -> Clocks:
    return time.process_time(), time.perf_counter()


def digits() -> tuple[Task, str]:
    """MNIST, or as many digits by repetition, and which of the two."""
    try:
        return task("mnist"), "MNIST"
    except PrivetError:
        found = task("digits")
        x, y = found.train
        times = -(-SIZE // len(x))
        repeated = x.repeat(times, 1, 1, 1)[:SIZE], y.repeat(times)[:SIZE]
        made = Task(
            name="digits, repeated", train=repeated, held_out=found.held_out, evaluation=found.evaluation,
            model=found.model, facts=found.facts,
        )  # fmt: skip
        return made, "no MNIST in PRIVET_DATA: the 4,000 shipped digits, repeated to 60,000"


# --- who takes part ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Timed:
    """One way to train: `go(n)` makes n steps. Turns are seconds a step, of the processor and on the wall."""

    go: Callable[[int], None]
    turns: list[Clocks] = field(default_factory=list)
    charges: list[Clocks] = field(default_factory=list)  # seconds that the ledger took, step by step

    def turn(self, count: int) -> None:
        work, wall = now()
        self.go(count)
        self.add(work, wall, count)

    def add(self, work: float, wall: float, count: int) -> None:
        then = now()
        self.turns.append(((then[0] - work) / count, (then[1] - wall) / count))

    def median(self, which: int = 0) -> float:
        return statistics.median(turn[which] for turn in self.turns)


class Watched:
    """An account whose charges are timed; nothing else changes."""

    def __init__(self, account: Account, charges: list[Clocks]) -> None:
        self._account, self._charges = account, charges

    def __getattr__(self, name: str) -> Any:
        return getattr(self._account, name)

    def charge(self, number: int, *given: Any) -> Charge:
        work, wall = now()
        found = self._account.charge(number, *given)
        then = now()
        self._charges.append((then[0] - work, then[1] - wall))
        return found


def gathering(name: str, made: Task) -> Timed:
    """A contender of engine.py, given batches of the same size as all."""
    x, y = made.train
    contender = CONTENDERS[name](made.network(), TERMS)

    def go(count: int) -> None:
        for _ in range(count):
            picked = torch.randint(SIZE, (BATCH,))
            contender.step(x.index_select(0, picked), y.index_select(0, picked))

    return Timed(go=go)


def own_loop(made: Task, p: Plan, *, out: Path | None, steps_per_line: int) -> Timed:
    """The loop of docs/howto-train.md."""
    timed = Timed(go=lambda count: None)
    model = made.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=TERMS.rate)
    with watched(timed.charges):
        training = Training(model, optimizer, made.train, p, out=out, steps_per_line=steps_per_line)
    rounds: Iterator[Any] = iter(training)

    def go(count: int) -> None:
        for _ in range(count):
            x, y = next(rounds)
            training.step(losses(model(x), y))

    timed.go = go
    return timed


@contextlib.contextmanager
def watched(charges: list[Clocks]) -> Iterator[None]:
    """While inside, the accounts that are made are timed into `charges`."""
    made = accounts.open_account
    accounts.open_account = lambda *given, **named: Watched(made(*given, **named), charges)  # type: ignore
    try:
        yield
    finally:
        accounts.open_account = made


class Enough(Exception):
    """All turns are taken."""


class Turns(Progress):
    """Stands in `privet train`: after every `count` of its steps the others have their turn."""

    def __init__(self, whole: Timed, others: list[Timed], *, count: int, rounds: int) -> None:
        self._whole, self._others, self._count, self._left = whole, others, count, rounds + 1
        self._shuffled = random.Random(0)
        self._since = now()

    def step(self, number: int, spent: Callable[[], Guarantee], speed: float) -> None:
        if number % self._count:
            return
        self._whole.add(*self._since, self._count)
        self._shuffled.shuffle(self._others)  # nobody always follows the one who left the caches cold
        for one in self._others:
            one.turn(self._count)
        self._left -= 1
        if not self._left:
            raise Enough
        self._since = now()


def measured(made: Task, p: Plan, place: Path, *, count: int, rounds: int, steps_per_line: int) -> dict[str, Timed]:
    """Everyone's turns; the first, in which everything is warmed up, is left out."""
    named = {
        "plain PyTorch": gathering("plain", made),
        "Training, in memory": own_loop(made, p, out=None, steps_per_line=1),
        "Training, ledger, a line a step": own_loop(made, p, out=place / "one", steps_per_line=1),
        f"Training, ledger, steps_per_line={steps_per_line}": own_loop(
            made, p, out=place / "auto", steps_per_line=steps_per_line
        ),
        "privet train": Timed(go=lambda count: None),
        "Opacus, hooks": gathering("hooks", made),
        "Opacus, ghost": gathering("ghost", made),
    }
    whole = named["privet train"]
    turns = Turns(whole, [one for one in named.values() if one is not whole], count=count, rounds=rounds)
    with contextlib.suppress(Enough), watched(whole.charges):
        train(
            p, made, out=place / "train", watcher=turns, optimizer="sgd", lr=TERMS.rate, momentum=0.0,
            evaluate_every=10**9, save_every=10**9,
        )  # fmt: skip
    for one in named.values():
        del one.turns[0], one.charges[:count]
    return named


# --- what came out ----------------------------------------------------------------------------------


def rows(named: dict[str, Timed]) -> list[dict[str, Any]]:
    """Seconds of an epoch, its ratio to plain turn by turn, and the ledger's share of a step."""
    plain = named["plain PyTorch"]
    found = []
    for name, one in named.items():
        ratios = [a[0] / b[0] for a, b in zip(one.turns, plain.turns, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        row: dict[str, Any] = {
            "who": name, "step_ms": 1e3 * one.median(), "epoch_s": EPOCH * one.median(), "ratio": middle,
            "quartiles": (low, high), "steps": len(one.charges) or None,
        }  # fmt: skip
        if one.charges:
            work, wall = (statistics.fmean(column) for column in zip(*one.charges, strict=True))
            row |= {
                "ledger_work_us": 1e6 * work, "ledger_wall_us": 1e6 * wall,
                "ledger_work": work / one.median(0), "ledger_wall": wall / one.median(1),
            }  # fmt: skip
        found.append(row)
    return found


def pricing(p: Plan, step: float) -> dict[str, float]:
    """Processor seconds to price a run on its way, once and then at each evaluation, and their share of all steps."""
    meter = Meter(p)
    work = time.process_time()
    meter.guarantee_at(EPOCH)
    first = time.process_time() - work
    work = time.process_time()
    for epoch in range(2, EPOCHS):
        meter.guarantee_at(epoch * EPOCH)
    later = time.process_time() - work
    return {"first_s": first, "later_s": later, "share": (first + later) / (len(p.steps) * step)}


class _OwnLoop:
    """`Training` as a contender whose memory is weighed: it draws its batches itself."""

    def __init__(self, made: Task, p: Plan) -> None:
        self._timed = own_loop(made, p, out=None, steps_per_line=1)
        self.model: nn.Module = nn.Identity()

    def step(self, x: Tensor, y: Tensor) -> None:
        self._timed.go(1)


def memory(made: Task, p: Plan) -> dict[str, float]:
    """MB that torch holds at the peak of a step, the dataset not counted."""
    workload = Workload(
        name="cnn", model=made.network, inputs=lambda n: made.train[0][:n], classes=10, batch=BATCH
    )  # fmt: skip
    arena = Arena(workload, 1, 60.0)
    makers: dict[str, Callable[[], Any]] = {
        "plain PyTorch": lambda: CONTENDERS["plain"](made.network(), TERMS),
        "Training": lambda: _OwnLoop(made, p),
        "Opacus, hooks": lambda: CONTENDERS["hooks"](made.network(), TERMS),
        "Opacus, ghost": lambda: CONTENDERS["ghost"](made.network(), TERMS),
    }
    found = {}
    for name, make in makers.items():
        gc.collect()  # what the one before leaves behind must not be freed on this one's account
        found[name] = arena.peak(make) / 1e6
    return found


def show(found: dict[str, Any], console: Console) -> None:
    table = Table("who", "ms a step", "s an epoch", "over plain (quartiles)", "ledger, us", "of a step", "on the wall",
                  box=box.SIMPLE)  # fmt: skip
    for row in found["rows"]:
        ledger = ["–"] * 3
        if "ledger_work" in row:
            ledger = [f"{row['ledger_work_us']:.0f}", f"{row['ledger_work']:.2%}", f"{row['ledger_wall']:.2%}"]
        low, high = row["quartiles"]
        ratio = f"{row['ratio']:.2f} ({low:.2f}-{high:.2f})"
        table.add_row(row["who"], f"{row['step_ms']:.1f}", f"{row['epoch_s']:.1f}", ratio, *ledger)
    console.print(table)
    priced, whole = found["pricing"], found["ledger_and_accounting"]
    console.print(
        f"accounting: {priced['first_s']:.2f} s once and {priced['later_s']:.2f} s for {EPOCHS} evaluations, "
        f"{priced['share']:.3%} of {EPOCHS} epochs' steps"
    )
    said = [f"{share:.2%} {how} ({'met' if share < GOAL else 'MISSED'})" for how, share in whole.items()]
    console.print(f"ledger and accounting in `privet train`: {', '.join(said)}; goal: under {GOAL:.0%} of a step")
    console.print("memory of a step, MB: " + ", ".join(f"{name} {mb:.1f}" for name, mb in found["memory"].items()))


@click.command()
@click.option("--quick", is_flag=True, help="Some steps of each in place of an epoch.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="On which disk the ledgers are.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write all numbers there.")
@click.option("--cpu", type=int, help="The core to use.")
def main(quick: bool, folder: Path | None, file: Path | None, cpu: int | None) -> None:
    """Time an epoch on MNIST, with and without privacy."""
    where = environment(0.0, one_core(cpu))
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Full backward hook is firing")  # of Opacus
    console = Console(width=max(120, Console().width))
    made, which = digits()
    console.print(f"{where['cpu']}, load {where['load'][0]}, one thread; {which}; batch {BATCH}")
    p = plan(epsilon=2.0, delta=1e-5, dataset_size=SIZE, batch_size=BATCH, epochs=EPOCHS)
    count, rounds = (5, 6) if quick else (13, EPOCH // 13)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        rough = own_loop(made, p, out=None, steps_per_line=1)
        rough.turn(2)
        rough.turn(5)
        line = measure_line_seconds(place)
        step_seconds = rough.turns[1][1]
        steps_per_line = max(2, choose_steps_per_line(steps=len(p.steps), step_seconds=step_seconds, line_seconds=line))
        named = measured(made, p, place, count=count, rounds=rounds, steps_per_line=steps_per_line)
    found: dict[str, Any] = {"environment": where, "data": which, "rows": rows(named), "memory": memory(made, p)}
    whole = next(row for row in found["rows"] if row["who"] == "privet train")
    found["pricing"] = pricing(p, whole["step_ms"] / 1e3)
    found["ledger_and_accounting"] = {
        how: whole[key] + found["pricing"]["share"]
        for how, key in (("by the processor", "ledger_work"), ("on the wall", "ledger_wall"))
    }
    show(found, console)
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
