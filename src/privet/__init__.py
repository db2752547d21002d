"""Privet: differentially private deep learning that plans, spends and proves.

The names below are the public ones. Each is loaded when first used, so `import privet` costs nothing.

>>> from privet import Ledger, Step, spent
>>> ledger = Ledger()
>>> ledger.add(Step(noise_multiplier=1.1, sample_rate=256 / 60000), count=14063)
>>> print(spent(ledger, delta=1e-5).label)
certified
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privet import errors as errors
    from privet.accounting import (
        Budget as Budget,
        Guarantee as Guarantee,
        Ledger as Ledger,
        Step as Step,
        spent as spent,
    )
    from privet.accounting.epsilon_curve import epsilon_curve as epsilon_curve
    from privet.attacks.attack import attack as attack
    from privet.auditing.audit import audit as audit
    from privet.planning import Plan as Plan, Recipe as Recipe
    from privet.planning.plan import plan as plan
    from privet.reporting.report import Report as Report, report as report
    from privet.schedules import schedule as schedule
    from privet.training.run import Run as Run
    from privet.training.train import train as train
    from privet.training.training import Training as Training

    __version__: str

_HOME = {
    "Budget": "privet.accounting", "Guarantee": "privet.accounting", "Ledger": "privet.accounting",
    "Plan": "privet.planning", "Recipe": "privet.planning", "Report": "privet.reporting.report",
    "Run": "privet.training.run", "Step": "privet.accounting", "Training": "privet.training.training",
    "attack": "privet.attacks.attack", "audit": "privet.auditing.audit", "epsilon_curve": "privet.accounting",
    "plan": "privet.planning", "report": "privet.reporting.report", "schedule": "privet.schedules",
    "spent": "privet.accounting", "train": "privet.training.train",
}  # fmt: skip

__all__ = [
    "Budget", "Guarantee", "Ledger", "Plan", "Recipe", "Report", "Run", "Step", "Training", "attack", "audit",
    "epsilon_curve", "errors", "plan", "report", "schedule", "spent", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("privet")
        except PackageNotFoundError:  # run from a source tree that was never installed
            return "0+unknown"
    if name == "errors":
        return import_module("privet.errors")
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'privet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
