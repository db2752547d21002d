"""What is attacked: methods by name, a plan, a run, and training without privacy beside them."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert
from torch import Tensor

from privet import _check
from privet._files import write_new
from privet._registry import import_published
from privet.accounting.tradeoff import tradeoff
from privet.attacks import observing
from privet.attacks.base import Attack, Reconstruction, resolve_attack
from privet.attacks.identification import identify_from_run, one_step_ceiling, run_ceiling
from privet.attacks.outcome import Measures, Outcome, baselines, format_table, measure_reconstruction
from privet.data.files import DataFolders
from privet.data.task import Task, task as task_of
from privet.errors import InvalidValue, PrivetError
from privet.noise.randomness import seeded
from privet.planning import Plan, method, plan
from privet.training.checkpoint_format import NAME as WEIGHTS
from privet.training.checks import check_preprocessing
from privet.training.run import Run
from privet.training.settings import Settings

REFERENCE = "non-private"
RHO = 2.0  # first over last value, for methods that ask for it
_KEPT = (  # of a plan's [training] table
    "model", "weights", "train", "fresh", "optimizer", "lr", "momentum", "weight_decay", "max_physical_batch_size",
)  # fmt: skip

Source = Plan | Run | None  # None: without privacy


def resolve_sources(
    what: "str | Sequence[str] | Plan | Run | None", task: "str | Task | None", where: DataFolders | None,
    uncertified: bool, **given: Any,
) -> tuple[Task, dict[str, Source], list[Plan]]:  # fmt: skip
    """The task, what is attacked by name, and a plan or more: without privacy, the first one's batches are drawn."""
    if isinstance(what, Run) and task is None:
        loaded = what.task(where=where)
    else:
        named = what.recipe.training.get("task") if isinstance(what, Plan) else None
        loaded = task_of(task or named or "digits", where=where)
    if not (isinstance(what, Run) and what.non_private_preprocessing):  # whose own guarantee says that there is none
        check_preprocessing(loaded.non_private_preprocessing)  # what attacks find is held against the plans' guarantees
    if isinstance(what, Run):
        return loaded, {"run": what}, [what.plan]
    if isinstance(what, Plan):
        return loaded, {REFERENCE: None, "plan": what}, [what]
    names = [what] if isinstance(what, str) else list(what or [])
    made = {one: method_plan(one, loaded.size, uncertified=uncertified, **given) for one in names if one != REFERENCE}
    plans = list(made.values()) or [method_plan("noisy-sgd", loaded.size, uncertified=False, **given)]
    return loaded, {REFERENCE: None, **made}, plans


def method_plan(
    name: str, dataset_size: int, *, noise_multiplier: float, clipping_norm: float, sample_rate: float, steps: int,
    uncertified: bool,
) -> Plan:  # fmt: skip
    """The plan of a method at a given noise, for a comparison: it says what that costs."""
    _check.whole(steps=steps)
    return plan(
        delta=min(1e-5, 1 / (10 * dataset_size)), dataset_size=dataset_size, sample_rate=sample_rate, steps=steps,
        method=name, noise_multiplier=noise_multiplier, clipping_norm=clipping_norm,
        solve="epsilon", uncertified=uncertified, **dict.fromkeys(method(name).needs, RHO),
    )  # fmt: skip


def attack_settings(plan: Plan, *, model: str | None, otherwise: str | None = None) -> Settings:
    """How the plan is trained here: by its own table where it has one."""
    table = {key: value for key, value in plan.recipe.training.items() if key in _KEPT}
    own = None if "weights" in table else otherwise  # weights are of the task's network
    return Settings.of({"model": own, "device": "cpu", **table, **({} if model is None else {"model": model})})


def guarantee_text(source: Source) -> str:
    return "none" if source is None else str(source.guarantee)


MODEL = "shallow-cnn"  # what Wei and Liu attack
FORMAT = "privet-attack-1"
ALL = -1  # in place of a step's number: the whole run

