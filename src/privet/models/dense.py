"""Networks of dense layers: a linear model, and perceptrons for records of attributes."""

import math
from itertools import pairwise

from torch import nn

from privet import _check
from privet.models.base import register


@register("linear")
def linear(*, shape: tuple[int, ...], classes: int) -> nn.Module:
    """One dense layer: multinomial logistic regression, under the cross-entropy loss.

    248 parameters for 123 attributes of 2 classes.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


@register("mlp")
def mlp(*, shape: tuple[int, ...], classes: int, hidden: int = 16, layers: int = 1) -> nn.Module:
    """`layers` hidden layers of `hidden` units with ReLU, then the output layer; inputs are flattened.

    By default the network of Bu et al. 2019 (arXiv:1911.11607), Section 4.1, for Adult: one hidden layer of 16 units,
    two outputs: 2,018 parameters for 123 attributes.

    `layers=2` is the network of Wei and Liu 2021 (Section VI) for attribute records, "a fully connected model with two
    hidden layers"; the paper gives neither width nor activation. `mlp:layers=2,hidden=128` has 99,890 parameters for
    the 600 attributes and 50 classes of Purchase.
    """
    _check.whole(hidden=hidden, layers=layers)
    widths = [math.prod(shape), *[hidden] * layers]
    body = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *body, nn.Linear(hidden, classes))
