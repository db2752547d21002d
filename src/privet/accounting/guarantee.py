"""Budgets and guarantees: numbers that say which way they err, by which method, and for whom."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from privet import _check
from privet._text import format_bound as format_bound, format_outward as format_outward

Label = Literal["certified", "approximate", "claimed", "empirical"]
Adjacency = Literal["zero-out", "add-remove", "replace-one"]
Unit = Literal["example", "client", "user"]

ADJACENCIES: tuple[str, ...] = get_args(Adjacency)
LABELS: tuple[str, ...] = get_args(Label)
UNITS: tuple[str, ...] = get_args(Unit)

MEANING: dict[str, str] = {
    "certified": "a proven upper bound (real arithmetic)",
    "approximate": "an asymptotic formula that may under-report",
    "claimed": "a formula whose proof does not cover this mechanism, or is not checked here",
    "empirical": "a lower bound found by attack",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be spent: epsilon at delta, for which unit, under which neighbouring relation."""

    epsilon: float
    delta: float
    unit: Unit = "example"
    adjacency: Adjacency = "zero-out"

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        _check.delta(self.delta)
        _check.one_of(UNITS, unit=self.unit)
        object.__setattr__(self, "adjacency", parse_adjacency(self.adjacency))
        _check.one_of(ADJACENCIES, adjacency=self.adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """Epsilon at delta as an interval: epsilon_lower <= true <= epsilon where the label is `certified`.

    `epsilon_lower` is None where the method has no lower bound. `assumptions` are what could not be checked of the loop
    that made a run, one sentence each.
    """

    epsilon: float
    epsilon_lower: float | None
    delta: float
    label: Label
    method: str
    adjacency: Adjacency = "zero-out"
    sampling: str = "poisson"
    unit: Unit = "example"
    steps: int = 0
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check.non_negative(epsilon=self.epsilon)
        _check.delta(self.delta)
        _check.one_of(LABELS, label=self.label)
        _check.one_of(ADJACENCIES, adjacency=self.adjacency)
        object.__setattr__(self, "assumptions", tuple(self.assumptions))  # a list, where it was read from JSON

    @property
    def width(self) -> float | None:
        """Upper minus lower bound, over the upper; None without a lower bound."""
        if self.epsilon_lower is None:
            return None
        return (self.epsilon - self.epsilon_lower) / self.epsilon if self.epsilon > 0 else 0.0

    @property
    def delta_text(self) -> str:
        """Delta in print, on the safe side: up for an upper bound of epsilon, down for a lower one."""
        return format_bound(self.delta, up=self.label != "empirical")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"assumptions": list(self.assumptions)}

    def to_file_table(self) -> dict[str, Any]:
        """The same for a file, where what has no assumptions does not speak of them: its bytes are those of old."""
        return {key: value for key, value in self.as_dict().items() if key != "assumptions" or value}

    def __str__(self) -> str:
        side = {"certified": "<=", "approximate": "~", "claimed": "claimed", "empirical": ">="}[self.label]
        known = "" if self.epsilon_lower is None else f", true value >= {format_outward(self.epsilon_lower, up=False)}"
        count = len(self.assumptions)
        assumed = f"; {count} assumption{'s' if count > 1 else ''}" if count else ""
        return (
            f"epsilon {side} {format_outward(self.epsilon, up=self.label != 'empirical')} at delta {self.delta_text} "
            f"[{self.label}: {self.method}{known}; {self.sampling}, {self.adjacency}, per {self.unit}{assumed}]"
        )


def parse_adjacency(name: Any) -> Any:
    """The name of a neighbouring relation; `replace-one` was called `replace` in files of format 1."""
    return "replace-one" if name == "replace" else name
