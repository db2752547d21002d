"""Optimizers and learning rates by name: any of torch, with options, or your own by its address.

`sgd:momentum=0.9`, `adam:betas=(0.9,0.99)`, `cosine`, `step:step_size=10`, `reduce-on-plateau:patience=2,unit=epoch`.
"""

import inspect
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, PolynomialLR, ReduceLROnPlateau

from privet import _check
from privet._files import unwritable_error
from privet._registry import Registry, parse_number
from privet._text import one_line, shorten
from privet.clipping.clipped_sum import clipped_sum
from privet.data.files import expand_user
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.ledger.meter import choose_steps_per_line, measure_line_seconds
from privet.models import from_checkpoint
from privet.per_example.forward_record import map_tensors
from privet.planning import Plan
from privet.sampling.loading import gather
from privet.training.checks import count_records
from privet.training.evaluation import EarlyStopping
from privet.training.processes import Group
from privet.training.run import build_network
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


def _list_classes(module: Any, kind: type) -> Iterable[type]:
    return (found for found in vars(module).values() if isinstance(found, type) and issubclass(found, kind))


def _to_hyphens(name: str) -> str:
    """`CosineAnnealingLR` as `cosine-annealing`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name.replace("LR", "")).lower()


for _class in _list_classes(torch.optim, Optimizer):
    if _class is not Optimizer:
        optimizers.register(_class.__name__.lower())(_class)
for _class in _list_classes(torch.optim.lr_scheduler, LRScheduler):
    if _class.__name__ not in _NEEDS_FUNCTIONS and not _class.__name__.startswith("_"):
        schedulers.register(_to_hyphens(_class.__name__))(_class)
for _name, _of in _SHORT.items():
    schedulers.register(_name)(getattr(torch.optim.lr_scheduler, _of))


def build_optimizer(settings: Settings, plan: Plan, model: nn.Module) -> Optimizer:
    """The optimizer that the settings name, over the trainable parameters of `model`."""
    spelling = settings.optimizer or ("adam" if plan.recipe.method == "noisy-adam" else "sgd")
    name, options = _resolve_spelling(optimizers, spelling, Optimizer)
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
    made: Optimizer = _make_instance(optimizers, name, spelling, params=parameters, **options)
    return made


class LearningRateSchedule:
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

    def observe_loss(self, loss: float) -> None:
        """Let a rate that waits for a plateau see the loss on the held-out set."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)


def learning_rate_schedule(settings: Settings, plan: Plan, optimizer: Optimizer) -> LearningRateSchedule:
    """The scheduler that the settings name, told how long the plan is where it has to know."""
    if settings.scheduler is None:
        return LearningRateSchedule(None)
    name, options = _resolve_spelling(schedulers, settings.scheduler, LRScheduler)
    kind = schedulers.maker(name)
    unit = options.pop("unit", "epoch" if getattr(kind, "__name__", "") in _BY_EPOCH else "step")
    _check.one_of(UNITS, unit=unit)
    epoch = steps_per_epoch(plan)
    length = max(1, len(plan.steps) // epoch if unit == "epoch" else len(plan.steps))
    asked = inspect.signature(kind).parameters
    known = {"T_max": length, "total_steps": length, "max_lr": optimizer.param_groups[0]["lr"]}
    if kind is PolynomialLR:  # a decay; torch's other `total_iters` are of a warm-up
        known["total_iters"] = length
    if "epochs" in options:  # they give the length too
        del known["total_steps"]
    options = {key: value for key, value in known.items() if key in asked} | options
    if name in schedulers.names():
        _check_moves(name, settings.scheduler, options)
    made = _make_instance(schedulers, name, settings.scheduler, optimizer=optimizer, **options)
    return LearningRateSchedule(made, unit=str(unit), epoch=epoch)


def steps_per_epoch(plan: Plan) -> int:
    return max(1, round(1 / plan.steps[0].sample_rate))


def _resolve_spelling(registry: Registry[Any], spelling: str, kind: type) -> tuple[str, dict[str, Any]]:
    """The name and the options in a spelling; a class of the user's must be of the right kind, before it is called."""
    name, text = registry.split(spelling)
    maker = registry.maker(name)
    if name not in registry.names() and not (isinstance(maker, type) and issubclass(maker, kind)):
        raise InvalidValue(
            f"{registry.kind}={shorten(spelling)!r} must be a class made from torch's {kind.__name__}. A plan may "
            "name it, and must not call just anything."
        )
    options = {key: _parse_tuple(value) for key, value in registry.options(name, text).items()}
    for key in ("params", "optimizer"):
        if key in options:
            raise InvalidValue(f"{registry.kind}={shorten(spelling)!r} gives {key}. It is the run's. Leave it out.")
    return name, options


def _parse_tuple(value: Any) -> Any:
    """`(0.9,0.99)` as numbers; anything else as it is."""
    if not (isinstance(value, str) and value.startswith("(") and value.endswith(")")):
        return value
    try:
        return tuple(parse_number(part) for part in value[1:-1].split(",") if part.strip())
    except ValueError:
        raise InvalidValue(f"{value!r} must be numbers with commas between them. Write (0.9,0.99).") from None


def _check_moves(name: str, spelling: str, options: Mapping[str, Any]) -> None:
    """Raise if torch's scheduler fails as soon as it moves: in a run, a step would be charged by then."""
    stand_in = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=MOMENTUM)
    tried = _make_instance(schedulers, name, spelling, optimizer=stand_in, **options)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tried.step(*[1.0] * isinstance(tried, ReduceLROnPlateau))
    except Exception as error:
        raise _refusal_error(schedulers, spelling, error) from None


