"""How long calibration takes: beside the peers on what they can do, and for every method and shape. One core.

    python benchmarks/planning.py                  everything; a peer gets 60 s
    python benchmarks/planning.py --quick          fewer settings; a peer gets 10 s; about two minutes

Peers are run side by side with Privet, in turn in one process. opacus `get_noise_multiplier` can do constant noise;
dp-accounting `calibrate_dp_mechanism` any schedule of few levels, and is told where the answer lies (within a factor
of 3). `of target` is the certified epsilon of the noise that was found over the target: above 1 the budget is exceeded.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from _measure import Function, Measured, Result, measured, one_core
from _peers import cut, runs_of

RUN = {"dataset_size": 60000, "batch_size": 256, "steps": 14063, "delta": 1e-5, "epsilon": 2.0}
RHOS = {"rho_noise": 3.3, "rho_clip": 3.3}
SHAPES = ("constant", "exponential:end=0.3", "linear:end=0.3", "cosine:end=0.3", "time:decay=0.001",
          "step:factor=0.5,every=4000", "cyclic:half=500,decay=0.001", "exponential:end=3")  # fmt: skip
LEVELS = 64  # a schedule is cut to so many levels for the peers, who take minutes for more

Calibrate = Callable[..., float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is calibrated side by side, and by whom."""

    what: str
    inputs: dict[str, Any]
    peers: tuple[str, ...]


CONSTANT = ("opacus RDP", "opacus PRV", "dp-accounting RDP", "dp-accounting PLD")
SCHEDULED = CONSTANT[2:]
SETTINGS = (
    Setting(what="constant, 14063 steps of 256", inputs=RUN, peers=CONSTANT),
    Setting(what="constant, 300 steps of 2048", inputs=RUN | {"batch_size": 2048, "steps": 300}, peers=CONSTANT),
    Setting(what="constant, epsilon 8", inputs=RUN | {"epsilon": 8.0}, peers=CONSTANT),
    Setting(what="constant, 100 full batches", inputs=RUN | {"batch_size": 60000, "steps": 100}, peers=CONSTANT),
    Setting(what="4 levels", inputs=RUN | {"noise_multiplier": SHAPES[5]}, peers=SCHEDULED),
    Setting(what="14063 levels", inputs=RUN | {"noise_multiplier": SHAPES[1]}, peers=SCHEDULED),
)


# --- who calibrates ---------------------------------------------------------------------------------


def privet() -> Function:
    from privet.planning import plan

    def calibrate(**given: Any) -> Result:
        found = plan(**given)
        proven = None if found.certified is None else found.certified.epsilon
        return {"noise_multiplier": found.peak_noise_multiplier, "certified": proven, "label": found.guarantee.label}

    return calibrate


def opacus(accountant: str) -> Calibrate:
    from opacus.accountants.utils import get_noise_multiplier

    def calibrate(
        *, epsilon: float, delta: float, sample_rate: float, shape: list[float], count: list[int], **_: Any
    ) -> float:
        assert len(shape) == 1, "constant noise only"
        found = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=sample_rate, steps=count[0], accountant=accountant,
            epsilon_tolerance=1e-4 * epsilon,
        )  # fmt: skip
        return float(found)

    return calibrate


def dp_accounting(accountant: str) -> Calibrate:
    import dp_accounting as dp

    def calibrate(
        *, epsilon: float, delta: float, sample_rate: float, shape: list[float], count: list[int], near: float
    ) -> float:
        def event(height: float) -> Any:
            levels = zip(shape, count, strict=True)
            return dp.ComposedDpEvent(
                [dp.SelfComposedDpEvent(_sampled(dp, sample_rate, height * level), times) for level, times in levels]
            )

        make = dp.rdp.RdpAccountant if accountant == "rdp" else dp.pld.PLDAccountant
        bracket = dp.ExplicitBracketInterval(near / 3, near * 3)
        return float(dp.calibrate_dp_mechanism(make, event, epsilon, delta, bracket, tol=1e-4 * near))

    return calibrate


def _sampled(dp: Any, rate: float, noise: float) -> Any:
    gaussian = dp.GaussianDpEvent(noise)
    return gaussian if rate == 1 else dp.PoissonSampledDpEvent(rate, gaussian)


PEERS: dict[str, Callable[[], Calibrate]] = {
    "opacus RDP": partial(opacus, "rdp"),
    "opacus PRV": partial(opacus, "prv"),
    "dp-accounting RDP": partial(dp_accounting, "rdp"),
    "dp-accounting PLD": partial(dp_accounting, "pld"),
}


def pair(peer: str) -> Function:
    """Privet, then the peer, in one process, each timed. What Privet took is kept if the peer does not finish."""
    ours, theirs = privet(), PEERS[peer]()

    def both(*, ours_alone: bool, **inputs: Any) -> Result:
        start = time.process_time()
        found = ours(**inputs)
        middle = time.process_time()
        named = {key: found[key] for key in ("noise_multiplier", "certified")}
        result = {"ours": middle - start} | named
        if ours_alone:
            return result
        shape, count = runs_of(cut(_values(inputs), LEVELS))
        noise = theirs(
            epsilon=inputs["epsilon"], delta=inputs["delta"], sample_rate=inputs["batch_size"] / inputs["dataset_size"],
            shape=shape, count=count, near=found["noise_multiplier"],
        )  # fmt: skip
        return result | {"theirs": time.process_time() - middle, "their_noise": noise}

    return both


