"""Identification: which of K known records made the update? The strongest attack, and the one with a ceiling."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy import special
from torch import Tensor
from torch.nn import functional as F

from privet import _check
from privet.accounting.tradeoff import Curve
from privet.attacks.base import Observation, Reconstruction, register
from privet.errors import InvalidValue, Unsupported


@register("prior")
@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
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
                f"batch={observation.batch} is more than one example. `prior` tells which one it was. Use batch 1."
            )
        inputs, labels = observation.candidates
        scores = _fits(observation, inputs, labels)  # (N, K)
        best = scores.argmax(1)
        ones = torch.ones(observation.size, dtype=torch.int64)
        return Reconstruction(
            inputs=inputs[best][:, None], labels=labels[best][:, None], loss=-scores.max(1).values, iterations=ones,
            evaluations=ones * len(inputs), seconds=time.perf_counter() - begun, scores=scores,
        )  # fmt: skip


def _fits(seen: Observation, inputs: Tensor, labels: Tensor) -> Tensor:
    """-|update - c_k|^2 / 2 up to what is the same for all k, (N, K)."""
    update = torch.cat([u.flatten(1) for u in seen.update.values()], 1).double()
    return torch.cat([fit(update, flat) for flat in flat_gradients(seen, inputs, labels)], 1)


def fit(update: Tensor, flat: Tensor) -> Tensor:
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

    >>> round(one_step_ceiling(256, 1.0), 3)
    0.048
    """
    _check.whole(least=2, candidates=candidates)
    _check.non_negative(mu=mu)
    return float(special.ndtr(special.ndtri(1 / candidates) + mu))


def run_ceiling(candidates: int, curve: Curve) -> float:
    """The same for everything that a run gives out, from its trade-off curve: 1 - f(1/K).

    Guessing right is a test of the guessed record: under records that had no part, each is guessed 1/K of the time on
    average, and power at that false-positive rate is at most 1 - f(1/K), as f is convex.

    >>> from privet.accounting.tradeoff import Gaussian
    >>> round(run_ceiling(256, Gaussian(mu=1.0)), 3)
    0.048
    """
    _check.whole(least=2, candidates=candidates)
    return float(1 - curve(1 / candidates))
