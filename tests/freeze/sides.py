"""Both sides: the source of the base commit, the probe on it and on the working tree, and the first difference."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from freeze import renames

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MASKED = ("seconds", "examples_per_second", "milliseconds", "private_ms", "plain_ms", "versions", "python", "privet", "torch", "numpy", "threads", "gpu")


class NoBase(Exception):
    """The base commit is not in this clone."""


def base_tree(place: Path, base: str | None = None) -> Path:
    """The source and the kept results of the base commit, in a folder."""
    commit = base or (HERE / "base.txt").read_text().strip()
    known = subprocess.run(["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True)
    if known.returncode:
        raise NoBase(f"the base commit {commit} is not in this clone: git fetch --unshallow, and run this again")
    archive = place / "base.tar"
    subprocess.run(["git", "-C", ROOT, "archive", "-o", archive, commit, "src", "results"], check=True)
    subprocess.run(["tar", "-x", "-f", archive, "-C", place], check=True)
    return place


def start(side: str, tree: Path, place: Path, groups: list[str], *, quick: bool) -> "subprocess.Popen[bytes]":
    """The probe on one side, in a process of its own that is begun and not waited for."""
    sources = [tree / "src", tree / "papers" / "src", HERE.parent]
    results = [folder for folder in (tree / "papers" / "results", tree / "results") if folder.is_dir()]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(one) for one in sources if one.is_dir()), "FREEZE_SIDE": side,
        "FREEZE_RESULTS": str(results[0]), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100",
    }  # fmt: skip
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[threads] = "1"
    place.mkdir()
    command = [sys.executable, "-m", "freeze.probe", str(place / "work"), str(place / "found.json"), *groups]
    with (place / "said").open("wb") as said:
        return subprocess.Popen(command + ["--quick"] * quick, env=environment, cwd=place, stdout=said, stderr=said)


def both(base: Path, here: Path, place: Path, groups: list[str], *, quick: bool) -> tuple[Any, Any]:
    """What the probe gives on the base, in the names of today, and on the working tree."""
    sides = {side: start(side, tree, place / side, groups, quick=quick) for side, tree in (("base", base), ("here", here))}
    codes = {side: process.wait(timeout=900) for side, process in sides.items()}
    for side, code in codes.items():
        assert code == 0, f"the probe failed on {side}:\n{(place / side / 'said').read_text()[-4000:]}"
    one, other = (json.loads((place / side / "found.json").read_text()) for side in sides)
    for group, cases in one.items():  # names of cases are no keys
        one[group] = {case: renames.as_today(value) for case, value in cases.items()}
    return one, other


def differences(base: Any, here: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Paths that differ, with both values; keys that are masked are not looked below."""
    if path and _is_masked(path, base, here):
        return []
    if isinstance(base, dict) and isinstance(here, dict):
        where = "/".join(path)
        missing = [f"{where}: only in the base: {key}" for key in base if key not in here]
        missing += [f"{where}: only in the working tree: {key}" for key in here if key not in base]
        if not missing and list(base) != list(here):
            missing = [f"{where}: another order of keys: {list(base)}, {list(here)}"]
        return missing + [one for key in base if key in here for one in differences(base[key], here[key], (*path, key))]
    if isinstance(base, list) and isinstance(here, list) and len(base) == len(here):
        pairs = enumerate(zip(base, here, strict=True))
        return [one for at, (b, h) in pairs for one in differences(b, h, (*path, str(at)))]
    if type(base) is type(here) and repr(base) == repr(here):
        return []
    return [f"{'/'.join(path)}: base {base!r}, here {here!r}"]


def _is_masked(path: tuple[str, ...], base: Any, here: Any) -> bool:
    table, key = renames.table(), path[-1]
    prose = table.get("prose", {})
    if key in MASKED or key in prose.get("keys", []):
        return True
    if key == "refusal" and prose.get("refusals"):
        return bool(base) == bool(here)
    renamed = table.get("keys") or table.get("values")
    return bool(renamed) and key in renames.DERIVED and isinstance(base, str) and isinstance(here, str)