def _values(inputs: Result) -> np.ndarray:
    from privet.schedules import schedule, schedule_values

    return schedule_values(schedule(inputs.get("noise_multiplier", "constant")), inputs["steps"])


def certified(inputs: Result, noise: float, *, levels: int | None) -> float:
    """What noise of this height costs, certified; of the schedule as it was cut for the peer."""
    from privet.accounting import Ledger, spent

    values = _values(inputs)
    ledger = Ledger()
    ledger.extend(
        noise_multiplier=noise * (values if levels is None else cut(values, levels)),
        sample_rate=inputs["batch_size"] / inputs["dataset_size"],
    )
    return spent(ledger, inputs["delta"]).epsilon


# --- side by side -----------------------------------------------------------------------------------


def beside(setting: Setting, peer: str, *, limit: float, memory: float) -> tuple[list[str], Measured]:
    """A row of the first table, and the measurement."""
    maker = partial(pair, peer)
    found = measured(maker, setting.inputs | {"ours_alone": False}, limit=limit, memory=memory, enough=0.5)
    epsilon = setting.inputs["epsilon"]
    if found.failure:
        alone = measured(maker, setting.inputs | {"ours_alone": True}, limit=limit, memory=memory, enough=0.5)
        if alone.failure:
            return [setting.what, peer, alone.failure, "", "", "", ""], alone
        ours, share = alone.result["ours"], alone.result["certified"] / epsilon
        slow = found.failure.startswith(">") and alone.seconds  # both by the clock: the limit is
        ratio = f"> {limit / slow:.0f}" if slow else ""
        return [setting.what, peer, f"{ours:.3f}", found.failure, ratio, f"{share:.5f}", ""], found
    result = found.result
    theirs = certified(setting.inputs, result["their_noise"], levels=LEVELS) / epsilon
    return [
        setting.what, peer, f"{result['ours']:.3f}", f"{result['theirs']:.3f}",
        f"{result['theirs'] / result['ours']:.1f}", f"{result['certified'] / epsilon:.5f}", f"{theirs:.5f}",
    ], found  # fmt: skip


# --- every method and shape -------------------------------------------------------------------------


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Every shape, and every method by default and as published."""
    from privet.planning import METHODS

    found = [(shape, RUN if shape == "constant" else RUN | {"noise_multiplier": shape}) for shape in SHAPES]
    for row in METHODS.values():
        given = RUN | {"method": row.name} | {key: RHOS[key] for key in row.needs}
        found += [(row.name, given), (f"{row.name}, as published", given | {"uncertified": True})]
    return found


def every() -> Function:
    """All of them in one process, `runs` times each; a failure is a row."""
    calibrate = privet()
    calibrate(**RUN)  # the first call pays for imports

    def calibrate_all(*, runs: int) -> Result:
        return {what: _repeated(calibrate, inputs, runs) for what, inputs in cases()}

    return calibrate_all


def _repeated(calibrate: Function, inputs: Result, runs: int) -> Result:
    seconds, found = [], {}
    try:
        for _ in range(runs):
            start = time.process_time()
            found = calibrate(**inputs)
            seconds.append(time.process_time() - start)
    except Exception as error:  # whatever happens, the others are shown
        return {"failure": f"failed: {error}"[:60]}
    return found | {"seconds": statistics.median(seconds)}


def line(what: str, found: Result) -> list[str]:
    """A row of the second table."""
    if "failure" in found:
        return [what, found["failure"], "", "", ""]
    proven = found["certified"]
    share = "none" if proven is None else f"{proven / RUN['epsilon']:.5f}"
    return [what, f"{found['seconds']:.3f}", f"{found['noise_multiplier']:.5g}", share, found["label"]]


def table(title: str, names: tuple[str, ...], rows: list[list[str]]) -> Table:
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in names:
        made.add_column(name, no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


@click.command()
@click.option("--quick", is_flag=True, help="Fewer settings, and less patience with the peers.")
@click.option("--limit", type=float, help="Seconds each measurement may take.  [default: 60; quick: 10]")
@click.option("--memory", default=4.0, show_default=True, help="GB each measurement may take.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Keep all numbers in this file.")
def main(quick: bool, limit: float | None, memory: float, out: Path | None) -> None:
    """Calibration time beside the peers, and of every method and shape."""
    one_core()
    limits = {"limit": limit or (10.0 if quick else 60.0), "memory": memory}
    screen, progress = Console(width=130, highlight=False, markup=False), Console(stderr=True)
    pairs = [(setting, peer) for setting in (SETTINGS[:2] if quick else SETTINGS) for peer in setting.peers]
    found = [
        (setting, peer, *beside(setting, peer, **limits))
        for setting, peer in track(pairs, "side by side", console=progress, transient=True)
    ]
    names = ("calibration", "peer", "ours, s", "theirs, s", "theirs / ours", "ours of target", "theirs of target")
    screen.print(table("side by side in one process, processor seconds", names, [row for _, _, row, _ in found]))
    methods = measured(every, {"runs": 1 if quick else 3}, limit=600, memory=memory, enough=0.0)
    names = ("method or shape", "seconds", "height", "of target", "label")
    title = methods.failure or f"every method and shape: {RUN['steps']} steps, epsilon {RUN['epsilon']:g}"
    screen.print(table(title, names, [line(*item) for item in methods.result.items()]))
    if out is not None:
        kept = [{"what": s.what, "peer": peer, "inputs": s.inputs, "measured": asdict(m)} for s, peer, _, m in found]
        out.write_text(json.dumps({"beside": kept, "methods": methods.result}, indent=1))


if __name__ == "__main__":
    main()
