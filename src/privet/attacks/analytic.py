"""Closed form: a first linear layer with a bias gives its input away."""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.attacks.base import Observation, Reconstruction, distances, register
from privet.attacks.invert import label_of_bias
from privet.errors import Unsupported


@register("analytic")
@dataclass(frozen=True, slots=True, kw_only=True)
class Analytic:
    """One record through a first linear layer: dL/dW = dL/db x^T, so x = sum_i dL/db_i dL/dW_i / sum_i (dL/db_i)^2.

    Least squares over all units: exact without noise, and the average over units with it. Clipping scales both alike
    and drops out. Source: Phong, Aono, Hayashi, Wang, Moriai 2018, section 3 (one unit).
    """

    def run(self, observation: Observation) -> Reconstruction:
        begun = time.perf_counter()
        if observation.batch != 1:
            raise Unsupported(
                f"batch={observation.batch} is more than one example. Their inputs are mixed in the first layer. Use "
                "invert-l2, or batch 1."
            )
        weight, bias = _first_layer(observation)
        found = torch.einsum("no,noi->ni", bias, weight) / bias.square().sum(1, keepdim=True).clamp(min=1e-30)
        inputs = found.view(observation.size, 1, *observation.shape)
        guessed = observation.labels if observation.labels is not None else label_of_bias(observation)
        labels = torch.zeros(observation.size, 1, dtype=torch.int64) if guessed is None else guessed
        one_hot = torch.nn.functional.one_hot(labels[:, 0], observation.classes).to(found)
        loss = distances(observation.gradients(inputs[:, 0], one_hot), observation.update)
        ones = torch.ones(observation.size, dtype=torch.int64)
        return Reconstruction(
            inputs=inputs, labels=labels, loss=loss.detach(), iterations=ones, evaluations=ones,
            seconds=time.perf_counter() - begun,
        )  # fmt: skip


def _first_layer(observation: Observation) -> tuple[Tensor, Tensor]:
    """The updates of the first layer's weight (N, O, I) and bias (N, O)."""
    first, update = next(iter(observation.update)), observation.update
    bias = first.removesuffix("weight") + "bias"
    if first.endswith("weight") and bias in update and update[first].shape[2:] == (math.prod(observation.shape),):
        return update[first], update[bias]
    raise Unsupported(
        f"parameter={first!r} is not the weight of a linear layer with a bias on the whole input. There is no closed "
        "form for it. Use invert-l2, or a model such as mlp."
    )
