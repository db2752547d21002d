"""How good a model is on records that it was not trained on: in batches, without gradients, unchanged after it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from privet.data.task import Task
from privet.engine.loading import gather
from privet.errors import InvalidValue

ROWS = 1000  # at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a model does on the held-out set: its mean loss, and the task's measure."""

    loss: float
    measure: float
    name: str  # of the measure
    higher_is_better: bool

    def is_better(self, than: "Scores | None") -> bool:
        """Whether the measure is better; NaN never is."""
        if than is None or than.measure != than.measure:
            return self.measure == self.measure
        return self.measure > than.measure if self.higher_is_better else self.measure < than.measure

    def reaches(self, name: str, value: float) -> bool:
        """Whether `loss` or the measure is at least as good as `value`."""
        if name == "loss":
            return self.loss <= value
        return self.measure >= value if self.higher_is_better else self.measure <= value


def evaluate(model: nn.Module, task: Task, *, rows: int = ROWS, device: torch.device | None = None) -> Scores:
    """Loss and measure over all of `task.held_out`.

    >>> x = torch.eye(4)
    >>> own = Task(name="own", train=(x, x), held_out=(x, torch.tensor([0, 1, 2, 0])), evaluation="made up",
    ...            model=nn.Identity)
    >>> evaluate(own.network(), own).measure
    0.75

    Raises:
        InvalidValue: there is no held-out record.
    """
    data = task.held_out
    size = len(data[0]) if isinstance(data, tuple) else len(data)
    if not size:
        raise InvalidValue(f"task={task.name!r} has no held-out example. Nothing can be evaluated. Give it some.")
    loss = measure = torch.zeros((), dtype=torch.float64)
    with quiet(model):
        for indices in torch.split(torch.arange(size), rows):
            inputs, targets = gather(data, indices)
            outputs, targets = model(moved(inputs, device)), moved(targets, device)
            loss = loss + task.losses(outputs, targets).double().sum().cpu()
            measure = measure + task.measure.each(outputs, targets).double().sum().cpu()
    finish, better = task.measure.finish, task.measure.higher_is_better
    return Scores(
        loss=float(loss) / size, measure=finish(float(measure) / size), name=task.measure.name, higher_is_better=better
    )


def moved(data: object, device: torch.device | None) -> "torch.Tensor":
    """`data` on a device: a tensor, or a list or tuple or table of them."""
    if device is None:
        return data  # type: ignore[return-value]
    if isinstance(data, (list, tuple)):
        return type(data)(moved(part, device) for part in data)  # type: ignore[return-value]
    if isinstance(data, dict):
        return {key: moved(part, device) for key, part in data.items()}  # type: ignore[return-value]
    return data.to(device)  # type: ignore[attr-defined, no-any-return]


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """The model without gradients and dropout; each of its layers is in its own mode again after it."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
