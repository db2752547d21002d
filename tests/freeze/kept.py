"""Kept results are found by their rows, as they were; and the public names."""

import json
import os
from pathlib import Path
from typing import Any

from freeze.files import sha
from freeze.renames import name


def probe(*, quick: bool) -> dict[str, Any]:
    privet = name("privet")
    return {"public names": sorted(privet.__all__), "dir": sorted(dir(privet)), **results(quick=quick)}


def results(*, quick: bool) -> dict[str, Any]:
    """Of each row what its results say; of all files, how many there are and how many a row finds again."""
    root = Path(os.environ["FREEZE_RESULTS"])
    papers = [*name("privet.experiments.papers:PAPERS").values(), name("privet.experiments.recipes:paper")(),
              name("privet.experiments.ablation:paper")()]  # fmt: skip
    all_of, read = name("privet.experiments.results:all_of"), name("privet.experiments.results:read")
    found: dict[str, Any] = {}
    count, fingerprints, asked = 0, set(), set()
    for paper in papers[:1] if quick else papers:
        for row in paper.of(None):
            asked.add(row.fingerprint)
            for scale in ("full", "quick") if row.is_trained else ("exact",):
                for result in all_of(root, row, scale):
                    count += 1
                    fingerprints.add((row.key, row.fingerprint))
                    line = None if result.curve is None else [result.curve.x, result.curve.y]
                    found[f"{row.key} {scale} {result.seed}"] = {
                        "figures": {key: [one.value, one.label] for key, one in result.figures.items()},
                        "steps": [result.steps, result.planned], "delta": result.delta, "certified": result.certified,
                        "curve": None if line is None else sha(json.dumps(line).encode()),
                    }  # fmt: skip
    files = [] if quick else sorted(root.rglob("*.json"))
    choices = [file for file in files if file.name.endswith(".choice.json")]
    chosen = {str(file.relative_to(root)): json.loads(file.read_bytes()) for file in choices}
    again = sum(one["fingerprint"] in asked for one in chosen.values())
    said = {file: {"chosen": one["chosen"], "scores": one["scores"]} for file, one in chosen.items()}
    files = [file for file in files if file not in choices]
    loaded = [read(file).key for file in files]
    return found | {
        "found": count,
        "fingerprints": len(fingerprints),
        "files": len(files),
        "choices": said,
        "choices found": again,
        "keys": sorted(loaded),
    }
