"""Negative controls: mechanisms that do not keep their claim, each by one well-known mistake. An audit must catch all.

Each declares what its author would. Gradients are those of the scenes in closed form; the published clipping rules run
through the engine.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from privet._registry import Registry
from privet.accounting import Ledger, Step
from privet.accounting.sampling import POISSON, Sampling, Shuffled
from privet.auditing.mechanism import EngineStep, Mechanism, MechanismClaim, Released, Run, mechanism_claim
from privet.auditing.neighbours import SIZE, Records, initial_weights, logistic_gradients
from privet.noise.gaussian import draw
from privet.noise.randomness import Randomness
from privet.planning.planned_steps import PlannedSteps
from privet.sampling.samplers import Sampler, poisson_indices

registry: Registry[Mechanism] = Registry("control", own=False)
register = registry.register

CLIP = 1.0
NOISE = 1.0
START = initial_weights().double()  # of the scenes' model


def control_names() -> list[str]:
    return registry.names()


def clip_rows(grads: Tensor, clip: float = CLIP) -> Tensor:
    norms: Tensor = grads.norm(dim=1, keepdim=True)
    return grads * (clip / norms.clamp(min=clip))


def add_gaussian_noise(value: Tensor, std: float, randomness: Randomness) -> Tensor:
    if std <= 0:
        return value
    return value + draw(torch.empty(value.shape, dtype=torch.float64), std=std, generator=randomness)


def claim_steps(steps: tuple[Step, ...]) -> MechanismClaim:
    """Steps at one rate, each over the public batch, under its number."""
    step_of = {str(number): number for number in range(len(steps))}
    return MechanismClaim(steps=steps, std=NOISE * CLIP / (SIZE * steps[0].sample_rate), step_of=step_of)


class Control:
    """What the controls share: gradients are computed once for a dataset; null records add nothing.

    Unless a control says otherwise it is one step on all records, with a public divisor.
    """

    claim = mechanism_claim(Step(noise_multiplier=NOISE), l2_bound=CLIP, divisor=SIZE)

    def __call__(self, records: Records, randomness: Randomness) -> Released:
        return self.prepare(records)(randomness)

    def prepare(self, records: Records) -> Run:
        grads, there = logistic_gradients(records), records[1] != 0
        return lambda generator: self.release(grads, there, generator)

    def release(self, grads: Tensor, there: Tensor, randomness: Randomness) -> Released:
        """What is released of the gradients (n, d) of those that are there (n,)."""
        raise NotImplementedError


# --- published clipping rules -------------------------------------------------------------------------


def _published_step(rule: str) -> EngineStep:
    return EngineStep(rule=rule, step=Step(noise_multiplier=NOISE, clipping_norm=CLIP), uncertified=True)


@register("own-norm")
def own_norm() -> Mechanism:
    """Auto DP-SGD as published: the clip of each is its own norm, so nothing is clipped; noise goes by their mean."""
    return _published_step("own_norm")


@register("l2-max")
def l2_max() -> Mechanism:
    """The sensitivity is the largest norm in the batch, at most C: a quiet batch has next to no noise."""
    return _published_step("l2_max")


@register("per-layer")
def per_layer() -> Mechanism:
    """Each of four layers is clipped to C, and C is charged in place of sqrt(4) C."""
    return _published_step("per_layer_c")


# --- noise that is too small ----------------------------------------------------------------------------


@register("noise-over-batch")
class NoiseOverBatch(Control):
    """The noise is divided by the batch, and added to the sum."""

    def release(self, grads: Tensor, there: Tensor, randomness: Randomness) -> Released:
        return {"sum": add_gaussian_noise(clip_rows(grads[there]).sum(0), NOISE * CLIP / SIZE, randomness) / SIZE}


@register("quarter-noise")
class QuarterNoise(Control):
    """A quarter of the noise that is charged."""

    def release(self, grads: Tensor, there: Tensor, randomness: Randomness) -> Released:
        return {"sum": add_gaussian_noise(clip_rows(grads[there]).sum(0), NOISE * CLIP / 4, randomness) / SIZE}


@register("noise-replayed")
class NoiseReplayed(Control):
    """Two steps, each with its own Poisson batch, and the second draws the first one's noise again: a resumed run."""

    sample_rate: ClassVar[float] = 0.5

    claim = claim_steps((Step(noise_multiplier=NOISE, sample_rate=sample_rate),) * 2)

    def release(self, grads: Tensor, there: Tensor, randomness: Randomness) -> Released:
        noise = add_gaussian_noise(torch.zeros_like(grads[0]), NOISE * CLIP, randomness)
        batches = sample_steps(there, randomness, rate=self.sample_rate, steps=2)
        return {
            str(k): (clip_rows(grads[some]).sum(0) + noise) / (SIZE * self.sample_rate)
            for k, some in enumerate(batches)
        }