def _make_instance(registry: Registry[Any], name: str, spelling: str, **options: Any) -> Any:
    try:
        return registry.make(name, **options)
    except Exception as error:  # torch raises whatever its arithmetic raises
        if isinstance(error, InvalidValue):
            raise
        raise _refusal_error(registry, spelling, error) from None


def _refusal_error(registry: Registry[Any], spelling: str, error: Exception) -> InvalidValue:
    return InvalidValue(f"{registry.kind}={spelling!r} is refused by torch: {one_line(error)}. Change it.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSetup:
    """Everything that a loop needs beside the ledger."""

    plan: Plan
    task: Task
    settings: Settings
    model: nn.Module
    optimizer: Optimizer
    pace: LearningRateSchedule
    judge: EarlyStopping
    device: torch.device
    weights: str | None = None  # SHA-256 of the file that first weights were read from


def build_setup(
    plan: Plan, task: Task, settings: Settings, *, weights_seed: int, group: Group | None, begun: bool = False
) -> TrainingSetup:
    """The parts of a run, fresh: the network's first weights come from `weights_seed`, which is public, or from a file.

    Of a run that has `begun` the file is not read: its checkpoint has all weights.
    """
    check_size(plan, task)
    device = choose_device(settings, group)
    with seed_torch(weights_seed):
        model = build_network(task, settings)
    weights = None if begun else load_first_weights(model, settings)
    model.to(device).train()
    optimizer = build_optimizer(settings, plan, model)
    pace = learning_rate_schedule(settings, plan, optimizer)
    return TrainingSetup(
        plan=plan, task=task, settings=settings, model=model, optimizer=optimizer, pace=pace,
        judge=EarlyStopping(settings, task), device=device, weights=weights,
    )  # fmt: skip


def load_first_weights(model: nn.Module, settings: Settings) -> str | None:
    if settings.weights is None:
        return None
    path = expand_user(settings.weights)
    return from_checkpoint(model, path, train=settings.train, fresh=settings.fresh or ()).sha256


def check_sound(plan: Plan, *, uncertified: bool) -> None:
    if plan.is_unsound and not uncertified:
        raise Unsupported(
            f"rule={plan.rule!r} of the plan has no guarantee, and neither has a run with it. Plan the method without "
            "--uncertified, or train with --uncertified to see what it does."
        )


def check_size(plan: Plan, task: Task) -> None:
    budget = plan.recipe.budget
    if budget.adjacency == "add-remove" or budget.unit != "example":
        return
    found = count_records(task.train)
    if found != plan.recipe.dataset_size:
        raise InvalidValue(
            f"task={task.name!r} has {found} examples, the plan is for dataset_size={plan.recipe.dataset_size}. Its "
            "sample rate and "
            f"noise are for that size. Use the whole dataset, or plan again with --dataset-size {found}."
        )


def choose_device(settings: Settings, group: Group | None) -> torch.device:
    if group is not None and group.size > 1:
        return group.device
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(name)
        torch.zeros(1, device=found).item()  # meta has no values
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        text = one_line(error).split(".")[0]
        raise InvalidValue(f"device={name!r} cannot be used: {text}. Use cpu, or leave it out.") from None
    return found


@contextmanager
def seed_torch(seed: int) -> Iterator[None]:
    """Torch's own generators (first weights, dropout) from a seed while inside; as they were after it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed % 2**63)
        yield


def measure_steps_per_line(parts: TrainingSetup, folder: Path) -> int:
    """How many steps one line of the ledger should charge here, from a step on zeros and a few lines on this disk."""
    plan, task, step = parts.plan, parts.task, parts.plan.steps[0]
    batch = max(1, round(step.sample_rate * plan.recipe.dataset_size))
    rows = min(batch, parts.settings.max_physical_batch_size or batch)

    def zeros(t: Tensor) -> Tensor:  # of the shapes and types of a batch without records: nobody's values are looked at
        return torch.zeros(rows, *t.shape[1:], dtype=t.dtype, device=parts.device)

    inputs, targets = map_tensors(gather(task.train, torch.arange(0)), zeros)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        clipped_sum(parts.model, task.losses, (inputs, targets), rule="flat", clipping_norm=1.0)
        seconds.append(time.perf_counter() - start)
    try:
        line = measure_line_seconds(folder)
    except OSError as error:
        raise unwritable_error(folder, error) from None
    return choose_steps_per_line(steps=len(plan.steps), step_seconds=min(seconds) * batch / rows, line_seconds=line)
