"""Speed and tightness of the accountant, on one core, beside its peers.

    python benchmarks/accounting.py                  everything (most of an hour: peers are given 120 s each)
    python benchmarks/accounting.py --quick          Privet and the fast peers, under a minute
    python benchmarks/accounting.py --part growth    one part: peers, calibration, growth or curve

benchmarks/README.md says what is measured and how to read it.
"""

import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

import _peers
from _measure import Function, Measured, Result, measured, one_core

Floats = NDArray[np.float64]
Printed = tuple[str, list[str], list[list[str]]]  # a table: title, heading, lines

DELTA = 1e-5
LEVELS = 64
RTOL = 1e-4
PARTS = ("peers", "calibration", "growth", "curve")
PACKAGES = ("numpy", "scipy", "dp-accounting", "opacus", "prv-accountant", "torch")
DASH = "–"

GOAL_DYNAMIC, GOAL_CONSTANT, GOAL_CALIBRATION, GOAL_CURVE = 0.15, 0.030, 0.5, 1.0
GOAL_WIDTH, DREAM_WIDTH, GOAL_RATIO = 1e-4, 1e-6, 100
TIGHT = 0.1  # Rényi bounds of these schedules are 20 % too high and more, the others about 5 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A run: sample rate, noise multiplier at each step, and the shape (height 1) that a calibration would scale."""

    name: str
    sample_rate: float
    noise_multiplier: Floats
    target: float = 2.0  # epsilon, for the calibration

    @property
    def dynamic(self) -> bool:
        return bool(np.ptp(self.noise_multiplier) > 0)

    @property
    def shape(self) -> Floats:
        return np.asarray(self.noise_multiplier / self.noise_multiplier[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    maker: Callable[[], Function]
    quick: bool = False  # a second or two with few levels, imports included


PEERS = (
    Peer(name="dp-accounting PLD", maker=_peers.dp_pld),
    Peer(name="prv-accountant", maker=_peers.prv),
    Peer(name="opacus PRV", maker=_peers.opacus_prv),
    Peer(name="dp-accounting RDP", maker=_peers.dp_rdp, quick=True),
    Peer(name="opacus RDP", maker=_peers.opacus_rdp),
)


def settings() -> list[Setting]:
    """Three published settings, with constant noise and with noise that differs at every step."""
    mnist, wei, auto = 256 / 60000, 0.01, 64 / 60000
    steps = np.arange(93750)

    def setting(name: str, rate: float, noise: Floats) -> Setting:
        return Setting(name=name, sample_rate=rate, noise_multiplier=noise)

    return [
        setting("1 constant: q=256/60000, T=14063, noise 1.1", mnist, np.full(14063, 1.1)),
        setting("1 dynamic: noise 2.0 to 0.6", mnist, _geometric(2.0, 0.6, 14063)),
        setting("2 constant: q=0.01, T=10000, noise 6", wei, np.full(10000, 6.0)),
        setting("2 dynamic: noise 4.0 to 0.4", wei, _geometric(4.0, 0.4, 10000)),
        setting("3 constant: q=64/60000, T=93750, noise 1.0", auto, np.full(93750, 1.0)),
        setting("3 dynamic: noise^2 = 0.99^(q i), 1.0 to 0.605", auto, 0.99 ** (auto * steps / 2)),
    ]


def _geometric(start: float, end: float, steps: int) -> Floats:
    from privet.schedules import schedule_values

    return schedule_values({"kind": "exponential", "start": start, "end": end}, steps)


# --- what is timed -----------------------------------------------------------------------------------


def calibration() -> Function:
    """As a planner does it: the height of a shape whose certified upper bound is the target, at most 1e-4 below."""
    from scipy.optimize import brentq

    from privet.accounting import Ledger, gdp, spent

    def height(*, shape: Floats, sample_rate: float, delta: float, target: float) -> Result:
        evaluations = 0

        def epsilon_at(scale: float) -> float:
            nonlocal evaluations
            evaluations += 1
            ledger = Ledger()
            ledger.extend(noise_multiplier=scale * shape, sample_rate=sample_rate)
            return spent(ledger, delta).epsilon

        def rough(log_scale: float) -> float:  # the central limit theorem: no bound, but where to begin
            with np.errstate(over="ignore"):
                mu = sample_rate * math.sqrt(float(np.expm1((math.exp(-log_scale) / shape) ** 2).sum()))
            return math.log(gdp.epsilon_of_mu(min(mu, 1e3), delta) / target)

        begin = brentq(rough, math.log(0.05), math.log(1e3), xtol=1e-3)
        slope = (rough(begin + 0.01) - rough(begin - 0.01)) / 0.02
        scale, epsilon = _secant(epsilon_at, target, begin, slope)
        return {"height": scale, "upper": epsilon, "evaluations": evaluations}

    return height


def _secant(epsilon_at: Callable[[float], float], target: float, x: float, slope: float) -> tuple[float, float]:
    """Secant steps on log epsilon over log height, kept inside what is known, to [target (1 - RTOL), target]."""
    low, high = -math.inf, math.inf
    before: tuple[float, float] | None = None
    for _ in range(60):
        epsilon = epsilon_at(math.exp(x))
        gap = math.log(epsilon / target) if epsilon > 0 else -10.0
        if -RTOL <= gap <= 0:
            return math.exp(x), epsilon
        low, high = (x, high) if gap > 0 else (low, x)
        if before is not None and (gap - before[1]) * (x - before[0]) < 0:
            slope = (gap - before[1]) / (x - before[0])
        before = x, gap
        x -= (gap + RTOL / 2) / slope
        if not low < x < high:
            x = (low + high) / 2
    raise ArithmeticError("no height found in 60 steps")


def curve() -> Function:
    from privet.accounting import Ledger, epsilon_curve

    def points(*, schedule: Floats, sample_rate: float, delta: float, points: int) -> Result:
        ledger = Ledger()
        ledger.extend(noise_multiplier=schedule, sample_rate=sample_rate)
        found = epsilon_curve(ledger, delta, points=points)
        assert found.lower is not None
        width = np.max((found.upper - found.lower) / np.maximum(found.upper, 1e-9))
        return {"points": len(found.steps), "upper": float(found.upper[-1]), "width": float(width)}

    return points


# --- the parts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line: what was run, on what, what came out, and how it compares with ours on the same setting."""

    part: str
    setting: str
    method: str
    measured: Measured
    ours: Measured | None = None
    dynamic: bool = False
    whole: bool = True  # the schedule itself, not a cut one

    @property
    def lower(self) -> float | None:
        return self.measured.result.get("lower")

    @property
    def upper(self) -> float | None:
        return self.measured.result.get("upper")

    @property
    def width(self) -> float | None:
        """(upper - lower) / upper."""
        if "width" in self.measured.result:
            return float(self.measured.result["width"])
        return None if self.lower is None or not self.upper else (self.upper - self.lower) / self.upper

    @property
    def excess(self) -> float | None:
        """How far the upper bound is above the truth, at most: our lower bound stands for the truth."""
        true = self.ours.result.get("lower") if self.ours else None
        return None if self.upper is None or not true else self.upper / true - 1

    @property
    def ratio(self) -> float | None:
        """Its processor time over ours."""
        ours, theirs = self.ours.cpu if self.ours else None, self.measured.cpu
        return None if ours is None or theirs is None else theirs / ours


@dataclass(slots=True, kw_only=True)
class Bench:
    """Runs one measurement after the other and says so on stderr."""

    limit: float
    memory: float
    quick: bool

    def run(self, what: str, maker: Callable[[], Function], **inputs: Any) -> Measured:
        print(f"{time.strftime('%H:%M:%S')} {what} ...", end=" ", file=sys.stderr, flush=True)
        enough = 0.4 if self.quick else 1.5
        found = measured(maker, inputs, limit=self.limit, memory=self.memory, enough=enough)
        times = f"{_seconds(found.seconds)} ({_seconds(found.cpu)} of the processor)"
        print(found.failure or times, file=sys.stderr, flush=True)
        return found

    def peers(self, only: Sequence[str]) -> list[Row]:
        chosen = [s for s in settings() if not only or s.name.split()[0] in only]
        return [row for setting in chosen for row in self._beside(setting)]

    def _beside(self, setting: Setting) -> list[Row]:
        def row(method: str, found: Measured, whole: bool = True) -> Row:
            return Row(
                part="peers", setting=setting.name, method=method, measured=found, ours=ours,
                dynamic=setting.dynamic, whole=whole,
            )  # fmt: skip

        name, common = setting.name.partition(":")[0], {"sample_rate": setting.sample_rate, "delta": DELTA}
        ours = self.run(f"{name}, privet", _peers.privet, schedule=setting.noise_multiplier, **common)
        rows = [row("privet", ours)]
        for peer in PEERS:
            for whole in (True, False) if setting.dynamic else (True,):
                if self.quick and not (peer.quick and not (setting.dynamic and whole)):
                    continue
                method = peer.name if whole else f"{peer.name}, {LEVELS} levels"
                noise, count = _peers.runs_of(
                    setting.noise_multiplier if whole else _peers.cut(setting.noise_multiplier, LEVELS)
                )
                found = self.run(f"{name}, {method}", peer.maker, noise_multiplier=noise, count=count, **common)
                rows.append(row(method, found, whole))
        return rows

    def calibration(self) -> list[Row]:
        return [
            Row(
                part="calibration", method="privet", dynamic=s.dynamic,
                setting=f"{s.name.partition(':')[0]}, T={len(s.noise_multiplier)}, epsilon {s.target:g}",
                measured=self.run(
                    f"calibration, {s.name.partition(':')[0]}", calibration,
                    shape=s.shape, sample_rate=s.sample_rate, delta=DELTA, target=s.target,
                ),
            )
            for s in settings()
        ]  # fmt: skip

    def growth(self) -> list[Row]:
        rows = []
        for power in range(2, 7):
            steps = 10**power
            rate = min(0.01, 1 / math.sqrt(steps))
            found = self.run(
                f"growth, T=1e{power}",
                _peers.privet,
                schedule=_geometric(2.0, 0.6, steps),
                sample_rate=rate,
                delta=DELTA,
            )
            name = f"T=1e{power}, q={rate:.3g}"
            rows.append(Row(part="growth", setting=name, method="privet", measured=found, dynamic=True))
        return rows

    def curve(self) -> list[Row]:
        found = self.run(
            "epsilon curve",
            curve,
            schedule=_geometric(2.0, 0.6, 10_000),
            sample_rate=256 / 60000,
            delta=DELTA,
            points=300,
        )
        name = "300 points of T=10000, q=256/60000, noise 2.0 to 0.6"
        return [Row(part="curve", setting=name, method="privet", measured=found, dynamic=True)]


# --- goals -------------------------------------------------------------------------------------------


def goals(rows: Sequence[Row]) -> list[list[str]]:
    """Each goal, what was reached in processor time, and whether that is enough. Nothing fails if it is not."""
    ours = [row for row in rows if row.measured.cpu is not None and row.part == "peers" and row.method == "privet"]
    found = [
        _slowest("epsilon, dynamic, T=10000", [r for r in ours if r.setting.startswith("2 dynamic")], GOAL_DYNAMIC),
        _slowest("epsilon, dynamic, T=14063", [r for r in ours if r.setting.startswith("1 dynamic")], GOAL_DYNAMIC),
        _slowest("epsilon, constant", [r for r in ours if not r.dynamic], GOAL_CONSTANT),
        _slowest("calibration", [r for r in rows if r.part == "calibration"], GOAL_CALIBRATION),
        _slowest("curve, 300 points", [r for r in rows if r.part == "curve"], GOAL_CURVE),
        _widest("width, six settings", ours),
        _widest("width, growing T", [r for r in rows if r.part == "growth"]),
    ]
    for row in ours:
        if row.dynamic:
            peers = [r for r in rows if r.part == "peers" and r.setting == row.setting and r is not row]
            found += _faster(row, peers)
    return [line for line in found if line]


def _slowest(name: str, rows: Sequence[Row], goal: float) -> list[str]:
    times = [math.inf if r.measured.cpu is None else r.measured.cpu for r in rows]
    return [name, f"<= {goal:g} s", _seconds(max(times)), _met(max(times) <= goal)] if times else []


def _widest(name: str, rows: Sequence[Row]) -> list[str]:
    widths = [math.inf if r.width is None else r.width for r in rows]
    if not widths:
        return []
    met = "yes, and the dream" if max(widths) <= DREAM_WIDTH else _met(max(widths) <= GOAL_WIDTH)
    return [name, f"<= {GOAL_WIDTH:g} ({DREAM_WIDTH:g})", f"{max(widths):.1e}", met]


def _faster(row: Row, peers: Sequence[Row]) -> list[list[str]]:
    """Against the fastest peer on the schedule itself, on a cut one (a looser bound), and on a cut one but tight."""
    cut = [r for r in peers if not r.whole]
    tight = [r for r in cut if r.measured.failure or abs(r.excess or 0.0) <= TIGHT]
    return [
        _times(row, "every step", [r for r in peers if r.whole]),
        _times(row, f"{LEVELS} levels", cut),
        _times(row, f"{LEVELS} levels, within {100 * TIGHT:g} % of the truth", tight),
    ]


def _times(row: Row, what: str, peers: Sequence[Row]) -> list[str]:
    name = f"{row.setting.partition(':')[0]}: times faster than the fastest peer, {what}"
    done = {r.ratio: r for r in peers if r.ratio is not None}
    if done:
        ratio = min(done)
        reached = f"{ratio:.0f} ({done[ratio].method}, {_percent(done[ratio].excess)} too high)"
        return [name, f">= {GOAL_RATIO}", reached, _met(ratio >= GOAL_RATIO)]
    ends = [r.measured.failure or "" for r in peers]
    late = [float(end.strip("> s")) for end in ends if end.startswith(">")]
    if not late or not row.measured.seconds:
        return []
    least = min(late) / row.measured.seconds  # both by the clock, as the limit is
    return [name, f">= {GOAL_RATIO}", f"> {least:.0f} (none finished)", _met(least >= GOAL_RATIO)]


def _met(met: bool) -> str:
    return "yes" if met else "no"


# --- tables ------------------------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> list[Printed]:
    """Every table that has a line."""
    by_part = {part: [row for row in rows if row.part == part] for part in PARTS}
    bounds = ["epsilon, lower", "upper", "relative width"]
    peers = ["setting", "method", "seconds", "processor", *bounds, "too high by", "time / ours"]
    found = [
        (f"Epsilon at delta = {DELTA:g}", peers, [_peer_line(row) for row in by_part["peers"]]),
        (
            f"Calibration: height of the shape for a certified epsilon in [1 - {RTOL:g}, 1] of the target",
            ["setting", "seconds", "processor", "evaluations", "height", "epsilon, upper"],
            [_calibration_line(row) for row in by_part["calibration"]],
        ),
        (
            "Growth: noise 2.0 to 0.6, every step different, q = min(0.01, 1 / sqrt(T))",
            ["steps", "seconds", "processor", *bounds, "peak MB", "MB over imports"],
            [_growth_line(row) for row in by_part["growth"]],
        ),
        (
            "Epsilon over the run",
            ["curve", "seconds", "processor", "epsilon at the end, upper", "largest relative width"],
            [[r.setting, *_times_of(r), _up(r.upper), _width(r.width)] for r in by_part["curve"]],
        ),
        ("Goals, in processor time", ["goal", "wanted", "reached", "met"], goals(rows)),
    ]
    return [table for table in found if table[2]]


def _peer_line(row: Row) -> list[str]:
    bounds = [_down(row.lower), _up(row.upper), _width(row.width), _percent(row.excess)]
    return [row.setting, row.method, *_times_of(row), *bounds, DASH if row.ratio is None else f"{row.ratio:.3g}"]


def _calibration_line(row: Row) -> list[str]:
    result = row.measured.result
    height = f"{result['height']:.6g}" if result else DASH
    return [row.setting, *_times_of(row), str(result.get("evaluations", DASH)), height, _up(row.upper)]


def _growth_line(row: Row) -> list[str]:
    memory = [f"{row.measured.peak:.0f}", f"{row.measured.rise:.0f}"] if row.measured.seconds else [DASH, DASH]
    return [row.setting, *_times_of(row), _down(row.lower), _up(row.upper), _width(row.width), *memory]


def _times_of(row: Row) -> list[str]:
    return [row.measured.failure or _seconds(row.measured.seconds), _seconds(row.measured.cpu)]


def _seconds(seconds: float | None) -> str:
    return DASH if seconds is None else f"{seconds:.4f} s" if seconds < 1 else f"{seconds:.3g} s"


def _down(epsilon: float | None) -> str:
    return DASH if epsilon is None else f"{math.floor(epsilon * 1e6) / 1e6:.6f}"


def _up(epsilon: float | None) -> str:
    return DASH if epsilon is None else f"{math.ceil(epsilon * 1e6) / 1e6:.6f}"


def _width(width: float | None) -> str:
    return DASH if width is None else f"{width:.1e}"


def _percent(excess: float | None) -> str:
    if excess is None:
        return DASH
    return f"{100 * excess:.2g} %" + (" (below the truth)" if excess < -1e-12 else "")


def environment(limit: float, core: int) -> Result:
    """Where and with what this was measured."""
    import privet

    versions = {"privet": privet.__version__}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "pinned to": core,
        "load": [round(x, 2) for x in os.getloadavg()],
        "python": platform.python_version(),
        "limit": limit,
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def show(rows: Sequence[Row], where: Result, *, markdown: bool) -> None:
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    machine = f"One core of {where['cores']} ({where['cpu']}), load {where['load'][0]}"
    note = f"{machine}; Python {where['python']}, {versions}."
    (_print_markdown if markdown else _print_rich)(note, tables(rows))


def _print_markdown(note: str, found: Sequence[Printed]) -> None:
    print(note)
    for title, heading, lines in found:
        print(f"\n**{title}**\n")
        for line in (heading, ["---"] * len(heading), *lines):
            print("| " + " | ".join("**privet**" if cell == "privet" else cell for cell in line) + " |")


def _print_rich(note: str, found: Sequence[Printed]) -> None:
    """To a terminal, where each setting has a table of its own."""
    console = Console()
    console.print(note)
    for title, heading, lines in found:
        if heading[:2] != ["setting", "method"]:
            _print_table(console, title, heading, lines)
            continue
        for setting, group in groupby(lines, key=lambda line: line[0]):
            _print_table(console, f"{title}; {setting}", heading[1:], [line[1:] for line in group])


def _print_table(console: Console, title: str, heading: list[str], lines: list[list[str]]) -> None:
    table = Table(*heading, title=title, box=box.SIMPLE, title_justify="left", title_style="bold")
    for line in lines:
        table.add_row(*line)
    console.print(table)


@click.command()
@click.option("--quick", is_flag=True, help="Only Privet and the fast peers, under a minute.")
@click.option("--limit", default=120.0, show_default=True, help="Seconds for each measurement.")
@click.option("--memory", default=8.0, show_default=True, help="GB for each measurement (Linux).")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only this part; may be repeated.")
@click.option("--setting", "only", multiple=True, type=click.Choice(("1", "2", "3")), help="Only these beside peers.")
@click.option("--cpu", type=int, help="The core to use; the last one by default.")
@click.option("--markdown", is_flag=True, help="Print tables in Markdown.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write all numbers there.")
@click.option("--show", "saved", multiple=True, type=click.Path(exists=True, path_type=Path),
              help="Measure nothing: print what --json wrote; several files are put together.")  # fmt: skip
def main(
    quick: bool, limit: float, memory: float, parts: tuple[str, ...], only: tuple[str, ...], cpu: int | None,
    markdown: bool, file: Path | None, saved: tuple[Path, ...],
) -> None:  # fmt: skip
    """Measure the accountant on one core, beside its peers. Example: accounting.py --quick"""
    if saved:
        stored = [json.loads(path.read_text()) for path in saved]
        show([_row(row) for one in stored for row in one["rows"]], stored[0]["environment"], markdown=markdown)
        return
    where = environment(limit, one_core(cpu))
    bench = Bench(limit=limit, memory=memory, quick=quick)
    rows: list[Row] = []
    for part in parts or PARTS:
        rows += bench.peers(only) if part == "peers" else getattr(bench, part)()
    if file:
        file.write_text(json.dumps({"environment": where, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    show(rows, where, markdown=markdown)


def _row(stored: Result) -> Row:
    ours = Measured(**stored["ours"]) if stored["ours"] else None
    return Row(**(stored | {"measured": Measured(**stored["measured"]), "ours": ours}))


if __name__ == "__main__":
    main()