# --- sums that are not bounded ---------------------------------------------------------------------------


@register("microbatch")
class Microbatch(Control):
    """The mean of four records is clipped, not each record: one of them can turn the whole around."""

    def release(self, grads: Tensor, there: Tensor, randomness: Randomness) -> Released:
        means = [four.mean(0, keepdim=True) for four in torch.split(grads[there], 4) if len(four)]
        total = sum((clip_rows(mean)[0] for mean in means), torch.zeros_like(grads[0]))
        return {"sum": add_gaussian_noise(total, NOISE * CLIP, randomness) / SIZE}


@register("median-clip")
class MedianClip(Control):
    """The clip is the median of the norms in the batch, at most C, and the noise goes by it: both are private data."""

    def release(self, grads: Tensor, there: Tensor, randomness: Randomness) -> Released:
        grads = grads[there]
        clip = min(CLIP, float(grads.norm(dim=1).median())) if len(grads) else CLIP
        total = clip_rows(grads, max(clip, 1e-12)).sum(0)
        return {"sum": add_gaussian_noise(total, NOISE * clip, randomness) / SIZE}


@register("realised-batch")
class RealisedBatch(Control):
    """The mean over the records that are there, with noise for the planned batch: the divisor is private data."""

    def release(self, grads: Tensor, there: Tensor, randomness: Randomness) -> Released:
        grads = grads[there]
        mean = clip_rows(grads).sum(0) / max(len(grads), 1)
        return {"mean": add_gaussian_noise(mean, NOISE * CLIP / SIZE, randomness)}


# --- sampling that is not what is charged -----------------------------------------------------------------


def sample_steps(
    there: Tensor, randomness: Randomness, *, rate: float, steps: int, kind: Sampling = POISSON
) -> Iterator[Tensor]:
    planned = PlannedSteps(length=steps, sample_rate=rate, sampling=kind)
    return (chosen[there[chosen]] for chosen in Sampler(dataset_size=len(there), steps=planned, randomness=randomness))


@register("shuffled-as-poisson")
class ShuffledAsPoisson(Control):
    """An epoch of shuffled batches, charged as Poisson sampling: a record takes part for certain, not by chance."""

    noise_multiplier: ClassVar[float] = 0.2
    steps: ClassVar[int] = 12

    claim = MechanismClaim(
        steps=(Step(noise_multiplier=noise_multiplier, sample_rate=1 / steps),) * steps,
        std=noise_multiplier * CLIP,
        step_of=dict(zip(map(str, range(steps)), range(steps), strict=True)),
    )  # fmt: skip

    def release(self, grads: Tensor, there: Tensor, randomness: Randomness) -> Released:
        batches = sample_steps(there, randomness, rate=1 / self.steps, steps=self.steps, kind=Shuffled())
        small = clip_rows(grads)
        sums = torch.stack([small[some].sum(0) for some in batches])
        return {str(k): row for k, row in enumerate(add_gaussian_noise(sums, self.noise_multiplier * CLIP, randomness))}


@register("count-as-own-step")
class CountAsOwnStep(Control):
    """Quantile clipping whose count is charged as a step of its own, though both come from one sample."""

    sample_rate: ClassVar[float] = 0.25

    claim = MechanismClaim(
        steps=(Step(noise_multiplier=NOISE, sample_rate=sample_rate),) * 2,
        std={"sum": NOISE * CLIP, "count": NOISE * 0.5},
        step_of={"sum": 0, "count": 1},
    )  # fmt: skip

    def release(self, grads: Tensor, there: Tensor, randomness: Randomness) -> Released:
        grads = grads[next(sample_steps(there, randomness, rate=self.sample_rate, steps=1))]
        bits = (grads.norm(dim=1) <= CLIP).double() - 0.5
        return {
            "sum": add_gaussian_noise(clip_rows(grads).sum(0), NOISE * CLIP, randomness),
            "count": add_gaussian_noise(bits.sum().view(1), NOISE * 0.5, randomness),
        }


