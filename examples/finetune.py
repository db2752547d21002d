"""Fine-tune public weights on private examples: `python examples/finetune.py --out runs/finetune`.

The digits 0 to 4 stand for public examples, 5 to 9 for private ones. A network is trained on the public ones as usual
and saved; then its last layers are trained on the private ones, with an output layer of their own.
"""

import argparse
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from privet import Training, plan
from privet.data import task
from privet.models import from_checkpoint, model

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--out", default="runs/finetune", help="a new folder, for the public weights and the run's ledger")
out = Path(options.parse_args().out)

digits = task("digits")
(x, y), (held_x, held_y) = digits.train, digits.held_out
is_public = y < 5
loss_fn = nn.CrossEntropyLoss(reduction="none")

# the public network; yours would come as a safetensors file from elsewhere
public = model("cnn", shape=(1, 28, 28), classes=5)
optimizer = torch.optim.Adam(public.parameters(), lr=0.003)
for rows in torch.randperm(int(is_public.sum())).split(64):
    optimizer.zero_grad()
    loss_fn(public(x[is_public][rows]), y[is_public][rows]).mean().backward()
    optimizer.step()
out.mkdir(parents=True, exist_ok=True)
safetensors.torch.save_file(public.state_dict(), out / "public.safetensors")

# the private one: the body is loaded and frozen, "7.*" is trained on, the output layer "9.*" begins anew
network = model("cnn", shape=(1, 28, 28), classes=5)
print(from_checkpoint(network, out / "public.safetensors", train=["7.*", "9.*"], fresh=["9.*"]))
trained = [p for p in network.parameters() if p.requires_grad]
planned = plan(epsilon=2.0, delta=1e-5, dataset_size=int((~is_public).sum()), batch_size=128, epochs=5)
optimizer = torch.optim.SGD(trained, lr=0.5, momentum=0.9)
with Training(network, optimizer, (x[~is_public], y[~is_public] - 5), planned, out=out) as training:
    for inputs, targets in training:
        training.step(loss_fn(network(inputs), targets))

with torch.no_grad():
    right = network(held_x[held_y >= 5]).argmax(1) == held_y[held_y >= 5] - 5
print(f"held-out accuracy {right.float().mean():.3f} on {len(right)} digits 5 to 9")
print(training.spent())
