"""How good reconstructions are: mean squared error, PSNR, SSIM, and whether the true record can be told from others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy import special
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from privet import _check
from privet._registry import import_published
from privet._text import format_count
from privet.attacks.base import Reconstruction
from privet.attacks.observing import TargetRecords

WINDOW, SPREAD = 11, 1.5  # of SSIM: a Gaussian of 11 x 11
K1, K2 = 0.01, 0.03
SEEN = 0.9  # SSIM above this: one would say that it is the same picture


def mse(found: Tensor, true: Tensor) -> Tensor:
    """The mean squared error of each image, (N,), with what was found brought to [0, 1], as a viewer would."""
    return (_to_pixel_range(found) - true).flatten(1).square().mean(1)


def psnr(found: Tensor, true: Tensor) -> Tensor:
    """The peak signal-to-noise ratio of each image in decibel: -10 log10 of its mean squared error; at most 150."""
    return -10 * mse(found, true).clamp(min=1e-15).log10()


def ssim(found: Tensor, true: Tensor) -> Tensor:
    """The structural similarity of each image (N, C, H, W) in [0, 1]: 1 if they are the same, near 0 if unrelated.

        mean over windows of (2 m m' + c1)(2 s + c2) / ((m^2 + m'^2 + c1)(v + v' + c2)),   c = (K 1)^2

    with means m, variances v and covariance s under a Gaussian window of 11 x 11 with spread 1.5 (or the whole image,
    where it is smaller), channels averaged. Source: Wang, Bovik, Sheikh, Simoncelli 2004, section III-B.
    """
    a, b = _to_pixel_range(found).double(), true.double()
    channels, window = a.shape[1], _gaussian_window(a.shape[-2:]).to(a)

    def blur(x: Tensor) -> Tensor:
        return F.conv2d(x, window.expand(channels, 1, *window.shape), groups=channels)

    m, n = blur(a), blur(b)
    v, w, s = blur(a * a) - m * m, blur(b * b) - n * n, blur(a * b) - m * n
    c1, c2 = K1**2, K2**2
    each = (2 * m * n + c1) * (2 * s + c2) / ((m * m + n * n + c1) * (v + w + c2))
    return each.flatten(1).mean(1).to(found.dtype)


def _gaussian_window(sides: torch.Size) -> Tensor:
    lines = []
    for side in sides:
        width = min(WINDOW, side)
        at = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
        line = torch.exp(-(at**2) / (2 * SPREAD**2))
        lines.append(line / line.sum())
    return lines[0][:, None] * lines[1][None, :]


def ranks_by_distance(found: Tensor, candidates: Tensor, true: Tensor) -> Tensor:
    """How many candidates are nearer to each reconstruction than the true one, (N,): 0 means that it is identified.

    `found` is (N, *shape), `candidates` (K, *shape), `true` (N,) the place of the truth among them.
    """
    apart = torch.cdist(_to_pixel_range(found).flatten(1).double(), candidates.flatten(1).double())
    return ranks_by_score(-apart, true)


def ranks_by_score(scores: Tensor, true: Tensor) -> Tensor:
    """How many candidates score at least as well as the true one, itself left out, (N,); what is not a number does."""
    own = scores.gather(1, true[:, None])
    return (~(scores < own)).sum(1) - 1


def match_records(found: Tensor, true: Tensor) -> Tensor:
    """The order in which each victim's reconstructions fit its records best, (N, batch): an update has no order.

    Row r is such that found[r, order[r, b]] belongs to true[r, b]. By the Hungarian method on squared errors.
    """
    apart = torch.cdist(_to_pixel_range(found).flatten(2).double(), true.flatten(2).double())  # (N, batch, batch)
    order = [torch.as_tensor(linear_sum_assignment(part.T.numpy())[1]) for part in apart]
    return torch.stack(order)


def _to_pixel_range(found: Tensor) -> Tensor:
    return found.nan_to_num(0.5).clamp(0, 1)


CONFIDENCE = 0.95
ALARM = 1e-3  # how often a guarantee that holds is accused
PAPER = 0.70  # the mean squared error below which Wei and Liu 2021 call an attack a success: a black image passes
TRIVIAL = f"MSE < {PAPER:.2f} is trivially met: a black image meets it"


def rate_interval(count: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """An interval that holds the true rate of `count` out of `trials` with this confidence.

    Source: Clopper and Pearson 1934; exact.
    """
    _check.whole(trials=trials)
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(special.betaincinv(count, trials - count + 1, tail))
    high = 1.0 if count == trials else float(special.betaincinv(count + 1, trials - count, 1 - tail))
    return low, high


def difference_interval(count: int, control: int, trials: int) -> tuple[float, float]:
    """An interval for the rate of `count` minus that of `control`, each of so many trials: both limits hold at once."""
    both = 1 - (1 - CONFIDENCE) / 2
    (a, b), (c, d) = rate_interval(count, trials, both), rate_interval(control, trials, both)
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


def measure_reconstruction(found: Reconstruction, victims: TargetRecords) -> Measures:
    return measure_images(found.inputs, found.labels, victims, scores=found.scores)


def measure_images(inputs: Tensor, labels: Tensor, victims: TargetRecords, *, scores: Tensor | None = None) -> Measures:
    order = match_records(inputs, victims.inputs)
    rows = torch.arange(victims.size)[:, None]
    shown, true = inputs[rows, order].flatten(0, 1), victims.inputs.flatten(0, 1)
    at = victims.places.flatten()
    apart = mse(shown, true)
    alike = ssim(shown, true)
    ranks = ranks_by_distance(shown, victims.candidates[0], at) if scores is None else ranks_by_score(scores, at)
    hit = ((alike > SEEN) | (ranks == 0)).view(victims.size, victims.batch).any(1)
    return Measures(
        victims=victims.size, records=len(true), mse=float(apart.mean()), psnr=float(psnr(shown, true).mean()),
        ssim=float(alike.mean()), top1=int((ranks == 0).sum()), top10=int((ranks < 10).sum()),
        labels=int((labels[rows, order] == victims.labels).sum()), succeeded=int(hit.sum()),
        paper=int((apart < PAPER).sum()),
    )  # fmt: skip


def baselines(victims: TargetRecords, *, seed: int = 0) -> dict[str, Measures]:
    """What one gets without looking at any update: a black image, the candidates' mean, and noise."""
    mean = victims.candidates[0].mean(0)
    noise = torch.rand(victims.inputs.shape, generator=torch.Generator().manual_seed(seed))
    guesses = {
        "black image": torch.zeros_like(victims.inputs), "mean image": mean.expand_as(victims.inputs),
        "pure noise": noise.to(victims.inputs),
    }  # fmt: skip
    common = victims.candidates[1].mode().values.expand_as(victims.labels)
    return {name: measure_images(guess, common, victims) for name, guess in guesses.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One attack on one method at one step, beside its control: the same noise on no gradient at all."""

    method: str
    attack: str
    step: int  # from 1; 0 for the whole run
    found: Measures
    control: Measures
    noise_multiplier: float | None  # multiplier; None without privacy
    clipping_norm: float | None
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
        return self.found.success - self.control.success

    @property
    def limits(self) -> tuple[float, float]:
        return difference_interval(self.found.succeeded, self.control.succeeded, self.found.victims)

    @property
    def is_violation(self) -> bool:
        """Whether records are identified more often than one step can allow, with confidence."""
        if self.ceiling is None or self.found.victims < self.found.records:
            return False  # several records of one victim are no independent trials
        return rate_interval(self.found.top1, self.found.records, 1 - 2 * ALARM)[0] > self.ceiling

    def as_dict(self) -> dict[str, Any]:
        low, high = self.limits
        return {
            "method": self.method, "attack": self.attack, "step": self.step or "all", "rule": self.rule,
            "noise_multiplier": self.noise_multiplier, "clipping_norm": self.clipping_norm, "std": self.std,
            **self.found.as_dict(), "control": self.control.as_dict(),
            "difference": self.difference, "difference_lower": low, "difference_upper": high,
            "confidence": CONFIDENCE, "ceiling": self.ceiling, "run_ceiling": self.run_ceiling,
            "violation": self.is_violation, "iterations": self.iterations, "evaluations": self.evaluations,
            "seconds": self.seconds,
        }  # fmt: skip


_HEAD = (
    "method", "step", "attack", "PSNR", "SSIM", "top-1", "top-10", "label", "success", "control",
    f"difference [{CONFIDENCE:.0%}]", "ceiling", "run", "MSE<0.70*", "iter", "evals", "s",
)  # fmt: skip


def format_table(
    task: str, settings: Mapping[str, Any], baselines: Mapping[str, Measures], outcomes: Sequence[Outcome],
    guarantees: Mapping[str, str],
) -> str:  # fmt: skip
    victims = format_count(settings["examples"], "victim", commas=True)
    lines = [
        f"{victims} of {format_count(settings['batch_size'], 'unknown record', commas=True)} from {task}, "
        f"{settings['candidates']} candidates, seed {settings['seed']}; the attacker knows every other record"
    ]
    lines += align_columns([_HEAD, *map(_outcome_row, outcomes), *(_baseline_row(n, m) for n, m in baselines.items())])
    lines += [
        f"  success: SSIM > 0.9 or identified, of victims; control: the same noise on no gradient. * {TRIVIAL}.",
        "  ceiling: the most that any attack on this step can identify (top-1); run: on the whole run. Both follow "
        "from the plan; '-': no guarantee, or several records at once.",
    ]
    lines += [f"  {name}: {text}" for name, text in guarantees.items() if text != "none"]
    lines += [
        f"  violation: {o.method}, step {o.when}, {o.attack}: {o.found.top1} of {o.found.records} identified, more "
        "than the guarantee allows"
        for o in outcomes if o.is_violation
    ]  # fmt: skip
    return "\n".join(lines + _printed_lines(task, outcomes))


def _outcome_row(o: Outcome) -> tuple[str, ...]:
    low, high = o.limits
    return (
        o.method, o.when, o.attack, *_measure_cells(o.found), f"{o.control.success:.2f}",
        f"{o.difference:+.2f} [{low:+.2f}, {high:+.2f}]", _format_share(o.ceiling), _format_share(o.run_ceiling),
        f"{o.found.paper / o.found.records:.2f}", f"{o.iterations:.0f}", f"{o.evaluations:.0f}", f"{o.seconds:.1f}",
    )  # fmt: skip


def _baseline_row(name: str, found: Measures) -> tuple[str, ...]:
    return (
        f"({name})", "", "", *_measure_cells(found), "", "", "", "", f"{found.paper / found.records:.2f}", "", "", ""
    )  # fmt: skip


def _measure_cells(found: Measures) -> tuple[str, ...]:
    counts = (found.top1, found.top10, found.labels)
    return (
        f"{found.psnr:.1f}", f"{found.ssim:.3f}", *(f"{c / found.records:.2f}" for c in counts), f"{found.success:.2f}",
    )  # fmt: skip


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _printed_lines(task: str, outcomes: Sequence[Outcome]) -> list[str]:
    """The paper's figures beside ours, for the same attack on the first step."""
    rows, theirs_of = [], import_published("figures_printed")
    for o in outcomes:
        beside = theirs_of.printed_figures(o.method, task)
        if beside is not None and o.step == 1 and o.attack.startswith("invert-l2"):
            theirs = (f"{beside.iterations:g}", f"{beside.success:g}", f"{beside.mse:.2e}")
            ours = (f"{o.iterations:.1f}", f"{o.found.paper / o.found.records:.2f}", f"{o.found.mse:.2e}")
            rows.append((o.method, *theirs, *ours, f"{o.difference:+.2f}"))
    if not rows:
        return []
    head = ("method", "iter", "success", "MSE", "our iter", "MSE<0.70*", "our MSE", "success - control")
    return [f"  published: {theirs_of.SOURCE}; its iterations are L-BFGS calls", *align_columns([head, *rows])]


def align_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    is_word = [not any(row[i] and row[i][0] in "+-0123456789" for row in rows[1:]) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(
            cell.ljust(width) if word else cell.rjust(width)
            for cell, width, word in zip(row, widths, is_word, strict=True)
        ).rstrip() for row in rows
    ]  # fmt: skip
