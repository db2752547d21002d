"""audit: the one entry. A mechanism, a method or a control by name, or a plan in; findings and a verdict out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from privet import _check
from privet.accounting import Step
from privet.accounting.sampling import POISSON
from privet.accounting.tradeoff import Curve
from privet.auditing import controls
from privet.auditing.bounds import mu_like
from privet.auditing.finding import ALARM, Audit, Finding
from privet.auditing.mechanism import Declared, Mechanism
from privet.auditing.one_run import LEAST_CANARIES, one_run
from privet.auditing.replay import replay, worst
from privet.auditing.run_ledger import run_ledger
from privet.auditing.scenes import SIZE, Scene
from privet.auditing.scenes import scenes as all_scenes
from privet.auditing.sound import EngineStep
from privet.auditing.step import step
from privet.data.task import Task
from privet.engine.clip import is_adaptive, rule_for
from privet.engine.randomness import Randomness
from privet.errors import InvalidValue, Unsupported
from privet.planning import METHODS, Plan, method, plan
from privet.training.gate import check_covered
from privet.training.run import Run

Kind = Literal["replay", "step", "one-run"]
KINDS: tuple[str, ...] = get_args(Kind)
NAMED_STEPS = 8  # of the plan by which a method is audited
RHO = 2.0
SAMPLED = "sampled at rate 1/2: "
MOST_STEPS = 2000  # of a plan that is run once without being asked

Tell = Callable[[str], None]


def audit(
    what: "str | Plan | Run | Mechanism", *, kinds: Sequence[str] | None = None, as_published: bool = False,
    samples: int = 2000, canaries: int = 1000, task: Task | None = None, scenes: Sequence[Scene] | None = None,
    claim: Curve | None = None, alarm: float = ALARM, delta: float = 1e-5, generator: Randomness | None = None,
    progress: Tell | None = None,
) -> Audit:  # fmt: skip
    """Test a claim by attack: does this mechanism give away no more than it is charged for?

    `what` is a method's name (`privet list methods`), a negative control's, a plan, a run, or your own: an object with
    `declared` and a call (records, generator) -> {name: tensor}, whose coins and noise all come from `generator`.

    Args:
        kinds: of replay (deterministic), step (statistical) and one-run (a whole run of a plan); by default all that
            fit and take seconds: replay and step, and one-run for plans of at most 2,000 steps.
        samples: releases of each world, for step.
        canaries: in the one run; `task` makes them mislabelled examples in place of a block of their own.
        scenes: neighbours of your own, in place of those made here.
        claim: for a plan, the curve that is claimed in place of the plan's own.
        alarm: the chance that a kind of test accuses a mechanism that keeps its claim.

    >>> audit("quarter-noise", kinds=["replay"]).verdict
    'violation'
    >>> audit("noisy-sgd", kinds=["replay"]).verdict
    'consistent'
    """
    _check.between(0, 1, alarm=alarm)
    _check.delta(delta)
    if task is not None:
        check_covered(task.not_private)  # the run is held against the plan's curve
    parts, name, planned = _parts(what, as_published=as_published)
    asked = _kinds(kinds, planned)
    tell = (lambda _: None) if progress is None else progress
    findings: list[Finding] = [run_ledger(what)] if isinstance(what, Run) else []
    tested = sum(label != SAMPLED for label in parts)
    for label, mechanism in parts.items():
        given = _scenes(mechanism.declared) if scenes is None else tuple(scenes)
        if "replay" in asked:
            findings.append(_labelled(replay(mechanism, given, progress=tell), label))
        if "step" in asked and label != SAMPLED:
            tell(f"{label}choosing neighbouring datasets")
            chosen = worst(mechanism, given, 1)
            found = step(
                mechanism, chosen, samples=samples, alarm=alarm / tested, delta=delta, generator=generator,
                progress=tell,
            )  # fmt: skip
            findings.append(_labelled(found, label))
    if "one-run" in asked and planned is not None:
        findings.append(
            one_run(
                planned, canaries=min(canaries, planned.recipe.size), kind="block" if task is None else "examples",
                task=task, claim=claim, alarm=alarm, generator=generator,
                progress=lambda done, of: tell(f"one run: step {done} of {of}"),
            )
        )  # fmt: skip
    claimed = what if isinstance(what, Run) else planned
    return Audit(mechanism=name, claim=_claim(parts, claimed), findings=tuple(findings))


def _kinds(kinds: Sequence[str] | None, planned: Plan | None) -> tuple[str, ...]:
    if kinds is None:
        return KINDS if planned is not None and _fits_one_run(planned) else ("replay", "step")
    if isinstance(kinds, str) or not kinds:
        raise InvalidValue(f"kinds={kinds!r} must be a list of {', '.join(KINDS)}. Give ['replay'], for example.")
    for kind in kinds:
        _check.one_of(KINDS, kind=kind)
    if "one-run" in kinds and planned is None:
        raise InvalidValue("kind='one-run' needs a plan. It is a run of all its steps. Give a plan.")
    return tuple(kinds)


def _fits_one_run(planned: Plan) -> bool:
    """Whether a run of the plan is short, and one that canaries can be put in."""
    budget, rule = planned.recipe.budget, rule_for(planned.rule, as_published=planned.is_unsound)
    if len(planned.steps) > MOST_STEPS or planned.recipe.size < LEAST_CANARIES or is_adaptive(rule):
        return False
    return (budget.relation, budget.unit, planned.steps.sampling) == ("zero-out", "example", POISSON)


# --- what is audited ---------------------------------------------------------------------------------


def _parts(what: Any, *, as_published: bool) -> tuple[dict[str, Mechanism], str, Plan | None]:
    """Mechanisms by what is said of them, the name of the whole, and the plan if there is one."""
    if isinstance(what, Run):
        return (
            of_plan(what.plan),
            f"run {what.folder}: its ledger, and its plan by new runs, rule {what.plan.rule}",
            what.plan,
        )
    if isinstance(what, Plan):
        return of_plan(what), f"plan {what.hash.rpartition(':')[2][:12]}, rule {what.rule}", what
    if isinstance(what, str):
        if what in METHODS:
            published = " as published" if as_published else ""
            return of_plan(method_plan(what, as_published=as_published)), f"method {what}{published}", None
        if what in controls.names():
            return {"": controls.control(what)}, f"control {what}: {controls.why(what)}", None
        known = [*METHODS, *controls.names()]
        raise InvalidValue(
            f"what={what!r} is neither a method nor a control.{_check.suggestion(what, known)} "
            f"Methods: {', '.join(METHODS)}. Controls: {', '.join(controls.names())}."
        )
    if not callable(what) or not isinstance(getattr(what, "declared", None), Declared):
        raise InvalidValue(
            f"what={what!r} must be a name, a plan, a run, or an object that can be called and has `declared`. "
            "It says what is charged. Use auditing.declared(step, norm_bound=, divisor=)."
        )
    return {"": what}, type(what).__name__, None


def method_plan(name: str, *, as_published: bool = False, steps: int = NAMED_STEPS, noise: float = 1.0) -> Plan:
    """A short plan of a method at noise 1 and rate 1, where audits see most.

    >>> [round(step.noise, 3) for step in method_plan("growing-mu", steps=2).steps]
    [0.707, 0.5]
    """
    row = method(name)
    given: dict[str, Any] = dict.fromkeys(row.needs, RHO)
    return plan(
        delta=1e-5, size=SIZE, batch=SIZE, steps=steps, method=name, noise=noise, solve="epsilon",
        as_published=as_published, **given,
    )  # fmt: skip


def of_plan(planned: Plan) -> dict[str, Mechanism]:
    """The first and the last step of a plan, if they differ, on the records of the scenes, all of which take part.

    Sampling hides a step; without it each is held against G_mu with mu = 1 / noise, which tests more. What sampling
    adds is tested by replay on half of the records (the last part), and by one-run at the plan's own rate.
    """
    places = {"first step: ": 0, "last step: ": len(planned.steps) - 1}
    steps = {label: replace(planned.steps[place], rate=1.0, sampling=POISSON) for label, place in places.items()}
    if len(set(steps.values())) == 1:
        steps = {"": steps["first step: "]}
    parts = {label: _engine(planned, one) for label, one in steps.items()}
    if planned.steps.rate < 1 and planned.steps.sampling == POISSON:
        parts[SAMPLED] = _engine(planned, replace(next(iter(steps.values())), rate=0.5))
    return parts


def _engine(planned: Plan, one: Step) -> Mechanism:
    return EngineStep(
        rule=planned.rule, step=one, batch=one.rate * SIZE, relation=planned.recipe.budget.relation,
        as_published=planned.is_unsound,
    )  # fmt: skip


def _scenes(which: Declared) -> tuple[Scene, ...]:
    if which.relation == "replace":
        raise Unsupported(
            "relation='replace' has no built-in neighbouring datasets. They set an example to null, or remove it. "
            "Give scenes=."
        )
    return all_scenes(relation=which.relation, clip=which.steps[0].clip)


def _labelled(found: Finding, label: str) -> Finding:
    return replace(found, says=label + found.says) if label else found


def _claim(parts: dict[str, Mechanism], claimed: "Plan | Run | None") -> str:
    if claimed is not None:
        return str(claimed.guarantee)
    return "; ".join(label + _charged(mechanism.declared) for label, mechanism in parts.items())


def _charged(which: Declared) -> str:
    first = which.steps[0]
    many = f"{len(which.steps)} steps" if len(which.steps) > 1 else "one step"
    rate = f", {first.sampling} sampling at rate {first.rate:g}" if which.is_sampled else ""
    return f"{many} with noise {first.noise:.4g}{rate}, {which.relation}: like mu = {mu_like(which.curve):.3g}"
