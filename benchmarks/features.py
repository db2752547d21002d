"""How long features take, and a private step of a linear model on them beside a plain one.

    python benchmarks/features.py [--images 2048] [--json]

Rows: scattering of 28 x 28 images, the same features written and read again from disk, and steps at batch 2,048 on
3,969 features. Seconds are of the processor, on one thread: on a busy machine they still mean something.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from privet import Training, plan
from privet_papers.datasets.features import compute_cached
from privet_papers.datasets.scattering import Scattering, normalise_channels

WIDTH, CLASSES, BATCH, STEPS, RECORDS = 3969, 10, 2048, 20, 20_000


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def scattering(images: int) -> list[dict[str, object]]:
    transform, pixels = Scattering(side=28), torch.rand(images, 1, 28, 28)
    transform(pixels[:16])  # filters are made once
    made = timed(lambda: transform(pixels))
    with tempfile.TemporaryDirectory() as folder:
        times = [
            timed(
                lambda: compute_cached(
                    pixels, lambda x: normalise_channels(transform(x)).half(), said="", folder=Path(folder), name="x"
                )
            )
            for _ in range(2)
        ]
    rate = images / made
    return [
        {"what": "scattering", "images_per_second": round(rate), "seconds_for_70000": round(70_000 / rate, 1)},
        {"what": "kept on disk", "first_seconds": round(times[0], 2), "again_seconds": round(times[1], 2)},
    ]


def steps(physical: int | None) -> dict[str, object]:
    x, y = torch.randn(RECORDS, WIDTH), torch.randint(CLASSES, (RECORDS,))
    model = nn.Linear(WIDTH, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def plainly() -> None:
        for _ in range(STEPS):
            chosen = torch.randint(RECORDS, (BATCH,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()

    plain = timed(plainly)
    planned = plan(epsilon=1.2, dataset_size=RECORDS, batch_size=BATCH, steps=STEPS)
    training = Training(model, optimizer, (x, y), planned, max_physical_batch_size=physical)

    def privately() -> None:
        for inputs, targets in training:
            training.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))

    private = timed(privately)
    return {
        "what": f"step, pieces of {physical or BATCH}", "private_ms": round(1000 * private / STEPS, 1),
        "plain_ms": round(1000 * plain / STEPS, 1), "ratio": round(private / plain, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for row in [*scattering(given.images), *(steps(physical) for physical in (256, 512, 1024, None))]:
        print(json.dumps(row) if given.json else "  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
