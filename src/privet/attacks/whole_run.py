"""Identification from everything that a run gives out: the likelihoods of all its steps together."""

import copy
import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from privet.accounting import Step
from privet.accounting.guarantee import Relation
from privet.attacks.base import Observation, Reconstruction
from privet.attacks.moments import training_of
from privet.attacks.prior import fit, flat_gradients
from privet.attacks.victims import Victims
from privet.data.task import Task
from privet.engine.clip import Rule
from privet.engine.clip.bounded import bounded
from privet.engine.noise import noise_std
from privet.errors import Unsupported
from privet.planning import Plan
from privet.training.settings import Settings


def identify(
    plan: Plan, task: Task, victims: Victims, *, settings: Settings, seed: int
) -> tuple[Reconstruction, Reconstruction]:  # fmt: skip
    """Which of the candidates took part in a run, and the same guessed from noise alone.

        log p(k) = sum over steps of log(1 - q + q exp((<u, c_k> - |c_k|^2 / 2) / std^2))

    u is a step's update without all known records: the victim's clipped gradient with chance q, and noise. All victims
    are tried along one run, each with coins and noise of its own; weights are those of that run, which privacy allows
    for. Steps in which nobody took part are left out.

    Raises:
        Unsupported: the plan has no guarantee, so that its noise is not public; or a victim is several records.
    """
    if plan.is_unsound or victims.batch != 1 or plan.steps[0].sampling.name != "poisson":
        raise Unsupported(
            f"rule={plan.rule!r}, batch={victims.batch}: a whole run is attacked with a sound rule, Poisson sampling "
            "and one example for each victim. Leave `all` out of the steps."
        )
    begun, source = time.perf_counter(), torch.Generator().manual_seed(seed)
    scores = torch.zeros(2 * victims.size, len(victims.candidates[0]), dtype=torch.float64)
    training = training_of(plan, task, settings=settings, seed=seed)
    looked_at = -1
    with training:
        for x, y in training:
            if training.number > looked_at:  # a batch may come in pieces: it is released once
                looked_at = training.number
                step = plan.steps[looked_at]
                seen = _seen(copy.deepcopy(training.model).eval(), training.rule, step, victims)  # watched: its own
                scores += _likelihoods(seen, step, victims, source, relation=plan.recipe.budget.relation)
            training.step(task.losses, x, y)
    seconds = time.perf_counter() - begun
    halves = (scores[: victims.size], scores[victims.size :])
    found, control = (_chosen(half, victims, len(plan.steps), seconds) for half in halves)
    return found, control


def _seen(model: torch.nn.Module, rule: Rule, step: Step, victims: Victims) -> Observation:
    """What is public before a step; its one update is empty."""
    state = {name: t.detach() for name, t in (*model.named_parameters(), *model.named_buffers())}
    empty = {name: torch.zeros_like(p)[None] for name, p in model.named_parameters() if p.requires_grad}
    return Observation(
        model=model, state=state, update=empty, shape=tuple(victims.inputs.shape[2:]), classes=victims.classes,
        rule=rule, clip=step.clip,
    )  # fmt: skip


def _likelihoods(
    seen: Observation, step: Step, victims: Victims, source: torch.Generator, *, relation: Relation
) -> Tensor:  # fmt: skip
    """One step's share in log p(k) for all victims, and for as many controls, (2 N, K)."""
    assert seen.rule is not None
    rule = bounded(seen.rule)
    bound = rule.bound(rule.clip_in_force(step.clip), len(rule.groups(list(seen.update))))
    std = noise_std(step, norm_bound=bound, relation=relation)
    own = torch.cat(list(flat_gradients(seen, victims.inputs[:, 0], victims.labels[:, 0])))
    took_part = torch.rand(len(own), 1, generator=source) < step.rate
    update = torch.cat([own * took_part, torch.zeros_like(own)])
    update += std * torch.randn(update.shape, generator=source, dtype=torch.float64)
    return torch.cat([_mixed(fit(update, flat) / std**2, step.rate) for flat in _pieces(seen, victims)], 1)


def _pieces(seen: Observation, victims: Victims) -> Iterator[Tensor]:
    return flat_gradients(seen, *victims.candidates)


def _mixed(ratio: Tensor, rate: float) -> Tensor:
    """log(1 - q + q e^ratio)."""
    if rate == 1:
        return ratio
    return torch.logaddexp(torch.full_like(ratio, math.log1p(-rate)), ratio + math.log(rate))


def _chosen(scores: Tensor, victims: Victims, steps: int, seconds: float) -> Reconstruction:
    inputs, labels = victims.candidates
    best = scores.argmax(1)
    ones = torch.ones(len(scores), dtype=torch.int64)
    return Reconstruction(
        inputs=inputs[best][:, None], labels=labels[best][:, None], loss=-scores.max(1).values, iterations=ones * steps,
        evaluations=ones * steps * len(inputs), seconds=seconds, scores=scores,
    )  # fmt: skip
