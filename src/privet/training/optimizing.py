"""Optimizers and learning rates by name: any of torch, with options, or your own by its address.

`sgd:momentum=0.9`, `adam:betas=(0.9,0.99)`, `cosine`, `step:step_size=10`, `reduce-on-plateau:patience=2,unit=epoch`.
"""

import inspect
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, PolynomialLR, ReduceLROnPlateau

from privet import _check
from privet._registry import Registry, number, one_line, shortened
from privet.errors import InvalidValue
from privet.planning import Plan
from privet.training.settings import Settings

RATES = {"sgd": 0.1, "adam": 0.005, "adamw": 0.005, "adagrad": 0.02, "rmsprop": 0.001}  # learning rates by default
MOMENTUM = 0.9  # of sgd by default
FUSED = ("sgd", "adam", "adamw")  # that torch makes in one pass: an eighth of the time of Adam's step on a small CNN
UNITS = ("step", "epoch")
_NEEDS_FUNCTIONS = ("LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler", "LRScheduler")
_SHORT = {"cosine": "CosineAnnealingLR", "plateau": "ReduceLROnPlateau"}
_BY_EPOCH = ("StepLR", "MultiStepLR", "ExponentialLR", "ConstantLR", "LinearLR")  # torch's numbers in them are epochs

optimizers: Registry[Optimizer] = Registry("optimizer")
schedulers: Registry[LRScheduler] = Registry("scheduler")


def _classes(module: Any, kind: type) -> Iterable[type]:
    return (found for found in vars(module).values() if isinstance(found, type) and issubclass(found, kind))


