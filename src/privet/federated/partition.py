"""Who holds which records: a dataset cut into clients, for simulations. In the field, clients come with their own."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet import _check
from privet._registry import Registry
from privet.data.task import Task
from privet.errors import InvalidValue
from privet.sampling.loading import gather

Part = NDArray[np.int64]  # the records of one client


class Split(Protocol):
    def parts(self, task: Task, clients: int, numbers: np.random.Generator) -> list[Part]:
        """The records of each client; each record has one owner. A client may have none."""


registry: Registry[Split] = Registry("split", needs=("parts",))
register = registry.register


@register("iid")
@dataclass(frozen=True, slots=True, kw_only=True)
class Iid:
    """All alike: a shuffle, cut into parts whose sizes differ by at most one."""

    def parts(self, task: Task, clients: int, numbers: np.random.Generator) -> list[Part]:
        order = numbers.permutation(task.size)
        return [np.sort(part) for part in np.array_split(order, clients)]


@register("dirichlet")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dirichlet:
    """Label skew: the records of each class go to the clients in shares drawn from a symmetric Dirichlet law.

    With alpha 100 clients look alike; with alpha 0.1 most of a client's records are of a few classes, and sizes differ.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        _check.positive(alpha=self.alpha)

    def parts(self, task: Task, clients: int, numbers: np.random.Generator) -> list[Part]:
        labels = record_labels(task)
        found: list[list[Part]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            records = numbers.permutation(np.flatnonzero(labels == label))
            shares = np.cumsum(numbers.dirichlet(np.full(clients, self.alpha)))
            cuts = np.minimum(np.round(shares[:-1] * len(records)), len(records)).astype(np.int64)
            for own, part in zip(found, np.split(records, cuts), strict=True):
                own.append(part)
        return [np.sort(np.concatenate(own)) for own in found]


@register("user")
@dataclass(frozen=True, slots=True, kw_only=True)
class ByUser:
    """One client for each owner of records, where the task knows the owners: a MovieLens user, a writer."""

    def parts(self, task: Task, clients: int, numbers: np.random.Generator) -> list[Part]:
        if task.users is None:
            raise InvalidValue(
                f"split='user' needs the owner of each example, and task={task.name!r} has none. Use iid or dirichlet."
            )
        owners, place = np.unique(task.users.cpu().numpy(), return_inverse=True)
        if len(owners) != clients:
            raise InvalidValue(
                f"clients={clients} must be {len(owners)}, the owners of the examples of {task.name!r}. With "
                f"split='user' each is a client. Give --clients {len(owners)}."
            )
        order = np.argsort(place, kind="stable")
        return np.split(order, np.cumsum(np.bincount(place, minlength=clients))[:-1])


def partition(task: Task, clients: int, *, way: str = "iid", seed: int = 0) -> list[Tensor]:
    """The records of each client: `iid`, `dirichlet:alpha=0.3`, `user`, or your own `my.module:Class`.

    The cut is public, as is its seed; nothing is protected by it.

    >>> x, y = torch.randn(20, 3), torch.arange(20) % 2
    >>> own = Task(name="own", train=(x, y), held_out=(x, y), evaluation="made up", model="linear")
    >>> [len(part) for part in partition(own, 3)]
    [7, 7, 6]
    >>> sorted(torch.cat(partition(own, 4, way="dirichlet:alpha=0.1")).tolist()) == list(range(20))
    True

    Raises:
        InvalidValue: there are more clients than records, no such way, or no owners.
    """
    _check.whole(clients=clients)
    if clients > task.size:
        raise InvalidValue(
            f"clients={clients} must be at most {task.size}, the examples of {task.name!r}. Others would have none. "
            "Use fewer."
        )
    name, text = registry.split(way)
    made = registry.make(name, **registry.options(name, text))
    return [torch.from_numpy(np.ascontiguousarray(p)) for p in made.parts(task, clients, np.random.default_rng(seed))]


def record_labels(task: Task) -> NDArray[np.int64]:
    _, targets = gather(task.train, torch.arange(task.size))
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dim() != 1:
        raise InvalidValue(f"split='dirichlet' needs one class for each example of {task.name!r}. Use iid.")
    found: NDArray[np.int64] = targets.cpu().numpy().astype(np.int64)
    return found