Tell = Callable[[str, int, int], None]  # (done, of, what is next)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackReport:
    """All outcomes, the baselines beside them, and what was attacked."""

    task: str
    settings: dict[str, Any]
    baselines: dict[str, Measures]
    outcomes: tuple[Outcome, ...]
    guarantees: dict[str, str]  # of each method: what its plan costs
    truth: list[list[list[int]]]  # the first victim's image, 0 to 255

    def outcome(self, method: str, attack: str, *, step: int = 1) -> Outcome:
        return next(o for o in self.outcomes if (o.method, o.attack, o.step) == (method, attack, step))

    def as_dict(self) -> dict[str, Any]:
        rows, theirs = [], import_published("figures_printed")
        for outcome in self.outcomes:
            beside = theirs.printed_figures(outcome.method, self.task) if outcome.step == 1 else None
            rows.append(outcome.as_dict() | {"published": beside and {
                "iterations": beside.iterations, "success": beside.success, "mse": beside.mse,
            }})  # fmt: skip
        return {
            "task": self.task, "settings": self.settings, "guarantees": self.guarantees,
            "baselines": {name: found.as_dict() for name, found in self.baselines.items()}, "outcomes": rows,
        }  # fmt: skip

    def __str__(self) -> str:
        return format_table(self.task, self.settings, self.baselines, self.outcomes, self.guarantees)


def attack(
    what: "str | Sequence[str] | Plan | Run | None" = None, task: "str | Task | None" = None, *,
    attacks: Sequence[str] | None = None, examples: int = 100, batch_size: int = 1, candidates: int = 1000,
    at_steps: "Sequence[str | int]" = ("first",), model: str | None = None, noise_multiplier: float = 6.0,
    clipping_norm: float = 4.0, sample_rate: float = 0.01, steps: int = 100, uncertified: bool = False, seed: int = 0,
    out: "str | Path | None" = None, where: DataFolders | None = None, progress: Tell | None = None,
) -> AttackReport:  # fmt: skip
    """What one update gives away: each attack on each method at each step, with controls, baselines and ceilings.

    The attacker knows the weights, the rule, the noise and every other record of the step; of its own victim it knows
    nothing, or that it is one of K candidates (`prior`). Training without privacy is always attacked too. Everything is
    simulated with a seed, and can be had again.

    Args:
        what: names of methods, a plan, or a run; None is training without privacy alone.
        attacks: invert-l2 and prior, unless they are given; for several records in an update, invert-l2.
        task: images with classes; a run brings its own.
        batch_size: unknown records in an update, 1 to 8.
        candidates: K, the victims among them.
        at_steps: of first, middle, last, and numbers from 1; a run is looked at where its checkpoint stands. `all` is
            the whole run of a plan, for `prior`.
        model: `shallow-cnn` with sigmoids unless a plan or run says otherwise.
        noise_multiplier, clipping_norm, sample_rate, steps: of the plans of methods given by name; the first two are
            those of Wei and Liu.
        uncertified: methods by the papers' own rules, which may have no guarantee.
        out: a folder where outcomes are kept; those that are there already are not computed again.
        progress: told (done, of, what is next).

    >>> found = attack(None, "digits:size=300", attacks=["prior"], examples=5, candidates=50)
    >>> found.outcome("non-private", "prior").found.top1
    5

    Raises:
        InvalidValue: a method, attack, step or number is not what it must be.
        Unsupported: the task is not one of images.
    """
    loaded, sources, plans = resolve_sources(
        what, task, where, uncertified, noise_multiplier=noise_multiplier, clipping_norm=clipping_norm,
        sample_rate=sample_rate, steps=steps,
    )  # fmt: skip
    attacks = (("invert-l2", "prior") if batch_size == 1 else ("invert-l2",)) if attacks is None else attacks
    made = {spelling: resolve_attack(spelling) for spelling in attacks}
    _check_request(made, at_steps)
    victims = observing.choose_targets(loaded, examples=examples, batch=batch_size, candidates=candidates, seed=seed)
    k = len(victims.candidates[0])
    settings = {
        "examples": examples, "batch_size": batch_size, "candidates": k, "seed": seed, "model": model,
        "at_steps": [str(word) for word in at_steps], "uncertified": uncertified,
    }  # fmt: skip
    cells = [
        (name, number, spelling)
        for name in sources for number in _step_numbers(plans, sources[name], at_steps) for spelling in made
        if number != ALL or (spelling == "prior" and isinstance(sources[name], Plan))
    ]  # fmt: skip
    shelf = _Shelf(out, {"task": loaded.name, "dataset_size": loaded.size, **settings}, plans[0])
    outcomes: list[Outcome] = []
    for name, source in sources.items():
        moments: dict[int, observing.AttackedStep] = {}
        for _, number, spelling in (cell for cell in cells if cell[0] == name):
            if progress is not None:
                progress(f"{name}, step {number + 1 or 'all'}, {spelling}", len(outcomes), len(cells))
            file = shelf.place(name, source, number, spelling)
            outcome = shelf.read(file)
            if outcome is None and number == ALL:
                assert isinstance(source, Plan)
                settings_ = attack_settings(source, model=model, otherwise=MODEL)
                outcome = _attack_whole_run(name, source, loaded, victims, settings_, seed)
                shelf.store(file, outcome)
            elif outcome is None:
                numbers = _step_numbers(plans, source, at_steps)
                moments = moments or _attacked_steps(source, loaded, numbers, plans, model, seed)
                outcome = _run_attack(name, source, moments[number], loaded, victims, spelling, made[spelling], seed)
                shelf.store(file, outcome)
            outcomes.append(outcome)
    if progress is not None:
        progress("done", len(cells), len(cells))
    return AttackReport(
        task=loaded.name, settings=settings, baselines=baselines(victims, seed=seed), outcomes=tuple(outcomes),
        guarantees={n: guarantee_text(s) for n, s in sources.items()}, truth=to_pixels(victims.inputs[0, 0]),
    )  # fmt: skip


