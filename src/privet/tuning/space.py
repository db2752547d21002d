"""What a tuning tries: lists of values, or ranges, for keys of a recipe and of its [training] table.

space = Space.of({"lr": [0.05, 0.1, 0.2], "clipping_norm": "0.1..2"})  # on the command line: --try clipping-norm=0.1..2
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privet import _check
from privet._registry import parse_value, split_top_level
from privet._text import shorten
from privet.errors import InvalidValue, PrivetError

SPENDING = (
    "batch_size",
    "sample_rate",
    "steps",
    "epochs",
    "noise_multiplier",
    "method",
    "rho_noise",
)  # they change what a step costs
RECIPE = (*SPENDING, "clipping_norm", "rho_clip", "rule")
TRAINING = ("model", "optimizer", "lr", "momentum", "weight_decay", "scheduler", "ema_decay", "augmentations")
RANGED = ("lr", "weight_decay", "clipping_norm", "rho_noise", "rho_clip", "epochs", "batch_size")
MOST = 10_000  # candidates of a grid
_FIXED = {
    "epsilon": "candidates are compared at one budget", "delta": "candidates are compared at one budget",
    "dataset_size": "it is that of the part that is trained on", "seed": "the seed is not a hyperparameter",
    "task": "candidates are compared on one task",
}  # fmt: skip

Candidate = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """All numbers from low to high, drawn so that each factor of two is as likely as another."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check.positive(low=self.low, high=self.high)
        if self.low >= self.high:
            raise InvalidValue(f"range={self} must go from a smaller number to a larger one. Swap them.")

    def value_at(self, share: float) -> float:
        """The number at a share from 0 to 1 of the way, to three digits."""
        found = float(f"{self.low * (self.high / self.low) ** share:.3g}")
        return min(max(found, self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """For each key, the values that are tried."""

    values: Mapping[str, "tuple[Any, ...] | Range"]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Space":
        """The space in a table: for each key a list, or text as on the command line."""
        if not given:
            raise InvalidValue("space is empty. Nothing would be tuned. Give lr=0.05,0.1,0.2, for example.")
        found = {key: _parse_values(key, wanted) for key, wanted in given.items()}
        if {"batch_size", "sample_rate"} <= found.keys() or {"steps", "epochs"} <= found.keys():
            raise InvalidValue(
                "batch_size and sample_rate, or steps and epochs, are both tuned. They say the same. Tune one."
            )
        made = cls(values=found)
        if made.size is not None and made.size > MOST:
            raise InvalidValue(f"space has {made.size} candidates, and must have at most {MOST}. Give ranges instead.")
        return made

    @property
    def size(self) -> int | None:
        """How many candidates there are; None if there is a range."""
        lists = [wanted for wanted in self.values.values() if not isinstance(wanted, Range)]
        return math.prod(map(len, lists)) if len(lists) == len(self.values) else None

    def grid(self) -> Iterator[Candidate]:
        """Every candidate once; of a range, both ends."""
        ends = [(v.low, v.high) if isinstance(v, Range) else v for v in self.values.values()]
        for chosen in itertools.product(*ends):
            yield dict(zip(self.values, chosen, strict=True))

    def draw(self, source: np.random.Generator) -> Candidate:
        """A candidate at random: uniform over the grid, and in each range."""
        return {
            key: v.value_at(float(source.random())) if isinstance(v, Range) else v[int(source.integers(len(v)))]
            for key, v in self.values.items()
        }

    def draw_some(self, number: int, source: np.random.Generator) -> list[Candidate]:
        """So many different candidates at random, or all in their order if that is how many there are."""
        if self.size is None:
            return [self.draw(source) for _ in range(number)]
        if number > self.size:
            raise InvalidValue(
                f"trials={number} is more than the {self.size} candidates. Each is tried once. Use fewer."
            )
        kept = set(source.choice(self.size, size=number, replace=False).tolist())
        return [candidate for place, candidate in enumerate(self.grid()) if place in kept]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: `Space.of(space.as_dict()) == space`."""
        return {key: str(v) if isinstance(v, Range) else list(v) for key, v in self.values.items()}


def split_candidate(candidate: Mapping[str, Any]) -> tuple[Candidate, Candidate]:
    """(what belongs to the recipe, what belongs to its [training] table)."""
    recipe = {key: v for key, v in candidate.items() if key in RECIPE}
    return recipe, {key: v for key, v in candidate.items() if key not in RECIPE}


def format_candidate(candidate: Mapping[str, Any]) -> str:
    """A candidate in a few words."""
    return ", ".join(f"{key} {v:g}" if isinstance(v, float) else f"{key} {v}" for key, v in candidate.items())


# --- reading ----------------------------------------------------------------------------------------


def _parse_values(key: str, wanted: Any) -> "tuple[Any, ...] | Range":
    known = (*RECIPE, *TRAINING)
    if key not in known:
        why = f" {_FIXED[key].capitalize()}." if key in _FIXED else _check.suggestion(key, known)
        raise InvalidValue(f"{shorten(str(key))!r} cannot be tuned.{why} Known: {', '.join(known)}.")
    if isinstance(wanted, str) and re.fullmatch(r"[^,:]*\.\.[^,:]*", wanted):
        return _parse_range(key, wanted)
    found = _split_list(key, wanted) if isinstance(wanted, str) else wanted
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise InvalidValue(f"{key}={shorten(repr(wanted))} must be a list of values. Give {key}=a,b,c.")
    for v in found:
        if type(v) not in (int, float, str) or (isinstance(v, float) and not math.isfinite(v)):
            raise InvalidValue(f"{key}={shorten(repr(v))} must be a finite number or a word.")
    if len(set(found)) < len(found):
        raise InvalidValue(f"{key}={shorten(repr(wanted))} has a value twice. Each candidate is tried once. Keep one.")
    return tuple(found)


def _parse_range(key: str, text: str) -> Range:
    if key not in RANGED:
        raise InvalidValue(f"{key}={text!r} cannot be a range. Ranges are of {', '.join(RANGED)}. Give a list.")
    low, _, high = text.partition("..")
    try:
        return Range(low=float(parse_value(low.strip())), high=float(parse_value(high.strip())))
    except PrivetError as error:
        raise InvalidValue(f"{key}={text!r}: {error}") from None
    except (TypeError, ValueError):
        raise InvalidValue(f"{key}={text!r} must be two numbers. Write {key}=0.01..1.") from None


def _split_list(key: str, text: str) -> list[Any]:
    """The values between commas. What reads `option=...` belongs to the word before it: step:step_size=10,gamma=0.5."""
    pieces: list[str] = []
    for piece in (piece.strip() for piece in split_top_level(text, ",", key)):
        if pieces and re.match(r"[A-Za-z_]\w*=", piece):
            pieces[-1] += f",{piece}"
        elif not piece:
            raise InvalidValue(f"{key}={text!r} has an empty value. Write values with commas between them.")
        else:
            pieces.append(piece)
    return [parse_value(piece) for piece in pieces]
