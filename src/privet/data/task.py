"""A task: records to train on, records to judge by, a network, a loss and a measure, under one name.

And what tasks are made with: pixels as numbers, and one fixed shuffle for all splits.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet import _check, models
from privet._registry import Registry
from privet._text import shorten
from privet.data.files import DataFolders
from privet.errors import InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How good outputs are: the mean over examples of `each`, then `finish` (a root, for RMSE)."""

    name: str
    each: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> one value for each example
    finish: Callable[[float], float] = float
    higher_is_better: bool = True


ACCURACY = Measure(name="accuracy", each=lambda outputs, targets: (outputs.argmax(1) == targets).float())
RMSE = Measure(
    name="rmse", each=lambda outputs, targets: (outputs.view(-1) - targets).square(), finish=lambda mean: mean**0.5,
    higher_is_better=False,
)  # fmt: skip


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What `train`, `audit` and `attack` work on.

    `facts` are what networks are made for: shape, classes, words. `evaluation` says in words what `held_out` is; it
    is public, or at least not trained on, and its exact metrics are shown.

    >>> import torch
    >>> x, y = torch.randn(20, 3), torch.randint(2, (20,))
    >>> own = Task(name="own", train=(x, y), held_out=(x[:5], y[:5]), evaluation="5 made-up records",
    ...            model=lambda: nn.Linear(3, 2))
    >>> own.size, own.network()(x).shape, own.measure.name
    (20, torch.Size([20, 2]), 'accuracy')
    """

    name: str
    train: Any  # tensors (inputs, targets), or a map-style dataset of such pairs
    held_out: Any  # the same, for evaluation; never trained on
    evaluation: str
    model: "str | Callable[[], nn.Module]"  # a name from `models`, or a function that makes one
    losses: Callable[[Any, Any], Tensor] = cross_entropy
    measure: Measure = ACCURACY
    facts: Mapping[str, Any] = field(default_factory=dict)
    users: Tensor | None = None  # the owner of each training record, where records have one
    source: str = ""  # where the records come from, for the report
    non_private_preprocessing: str = (
        ""  # what was read off the training records without noise: no guarantee covers a run on it
    )

    def __post_init__(self) -> None:
        check_note(self.non_private_preprocessing)

    @property
    def size(self) -> int:
        return len(self.train[0]) if isinstance(self.train, tuple) else len(self.train)

    def network(self, spelling: str | None = None) -> nn.Module:
        wanted = self.model if spelling is None else spelling
        return models.model(wanted, **self.facts) if isinstance(wanted, str) else wanted()


def check_note(non_private_preprocessing: Any) -> None:
    """Raise unless what was read off the records is told in one line, which run.json and every guarantee repeat."""
    if not isinstance(non_private_preprocessing, str) or not non_private_preprocessing.isprintable():
        raise InvalidValue(
            f"non_private_preprocessing={shorten(repr(non_private_preprocessing))} must be one line of text. It is "
            "shown beside every epsilon. Say what was read off the records, or leave it out."
        )


OWN = ("csv", "npz", "folder")  # files of the user's
MADE_OF = {"infinite-mnist": "mnist"}  # records that were made of those of another dataset

registry: Registry[Task] = Registry("task", group="privet.tasks")
register = registry.register


def task(spelling: "str | Task", *, where: DataFolders | None = None) -> Task:
    """The task called `spelling`: `digits`, `mnist`, or a user's own function `my.module:task` that returns a Task.

    `where` says where files are looked for; by default in PRIVET_DATA and the user's cache.

    Raises:
        InvalidValue: there is no such task, or its files are missing or damaged.
    """
    if isinstance(spelling, Task):
        return spelling
    name, text = registry.split(spelling)
    maker = registry.maker(name)
    if name not in registry:
        _check_own(name, maker)
    options = registry.options(name, text)
    if "where" in inspect.signature(maker).parameters:
        options["where"] = DataFolders() if where is None else where
    made: Any = registry.make(name, **options)
    if not isinstance(made, Task):
        raise InvalidValue(f"task={spelling!r} gave a {type(made).__name__}. It must return a Task.")
    return made


def dataset_name_of(spelling: str) -> str | None:
    """The name of a task's records, by which runs on them are found; None for a user's own, which only the user knows.

    Options choose among the records or change what is made of them: they are the same people.
    """
    name, _ = registry.split(spelling)
    if name not in registry or name in OWN:
        return None
    return MADE_OF.get(name, name)


def _check_own(name: str, maker: Any) -> None:
    """Raise unless a user's own says that it returns a Task: a plan from elsewhere must not call just anything."""
    annotation = getattr(maker, "__annotations__", {}).get("return")
    if annotation is not Task and str(annotation).rpartition(".")[2] != "Task":
        raise InvalidValue(
            f"task={name!r} must be a function that says it returns a Task. A plan may name it, and must not call just "
            "anything. Write `def task() -> Task:`."
        )


# --- records ----------------------------------------------------------------------------------------

Pixels = NDArray[np.uint8]


def tensors(pixels: Pixels, labels: NDArray[np.integer]) -> tuple[Tensor, Tensor]:
    scaled = torch.tensor(pixels, dtype=torch.float32).div_(255)
    return scaled, torch.tensor(labels, dtype=torch.int64)


def first(size: int | None, available: int) -> int:
    """How many training records are taken: all, or the first `size`."""
    if size is None:
        return available
    _check.whole(size=size)
    if size > available:
        raise InvalidValue(f"size={size} is more than the {available:,} training records. Leave it out to use all.")
    return size


# --- splits -----------------------------------------------------------------------------------------


def shuffled(size: int) -> NDArray[np.int64]:
    """0 to size - 1 in one fixed order, the same on every machine and in every version.

    Places are sorted by the splitmix64 hash of the place, so the order depends on nothing of the records: where a
    paper splits at random, this is our draw.
    """
    return np.argsort(_hash_places(size), kind="stable").astype(np.int64)


def split(size: int, held_out: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places that are trained on and the `held_out` places that judge, by the fixed shuffle."""
    order = shuffled(size)
    return order[held_out:], order[:held_out]


def one_in(every: int, size: int) -> NDArray[np.int64]:
    """One place in each whole run of `every` places, by the same hash: spread evenly, and in step with nothing."""
    runs = size // every
    shares = (_hash_places(runs) >> np.uint64(11)) * 2.0**-53  # from 0 to below 1, exact
    return every * np.arange(runs) + (shares * every).astype(np.int64)


def _hash_places(size: int) -> NDArray[np.uint64]:
    """The splitmix64 hash of 0 to size - 1."""
    with np.errstate(over="ignore"):
        x = (np.arange(size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
