"""Scores that tell members from others, from what shadow models say, and how often they are right on other models.

Shadow models are trained by one plan on the same records but for those that a coin leaves out. A record that is left
out adds nothing to any sum, while rate, noise and divisor stay those of the plan: this is the neighbour that zero-out
speaks of. So the loop is given the members alone, with the plan of the same steps under add-or-remove, where the number
of records is never read. Nothing else tells members and others apart.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from privet import _check
from privet.accounting import Guarantee
from privet.accounting.tradeoff import Curve, advantage, tradeoff, true_positive_rate
from privet.attacks.attack import attack_settings, resolve_sources
from privet.attacks.outcome import align_columns
from privet.data.files import DataFolders
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import seeded
from privet.per_example.trial_pass import evaluating
from privet.planning import Plan
from privet.sampling.loading import gather
from privet.sampling.samplers import poisson_indices
from privet.training.baseline import step_plainly
from privet.training.run import Run
from privet.training.settings import Settings
from privet.training.setup import TrainingSetup, build_setup
from privet.training.training import Training

RATES = (0.001, 0.01)  # false-positive rates that are reported
ATTACKS = ("lira-online", "lira-offline", "loss")
ALARM = 1e-3  # how often a sound plan is accused, over all attacks and thresholds
LEAST_SPREAD = 1e-3

Floats = NDArray[np.float64]


# --- shadow models ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShadowModels:
    """M models and what they say of R records: how sure each is of the true class, and its loss; and who was in."""

    members: Tensor  # (M, R), bool, each by an independent fair coin
    confidence: Tensor  # (M, R): log p - log(1 - p) of the true class
    losses: Tensor  # (M, R)

    def part(self, rows: slice) -> "ShadowModels":
        return ShadowModels(members=self.members[rows], confidence=self.confidence[rows], losses=self.losses[rows])


def train_shadow_models(
    plan: Plan | None, task: Task, *, sampled: Plan, settings: Settings, records: int, models: int, seed: int,
    progress: Callable[[int], None] | None = None,
) -> ShadowModels:  # fmt: skip
    """Train `models` of them; without privacy if `plan` is None, on batches of `sampled`'s rates."""
    _check.whole(records=records)
    _check.whole(least=4, models=models)
    if records > task.size:
        raise InvalidValue(f"records={records} are more than the {task.size} of the task. Use fewer.")
    source = torch.Generator().manual_seed(seed)
    order = torch.randperm(task.size, generator=source)
    asked, always = order[:records], order[records:]
    members = torch.rand(models, records, generator=source) < 0.5
    looked_at = gather(task.train, asked)
    found = []
    for number, coins in enumerate(members):
        if progress is not None:
            progress(number)
        chosen = torch.cat([asked[coins], always])
        model = _train_model(plan, task, gather(task.train, chosen), sampled, settings, seed + 1 + number)
        found.append(_score_records(model, task, *looked_at))
    confidence, losses = (torch.stack(part) for part in zip(*found, strict=True))
    return ShadowModels(members=members, confidence=confidence, losses=losses)


def to_add_remove(plan: Plan) -> Plan:
    """The same steps, with neighbours that lack a record: the numbers are the same as under zero-out."""
    budget = plan.recipe.budget
    if budget.adjacency == "replace-one" or plan.steps[0].sampling.name != "poisson" or budget.unit != "example":
        raise Unsupported(
            f"adjacency={budget.adjacency!r}, sampling={plan.steps[0].sampling}, unit={budget.unit!r}: membership "
            "inference needs a plan with Poisson sampling and unit example, under zero-out or add-remove. Make such "
            "a plan."
        )
    return replace(plan, recipe=replace(plan.recipe, budget=replace(budget, adjacency="add-remove")))


def _train_model(
    plan: Plan | None, task: Task, data: "tuple[Tensor, Tensor]", sampled: Plan, settings: Settings, seed: int
) -> nn.Module:
    parts = build_setup(to_add_remove(plan or sampled), task, settings, weights_seed=seed, group=None)
    if plan is None:
        _train_without_privacy(parts, data, seed)
        return parts.model
    training = Training(
        parts.model, parts.optimizer, data, parts.plan, randomness=seeded(seed, 1), uncertified=plan.is_unsound
    )
    with training:
        for x, y in training:
            training.step(task.losses(parts.model(x), y))
    return parts.model


