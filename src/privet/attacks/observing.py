"""Whom an attack is tried on: records drawn from the training set, hidden among known candidates."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privet import _check
from privet.accounting import Step
from privet.accounting.guarantee import Adjacency
from privet.attacks.base import Grads, Observation, example_gradients
from privet.clipping.clipped_sum import Clipper, clipped_sum
from privet.clipping.rule import ClippingRule, clipping_rule, is_adaptive, is_published
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import Randomness, seeded
from privet.noise.release import release
from privet.per_example.forms import Dense
from privet.planning import Plan
from privet.sampling.loading import gather
from privet.sampling.samplers import sampler
from privet.training import checkpoint
from privet.training.baseline import step_plainly
from privet.training.run import Run
from privet.training.settings import Settings
from privet.training.setup import TrainingSetup, build_setup
from privet.training.training import Training

MOST_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetRecords:
    """N groups of `batch` records, each attacked on its own, and the K candidates that they are among."""

    inputs: Tensor  # (N, batch, *shape), in [0, 1]
    labels: Tensor  # (N, batch)
    places: Tensor  # (N, batch): where each stands among the candidates
    candidates: tuple[Tensor, Tensor]
    classes: int

    @property
    def size(self) -> int:
        return len(self.inputs)

    @property
    def batch(self) -> int:
        return self.inputs.shape[1]


def choose_targets(
    task: Task, *, examples: int, batch: int = 1, candidates: int = 1000, seed: int = 0
) -> TargetRecords:
    """`examples` victims of `batch` records each, all different, drawn evenly from K candidates of the training set."""
    _check.whole(examples=examples, batch_size=batch)
    _check.whole(least=2, candidates=candidates)
    shape, classes = task.facts.get("shape"), task.facts.get("classes")
    if shape is None or classes is None or len(shape) != 3:
        raise Unsupported(
            f"task={task.name!r} is not one of images with classes. The attack reconstructs images. Use digits, mnist "
            "or cifar10, or attack it with --membership."
        )
    if batch > MOST_BATCH:
        raise InvalidValue(
            f"batch_size={batch} must be at most {MOST_BATCH}. Reconstruction from larger batches is not "
            "attempted. Use fewer."
        )
    most = min(candidates, task.size)
    if not examples * batch <= most:
        raise InvalidValue(
            f"examples={examples} of {batch} examples are more than the {most} candidates. Every target is a "
            "candidate. Use fewer, or more candidates."
        )
    source = torch.Generator().manual_seed(seed)
    inputs, labels = gather(task.train, torch.randperm(task.size, generator=source)[:most])
    places = torch.randperm(most, generator=source)[: examples * batch].view(examples, batch)
    return TargetRecords(
        inputs=inputs[places], labels=labels[places], places=places, candidates=(inputs, labels), classes=classes
    )


WORDS = ("first", "middle", "last")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttackedStep:
    """Just before a step: its number, the network with its weights, the step, and the rule in force.

    Without privacy, step and rule are None.
    """

    number: int
    model: nn.Module
    step: Step | None = None
    rule: ClippingRule | None = None
    divisor: float = 1.0  # the public batch
    adjacency: Adjacency = "zero-out"


def parse_step_numbers(words: Sequence["str | int"], length: int) -> list[int]:
    """Step numbers from 0, of `first`, `middle`, `last` or numbers from 1."""
    named = {"first": 0, "middle": length // 2, "last": length - 1}
    found = []
    for word in words:
        if isinstance(word, str) and word in named:
            found.append(named[word])
            continue
        try:
            number = int(word)
        except ValueError:
            number = 0
        if not 1 <= number <= length:
            raise InvalidValue(
                f"at_steps={word!r} must be {', '.join(WORDS)} or a number from 1 to {length}. The plan has so many "
                "steps. Give one of them."
            )
        found.append(number - 1)
    return list(dict.fromkeys(found))


# --- where weights come from ------------------------------------------------------------------------


def attacked_steps_of_plan(
    plan: Plan | None, task: Task, numbers: Sequence[int], *, sampled: Plan, settings: Settings, seed: int
) -> list[AttackedStep]:
    """The moments before these steps of a run of `plan`, made here; without privacy if it is None.

    `sampled` is the plan whose batches are drawn where there is no privacy. First weights depend on the seed alone, so
    all plans start alike.
    """
    if plan is None:
        return _non_private_steps(
            build_setup(sampled, task, settings, weights_seed=seed, group=None), sampled, numbers, seed
        )  # fmt: skip
    training = simulate_training(plan, task, settings=settings, seed=seed)
    found, open_ = [], sorted(numbers)
    with training:
        if open_[-1] > 0:
            for x, y in training:
                while open_ and open_[0] <= training.steps_done:
                    found.append(_make_attacked_step(open_.pop(0), plan, training.model, training.rule))
                if not open_:
                    break
                training.step(task.losses, x, y)
        found += [_make_attacked_step(number, plan, training.model, training.rule) for number in open_]
    return found


def simulate_training(plan: Plan, task: Task, *, settings: Settings, seed: int) -> Training:
    parts = build_setup(plan, task, settings, weights_seed=seed, group=None)
    return Training(
        parts.model, parts.optimizer, task.train, plan, randomness=seeded(seed, 1), uncertified=plan.is_unsound,
        max_physical_batch_size=settings.max_physical_batch_size,
    )  # fmt: skip


def _make_attacked_step(number: int, plan: Plan, model: nn.Module, rule: ClippingRule) -> AttackedStep:
    step = plan.steps[number]
    return AttackedStep(
        number=number, model=copy.deepcopy(model).eval(), step=step, rule=copy.deepcopy(rule),
        divisor=step.sample_rate * plan.recipe.dataset_size, adjacency=plan.recipe.budget.adjacency,
    )  # fmt: skip


def _non_private_steps(parts: TrainingSetup, sampled: Plan, numbers: Sequence[int], seed: int) -> list[AttackedStep]:
    found, task = [], parts.task
    open_ = sorted(numbers)
    for number, indices in enumerate(sampler(sampled, records=task.size, randomness=seeded(seed, 1))):
        while open_ and open_[0] <= number:
            found.append(AttackedStep(number=open_.pop(0), model=copy.deepcopy(parts.model).eval()))
        if not open_:
            break
        x, y = gather(task.train, indices)
        if len(indices):
            step_plainly(parts.optimizer, task.losses(parts.model(x), y))
    return found


def attacked_step_of_run(run: Run, task: Task) -> AttackedStep:
    """The moment at which a saved run's checkpoint stands: before its next step, or before its last if it is over."""
    if run.checkpoint is None:
        raise InvalidValue(f"{run.folder}: has no weights yet. They are saved at evaluations. Resume the run.")
    kept = checkpoint.peek(run.checkpoint)
    rule = clipping_rule(run.plan.rule, uncertified=run.plan.is_unsound)
    if is_adaptive(rule) and kept.rule_state is not None:
        rule.load_state_dict(kept.rule_state)
    number = min(int(kept.extra.get("step", run.steps)), len(run.plan.steps) - 1)
    return _make_attacked_step(number, run.plan, run.network(task), rule)


