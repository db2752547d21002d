"""Loops that move weights inside of the optimizer's step, behind `accept_state`, or let the dataset choose batches."""

from contextlib import suppress

import torch
from torch.utils.data import Dataset

from adversarial.replay import Loops, Scene
from adversarial.unsound_state import ATTEMPTS, make_step, raw_gradients

LOOPS = Loops()


class Picky(Dataset):
    """It cannot read a batch without the wanted record."""

    def __init__(self, x, y) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitems__(self, indices):
        if 0 not in indices:
            raise KeyError
        return [(self.x[k], self.y[k]) for k in indices]


@LOOPS.whole(1, dataset=Picky)
def chosen_by_a_dataset_that_fails(s: Scene) -> None:
    for _ in range(ATTEMPTS):
        with suppress(KeyError):
            for x, y in s.training:
                s.begun += 1
                make_step(s, x, y)


@LOOPS.whole(5)
def gradients_moved_by_a_hook_of_the_optimizer(s: Scene) -> None:
    held = []

    def move(optimizer, *_) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.add_(held[-1])

    s.optimizer.register_step_pre_hook(move)
    for x, y in s.training:
        held.append(x.mean())
        make_step(s, x, y)


@LOOPS.whole(5)
def weights_moved_by_a_hook_of_the_optimizer(s: Scene) -> None:
    held = []

    def move(*_) -> None:
        with torch.no_grad():
            s.model.weight.add_(held[-1])

    s.optimizer.register_step_post_hook(move)
    for x, y in s.training:
        held.append(x.mean())
        make_step(s, x, y)


@LOOPS.whole(5)
def weights_moved_and_called_right(s: Scene) -> None:
    for x, y in s.training:
        make_step(s, x, y)
        for p, grad in zip(s.model.parameters(), raw_gradients(s, x, y), strict=True):
            p.data -= 0.1 * grad
        s.training.accept_state()


@LOOPS.whole(5)
def a_batch_inside_of_post_processing(s: Scene) -> None:
    batches = iter(s.training)
    with s.training.post_processing("nothing"):
        for x, y in batches:
            make_step(s, x, y)
            s.model.weight.data += x.mean()
