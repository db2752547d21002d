"""The section of a report on evidence: what audits and attacks found, with pictures."""

from privet.attacks.table import counted
from privet.reporting.report_blocks import Block, Code, Pictures, Prose, Raw, Section, Table, Words, percent
from privet.reporting.report_evidence import Attacks, Tried
from privet.reporting.report_facts import RunFacts


def evidence(facts: RunFacts, *, show_private: bool) -> Section:
    """What audits and attacks found."""
    blocks = [*_audit(facts), *_attacks(facts, show_private=show_private)]
    return Section(name="evidence", title="Evidence: audits and attacks", blocks=tuple(blocks))


def _audit(facts: RunFacts) -> list[Block]:
    found = facts.audit
    if found is None:
        return [Prose(words=("Not audited yet. Run ", Code(text=f"privet audit --run {facts.run.folder}"), "."))]
    tone = "warning" if found.verdict == "violation" else "plain"
    rows: tuple[tuple[Words, ...], ...] = tuple(
        (one.kind, one.verdict, one.says + "".join(f" {reason}" for reason in one.reasons),
         "–" if one.empirical is None else (one.empirical, f" at δ = {one.empirical.delta_text}"),
         f"{100 * one.confidence:g} %")
        for one in found.findings
    )  # fmt: skip
    said = {
        "consistent": "Audit: consistent. The attacks on the mechanism found nothing that contradicts the claim. "
        "This is a test, not a proof.",
        "violation": "Audit: violation. The claim is contradicted.",
        "inconclusive": "Audit: inconclusive. More samples would be needed to decide.",
    }[found.verdict]
    if found.count > 1:
        said += f" It was audited {found.count} times; of each test the strongest is shown."
    return [
        Prose(words=said, tone=tone),  # type: ignore[arg-type]
        Table(head=("test", "verdict", "what it says", "leaks at least", "confidence"), rows=rows,
              caption="An empirical epsilon is a lower bound found by attack on what that test looked at: a single "
              "step without sampling (step), or a whole run made for the audit (one-run)."),
    ]  # fmt: skip


def _attacks(facts: RunFacts, *, show_private: bool) -> list[Block]:
    found = facts.attacks
    if found is None:
        return [Prose(words=("Not attacked yet. Run ", Code(text=f"privet attack --run {facts.run.folder}"), "."))]
    broken = [one for one in found.outcomes if one.is_violation]
    most = "" if found.count == len(found.outcomes) else " (of each kind the strongest is shown)"
    said = f"{counted(found.count, 'attack')} on updates of {found.task}{most}: " + (
        f"{len(broken)} identified more records than the guarantee allows." if broken else
        "none identified more records than the guarantee allows."
        if facts.is_guaranteed and any(one.ceiling is not None for one in found.outcomes) else
        "no guarantee covers them, so there is no ceiling to hold them against."
    )  # fmt: skip
    blocks: list[Block] = [Prose(words=said, tone="warning" if broken else "plain")]
    if not show_private:
        hidden = "How often they succeeded, and pictures, come from training records without noise: see --show-private."
        return [*blocks, Prose(words=hidden, tone="quiet")]
    return [*blocks, _outcomes(found), *_pictures(found)]


def _outcomes(found: Attacks) -> Table:
    rows: tuple[tuple[Words, ...], ...] = tuple(
        (_attacked(one), one.attack, str(one.step or "all"), Raw(text=f"{one.succeeded} of {one.victims}"),
         f"{one.control} of {one.victims}", Raw(text=f"{one.limits[0]:+.2f} to {one.limits[1]:+.2f}"),
         "none" if one.ceiling is None else percent(one.ceiling, up=True))
        for one in found.outcomes
    )  # fmt: skip
    return Table(
        head=("attacked", "attack", "step", "succeeded", "noise alone", "difference, 95 %", "ceiling"), rows=rows,
        caption="Success: the picture is rebuilt (SSIM above 0.9) or the record is told from all candidates. Noise "
        "alone: the same attack on an update without the record. Ceiling: the most that any attack on this step can "
        f"identify. The network was {_network(found)}.",
    )  # fmt: skip


def _network(found: Attacks) -> str:
    own = any(one.method == "run" for one in found.outcomes)
    return ", ".join(dict.fromkeys(one.model or ("the run's own" if own else "shallow-cnn") for one in found.outcomes))


def _pictures(found: Attacks) -> list[Block]:
    moving = [one for one in found.outcomes if "0" in one.frames]
    shown = (moving or [one for one in found.outcomes if "end" in one.frames])[:8]
    if not shown:
        return []
    rows = tuple((_row_name(one), (one.truth, one.frames.get("end"), one.frames.get("control"))) for one in shown)
    caption = ("One training record, and what the attacker rebuilt of it from one update. ", Raw(text="The true image "
               "is a training record."))  # fmt: skip
    return [Pictures(head=("true image: not private", "rebuilt", "from noise alone"), rows=rows, caption=caption)]


def _row_name(one: Tried) -> str:
    return f"{_attacked(one)}, {one.attack}, step {one.step or 'all'}"


def _attacked(one: Tried) -> str:
    return {"non-private": "without privacy", "plan": "this plan", "run": "this run"}.get(one.method, one.method)
