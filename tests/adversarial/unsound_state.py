"""Loops that choose their batches, move weights without noise, or carry records in what a model holds."""

import copy
from contextlib import suppress

import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from adversarial.replay import Loops, Scene
from adversarial.unsound_inputs import each

LOOPS = Loops()
ATTEMPTS = 200


# --- batches that are chosen ------------------------------------------------------------------------


def has(s: Scene, x) -> bool:
    return bool((x == s.x[0]).all(1).any())


def make_step(s: Scene, x, y) -> bool:
    return s.training.step(each(s.model(x), y))


@LOOPS.whole(1)
def chosen_by_break(s: Scene) -> None:
    for _ in range(ATTEMPTS):
        for x, y in s.training:
            s.begun += 1
            if not has(s, x):
                break
            make_step(s, x, y)


@LOOPS.whole(1)
def chosen_by_an_exception(s: Scene) -> None:
    for _ in range(ATTEMPTS):
        with suppress(KeyError):
            for x, y in s.training:
                s.begun += 1
                if not has(s, x):
                    raise KeyError
                make_step(s, x, y)


@LOOPS.whole(1)
def chosen_by_an_exception_of_the_loss(s: Scene) -> None:
    for _ in range(ATTEMPTS):
        with suppress(AssertionError):
            for x, y in s.training:
                s.begun += 1
                losses = each(s.model(x), y)
                assert has(s, x)
                s.training.step(losses)


@LOOPS.whole(1)
def chosen_by_closing_the_iterator(s: Scene) -> None:
    for _ in range(ATTEMPTS):
        batches = iter(s.training)
        for x, y in batches:
            s.begun += 1
            if has(s, x):
                make_step(s, x, y)
            else:
                batches.close()


@LOOPS.whole(1)
def chosen_by_a_look_ahead(s: Scene) -> None:
    """One batch from each iterator, and the iterator is dropped."""
    for _ in range(ATTEMPTS):
        batches = iter(s.training)
        with suppress(StopIteration):
            x, y = next(batches)
            s.begun += 1
            if has(s, x):
                make_step(s, x, y)
        del batches


@LOOPS.whole(1)
def chosen_by_upto(s: Scene) -> None:
    for _ in range(ATTEMPTS):
        if s.training.steps_done >= len(s.training):
            break
        for x, y in s.training.until(s.training.steps_done + 1):
            s.begun += 1
            if not has(s, x):
                break
            make_step(s, x, y)


@LOOPS.whole(1, options={"max_physical_batch_size": 6})
def chosen_by_the_first_piece(s: Scene) -> None:
    for _ in range(ATTEMPTS):
        is_first = True
        for x, y in s.training:
            s.begun += is_first
            if is_first and not has(s, x):
                break
            is_first = make_step(s, x, y)


@LOOPS.whole(1, options={"max_physical_batch_size": 6})
def chosen_after_the_first_piece(s: Scene) -> None:
    """The first piece is given to step, and the step is left then."""
    for _ in range(ATTEMPTS):
        is_first, found = True, False
        for x, y in s.training:
            s.begun += is_first
            found = has(s, x) if is_first else found
            is_first = make_step(s, x, y)
            if not is_first and not found:
                break


@LOOPS.whole(1)
def chosen_by_continue(s: Scene) -> None:
    for x, y in s.training:
        if not has(s, x):
            continue
        make_step(s, x, y)


@LOOPS.whole(1)
def chosen_by_turning_a_refusal_into_a_choice(s: Scene) -> None:
    """A step that is refused on purpose, and the loop is entered again."""
    for _ in range(ATTEMPTS):
        with suppress(Exception):
            for x, y in s.training:
                s.begun += 1
                s.training.step(each(s.model(x), y) if has(s, x) else each(s.model(x), y)[:-1])


# --- weights that move without noise ----------------------------------------------------------------


def moving(move, **given) -> None:
    """A loop that moves the weights after each private step."""

    def whole(s: Scene) -> None:
        for x, y in s.training:
            make_step(s, x, y)
            move(s, x, y)

    whole.__name__ = move.__name__
    LOOPS.whole(5, **given)(whole)


