"""Results on disk: one JSON file for each row and seed, in a folder that grows. What is there is not run again.

results/bu2019/table1/sigma-1.3.full.0.json     row sigma-1.3 on the real data, seed 0
results/bu2019/table1/sigma-1.3.full.0.<fingerprint>.run/   its ledger, weights and metrics, also of a run that stopped
results/bu2019/fig2a/clt.exact.json             computed, nothing trained: no seed
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from privet._files import write_new
from privet._text import shorten
from privet.accounting import Guarantee
from privet.errors import InvalidValue
from privet_papers.reproduce.table_row import Curve, Figure, Row

FORMAT, VERSION = "privet-result", 1
EXACT = "exact"  # the scale of what is computed, not trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run of a row gave. `certified` is proven of the mechanism that ran, (lower or None, upper) at `delta`.

    A run has a seed, so that it can be repeated; for that it is not private. Its epsilon is that of the same mechanism
    with the system's randomness.
    """

    key: str
    fingerprint: str
    scale: str  # quick, full, quick-5 (five steps), exact
    seed: int | None
    figures: dict[str, Figure]
    delta: float | None = None
    certified: tuple[float | None, float] | None = None
    claimed: float | None = None  # what the method says of the same steps, where that is not what is proven
    claimed_label: str = "claimed"  # or approximate
    steps: int = 0
    planned: int = 0
    seconds: float = 0.0
    curve: Curve | None = None
    chosen: dict[str, Any] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)  # of which it was chosen
    about: dict[str, Any] = field(default_factory=dict)  # task, network, held-out set, versions

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def proven(guarantee: Guarantee | None) -> tuple[float | None, float] | None:
    """(lower or None, upper) where a guarantee is certified, else None: only that may stand as `certified`."""
    if guarantee is None or guarantee.label != "certified":
        return None
    return guarantee.epsilon_lower, guarantee.epsilon


def place(out: Path, row: Row, scale: str, seed: int | None, end: str = ".json") -> Path:
    """The file of a result, or with another `end` what belongs to it."""
    number = "" if seed is None else f".{seed}"
    return out / row.paper / row.table / f"{row.name}.{scale}{number}{end}"


def save(out: Path, row: Row, result: Result) -> Path:
    """Write a result, whole or not at all."""
    file = place(out, row, result.scale, result.seed)
    text = json.dumps({"format": FORMAT, "version": VERSION} | result.as_dict(), indent=1, allow_nan=False) + "\n"
    make_folder(file.parent)
    write_new(file, text.encode())
    return file


def kept() -> Path:
    """The folder of the results that come with the papers: inside of the installed package, or in the checkout."""
    inside = Path(__file__).parents[1] / "results"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "results"


def make_folder(folder: Path) -> None:
    """Make a folder of results, if it is not there.

    Raises:
        InvalidValue: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidValue(f"{folder}: cannot be made: {error.strerror}. Choose another folder.") from None


def load(out: Path, row: Row, scale: str, seed: int | None) -> Result | None:
    """The result of a row as it is now, or None: if it was not run, or the row has changed since.

    Raises:
        InvalidValue: the file is damaged.
    """
    file = place(out, row, scale, seed)
    if not file.exists():
        return None
    result = read(file)
    return result if result.fingerprint == row.fingerprint else None


def read(file: Path) -> Result:
    """The result in a file."""
    try:
        found = json.loads(file.read_bytes())
        if found.pop("format") != FORMAT or found.pop("version") != VERSION:
            raise ValueError("it is of another format or version")
        found["figures"] = {name: Figure(**value) for name, value in found["figures"].items()}
        if found["curve"] is not None:
            curve = found["curve"]
            found["curve"] = Curve(x=tuple(curve["x"]), y=tuple(curve["y"]), label=curve["label"])
        found["certified"] = None if found["certified"] is None else tuple(found["certified"])
        return Result(**found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidValue(
            f"{file}: is not a result: {shorten(str(error))}. It was edited or torn. Delete it, and it is run again."
        ) from None


def all_of(out: Path, row: Row, scale: str) -> list[Result]:
    """The results of a row at a scale, by seed; what does not fit the row as it is now is left out."""
    if not row.is_trained:
        found = load(out, row, EXACT, None)
        return [] if found is None else [found]
    names = (out / row.paper / row.table).glob(f"{_escaped(row.name)}.{scale}.*.json")
    seeds = sorted(int(end) for end in (file.name.split(".")[-2] for file in names) if end.isdecimal())
    results = (load(out, row, scale, seed) for seed in seeds)
    return [result for result in results if result is not None]


def _escaped(name: str) -> str:
    return name.replace("[", "[[]")
