"""attack: the one entry. Methods by name, a plan or a saved run in; what gradients give away at chosen steps out."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from privet._registry import published
from privet.accounting.tradeoff import tradeoff
from privet.attacks.base import Attack, Reconstruction, attack_for
from privet.attacks.moments import Moment, numbers_of, observe, planned_moments, run_moment
from privet.attacks.outcome import Measures, Outcome, baselines, measured
from privet.attacks.prior import one_step_ceiling, run_ceiling
from privet.attacks.sources import Source, cost_of, settings_for, sources_of
from privet.attacks.table import table
from privet.attacks.victims import Victims, victims_of
from privet.attacks.whole_run import identify
from privet.data.files import Where
from privet.data.task import Task
from privet.engine.randomness import seeded
from privet.errors import InvalidValue, PrivetError
from privet.planning import Plan
from privet.training.append_file import write_new
from privet.training.checkpoint import NAME as WEIGHTS
from privet.training.run import Run
from privet.training.settings import Settings

MODEL = "shallow-cnn"  # what Wei and Liu attack
FORMAT = "privet-attack-1"
ALL = -1  # in place of a step's number: the whole run

Tell = Callable[[str, int, int], None]  # (done, of, what is next)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """All outcomes, the baselines beside them, and what was attacked."""

    task: str
    settings: dict[str, Any]
    baselines: dict[str, Measures]
    outcomes: tuple[Outcome, ...]
    guarantees: dict[str, str]  # of each method: what its plan costs
    truth: list[list[list[int]]]  # the first victim's image, 0 to 255

    def outcome(self, method: str, attack: str, *, step: int = 1) -> Outcome:
        """The outcome of one attack on one method, at a step from 1."""
        return next(o for o in self.outcomes if (o.method, o.attack, o.step) == (method, attack, step))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        rows = []
        for outcome in self.outcomes:
            beside = published("figures_printed").printed(outcome.method, self.task) if outcome.step == 1 else None
            rows.append(outcome.as_dict() | {"published": beside and {
                "iterations": beside.iterations, "success": beside.success, "mse": beside.mse,
            }})  # fmt: skip
        return {
            "task": self.task, "settings": self.settings, "guarantees": self.guarantees,
            "baselines": {name: found.as_dict() for name, found in self.baselines.items()}, "outcomes": rows,
        }  # fmt: skip

    def __str__(self) -> str:
        return table(self.task, self.settings, self.baselines, self.outcomes, self.guarantees)


def attack(
    what: "str | Sequence[str] | Plan | Run | None" = None, task: "str | Task | None" = None, *,
    attacks: Sequence[str] | None = None, examples: int = 100, batch: int = 1, candidates: int = 1000,
    at_steps: "Sequence[str | int]" = ("first",), model: str | None = None, noise: float = 6.0, clip: float = 4.0,
    rate: float = 0.01, steps: int = 100, as_published: bool = False, seed: int = 0, out: "str | Path | None" = None,
    where: Where | None = None, progress: Tell | None = None,
) -> Attacked:  # fmt: skip
    """What one update gives away: each attack on each method at each step, with controls, baselines and ceilings.

    The attacker knows the weights, the rule, the noise and every other record of the step; of its own victim it knows
    nothing, or that it is one of K candidates (`prior`). Training without privacy is always attacked too. Everything is
    simulated with a seed, and can be had again.

    Args:
        what: names of methods, a plan, or a run; None is training without privacy alone.
        attacks: invert-l2 and prior, unless they are given; for several records in an update, invert-l2.
        task: images with classes; a run brings its own.
        batch: unknown records in an update, 1 to 8.
        candidates: K, the victims among them.
        at_steps: of first, middle, last, and numbers from 1; a run is looked at where its checkpoint stands. `all` is
            the whole run of a plan, for `prior`.
        model: `shallow-cnn` with sigmoids unless a plan or run says otherwise.
        noise, clip, rate, steps: of the plans of methods given by name; the first two are those of Wei and Liu.
        as_published: methods by the papers' own rules, which may have no guarantee.
        out: a folder where outcomes are kept; those that are there already are not computed again.
        progress: told (done, of, what is next).

    >>> found = attack(None, "digits:size=300", attacks=["prior"], examples=5, candidates=50)
    >>> found.outcome("non-private", "prior").found.top1
    5

    Raises:
        InvalidValue: a method, attack, step or number is not what it must be.
        Unsupported: the task is not one of images.
    """
    loaded, sources, plans = sources_of(what, task, where, as_published, noise=noise, clip=clip, rate=rate, steps=steps)
    attacks = (("invert-l2", "prior") if batch == 1 else ("invert-l2",)) if attacks is None else attacks
    made = {spelling: attack_for(spelling) for spelling in attacks}
    _check_asked(made, at_steps)
    victims = victims_of(loaded, examples=examples, batch=batch, candidates=candidates, seed=seed)
    k = len(victims.candidates[0])
    settings = {
        "examples": examples, "batch": batch, "candidates": k, "seed": seed, "model": model,
        "at_steps": [str(word) for word in at_steps], "as_published": as_published,
    }  # fmt: skip
    cells = [
        (name, number, spelling)
        for name in sources for number in _numbers(plans, sources[name], at_steps) for spelling in made
        if number != ALL or (spelling == "prior" and isinstance(sources[name], Plan))
    ]  # fmt: skip
    shelf = _Shelf(out, {"task": loaded.name, "size": loaded.size, **settings}, plans[0])
    outcomes: list[Outcome] = []
    for name, source in sources.items():
        moments: dict[int, Moment] = {}
        for _, number, spelling in (cell for cell in cells if cell[0] == name):
            if progress is not None:
                progress(f"{name}, step {number + 1 or 'all'}, {spelling}", len(outcomes), len(cells))
            kept = shelf.read(name, source, number, spelling)
            if kept is None and number == ALL:
                assert isinstance(source, Plan)
                settings_ = settings_for(source, model=model, otherwise=MODEL)
                outcome = _whole(name, source, loaded, victims, settings_, seed)
                kept = shelf.keep(name, source, number, spelling, outcome)
            if kept is None:
                moments = moments or _moments(source, loaded, _numbers(plans, source, at_steps), plans, model, seed)
                outcome = _tried(name, source, moments[number], loaded, victims, spelling, made[spelling], seed)
                kept = shelf.keep(name, source, number, spelling, outcome)
            outcomes.append(kept)
    if progress is not None:
        progress("done", len(cells), len(cells))
    return Attacked(
        task=loaded.name, settings=settings, baselines=baselines(victims, seed=seed), outcomes=tuple(outcomes),
        guarantees={n: cost_of(s) for n, s in sources.items()}, truth=pixels(victims.inputs[0, 0]),
    )  # fmt: skip


def _numbers(plans: list[Plan], source: Source, at_steps: "Sequence[str | int]") -> list[int]:
    if isinstance(source, Run):
        return [min(source.steps, len(source.plan.steps) - 1)]
    found = numbers_of([word for word in at_steps if word != "all"], len((source or plans[0]).steps))
    return found + [ALL] * ("all" in at_steps)


def _check_asked(made: "Mapping[str, Attack]", at_steps: "Sequence[str | int]") -> None:
    if not made:
        raise InvalidValue("attacks=() must name one. There is nothing to do without. Give ['invert-l2'], for example.")
    if "all" in at_steps and "prior" not in made:
        raise InvalidValue("at_steps='all' is for the attack `prior`. Others look at one update. Add prior.")


def _moments(
    source: Source, task: Task, numbers: list[int], plans: list[Plan], model: str | None, seed: int
) -> dict[int, Moment]:
    if isinstance(source, Run):
        return {numbers[0]: run_moment(source, task)}
    settings = settings_for(source or plans[0], model=model, otherwise=MODEL)
    made = planned_moments(source, task, numbers, sampled=plans[0], settings=settings, seed=seed)
    return {moment.number: moment for moment in made}


# --- one attack -------------------------------------------------------------------------------------


def _tried(
    name: str, source: Source, moment: Moment, task: Task, victims: Victims, spelling: str, made: Any, seed: int
) -> Outcome:
    """An attack on all victims of a moment, and on as many controls."""
    plan = source.plan if isinstance(source, Run) else source
    seen = observe(moment, task, victims, generator=seeded(seed, 2, moment.number))
    empty = observe(moment, task, victims, generator=seeded(seed, 3, moment.number), is_control=True)
    found, control = made.run(seen), made.run(empty)
    is_covered = not (isinstance(source, Run) and source.not_private)
    ceilings = _ceilings(plan if is_covered else None, moment, victims)
    return Outcome(
        method=name, attack=spelling, step=moment.number + 1, found=measured(found, victims),
        control=measured(control, victims), noise=None if moment.step is None else moment.step.noise,
        clip=None if moment.step is None else moment.step.clip, std=seen.std, rule=None if plan is None else plan.rule,
        ceiling=ceilings[0], run_ceiling=ceilings[1], iterations=float(found.iterations.float().mean()),
        evaluations=float(found.evaluations.float().mean()), seconds=found.seconds, frames=_frames(found, control),
    )  # fmt: skip


def _whole(name: str, plan: Plan, task: Task, victims: Victims, settings: Settings, seed: int) -> Outcome:
    """Identification from a whole run of a plan."""
    found, control = identify(plan, task, victims, settings=settings, seed=seed)
    ceiling = _of_run(plan, len(victims.candidates[0]))
    return Outcome(
        method=name, attack="prior", step=0, found=measured(found, victims), control=measured(control, victims),
        noise=float(plan.steps.noises.min()), clip=plan.steps[0].clip, std=None, rule=plan.rule, ceiling=ceiling,
        run_ceiling=ceiling, iterations=float(len(plan.steps)), evaluations=float(found.evaluations[0]),
        seconds=found.seconds, frames=_frames(found, control),
    )  # fmt: skip


def _ceilings(plan: Plan | None, moment: Moment, victims: Victims) -> tuple[float | None, float | None]:
    """The most that any attack can identify: from this step, and from the whole run.

    Of several unknown records none is given: which reconstruction belongs to which is read off the truth.
    """
    candidates = len(victims.candidates[0])
    if plan is None or plan.is_unsound or moment.step is None or victims.batch > 1:
        return None, None
    return one_step_ceiling(candidates, 1 / moment.step.noise), _of_run(plan, candidates)


def _of_run(plan: Plan, candidates: int) -> float | None:
    try:
        return run_ceiling(candidates, tradeoff(plan.ledger(), relation=plan.recipe.budget.relation))
    except PrivetError:  # no certified curve covers this sampling
        return None


def _frames(found: Reconstruction, control: Reconstruction) -> dict[str, list[list[list[int]]]]:
    """Pictures of the first victim: after some iterations, at the end, and what the control ended with."""
    kept = {str(number): pixels(images[0, 0]) for number, images in sorted(found.frames.items())}
    return kept | {"end": pixels(found.inputs[0, 0]), "control": pixels(control.inputs[0, 0])}


def pixels(image: Tensor) -> list[list[list[int]]]:
    """An image (C, H, W) as whole numbers 0 to 255, (H, W, C)."""
    shown = image.nan_to_num(0.5).clamp(0, 1).mul(255).round().int().movedim(0, -1)
    found: list[list[list[int]]] = shown.tolist()
    return found


# --- what was done already --------------------------------------------------------------------------


class _Shelf:
    """Outcomes in a folder, each in a file named after everything that it depends on."""

    def __init__(self, folder: "str | Path | None", settings: dict[str, Any], sampled: Plan) -> None:
        steps = sampled.steps  # without privacy, batches are drawn by these
        self._batches = [steps.rate, str(steps.batch), len(steps), str(steps.sampling), repr(sampled.recipe.training)]
        self._folder = None if folder is None else Path(folder)
        self._settings = {key: value for key, value in settings.items() if key != "at_steps"}
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidValue(
                    f"out={str(self._folder)!r} cannot be made: {error.strerror}. Choose another."
                ) from None

    def read(self, name: str, source: Source, number: int, spelling: str) -> Outcome | None:
        file = self._file(name, source, number, spelling)
        if file is None or not file.exists():
            return None
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            return Outcome.read(kept["outcome"]) if kept["format"] == FORMAT else None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # damaged: computed again

    def keep(self, name: str, source: Source, number: int, spelling: str, outcome: Outcome) -> Outcome:
        file = self._file(name, source, number, spelling)
        if file is not None:
            text = json.dumps({"format": FORMAT, "settings": self._settings, "outcome": outcome.kept()})
            write_new(file, text.encode())
        return outcome

    def _file(self, name: str, source: Source, number: int, spelling: str) -> Path | None:
        if self._folder is None:
            return None
        plan = source.plan if isinstance(source, Run) else source
        parts = [FORMAT, self._settings, name, self._batches if plan is None else plan.hash, number, spelling]
        if isinstance(source, Run) and source.checkpoint is not None:
            with (source.checkpoint / WEIGHTS).open("rb") as weights:  # a folder may be another run's by now
                parts.append(hashlib.file_digest(weights, "sha256").hexdigest())
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
        word = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in spelling)
        return self._folder / f"{name}-{number + 1 or 'all'}-{word}-{digest}.json"
