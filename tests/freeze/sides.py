"""Both sides: the source of the base commit, the probe on it and on the working tree, and the first difference."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from freeze import renames

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MASKED = (
    "seconds",
    "examples_per_second",
    "milliseconds",
    "private_ms",
    "plain_ms",
    "versions",
    "python",
    "privet",
    "torch",
    "numpy",
    "threads",
    "gpu",
)


class NoBase(Exception):
    """The base commit is not in this clone."""


def base_tree(place: Path, *, clone: Path = ROOT) -> Path:
    """The source and the kept results of the base commit, in a folder."""
    commit = (HERE / "base.txt").read_text().strip()
    known = subprocess.run(["git", "-C", clone, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True)
    if known.returncode:
        raise NoBase(f"the base commit {commit} is not in this clone: git fetch --unshallow, and run this again")
    archive = place / "base.tar"
    subprocess.run(["git", "-C", clone, "archive", "-o", archive, commit, "src", "results"], check=True)
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


def compared(
    base: Path, here: Path, place: Path, groups: list[str], *, quick: bool, is_renamed: bool = True
) -> list[str]:
    """Where the probe gives something else on the working tree than on the base, if that had the names of today."""
    table = renames.table() if is_renamed else {}
    started = {
        "base": start("base", base, place / "base", groups, quick=quick),
        "here": start("here" if is_renamed else "base", here, place / "here", groups, quick=quick),
    }
    codes = {side: process.wait(timeout=900) for side, process in started.items()}
    for side, code in codes.items():
        assert code == 0, f"the probe failed on {side}:\n{(place / side / 'said').read_text()[-4000:]}"
    one, other = (json.loads((place / side / "found.json").read_text()) for side in codes)
    for group, cases in one.items():  # names of cases are no keys
        one[group] = {case: renames.as_today(value, table) for case, value in cases.items()}
    return differences(one, other, table)


def differences(base: Any, here: Any, table: dict[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    """Paths that differ, with both values; keys that are masked are not looked below."""
    if path and _is_masked(path, base, here, table):
        return []
    where = "/".join(path)
    if isinstance(base, dict) and isinstance(here, dict):
        found = [f"{where}: only in the base: {key}" for key in base if key not in here]
        found += [f"{where}: only in the working tree: {key}" for key in here if key not in base]
        if not found and list(base) != list(here):
            found = [f"{where}: another order of keys: base {list(base)}, here {list(here)}"]
        pairs = [(str(key), base[key], here[key]) for key in base if key in here]
    elif isinstance(base, list) and isinstance(here, list) and len(base) == len(here):
        found, pairs = [], [(str(at), *pair) for at, pair in enumerate(zip(base, here, strict=True))]
    else:
        is_equal = type(base) is type(here) and repr(base) == repr(here)
        return [] if is_equal else [f"{where}: base {base!r}, here {here!r}"]
    return found + [line for key, b, h in pairs for line in differences(b, h, table, (*path, key))]


def _is_masked(path: tuple[str, ...], base: Any, here: Any, table: dict[str, Any]) -> bool:
    key, prose = path[-1], table.get("prose", {})
    if key in MASKED or _ends_with_any(path, prose.get("keys", [])):
        return True
    if _ends_with_any(path, prose.get("reworded", [])):
        return type(base) is type(here) and _numbers(base) == _numbers(here)
    if not (table.get("keys") or table.get("values")) or not (isinstance(base, str) and isinstance(here, str)):
        return False
    return key in renames.DERIVED or base.startswith("sha256:")


def _ends_with_any(path: tuple[str, ...], keys: list[str]) -> bool:
    """Whether one of the keys, `findings.why` say, is where the path ends; places in a list do not count."""
    words = [word for word in path if not word.isdigit()]
    return any(words[-len(tail) :] == tail for tail in (key.split(".") for key in keys))


def _numbers(said: str | list[str]) -> list[str]:
    """The numbers in a text, and how many lines it has: a text that is reworded says the same ones."""
    lines = [said] if isinstance(said, str) else said
    text = re.sub(r"(?<=\d),(?=\d{3})", "", " ".join(lines))
    return [str(len(lines)), *sorted(re.findall(r"\b\d+(?:\.\d+)?(?:e[-+]?\d+)?", text))]