def _train_without_privacy(parts: TrainingSetup, data: "tuple[Tensor, Tensor]", seed: int) -> None:
    numbers = seeded(seed, 1).numpy_generator()
    for step in parts.plan.steps:
        rows = torch.as_tensor(poisson_indices(len(data[0]), step.sample_rate, numbers))
        if len(rows):
            x, y = gather(data, rows)
            step_plainly(parts.optimizer, parts.task.losses(parts.model(x), y))


def _score_records(model: nn.Module, task: Task, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(how sure the model is of the true class, its loss), for each record."""
    with evaluating(model), torch.no_grad():
        outputs = model(inputs).double()
        own = outputs.gather(1, labels[:, None])[:, 0]
        others = outputs.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
        return own - others, task.losses(outputs, labels)


# --- scores -----------------------------------------------------------------------------------------


def membership_scores(attack: str, seen: ShadowModels, learnt: ShadowModels, *, leave_out: bool = False) -> Tensor:
    """How much each model of `seen` (M, R) speaks for each record's membership, from what `learnt` tells of records.

    lira-online: log N(x; in) - log N(x; out), lira-offline: (x - mean out) / spread out, x the confidence; means are
    each record's own, spreads are those of all records, which few shadows can tell better. loss: minus the loss.
    `leave_out`: `seen` is `learnt`, and no model is judged by itself.
    Sources: Carlini et al. 2022, arXiv:2112.03570; Yeom, Giacomelli, Fredrikson, Jha 2018, arXiv:1709.01604 (loss).
    """
    if attack == "loss":
        return -seen.losses
    x = seen.confidence
    mean_out, spread_out = _fit_gaussians(learnt, ~learnt.members, leave_out=leave_out)
    if attack == "lira-offline":
        return (x - mean_out) / spread_out
    mean_in, spread_in = _fit_gaussians(learnt, learnt.members, leave_out=leave_out)
    return (
        ((x - mean_out) / spread_out).square() / 2 + spread_out.log()
        - ((x - mean_in) / spread_in).square() / 2 - spread_in.log()
    )  # fmt: skip


def _fit_gaussians(learnt: ShadowModels, chosen: Tensor, *, leave_out: bool) -> tuple[Tensor, Tensor]:
    """The mean of each record over the chosen models, (M, R) or (R,), and the spread around it, one for all."""
    w, x = chosen.double(), learnt.confidence
    count, total = w.sum(0), (w * x).sum(0)
    overall = total.sum() / count.sum().clamp(min=1)
    mean = torch.where(count > 0, total / count.clamp(min=1), overall)
    left = (w * (x - mean).square()).sum() / (count - 1).clamp(min=0).sum().clamp(min=1)
    spread = left.sqrt().clamp(min=LEAST_SPREAD)
    if leave_out:
        rest = count - w
        mean = torch.where(rest > 0, (total - w * x) / rest.clamp(min=1), overall)
    return mean, spread


# --- rates ------------------------------------------------------------------------------------------


def roc(values: Tensor, members: Tensor) -> tuple[Floats, Floats]:
    """(false-positive rates, true-positive rates) at every threshold, from strict to lax."""
    flat, inside = values.flatten().numpy(), members.flatten().numpy()
    order = np.argsort(-flat, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(flat[order])), len(flat) - 1)  # equal scores pass together
    true, false = np.cumsum(inside[order])[ends], np.cumsum(~inside[order])[ends]
    return np.append(0.0, false / max((~inside).sum(), 1)), np.append(0.0, true / max(inside.sum(), 1))


def mean_interval(means: Floats, significance: float) -> tuple[float, float]:
    """Limits of the expectation behind the mean of independent values in [0, 1], each wrong with chance `significance`.

    All p with n KL(mean || p) <= log(1/alarm): Hoeffding 1963, Theorem 1. Records of one model depend on each other,
    so a model is one value: its share of records above the threshold (`shares`).
    """
    mean, bound = float(np.mean(means)), math.log(1 / significance) / len(means)

    def apart(p: float) -> float:
        first = mean * math.log(mean / p) if mean > 0 else 0.0
        return first + ((1 - mean) * math.log((1 - mean) / (1 - p)) if mean < 1 else 0.0)

    def end(inner: float, outer: float) -> float:
        for _ in range(60):
            middle = (inner + outer) / 2
            fits = 0 < middle < 1 and apart(middle) <= bound
            inner, outer = (middle, outer) if fits else (inner, middle)
        return outer

    return end(mean, 0.0) if mean > 0 else 0.0, end(mean, 1.0) if mean < 1 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Score:
    """What one attack did on the target models."""

    attack: str
    roc: tuple[Floats, Floats]
    tpr: dict[float, float]  # at each of RATES
    advantage: float  # at the threshold that was best on shadows
    is_violation: bool

    def as_dict(self) -> dict[str, Any]:
        return {
            "attack": self.attack, "tpr_at_fpr": {f"{rate:g}": value for rate, value in self.tpr.items()},
            "advantage": self.advantage, "violation": self.is_violation,
        }  # fmt: skip


def score_attack(
    attack: str, learnt: ShadowModels, targets: ShadowModels, curve: Curve | None, significance: float
) -> Score:
    """An attack that learnt from some models, on others. A violation: a rate beyond the curve, with confidence."""
    known = membership_scores(attack, learnt, learnt, leave_out=True)
    values = membership_scores(attack, targets, learnt)
    thresholds = [float(np.quantile(known[~learnt.members].numpy(), 1 - rate)) for rate in RATES]
    false, true = roc(known, learnt.members)
    cut = np.unique(known.numpy())[::-1]
    best = float(cut[max(int(np.argmax(true - false)) - 1, 0)])
    passed = (values >= best).numpy()
    inside = targets.members.numpy()
    false, true = roc(values, targets.members)
    return Score(
        attack=attack, roc=(false, true), tpr={rate: float(true[false <= rate].max()) for rate in RATES},
        advantage=float(passed[inside].mean() - passed[~inside].mean()),
        is_violation=curve is not None and any(
            _exceeds_curve(values, targets.members, t, curve, significance / (2 * len(RATES) + 2))
            for t in (*thresholds, best)
        ),
    )  # fmt: skip


def _exceeds_curve(values: Tensor, members: Tensor, threshold: float, curve: Curve, significance: float) -> bool:
    """Whether members pass more often than f allows at this false-positive rate: TPR_low > 1 - f(FPR_high)."""
    true, false = passed_weights(values >= threshold, members)
    low, high = mean_interval(true, significance)[0], mean_interval(false, significance)[1]
    whole = total_record_weight(members.shape[1])
    return low / whole > true_positive_rate(curve, min(high / whole, 1.0))


def passed_weights(passed: Tensor, members: Tensor) -> tuple[Floats, Floats]:
    """What the members and the others that passed weigh in each model, (M,) and (M,), each in [0, 1].

    A record weighs g(j) = 1 / max(j + 1, R - j), j the members among the R - 1 others: the same whether it is in or
    out. Counts of members and of others as denominators would be random, and weigh the two rates differently. With
    these, the expectations over `mass(R)` are averages of the records' true- and false-positive rates by one law, so
    that TPR <= 1 - f(FPR) holds for them as it does for each record and each set of others: 1 - f is concave.
    """
    inside, records = members.double(), members.shape[1]
    count = inside.sum(1, keepdim=True)
    weights = 1 / torch.maximum(count - inside + 1, records - (count - inside))
    found = [(passed * part * weights).sum(1).numpy() for part in (inside, 1 - inside)]
    return found[0], found[1]


def total_record_weight(records: int) -> float:
    """What all records weigh on average, in or out by fair coins: R / 2 E[g(J)], J binomial(R - 1, 1/2); at most 1."""
    j = np.arange(records)
    return float(records / 2 * (stats.binom.pmf(j, records - 1, 0.5) / np.maximum(j + 1, records - j)).sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Membership:
    """All attacks on one method, and the ceilings that follow from its plan."""

    method: str
    guarantee: Guarantee | None
    curve: Curve | None  # certified; None without a guarantee
    scores: tuple[Score, ...]

    @property
    def ceilings(self) -> dict[str, float] | None:
        if self.curve is None:
            return None
        found = {f"{rate:g}": true_positive_rate(self.curve, rate) for rate in RATES}
        return found | {"advantage": advantage(self.curve)}

    def as_dict(self) -> dict[str, Any]:
        guarantee = None if self.guarantee is None else self.guarantee.as_dict()
        return {
            "method": self.method, "guarantee": guarantee, "ceilings": self.ceilings,
            "attacks": [score.as_dict() for score in self.scores],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memberships:
    """Every method's, and how they were found."""

    task: str
    settings: dict[str, Any]
    methods: tuple[Membership, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"task": self.task, "settings": self.settings, "methods": [one.as_dict() for one in self.methods]}

    def __str__(self) -> str:
        s = self.settings
        rows = [("method", "attack", *(f"TPR at {rate:.1%} FPR" for rate in RATES), "advantage", "violation")]
        for one in self.methods:
            for score in one.scores:
                tpr = (f"{score.tpr[rate]:.4f}" for rate in RATES)
                rows.append((one.method, score.attack, *tpr, f"{score.advantage:+.4f}", str(score.is_violation)))
            if one.ceilings is not None:
                rows.append((one.method, "ceiling, certified", *(f"{v:.4f}" for v in one.ceilings.values()), ""))
        head = (
                   f"{s['records']} examples of {self.task} in or out by fair coins, {s['shadows']} shadow models, "
                   f"{s['targets']} targets, seed {s['seed']}"
               )  # fmt: skip
        costs = [f"  {one.method}: {one.guarantee}" for one in self.methods if one.guarantee is not None]
        note = "  violation: above the ceiling with confidence 99.9 %; a few examples may be above it by chance"
        return "\n".join([head, *align_columns(rows), note, *costs])


def membership_inference(
    what: "str | Sequence[str] | Plan | None" = None, task: "str | Task | None" = None, *, records: int = 200,
    shadows: int = 32, targets: int = 16, model: str | None = None, noise_multiplier: float = 1.0,
    clipping_norm: float = 1.0, sample_rate: float = 0.1, steps: int = 100, uncertified: bool = False, seed: int = 0,
    where: DataFolders | None = None, progress: Callable[[str, int, int], None] | None = None,
) -> Memberships:  # fmt: skip
    """How well a trained model tells who took part, by method; training without privacy is always beside them.

    For each method `shadows` + `targets` models are trained, each on the records that its coins let in.

    Args:
        what: names of methods, or a plan; None is training without privacy alone.
        records: how many may be in or out; all others always take part.
        model: the task's own unless it is given.
        noise_multiplier, clipping_norm, sample_rate, steps: of the plans of methods given by name.

    >>> found = membership_inference(None, "digits:size=60", records=20, shadows=4, targets=2, model="linear", steps=3)
    >>> [score.attack for score in found.methods[0].scores]
    ['lira-online', 'lira-offline', 'loss']

    Raises:
        Unsupported: the plan's neighbours are not those that lack a record, or the task is not one of classes.
    """
    _check.whole(least=4, shadows=shadows)
    _check.whole(least=2, targets=targets)
    loaded, sources, plans = resolve_sources(
        what, task, where, uncertified, noise_multiplier=noise_multiplier, clipping_norm=clipping_norm,
        sample_rate=sample_rate, steps=steps,
    )  # fmt: skip
    if "classes" not in loaded.facts:
        raise Unsupported(
            f"task={loaded.name!r} does not list its classes. The attack reads the probability of the true class. Use "
            "a task with `classes` among its facts."
        )
    found: list[Membership] = []
    models = shadows + targets
    for name, plan in sources.items():
        if isinstance(plan, Run):
            raise InvalidValue(f"{plan.folder} is a run. Shadow models are trained by a plan. Give its plan.json.")
        settings = attack_settings(plan or plans[0], model=model)

        def tell(number: int, name: str = name) -> None:
            if progress is not None:
                progress(f"{name}, model {number + 1}", len(found) * models + number, len(sources) * models)

        all_ = train_shadow_models(
            plan, loaded, sampled=plans[0], settings=settings, records=records, models=models, seed=seed, progress=tell
        )
        covered = None if plan is None or plan.is_unsound else to_add_remove(plan).ledger()
        curve = None if covered is None else tradeoff(covered, adjacency="add-remove")  # certified
        learnt, aimed = all_.part(slice(0, shadows)), all_.part(slice(shadows, None))
        judgements = tuple(score_attack(word, learnt, aimed, curve, ALARM / len(ATTACKS)) for word in ATTACKS)
        found.append(
            Membership(method=name, guarantee=None if plan is None else plan.guarantee, curve=curve, scores=judgements)
        )
    told = {"records": records, "shadows": shadows, "targets": targets, "model": model, "seed": seed}
    return Memberships(task=loaded.name, settings=told, methods=tuple(found))
