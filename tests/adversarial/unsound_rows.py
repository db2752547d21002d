"""Rows that are not the batch's, rows that know their place or how many they are, and gradients of gradients."""

import torch
import torch.nn.functional as F
from torch import nn

from adversarial.replay import Loops, Scene
from adversarial.unsound_inputs import each, standard

LOOPS = Loops()


# --- losses of other rows ---------------------------------------------------------------------------


def of_others(name, losses, **given):
    """A loop over losses(scene, x, y), which may look at all records."""

    def whole(scene: Scene) -> None:
        for x, y in scene.training:
            scene.training.step(losses(scene, x, y))

    whole.__name__ = name
    LOOPS.whole(6, **given)(whole)


of_others("the_first_rows_of_the_dataset", lambda s, x, y: each(s.model(s.x[: len(x)]), s.y[: len(x)]))
of_others("the_first_rows_with_targets_of_the_batch", lambda s, x, y: each(s.model(s.x[: len(x)]), y))
of_others("inputs_of_the_batch_with_other_targets", lambda s, x, y: each(s.model(x), s.y[: len(x)]))
of_others("rows_by_index", lambda s, x, y: each(s.model(s.x[torch.arange(len(x))]), s.y[torch.arange(len(x))]))
of_others("one_record_in_every_row", lambda s, x, y: each(s.model(s.x[:1].expand(len(x), -1)), s.y[:1].expand(len(x))))
of_others("one_record_added_to_every_row", lambda s, x, y: each(s.model(x + s.x[0]), y))
of_others("the_dataset_standardised", lambda s, x, y: each(s.model((x - s.x.mean(0)) * 3), y))
of_others("one_call_of_the_batch_and_one_of_others", lambda s, x, y: each(s.model(x) + s.model(s.x[: len(x)]), y))
of_others(
    "half_of_the_rows_are_others",
    lambda s, x, y: each(s.model(torch.cat([x[: len(x) // 2], s.x[: len(x) - len(x) // 2]])), y),
)


@LOOPS.whole(6)
def the_batch_before(s: Scene) -> None:
    before = None
    for x, y in s.training:
        rows = x if before is None else before.repeat(5, 1)[: len(x)]
        s.training.step(each(s.model(rows), y))
        before = x


@LOOPS.whole(6)
def mixed_with_the_batch_before(s: Scene) -> None:
    before = s.x[:0]
    for x, y in s.training:
        rows = torch.cat([before, x])[: len(x)]
        s.training.step(each(s.model(x + 2 * rows), y))
        before = x.clone()


@LOOPS.whole(6, is_marked=True)
def a_queue_of_features(s: Scene) -> None:
    """Contrast with what the batches before looked like; only the guarantee's assumptions speak of it."""
    queue = torch.zeros(0, 3)
    for x, y in s.training:
        out = s.model(x)
        against = (out @ queue.T).sigmoid().sum(1) if len(queue) else 0.0
        s.training.step(each(out, y) - 9 * against)
        queue = torch.cat([queue, out.detach()])[-30:]


# --- places, ranks and numbers of rows --------------------------------------------------------------

WIDE = torch.arange(60.0)


@LOOPS.body(8)
def every_other_row_negated(m, x, y):
    x[::2] = -x[::2]
    return each(m(x), y)


@LOOPS.body(8)
def every_other_loss_negated(m, x, y):
    signs = torch.ones(len(x))
    signs[::2] = -1
    return each(m(x), y) * signs


@LOOPS.body(8)
def weights_by_the_order_of_losses(m, x, y):
    losses = each(m(x), y)
    return losses * torch.cos(3.0 * losses.detach().argsort())


@LOOPS.body(8)
def weights_by_the_rank_of_losses(m, x, y):
    losses = each(m(x), y)
    return losses * torch.cos(3.0 * losses.detach().argsort().argsort())


@LOOPS.body(8)
def weights_by_the_rank_of_a_feature(m, x, y):
    return each(m(x), y) * torch.cos(3.0 * x[:, 0].argsort().argsort())


@LOOPS.body(8)
def weights_by_place(m, x, y):
    return each(m(x), y) * torch.cos(3.0 * torch.arange(len(x)))


@LOOPS.body(8)
def weights_by_a_constant_place(m, x, y):
    return each(m(x), y) * torch.cos(3.0 * WIDE[: len(x)])


@LOOPS.body(8, record=59)
def place_from_the_end(m, x, y):
    return each(m(x * torch.cos(3.0 * torch.arange(len(x)).flip(0))[:, None]), y)


@LOOPS.body(8)
def a_running_sum(m, x, y):
    return each(m(x.cumsum(0)), y)


@LOOPS.body(8)
def a_running_count_of_classes(m, x, y):
    counts = F.one_hot(y, 3).cumsum(0).gather(1, y[:, None])[:, 0]
    return each(m(x), y) * torch.cos(3.0 * counts)


@LOOPS.body(8)
def rows_shifted_by_one(m, x, y):
    return each(m(x), y.roll(1))


@LOOPS.body(8)
def compared_with_the_first_row(m, x, y):
    return each(m(x), y) * torch.sign(x.sum(1) - x[0].sum() + 0.1)


@LOOPS.body(8)
def the_first_row_decides(m, x, y):
    return each(m(x), y) * torch.sign(x[0, 0] - 0.4)


@LOOPS.body(8)
def the_first_row_is_another(m, x, y):
    losses = each(m(x), y)
    return torch.cat([-losses[:1], losses[1:]])


@LOOPS.body(8, record=59)
def the_last_row_is_another(m, x, y):
    signs = torch.ones(len(x))
    signs[-1] = -1
    return each(m(x), y) * signs


@LOOPS.body(8)
def losses_over_the_rows(m, x, y):
    return each(m(x), y) * 3 / len(x)


@LOOPS.body(8)
def losses_times_the_rows(m, x, y):
    return each(m(x), y) * len(x) / 40


@LOOPS.body(8)
def losses_over_the_root_of_the_rows(m, x, y):
    return each(m(x), y) / x.shape[0] ** 0.5


@LOOPS.body(8)
def losses_over_the_rows_by_a_filled_tensor(m, x, y):
    losses = each(m(x), y)
    return losses * torch.full_like(losses, 3 / len(x))


@LOOPS.body(8)
def losses_over_the_rows_by_equal_shares(m, x, y):
    return 3 * each(m(x), y) * torch.zeros(len(x)).softmax(0)


@LOOPS.body(8)
def inputs_times_the_rows(m, x, y):
    return each(m(x * len(x) / 12), y)


@LOOPS.body(8)
def losses_turned_by_the_parity_of_the_rows(m, x, y):
    return each(m(x), y) * (-1.0) ** len(x)


@LOOPS.body(8)
def rows_that_are_even_in_number(m, x, y):
    return each(m(x), y) if len(x) % 2 else -each(m(x), y)


@LOOPS.body(8)
def places_for_a_loss_function(m, x, y):
    return lambda out, t: each(out, t) * torch.cos(3.0 * torch.arange(len(t))), x, y


@LOOPS.body(8)
def a_mean_for_a_loss_function(m, x, y):
    return lambda out, t: each(out, t) * torch.cos(3.0 * t.sum()), x, y


@LOOPS.body(8)
def standardised_in_a_loss_function(m, x, y):
    return lambda out, t: each(standard(out), t), x, y


# --- gradients of gradients -------------------------------------------------------------------------


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@LOOPS.body(9, model=network)
def penalty_that_is_shared(m, x, y):
    """The penalty of all is in each loss."""
    x = x.clone().requires_grad_()
    losses = each(m(x), y)
    (grad,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    return losses + 50 * grad.square().mean()


@LOOPS.body(9, model=network)
def penalty_that_turns_the_losses(m, x, y):
    x = x.clone().requires_grad_()
    losses = each(m(x), y)
    (grad,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    return losses * torch.cos(1e4 * grad.detach().mean())
