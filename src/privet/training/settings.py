"""The settings of a run: the [training] table of a recipe, the flags of `privet train`, the keywords of `train`.

[training]
task = "digits"                    # or mnist, ..., or your own: my.module:task
weights = "public.safetensors"     # fine-tuning: the first weights
train = ["fc3.*"]                  # and which of them learn
optimizer = "sgd"                  # any of torch by name, with options: "adam:betas=(0.9,0.99)"
lr = 0.1
scheduler = "cosine"               # any of torch by name, with options: "step:step_size=10,gamma=0.5"
average = 0.999
stop_at = "accuracy=0.97"          # on the held-out set
dataset_name = "people-2026"       # runs on the same records are found by it

docs/howto-train.md has all keys. What changes the privacy of a run (a seed, noise, clip) is not among them.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from privet import _check
from privet._registry import parse_number
from privet._text import shorten
from privet.errors import InvalidValue
from privet.ledger.format import check_dataset

KEEP = ("last", "best")
_OF_RECIPES = ("clipping_norm", "noise_multiplier", "batch_size", "clip", "noise", "batch", "epochs", "steps")
_ELSEWHERE = {  # keys that people look for here
    "seed": "Give --seed to the command: such a run is not private.",
    "scale_factor": 'It is an option of the clipping rule: rule = "own_norm:scale=0.5", above the table.',
    **dict.fromkeys(_OF_RECIPES, "It belongs to the recipe, above the table."),
    "show_private": "Give --show-private to the command: what it shows is not private.",
    "uncertified": "Give --uncertified to the command: such a run has no guarantee.",
}
_WORDS = ("task", "model", "weights", "optimizer", "scheduler", "stop_at", "device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a plan is trained: everything but what it costs."""

    task: str = "digits"
    model: str | None = None  # the task's own
    weights: str | None = None  # a safetensors file: the network's first weights
    train: tuple[str, ...] | None = None  # with weights: patterns of the parameters that learn; all
    fresh: tuple[str, ...] | None = None  # with weights: patterns of what is not taken from the file; nothing
    optimizer: str | None = None  # sgd; adam for the method noisy-adam
    lr: float | None = None  # what suits the optimizer: optimizing.RATES
    momentum: float | None = None
    weight_decay: float | None = None
    scheduler: str | None = None  # one learning rate throughout
    ema_decay: float | None = None  # decay of a moving average of the weights
    augmentations: int = 1  # rows of each record
    max_physical_batch_size: int | None = None
    workers: int = 0  # processes that read records
    device: str = "auto"
    evaluate_every: int | None = None  # steps; an epoch
    save_every: int | None = None  # steps; each evaluation, at most every 30 s
    stop_at: str | None = None  # a value on the held-out set: accuracy=0.97
    patience: int | None = None  # evaluations without a better one
    keep: str = "last"  # or best, on the held-out set
    steps_per_line: int | None = None  # steps that one line of the ledger charges; measured
    dataset_name: str | None = None  # of the records, by which runs on them are found; that of a task of Privet's

    def __post_init__(self) -> None:
        for name in _WORDS:
            _check_word(name, getattr(self, name))
        for name in ("train", "fresh"):
            object.__setattr__(self, name, _check_patterns(name, getattr(self, name), self.weights))
        _check.whole(
            **drop_none(
                self, "augmentations", "max_physical_batch_size", "evaluate_every", "save_every", "patience",
                "steps_per_line",
            )
        )  # fmt: skip
        _check.whole(least=0, workers=self.workers)
        _check.positive(**drop_none(self, "lr"))
        _check.fraction(**drop_none(self, "momentum"))
        _check.non_negative(**drop_none(self, "weight_decay"))
        _check.between(0, 1, **drop_none(self, "ema_decay"))
        _check.one_of(KEEP, keep=self.keep)
        check_dataset(self.dataset_name)
        if self.stop_at is not None:
            parse_target(self.stop_at)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Settings":
        """The settings in a table; a key that is not known is refused, with the nearest one."""
        known = [field.name for field in fields(cls)]
        for key in table:
            if key not in known:
                hint = f"{_check.suggestion(key, known)} Known: {', '.join(known)}."
                where = f" {_ELSEWHERE[key]}" if key in _ELSEWHERE else hint
                raise InvalidValue(f"training.{shorten(str(key))} is not known.{where}")
        try:
            return cls(**drop_none(table))
        except InvalidValue as error:
            raise InvalidValue(f"training.{error}") from None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, what is not given left out: `Settings.of(settings.as_dict()) == settings`."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in drop_none(asdict(self)).items()
        }


def drop_none(settings: Any, *names: str) -> dict[str, Any]:
    """What is not None in a table, or in the fields of these names."""
    found = {name: getattr(settings, name) for name in names} if names else settings
    return {name: value for name, value in found.items() if value is not None}


def changed_keys(table: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys that a plan's own table says otherwise than the flags: [of the plan, of the run]."""
    return {key: [table[key], flags[key]] for key in flags if key in table and table[key] != flags[key]}


def parse_target(text: str) -> tuple[str, float]:
    """`accuracy=0.97` as a name and a number."""
    name, equals, given = (word.strip() for word in text.partition("="))
    try:
        found = float(parse_number(given))
    except ValueError:
        found = math.nan
    if not (name and equals and math.isfinite(found)):
        raise InvalidValue(f"stop_at={text!r} must be a measure and a number. Write accuracy=0.97, or loss=0.1.")
    return name, found


def _check_word(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise InvalidValue(f'{name}={shorten(repr(value))} must be a word. Write {name} = "...".')


def _check_patterns(name: str, value: Any, weights: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if not is_list or not all(isinstance(word, str) and word.strip() for word in value):
        raise InvalidValue(f'{name}={shorten(repr(value))} must be a list of patterns. Write {name} = ["fc*"].')
    if weights is None:
        raise InvalidValue(
            f"{name}={shorten(repr(list(value)))} is given without weights. It says what becomes of weights from a "
            "file. Give weights, a safetensors file."
        )
    return tuple(value)
