"""What every figure shares: colours and style, the kinds of file, and how they are written."""

import csv
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privet import _check
from privet._files import write_file
from privet.errors import InvalidValue, MissingExtra

SUFFIXES = (".png", ".svg", ".pdf", ".csv")

# Blue, orange, green, purple: told apart in grey and by the colour-blind (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "privet",  # the same figure is the same file
}


def check_path(path: Path, *, option: str = "path") -> None:
    """Raise unless a figure can be written at `path`; asked before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidValue(f"{option}={str(path)!r} must end in {', '.join(SUFFIXES)}.")
    _check.writable(path, name=option)
    if path.suffix.lower() != ".csv":
        pyplot()


def write(path: Path, rows: Sequence[tuple[object, ...]]) -> None:
    """Write rows as CSV."""
    try:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        write_file(path, text.getvalue().encode())
    except OSError as error:
        raise InvalidValue(f"{path}: cannot be written: {error.strerror}.") from None


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of its suffix."""
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
    made = io.BytesIO()
    figure.savefig(made, dpi=160, metadata=metadata, format=path.suffix[1:].lower())
    try:
        write_file(path, made.getvalue())
    except OSError as error:
        raise InvalidValue(f"{path}: cannot be written: {error.strerror}.") from None


def pyplot() -> Any:
    """matplotlib.pyplot, without a screen; raises MissingExtra if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matplotlib's own dependencies deprecate is not the user's matter
            import matplotlib

            matplotlib.use("Agg")
            import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtra("matplotlib is not installed. Figures need it. Run: pip install 'privet[plots]'") from None
    return plt
