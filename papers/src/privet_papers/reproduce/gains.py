"""Which schedule helps: what each adds to constant noise at the same certified budget, in the paper and in our runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

from privet_papers.reproduce.tables import NONE, Line, bar

SCHEDULES = ("growing-mu", "sensitivity-decay", "dynamic")
LEVEL = 0.95
_HEAD = ("setting", "schedule", "learning rate", "published gain", "our gain", "95 % interval", "verdict")
_MEANS = (
    "dataset",
    "schedule",
    "budgets",
    "published gain",
    "our gain",
    "95 % interval",
    "verdict",
    "the published gain",
)
_SAID = """### Which schedule helps

Gain in points of accuracy over constant noise at the same certified epsilon, with the 95 % interval of the paired
t-test over the seeds: runs of one seed begin with the same weights and, by one version of the code, draw the same
records. What the choice of the learning rate adds is not in it: one run for each rate, on a split. rho is 2 throughout,
where the paper swept it. Where one learning rate serves all, a decaying clipping norm lowers it too, and
may gain by that alone.
"""
_OF_MEANS = """\
The mean over three or more budgets of a dataset, the learning rate chosen for each schedule. It has the wider one of
two 95 % intervals: over those budgets, which share data and seeds, and over the seeds.
"""
ABOVE, OPEN = "is above our interval", "not decided"
FEWEST = 3  # budgets of a mean: the spread of two says next to nothing


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean gain of a schedule over the budgets of a dataset."""

    data: str
    schedule: str
    budgets: int
    published: float
    ours: float
    half: float  # of its interval

    @property
    def interval(self) -> tuple[float, float]:
        return self.ours - self.half, self.ours + self.half

    @property
    def place(self) -> str:
        """Where the published gain lies."""
        low, high = self.interval
        return (
            "is above our interval" if self.published > high else "is below it" if self.published < low else "is inside"
        )


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
    means = means_of(found)
    text = [_SAID, *_in_short(found, means)]
    if means:
        text += [_OF_MEANS, *_table(_MEANS, [
            (one.data, one.schedule, str(one.budgets), f"{one.published:+.2f}", f"{one.ours:+.2f}",
             _between(one.interval), _verdict(one.interval), one.place)
            for one in means
        ])]  # fmt: skip
    return ["\n".join([*text, *_table(_HEAD, rows)])]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [bar(head), bar(["---"] * len(head)), *map(bar, rows), ""]


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


def means_of(found: Sequence[Gain]) -> list[Mean]:
    """The means over the budgets of each dataset, where a learning rate was chosen for each schedule."""
    by_data: dict[tuple[str, str], list[Gain]] = {}
    for one in _tuned(found):
        by_data.setdefault((one.setting.rpartition("-")[0], one.schedule), []).append(one)
    return [_mean_of(data, schedule, own) for (data, schedule), own in by_data.items() if len(own) >= FEWEST]


def _tuned(found: Sequence[Gain]) -> list[Gain]:
    return [one for one in found if one.tuned and len(one.differences) > 1]


def _mean_of(data: str, schedule: str, gained: Sequence[Gain]) -> Mean:
    seeds = set.intersection(*(set(one.differences) for one in gained))
    of_seeds = [fmean(one.differences[seed] for one in gained) for seed in seeds]
    intervals = filter(None, (paired([one.ours for one in gained]), paired(of_seeds)))
    return Mean(
        data=data, schedule=schedule, budgets=len(gained), published=fmean(one.published for one in gained),
        ours=fmean(one.ours for one in gained),
        half=max(((high - low) / 2 for low, high in intervals), default=math.inf),
    )  # fmt: skip


def _in_short(found: Sequence[Gain], means: Sequence[Mean]) -> list[str]:
    """What the tables below come to, in words."""
    tuned = _tuned(found)
    text = [
        f"- {schedule}: {', '.join(_decided(schedule, means))}; of {len(own)} single settings it helps in "
        f"{_counted(own, 'helps')} and hurts in {_counted(own, 'hurts')}"
        for schedule in SCHEDULES
        if (own := [one for one in tuned if one.schedule == schedule])
    ]
    if means:
        verdicts = {name: {_verdict(one.interval) for one in means if one.schedule == name} for name in SCHEDULES}
        every = [name for name, found_so in verdicts.items() if found_so == {"helps"}]
        above = sum(one.place == ABOVE for one in means)
        text.append(
            f"- {' and '.join(every) or 'no schedule'} helps in the mean on every dataset; the published mean gain "
            f"{ABOVE} in {above} of {len(means)} cases"
        )
    if text:
        text.append(f"- of {len(tuned)} single intervals about {len(tuned) * (1 - LEVEL):.0f} miss by chance")
    return [*text, ""] if text else []


def _decided(schedule: str, means: Sequence[Mean]) -> list[str]:
    """On which datasets the mean over the budgets helps or hurts, and on which it is open."""
    own = [one for one in means if one.schedule == schedule]
    said = []
    for verdict in ("helps", "hurts", OPEN):
        names = [
            f"{one.data.rpartition(', ')[2]} ({one.ours:+.2f})" for one in own if _verdict(one.interval) == verdict
        ]
        if names:
            said.append(f"{verdict} in the mean on {', '.join(names)}")
    return said or ["no mean over three budgets yet"]


def _counted(own: Sequence[Gain], verdict: str) -> str:
    """How often, and by how much: `2 (+0.88 to +1.53)`."""
    values = [one.ours for one in own if _verdict(one.interval) == verdict]
    ends = dict.fromkeys(f"{value:+.2f}" for value in (min(values), max(values))) if values else {}
    return f"{len(values)} ({' to '.join(ends)})" if ends else "none"


def _between(interval: tuple[float, float] | None) -> str:
    return NONE if interval is None else f"{interval[0]:+.2f} to {interval[1]:+.2f}"


def _verdict(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return "not decided: one run, or runs that do not differ"
    return "helps" if interval[0] > 0 else "hurts" if interval[1] < 0 else OPEN
