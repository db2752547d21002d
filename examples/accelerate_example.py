"""Private training with Hugging Face Accelerate: `python examples/accelerate_example.py --out runs/accelerate`.

Accelerate finds the device and keeps the weights. `Training` is given torch's own optimizer, not a prepared one, and
there is no `accelerator.backward`. For several processes use torchrun and `privet.training.processes`.
"""

import argparse

import torch
from accelerate import Accelerator

from privet import Training, plan
from privet.data import task
from privet.training.evaluation import evaluate

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--out", default="runs/accelerate", help="a new folder, for the ledger and the weights")
out = options.parse_args().out

accelerator = Accelerator()
digits = task("digits")
model = accelerator.prepare(digits.network("tanh-cnn"))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
planned = plan(epsilon=3.0, delta=1e-5, dataset_size=digits.size, batch_size=256, epochs=2)

with Training(model, optimizer, digits.train, planned, out=out) as training:
    for x, y in training:
        training.step(digits.losses(model(x.to(accelerator.device)), y.to(accelerator.device)))

accelerator.save_model(model, out)  # the weights are private: they may be given out under the guarantee
print(f"held-out accuracy {evaluate(model, digits, device=accelerator.device).measure:.3f}")
print(training.spent())
