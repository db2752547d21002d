"""Audit one step of another library: Opacus on 100 examples and on 101, with the batch size it is asked for.

    python examples/audit_opacus.py --samples 1000

Opacus takes the sample rate and the divisor of the average from the number of examples: rate 1/2 and divisor 50 for
100 examples in batches of 50, rate 1/3 and divisor 33 for 101 (three batches of at most 50). Under add-or-remove
neighbours that number is private. The audit holds the released gradients against the curve that is charged for noise
multiplier 4 at sample rate 1/2, and prints what it finds.
"""

import argparse
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from privet.accounting import Step
from privet.auditing import Audit, NeighbouringPair, audit, mechanism_claim
from privet.noise.randomness import Randomness

NOISE, CLIP, BATCH, EXAMPLES, WIDTH = 4.0, 1.0, 50, 100, 64


class OpacusStep:
    """The noisy average gradient of one step, as Opacus leaves it for the optimizer."""

    claim = mechanism_claim(
        Step(noise_multiplier=NOISE, sample_rate=BATCH / EXAMPLES), l2_bound=CLIP, divisor=BATCH, adjacency="add-remove"
    )

    def __call__(self, examples: tuple[torch.Tensor, torch.Tensor], randomness: Randomness) -> dict[str, torch.Tensor]:
        from opacus import PrivacyEngine

        torch.manual_seed(int(randomness.numpy_generator().integers(2**31)))  # it draws from torch's own generators
        model = nn.Linear(WIDTH, 1, bias=False)
        nn.init.zeros_(model.weight)
        seed = int(randomness.random_words(1)[0] >> 33)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            data_loader=DataLoader(TensorDataset(*examples), batch_size=BATCH), noise_multiplier=NOISE,
            max_grad_norm=CLIP, noise_generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        x, y = next(iter(loader))
        nn.functional.softplus(-y * model(x)[:, 0]).mean().backward()
        optimizer.step()
        return {"weight": -model._module.weight.detach()}


def neighbours() -> NeighbouringPair:
    """A hundred quiet examples, and the same with one more."""
    g = torch.Generator().manual_seed(0)
    x, y = 1e-3 * torch.randn(EXAMPLES + 1, WIDTH, generator=g), torch.ones(EXAMPLES + 1)
    x[-1] = 0.0
    x[-1, 0] = 10.0
    return NeighbouringPair(name=f"{EXAMPLES} examples and one more", with_=(x, y), without=(x[:-1], y[:-1]))


def main(samples: int) -> Audit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns about its own hooks and its generator
        return audit(OpacusStep(), scenes=[neighbours()], samples=samples)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1000, help="releases of each world")
    print(main(parser.parse_args().samples))
