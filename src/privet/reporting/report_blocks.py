"""What a report is made of: sections of blocks, and words that know which of them are an epsilon or not private.

An epsilon is never text here. It is a `Guarantee` among the words, so that every writer puts its label beside it.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from privet.accounting import Guarantee
from privet.accounting.guarantee import rounded

State = Literal["yes", "no", "open"]
SIGN = {"certified": "≤", "approximate": "≈", "claimed": "claimed to be", "empirical": "≥"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Something that was computed from training records without noise: it is shown with the words `not private`."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A command, a name, or a hash."""

    text: str


Piece: TypeAlias = "str | Guarantee | Raw | Code"
Words: TypeAlias = "Piece | tuple[Piece, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """A paragraph."""

    words: Words
    tone: Literal["plain", "quiet", "warning"] = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The number that everything is about, large."""

    title: str
    guarantee: Guarantee
    lines: tuple[Words, ...]
    holds: bool = True  # False: there is no guarantee at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names and what they are."""

    rows: tuple[tuple[str, Words], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """Points, each on its own."""

    items: tuple[Words, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a head."""

    head: tuple[str, ...]
    rows: tuple[tuple[Words, ...], ...]
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question of the checklist: answered, answered with no, or left to people."""

    question: str
    state: State
    answer: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """Questions that a reviewer asks."""

    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a chart. `label` is that of the epsilons or rates it shows; it decides the dashes."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    label: str | None = None
    colour: int = 0
    is_faint: bool = False  # a line to compare with
    is_filled: bool = False  # the area below it is what can happen
    side: Literal["nearest", "up", "down"] = "nearest"  # how its values are rounded in words
    is_stairs: bool = False  # a rising bound: between two points that of the later one holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over an axis, and a sentence that says what is seen."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    caption: str = ""
    is_log: bool = False  # both axes
    from_zero: bool = True
    is_percent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """Charts side by side."""

    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Rows of small images, each with its name; `Image` is rows of pixels, each of one or three values 0 to 255."""

    head: tuple[str, ...]
    rows: tuple[tuple[Words, tuple[Any, ...]], ...]
    caption: Words


Block: TypeAlias = "Prose | Promise | Facts | Bullets | Table | Checklist | Charts | Pictures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what stands under it."""

    name: str  # a word for links
    title: str
    blocks: tuple[Block, ...]


def pieces(words: Words) -> tuple[Piece, ...]:
    """The words one by one."""
    return words if isinstance(words, tuple) else (words,)


def spelled(guarantee: Guarantee, *, digits: int = 4) -> str:
    """The epsilon with its sign, on the safe side; its label is put beside it by whoever writes.

    >>> spelled(Guarantee(epsilon=2.99949, epsilon_lower=None, delta=1e-5, label="certified", method="pld"))
    'ε ≤ 3'
    """
    figure = rounded(guarantee.epsilon, up=guarantee.label != "empirical", digits=digits)
    return f"ε {SIGN[guarantee.label]} {figure}"


def percent(value: float, *, up: bool, digits: int = 3) -> str:
    """A share of one as per cent, rounded to the side that is asked for, and never above 100.

    >>> percent(0.123456, up=True), percent(0.5, up=False)
    ('12.4 %', '50 %')
    """
    return f"{rounded(min(100 * value, 100.0), up=up, digits=digits)} %"