def raw_gradients(s: Scene, x, y):
    return torch.autograd.grad(each(s.model(x), y).mean(), list(s.model.parameters()))


@moving
def a_raw_step_of_the_optimizer(s, x, y):
    each(s.model(x), y).mean().backward()
    s.optimizer.step()
    s.optimizer.zero_grad()


@moving
def a_raw_step_by_gradients_put_in_place(s, x, y):
    for p, grad in zip(s.model.parameters(), raw_gradients(s, x, y), strict=True):
        p.grad = grad
    s.optimizer.step()
    s.optimizer.zero_grad()


@moving
def a_second_optimizer(s, x, y):
    other = torch.optim.Adam(s.model.parameters(), lr=0.1)
    each(s.model(x), y).mean().backward()
    other.step()
    other.zero_grad()


@moving
def a_copy_of_the_optimizer(s, x, y):
    other = type(s.optimizer)(s.optimizer.param_groups, lr=0.1)
    each(s.model(x), y).mean().backward()
    other.step()
    other.zero_grad()


@moving
def weights_by_data(s, x, y):
    for p, grad in zip(s.model.parameters(), raw_gradients(s, x, y), strict=True):
        p.data -= 0.1 * grad


@moving
def weights_without_gradients(s, x, y):
    grads = raw_gradients(s, x, y)
    with torch.no_grad():
        for p, grad in zip(s.model.parameters(), grads, strict=True):
            p -= 0.1 * grad


@moving
def weights_by_numpy(s, x, y):
    for p, grad in zip(s.model.parameters(), raw_gradients(s, x, y), strict=True):
        p.detach().numpy()[...] -= 0.1 * grad.numpy()


@moving
def weights_assigned_to_data(s, x, y):
    for p, grad in zip(s.model.parameters(), raw_gradients(s, x, y), strict=True):
        p.data = p.data - 0.1 * grad


@moving
def weights_by_many_at_once(s, x, y):
    grads = raw_gradients(s, x, y)
    with torch.no_grad():
        torch._foreach_add_(list(s.model.parameters()), grads, alpha=-0.1)


@moving
def weights_from_a_vector(s, x, y):
    grad = nn.utils.parameters_to_vector(raw_gradients(s, x, y))
    vector = nn.utils.parameters_to_vector(s.model.parameters()).detach()
    nn.utils.vector_to_parameters(vector - 0.1 * grad, s.model.parameters())


@moving
def weights_of_a_copy_that_is_trained_without_noise(s, x, y):
    other = copy.deepcopy(s.model)
    raw = torch.optim.SGD(other.parameters(), lr=0.1)
    each(other(x), y).mean().backward()
    raw.step()
    s.model.load_state_dict(other.state_dict())


@moving
def one_weight_by_a_raw_number(s, x, y):
    s.model.bias.data[0] += 1e-3 * x.mean()


@moving
def a_bias_read_off_the_records(s, x, y):
    s.model.bias.data.copy_((x @ s.model.weight.T).detach().mean(0))


@LOOPS.whole(5)
def weights_moved_before_the_step(s: Scene) -> None:
    for x, y in s.training:
        losses = each(s.model(x), y)
        for p in s.model.parameters():
            p.data += 0.01 * x.mean()
        s.training.step(losses)


@LOOPS.whole(5)
def weights_moved_in_a_loss_function(s: Scene) -> None:
    for x, y in s.training:

        def loss(out, t, x=x):
            s.model.bias.data += 0.01 * x.mean()
            return each(out, t)

        s.training.step(loss, x, y)


@LOOPS.whole(5)
def a_raw_step_after_the_loop(s: Scene) -> None:
    for x, y in s.training.until(5):
        make_step(s, x, y)
    each(s.model(s.x), s.y).mean().backward()
    s.optimizer.step()


@LOOPS.whole(5)
def raw_steps_before_the_loop(s: Scene) -> None:
    """Weights that were trained on the records after Training was made."""
    for _ in range(3):
        each(s.model(s.x), s.y).mean().backward()
        s.optimizer.step()
        s.optimizer.zero_grad()
    for x, y in s.training:
        make_step(s, x, y)


