"""The first sections of a report: what is protected, what is guaranteed, and what that means in plain words."""

from dataclasses import replace

from privet.accounting.guarantee import MEANING, Guarantee, rounded
from privet.reporting.report_blocks import (
    Block,
    Bullets,
    Chart,
    Charts,
    Code,
    Facts,
    Line,
    Promise,
    Prose,
    Section,
    Words,
    percent,
)
from privet.reporting.report_facts import RunFacts

UNIT = {
    "example": "one training record",
    "user": "all training records of one user together",
    "client": "everything that one client contributes",
}
PERSON = {
    "example": "A person is protected as a whole only if each person has at most one record. Someone with k records is "
    "protected less, for each of them adds to what can be learnt.",
    "user": "A user with many records is protected as a whole.",
    "client": "A client is protected as a whole, whatever it holds.",
}
NEIGHBOURS = {
    "zero-out": "the same dataset with that {unit} made null (its share of every update is zero). The number of "
    "{unit}s is public.",
    "add-remove": "the same dataset without that {unit}, or with one more. The number of {unit}s need not be "
    "public, but the plan's own figure is: this report shows it.",
    "replace": "the same dataset with that {unit} replaced by any other. The number of {unit}s is public.",
}
GRID = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.25, 0.3,
        0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)  # fmt: skip
ONE_IN_A_HUNDRED = 0.01


def protected(facts: RunFacts) -> Section:
    """What is protected: the unit, its neighbours, and what is not."""
    run = facts.run
    g, size = run.guarantee, run.plan.recipe.size
    known = "" if g.relation == "add-remove" else f", one of {size:,} {noun(g.unit)}s"
    rows: tuple[tuple[str, Words], ...] = (
        ("what is protected", f"{UNIT[g.unit]}{known}"),
        ("what is compared", "the run as it was, and the run on " + NEIGHBOURS[g.relation].format(unit=noun(g.unit))),
        ("what counts as one person", PERSON[g.unit]),
        ("who is the attacker", "someone who sees the weights after every step, knows the plan and the code, and may "
         "know every other record"),
        ("where the records come from", str(run.about["source"]) or "not said by the task"),
        ("task", (Code(text=run.settings.task), f", network {run.settings.model or 'of the task'}")),
    )  # fmt: skip
    return Section(name="protected", title="What is protected", blocks=(Facts(rows=rows),))


def guaranteed(facts: RunFacts) -> Section:
    """The guarantee with its interval and label, and what it means for an attacker."""
    blocks: list[Block] = [promise(facts)]
    if facts.run.together is not None:
        blocks.append(Prose(words=("With tuning, all runs together: ", facts.run.together)))
    blocks += _meaning(facts)
    return Section(name="guarantee", title="The guarantee, and what it means", blocks=tuple(blocks))


def promise(facts: RunFacts) -> Promise:
    """The large number."""
    g = facts.run.guarantee
    holds = not facts.run.why_none
    lines: list[Words] = [f"at δ = {g.delta_text}, per {noun(g.unit)}, neighbours: {g.relation}"]
    if g.epsilon_lower is not None:
        lines.append(f"The true value lies between {_interval(g)} (certified).")
    lines.append(f"{g.label}: {MEANING[g.label]}; by {g.method}")
    if not holds:
        lines.append("There is no guarantee. The number is what would be said of a run that is sound and private.")
    elif not facts.is_whole:
        lines.append("That of the whole plan, which holds whenever and for whatever reason the run stops.")
    if g.assumptions:
        count = "one thing" if len(g.assumptions) == 1 else f"{len(g.assumptions)} things"
        lines.append(f"It assumes {count} of the training loop that nobody has checked: see what was really spent.")
    return Promise(title="Guarantee" if holds else "No guarantee", guarantee=g, lines=tuple(lines), holds=holds)


def _interval(g: Guarantee) -> str:
    assert g.epsilon_lower is not None
    return f"{rounded(g.epsilon_lower, up=False)} and {rounded(g.epsilon, up=True)}"


