"""The ledger of a run against its plan: what was charged must be what was planned."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from privet import _check
from privet.accounting import Ledger, Step
from privet.accounting.sampling import POISSON, Sampling
from privet.accounting.tradeoff import Curve
from privet.auditing import broken_mechanisms
from privet.auditing.bounds import equivalent_mu
from privet.auditing.distinguishing import distinguish
from privet.auditing.finding import ALARM, Audit, Finding, Verdict
from privet.auditing.mechanism import EngineStep, Mechanism, MechanismClaim
from privet.auditing.neighbours import SIZE, NeighbouringPair, neighbouring_pairs as all_scenes
from privet.auditing.one_run import LEAST_CANARIES, one_run
from privet.auditing.replay import most_unlike_pairs, replay
from privet.clipping.rule import clipping_rule, is_adaptive
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import Randomness
from privet.planning import METHODS, Plan, method, plan
from privet.training.checks import check_preprocessing
from privet.training.run import Run

Row = tuple[float, float, Sampling, int]


def audit_ledger(run: Run) -> Finding:
    """Whether each charged step has the noise, the rate and the sampling of the plan's; the clip may be learnt."""
    start = time.perf_counter()
    reasons = []
    if run.ledger.steps > len(run.plan.steps):
        reasons.append(f"{run.ledger.steps} steps are charged, and the plan has {len(run.plan.steps)}")
    elif group_equal_steps(run.ledger) != group_equal_steps(run.plan.ledger().first(run.ledger.steps)):
        reasons.append("a charged step has another noise, rate or sampling than the plan's")
    if run.spent.epsilon > run.plan.recipe.budget.epsilon:
        reasons.append(
            f"epsilon {run.spent.epsilon:.6g} is spent, and the budget is {run.plan.recipe.budget.epsilon:g}"
        )
    is_covered = run.noise_is_secret and not run.non_private_preprocessing and run.loop.void_from is None
    verdict: Verdict = "violation" if reasons else "consistent" if is_covered else "inconclusive"
    says = f"{run.ledger.steps} of {len(run.plan.steps)} steps are charged"
    if not run.noise_is_secret:
        says += f"; seed {run.seed} makes the noise again: reproducible, not private"
    if run.non_private_preprocessing:
        says += f"; {run.non_private_preprocessing}: read off the records without noise, which no ledger shows"
    if run.loop.void_from is not None:
        says += f"; guarantee: none, {run.loop.void_text}"
    return Finding(
        kind="ledger", verdict=verdict, says=says, reasons=tuple(reasons), significance=0.0,
        seconds=time.perf_counter() - start, numbers={"steps": run.ledger.steps},
    )  # fmt: skip


def group_equal_steps(ledger: Ledger) -> list[Row]:
    """Runs of steps that cost the same, whatever their clips."""
    found: list[Row] = []
    for step, count in ledger:
        key = (step.noise_multiplier, step.sample_rate, step.sampling)
        if found and found[-1][:3] == key:
            count += found.pop()[3]
        found.append((*key, count))
    return found


Kind = Literal["replay", "step", "one-run"]
KINDS: tuple[str, ...] = get_args(Kind)
NAMED_STEPS = 8  # of the plan by which a method is audited
RHO = 2.0
SAMPLED = "sampled at rate 1/2: "
MOST_STEPS = 2000  # of a plan that is run once without being asked

Tell = Callable[[str], None]


