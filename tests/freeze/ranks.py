"""One rank of a seeded run: python -m freeze.ranks FOLDER KEY=VALUE... ; leaves its weights beside the ledger."""

import json
import sys
from pathlib import Path

import torch

from freeze.probe import fix_names


def main() -> None:
    fix_names()
    from freeze import runs
    from freeze.renames import name

    torch.set_num_threads(1)
    place, *words = sys.argv[1:]
    given = dict(word.split("=") for word in words)
    group = name("privet.training.distributed:group")()
    plan = runs.planned(rule=given.get("rule", "flat"))
    out = Path(place) / "run"
    secure = "secure" in given
    training = runs.begun("mlp", plan, out=out, group=group, max_physical_batch=4, secure=secure)
    found = runs.trained(training)
    training.close()
    (Path(place) / f"rank-{group.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
