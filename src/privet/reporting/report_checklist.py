"""The checklist: questions that a reviewer of a differentially private system asks, answered from the run itself.

In the spirit of NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees (2025), which goes from the
parameters over the unit, the algorithms and the implementation to the handling of the data. The wording is ours. What a
program cannot know stays open.
"""

from privet.attacks.table import counted
from privet.reporting.report_blocks import Check, Checklist, Code, Prose, Section, State, Words
from privet.reporting.report_facts import RunFacts, ends
from privet.reporting.report_words import NEIGHBOURS, UNIT, noun
from privet.training.assumptions import NONE

SMALL = 0.1  # delta times the number of units, at most; at 1 one of them could be published in full


def checklist(facts: RunFacts, *, show_private: bool) -> Section:
    """All questions with their answers."""
    checks = (*_promise(facts), *_mechanism(facts), *_implementation(facts), *_handling(facts, show_private))
    counts = {state: sum(check.state == state for check in checks) for state in ("yes", "no", "open")}
    head = Prose(
        words=f"{counts['yes']} answered by the run, {counts['no']} answered with no, {counts['open']} open: a program "
        "cannot know them. In the spirit of NIST SP 800-226.", tone="quiet",
    )  # fmt: skip
    return Section(name="checklist", title="Checklist", blocks=(head, Checklist(checks=checks)))


def _promise(facts: RunFacts) -> list[Check]:
    run = facts.run
    g, size = run.guarantee, run.plan.recipe.size
    return [
        _check("Is the guarantee proven?", facts.is_guaranteed, (g, f", by {g.method}")),
        Check(question="Is delta small against the number of records?", state=_smallness(g.delta * size),
              answer=f"δ = {g.delta_text}, and 1/n = {1 / size:.2g}"),
        _assumed(facts),
        _check("Is the unit of privacy stated?", True, UNIT[g.unit]),
        Check(question="Does each person have one unit?", state="yes" if g.unit == "user" else "open",
              answer={"user": "the unit is a user's whole share", "client": "not known to Privet: a client may hold "
                      "many people, and a person may be with several clients"}.get(
                  g.unit, "not known to Privet: if people have several records, use the unit user")),
        _check("Is the neighbouring relation stated?", True,
               f"{g.relation}: " + NEIGHBOURS[g.relation].format(unit=noun(g.unit))),
    ]  # fmt: skip


def _assumed(facts: RunFacts) -> Check:
    question = "Is everything checked that the guarantee assumes of the training loop?"
    assumptions = facts.run.guarantee.assumptions
    if not assumptions:
        return Check(question=question, state="yes", answer=f"assumptions: {NONE}")
    return Check(question=question, state="open", answer=f"it assumes: {'; '.join(assumptions)}")


def _smallness(share: float) -> State:
    """Between a tenth of 1/n and 1/n people must judge."""
    return "yes" if share <= SMALL * (1 + 1e-9) else "open" if share < 1 else "no"


def _mechanism(facts: RunFacts) -> list[Check]:
    run = facts.run
    plan, g = run.plan, run.guarantee
    clip = "no proof covers it" if plan.is_unsound else f"clip {ends(plan.steps.clips[:1], up=True)} at the first step"
    ended = f"{run.steps} of {len(plan.steps)} steps are charged"
    ended += "" if run.why_none or facts.is_whole else "; the whole plan's epsilon is what holds"
    torn = f"; {len(run.notes)} torn lines are charged too" if run.notes else ""
    return [
        _check("Is what one unit can contribute bounded?", not plan.is_unsound, f"clipping rule {plan.rule}, {clip}"),
        _check("Is the sampling that ran the one that is accounted?", True,
               f"{g.sampling}: the plan's own sampler drew every batch"),
        _check("Is every release accounted?", True, f"{ended}; each was on the disk before its noise was drawn{torn}"),
        _check("Does the accounting bound the truth from above?", facts.is_guaranteed, f"{g.method} ({g.label})"),
        _tuning(facts),
        Check(question="Were other models or statistics released from the same records?",
              state="no" if run.not_private else "open",
              answer=f"{run.not_private}: read off them without noise" if run.not_private else
              "not known to this report: their costs add up"),
    ]  # fmt: skip


def _tuning(facts: RunFacts) -> Check:
    tuning = facts.run.plan.recipe.tuning
    question = "Is choosing the hyper-parameters accounted?"
    if tuning is not None:
        return Check(question=question, state="yes", answer=f"by the plan: {facts.run.together or 'all runs together'}")
    return Check(
        question=question, state="open",
        answer="the plan charges one run. If others were tried on these records, their choice gave something away",
    )  # fmt: skip


def _implementation(facts: RunFacts) -> list[Check]:
    about, run = facts.run.about, facts.run
    secure = about["secure_noise"]
    return [
        _check("Can nobody draw the noise again?", run.private, "every draw starts from the operating system's "
               "entropy" if run.private else f"the run has the seed {run.seed}: reproducible, not private"),
        Check(question="Is the noise safe against floating-point attacks?", state="yes" if secure else "open",
              answer="secure noise: every output is a whole number of cells" if secure else (
                  "Gaussian noise in floating point, proven in real arithmetic. ", Code(text="--secure-noise"),
                  " closes the gap")),
        _audited(facts),
        Check(question="Was it attacked?", state="open" if facts.attacks is None else
              "no" if any(one.is_violation for one in facts.attacks.outcomes) else "yes",
              answer=("not yet: ", Code(text="privet attack --run FOLDER")) if facts.attacks is None else
              f"{counted(facts.attacks.count, 'attack')}, see the evidence"),
        _check("Can the run be traced?", "weights" in facts.hashes and not facts.damage,
               "the weights cannot be read" if facts.damage else "versions and hashes are below"),
    ]  # fmt: skip


def _audited(facts: RunFacts) -> Check:
    question = "Was the mechanism audited?"
    if facts.audit is None:
        return Check(question=question, state="open", answer=("not yet: ", Code(text="privet audit --run FOLDER")))
    state: State = {"consistent": "yes", "violation": "no"}.get(facts.audit.verdict, "open")  # type: ignore[assignment]
    return Check(question=question, state=state, answer=f"{facts.audit.verdict}: see the evidence")


def _handling(facts: RunFacts, show_private: bool) -> list[Check]:
    raw = facts.run.about["show_private"] or bool(facts.raw)
    return [
        _check("Is everything that was shown private, or public?", not (raw or show_private),
               "metrics are from the held-out set alone" if not (raw or show_private) else
               "figures from training records without noise were shown: see the list"),
        Check(question="Is the held-out set free to be looked at?", state="open",
              answer=f"exact scores on it are shown, and it is not protected: {facts.run.evaluation}"),
        Check(question="Who may see the records, the ledger and the run's folder?", state="open",
              answer="not known to Privet: access, storage and deletion are for people to settle"),
    ]  # fmt: skip


def _check(question: str, is_so: bool, answer: Words) -> Check:
    return Check(question=question, state="yes" if is_so else "no", answer=answer)
