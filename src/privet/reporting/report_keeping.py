"""Evidence is kept in a run's folder, for its report. Strong evidence is never lost to weak.

An audit or attack takes the place of an earlier one of the same settings, unless that had found a violation and this
has not; one of others stands beside it, as audit-2.json and so on.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from privet.attacks.attack import Attacked
from privet.auditing.finding import Audit
from privet.errors import InvalidValue, PrivetError
from privet.reporting.report_evidence import (
    ATTACK,
    AUDIT,
    MOST_FILES,
    PLAIN,
    VERSION,
    Plain,
    content_of,
    places,
    run_in,
)
from privet.training.append_file import write_new
from privet.training.run import Run


def keep_audit(run: Run, audit: Audit, options: Mapping[str, Any]) -> Path:
    """Write audit.json into the run's folder, in place of an earlier one of the same options."""
    return _kept(run, AUDIT, "privet-audit", options, audit.as_dict())


def keep_attack(run: Run, attacked: Attacked) -> Path:
    """Write raw_attack.json into the run's folder: outcomes and pictures of the first victim. It is not private.

    It takes the place of an earlier one of the same settings.
    """
    rows = []
    for outcome in attacked.outcomes:
        low, high = outcome.limits
        rows.append({
            "method": outcome.method, "attack": outcome.attack, "step": outcome.step,
            "victims": outcome.found.victims, "succeeded": outcome.found.succeeded,
            "control": outcome.control.succeeded, "limits": [low, high], "ceiling": outcome.ceiling,
            "violation": outcome.is_violation, "frames": outcome.frames,
        })  # fmt: skip
    found = {"task": attacked.task, "truth": attacked.truth, "outcomes": rows}
    return _kept(run, ATTACK, "privet-attack", attacked.settings, found)


def keep_plain(run: Run, plain: Plain) -> Path:
    """Write raw_plain.json into the run's folder."""
    return _kept(run, PLAIN, "privet-plain", {}, asdict(plain))


def _kept(run: Run, name: str, kind: str, options: Mapping[str, Any], found: Mapping[str, Any]) -> Path:
    content = {"format": kind, "version": VERSION, "plan": run.plan.hash, "run": run_in(run.folder),
               "options": dict(options), "found": found}  # fmt: skip
    text = json.dumps(content, allow_nan=False)
    return write_plainly(_place(run, name, json.loads(text)), f"{text}\n".encode())


def _place(run: Run, name: str, content: Mapping[str, Any]) -> Path:
    """The file that asked the same, and knew no worse; else the first that is free, or holds nothing of the run."""
    kept = {file: _before(file, content["format"], run.plan.hash) for file in places(run.folder, name)}
    asked, violates = _asked(content), _violates(content)
    for file, found in kept.items():
        if found is not None and found[0] == asked and found[1] <= violates:
            return file
    for file, found in kept.items():
        if found is None:
            return file
    raise InvalidValue(f"{run.folder}: has {MOST_FILES} files of the kind {name}. Remove some.")


def _before(file: Path, kind: str, plan: str) -> tuple[Any, bool] | None:
    """What an earlier file asked, and whether it found a violation; None if it holds nothing of the run."""
    try:
        content = content_of(file, kind, plan)
        return None if content is None else (_asked(content), _violates(content))
    except (PrivetError, LookupError, TypeError, AttributeError):
        return None


def _violates(content: Mapping[str, Any]) -> bool:
    """Whether an audit or attack found that more was given away than promised."""
    found = content["found"]
    return found.get("verdict") == "violation" or any(row.get("violation") for row in found.get("outcomes", ()))


def _asked(content: Mapping[str, Any]) -> Any:
    """What an audit or attack was: its settings, and what was attacked how."""
    rows = content["found"].get("outcomes", ())
    return content["options"], [[row[key] for key in ("method", "attack", "step")] for row in rows]


def write_plainly(file: Path, text: bytes) -> Path:
    """Write a file, whole or not at all, and never through a link that someone else left in the folder.

    Raises:
        InvalidValue: it cannot be written there.
    """
    try:
        write_new(file, text)
    except PrivetError as error:
        said = str(error).replace(" Nothing is released that is not recorded first.", "")
        raise InvalidValue(said) from None
    return file