def _step_numbers(plans: list[Plan], source: Source, at_steps: "Sequence[str | int]") -> list[int]:
    if isinstance(source, Run):
        return [min(source.steps, len(source.plan.steps) - 1)]
    found = observing.parse_step_numbers([word for word in at_steps if word != "all"], len((source or plans[0]).steps))
    return found + [ALL] * ("all" in at_steps)


def _check_request(made: "Mapping[str, Attack]", at_steps: "Sequence[str | int]") -> None:
    if not made:
        raise InvalidValue("attacks=() must name one. There is nothing to do without. Give ['invert-l2'], for example.")
    if "all" in at_steps and "prior" not in made:
        raise InvalidValue("at_steps='all' is for the attack `prior`. Others look at one update. Add prior.")


def _attacked_steps(
    source: Source, task: Task, numbers: list[int], plans: list[Plan], model: str | None, seed: int
) -> dict[int, observing.AttackedStep]:
    if isinstance(source, Run):
        return {numbers[0]: observing.attacked_step_of_run(source, task)}
    settings = attack_settings(source or plans[0], model=model, otherwise=MODEL)
    made = observing.attacked_steps_of_plan(source, task, numbers, sampled=plans[0], settings=settings, seed=seed)
    return {moment.number: moment for moment in made}


# --- one attack -------------------------------------------------------------------------------------


def _run_attack(
    name: str, source: Source, moment: observing.AttackedStep, task: Task, victims: observing.TargetRecords,
    spelling: str, made: Any, seed: int,
) -> Outcome:  # fmt: skip
    plan = source.plan if isinstance(source, Run) else source
    seen = observing.observe(moment, task, victims, randomness=seeded(seed, 2, moment.number))
    empty = observing.observe(moment, task, victims, randomness=seeded(seed, 3, moment.number), is_control=True)
    found, control = made.run(seen), made.run(empty)
    is_covered = not (isinstance(source, Run) and source.non_private_preprocessing)
    ceilings = _identification_ceilings(plan if is_covered else None, moment, victims)
    return Outcome(
        method=name, attack=spelling, step=moment.number + 1, found=measure_reconstruction(found, victims),
        control=measure_reconstruction(control, victims),
        noise_multiplier=None if moment.step is None else moment.step.noise_multiplier,
        clipping_norm=None if moment.step is None else moment.step.clipping_norm, std=seen.std,
        rule=None if plan is None else plan.rule,
        ceiling=ceilings[0], run_ceiling=ceilings[1], iterations=float(found.iterations.float().mean()),
        evaluations=float(found.evaluations.float().mean()), seconds=found.seconds,
        frames=_picture_frames(found, control),
    )  # fmt: skip


