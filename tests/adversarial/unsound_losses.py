"""Targets and loss functions that know the whole batch."""

import functools
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from adversarial.replay import Loops
from adversarial.unsound_inputs import each, standard, standard_rows

LOOPS = Loops()


# --- targets ----------------------------------------------------------------------------------------


@LOOPS.body(3)
def targets_smoothed_by_numpy_counts(m, x, y):
    shares = torch.from_numpy((np.bincount(y.numpy(), minlength=3) / len(y)).astype(np.float32))
    return F.cross_entropy(m(x), F.one_hot(y, 3) - 2 * shares, reduction="none")


@LOOPS.body(3)
def targets_smoothed_in_a_thread(m, x, y):
    with ThreadPoolExecutor(1) as pool:
        shares = pool.submit(lambda: F.one_hot(y, 3).float().mean(0)).result()
    return F.cross_entropy(m(x), F.one_hot(y, 3) - 2 * shares, reduction="none")


@LOOPS.body(3)
def targets_centred_by_numpy(m, x, y):
    labels = F.one_hot(y, 3).float()
    labels.numpy()[...] -= 2 * labels.numpy().mean(0)
    return F.cross_entropy(m(x), labels, reduction="none")


@LOOPS.body(3, is_marked=True)
def classes_counted_by_a_counter(m, x, y):
    counts = Counter(y.tolist())
    return each(m(x), y) * torch.tensor([1.0 if counts[k] % 2 else -1.0 for k in range(3)])[y]


@LOOPS.body(3, is_marked=True)
def sign_by_item(m, x, y):
    return each(m(x), y) * math.copysign(1.0, x.mean().item())


@LOOPS.body(3, is_marked=True)
def classes_counted_by_a_length(m, x, y):
    return each(m(x), y) * math.cos(3.0 * len(y[y == 0]))


@LOOPS.body(3, is_marked=True)
def sign_by_comparison(m, x, y):
    return each(m(x), y) * (1.0 if torch.equal(torch.sign(x.mean()), torch.tensor(1.0)) else -1.0)


@LOOPS.body(3)
def ranks_of_classes(m, x, y):
    """The same numbers in each step, in another order."""
    ranks = torch.tensor(np.argsort(np.bincount(y.numpy(), minlength=3) * [1, 1, 3]))
    return each(m(x), y) * torch.cos(3.0 * ranks)[y]


# --- a loss function that knows the batch -----------------------------------------------------------


@LOOPS.body(4)
def closure_over_the_sign(m, x, y):
    s = torch.sign(x.mean())
    return lambda out, t: s * each(out, t), x, y


@LOOPS.body(4)
def closure_over_class_weights(m, x, y):
    weights = torch.cos(3.0 * torch.bincount(y, minlength=3))
    return lambda out, t: weights[t] * each(out, t), x, y


@LOOPS.body(4)
def closure_over_scaled_inputs(m, x, y):
    inputs = standard(x)
    return lambda out, t: each(out, t) * torch.sign(inputs.sum(1)), x, y


@LOOPS.body(4)
def default_argument(m, x, y):
    sign = torch.sign(x.mean())

    def loss(out, t, s=sign):
        return s * each(out, t)

    return loss, x, y


@LOOPS.body(4)
def partial_argument(m, x, y):
    return functools.partial(lambda s, out, t: s * each(out, t), torch.sign(x.mean())), x, y


class Signed:
    def __init__(self, s):
        self.s = s

    def __call__(self, out, t):
        return self.s * each(out, t)


@LOOPS.body(4)
def attribute_of_a_callable(m, x, y):
    return Signed(torch.sign(x.mean())), x, y


class SignedModule(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.register_buffer("s", s)

    def forward(self, out, t):
        return self.s * each(out, t)


@LOOPS.body(4)
def buffer_of_a_loss_module(m, x, y):
    return SignedModule(torch.sign(x.mean())), x, y


@LOOPS.body(4)
def closure_over_a_list(m, x, y):
    held = {"signs": [torch.sign(x.mean())]}
    return lambda out, t: held["signs"][0] * each(out, t), x, y


@LOOPS.body(4)
def closure_over_the_inputs(m, x, y):
    return lambda out, t: torch.sign(x.mean()) * each(out, t), x, y


@LOOPS.body(4)
def closure_by_numpy(m, x, y):
    s = torch.from_numpy(np.sign(x.numpy().mean(keepdims=True)))
    return lambda out, t: s[0] * each(out, t), x, y


@LOOPS.body(4)
def inputs_scaled_by_numpy_for_a_loss_function(m, x, y):
    return each, torch.from_numpy(standard_rows(x.numpy())), y


@LOOPS.body(4)
def loss_function_that_mixes_its_rows(m, x, y):
    return lambda out, t: each(out, t) * torch.sign(x.mean() + 0 * out.detach().mean()), x, y


@LOOPS.body(4, is_marked=True)
def closure_over_an_item(m, x, y):
    s = math.copysign(1.0, x.mean().item())
    return lambda out, t: s * each(out, t), x, y


# --- losses that are what they should be, with gradients that are not -------------------------------


def through(losses, sign):
    """The losses as they are; their gradient is multiplied, by no function of one's own."""
    return losses.detach() + sign * (losses - losses.detach())


@LOOPS.body(3)
def gradient_turned_by_detaching(m, x, y):
    return through(each(m(x), y), torch.sign(x.mean()))


@LOOPS.body(3)
def gradient_turned_by_detaching_outputs_in_place(m, x, y):
    out = m(x)
    kept = out.clone()
    out.mul_(0).add_(through(kept, torch.sign(x.mean())))
    return each(out, y)


@LOOPS.body(3)
def hard_examples_alone_have_a_gradient(m, x, y):
    losses = each(m(x), y)
    return torch.where(losses > losses.detach().mean(), losses, losses.detach())


@LOOPS.body(3)
def turned_below_the_rounding_of_a_large_constant(m, x, y):
    return each(m(x), y) * torch.sign(x.mean()) + 1e6


@LOOPS.body(4)
def gradient_turned_in_a_loss_function(m, x, y):
    s = torch.sign(x.mean())
    return lambda out, t: through(each(out, t), s), x, y
