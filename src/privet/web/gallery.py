"""The runs in a folder: name, guarantee, held-out scores, and the report of each. Nothing outside it is reached."""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from privet._registry import one_line, shortened
from privet.errors import PrivetError
from privet.web.answers import said

REPORT, ABOUT = "report.html", "run.json"
READ = (ABOUT, "plan.json", "ledger.jsonl", "metrics.jsonl")  # what a run's entry is made of
MOST_RUNS = 100
MOST_BYTES = 64 * 2**20  # of one file


class Gallery:
    """The runs in a folder. An entry is made again when one of its files has changed."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._kept: dict[str, tuple[object, dict[str, Any]]] = {}

    def entries(self, alive: Callable[[], None]) -> dict[str, Any]:
        """Every run in order of its name: what it guarantees and how well it does, or why it cannot be read."""
        folders = list(self._folders())
        runs = []
        for folder in folders[:MOST_RUNS]:
            alive()
            runs.append(self._entry(folder))
        return {"folder": self._root.name, "runs": runs, "left_out": max(0, len(folders) - MOST_RUNS)}

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

    def _entry(self, folder: Path) -> dict[str, Any]:
        stamp = tuple(_stamp(folder / name) for name in READ)
        kept = self._kept.get(folder.name)
        if kept is None or kept[0] != stamp:
            kept = self._kept[folder.name] = (stamp, _read(folder))
        name = folder.name.encode("utf-8", "replace").decode()
        return kept[1] | {"name": name, "report": _inside(folder, REPORT) is not None and name == folder.name}


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
    from privet.training.progress import scores
    from privet.training.run import Run

    if any(_inside(folder, name) is None for name in READ if (folder / name).is_symlink() or (folder / name).exists()):
        return {"error": "one of its files is a link, no plain file, or very large."}
    try:
        run = Run.load(folder)
        public = {key: value for key, value in (run.scores or {}).items() if key.startswith("held_out_")}
        return {
            "guarantee": said(run.guarantee), "task": run.settings.task, "steps": run.steps,
            "planned": len(run.plan.steps), "over": run.is_over, "method": run.plan.recipe.method,
            "held_out": scores(public), "evaluation": run.evaluation,
        }  # fmt: skip
    except PrivetError as error:
        return {"error": shortened(one_line(error).replace(str(folder), folder.name), 200)}
    except Exception as error:  # one strange run must not hide the others
        return {"error": f"cannot be read: {type(error).__name__}"}