# --- what is seen there -----------------------------------------------------------------------------


def observe(
    moment: AttackedStep, task: Task, victims: TargetRecords, *, randomness: Randomness, is_control: bool = False
) -> Observation:
    """The update of each victim at a moment, noise and all, by the engine itself; a control has the noise alone.

    The attacker knows every other record of the step and has taken it out.
    """
    parameters = {name: p for name, p in moment.model.named_parameters() if p.requires_grad}
    state = {name: t.detach() for name, t in (*moment.model.named_parameters(), *moment.model.named_buffers())}
    if moment.rule is None:
        std: float | None = 0.0
        x, y = victims.inputs.flatten(0, 1), victims.labels.flatten()
        one_hot = nn.functional.one_hot(y, victims.classes).to(x)
        grads = example_gradients(moment.model, state, x, one_hot, names=parameters)
        shape = (victims.size, victims.batch)
        update = {n: g.detach().view(*shape, *g.shape[1:]).sum(1) for n, g in grads.items()}
        update = {name: torch.zeros_like(u) for name, u in update.items()} if is_control else update
    else:
        update, std = _private_updates(moment, task, victims, parameters, randomness, is_control=is_control)
    return Observation(
        model=moment.model, state=state, update=update, shape=tuple(victims.inputs.shape[2:]), classes=victims.classes,
        batch=victims.batch, step=moment.number, rule=moment.rule, std=std, candidates=victims.candidates,
        clipping_norm=torch.inf if moment.step is None else moment.step.clipping_norm,
    )  # fmt: skip


def _private_updates(
    moment: AttackedStep, task: Task, victims: TargetRecords, parameters: Any, randomness: Randomness, *,
    is_control: bool,
) -> tuple[dict[str, Tensor], "float | None"]:  # fmt: skip
    assert moment.rule is not None
    assert moment.step is not None
    rows, std = [], None
    published, clip = is_published(moment.rule), moment.step.clipping_norm
    for x, y in zip(victims.inputs, victims.labels, strict=True):
        rule = copy.deepcopy(moment.rule)  # it learns from a release, and every victim's is the first
        if is_control:
            clipper = Clipper(rule, parameters)
            whole = clipper.zero(clipper.rule.clip_in_force(clip))
        else:
            whole = clipped_sum(moment.model, task.losses, (x, y), rule=rule, clipping_norm=clip, uncertified=published)
        found = release(
            whole, rule, step=moment.step, batch_size=moment.divisor, randomness=randomness, adjacency=moment.adjacency,
            uncertified=published,
        )  # fmt: skip
        rows.append(_recover_noisy_sum(found.grads, moment.rule, moment.divisor))
        std = found.std
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}, std


def _recover_noisy_sum(grads: Grads, rule: ClippingRule, divisor: float) -> dict[str, Tensor]:
    """The noisy sum behind a release: public centre, scale and divisor are taken out again."""
    if not is_adaptive(rule):
        return {name: g * divisor for name, g in grads.items()}
    found = {}
    for name, g in grads.items():
        zero, one = rule.transform(name, Dense(torch.stack([torch.zeros_like(g), torch.ones_like(g)]))).materialize()
        found[name] = (g * (one - zero) + zero) * divisor  # (g - centre) / scale, coordinate by coordinate
    return found
