"""The small networks of the papers, by name; each is made for the facts of a task: its shape, its classes.

In a recipe: `model = "cnn"`, `model = "mlp:hidden=64"`, or your own, `model = "my.module:Net:width=3"`.
"""

import inspect
from typing import Any

import torch
from torch import nn

from privet._registry import Registry
from privet.errors import InvalidValue

registry: Registry[nn.Module] = Registry("model")
register = registry.register


def model(spelling: str, **facts: Any) -> nn.Module:
    """The network called `spelling`, told those of the `facts` that it asks for.

    >>> model("cnn", shape=(1, 28, 28), classes=10, words=1000)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])

    Raises:
        InvalidValue: there is no such network, it has no such option, or what was made is not a network.
    """
    name, text = registry.split(spelling)
    asked = inspect.signature(registry.maker(name)).parameters
    known = {key: fact for key, fact in facts.items() if key in asked}
    made: Any = registry.make(name, **known | registry.options(name, text))
    if not isinstance(made, nn.Module):
        raise InvalidValue(f"model={spelling!r} gave a {type(made).__name__}. It must be a torch module.")
    return made


@register("cnn")
def cnn(*, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Two convolutions and two dense layers: 16 filters 8 x 8 with stride 2, 32 filters 4 x 4 with stride 2, 32 units.

    26,010 parameters for 28 x 28 images of 10 classes. Used by Bu et al. 2019, Section 4.1 (which follows the tutorial
    of TensorFlow Privacy).
    """
    body = nn.Sequential(
        nn.Conv2d(shape[0], 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(*body, nn.Linear(width_after(body, shape), 32), nn.ReLU(), nn.Linear(32, classes))


def width_after(body: nn.Module, shape: tuple[int, ...]) -> int:
    """How many values `body` makes of one input."""
    with torch.no_grad():
        return int(body(torch.zeros(1, *shape)).numel())
