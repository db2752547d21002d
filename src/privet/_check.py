"""Checks on values: no two range errors in the library are worded differently."""

import difflib
import errno
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from privet.errors import InvalidValue

T = TypeVar("T")
LEAST_DELTA = 1e-300
# Words of one meaning: ours first, then those of Opacus, TensorFlow Privacy, JAX Privacy, dp_accounting and papers.
SAME_MEANING = (
    ("clipping_norm", "clip", "max_grad_norm", "l2_norm_clip", "l2_clip_norm", "l2_clipping_norm", "clip_norm"),
    ("noise_multiplier", "noise", "sigma", "noise_scale"),
    ("epsilon", "target_epsilon", "eps"),
    ("delta", "target_delta"),
    ("sample_rate", "rate", "sampling_rate", "sampling_probability", "sampling_prob", "q"),
    ("batch_size", "batch", "expected_batch_size", "lot_size", "logical_batch_size"),
    ("dataset_size", "size", "num_examples", "num_samples", "number_of_examples", "n"),
    ("steps", "num_steps", "iterations", "num_iterations", "max_steps"),
    ("epochs", "num_epochs", "n_epochs"),
    ("adjacency", "relation", "neighboring_relation", "neighbouring_relation"),
    ("max_physical_batch_size", "max_physical_batch", "physical_batch_size", "microbatch_size", "max_batch_size"),
    ("clipping_rule", "rule", "clipping"),
    ("uncertified", "as_published"),
    ("secure_noise", "secure", "secure_mode", "secure_rng"),
    ("ema_decay", "average"),
    ("augmentations", "views", "augmult", "augmentation_multiplicity"),
    ("steps_per_line", "reserve"),
    ("randomness", "generator", "noise_generator"),
    ("significance", "alarm", "alpha"),
    ("validation_fraction", "judges"),
    ("lr", "learning_rate"),
    ("model", "module"),
    ("dataset", "data_loader", "dataloader", "train_loader"),
)
PLAN_WORDS = (
    "clipping_norm", "noise_multiplier", "epsilon", "delta", "sample_rate", "batch_size", "dataset_size", "steps",
    "epochs", "adjacency", "rule", "accountant", "sampling", "method",
)  # fmt: skip


def finite(**values: float) -> None:
    """Raise unless each named value is a finite number."""
    for name, value in values.items():
        if not _is_finite(value):
            raise InvalidValue(f"{name}={value!r} must be a finite number.")


def positive(**values: float) -> None:
    """Raise unless each named value is finite and > 0."""
    for name, value in values.items():
        if not (_is_finite(value) and value > 0):
            raise InvalidValue(f"{name}={value!r} must be finite and > 0.")


def non_negative(**values: float) -> None:
    """Raise unless each named value is finite and >= 0."""
    for name, value in values.items():
        if not (_is_finite(value) and value >= 0):
            raise InvalidValue(f"{name}={value!r} must be finite and >= 0.")


def between(low: float, high: float, **values: float) -> None:
    """Raise unless each named value lies strictly between `low` and `high`."""
    for name, value in values.items():
        if not _is_number(value) or not low < value < high:
            raise InvalidValue(f"{name}={value!r} must lie strictly between {low:g} and {high:g}.")


def delta(value: float) -> None:
    """Raise unless the delta is >= LEAST_DELTA and < 1."""
    between(0, 1, delta=value)
    if value < LEAST_DELTA:
        raise InvalidValue(
            f"delta={value!r} must be at least {LEAST_DELTA:g}. Double precision proves no bound below it. Use a "
            "larger one, such as 1e-12."
        )


def fraction(**values: float) -> None:
    """Raise unless each named value is >= 0 and < 1."""
    for name, value in values.items():
        if not _is_number(value) or not 0 <= value < 1:
            raise InvalidValue(
                f"{name}={value!r} must be >= 0 and < 1. At 1 and above it does not converge. Use 0.9, for example."
            )


def rate(**values: float) -> None:
    """Raise unless each named value is a sampling rate: 0 < q <= 1."""
    for name, value in values.items():
        if not _is_number(value) or not 0 < value <= 1:
            raise InvalidValue(
                f"{name}={value!r} must be > 0 and <= 1. It is the probability that an example is in the batch of a "
                "step. Give batch / size, for example 256/60000."
            )


def whole(*, least: int = 1, **values: int) -> None:
    """Raise unless each named value is an integer of at least `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidValue(f"{name}={value!r} must be a whole number >= {least}.")


def writable(path: Path, *, name: str) -> None:
    """Raise unless a file can be written at `path`: asked before long work, by trying. Nothing is left there."""
    try:
        if path.is_dir() or not path.parent.is_dir():
            what = "is a directory" if path.is_dir() else "lies in a directory that does not exist"
            raise InvalidValue(f"{name}={str(path)!r} {what}. Give a file in a directory that exists.")
        if path.exists():  # not opened: it may be a pipe
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif not path.is_symlink():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            path.unlink()
    except OSError as error:
        raise InvalidValue(f"{name}={str(path)!r} cannot be written: {error.strerror}. Choose another place.") from None


def one_of(allowed: Iterable[str], **values: str) -> None:
    """Raise unless each named value is one of `allowed`; suggests the nearest."""
    options = sorted(allowed)
    for name, value in values.items():
        if value not in options:
            raise InvalidValue(f"{name}={value!r} must be one of {', '.join(options)}.{suggestion(value, options)}")


def known_word(word: object, known: Iterable[str]) -> str | None:
    """The one of `known` that means what `word` means in this or another library; None if there is none.

    >>> known_word("max_grad_norm", ["noise_multiplier", "clipping_norm"])
    'clipping_norm'
    """
    plain = str(word).strip("-").replace("-", "_").lower()
    same = next((words for words in SAME_MEANING if plain in words), ())
    found = {name.replace("-", "_"): name for name in known}
    return next((found[name] for name in same if name in found and name != plain), None)


def suggestion(word: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """` Did you mean 'x'?` for the known word of the same meaning, else for the nearest, or nothing."""
    options = list(known)
    near = known_word(word, options) or next(
        iter(difflib.get_close_matches(str(word), options, n=1, cutoff=cutoff)), None
    )
    return f" Did you mean {near!r}?" if near else ""


def known_keywords(cls: type[T]) -> type[T]:
    """Class decorator: a keyword that `__init__` does not have is an error that names the one to use.

    Such words are often those of another library; what belongs to the plan is said to be there.
    """
    init: Callable[..., None] = cls.__init__
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def check(self: T, *args: object, **given: object) -> None:
        for key in given:
            if key not in known:
                hint = suggestion(key, known)
                if not hint and (word := known_word(key, PLAN_WORDS)):
                    hint = f" The plan has it: plan({word}=...)."
                raise InvalidValue(f"{cls.__name__} has no keyword {key!r}.{hint} Known: {', '.join(known)}.")
        init(self, *args, **given)

    cls.__init__ = check  # type: ignore[assignment]
    return cls


def _is_finite(value: float) -> bool:
    """A number that a double can hold: not NaN, and no whole number beyond."""
    return _is_number(value) and abs(value) <= sys.float_info.max


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
