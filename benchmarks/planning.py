"""How long calibration takes, for every method and shape, on one core, beside the peers on what they can do.

    python benchmarks/planning.py                  everything; peers get 60 s each
    python benchmarks/planning.py --quick          Privet only, under a minute

Peers calibrate constant noise only: opacus `get_noise_multiplier` and dp-accounting `calibrate_dp_mechanism`.
`of target` is the certified epsilon of the noise that was found over the target: above 1 the budget is exceeded.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from _measure import Function, Measured, Result, measured, one_core

RUN = {"size": 60000, "batch": 256, "epochs": 60, "delta": 1e-5, "epsilon": 2.0}
RHOS = {"rho_noise": 3.3, "rho_clip": 3.3}
SHAPES = ("constant", "exponential:end=0.3", "linear:end=0.3", "cosine:end=0.3", "time:decay=0.001",
          "step:factor=0.5,every=4000", "cyclic:half=500,decay=0.001", "exponential:end=3")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One calibration: who does it, and with which inputs."""

    who: str
    what: str
    maker: Callable[[], Function]
    inputs: dict[str, Any]


def privet() -> Function:
    from privet.planning import plan

    def calibrate(**given: Any) -> Result:
        found = plan(**given)
        proven = None if found.certified is None else found.certified.epsilon
        return {"noise": found.steps[0].noise, "certified": proven, "label": found.guarantee.label}

    return calibrate


def opacus_rdp() -> Function:
    return _opacus("rdp")


def opacus_prv() -> Function:
    return _opacus("prv")


def _opacus(accountant: str) -> Function:
    from opacus.accountants.utils import get_noise_multiplier

    def calibrate(*, epsilon: float, delta: float, size: int, batch: int, epochs: int) -> Result:
        steps = -(-epochs * size // batch)
        noise = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=batch / size, steps=steps, accountant=accountant,
            epsilon_tolerance=1e-4 * epsilon,
        )  # fmt: skip
        return {"noise": float(noise)}

    return calibrate


def dp_pld() -> Function:
    from dp_accounting.pld import PLDAccountant

    return _dp_accounting(PLDAccountant)


def dp_rdp() -> Function:
    from dp_accounting.rdp import RdpAccountant

    return _dp_accounting(RdpAccountant)


def _dp_accounting(accountant: Any) -> Function:
    import dp_accounting

    def calibrate(*, epsilon: float, delta: float, size: int, batch: int, epochs: int) -> Result:
        steps = -(-epochs * size // batch)

        def event(noise: float) -> Any:
            sampled = dp_accounting.PoissonSampledDpEvent(batch / size, dp_accounting.GaussianDpEvent(noise))
            return dp_accounting.SelfComposedDpEvent(sampled, steps)

        noise = dp_accounting.calibrate_dp_mechanism(
            accountant,
            event,
            epsilon,
            delta,
            bracket_interval=dp_accounting.ExplicitBracketInterval(0.5, 5.0),
            tol=1e-4,
        )
        return {"noise": float(noise)}

    return calibrate


PEERS = (
    ("opacus RDP", opacus_rdp),
    ("opacus PRV", opacus_prv),
    ("dp-accounting RDP", dp_rdp),
    ("dp-accounting PLD", dp_pld),
)


def cases(quick: bool) -> list[Case]:
    """Every method by default and as published, every shape, and the peers on constant noise."""
    from privet.planning import METHODS

    found = [
        Case(who="privet", what=shape, maker=privet, inputs=RUN if shape == "constant" else RUN | {"noise": shape})
        for shape in SHAPES
    ]
    for row in METHODS.values():
        given = RUN | {"method": row.name} | {key: RHOS[key] for key in row.needs}
        found.append(Case(who="privet", what=row.name, maker=privet, inputs=given))
        what = f"{row.name}, as published"
        found.append(Case(who="privet", what=what, maker=privet, inputs=given | {"as_published": True}))
    return found if quick else [*found, *(Case(who=n, what="constant", maker=m, inputs=RUN) for n, m in PEERS)]


def certified(result: Result) -> float | None:
    """What the noise that was found costs, certified."""
    if "certified" in result:
        value: float | None = result["certified"]
        return value
    from privet.planning import plan

    given = {key: value for key, value in RUN.items() if key != "epsilon"}
    return plan(**given, noise=result["noise"], solve="epsilon").guarantee.epsilon


def line(case: Case, found: Measured) -> list[str]:
    if found.failure:
        return [case.who, case.what, found.failure, "", "", ""]
    proven = certified(found.result)
    share = "none" if proven is None else f"{proven / RUN['epsilon']:.5f}"
    label = found.result.get("label", "")
    return [
        case.who,
        case.what,
        f"{found.seconds:.3f}",
        f"{found.cpu:.3f}",
        f"{found.result['noise']:.5g}",
        share + f" {label}",
    ]


@click.command()
@click.option("--quick", is_flag=True, help="Privet only.")
@click.option("--limit", default=60.0, show_default=True, help="Seconds each measurement may take.")
@click.option("--memory", default=4.0, show_default=True, help="GB each measurement may take.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Keep all numbers in this file.")
def main(quick: bool, limit: float, memory: float, out: Path | None) -> None:
    """Calibration time of every method and shape, and of the peers."""
    one_core()
    table = Table(title=f"calibration to epsilon {RUN['epsilon']:g}, 14063 steps", box=box.SIMPLE_HEAD)
    for name in ("who", "what", "seconds", "processor", "first noise", "of target"):
        table.add_column(name, no_wrap=True)
    kept = []
    for case in cases(quick):
        found = measured(case.maker, case.inputs, limit=limit, memory=memory, enough=0.5)
        table.add_row(*line(case, found))
        kept.append({"who": case.who, "what": case.what, "inputs": case.inputs, "measured": asdict(found)})
    Console(width=130, highlight=False, markup=False).print(table)
    if out is not None:
        out.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
