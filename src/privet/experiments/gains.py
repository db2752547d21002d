"""Which schedule helps: what each adds to constant noise at the same certified budget, in the paper and in our runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

from privet.experiments.table import NONE, Line, bar

SCHEDULES = ("growing-mu", "sensitivity-decay", "dynamic")
LEVEL = 0.95
_HEAD = ("setting", "schedule", "learning rate", "published gain", "our gain", "95 % interval", "verdict")
_SAID = """### Which schedule helps

Gain in points of accuracy over constant noise at the same certified epsilon, with the 95 % interval of the paired
t-test over the seeds, since runs of one seed begin with the same weights and draw the same records: of twenty such
intervals one misses by chance. What the choice of the learning rate adds is not in it: one run for each rate, on a
split. rho is 2 throughout, where the paper swept it. Where one learning rate serves all, a clip that decays lowers it
too, and may gain by that alone. The mean over the budgets of a dataset has the wider one of two 95 % intervals: over
those budgets, which share data and seeds, and over the seeds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A schedule against constant noise in one setting."""

    setting: str
    schedule: str
    tuned: bool  # whether a learning rate was chosen for each
    published: float
    differences: Mapping[int | None, float]  # by seed

    @property
    def ours(self) -> float:
        return fmean(self.differences.values())

    @property
    def interval(self) -> tuple[float, float] | None:
        return paired(list(self.differences.values()))


def schedules(lines: Sequence[Line]) -> list[str]:
    """The section of a page: over all settings, and each; nothing if no schedule was run beside constant noise."""
    found = gains(lines)
    if not found:
        return []
    rows = [
        (one.setting, one.schedule, "chosen for each" if one.tuned else "one for all", f"{one.published:+.2f}",
         f"{one.ours:+.2f}", _between(one.interval), _verdict(one.interval))
        for one in found
    ]  # fmt: skip
    text = [_SAID, *_overall(found), bar(_HEAD), bar(["---"] * len(_HEAD)), *map(bar, rows), ""]
    return ["\n".join(text)]


def gains(lines: Sequence[Line]) -> list[Gain]:
    """Each schedule that was run in a setting, against the constant noise of that setting."""
    by_name = {(line.row.paper, line.row.table, line.row.name): line for line in lines}
    found = []
    for (paper, table, name), constant in by_name.items():
        setting, _, last = name.rpartition("-constant")
        if last or not setting:
            continue
        for schedule in SCHEDULES:
            other = by_name.get((paper, table, f"{setting}-{schedule}"))
            if other is not None and (gain := _gain(f"{table}, {setting}", schedule, constant, other)) is not None:
                found.append(gain)
    return found


def _gain(setting: str, schedule: str, constant: Line, other: Line) -> Gain | None:
    one, two = map(_accuracies, (constant, other))
    differences = {seed: two[seed] - one[seed] for seed in one if seed in two}
    if not differences:
        return None
    return Gain(
        setting=setting, schedule=schedule, tuned=bool(other.row.choices), differences=differences,
        published=other.row.published["accuracy"] - constant.row.published["accuracy"],
    )  # fmt: skip


def _accuracies(line: Line) -> dict[int | None, float]:
    return {result.seed: result.figures["accuracy"].value for result in line.results}


def paired(differences: Sequence[float]) -> tuple[float, float] | None:
    """The interval of a mean difference, from those of each pair: Student's paired t-test.

    None for a single pair, or where none differs from another: so few say nothing of how they spread.

    >>> [round(end, 3) for end in paired([0.5, 1.0, 1.5])]
    [-0.242, 2.242]
    """
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    if not error:
        return None
    half = float(student.ppf((1 + LEVEL) / 2, len(differences) - 1)) * error
    return fmean(differences) - half, fmean(differences) + half


def _overall(found: Sequence[Gain]) -> list[str]:
    """For each schedule whose rate was chosen: how often it helps, and its mean gain over the budgets of a dataset."""
    text = []
    for schedule in SCHEDULES:
        own = [one for one in found if one.schedule == schedule and one.tuned and len(one.differences) > 1]
        by_data: dict[str, list[Gain]] = {}
        for one in own:
            by_data.setdefault(one.setting.rpartition("-")[0], []).append(one)
        if own:
            helps, hurts = (sum(_verdict(one.interval) == verdict for one in own) for verdict in ("helps", "hurts"))
            text.append(f"- {schedule}: helps in {helps} and hurts in {hurts} of {len(own)} settings")
        text += [_mean_of(schedule, data, gained) for data, gained in by_data.items() if len(gained) > 1]
    return [*text, ""] if text else []


def _mean_of(schedule: str, data: str, gained: Sequence[Gain]) -> str:
    mean, published = fmean(one.ours for one in gained), fmean(one.published for one in gained)
    seeds = set.intersection(*(set(one.differences) for one in gained))
    of_seeds = [fmean(one.differences[seed] for one in gained) for seed in seeds]
    intervals = filter(None, (paired([one.ours for one in gained]), paired(of_seeds)))
    half = max(((high - low) / 2 for low, high in intervals), default=math.inf)
    inside = mean - half <= published <= mean + half
    return (
        f"- {schedule}, {data}: {mean:+.2f} ± {half:.2f} in the mean of {len(gained)} budgets, published "
        f"{published:+.2f}{'' if inside else ': outside'}"
    )


def _between(interval: tuple[float, float] | None) -> str:
    return NONE if interval is None else f"{interval[0]:+.2f} to {interval[1]:+.2f}"


def _verdict(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return "not decided: one run, or runs that do not differ"
    return "helps" if interval[0] > 0 else "hurts" if interval[1] < 0 else "not decided"
