"""Loops that give the model more than its inputs for the time of a call, and models that turn gradients alone."""

import torch
from torch import nn

from adversarial.replay import Loops
from adversarial.unsound_inputs import Times, each
from adversarial.unsound_state import Centred

LOOPS = Loops()


# --- what a model holds for the time of a call, and gives back --------------------------------------


def during(hold, **given) -> None:
    """A loop that puts something into the model for a call, and what was there after it."""

    def body(m, x, y):
        mean, bias, kept = m.mean.clone(), m.frozen.bias.detach().clone(), m.kept
        hold(m, x)
        out = m(x)
        m.mean.data.copy_(mean)
        m.frozen.bias.data.copy_(bias)
        m.kept = kept
        return each(out, y)

    body.__name__ = hold.__name__
    LOOPS.body(7, **{"model": Centred, **given})(body)


@during
def a_buffer_for_a_call(m, x):
    m.mean.copy_(x.mean(0))


@during
def a_buffer_for_a_call_by_numpy(m, x):
    m.mean.numpy()[...] = x.numpy().mean(0)


@during
def an_attribute_for_a_call(m, x):
    m.kept = x.mean(0)


@during
def a_frozen_weight_for_a_call(m, x):
    m.frozen.bias.data += x.mean(0)


@during
def a_frozen_weight_for_a_call_by_numpy(m, x):
    m.frozen.bias.detach().numpy()[...] += x.numpy().mean(0)


# --- models whose gradients couple what their outputs do not ----------------------------------------


class Detached(nn.Module):
    """Its outputs are right; their gradient is multiplied by the sign of a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        out = self.out(x)
        return out.detach() + torch.sign(x.mean()) * (out - out.detach())


@LOOPS.body(3, model=Detached)
def a_model_that_turns_gradients_by_detaching(m, x, y):
    return each(m(x), y)


class Turned(Detached):
    def forward(self, x):
        return Times.apply(self.out(x), torch.sign(x.mean()))


@LOOPS.body(3, model=Turned)
def a_model_with_a_backward_pass_that_couples(m, x, y):
    return each(m(x), y)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@LOOPS.body(3, model=network)
def gradient_turned_by_a_hook_inside_of_the_model(m, x, y):
    out, sign = m(x), torch.sign(x.mean())
    out.grad_fn.next_functions[1][0].register_prehook(lambda grads: (grads[0] * sign,))
    return each(out, y)


@LOOPS.body(3, model=network)
def gradient_turned_by_a_hook_of_a_layer(m, x, y):
    sign = torch.sign(x.mean())
    hook = m[1].register_full_backward_hook(lambda _, grads, __: (grads[0] * sign,))
    out = m(x)
    hook.remove()
    return each(out, y)


@LOOPS.body(3, model=network)
def gradient_turned_by_what_autograd_saves(m, x, y):
    sign = torch.sign(x.mean())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * sign):
        out = m(x)
    return each(out, y)
