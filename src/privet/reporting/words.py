"""What the report's template needs beside the facts: charts, comparisons of runs, and what is chosen to show."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from privet.reporting.charts import Chart, Line
from privet.reporting.evidence import AttackEvidence, Attacks, Image, NonPrivateBaseline
from privet.reporting.facts import RunFacts
from privet.reporting.render import State
from privet.training.run import Run
from privet.training.settings import Settings

POINTS = 160
SMALL = 0.1  # delta times the number of units, at most; at 1 one of them could be published in full
MOST_PICTURES = 8
SETTINGS = (
    "lr", "optimizer", "momentum", "weight_decay", "scheduler", "ema_decay", "augmentations", "keep", "stop_at",
    "patience",
)  # fmt: skip
GRID = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.25, 0.3,
        0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)  # fmt: skip


# --- the plan ---------------------------------------------------------------------------------------
def budget(run: Run) -> str:
    """The budget that was asked for: a wish, and no guarantee."""
    asked = run.plan.recipe.budget
    return f"{asked.epsilon:g} at δ = {asked.delta:g}"


def settings(run: Run) -> str:
    """The settings of the training that are not the defaults."""
    plain = Settings()
    pairs = ((key, getattr(run.settings, key), getattr(plain, key)) for key in SETTINGS)
    return ", ".join(f"{key} {value}" for key, value, default in pairs if value != default) or "the defaults"


def changes(run: Run) -> str:
    return ", ".join(f"{key} {old} → {new}" for key, (old, new) in run.about["changed"].items())


def smallness(run: Run) -> State:
    """Whether delta is small against 1/n: between a tenth of it and all of it people must judge."""
    share = run.guarantee.delta * run.plan.recipe.dataset_size
    return "yes" if share <= SMALL * (1 + 1e-9) else "open" if share < 1 else "no"


# --- charts -----------------------------------------------------------------------------------------
def schedule_charts(facts: RunFacts) -> list[Chart]:
    """Noise over the steps; with a moving clip, what is really added: noise times clip."""
    steps = facts.run.plan.steps
    places = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    noises, clips = steps.noise_multipliers[places], steps.clipping_norms[places]
    x = tuple((places + 1.0).tolist())
    noise = Line(name="noise multiplier", x=x, y=tuple(noises.tolist()), side="down")
    clip = Line(name="clipping norm", x=x, y=tuple(clips.tolist()), colour=1, side="up")
    added = Line(name="noise × clip: what is added", x=x, y=tuple((noises * clips).tolist()), colour=2, side="down")
    return [
        Chart(title="Noise multiplier", x_name="step", y_name="noise multiplier", lines=(noise,),
              caption="What protects: noise over the most that one record can do. More is safer."),
        Chart(title="Clip, and the noise that is added", x_name="step", y_name="norm", lines=(clip, added),
              caption="The clip bounds what one record can do; noise × clip is what the model feels."),
    ]  # fmt: skip


def plan_charts(facts: RunFacts) -> list[Chart]:
    """The schedule, and epsilon over its steps where something is proven."""
    if not facts.curves:
        return schedule_charts(facts)
    names = {"pld": "certified upper bound (pld)", "gdp": "approximate: central limit theorem (gdp)"}
    lines = tuple(
        Line(name=names.get(curve.method, f"{curve.label}: {curve.method}"), label=curve.label, colour=place,
             x=(0.0, *map(float, curve.steps)), y=(0.0, *map(float, curve.upper)), is_stepped=True, side="up")
        for place, curve in enumerate(facts.curves)
    )  # fmt: skip
    caption = "Solid is proven, between the computed steps too; dashed is an approximation that may say too little."
    return [
        *schedule_charts(facts),
        Chart(title="Epsilon over the steps", x_name="step", y_name=f"ε at δ = {facts.run.guarantee.delta_text}",
              lines=lines, caption=caption),
    ]  # fmt: skip


def attacker_charts(facts: RunFacts) -> list[Chart]:
    """What an attacker can achieve at best, on plain and on logarithmic axes."""
    if facts.attacker is None:
        return []
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
    return [first, replace(first, title="The same for few false alarms", lines=(best, coin), is_log=True, caption=few)]


def utility_charts(every: Sequence[RunFacts]) -> list[Chart]:
    """The held-out scores on the way, and the noise side by side where there are several runs."""
    measure = every[0].measure
    lines = tuple(
        Line(name=one.name, x=tuple(float(step) for step, _ in one.history), y=tuple(y for _, y in one.history),
             colour=place)
        for place, one in enumerate(every) if len(one.history) > 1
    )  # fmt: skip
    found = [Chart(title=f"Held-out {measure} on the way", x_name="step", y_name=measure, lines=lines,
                   from_zero=False, caption="On records that were never trained on.")] if lines else []  # fmt: skip
    if len(every) > 1:
        noises = tuple(
            replace(schedule_charts(one)[0].lines[0], name=one.name, colour=k) for k, one in enumerate(every)
        )
        found.append(
            Chart(title="Noise multiplier, side by side", x_name="step", y_name="noise multiplier", lines=noises)
        )
    return found


# --- runs side by side ------------------------------------------------------------------------------
def without_privacy(every: Sequence[RunFacts]) -> NonPrivateBaseline | None:
    """A baseline without privacy that was judged as the first run was."""
    found = (one.baseline for one in every if one.baseline is not None and _is_judged_alike(every[0], one))
    return next((one for one in found if one.measure == every[0].measure), None)


def differences(facts: RunFacts, baselines: Sequence[RunFacts]) -> list[str]:
    """What makes a comparison unfair."""
    found = []
    for one in baselines:
        if not _is_judged_alike(facts, one):
            found.append(f"{one.name} was judged on another task or by another measure: scores cannot be compared.")
        ours, theirs = ((g.delta, g.unit, g.adjacency, g.label) for g in (facts.run.guarantee, one.run.guarantee))
        if ours != theirs:
            found.append(f"{one.name} promises another kind of thing (delta, unit, relation or label differ).")
    return found


def verdict(facts: RunFacts, baselines: Sequence[RunFacts]) -> str:
    """Which run did better, as it came out; one run each proves little."""
    said = []
    for one in baselines:
        if facts.score is None or one.score is None or not _is_judged_alike(facts, one):
            continue
        apart = facts.score - one.score
        better = apart if facts.higher_is_better else -apart
        word = "the same as" if not apart else "better than" if better > 0 else "worse than"
        by = f" by {abs(apart):.3g}" if apart else ""
        said.append(f"{facts.name} did {word} {one.name}{by}")
    return ("; ".join(said) + ". One run each: the difference may be noise.") if said else ""


def _is_judged_alike(facts: RunFacts, one: RunFacts) -> bool:
    ours, theirs = ((run.run.settings.task, run.measure, run.run.evaluation) for run in (facts, one))
    return ours == theirs


# --- attacks ----------------------------------------------------------------------------------------
def pictures(attacks: Attacks) -> list[tuple[str, tuple[Image | None, ...]]]:
    """(name, (the true image, what was rebuilt, what the control gave)), of attacks that rebuild pictures."""
    moving = [one for one in attacks.outcomes if "0" in one.frames]
    shown = (moving or [one for one in attacks.outcomes if "end" in one.frames])[:MOST_PICTURES]
    return [
        (f"{target(one)}, {one.attack}, step {one.step or 'all'}",
         (one.truth, one.frames.get("end"), one.frames.get("control")))
        for one in shown
    ]  # fmt: skip


def networks(attacks: Attacks) -> str:
    own = any(one.method == "run" for one in attacks.outcomes)
    default = "the run's own" if own else "shallow-cnn"
    return ", ".join(dict.fromkeys(one.model or default for one in attacks.outcomes))


def target(one: AttackEvidence) -> str:
    return {"non-private": "without privacy", "plan": "this plan", "run": "this run"}.get(one.method, one.method)


def violations(attacks: Attacks) -> int:
    return sum(one.violation for one in attacks.outcomes)


def has_ceiling(attacks: Attacks) -> bool:
    return any(one.ceiling is not None for one in attacks.outcomes)


def interval(limits: tuple[float, float]) -> str:
    return f"{limits[0]:+.2f} to {limits[1]:+.2f}"
