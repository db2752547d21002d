"""Random ledgers from a fixed seed, by every accountant: bounds, labels and refusals."""

from functools import partial
from typing import Any

import numpy as np

from freeze.renames import call, get, kw, name

LEDGERS = 300
ACCOUNTANTS = (
    "pld", "rdp", "gdp", "basic", "advanced", "optimal", "moments", "zcdp", "tcdp", "basic-wei", "advanced-wei",
    "optimal-wei", "proactive",
)  # fmt: skip
RELATIONS = (*["zero-out"] * 5, *["add-remove"] * 2, "replace")


KINDS = ("poisson", "poisson", "poisson", "poisson", "full", "truncated", "fixed-size", "shuffled", "mixed")
SIZE = 1000  # of truncated batches


def draw(number: int) -> tuple[list[dict[str, Any]], str, float]:
    """Steps with their counts, a relation and a delta: often what trains, sometimes what no one would run."""
    rng = np.random.Generator(np.random.Philox(key=20240101, counter=number << 64))  # streams that do not overlap

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    kind, rows, rate = KINDS[number % len(KINDS)], [], between(1e-4, 0.5)
    for _ in range(int(rng.integers(1, 5))):
        here = rate if kind == "shuffled" or rng.random() < 0.5 else between(1e-4, 0.5)
        if kind == "full" or (kind == "mixed" and rng.random() < 0.5):
            here = 1.0
        sampling = kind if kind in ("fixed-size", "shuffled") else "poisson"
        if kind == "truncated":
            cap = SIZE * here + rng.integers(1, 12) * (SIZE * here) ** 0.5 + 1
            sampling = f"truncated-poisson:cap={int(cap)},size={SIZE}"
        noise = between(0.4, 12) * (8 if here == 1 else 1)
        count = int(between(1, 300))
        rows.append({"noise": noise, "rate": here, "clip": between(0.1, 3), "sampling": sampling, "count": count})
    relation = "replace" if kind == "fixed-size" else RELATIONS[int(rng.integers(len(RELATIONS)))]
    return rows, relation, float(10 ** rng.uniform(-9, -3))


def made(rows: list[dict[str, Any]]) -> Any:
    sampling = name("privet.accounting.sampling:sampling")
    ledger = call("privet:Ledger")
    for row in rows:
        step = call(
            "privet:Step", noise=row["noise"], rate=row["rate"], clip=row["clip"], sampling=sampling(row["sampling"])
        )
        get("Ledger", ledger, "add")(step, row["count"])
    return ledger


def outcome(work: Any) -> dict[str, Any]:
    """What it gives, or that and how it refuses; any other error ends the probe."""
    try:
        return work()
    except name("privet.errors:PrivetError") as error:
        return {"refused": type(error).__name__, "refusal": str(error)}


def spend(ledger: Any, delta: float, accountant: str, relation: str) -> dict[str, Any]:
    found = call("privet:spent", ledger, delta, accountant=accountant, relation=relation)
    return {
        "bounds": [get("Guarantee", found, "epsilon_lower"), get("Guarantee", found, "epsilon")],
        "label": found.label, "method": found.method, "sampling": found.sampling, "steps": found.steps,
        "dict": found.as_dict(),
    }  # fmt: skip


def probe(*, quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"accountants": sorted(name("privet.accounting:registry").names())}
    for number in range(0, LEDGERS, 6 if quick else 1):
        found[f"ledger {number}"] = priced(number)
    return found


def priced(number: int) -> dict[str, Any]:
    rows, relation, delta = draw(number)
    ledger = made(rows)
    case: dict[str, Any] = {"columns": [ledger.steps, len(list(ledger))]}
    for accountant in ACCOUNTANTS:
        case[accountant] = outcome(partial(spend, ledger, delta, accountant, relation))
    if number % 10 == 0:
        case["curve"] = outcome(partial(curve, ledger, delta, relation))
        case["delta at 1"] = outcome(lambda: {"delta": list(call("privet.accounting:delta_at", ledger, 1.0))})
    return case


def curve(ledger: Any, delta: float, relation: str) -> dict[str, Any]:
    found = name("privet:epsilon_curve")(ledger, delta, **kw("epsilon_curve", relation=relation))
    lower = get("EpsilonCurve", found, "lower")
    upper = get("EpsilonCurve", found, "upper").tolist()
    return {"upper": upper, "lower": None if lower is None else lower.tolist(), "label": found.label}
