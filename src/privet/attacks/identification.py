"""Identification: which of K known records made the update? The strongest attack, and the one with a ceiling."""

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy import special
from torch import Tensor
from torch.nn import functional as F

from privet import _check
from privet.accounting import Step
from privet.accounting.guarantee import Adjacency
from privet.accounting.tradeoff import Curve
from privet.attacks.base import Observation, Reconstruction, register
from privet.attacks.observing import TargetRecords, simulate_training
from privet.clipping.rule import ClippingRule, bounded
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.noise.gaussian import noise_std
from privet.planning import Plan
from privet.training.settings import Settings


@register("prior")
@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateIdentification:
    """The candidate whose clipped gradient is nearest to the update: the most likely one under Gaussian noise.

    log p(update | k) = -|update - c_k|^2 / (2 std^2) + const; with K candidates as likely as each other beforehand, no
    attack on one step does better. Source: Hayes, Mahloujifar, Balle 2023, arXiv:2302.07225.
    """

    def run(self, observation: Observation) -> Reconstruction:
        begun = time.perf_counter()
        if observation.candidates is None:
            raise InvalidValue("candidates=None: `prior` chooses among known examples. Give some to the observation.")
        if observation.batch != 1:
            raise Unsupported(
                f"batch_size={observation.batch} is more than one example. `prior` tells which one it was. Use batch 1."
            )
        scores = _candidate_scores(observation, *observation.candidates)  # (N, K)
        return _most_likely_candidates(scores, observation.candidates, 1, time.perf_counter() - begun)


def _candidate_scores(seen: Observation, inputs: Tensor, labels: Tensor) -> Tensor:
    """-|update - c_k|^2 / 2 up to what is the same for all k, (N, K)."""
    update = torch.cat([u.flatten(1) for u in seen.update.values()], 1).double()
    return torch.cat([log_likelihood_ratio(update, flat) for flat in flat_gradients(seen, inputs, labels)], 1)


def log_likelihood_ratio(update: Tensor, flat: Tensor) -> Tensor:
    """<update, c_k> - |c_k|^2 / 2: the log-likelihood ratio of k against nothing, times std^2; (N, K)."""
    return update @ flat.T - flat.square().sum(1) / 2


