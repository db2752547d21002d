"""How long inversions take, all at once and one by one.

    python benchmarks/attacks.py [--victims 100] [--json]

The small sigmoid network on real digits without privacy: the hardest case for the clock, since every inversion goes on
until the image is exact. Columns: seconds of wall clock and of processor, per victim too, mean SSIM.
"""

import argparse
import json
import time

import torch

from privet.attacks import Observation, resolve_attack
from privet.attacks.observing import AttackedStep, TargetRecords, choose_targets, observe
from privet.attacks.outcome import measure_reconstruction
from privet.data import task
from privet.noise.randomness import seeded


def timed(name: str, seen: Observation, victims: TargetRecords) -> dict[str, object]:
    wall, processor = time.perf_counter(), time.process_time()
    found = resolve_attack(name).run(seen)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return {
        "attack": name, "victims": victims.size, "seconds": round(wall, 2), "processor_seconds": round(processor, 2),
        "milliseconds_per_victim": round(1000 * processor / victims.size, 1),
        "evaluations": round(float(found.evaluations.float().mean()), 1),
        "ssim": round(measure_reconstruction(found, victims).ssim, 5),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--victims", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    digits = task("digits")
    torch.manual_seed(0)
    moment = AttackedStep(number=0, model=digits.network("shallow-cnn").eval())
    rows = []
    for count, name in ((1, "invert-l2"), (given.victims, "invert-l2"), (given.victims, "prior")):
        victims = choose_targets(digits, examples=count)
        rows.append(timed(name, observe(moment, digits, victims, randomness=seeded(0)), victims))
        print(json.dumps(rows[-1]) if given.json else "  ".join(f"{key} {value}" for key, value in rows[-1].items()))


if __name__ == "__main__":
    main()
