"""Ready-made mechanisms: one step of a clipping rule through the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from privet.accounting import Step
from privet.accounting.guarantee import Relation
from privet.auditing.mechanism import MechanismClaim, Records, Released, Run, mechanism_claim
from privet.auditing.neighbours import SIZE, Sliced, logistic_losses, neighbouring_pairs, select_present
from privet.clipping.clipped_sum import ClippedSum, clipped_sum
from privet.clipping.rule import ClippingRule, clipping_rule, is_adaptive, is_published
from privet.noise.gaussian import noise_std
from privet.noise.randomness import Randomness
from privet.noise.release import gradient_noise, release
from privet.planning.planned_steps import PlannedSteps
from privet.sampling.samplers import Sampler

WARM = 2  # releases on public records before the audited one, so that an adaptive rule has a memory


class Overheard:
    """An adaptive rule that also keeps what is released before it turns it into what the optimizer sees."""

    def __init__(self, rule: Any) -> None:
        self._rule = self.inner = rule  # the inner one clips: a wrapper is not known as one of the package's rules
        self.heard: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def released(self, grads: Mapping[str, Tensor], bits: Tensor, **given: Any) -> Any:
        self.heard = dict(grads) | ({"count": bits.clone()} if len(bits) else {})
        return self._rule.released(grads, bits, **given)


@dataclass(slots=True, kw_only=True, eq=False)
class EngineStep:
    """One step of a rule by `clipped_sum` and `release`; `batch` is the public divisor."""

    rule: str
    step: Step
    batch: float = SIZE
    relation: Relation = "zero-out"
    as_published: bool = False
    _rule: ClippingRule = field(init=False, repr=False)
    _memory: dict[str, Any] | None = field(default=None, init=False, repr=False)
    _model: Sliced = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rule, self._model = clipping_rule(self.rule, as_published=self.as_published), Sliced(self.step.clip)
        if is_adaptive(self._rule):
            public = neighbouring_pairs(clip=self.step.clip)[0].without
            whole = replace(self.step, rate=1.0)
            for number in range(WARM):
                self._release(self._clipped_sum(public, torch.arange(SIZE - 1)), whole, Randomness(number))
            self._memory = self._rule.state()
            self._rule = Overheard(self._rule)

    @property
    def claim(self) -> MechanismClaim:
        made = mechanism_claim(self.step, norm_bound=self.step.clip, divisor=self.batch, relation=self.relation)
        if is_published(self._rule) and self.rule.partition(":")[0] == "own_norm":
            return replace(made, std=None)  # read off the data
        if not is_adaptive(self._rule):
            return made
        self._restore_rule()  # the clip in force is the one before the release
        clip = self._rule.threshold(self.step.clip)
        names = [name for name, _ in self._model.named_parameters()]
        noise, stds = self.step.noise, {}
        if self._rule.bit_bound > 0:
            bits = self._rule.bit_noise(noise, self.batch)
            stds["count"] = self._noise_std(bits, self._rule.bit_bound)
            noise = gradient_noise(noise, bits)
        return replace(made, std=stds | dict.fromkeys(names, self._noise_std(noise, clip)))

    def _noise_std(self, noise: float, bound: float) -> float:
        return noise_std(replace(self.step, noise=noise), norm_bound=bound, relation=self.relation) / self.batch

    def __call__(self, records: Records, generator: Randomness) -> Released:
        return self.prepare(records)(generator)

    def prepare(self, records: Records) -> Run:
        """Sums are kept by who takes part: they do not depend on noise."""
        sums: dict[bytes, ClippedSum] = {}
        everyone = select_present(records, torch.arange(len(records[1])))

        def run(generator: Randomness) -> Released:
            chosen = everyone
            if self.step.rate != 1:
                chosen = select_present(records, self._draw_batch(len(records[1]), generator))
            key = chosen.numpy().tobytes()
            self._restore_rule()
            if key not in sums:
                sums[key] = self._clipped_sum(records, chosen)
            return self._release(sums[key], self.step, generator)

        return run

    def _draw_batch(self, size: int, generator: Randomness) -> Tensor:
        steps = PlannedSteps(length=1, rate=self.step.rate, sampling=self.step.sampling)
        return next(iter(Sampler(size=size, steps=steps, generator=generator)))

    def _restore_rule(self) -> None:
        if is_adaptive(self._rule) and self._memory is not None:
            self._rule.restore(self._memory)

    def _clipped_sum(self, records: Records, chosen: Tensor) -> ClippedSum:
        batch = records[0][chosen], records[1][chosen]
        return clipped_sum(
            self._model, logistic_losses, batch, rule=getattr(self._rule, "inner", self._rule), clip=self.step.clip,
            as_published=self.as_published,
        )  # fmt: skip

    def _release(self, whole: ClippedSum, step: Step, generator: Randomness) -> Released:
        found = release(
            whole, self._rule, step=step, batch=self.batch, generator=generator, relation=self.relation,
            as_published=self.as_published,
        )  # fmt: skip
        return self._rule.heard if isinstance(self._rule, Overheard) else found.grads