@LOOPS.whole(5)
def weights_moved_between_two_loops(s: Scene) -> None:
    for end in (3, 6):
        for x, y in s.training.until(end):
            make_step(s, x, y)
        s.model.weight.data += 0.1 * s.x.mean()


@LOOPS.whole(5, is_marked=True)
def a_learning_rate_from_raw_losses(s: Scene) -> None:
    for x, y in s.training:
        losses = each(s.model(x), y)
        s.training.step(losses)
        s.optimizer.param_groups[0]["lr"] = 0.1 * float(losses.detach().mean())


@LOOPS.whole(5, is_marked=True, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9))
def momentum_from_raw_gradients(s: Scene) -> None:
    for x, y in s.training:
        make_step(s, x, y)
        for p, grad in zip(s.model.parameters(), raw_gradients(s, x, y), strict=True):
            s.optimizer.state[p]["momentum_buffer"] = grad


# --- what a model holds -----------------------------------------------------------------------------


class Centred(nn.Module):
    """Takes away a mean that it holds in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.kept = torch.zeros(4)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.frozen(x - self.mean - self.kept))


def holding(write, **given) -> None:
    def whole(s: Scene) -> None:
        for x, y in s.training:
            make_step(s, x, y)
            write(s.model, x)

    whole.__name__ = write.__name__
    LOOPS.whole(7, **{"model": Centred, **given})(whole)


@holding
def a_buffer_without_gradients(m, x):
    with torch.no_grad():
        m.mean.lerp_(x.mean(0), 0.5)


@holding
def a_buffer_by_data(m, x):
    m.mean.data.lerp_(x.mean(0), 0.5)


@holding
def a_buffer_by_numpy(m, x):
    m.mean.numpy()[...] = x.numpy().mean(0)


@holding
def a_buffer_put_in_place(m, x):
    m.mean = x.mean(0)


@holding
def a_new_buffer(m, x):
    m.register_buffer("seen", x.mean(0).clone())


@holding
def a_frozen_weight(m, x):
    with torch.no_grad():
        m.frozen.weight.add_(0.1 * x.mean())


@holding
def a_frozen_weight_by_data(m, x):
    m.frozen.bias.data += 0.1 * x.mean(0)


@holding
def a_frozen_weight_by_numpy(m, x):
    m.frozen.bias.numpy()[...] += 0.1 * x.numpy().mean(0)


def hold_attribute(m, x):
    m.kept = x.mean(0).clone()


hold_attribute.__name__ = "an_attribute_of_the_model"
holding(hold_attribute, is_marked=True)


@LOOPS.whole(7, model=Centred)
def a_buffer_before_the_call(s: Scene) -> None:
    for x, y in s.training:
        with torch.no_grad():
            s.model.mean.copy_(x.mean(0))
        make_step(s, x, y)


@LOOPS.whole(7, model=Centred)
def a_buffer_by_a_hook(s: Scene) -> None:
    def keep(_, inputs, __) -> None:
        s.model.mean.data.lerp_(inputs[0].detach().mean(0), 0.5)

    hook = s.model.frozen.register_forward_hook(keep)
    for x, y in s.training:
        make_step(s, x, y)
    hook.remove()


def normalised() -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3))
    model[0].eval()
    return model


@LOOPS.whole(7, model=normalised)
def statistics_between_the_steps(s: Scene) -> None:
    for x, y in s.training:
        make_step(s, x, y)
        s.model[0].train()
        with torch.no_grad():
            s.model(x)
        s.model[0].eval()


@LOOPS.whole(7, model=normalised)
def statistics_by_update_bn_between_two_loops(s: Scene) -> None:
    for end in (3, 6):
        for x, y in s.training.until(end):
            make_step(s, x, y)
        update_bn(DataLoader(TensorDataset(s.x, s.y), batch_size=30), s.model)
        s.model[0].eval()


@LOOPS.whole(7, model=normalised)
def statistics_by_update_bn_after_the_loop(s: Scene) -> None:
    for x, y in s.training:
        make_step(s, x, y)
    update_bn(DataLoader(TensorDataset(s.x, s.y), batch_size=30), s.model)