def _meaning(facts: RunFacts) -> list[Block]:
    """What an attacker can achieve at best, from the certified curve."""
    if not facts.is_guaranteed:
        return [Prose(words="Nothing is proven of this run, so nothing can be said about what an attacker can achieve "
                      "at best.", tone="warning")]  # fmt: skip
    together: list[Block] = [] if facts.run.together is None else [
        Prose(words="Choosing among the runs of the tuning gives away more than one run does. What follows is about "
              "this run alone.", tone="warning")
    ]  # fmt: skip
    if facts.attacker is None or facts.advantage is None:
        return [*together, Prose(words="No certified trade-off curve covers this sampling, so what an attacker can "
                                 "achieve is bounded by epsilon and delta alone.", tone="quiet")]  # fmt: skip
    right = (1 + facts.advantage) / 2
    one = noun(facts.run.guarantee.unit)
    items: list[Words] = [
        f"Asked whether one {one} was used, as likely as not, the best attacker there can be is right in at most "
        f"{percent(right, up=True)} of all cases. A coin is right in 50 %.",
    ]
    for power in facts.powers:
        often = {0.001: "one innocent in 1,000", 0.01: "one innocent in 100", 0.1: "one innocent in 10"}
        items.append(
            f"If it may accuse {often[power.false_alarms]} wrongly, it finds at most {percent(power.hits, up=True)} of "
            "those who took part."
        )
    items.append(
        "Whatever anybody does with the model later, this stays true: it holds for everything that can be computed "
        "from what the run gave out."
    )
    return [
        *together,
        Prose(words="In plain words. These are ceilings on every attack, also on those nobody has thought of yet; they "
                    "follow from the certified curve and are rounded up."),
        Bullets(items=tuple(items)),
        Charts(charts=_attacker(facts)),
    ]  # fmt: skip


def _attacker(facts: RunFacts) -> tuple[Chart, ...]:
    assert facts.attacker is not None
    hits = tuple(min(1.0, 1 - float(miss)) for miss in facts.attacker(GRID))
    best = Line(name="the best attacker, at most", x=GRID, y=hits, label="certified", side="up", is_filled=True)
    whole = replace(best, x=(0.0, *GRID), y=(1 - float(facts.attacker(0.0)), *hits))
    coin = Line(name="guessing", x=GRID, y=GRID, is_faint=True)
    first = Chart(
        title="What an attacker can achieve at best", x_name="false alarms", y_name="members found, at most",
        lines=(whole, coin), is_percent=True, caption="The shaded area is all that any attack can reach. With perfect "
        "privacy it would end at the dotted line.",
    )  # fmt: skip
    few = "Both axes are logarithmic: on the left are attacks that accuse almost nobody wrongly."
    return first, replace(first, title="The same for few false alarms", lines=(best, coin), is_log=True, caption=few)


def summary(facts: RunFacts) -> tuple[Words, ...]:
    """The report in three lines, for people in a hurry."""
    run = facts.run
    found: list[Words] = []
    if facts.is_guaranteed:
        found.append(("Private, with proof: ", run.guarantee, f" at δ = {run.guarantee.delta_text}."))
        if run.together is not None:
            found.append((f"That is one run. All runs of the tuning together: {run.together}.",))
    elif run.why_none:
        found.append((f"Guarantee: none ({run.why_none}). The claim, which nothing proves: ", run.guarantee, "."))
    else:
        found.append(("Not proven private: ", run.guarantee, "."))
    hits = next((power.hits for power in facts.powers if power.false_alarms == ONE_IN_A_HUNDRED), None)
    alone = "" if run.together is None else " on this run alone"
    if hits is not None:
        found.append(
            (f"At 1 % false alarms no attack{alone} finds more than {percent(hits, up=True)} of the members.",)
        )
    if facts.score is not None:
        found.append((f"Held-out {facts.measure}: {figure(facts.score)}.",))
    found.append((_tested(facts),))
    if facts.damage:
        found.append((f"The weights cannot be read: {facts.damage} What was spent is proven by the ledger.",))
    return tuple(found)


def _tested(facts: RunFacts) -> str:
    if facts.audit is None:
        return "Not audited yet."
    return f"Audited by {len(facts.audit.findings)} tests: {facts.audit.verdict}."


def figure(value: float) -> str:
    """A score in a few digits."""
    return f"{value:.4g}"


def noun(unit: str) -> str:
    """What the unit is called in a sentence."""
    return {"example": "record"}.get(unit, unit)
