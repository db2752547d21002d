"""The folder of a tuning: what was asked, what was drawn before anything was spent, each trial, what came of it.

out/tuning.json           what was asked; the same command goes on with it
out/trials/drawn.json     which candidates are tried: on the disk before the first of them is
out/trials/003/           the run of a trial, with its ledger
out/trials/003.json       its score
out/result.json           what came of it
out/best.toml             a recipe with the chosen settings, where the tuning is not charged

What nobody may see is in out/secret/, and gone at the end: for a random number of runs all trials but the best, which
is then in out/run/; for disjoint parts the scores.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privet._registry import shortened
from privet.errors import InvalidValue
from privet.planning.plan_file import digest
from privet.training import checkpoint, ledger_reading
from privet.training.append_file import make_folder, sync_folder, write_new
from privet.training.going_on import TUNING
from privet.training.run import NAME as ABOUT
from privet.training.run_lock import NAME as LOCK

ASKED, BEGUN, DRAWN, RESULT, BEST = TUNING, "begun.json", "drawn.json", "result.json", "best.toml"
TRIALS, SECRET, RUN = "trials", "secret", "run"
LOST = ".lost"  # what is left of a run that counts for nothing, if a crash came between
FORMAT, VERSION = "privet-tuning", 1


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Put a JSON file there, whole or not at all, with a digest of its content."""
    text = json.dumps({**content, "digest": digest(content)}, indent=1, allow_nan=False) + "\n"
    make_folder(file.parent)
    write_new(file, text.encode())


def read(file: Path) -> dict[str, Any] | None:
    """The content of such a file; None if there is none.

    Raises:
        InvalidValue: it was edited, torn, or is of another kind.
    """
    try:
        found = json.loads(file.read_bytes())
        given = found.pop("digest")
        if digest(found) == given:
            return dict(found)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        pass
    raise InvalidValue(
        f"{file}: is not as it was written. What was drawn or spent cannot be determined. Restore a copy of it, or "
        "tune in another folder."
    )


def begin(out: Path, asked: Mapping[str, Any]) -> None:
    """Write down what is asked, unless that was done before."""
    if not (out / ASKED).exists():
        write(out / ASKED, _described(asked))


def _described(asked: Mapping[str, Any]) -> dict[str, Any]:
    text = json.dumps({"format": FORMAT, "version": VERSION, **asked}, allow_nan=False, default=str)
    return dict(json.loads(text))


def check_same(out: Path, asked: Mapping[str, Any]) -> None:
    """Raise if the folder holds another tuning, or something else."""
    wanted, found = _described(asked), read(out / ASKED)
    if found is None:
        if out.is_dir() and {entry.name for entry in out.iterdir()} - {LOCK, f"{ASKED}.new"}:
            raise InvalidValue(
                f"out={str(out)!r} holds other files, and no {ASKED}. What is spent there cannot be determined. "
                "Choose another folder."
            )
        return
    for key in sorted(wanted.keys() | found.keys()):
        if wanted.get(key) != found.get(key):
            raise InvalidValue(
                f"out={str(out)!r} holds another tuning: its {key} is {shortened(json.dumps(found.get(key)))}, not "
                f"{shortened(json.dumps(wanted.get(key)))}. Give what it began with, or choose another folder."
            )


def place_of(folder: Path, number: int) -> Path:
    """The folder of trial `number`, from 1."""
    return folder / f"{number:03}"


def score_of(folder: Path, number: int) -> float | None:
    """The score of trial `number`, which has one; None if it is not finite."""
    found = read(folder / f"{number:03}.json")
    if found is None:
        raise InvalidValue(
            f"{folder / f'{number:03}.json'}: is gone. What was chosen cannot be determined. Restore it."
        )
    score: float | None = found["score"]
    return score


def has_lost(folder: Path) -> bool:
    """Whether a crash took steps from the run in a folder that its ledger has charged."""
    saved = checkpoint.peek(folder).extra["step"] if (folder / checkpoint.NAME).exists() else 0
    return bool(saved < ledger_reading.read(folder).ledger.steps)


def has_begun(folder: Path) -> bool:
    """Whether there is a run to go on with; what a crash left of one that had not charged a step is removed.

    Raises:
        InvalidValue: steps are charged, and the description of their run is gone.
    """
    if (folder / ABOUT).exists():
        return True
    if (folder / ledger_reading.NAME).exists():
        if ledger_reading.read(folder).ledger.steps:
            raise InvalidValue(
                f"{folder}: has steps in its ledger, and no {ABOUT}. They are spent, and cannot be made again. Restore "
                "a copy of it, or tune in another folder."
            )
        discard(folder)
    return False


def discard(folder: Path) -> None:
    """Take away a run that counts for nothing, whole or not at all: half of one would look like a damaged one."""
    gone = folder.with_name(folder.name + LOST)
    if gone.exists():
        shutil.rmtree(gone)
    folder.rename(gone)
    sync_folder(gone.parent)
    shutil.rmtree(gone)


def give_one_time(out: Path) -> None:
    """Give all that stays of a secret tuning the same time: when files were written tells how many runs there were."""
    now = time.time()
    for path in (path for path in out.rglob("*") if SECRET not in path.relative_to(out).parts[:1]):
        os.utime(path, (now, now))


def check_trials(folder: Path, count: int) -> None:
    """Raise if there are trials that were never drawn: more would be spent than is charged."""
    known = {DRAWN, f"{DRAWN}.new"}
    for number in range(1, count + 1):
        known |= {f"{number:03}{ending}" for ending in ("", ".json", ".json.new", LOST)}
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name not in known:
            raise InvalidValue(
                f"{entry}: is no trial that was drawn. More would be spent than is charged. Take it away, or tune in "
                "another folder."
            )


def write_recipe(file: Path, recipe: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    """A recipe as TOML; of numbers and words alone."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in recipe.items()]
    lines += ["", "[training]"] + [
        f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in training.items()
    ]
    write_new(file, ("\n".join(lines) + "\n").encode())
