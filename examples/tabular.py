"""A table of people: `python examples/tabular.py --out runs/tabular`.

`train` does it all: it evaluates and saves on the way, and the folder is one of `privet train` and `privet report`.
"""

import argparse
import csv
import random
from pathlib import Path

from privet import plan, train
from privet.data import task

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--out", default="runs/tabular", help="a new folder, for the table and the run")
out = Path(options.parse_args().out)

draw = random.Random(1)
out.mkdir(parents=True, exist_ok=True)
with (out / "people.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["age", "hours", "income"])
    for _ in range(5000):
        age, hours = draw.randint(18, 90), draw.randint(0, 80)
        table.writerow([age, hours, "high" if 40 * hours + 15 * age + draw.gauss(0, 200) > 2300 else "low"])

# Ranges and classes are what everybody knows, never what is found in the data.
people = task(f'csv:path="{out}/people.csv",target=income,ranges="age 0 100; hours 0 99",classes="low; high"')
planned = plan(epsilon=1.0, delta=1e-5, dataset_size=people.size, batch_size=200, epochs=5)
run = train(planned, people, out=out, lr=0.5)

accuracy = run.scores["held_out_accuracy"]
print(f"held-out accuracy {accuracy:.3f} on {people.evaluation}")
print(run.guarantee)