# --- loops of one's own -----------------------------------------------------------------------------------


class Loop:
    """A training loop as `Training` was without its guards: what is around it may do as it likes.

    A batch costs nothing until its step is made, and is drawn anew by the next `for`; the weights are anybody's. Each
    step starts at the same ones, so that its gradients are known: `clipped` has one row for each record.
    """

    def __init__(self, records: Records, clipped: Tensor, steps: Sequence[Step], randomness: Randomness) -> None:
        self.records, self.steps, self.ledger = records, steps, Ledger()
        self.weights = START
        self.released: dict[str, Tensor] = {}
        self._clipped, self._generator = clipped, randomness

    def __iter__(self) -> Iterator[Tensor]:
        """A batch for each step that is left, from coins of its own."""
        numbers = self._generator.numpy_generator()
        for step in self.steps[self.ledger.steps :]:
            yield torch.from_numpy(poisson_indices(len(self._clipped), step.sample_rate, numbers))

    def step(self, chosen: Tensor) -> None:
        """A private step on a batch: charged, clipped, with noise, over the public batch."""
        step = self.steps[self.ledger.steps]
        self.ledger.add(step)
        total = add_gaussian_noise(self._clipped[chosen].sum(0), step.noise_multiplier * CLIP, self._generator)
        self.move(START, total / (step.sample_rate * SIZE))

    def move(self, weights: Tensor, gradient: Tensor) -> None:
        """Follow a gradient. Whoever has the weights before the next step sees what was taken off them."""
        self.weights = weights - gradient
        self.released[str(self.ledger.steps - 1)] = START - self.weights


class LoopControl(Control):
    """What the loops share: steps at one rate, all of them charged as planned."""

    def prepare(self, records: Records) -> Run:
        clipped = clip_rows(logistic_gradients(records))

        def run(generator: Randomness) -> Released:
            loop = Loop(records, clipped, self.claim.steps, generator)
            self.train(loop)
            return loop.released

        return run

    def train(self, loop: Loop) -> None:
        """All steps, as the author of the loop wrote them."""
        raise NotImplementedError


@register("chosen-batch")
class ChosenBatch(LoopControl):
    """A loop that leaves by break until its batch has the target: it takes part in each step, charged at the rate."""

    claim = claim_steps((Step(noise_multiplier=NOISE, sample_rate=0.25),) * 2)

    def train(self, loop: Loop) -> None:
        while loop.ledger.steps < len(loop.steps):
            for chosen in loop:
                if not self.is_wanted(chosen, target=len(loop.records[1]) - 1):
                    break  # nothing was charged: the next `for` draws again
                loop.step(chosen)

    def is_wanted(self, chosen: Tensor, *, target: int) -> bool:
        return bool((chosen == target).any())


@register("raw-step")
class RawStep(LoopControl):
    """An optimizer's step on gradients as they are, neither clipped nor noisy, between two private steps."""

    claim = claim_steps((Step(noise_multiplier=NOISE),) * 2)

    def train(self, loop: Loop) -> None:
        for number, chosen in enumerate(loop, start=1):
            loop.step(chosen)
            if number < len(loop.steps):
                self.between(loop, chosen)

    def between(self, loop: Loop, chosen: Tensor) -> None:
        raw = logistic_gradients(loop.records, at=loop.weights)[chosen]
        loop.move(loop.weights, raw.sum(0) / SIZE)


def control(name: str) -> Mechanism:
    """The control called `name`.

    >>> control("quarter-noise").claim.steps[0].noise_multiplier
    1.0
    """
    return registry.make(name)


def describe_fault(name: str) -> str:
    found: Callable[..., Any] = registry.maker(name)
    return " ".join((found.__doc__ or "").split())
