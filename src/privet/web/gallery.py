"""The runs in a folder: name, guarantee, held-out scores, and the report of each. Nothing outside it is reached."""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from privet._registry import one_line, shortened
from privet.accounting.guarantee import rounded
from privet.errors import InvalidValue, PrivetError
from privet.training.runs import OneRun, folders_in, on_dataset, read, together
from privet.training.total import NAME as BUDGET
from privet.training.total import read as budget_of
from privet.web.answers import said

REPORT, ABOUT, LEDGER = "report.html", "run.json", "ledger.jsonl"
READ = (ABOUT, "plan.json", LEDGER, "metrics.jsonl")  # what a run's entry is made of
MOST_RUNS = 100
MOST_BYTES = 64 * 2**20  # of one file


class Gallery:
    """The runs in a folder. An entry is made again when one of its files has changed."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._kept: dict[str, tuple[object, dict[str, Any]]] = {}
        self._sums: tuple[object, list[dict[str, Any]]] | None = None

    def entries(self, alive: Callable[[], None]) -> dict[str, Any]:
        """Every run in order of its name: what it guarantees and how well it does, or why it cannot be read."""
        folders = list(self._folders())
        runs = []
        for folder in folders[:MOST_RUNS]:
            alive()
            runs.append(self._entry(folder))
        return {
            "folder": self._root.name, "runs": runs, "left_out": max(0, len(folders) - MOST_RUNS),
            "together": self._together(alive),
        }  # fmt: skip

    def report(self, name: str) -> bytes | None:
        """The report of the run called `name`, if it has one that lies in its folder."""
        folder = next((found for found in self._folders() if found.name == name), None)
        file = None if folder is None else _inside(folder, REPORT)
        try:
            return None if file is None else file.read_bytes()
        except OSError:
            return None

    def _folders(self) -> Iterator[Path]:
        """The folders of runs that stand in the root themselves: a link may lead anywhere."""
        try:
            found = sorted(self._root.iterdir())
        except OSError:
            return
        for folder in found:
            if not folder.is_symlink() and folder.is_dir() and _inside(folder, ABOUT) is not None:
                yield folder

    def _together(self, alive: Callable[[], None]) -> list[dict[str, Any]]:
        """For each dataset with several runs in the folder what they cost together, or why that cannot be told."""
        try:
            places = list(folders_in(self._root))
            stamp = (
                _stamp(self._root / BUDGET),
                *((place, _stamp(place / LEDGER), _stamp(place / ABOUT)) for place in places),
            )
            if self._sums is None or self._sums[0] != stamp:
                self._sums = (stamp, _sums(self._root, [_looked_at(place, alive) for place in places], alive))
            return self._sums[1]
        except PrivetError as error:
            said = one_line(error).replace(f"{self._root}/", "").replace(str(self._root), self._root.name)
            return [{"dataset": None, "runs": None, "error": shortened(said, 300)}]

    def _entry(self, folder: Path) -> dict[str, Any]:
        stamp = tuple(_stamp(folder / name) for name in READ)
        kept = self._kept.get(folder.name)
        if kept is None or kept[0] != stamp:
            kept = self._kept[folder.name] = (stamp, _read(folder))
        name = folder.name.encode("utf-8", "replace").decode()
        return kept[1] | {"name": name, "report": _inside(folder, REPORT) is not None and name == folder.name}


def _looked_at(folder: Path, alive: Callable[[], None]) -> OneRun:
    """The run in a folder, from files of its own alone."""
    alive()
    for name in (LEDGER, ABOUT):
        if (folder / name).is_symlink() or ((folder / name).exists() and _inside(folder, name) is None):
            raise InvalidValue(f"{folder / name}: is a link, no plain file, or very large. It is not read here.")
    return read(folder)


def _sums(root: Path, runs: list[OneRun], alive: Callable[[], None]) -> list[dict[str, Any]]:
    totals = budget_of(root)
    names = sorted({run.header.dataset for run in runs if run.header.dataset is not None})
    found: list[dict[str, Any]] = []
    for name in (*names,) or (None,):
        alive()
        chosen = on_dataset(runs, name)
        if len(chosen) < 2:
            continue
        row: dict[str, Any] = {"dataset": name, "runs": len(chosen)}
        try:
            row["guarantee"] = said(together(chosen))
        except PrivetError as error:
            row["error"] = shortened(f"guarantee: none. {one_line(error)}".replace(f"{root}/", ""), 300)
        if name in totals:
            row["total"] = rounded(totals[name].epsilon, up=True)
        found.append(row)
    return found


def _inside(folder: Path, name: str) -> Path | None:
    """The file, if it is a plain one of bearable size, in the folder itself: no link, no pipe."""
    file = folder / name
    try:
        found = file.lstat()
    except OSError:
        return None
    return file if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES else None


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.lstat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _read(folder: Path) -> dict[str, Any]:
    from privet.training.assumptions import listed
    from privet.training.progress import scores
    from privet.training.run import Run

    if any(_inside(folder, name) is None for name in READ if (folder / name).is_symlink() or (folder / name).exists()):
        return {"error": "one of its files is a link, no plain file, or very large."}
    try:
        run = Run.load(folder)
        public = {key: value for key, value in (run.scores or {}).items() if key.startswith("held_out_")}
        return {
            "guarantee": said(run.guarantee), "assumes": list(listed(run.guarantee)), "dataset": run.dataset,
            "task": run.settings.task, "steps": run.steps,
            "planned": len(run.plan.steps), "over": run.is_over, "method": run.plan.recipe.method,
            "held_out": scores(public), "evaluation": run.evaluation,
        }  # fmt: skip
    except PrivetError as error:
        return {"error": shortened(one_line(error).replace(str(folder), folder.name), 200)}
    except Exception as error:  # one strange run must not hide the others
        return {"error": f"cannot be read: {type(error).__name__}"}
