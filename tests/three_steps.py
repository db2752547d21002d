"""What every task must be able to do: train a little, and be judged."""

import torch

from privet.clipping.clipped_sum import clipped_sum
from privet.data import Task


def check_trains(made: Task) -> None:
    """Three steps on four clipped records move the network, and its measure gives one finite value for each record."""
    (x, y), (tested, wanted) = made.train, made.held_out
    network = made.network()
    before = torch.nn.utils.parameters_to_vector(network.parameters()).clone()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        summed = clipped_sum(network, made.losses, (x[:4], y[:4]), rule="flat", clipping_norm=1.0)
        for name, parameter in network.named_parameters():
            parameter.grad = summed.grads[name] / 4
        optimizer.step()
    assert not torch.equal(before, torch.nn.utils.parameters_to_vector(network.parameters()))
    values = made.measure.each(network(tested[:50]), wanted[:50])
    assert values.shape == (min(50, len(tested)),)
    assert values.isfinite().all()