def flat_gradients(seen: Observation, inputs: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """What each record would add to an update, as rows of numbers, in pieces."""
    for rows in torch.split(torch.arange(len(inputs)), seen.rows):
        one_hot = F.one_hot(labels[rows], seen.classes).to(inputs.dtype)
        grads = seen.gradients(inputs[rows], one_hot)
        yield torch.cat([grads[name].detach().flatten(1) for name in seen.update], 1).double()


def one_step_ceiling(candidates: int, mu: float) -> float:
    """The most often that any attack finds the record among K equally likely ones, from one mu-GDP release.

        Phi(Phi^-1(1/K) + mu)

    Source: Hayes, Mahloujifar, Balle 2023, arXiv:2302.07225 (Gaussian mechanism).
    """
    _check.whole(least=2, candidates=candidates)
    _check.non_negative(mu=mu)
    return float(special.ndtr(special.ndtri(1 / candidates) + mu))


def run_ceiling(candidates: int, curve: Curve) -> float:
    """The same for everything that a run gives out, from its trade-off curve: 1 - f(1/K).

    Guessing right is a test of the guessed record: under records that had no part, each is guessed 1/K of the time on
    average, and power at that false-positive rate is at most 1 - f(1/K), as f is convex.
    """
    _check.whole(least=2, candidates=candidates)
    return float(1 - curve(1 / candidates))


def identify_from_run(
    plan: Plan, task: Task, victims: TargetRecords, *, settings: Settings, seed: int
) -> tuple[Reconstruction, Reconstruction]:  # fmt: skip
    """Which of the candidates took part in a run, and the same guessed from noise alone.

        log p(k) = sum over steps of log(1 - q + q exp((<u, c_k> - |c_k|^2 / 2) / std^2))

    u is a step's update without all known records: the victim's clipped gradient with chance q, and noise. All victims
    are tried along one run, each with coins and noise of its own; weights are those of that run, which privacy allows
    for. Steps in which nobody took part are left out.
    """
    if plan.is_unsound or victims.batch != 1 or plan.steps[0].sampling.name != "poisson":
        raise Unsupported(
            f"rule={plan.rule!r}, batch_size={victims.batch}: a whole run is attacked with a sound rule, Poisson "
            "sampling and one example for each victim. Leave `all` out of the steps."
        )
    begun, source = time.perf_counter(), torch.Generator().manual_seed(seed)
    scores = torch.zeros(2 * victims.size, len(victims.candidates[0]), dtype=torch.float64)
    training = simulate_training(plan, task, settings=settings, seed=seed)
    looked_at = -1
    with training:
        for x, y in training:
            if training.steps_done > looked_at:  # a batch may come in pieces: it is released once
                looked_at = training.steps_done
                step = plan.steps[looked_at]
                seen = _public_observation(
                    copy.deepcopy(training.model).eval(), training.rule, step, victims
                )  # watched: its own
                scores += _step_log_likelihoods(seen, step, victims, source, adjacency=plan.recipe.budget.adjacency)
            training.step(task.losses, x, y)
    seconds = time.perf_counter() - begun
    halves = (scores[: victims.size], scores[victims.size :])
    found, control = (_most_likely_candidates(half, victims.candidates, len(plan.steps), seconds) for half in halves)
    return found, control


def _public_observation(model: torch.nn.Module, rule: ClippingRule, step: Step, victims: TargetRecords) -> Observation:
    """What is public before a step; its one update is empty."""
    state = {name: t.detach() for name, t in (*model.named_parameters(), *model.named_buffers())}
    empty = {name: torch.zeros_like(p)[None] for name, p in model.named_parameters() if p.requires_grad}
    return Observation(
        model=model, state=state, update=empty, shape=tuple(victims.inputs.shape[2:]), classes=victims.classes,
        rule=rule, clipping_norm=step.clipping_norm,
    )  # fmt: skip


def _step_log_likelihoods(
    seen: Observation, step: Step, victims: TargetRecords, source: torch.Generator, *, adjacency: Adjacency
) -> Tensor:  # fmt: skip
    """One step's share in log p(k) for all victims, and for as many controls, (2 N, K)."""
    assert seen.rule is not None
    rule = bounded(seen.rule)
    bound = rule.bound(rule.clip_in_force(step.clipping_norm), len(rule.groups(list(seen.update))))
    std = noise_std(step, l2_bound=bound, adjacency=adjacency)
    own = torch.cat(list(flat_gradients(seen, victims.inputs[:, 0], victims.labels[:, 0])))
    took_part = torch.rand(len(own), 1, generator=source) < step.sample_rate
    update = torch.cat([own * took_part, torch.zeros_like(own)])
    update += std * torch.randn(update.shape, generator=source, dtype=torch.float64)
    ratios = (log_likelihood_ratio(update, flat) / std**2 for flat in flat_gradients(seen, *victims.candidates))
    return torch.cat([_mix_log_ratio(ratio, step.sample_rate) for ratio in ratios], 1)


def _mix_log_ratio(ratio: Tensor, rate: float) -> Tensor:
    """log(1 - q + q e^ratio)."""
    if rate == 1:
        return ratio
    return torch.logaddexp(torch.full_like(ratio, math.log1p(-rate)), ratio + math.log(rate))


def _most_likely_candidates(
    scores: Tensor, candidates: tuple[Tensor, Tensor], steps: int, seconds: float
) -> Reconstruction:
    inputs, labels = candidates
    best = scores.argmax(1)
    ones = torch.ones(len(scores), dtype=torch.int64)
    return Reconstruction(
        inputs=inputs[best][:, None], labels=labels[best][:, None], loss=-scores.max(1).values, iterations=ones * steps,
        evaluations=ones * steps * len(inputs), seconds=seconds, scores=scores,
    )  # fmt: skip
