"""Metrics of a run: one JSON object a line, in `metrics.jsonl` of its folder; TensorBoard's files if it is installed.

Every figure is public: it comes from the held-out set, from the plan, or from a clock. What comes from training records
without noise is named `raw_...` and is there only if it was asked for. A line with such figures has `"private": false`,
and their names as `not_private`.
"""

import contextlib
import importlib.util
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privet._files import MIB, Descriptor, foreign_file_error, read_file, unwritable_error, write_all
from privet.errors import InvalidValue, PrivetError
from privet.ledger.reading import METRICS, resume_command

NAME = METRICS
MOST_BYTES = 1024 * MIB
BOARD = "tensorboard"  # the folder of TensorBoard's files
Line = Mapping[str, Any]
_OF_THE_MOMENT = ("epsilon", "delta", "label")
_RAW = "not_private"  # the key that names what was computed without noise; older files have none


class Metrics:
    """The metrics file of a run, open for appending."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        way = f"Free some space, then go on with `{resume_command(folder)}`."
        self._advice = f"What was spent is safe in the ledger. {way}"
        try:
            self._held = Descriptor(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            size = os.fstat(self._held.number).st_size
            if size and os.pread(self._held.number, 1, size - 1) != b"\n":
                write_all(self._held.number, b"\n")  # a line that a crash tore stays by itself
        except OSError as error:
            raise unwritable_error(self.path, error, self._advice) from None
        self._board = _open_board(folder / BOARD)

    def add(self, line: Line) -> None:
        """Append a line; a figure that is not finite is written as null, and a line with raw ones is not private.

        Raises:
            InvalidValue: the disk is full, or the folder is gone. The ledger is not touched by it.
        """
        finite = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}
        raw = [key for key in line if key.startswith("raw_")]
        if raw:
            finite |= {"private": False, _RAW: raw}
        text = json.dumps(finite, allow_nan=False) + "\n"
        size = os.fstat(self._held.number).st_size
        try:
            write_all(self._held.number, text.encode())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._held.number, size)  # no half of a line
            raise unwritable_error(self.path, error, self._advice) from None
        if self._board is not None:
            for key, value in finite.items():
                if isinstance(value, float):
                    self._board.add_scalar(key, value, line["step"])

    def close(self) -> None:
        self._held.close()
        if self._board is not None:
            self._board.close()


def read(folder: Path) -> tuple[dict[str, Any], ...]:
    """The lines of the weights that the run has: those of weights that a crash took away are left out.

    The file keeps them, since they were seen. A line that says `"event": "resumed"` tells which weights were taken.

    Raises:
        InvalidValue: a line in the midst of the file is not a JSON object.
    """
    file = folder / NAME
    try:
        rows = read_file(file, most=MOST_BYTES, advice="No run's metrics are so long.").split(b"\n")
    except FileNotFoundError:
        return ()
    except PrivetError as error:
        raise InvalidValue(f"{file}: {error}") from None
    except OSError as error:
        raise InvalidValue(f"{file}: cannot be read: {error.strerror}.") from None
    found: list[dict[str, Any]] = []
    for place, row in enumerate(rows, start=1):
        line = _parse_row(row)
        if line is None:
            is_torn = row.startswith(b"{") and not row.endswith(b"}")  # perhaps: cut by a crash
            if row and place < len(rows) and not is_torn:
                raise InvalidValue(f"{file}: line {place}: is not a JSON object with a step. Restore a copy of it.")
            continue
        if line.get("event") == "resumed":
            found = [kept for kept in found if kept["step"] <= line.get("weights_of", 0)]
        found.append(line)
    return tuple(found)


def evaluation_lines(lines: "tuple[dict[str, Any], ...]") -> list[dict[str, Any]]:
    """The lines that tell of an evaluation."""
    return [line for line in lines if "held_out_loss" in line]


def scores_of_weights(line: Line) -> dict[str, Any]:
    """What a line says of the weights themselves, to lie beside them: nothing raw, and no epsilon.

    Its epsilon is of that moment. Which weights are kept, and when a run stops, is decided by later outputs too: what
    holds for them is the run's guarantee.
    """
    gone = (*_OF_THE_MOMENT, _RAW, "private") if _RAW in line else _OF_THE_MOMENT
    return {key: value for key, value in line.items() if key not in gone and not key.startswith("raw_")}


def _parse_row(row: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(row)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(found, dict) and type(found.get("step")) is type(found.get("weights_of", 0)) is int
    return found if whole else None


# --- TensorBoard ------------------------------------------------------------------------------------
def _open_board(folder: Path) -> Any:
    """Torch's SummaryWriter, if TensorBoard is installed."""
    if folder.is_symlink():
        raise foreign_file_error(folder)
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))
