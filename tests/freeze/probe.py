"""One side of the comparison: python -m freeze.probe FOLDER OUT.json [--quick] GROUP...

FREEZE_SIDE=base leaves names as they are written; any other runs the working tree, through names.toml. What differs
from run to run by intent and is not what is compared, is fixed here: names of runs, and which steps are checked.
"""

import json
import os
import secrets
import sys
import time
import warnings
from collections import Counter
from pathlib import Path


def fix_names() -> None:
    counts: Counter[int] = Counter()

    def token_hex(nbytes: int = 32) -> str:  # the name of a run; of each length a count of its own
        counts[nbytes] += 1
        return f"{counts[nbytes]:0{2 * nbytes}x}"

    secrets.token_hex = token_hex
    time.monotonic = lambda: 0.0  # how long a run took stands in its checkpoint, whose bytes are compared
    secrets.randbelow = lambda most: most - 1  # no step of a loop is checked beyond those that always are
    warnings.simplefilter("ignore")


def main() -> None:
    place, out, *words = sys.argv[1:]
    fix_names()
    import torch

    from freeze import commands, kept, ledgers, pages, runs

    torch.set_num_threads(1)
    groups = {
        "commands": commands.probe,
        "runs": runs.probe,
        "ledgers": ledgers.probe,
        "kept": kept.probe,
        "pages": pages.probe,
    }
    found = {}
    for group in [word for word in words if word != "--quick"]:
        start, folder = time.perf_counter(), Path(place) / group
        folder.mkdir(parents=True)
        os.chdir(folder)
        found[group] = groups[group](quick="--quick" in words)
        print(f"{group}: {len(found[group])} cases, {time.perf_counter() - start:.1f} s", file=sys.stderr)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