def _attack_whole_run(
    name: str, plan: Plan, task: Task, victims: observing.TargetRecords, settings: Settings, seed: int
) -> Outcome:
    """Identification from a whole run of a plan."""
    found, control = identify_from_run(plan, task, victims, settings=settings, seed=seed)
    ceiling = _plan_ceiling(plan, len(victims.candidates[0]))
    return Outcome(
        method=name, attack="prior", step=0, found=measure_reconstruction(found, victims),
        control=measure_reconstruction(control, victims), noise_multiplier=float(plan.steps.noise_multipliers.min()),
        clipping_norm=plan.steps[0].clipping_norm,
        std=None, rule=plan.rule, ceiling=ceiling, run_ceiling=ceiling, iterations=float(len(plan.steps)),
        evaluations=float(found.evaluations[0]), seconds=found.seconds, frames=_picture_frames(found, control),
    )  # fmt: skip


def _identification_ceilings(
    plan: Plan | None, moment: observing.AttackedStep, victims: observing.TargetRecords
) -> tuple[float | None, float | None]:
    """The most that any attack can identify: from this step, and from the whole run.

    Of several unknown records none is given: which reconstruction belongs to which is read off the truth.
    """
    candidates = len(victims.candidates[0])
    if plan is None or plan.is_unsound or moment.step is None or victims.batch > 1:
        return None, None
    return one_step_ceiling(candidates, 1 / moment.step.noise_multiplier), _plan_ceiling(plan, candidates)


def _plan_ceiling(plan: Plan, candidates: int) -> float | None:
    try:
        return run_ceiling(candidates, tradeoff(plan.ledger(), adjacency=plan.recipe.budget.adjacency))
    except PrivetError:  # no certified curve covers this sampling
        return None


def _picture_frames(found: Reconstruction, control: Reconstruction) -> dict[str, list[list[list[int]]]]:
    """Pictures of the first victim: after some iterations, at the end, and what the control ended with."""
    kept = {str(number): to_pixels(images[0, 0]) for number, images in sorted(found.frames.items())}
    return kept | {"end": to_pixels(found.inputs[0, 0]), "control": to_pixels(control.inputs[0, 0])}


def to_pixels(image: Tensor) -> list[list[list[int]]]:
    shown = image.nan_to_num(0.5).clamp(0, 1).mul(255).round().int().movedim(0, -1)
    found: list[list[list[int]]] = shown.tolist()
    return found


# --- what was done already --------------------------------------------------------------------------


class _Shelf:
    """Outcomes in a folder, each in a file named after everything that it depends on."""

    def __init__(self, folder: "str | Path | None", settings: dict[str, Any], sampled: Plan) -> None:
        steps = sampled.steps  # without privacy, batches are drawn by these
        self._batches = [
            steps.sample_rate, str(steps.batch_schedule), len(steps), str(steps.sampling),
            repr(sampled.recipe.training),
        ]  # fmt: skip
        self._folder = None if folder is None else Path(folder)
        self._settings = {key: value for key, value in settings.items() if key != "at_steps"}
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidValue(
                    f"out={str(self._folder)!r} cannot be made: {error.strerror}. Choose another."
                ) from None

    def read(self, file: Path | None) -> Outcome | None:
        if file is None or not file.exists():
            return None
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            return convert(kept["outcome"], Outcome) if kept["format"] == FORMAT else None
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            return None  # damaged: computed again

    def store(self, file: Path | None, outcome: Outcome) -> None:
        if file is not None:
            text = json.dumps({"format": FORMAT, "settings": self._settings, "outcome": asdict(outcome)})
            write_new(file, text.encode())

    def place(self, name: str, source: Source, number: int, spelling: str) -> Path | None:
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