def audit(
    what: "str | Plan | Run | Mechanism", *, kinds: Sequence[str] | None = None, uncertified: bool = False,
    samples: int = 2000, canaries: int = 1000, task: Task | None = None,
    scenes: Sequence[NeighbouringPair] | None = None, claim: Curve | None = None, significance: float = ALARM,
    delta: float = 1e-5, randomness: Randomness | None = None, progress: Tell | None = None,
) -> Audit:  # fmt: skip
    """Test a claim by attack: does this mechanism give away no more than it is charged for?

    `what` is a method's name (`privet list methods`), a negative control's, a plan, a run, or your own: an object with
    `claim` and a call (records, generator) -> {name: tensor}, whose coins and noise all come from `randomness`.

    Args:
        kinds: of replay (deterministic), step (statistical) and one-run (a whole run of a plan); by default all that
            fit and take seconds: replay and step, and one-run for plans of at most 2,000 steps.
        samples: releases of each world, for step.
        canaries: in the one run; `task` makes them mislabelled examples in place of a block of their own.
        scenes: neighbours of your own, in place of those made here.
        claim: for a plan, the curve that is claimed in place of the plan's own.
        significance: the chance that a kind of test accuses a mechanism that keeps its claim.

    >>> audit("quarter-noise", kinds=["replay"]).verdict
    'violation'
    >>> audit("noisy-sgd", kinds=["replay"]).verdict
    'consistent'
    """
    _check.between(0, 1, significance=significance)
    _check.delta(delta)
    if task is not None:
        check_preprocessing(task.non_private_preprocessing)  # the run is held against the plan's curve
    parts, name, planned = _resolve_mechanisms(what, uncertified=uncertified)
    asked = _resolve_kinds(kinds, planned)
    tell = (lambda _: None) if progress is None else progress
    findings: list[Finding] = [audit_ledger(what)] if isinstance(what, Run) else []
    tested = sum(label != SAMPLED for label in parts)
    for label, mechanism in parts.items():
        given = _resolve_pairs(mechanism.claim) if scenes is None else tuple(scenes)
        if "replay" in asked:
            findings.append(_add_label(replay(mechanism, given, progress=tell), label))
        if "step" in asked and label != SAMPLED:
            tell(f"{label}choosing neighbouring datasets")
            chosen = most_unlike_pairs(mechanism, given, 1)
            found = distinguish(
                mechanism, chosen, samples=samples, significance=significance / tested, delta=delta,
                randomness=randomness,
                progress=tell,
            )  # fmt: skip
            findings.append(_add_label(found, label))
    if "one-run" in asked and planned is not None:
        findings.append(
            one_run(
                planned, canaries=min(canaries, planned.recipe.dataset_size),
                kind="block" if task is None else "examples",
                task=task, claim=claim, significance=significance, randomness=randomness,
                progress=lambda done, of: tell(f"one run: step {done} of {of}"),
            )
        )  # fmt: skip
    claimed = what if isinstance(what, Run) else planned
    charges = (label + _describe_charge(mechanism.claim) for label, mechanism in parts.items())
    claim_text = "; ".join(charges) if claimed is None else str(claimed.guarantee)
    return Audit(mechanism=name, claim=claim_text, findings=tuple(findings))


def _resolve_kinds(kinds: Sequence[str] | None, planned: Plan | None) -> tuple[str, ...]:
    if kinds is None:
        return KINDS if planned is not None and _can_audit_one_run(planned) else ("replay", "step")
    if isinstance(kinds, str) or not kinds:
        raise InvalidValue(f"kinds={kinds!r} must be a list of {', '.join(KINDS)}. Give ['replay'], for example.")
    for kind in kinds:
        _check.one_of(KINDS, kind=kind)
    if "one-run" in kinds and planned is None:
        raise InvalidValue("kind='one-run' needs a plan. It is a run of all its steps. Give a plan.")
    return tuple(kinds)


def _can_audit_one_run(planned: Plan) -> bool:
    """Whether a run of the plan is short, and one that canaries can be put in."""
    budget, rule = planned.recipe.budget, clipping_rule(planned.rule, uncertified=planned.is_unsound)
    if len(planned.steps) > MOST_STEPS or planned.recipe.dataset_size < LEAST_CANARIES or is_adaptive(rule):
        return False
    return (budget.adjacency, budget.unit, planned.steps.sampling) == ("zero-out", "example", POISSON)


# --- what is audited ---------------------------------------------------------------------------------


