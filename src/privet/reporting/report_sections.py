"""Sections of a report: plan, spending, utility, what was not private, and where it came from."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from privet.reporting.report_blocks import (
    Block,
    Bullets,
    Chart,
    Charts,
    Code,
    Facts,
    Line,
    Prose,
    Raw,
    Section,
    Table,
    Words,
)
from privet.reporting.report_evidence import ATTACK
from privet.reporting.report_facts import RunFacts, ends, versions_of
from privet.reporting.report_words import figure, noun
from privet.training.assumptions import listed
from privet.training.settings import Settings

Floats = NDArray[np.float64]

POINTS = 160
SHOWN = ("lr", "optimizer", "momentum", "weight_decay", "scheduler", "average", "views", "keep", "stop_at", "patience")


# --- plan and spending ------------------------------------------------------------------------------


def planned(facts: RunFacts) -> Section:
    """What was to be spent: the schedule, and epsilon over its steps."""
    plan, settings = facts.run.plan, facts.run.settings
    recipe, steps = plan.recipe, plan.steps
    chosen = [f"{key} {value}" for key in SHOWN if (value := getattr(settings, key)) != getattr(Settings(), key)]
    rows: tuple[tuple[str, Words], ...] = (
        ("budget asked for", "none: the noise was given" if recipe.solve == "epsilon" else
         f"{recipe.budget.epsilon:g} at δ = {recipe.budget.delta:g}; "
         f"{'nothing is guaranteed' if facts.run.why_none else 'what holds is above'}"),
        ("method", (Code(text=recipe.method or "own shapes"), f", clipping rule {plan.rule}")),
        ("noise", "secure: every output is a whole number of cells, so no rounding gives it away"
         if facts.run.about["secure_noise"] else "Gaussian, in floating point"),
        ("noise multiplier", ends(steps.noises, up=False)),  # no more than there was
        ("clip", ends(steps.clips, up=True)),  # nothing was above it
        ("steps", f"{len(steps):,} of {plan.batch:g} of {recipe.size:,} {noun(recipe.budget.unit)}s expected, sampled "
         f"{steps.sampling}"),
        ("trained with", ", ".join(chosen) or "the defaults"),
    )  # fmt: skip
    if facts.run.about["changed"]:
        changes = ", ".join(f"{key} {old} → {new}" for key, (old, new) in facts.run.about["changed"].items())
        rows += (("changed from the recipe", changes),)
    charts = [*_schedule(facts), *_epsilons(facts)]
    return Section(name="plan", title="The plan", blocks=(Facts(rows=rows), Charts(charts=tuple(charts))))


def _schedule(facts: RunFacts) -> list[Chart]:
    """Noise over the steps; with a moving clip, what is really added: noise times clip."""
    steps = facts.run.plan.steps
    places = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    noises, clips = (_at(values, places) for values in (steps.noises, steps.clips))
    x = tuple((places + 1.0).tolist())
    lines = (
        Line(name="noise multiplier", x=x, y=tuple(noises.tolist()), colour=0, side="down"),
        Line(name="clip", x=x, y=tuple(clips.tolist()), colour=1, side="up"),
        Line(name="noise × clip: what is added", x=x, y=tuple((noises * clips).tolist()), colour=2, side="down"),
    )
    return [
        Chart(title="Noise multiplier", x_name="step", y_name="noise multiplier", lines=lines[:1],
              caption="What protects: noise over the most that one record can do. More is safer."),
        Chart(title="Clip, and the noise that is added", x_name="step", y_name="norm", lines=lines[1:],
              caption="The clip bounds what one record can do; noise × clip is what the model feels."),
    ]  # fmt: skip


def _at(values: Floats, places: NDArray[np.int64]) -> Floats:
    return values[places] if len(values) > 1 else np.full(len(places), float(values[0]))


def _epsilons(facts: RunFacts) -> list[Chart]:
    if not facts.curves:
        return []
    names = {"pld": "certified upper bound (pld)", "gdp": "approximate: central limit theorem (gdp)"}
    lines = tuple(
        Line(name=names.get(curve.method, f"{curve.label}: {curve.method}"), label=curve.label, colour=place,
             x=(0.0, *map(float, curve.steps)), y=(0.0, *map(float, curve.upper)), is_stairs=True, side="up")
        for place, curve in enumerate(facts.curves)
    )  # fmt: skip
    return [
        Chart(title="Epsilon over the steps", x_name="step", lines=lines,
              y_name=f"ε at δ = {facts.run.guarantee.delta_text}",
              caption="Solid is proven, between the computed steps too; dashed is an approximation that may say too "
              "little.")
    ]  # fmt: skip


def spent(facts: RunFacts) -> Section:
    """What the ledger adds up to."""
    run = facts.run
    given = "was given out" if run.together is None else "this run alone gave out"
    rows: list[tuple[str, Words]] = [
        ("charged", f"{run.steps:,} of {len(run.plan.steps):,} planned steps"),
        ("the ledger adds up to", (run.spent, f" at δ = {run.spent.delta_text}, by {run.spent.method}")),
        (
            "what holds",
            f"guarantee: none ({run.why_none}). The sum is a claim, which nothing proves"
            if run.why_none
            else (run.guarantee, f" for everything that {given}"),
        ),
        ("state", _state(facts)),
    ]
    rows += [("assumes of the training loop", said) for said in listed(run.guarantee)]
    rows += [("torn, and charged", note) for note in run.notes]
    quiet = "Computed again for this report from the ledger alone, which was written before each noise was drawn."
    return Section(name="spent", title="What was really spent",
                   blocks=(Facts(rows=tuple(rows)), Prose(words=quiet, tone="quiet")))  # fmt: skip


def _state(facts: RunFacts) -> str:
    run = facts.run
    if not run.is_over:
        return "not finished: steps are left, and scores are of the weights so far"
    if facts.is_whole:
        return "complete"
    return f"stopped early ({run.end}), by its own outputs" + ("" if run.why_none else ": the plan's epsilon holds")


# --- utility ----------------------------------------------------------------------------------------


def utility(facts: RunFacts, rivals: tuple[RunFacts, ...], *, show_private: bool) -> Section:
    """What the model is worth on the held-out set, beside its rivals."""
    every = (facts, *rivals)
    rows: list[tuple[Words, ...]] = [
        (one.name, one.run.plan.recipe.method or "own shapes",
         ("none: ", one.run.guarantee) if one.run.why_none else one.run.guarantee,
         "none yet" if one.score is None else figure(one.score), _when(one))
        for one in every
    ]  # fmt: skip
    alike = [one.plain for one in every if one.plain is not None and _is_judged_alike(facts, one)]
    plain = next((one for one in alike if one.measure == facts.measure), None)
    if plain is not None and show_private:
        rows.append(("without privacy", "no clipping, no noise", "none", Raw(text=figure(plain.score)),
                     f"{plain.steps:,} steps"))  # fmt: skip
    blocks: list[Block] = [
        Table(head=("run", "method", "guarantee", f"held-out {facts.measure}", "weights of"), rows=tuple(rows),
              caption=f"Judged by {facts.run.evaluation}.")
    ]  # fmt: skip
    if plain is None or not show_private:
        blocks.append(Prose(words=_no_plain(plain is not None), tone="quiet"))
    blocks += [Prose(words=text, tone="warning") for text in _unlike(facts, rivals)]
    if said := verdict(facts, rivals):
        blocks.append(Prose(words=said))
    lines = tuple(
        Line(name=one.name, x=tuple(float(step) for step, _ in one.history), y=tuple(y for _, y in one.history),
             colour=place)
        for place, one in enumerate(every) if len(one.history) > 1
    )  # fmt: skip
    charts = [Chart(title=f"Held-out {facts.measure} on the way", x_name="step", y_name=facts.measure, lines=lines,
                    from_zero=False, caption="On records that were never trained on.")] if lines else []  # fmt: skip
    if rivals:
        charts.append(_noises(every))
    return Section(name="utility", title="What the model is worth", blocks=(*blocks, Charts(charts=tuple(charts))))


def _noises(every: tuple[RunFacts, ...]) -> Chart:
    lines = []
    for place, one in enumerate(every):
        line = _schedule(one)[0].lines[0]
        lines.append(replace(line, name=one.name, colour=place))
    return Chart(title="Noise multiplier, side by side", x_name="step", y_name="noise multiplier", lines=tuple(lines))


def _when(one: RunFacts) -> str:
    best = ", the best on the held-out set" if one.run.settings.keep == "best" else ""
    return f"step {one.score_step or 0:,} of {len(one.run.plan.steps):,}{best}"


def _no_plain(is_there: bool) -> str:
    if is_there:
        return ("The same network was also trained without privacy. Its score comes from training records without "
                "noise, and is shown with --show-private.")  # fmt: skip
    return "No score without privacy is known."


def _unlike(facts: RunFacts, rivals: tuple[RunFacts, ...]) -> list[str]:
    """What makes a comparison unfair."""
    found = []
    for one in rivals:
        if not _is_judged_alike(facts, one):
            found.append(f"{one.name} was judged on another task or by another measure: scores cannot be compared.")
        ours, theirs = facts.run.guarantee, one.run.guarantee
        if (ours.delta, ours.unit, ours.relation, ours.label) != (
            theirs.delta, theirs.unit, theirs.relation, theirs.label,
        ):  # fmt: skip
            found.append(f"{one.name} promises another kind of thing (delta, unit, relation or label differ).")
    return found


def _is_judged_alike(facts: RunFacts, one: RunFacts) -> bool:
    ours, theirs = ((run.run.settings.task, run.measure, run.run.evaluation) for run in (facts, one))
    return ours == theirs


def verdict(facts: RunFacts, rivals: tuple[RunFacts, ...]) -> str:
    """Which run did better, as it came out; one run each proves little."""
    said = []
    for one in rivals:
        if facts.score is None or one.score is None or not _is_judged_alike(facts, one):
            continue
        apart = facts.score - one.score
        better = apart if facts.higher_is_better else -apart
        word = "the same as" if not apart else "better than" if better > 0 else "worse than"
        by = f" by {abs(apart):.3g}" if apart else ""
        said.append(f"{facts.name} did {word} {one.name}{by}")
    return ("; ".join(said) + ". One run each: the difference may be noise.") if said else ""


# --- the rest ---------------------------------------------------------------------------------------


def not_private(facts: RunFacts, *, show_private: bool) -> Section:
    """Everything that the guarantee does not cover."""
    run = facts.run
    items: list[Words] = [f"The held-out set: its exact scores are shown, and it is not protected ({run.evaluation})."]
    if run.settings.keep == "best" or run.settings.stop_at or run.settings.patience:
        items.append(("Which weights are kept, or when the run stops, was decided by held-out scores: the plan's "
                      "epsilon covers it for training records, not for the held-out set.",))  # fmt: skip
    if run.plan.recipe.tuning is None:
        items.append(("Tuning: choosing hyper-parameters by other runs on these records is not charged.",))
    items.append(("What the task itself knows: number of records, shape, classes, and any scaling, are taken as "
                  "public.",))  # fmt: skip
    if run.seed is not None:
        items.append((f"The seed {run.seed}: whoever knows it can take the noise away. The run is not private.",))
    if run.plan.is_unsound:
        items.append((f"The clipping rule {run.plan.rule}: it bounds nothing, so no noise covers it.",))
    if run.about["weights"] is not None:
        items.append((f"The first weights, from {run.settings.weights} (SHA-256 ", Code(text=run.about["weights"]),
                      "): the guarantee covers what was trained since, not that file.",))  # fmt: skip
    if run.not_private:
        items.append((f"{run.not_private}: read off the training records without noise, so no epsilon covers it.",))
    if run.about["show_private"]:
        items.append(("Loss and accuracy on training records were shown while it ran.",))
    for key, value in facts.raw.items() if show_private else ():
        items.append((f"{key}: ", Raw(text=figure(value))))
    if facts.raw and not show_private:
        items.append((f"{len(facts.raw)} raw figures from training records are in its metrics and not shown here.",))
    if facts.attacks is not None:
        items.append(("The attacks: files of the kind ", Code(text=ATTACK), " hold a training record. Do not pass them "
                      "on with the run."))  # fmt: skip
    if facts.plain is not None:
        items.append(("The rival without privacy: it was trained on the same records without noise.",))
    items.append(("Time and speed of the run are from a clock, and can depend on the records.",))
    return Section(name="not-private", title="What was not private", blocks=(Bullets(items=tuple(items)),))


def origin(facts: RunFacts) -> Section:
    """Versions and hashes, so that the report can be held against the run."""
    versions = ", ".join(f"{name} {text}" for name, text in versions_of(facts.run).items())
    rows: list[tuple[str, Words]] = [("made with", versions), ("folder", Code(text=str(facts.run.folder)))]
    if facts.damage:
        rows.append(("weights", f"cannot be read: {facts.damage}"))
    rows += [(f"{name}, SHA-256", Code(text=value.removeprefix("sha256:"))) for name, value in facts.hashes.items()]
    epsilon, audit = (Code(text=f"privet {verb} {facts.run.folder}") for verb in ("epsilon --from", "audit --run"))
    again: Words = ("Check it yourself: ", epsilon, " computes the guarantee from the ledger, and ", audit,
                    " attacks it.")  # fmt: skip
    if facts.run.why_none:  # no accountant prices it
        again = ("Check it yourself: ", audit, " attacks it.")
    return Section(name="origin", title="Versions and hashes", blocks=(Facts(rows=tuple(rows)), Prose(words=again)))
