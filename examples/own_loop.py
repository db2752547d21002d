"""Your own loop, made private by three changed lines: `python examples/own_loop.py --out runs/own`."""

import argparse

import torch

import privet
from privet.data import task
from privet.training.evaluation import evaluate

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--out", default="runs/own-loop", help="a new folder, for the run's ledger")
out = options.parse_args().out

digits = task("digits")  # 4,000 digits to train on, 1,000 to judge by; no download
model = digits.network("tanh-cnn")
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
loss_fn = torch.nn.CrossEntropyLoss(reduction="none")  # 1. one loss per example; it was a mean
plan = privet.plan(epsilon=3.0, delta=1e-5, dataset_size=digits.size, batch_size=256, epochs=3)

with privet.Training(model, optimizer, digits.train, plan, out=out) as training:
    for x, y in training:  # 2. one Poisson batch per planned step; it was a DataLoader
        training.step(loss_fn(model(x), y))  # 3. it was loss.backward(), optimizer.step() and zero_grad()

scores = evaluate(model, digits)
print(f"held-out accuracy {scores.measure:.3f} on {digits.evaluation}")
print(training.spent())  # read from the ledger; `privet epsilon --from <out>` says the same