def _hyphened(name: str) -> str:
    """`CosineAnnealingLR` as `cosine-annealing`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name.replace("LR", "")).lower()


for _class in _classes(torch.optim, Optimizer):
    if _class is not Optimizer:
        optimizers.register(_class.__name__.lower())(_class)
for _class in _classes(torch.optim.lr_scheduler, LRScheduler):
    if _class.__name__ not in _NEEDS_FUNCTIONS and not _class.__name__.startswith("_"):
        schedulers.register(_hyphened(_class.__name__))(_class)
for _name, _of in _SHORT.items():
    schedulers.register(_name)(getattr(torch.optim.lr_scheduler, _of))


def optimizer_for(settings: Settings, plan: Plan, model: nn.Module) -> Optimizer:
    """The optimizer that the settings name, over the trainable parameters of `model`.

    >>> from privet import plan
    >>> p = plan(epsilon=2.0, size=1000, batch=10, steps=5, method="noisy-adam")
    >>> type(optimizer_for(Settings(lr=0.01), p, nn.Linear(2, 1))).__name__
    'Adam'

    Raises:
        InvalidValue: there is no such optimizer, or it has no such option.
    """
    spelling = settings.optimizer or ("adam" if plan.recipe.method == "noisy-adam" else "sgd")
    name, options = _asked(optimizers, spelling, Optimizer)
    for key in ("lr", "momentum", "weight_decay"):
        given = getattr(settings, key)
        if given is not None and key in options:
            raise InvalidValue(f"{key}={given!r} is given, and optimizer={spelling!r} gives it too. Give one.")
        if given is not None:
            options[key] = given
    if name in optimizers.names() and "momentum" in options:
        _check.fraction(momentum=options["momentum"])
    if name in RATES:
        options.setdefault("lr", RATES[name])
    if name == "sgd":
        options.setdefault("momentum", MOMENTUM)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if name in FUSED and not any(key in options for key in ("fused", "foreach", "differentiable")):
        options["fused"] = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    made: Optimizer = _made(optimizers, name, spelling, params=parameters, **options)
    return made


class Pace:
    """A learning rate that follows the number of the step, whatever was done in which process.

    It moves once a step or once an epoch (`unit`); `reduce-on-plateau` once an evaluation, by what the held-out set
    says. Steps that a crash took away have moved it too, so that step t has the rate that it has in an unbroken run.
    """

    def __init__(self, scheduler: LRScheduler | None, *, unit: str = "step", epoch: int = 1) -> None:
        self.scheduler, self._length = scheduler, epoch if unit == "epoch" else 1
        self.reads_scores = isinstance(scheduler, ReduceLROnPlateau)

    def catch_up(self, number: int) -> None:
        """The same as `follow` before the first step of a process, which torch would warn of."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.follow(number)

    def follow(self, number: int) -> None:
        """Move on to where the rate is after `number` steps."""
        if self.scheduler is not None and not self.reads_scores:
            while self.scheduler.last_epoch < number // self._length:
                self.scheduler.step()

    def evaluated(self, loss: float) -> None:
        """Let a rate that waits for a plateau see the loss on the held-out set."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)


def pace_for(settings: Settings, plan: Plan, optimizer: Optimizer) -> Pace:
    """The scheduler that the settings name, told how long the plan is where it has to know.

    Raises:
        InvalidValue: there is no such scheduler, or it has no such option.
    """
    if settings.scheduler is None:
        return Pace(None)
    name, options = _asked(schedulers, settings.scheduler, LRScheduler)
    kind = schedulers.maker(name)
    unit = options.pop("unit", "epoch" if getattr(kind, "__name__", "") in _BY_EPOCH else "step")
    _check.one_of(UNITS, unit=unit)
    epoch = epoch_of(plan)
    length = max(1, len(plan.steps) // epoch if unit == "epoch" else len(plan.steps))
    asked = inspect.signature(kind).parameters
    known = {"T_max": length, "total_steps": length, "max_lr": optimizer.param_groups[0]["lr"]}
    if kind is PolynomialLR:  # a decay; torch's other `total_iters` are of a warm-up
        known["total_iters"] = length
    options = {key: value for key, value in known.items() if key in asked and not _says_length(key, options)} | options
    if name in schedulers.names():
        _check_moves(name, settings.scheduler, options)
    made = _made(schedulers, name, settings.scheduler, optimizer=optimizer, **options)
    return Pace(made, unit=str(unit), epoch=epoch)


def epoch_of(plan: Plan) -> int:
    """The steps of an epoch: 1 / rate, rounded."""
    return max(1, round(1 / plan.steps[0].rate))


def _says_length(key: str, options: Mapping[str, Any]) -> bool:
    return key == "total_steps" and "epochs" in options


def _asked(registry: Registry[Any], spelling: str, kind: type) -> tuple[str, dict[str, Any]]:
    """The name and the options in a spelling; a class of the user's must be of the right kind, before it is called."""
    name, text = registry.split(spelling)
    maker = registry.maker(name)
    if name not in registry.names() and not (isinstance(maker, type) and issubclass(maker, kind)):
        raise InvalidValue(
            f"{registry.kind}={shortened(spelling)!r} must be a class made from torch's {kind.__name__}. A plan may "
            "name it, and must not call just anything."
        )
    options = {key: _tuple(value) for key, value in registry.options(name, text).items()}
    for key in ("params", "optimizer"):
        if key in options:
            raise InvalidValue(f"{registry.kind}={shortened(spelling)!r} gives {key}. It is the run's. Leave it out.")
    return name, options


def _tuple(value: Any) -> Any:
    """`(0.9,0.99)` as numbers; anything else as it is."""
    if not (isinstance(value, str) and value.startswith("(") and value.endswith(")")):
        return value
    try:
        return tuple(number(part) for part in value[1:-1].split(",") if part.strip())
    except ValueError:
        raise InvalidValue(f"{value!r} must be numbers with commas between them. Write (0.9,0.99).") from None


def _check_moves(name: str, spelling: str, options: Mapping[str, Any]) -> None:
    """Raise if torch's scheduler fails as soon as it moves: in a run, a step would be charged by then."""
    stand_in = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=MOMENTUM)
    tried = _made(schedulers, name, spelling, optimizer=stand_in, **options)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tried.step(*[1.0] * isinstance(tried, ReduceLROnPlateau))
    except Exception as error:
        raise _refused(schedulers, spelling, error) from None


def _made(registry: Registry[Any], name: str, spelling: str, **options: Any) -> Any:
    try:
        return registry.make(name, **options)
    except Exception as error:  # torch raises whatever its arithmetic raises
        if isinstance(error, InvalidValue):
            raise
        raise _refused(registry, spelling, error) from None


def _refused(registry: Registry[Any], spelling: str, error: Exception) -> InvalidValue:
    return InvalidValue(f"{registry.kind}={spelling!r} is refused by torch: {one_line(error)}. Change it.")
