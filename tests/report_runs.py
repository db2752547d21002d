"""Runs for tests of reports: one of each kind, a few steps each, and what audits and attacks leave in them."""

import json
from pathlib import Path
from typing import Any

from privet.ledger import reading as ledger_reading
from privet.planning import Plan, plan
from privet.training.train import train
from tiny_task import SIZE

NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)> | `x` &amp; \"'"
PIXELS = [[[0], [255]], [[128], [7]]]


def tiny_plan(**given: Any) -> Plan:
    return plan(**{"epsilon": 3.0, "delta": 1e-3, "dataset_size": SIZE, "batch_size": 20, "steps": 12} | given)


def made_runs(root: Path) -> dict[str, Path]:
    """complete, raw (private figures were shown), seeded, unsound, tuned, stopped (by its outputs) and unfinished."""
    task, found = "tiny_task:task", {}
    dynamic = tiny_plan(steps=4, method="dynamic", rho_noise=1.5, rho_clip=1.5)
    train(dynamic, task, out=root / "complete")
    train(tiny_plan(), task, out=root / "raw", show_private=True)
    train(tiny_plan(), task, out=root / "seeded", seed=3)
    unsound = plan(delta=1e-3, dataset_size=SIZE, batch_size=20, steps=4, noise_multiplier=2.0, solve="epsilon",
                   method="auto-linear", uncertified=True)  # fmt: skip
    train(unsound, task, out=root / "unsound", uncertified=True)
    train(tiny_plan(steps=4, trials_mean=3.0, trial_count_distribution="geometric"), task, out=root / "tuned")
    for name in ("stopped", "unfinished"):
        train(tiny_plan(), task, out=root / name, stop_at="accuracy=0")
    changed(root / "unfinished" / "run.json", end=None)
    for name in ("complete", "raw", "seeded", "unsound", "tuned", "stopped", "unfinished"):
        found[name] = root / name
    return found


def changed(file: Path, **values: Any) -> None:
    """The JSON file with other values."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def evidence(run: Path, kind: str, found: dict[str, Any]) -> dict[str, Any]:
    """The content of an evidence file."""
    hash_ = json.loads((run / "run.json").read_text())["plan"]
    name = ledger_reading.read_ledger(run).header.run
    return {"format": kind, "version": 1, "plan": hash_, "run": name, "options": {}, "found": found}


def audit_of(run: Path, *, verdict: str = "consistent", **bound: Any) -> dict[str, Any]:
    guarantee = {
        "epsilon": 0.4321, "epsilon_lower": 0.4321, "delta": 1e-5, "label": "empirical", "method": "direct",
        "adjacency": "zero-out", "sampling": "poisson", "unit": "example", "steps": 1,
    } | bound  # fmt: skip
    row = {
        "kind": "step", "verdict": verdict, "says": f"said {NASTY}", "reasons": [], "confidence": 0.999, "mu": 0.1,
        "mu_claimed": 0.2, "empirical": guarantee, "samples_needed": None, "seconds": 0.1,
    }  # fmt: skip
    return evidence(run, "privet-audit", {"mechanism": "x", "claim": "y", "verdict": verdict, "findings": [row]})


def attack_of(run: Path, **changes: Any) -> dict[str, Any]:
    row = {
        "method": "non-private", "attack": "invert-l2", "step": 1, "victims": 37, "succeeded": 31, "control": 0,
        "limits": [0.68, 0.93], "ceiling": None, "violation": False,
        "frames": {"0": PIXELS, "end": PIXELS, "control": PIXELS},
    } | changes  # fmt: skip
    return evidence(run, "privet-attack", {"task": NASTY, "truth": PIXELS, "outcomes": [row]})


def plain_of(run: Path, score: float = 0.98765) -> dict[str, Any]:
    return evidence(run, "privet-plain", {"measure": "accuracy", "score": score, "steps": 9})
