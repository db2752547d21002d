"""What an attack achieved on all victims of a moment: measures, success against a control, and the ceiling."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from scipy import special
from torch import Tensor

from privet import _check
from privet.attacks import quality
from privet.attacks.base import Reconstruction
from privet.attacks.victims import Victims

CONFIDENCE = 0.95
ALARM = 1e-3  # how often a guarantee that holds is accused
PAPER = 0.70  # the mean squared error below which Wei and Liu 2021 call an attack a success: a black image passes
TRIVIAL = f"MSE < {PAPER:.2f} is trivially met: a black image meets it"


def rate_limits(count: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """An interval that holds the true rate of `count` out of `trials` with this confidence.

    Source: Clopper and Pearson 1934; exact.

    >>> [round(limit, 4) for limit in rate_limits(0, 100)]
    [0.0, 0.0362]
    """
    _check.whole(trials=trials)
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(special.betaincinv(count, trials - count + 1, tail))
    high = 1.0 if count == trials else float(special.betaincinv(count + 1, trials - count, 1 - tail))
    return low, high


def difference_limits(count: int, control: int, trials: int) -> tuple[float, float]:
    """An interval for the rate of `count` minus that of `control`, each of so many trials: both limits hold at once."""
    both = 1 - (1 - CONFIDENCE) / 2
    (a, b), (c, d) = rate_limits(count, trials, both), rate_limits(control, trials, both)
    return a - d, b - c


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What reconstructions are worth; means over records, and counts over victims."""

    victims: int
    records: int
    mse: float
    psnr: float
    ssim: float
    top1: int  # records that are told from all other candidates
    top10: int
    labels: int  # labels that are right
    succeeded: int  # victims with a record of SSIM > 0.9 or identified
    paper: int  # records with a mean squared error below 0.70: see TRIVIAL

    @property
    def success(self) -> float:
        return self.succeeded / self.victims

    def as_dict(self) -> dict[str, Any]:
        share = {"top1": self.top1, "top10": self.top10, "label_accuracy": self.labels, "paper_success": self.paper}
        return {
            "mse": self.mse, "psnr": self.psnr, "ssim": self.ssim, "success": self.success,
            **{key: count / self.records for key, count in share.items()},
        }  # fmt: skip


def measured(found: Reconstruction, victims: Victims) -> Measures:
    """The measures of a reconstruction; within a victim, each record is held against what fits it best."""
    return measures_of(found.inputs, found.labels, victims, scores=found.scores)


def measures_of(inputs: Tensor, labels: Tensor, victims: Victims, *, scores: Tensor | None = None) -> Measures:
    order = quality.matched(inputs, victims.inputs)
    rows = torch.arange(victims.size)[:, None]
    shown, true = inputs[rows, order].flatten(0, 1), victims.inputs.flatten(0, 1)
    places = victims.places.flatten()
    apart = quality.mse(shown, true)
    alike = quality.ssim(shown, true)
    ranks = quality.ranks(shown, victims.candidates[0], places) if scores is None else quality.ranks_of(scores, places)
    hit = ((alike > quality.SEEN) | (ranks == 0)).view(victims.size, victims.batch).any(1)
    return Measures(
        victims=victims.size, records=len(true), mse=float(apart.mean()), psnr=float(quality.psnr(shown, true).mean()),
        ssim=float(alike.mean()), top1=int((ranks == 0).sum()), top10=int((ranks < 10).sum()),
        labels=int((labels[rows, order] == victims.labels).sum()), succeeded=int(hit.sum()),
        paper=int((apart < PAPER).sum()),
    )  # fmt: skip


def baselines(victims: Victims, *, seed: int = 0) -> dict[str, Measures]:
    """What one gets without looking at any update: a black image, the candidates' mean, and noise."""
    mean = victims.candidates[0].mean(0)
    noise = torch.rand(victims.inputs.shape, generator=torch.Generator().manual_seed(seed))
    guesses = {
        "black image": torch.zeros_like(victims.inputs), "mean image": mean.expand_as(victims.inputs),
        "pure noise": noise.to(victims.inputs),
    }  # fmt: skip
    common = victims.candidates[1].mode().values.expand_as(victims.labels)
    return {name: measures_of(guess, common, victims) for name, guess in guesses.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One attack on one method at one step, beside its control: the same noise on no gradient at all."""

    method: str
    attack: str
    step: int  # from 1; 0 for the whole run
    found: Measures
    control: Measures
    noise: float | None  # multiplier; None without privacy
    clip: float | None
    std: float | None
    rule: str | None
    ceiling: float | None  # on top-1, of any attack on this one step; None without a guarantee
    run_ceiling: float | None  # the same, of everything that the run gives out
    iterations: float
    evaluations: float
    seconds: float
    frames: dict[str, list[list[list[int]]]] = field(default_factory=dict)  # of the first victim, 0 to 255

    @property
    def when(self) -> str:
        """The step's number, or `all`."""
        return str(self.step or "all")

    @property
    def difference(self) -> float:
        """Success minus the control's."""
        return self.found.success - self.control.success

    @property
    def limits(self) -> tuple[float, float]:
        return difference_limits(self.found.succeeded, self.control.succeeded, self.found.victims)

    @property
    def is_violation(self) -> bool:
        """Whether records are identified more often than one step can allow, with confidence."""
        if self.ceiling is None or self.found.victims < self.found.records:
            return False  # several records of one victim are no independent trials
        return rate_limits(self.found.top1, self.found.records, 1 - 2 * ALARM)[0] > self.ceiling

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        low, high = self.limits
        return {
            "method": self.method, "attack": self.attack, "step": self.step or "all", "rule": self.rule,
            "noise": self.noise, "clip": self.clip, "std": self.std, **self.found.as_dict(),
            "control": self.control.as_dict(),
            "difference": self.difference, "difference_lower": low, "difference_upper": high,
            "confidence": CONFIDENCE, "ceiling": self.ceiling, "run_ceiling": self.run_ceiling,
            "violation": self.is_violation, "iterations": self.iterations, "evaluations": self.evaluations,
            "seconds": self.seconds,
        }  # fmt: skip

    def kept(self) -> dict[str, Any]:
        """Everything, for a file; `Outcome.read` takes it back."""
        return asdict(self)

    @classmethod
    def read(cls, kept: dict[str, Any]) -> "Outcome":
        """What `kept` gave."""
        parts = {word: Measures(**kept[word]) for word in ("found", "control")}
        return cls(**{**kept, **parts})
