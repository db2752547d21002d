"""Networks by name; each is made for the facts of a task: its shape, its classes, its words."""

import inspect
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from privet import _check
from privet._registry import Registry
from privet._text import shorten
from privet.errors import InvalidValue

registry: Registry[nn.Module] = Registry("model", group="privet.models")
register = registry.register


def model(spelling: str, **facts: Any) -> nn.Module:
    """The network called `spelling`, told those of the `facts` that it asks for."""
    name, text = registry.split(spelling)
    maker = registry.maker(name)
    if name not in registry:
        _check_own(name, maker)
    asked = inspect.signature(maker).parameters
    known = {key: fact for key, fact in facts.items() if key in asked}
    return registry.make(name, **known | registry.options(name, text))


def _check_own(name: str, maker: Any) -> None:
    """Raise unless a user's own is a class of networks: a recipe from elsewhere must not call just anything."""
    if not (isinstance(maker, type) and issubclass(maker, nn.Module)):
        raise InvalidValue(
            f"model={shorten(name)!r} must be a class made from torch's nn.Module. A plan may name it, and must not "
            "call just anything. Write `class Net(nn.Module):`."
        )


def output_width(body: nn.Module, shape: tuple[int, ...]) -> int:
    with torch.no_grad():
        return int(body(torch.zeros(1, *shape)).numel())


def check_image(name: str, shape: tuple[int, ...], *, least: int) -> None:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InvalidValue(
            f"shape={tuple(shape)!r} does not suit the model {name!r}. It reads images (channels, height, width) of at "
            f"least {least} x {least}. Take another model: mlp and linear read anything."
        )


# --- dense ------------------------------------------------------------------------------------------


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


# --- images -----------------------------------------------------------------------------------------


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


class ChannelsLast(nn.Sequential):
    """Parts through which images flow with their channels last in memory: on a CPU `cnn` takes half of the time.

    Most of it since torch pools such images by vector instructions. Weights stay as they are, since a file of them must
    be contiguous; only the first ones are said to be channels-last, which is the same for grey images, where the input
    cannot say so.
    """

    def __init__(self, first: nn.Conv2d, *rest: nn.Module) -> None:
        grey = first.in_channels == 1
        super().__init__(first.to(memory_format=torch.channels_last) if grey else first, *rest)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(x.movedim(-3, -1).contiguous().movedim(-1, -3))  # type: ignore[no-untyped-call]
        return found


@register("cnn")
def cnn(*, shape: tuple[int, int, int], classes: int, activation: str = "relu") -> nn.Module:
    """Two convolutions and two dense layers: 16 filters 8 x 8 with stride 2, 32 filters 4 x 4 with stride 2, 32 units.

    26,010 parameters for 28 x 28 images of 10 classes. Used by Bu et al. 2019 (arXiv:1911.11607), Section 4.1, which
    follows the tutorial of TensorFlow Privacy. Du et al. 2021, Section 5, train "a CNN" on MNIST and Fashion-MNIST and
    compare it with Bu et al.; the text does not give its layers, and this is the network we run for them.
    """
    check_image("cnn", shape, least=14)
    _check.one_of(_ACTIVATIONS, activation=activation)
    return _pooled_cnn(shape, classes, filters=16, hidden=32, bend=_ACTIVATIONS[activation])


@register("shallow-cnn")
def shallow_cnn(
    *, shape: tuple[int, int, int], classes: int, filters: int = 12, activation: str = "sigmoid"
) -> nn.Module:
    """Two convolutions 5 x 5 with stride 2 and one dense layer.

    Wei and Liu 2021, Section VI, use "two convolutional layers and one fully connected layer" on MNIST, Fashion-MNIST,
    CIFAR10 and LFW, and say no more. Filters, stride and the sigmoid are ours: they are what gradient leakage attacks
    by L-BFGS need, since they differentiate twice. `activation=relu` trains better. 9,814 parameters for 28 x 28 images
    of 10 classes.
    """
    check_image("shallow-cnn", shape, least=5)
    _check.whole(filters=filters)
    _check.one_of(_ACTIVATIONS, activation=activation)
    body = nn.Sequential(
        nn.Conv2d(shape[0], filters, 5, stride=2, padding=2), _ACTIVATIONS[activation](),
        nn.Conv2d(filters, filters, 5, stride=2, padding=2), _ACTIVATIONS[activation](), nn.Flatten(),
    )  # fmt: skip
    return ChannelsLast(*body, nn.Linear(output_width(body, shape), classes))


@register("pool-cnn")
def pool_cnn(*, shape: tuple[int, int, int], classes: int, filters: int = 8) -> nn.Module:
    """Convolutions 5 x 5 with stride 2 and 3 x 3, of 8 and 16 filters, one max pooling, two dense layers; ReLU.

    Auto DP-SGD (arXiv:2312.02400), Section 5, has for MNIST "two convolutional layers, fully connected layers, a Max
    Pool layer, and a ReLU". The sizes are ours, small enough for its 93,750 steps on one core; there is no dropout.
    14,538 parameters for 28 x 28 images of 10 classes.
    """
    check_image("pool-cnn", shape, least=11)
    _check.whole(filters=filters)
    body = nn.Sequential(
        nn.Conv2d(shape[0], filters, 5, stride=2), nn.ReLU(), nn.Conv2d(filters, 2 * filters, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    hidden = 4 * filters
    return ChannelsLast(*body, nn.Linear(output_width(body, shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


@register("tanh-cnn")
def tanh_cnn(*, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The plan of `cnn` with half the filters, 20 units and tanh, which keeps activations bounded under clipping.

    Small networks lose less to noise, which grows with the number of parameters: 7,934 for 28 x 28 images of 10
    classes. `cnn:activation=tanh` is the full size.
    """
    check_image("tanh-cnn", shape, least=14)
    return _pooled_cnn(shape, classes, filters=8, hidden=20, bend=nn.Tanh)


def _pooled_cnn(
    shape: tuple[int, int, int], classes: int, *, filters: int, hidden: int, bend: Callable[[], nn.Module]
) -> nn.Module:
    """Convolutions 8 x 8 and 4 x 4 with stride 2, each with max pooling 2 x 2 of stride 1; two dense layers."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], filters, 8, stride=2, padding=3), bend(), nn.MaxPool2d(2, 1),
        nn.Conv2d(filters, 2 * filters, 4, stride=2), bend(), nn.MaxPool2d(2, 1), nn.Flatten(),
    )  # fmt: skip
    return ChannelsLast(*body, nn.Linear(output_width(body, shape), hidden), bend(), nn.Linear(hidden, classes))
