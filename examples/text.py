"""Tell the language of a name, by its characters: `python examples/text.py --out runs/text`.

Uses the task `names` if its files are there (docs/howto-data.md), else names made up from syllables.
"""

import argparse
import random

import torch

from privet import Training, plan
from privet.data import Task, task
from privet.errors import InvalidValue
from privet.training.evaluation import evaluate
from privet_papers.datasets.ngrams import Listed, number_words
from privet_papers.datasets.text import ALPHABET, NAME_LENGTH

SYLLABLES = ("ka mi no ra shi ta yu ko", "ski wicz ow ki czy szcz ek sla", "ini elli gio vanni ro ti ca bel")


def made_up(count: int = 2500) -> Task:
    """Names of three languages that nobody speaks."""
    draw = random.Random(1)
    labels = [draw.randrange(len(SYLLABLES)) for _ in range(count)]
    names = ["".join(draw.choices(SYLLABLES[label].split(), k=draw.randint(2, 4))) for label in labels]
    x = number_words(names, Listed(ALPHABET), length=NAME_LENGTH)  # a public alphabet; never one read from the data
    y = torch.tensor(labels)
    return Task(
        name="made-up names", train=(x[500:], y[500:]), held_out=(x[:500], y[:500]), evaluation="500 more names",
        model="char-lstm", facts={"words": len(ALPHABET) + 2, "classes": len(SYLLABLES)},
    )  # fmt: skip


options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--out", default="runs/text", help="a new folder, for the run's ledger")
out = options.parse_args().out

try:
    names = task("names")
except InvalidValue:
    names = made_up()
model = names.network("char-lstm:width=16,hidden=32")
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
planned = plan(epsilon=4.0, delta=1e-5, dataset_size=names.size, batch_size=200, epochs=4)
with Training(model, optimizer, names.train, planned, out=out) as training:
    for x, y in training:
        training.step(names.losses(model(x), y))

print(f"held-out accuracy {evaluate(model, names).measure:.3f} on {names.name}")
print(training.spent())