def _resolve_mechanisms(what: Any, *, uncertified: bool) -> tuple[dict[str, Mechanism], str, Plan | None]:
    """Mechanisms by what is said of them, the name of the whole, and the plan if there is one."""
    if isinstance(what, Run):
        says = f"run {what.folder}: its ledger, and its plan by new runs, rule {what.plan.rule}"
        return plan_mechanisms(what.plan), says, what.plan
    if isinstance(what, Plan):
        return plan_mechanisms(what), f"plan {what.hash.rpartition(':')[2][:12]}, rule {what.rule}", what
    if isinstance(what, str):
        if what in METHODS:
            published = " as published" if uncertified else ""
            return plan_mechanisms(method_plan(what, uncertified=uncertified)), f"method {what}{published}", None
        if what in broken_mechanisms.control_names():
            says = f"control {what}: {broken_mechanisms.describe_fault(what)}"
            return {"": broken_mechanisms.control(what)}, says, None
        known = [*METHODS, *broken_mechanisms.control_names()]
        raise InvalidValue(
            f"what={what!r} is neither a method nor a control.{_check.suggestion(what, known)} "
            f"Methods: {', '.join(METHODS)}. Controls: {', '.join(broken_mechanisms.control_names())}."
        )
    if not callable(what) or not isinstance(getattr(what, "claim", None), MechanismClaim):
        raise InvalidValue(
            f"what={what!r} must be a name, a plan, a run, or an object that can be called and has `claim`. "
            "It says what is charged. Use auditing.mechanism_claim(step, l2_bound=, divisor=)."
        )
    return {"": what}, type(what).__name__, None


def method_plan(
    name: str, *, uncertified: bool = False, steps: int = NAMED_STEPS, noise_multiplier: float = 1.0
) -> Plan:
    """A short plan of a method at noise 1 and rate 1, where audits see most."""
    row = method(name)
    given: dict[str, Any] = dict.fromkeys(row.needs, RHO)
    return plan(
        delta=1e-5, dataset_size=SIZE, batch_size=SIZE, steps=steps, method=name, noise_multiplier=noise_multiplier,
        solve="epsilon",
        uncertified=uncertified, **given,
    )  # fmt: skip


def plan_mechanisms(planned: Plan) -> dict[str, Mechanism]:
    """The first and the last step of a plan, if they differ, on the records of the scenes, all of which take part.

    Sampling hides a step; without it each is held against G_mu with mu = 1 / noise, which tests more. What sampling
    adds is tested by replay on half of the records (the last part), and by one-run at the plan's own rate.
    """
    places = {"first step: ": 0, "last step: ": len(planned.steps) - 1}
    steps = {label: replace(planned.steps[place], sample_rate=1.0, sampling=POISSON) for label, place in places.items()}
    if len(set(steps.values())) == 1:
        steps = {"": steps["first step: "]}
    parts = {label: _engine_mechanism(planned, one) for label, one in steps.items()}
    if planned.steps.sample_rate < 1 and planned.steps.sampling == POISSON:
        parts[SAMPLED] = _engine_mechanism(planned, replace(next(iter(steps.values())), sample_rate=0.5))
    return parts


def _engine_mechanism(planned: Plan, one: Step) -> Mechanism:
    return EngineStep(
        rule=planned.rule, step=one, batch=one.sample_rate * SIZE, adjacency=planned.recipe.budget.adjacency,
        uncertified=planned.is_unsound,
    )  # fmt: skip


def _resolve_pairs(which: MechanismClaim) -> tuple[NeighbouringPair, ...]:
    if which.adjacency == "replace-one":
        raise Unsupported(
            "adjacency='replace-one' has no built-in neighbouring datasets. They set an example to null, or remove it. "
            "Give scenes=."
        )
    return all_scenes(adjacency=which.adjacency, clip=which.steps[0].clipping_norm)


def _add_label(found: Finding, label: str) -> Finding:
    return replace(found, says=label + found.says) if label else found


def _describe_charge(which: MechanismClaim) -> str:
    first = which.steps[0]
    many = f"{len(which.steps)} steps" if len(which.steps) > 1 else "one step"
    rate = f", {first.sampling} sampling at rate {first.sample_rate:g}" if which.is_sampled else ""
    noise, mu = f"{first.noise_multiplier:.4g}", f"{equivalent_mu(which.curve):.3g}"
    return f"{many} with noise {noise}{rate}, {which.adjacency}: like mu = {mu}"
