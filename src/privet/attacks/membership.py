"""Who took part? Likelihood ratios from shadow models, and the loss itself, against what the guarantee allows.

Members are drawn by independent coins and n is fixed: neighbours are those of zero-out. Thresholds are chosen on shadow
models; a violation needs target models, which had no say in them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from privet import _check
from privet.accounting import Guarantee
from privet.accounting.tradeoff import Curve, advantage, tradeoff, true_positive_rate
from privet.attacks.likelihood import ALARM, ATTACKS, RATES, Score, judged
from privet.attacks.shadows import trained_shadows, under_add_remove
from privet.attacks.sources import settings_for, sources_of
from privet.attacks.table import aligned
from privet.data.files import Where
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.planning import Plan
from privet.training.run import Run


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
        """Plain values, for JSON."""
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
        return "\n".join([head, *aligned(rows), note, *costs])


def memberships(
    what: "str | Sequence[str] | Plan | None" = None, task: "str | Task | None" = None, *, records: int = 200,
    shadows: int = 32, targets: int = 16, model: str | None = None, noise: float = 1.0, clip: float = 1.0,
    rate: float = 0.1, steps: int = 100, as_published: bool = False, seed: int = 0, where: Where | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Memberships:  # fmt: skip
    """How well a trained model tells who took part, by method; training without privacy is always beside them.

    For each method `shadows` + `targets` models are trained, each on the records that its coins let in.

    Args:
        what: names of methods, or a plan; None is training without privacy alone.
        records: how many may be in or out; all others always take part.
        model: the task's own unless it is given.
        noise, clip, rate, steps: of the plans of methods given by name.

    >>> found = memberships(None, "digits:size=60", records=20, shadows=4, targets=2, model="linear", steps=3)
    >>> [score.attack for score in found.methods[0].scores]
    ['lira-online', 'lira-offline', 'loss']

    Raises:
        Unsupported: the plan's neighbours are not those that lack a record, or the task is not one of classes.
    """
    _check.whole(least=4, shadows=shadows)
    _check.whole(least=2, targets=targets)
    loaded, sources, plans = sources_of(what, task, where, as_published, noise=noise, clip=clip, rate=rate, steps=steps)
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
        settings = settings_for(plan or plans[0], model=model)

        def tell(number: int, name: str = name) -> None:
            if progress is not None:
                progress(f"{name}, model {number + 1}", len(found) * models + number, len(sources) * models)

        all_ = trained_shadows(
            plan, loaded, sampled=plans[0], settings=settings, records=records, models=models, seed=seed, progress=tell
        )
        curve = _curve(plan)
        learnt, aimed = all_.part(slice(0, shadows)), all_.part(slice(shadows, None))
        judgements = tuple(judged(word, learnt, aimed, curve, ALARM / len(ATTACKS)) for word in ATTACKS)
        found.append(
            Membership(method=name, guarantee=None if plan is None else plan.guarantee, curve=curve, scores=judgements)
        )
    told = {"records": records, "shadows": shadows, "targets": targets, "model": model, "seed": seed}
    return Memberships(task=loaded.name, settings=told, methods=tuple(found))


def _curve(plan: Plan | None) -> Curve | None:
    """The certified trade-off curve of a plan, None where there is no guarantee."""
    if plan is None or plan.is_unsound:
        return None
    return tradeoff(under_add_remove(plan).ledger(), relation="add-remove")
