"""Networks by name; each is made for the facts of a task: its shape, its classes, its words.

In a recipe: `model = "cnn"`, `model = "mlp:hidden=64"`, or your own, `model = "my.module:Net:width=3"`.
"""

import inspect
from typing import Any

import torch
from torch import nn

from privet._registry import Registry, shortened
from privet.errors import InvalidValue

registry: Registry[nn.Module] = Registry("model")
register = registry.register


def model(spelling: str, **facts: Any) -> nn.Module:
    """The network called `spelling`, told those of the `facts` that it asks for.

    >>> model("cnn", shape=(1, 28, 28), classes=10, words=1000)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])

    Raises:
        InvalidValue: there is no such network, it has no such option, or your own is not a class of networks.
    """
    name, text = registry.split(spelling)
    maker = registry.maker(name)
    if name not in registry.names():
        _check_own(name, maker)
    asked = inspect.signature(maker).parameters
    known = {key: fact for key, fact in facts.items() if key in asked}
    return registry.make(name, **known | registry.options(name, text))


def _check_own(name: str, maker: Any) -> None:
    """Raise unless a user's own is a class of networks: a recipe from elsewhere must not call just anything."""
    if not (isinstance(maker, type) and issubclass(maker, nn.Module)):
        raise InvalidValue(
            f"model={shortened(name)!r} must be a class made from torch's nn.Module. A plan may name it, and must not "
            "call just anything. Write `class Net(nn.Module):`."
        )


def width_after(body: nn.Module, shape: tuple[int, ...]) -> int:
    """How many values `body` makes of one input."""
    with torch.no_grad():
        return int(body(torch.zeros(1, *shape)).numel())


def check_image(name: str, shape: tuple[int, ...], *, least: int) -> None:
    """Raise unless `shape` is (channels, height, width) with sides of at least `least`."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InvalidValue(
            f"shape={tuple(shape)!r} does not suit the model {name!r}. It reads images (channels, height, width) of at "
            f"least {least} x {least}. Take another model: mlp and linear read anything."
        )
