"""What is audited: a function from records and randomness to what it releases, with what it declares of itself.

class Mine:
    claim = mechanism_claim(Step(noise=1.0), l2_bound=1.0, divisor=12)
    def __call__(self, records, generator): ...   # -> {name: tensor}; all coins and all noise from `generator`

A mechanism whose deterministic part is slow may also have `prepare(records)`, which gives a function of the generator.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet import _check
from privet.accounting import Ledger, Step
from privet.accounting.guarantee import Adjacency
from privet.accounting.tradeoff import Curve, Gaussian, tradeoff
from privet.auditing.neighbours import SIZE, Records, Sliced, logistic_losses, neighbouring_pairs, select_present
from privet.clipping.clipped_sum import ClippedSum, clipped_sum
from privet.clipping.rule import ClippingRule, clipping_rule, is_adaptive, is_published
from privet.errors import InvalidValue
from privet.noise.gaussian import noise_std
from privet.noise.randomness import Randomness
from privet.noise.release import gradient_noise, release
from privet.planning.planned_steps import PlannedSteps
from privet.sampling.samplers import Sampler

Released = Mapping[str, Tensor]
Run = Callable[[Randomness], Released]
Floats = NDArray[np.float64]

WARM = 2  # releases on public records before the audited one, so that an adaptive rule has a memory


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismClaim:
    """What a mechanism says of itself: the steps that it is charged for, and the noise on what it releases.

    `std` is the standard deviation of the noise on every released entry, or one for each name; None if it is not known,
    as where a paper reads it off the data. `step_of` tells which of several steps released a name.
    """

    steps: tuple[Step, ...]
    std: "float | Mapping[str, float] | None"
    adjacency: Adjacency = "zero-out"
    step_of: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.steps:
            raise InvalidValue("steps=() must hold a step. There is nothing to test without one. Give what is charged.")
        stds = [self.std] if isinstance(self.std, (int, float)) else list((self.std or {}).values())
        _check.positive(**{f"std[{i}]": value for i, value in enumerate(stds)})

    @property
    def is_sampled(self) -> bool:
        return any(step.sample_rate < 1 for step in self.steps)

    @property
    def curve(self) -> Curve:
        """The claim: the trade-off curve that is charged. Exact without sampling, by `pld` with it."""
        if not self.is_sampled:
            return Gaussian(mu=math.sqrt(math.fsum(step.noise_multiplier**-2 for step in self.steps)))
        ledger = Ledger()
        for step in self.steps:
            ledger.add(step)
        return tradeoff(ledger, adjacency=self.adjacency)

    def std_of(self, name: str) -> float | None:
        return self.std.get(name) if isinstance(self.std, Mapping) else self.std


def mechanism_claim(
    step: Step, *, l2_bound: float, divisor: float, adjacency: Adjacency = "zero-out"
) -> MechanismClaim:
    """What one step of noise on a clipped sum declares: std = noise * sensitivity / divisor on every entry."""
    _check.positive(divisor=divisor)
    std = noise_std(step, l2_bound=l2_bound, adjacency=adjacency) / divisor
    return MechanismClaim(steps=(step,), std=std, adjacency=adjacency)


class Mechanism(Protocol):
    """One call is one release (or all releases of the declared steps) on the whole dataset."""

    @property
    def claim(self) -> MechanismClaim:
        """What it is charged for."""

    def __call__(self, records: Records, randomness: Randomness) -> Released:
        """What it releases; every coin and all noise is drawn from `randomness`."""


class FrozenRandomness(Randomness):
    """Randomness that can be had again: coins from one seed, noise from another. It counts what is drawn."""

    __slots__ = ("_coins", "_noise", "draws")

    def __init__(self, coins: int, noise: int) -> None:
        super().__init__(noise)
        self._coins, self._noise = Randomness(coins, 1), Randomness(noise, 2)
        self.draws: list[str] = []

    def numpy_generator(self) -> np.random.Generator:
        self.draws.append("coins")
        return self._coins.numpy_generator()

    def torch_generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        self.draws.append("noise")
        return self._noise.torch_generator(device)

    def random_words(self, count: int) -> NDArray[np.uint64]:
        self.draws.append(f"{count} words")
        return self._noise.random_words(count)


def prepare(mechanism: Mechanism, records: Records) -> Run:
    """The mechanism on these records, its deterministic part done where it can be."""
    made: Any = getattr(mechanism, "prepare", None)
    if callable(made):
        run: Run = made(records)
        return run
    return lambda generator: mechanism(records, generator)


def flatten_releases(released: Released, which: MechanismClaim, stds: "Mapping[str, float] | None" = None) -> Floats:
    """Everything released over the standard deviation of its noise: (steps, entries), short steps filled with zeros."""
    rows: list[list[Floats]] = [[] for _ in which.steps]
    for name, tensor in released.items():
        std = which.std_of(name) if stds is None else stds[name]
        found = tensor.detach().cpu().numpy().ravel().astype(np.float64, copy=False)
        rows[which.step_of.get(name, 0)].append(found if std is None else found / std)
    joined = [np.concatenate(row) if row else np.zeros(0) for row in rows]
    if len(joined) == 1:
        return joined[0][None]
    width = max(map(len, joined))
    return np.stack([row if len(row) == width else np.pad(row, (0, width - len(row))) for row in joined])


# --- one step of a clipping rule through the engine --------------------------------------------------


class RecordingRule:
    """An adaptive rule that also keeps what is released before it turns it into what the optimizer sees."""

    def __init__(self, rule: Any) -> None:
        self._rule = self.inner = rule  # the inner one clips: a wrapper is not known as one of the package's rules
        self.released: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def learn(self, grads: Mapping[str, Tensor], statistics: Tensor, **given: Any) -> Any:
        self.released = dict(grads) | ({"count": statistics.clone()} if len(statistics) else {})
        return self._rule.learn(grads, statistics, **given)


@dataclass(slots=True, kw_only=True, eq=False)
class EngineStep:
    """One step of a rule by `clipped_sum` and `release`; `batch` is the public divisor."""

    rule: str
    step: Step
    batch: float = SIZE
    adjacency: Adjacency = "zero-out"
    uncertified: bool = False
    _rule: ClippingRule = field(init=False, repr=False)
    _memory: dict[str, Any] | None = field(default=None, init=False, repr=False)
    _model: Sliced = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rule, self._model = (
            clipping_rule(self.rule, uncertified=self.uncertified),
            Sliced(self.step.clipping_norm),
        )
        if is_adaptive(self._rule):
            public = neighbouring_pairs(clip=self.step.clipping_norm)[0].without
            whole = replace(self.step, sample_rate=1.0)
            for number in range(WARM):
                self._release(self._clipped_sum(public, torch.arange(SIZE - 1)), whole, Randomness(number))
            self._memory = self._rule.state_dict()
            self._rule = RecordingRule(self._rule)

    @property
    def claim(self) -> MechanismClaim:
        made = mechanism_claim(
            self.step, l2_bound=self.step.clipping_norm, divisor=self.batch, adjacency=self.adjacency
        )
        if is_published(self._rule) and self.rule.partition(":")[0] == "own_norm":
            return replace(made, std=None)  # read off the data
        if not is_adaptive(self._rule):
            return made
        self._restore_rule()  # the clip in force is the one before the release
        clip = self._rule.current_clip(self.step.clipping_norm)
        names = [name for name, _ in self._model.named_parameters()]
        noise, stds = self.step.noise_multiplier, {}
        if self._rule.statistics_bound > 0:
            bits = self._rule.statistics_noise(noise, self.batch)
            stds["count"] = self._noise_std(bits, self._rule.statistics_bound)
            noise = gradient_noise(noise, bits)
        return replace(made, std=stds | dict.fromkeys(names, self._noise_std(noise, clip)))

    def _noise_std(self, noise: float, bound: float) -> float:
        return (
            noise_std(replace(self.step, noise_multiplier=noise), l2_bound=bound, adjacency=self.adjacency) / self.batch
        )

    def __call__(self, records: Records, randomness: Randomness) -> Released:
        return self.prepare(records)(randomness)

    def prepare(self, records: Records) -> Run:
        """Sums are kept by who takes part: they do not depend on noise."""
        sums: dict[bytes, ClippedSum] = {}
        everyone = select_present(records, torch.arange(len(records[1])))

        def run(generator: Randomness) -> Released:
            chosen = everyone
            if self.step.sample_rate != 1:
                steps = PlannedSteps(length=1, sample_rate=self.step.sample_rate, sampling=self.step.sampling)
                drawn = next(iter(Sampler(dataset_size=len(records[1]), steps=steps, randomness=generator)))
                chosen = select_present(records, drawn)
            key = chosen.numpy().tobytes()
            self._restore_rule()
            if key not in sums:
                sums[key] = self._clipped_sum(records, chosen)
            return self._release(sums[key], self.step, generator)

        return run

    def _restore_rule(self) -> None:
        if is_adaptive(self._rule) and self._memory is not None:
            self._rule.load_state_dict(self._memory)

    def _clipped_sum(self, records: Records, chosen: Tensor) -> ClippedSum:
        batch = records[0][chosen], records[1][chosen]
        return clipped_sum(
            self._model, logistic_losses, batch, rule=getattr(self._rule, "inner", self._rule),
            clipping_norm=self.step.clipping_norm,
            uncertified=self.uncertified,
        )  # fmt: skip

    def _release(self, whole: ClippedSum, step: Step, randomness: Randomness) -> Released:
        found = release(
            whole, self._rule, step=step, batch_size=self.batch, randomness=randomness, adjacency=self.adjacency,
            uncertified=self.uncertified,
        )  # fmt: skip
        return self._rule.released if isinstance(self._rule, RecordingRule) else found.grads
