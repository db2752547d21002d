"""The ledger of a run against its plan: what was charged must be what was planned."""

import time

from privet.accounting import Ledger
from privet.accounting.sampling import Sampling
from privet.auditing.finding import Finding, Verdict
from privet.training.run import Run

Row = tuple[float, float, Sampling, int]


def run_ledger(run: Run) -> Finding:
    """Whether each charged step has the noise, the rate and the sampling of the plan's; the clip may be learnt."""
    start = time.perf_counter()
    reasons = []
    if run.ledger.steps > len(run.plan.steps):
        reasons.append(f"{run.ledger.steps} steps are charged, and the plan has {len(run.plan.steps)}")
    elif rows(run.ledger) != rows(run.plan.ledger().first(run.ledger.steps)):
        reasons.append("a charged step has another noise, rate or sampling than the plan's")
    if run.spent.epsilon > run.plan.recipe.budget.epsilon:
        reasons.append(
            f"epsilon {run.spent.epsilon:.6g} is spent, and the budget is {run.plan.recipe.budget.epsilon:g}"
        )
    is_covered = run.private and not run.not_private and run.loop.void_from is None
    verdict: Verdict = "violation" if reasons else "consistent" if is_covered else "inconclusive"
    says = f"{run.ledger.steps} of {len(run.plan.steps)} steps are charged"
    if not run.private:
        says += f"; seed {run.seed} makes the noise again: reproducible, not private"
    if run.not_private:
        says += f"; {run.not_private}: read off the records without noise, which no ledger shows"
    if run.loop.void_from is not None:
        says += f"; guarantee: none, {run.loop.why_void}"
    return Finding(
        kind="ledger", verdict=verdict, says=says, reasons=tuple(reasons), alarm=0.0,
        seconds=time.perf_counter() - start, numbers={"steps": run.ledger.steps},
    )  # fmt: skip


def rows(ledger: Ledger) -> list[Row]:
    """Runs of steps that cost the same, whatever their clips."""
    found: list[Row] = []
    for step, count in ledger:
        key = (step.noise, step.rate, step.sampling)
        if found and found[-1][:3] == key:
            count += found.pop()[3]
        found.append((*key, count))
    return found
