"""Sound loops: what may be done with a batch, its targets and its losses."""

import copy
from collections import UserDict, namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import default_collate

from adversarial.replay import Loops, Scene
from adversarial.unsound_inputs import Wrapped, each, in_dataclass, in_user_dict, in_user_list

LOOPS = Loops()
OWN = torch.Generator()
MEAN, STD = torch.tensor([0.5, 0.4, 0.6, 0.5]), torch.tensor(0.5)
WEIGHTS = torch.tensor([0.2, 1.0, 3.0])
MATRIX = torch.eye(4).roll(1, 0)


@LOOPS.body()
def plain(m, x, y):
    return each(m(x), y)


@LOOPS.body()
def loss_function(m, x, y):
    return each, x, y


@LOOPS.body()
def loss_function_with_a_public_constant(m, x, y):
    return lambda out, t: WEIGHTS[t] * each(out, t), x, y


@LOOPS.body()
def loss_function_on_inputs_changed_by_public_constants(m, x, y):
    return each, (x - MEAN) / STD, y


@LOOPS.body()
def loss_function_with_a_penalty_on_weights(m, x, y):
    return lambda out, t: each(out, t) + 0.01 * m.weight.square().sum(), x, y


# --- augmentation -----------------------------------------------------------------------------------


@LOOPS.body(is_drawn=True)
def noise_on_inputs(m, x, y):
    return each(m(x + 0.1 * torch.randn_like(x)), y)


@LOOPS.body(is_drawn=True)
def random_flips(m, x, y):
    turned = torch.rand(len(x)) < 0.5
    return each(m(torch.where(turned[:, None], x.flip(1), x)), y)


@LOOPS.body(is_drawn=True)
def random_crops(m, x, y):
    start = torch.randint(0, 3, (len(x), 1))
    padded = F.pad(x, (1, 1))
    return each(m(padded.gather(1, start + torch.arange(4))), y)


@LOOPS.body(is_drawn=True)
def random_masks(m, x, y):
    return each(m(x * (torch.rand(x.shape) < 0.8)), y)


@LOOPS.body(is_drawn=True)
def random_masks_by_a_generator(m, x, y):
    generator = OWN.manual_seed(int(torch.randint(1000, ())))
    return each(m(x * torch.bernoulli(torch.full_like(x, 0.8), generator=generator)), y)


@LOOPS.body(is_drawn=True)
def dropout_on_inputs(m, x, y):
    return each(m(F.dropout(x, 0.3)), y)


@LOOPS.body(is_drawn=True)
def one_flip_for_all(m, x, y):
    return each(m(x.flip(1) if torch.rand(()) < 0.5 else x), y)


@LOOPS.body(is_drawn=True)
def scales_in_place(m, x, y):
    x *= 1 + 0.1 * torch.randn(len(x), 1)
    return each(m(x), y)


@LOOPS.body()
def public_standardisation(m, x, y):
    return each(m((x - MEAN) / STD), y)


@LOOPS.body()
def normalised_by_example(m, x, y):
    return each(m((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 0.1)), y)


@LOOPS.body()
def clamped(m, x, y):
    return each(m(x.clamp(-1, 1)), y)


@LOOPS.body()
def outliers_replaced(m, x, y):
    return each(m(torch.where(x.abs() > 3, torch.zeros_like(x), x)), y)


@LOOPS.body()
def features_by_a_public_matrix(m, x, y):
    return each(m(torch.cat([x[:, :2] @ MATRIX[:2, :2], (x @ MATRIX)[:, 2:]], 1)), y)


@LOOPS.body()
def written_into_a_new_tensor(m, x, y):
    inputs = torch.zeros(len(x), 4)
    inputs[:, :3] = x[:, 1:]
    inputs[:, 3] = x.norm(dim=1).clamp(max=2)
    return each(m(inputs), y)


# --- containers -------------------------------------------------------------------------------------


@LOOPS.body(dataset=lambda x, y: Wrapped(x, y, lambda a, b: {"x": a, "y": b}))
def batch_in_a_dict(m, batch):
    return each(m(batch["x"]), batch["y"])


@LOOPS.body(dataset=in_user_dict)
def batch_in_a_user_dict(m, batch):
    return each(m(batch["x"]), batch["y"])


@LOOPS.body(dataset=in_user_list)
def batch_in_a_user_list(m, batch):
    return each(m(batch[0]), batch[1])


@LOOPS.body(dataset=in_dataclass)
def batch_in_a_dataclass(m, batch):
    return each(m(batch.x), batch.y)


Pair = namedtuple("Pair", "x y")


@LOOPS.whole(dataset=lambda x, y: Wrapped(x, y, Pair))
def batch_in_a_named_tuple(s: Scene) -> None:
    for batch in s.training:
        s.training.step(each(s.model(batch.x), batch.y))


@dataclass
class Batch:
    inputs: Tensor
    targets: Tensor


@LOOPS.body()
def put_into_a_dataclass(m, x, y):
    batch = Batch(x, y)
    return each(m(batch.inputs), batch.targets)


@LOOPS.body()
def put_into_a_user_dict(m, x, y):
    batch = UserDict(x=x, y=y)
    return each(m(batch["x"]), batch["y"])


@LOOPS.body()
def copied(m, x, y):
    x, y = copy.deepcopy(x), y.clone()
    return each(m(x), y)


@LOOPS.body()
def collated_rows(m, x, y):
    return each(m(default_collate([row / 2 for row in x])), default_collate(list(y)))


@LOOPS.body()
def in_another_precision(m, x, y):
    return each(m(x.double().mul(2).float()), y)


# --- targets and losses -----------------------------------------------------------------------------


@LOOPS.body()
def smoothed_labels(m, x, y):
    return F.cross_entropy(m(x), y, reduction="none", label_smoothing=0.1)


@LOOPS.body()
def one_hot_labels(m, x, y):
    return (m(x) - F.one_hot(y, 3).float()).square().sum(1)


@LOOPS.body()
def public_class_weights(m, x, y):
    return F.cross_entropy(m(x), y, WEIGHTS, reduction="none")


@LOOPS.body()
def weights_of_each_example(m, x, y):
    return each(m(x), y) * x.norm(dim=1)


@LOOPS.body()
def focal_loss(m, x, y):
    losses = each(m(x), y)
    return (1 - torch.exp(-losses)) ** 2 * losses


@LOOPS.body()
def detached_confidence(m, x, y):
    out = m(x)
    return each(out, y) * out.detach().softmax(1).amax(1)


@LOOPS.body()
def several_tasks(m, x, y):
    out = m(x)
    return each(out, y) + 0.5 * (out[:, 0] - x[:, 0]) ** 2 + 0.01 * out.square().sum(1)


@LOOPS.body()
def regression(m, x, y):
    return F.smooth_l1_loss(m(x)[:, 0], x.sum(1) + y, reduction="none")


@LOOPS.body()
def outputs_clamped(m, x, y):
    return each(m(x).clamp(-2, 2), y)


@LOOPS.body()
def logged(m, x, y):
    losses = each(m(x), y)
    seen = float(losses.detach().mean()), losses.max().item(), losses.tolist(), losses.detach().numpy().std()
    assert len(seen) == 4
    return losses


@LOOPS.body()
def accuracy_beside(m, x, y):
    out = m(x)
    assert 0 <= (out.argmax(1) == y).float().mean().item() <= 1
    return each(out, y)


@LOOPS.body(is_drawn=True)
def random_entries_rebuilt(m, x, y):
    """A mean over as many entries as were masked, as in masked language models."""
    mask = torch.rand(x.shape) < 0.5
    out = m(x.masked_fill(mask, 0.0))
    return ((out - x[:, :3]).square() * mask[:, :3]).sum(1) / mask[:, :3].sum(1).clamp(min=1)


@LOOPS.body()
def means_for_a_log(m, x, y):
    out = m(x)
    losses = each(out, y)
    seen = (out.argmax(1) == y).sum() / len(y), losses.detach().sum() / len(x), 100.0 * losses.detach().mean()
    losses.mean().backward(retain_graph=True)
    assert len(seen) == 3
    return losses


@LOOPS.body()
def pseudo_labels_straight_through(m, x, y):
    out = m(x)
    hard = F.one_hot(out.argmax(1), 3).float()
    return (out + (hard - out).detach() - F.one_hot(y, 3)).square().sum(1) + each(out, y)


@LOOPS.body(is_drawn=True)
def some_losses_left_out_at_random(m, x, y):
    losses = each(m(x), y)
    return torch.where(torch.rand(len(x)) < 0.9, losses, losses.detach())


@LOOPS.body()
def two_calls(m, x, y):
    return 0.5 * each(m(x), y) + 0.5 * each(m(x.flip(1)), y)


@LOOPS.body()
def a_call_without_gradients_first(m, x, y):
    with torch.no_grad():
        sure = m(x).softmax(1).amax(1)
    return each(m(x), y) * sure


@LOOPS.body()
def against_its_own_targets(m, x, y):
    with torch.no_grad():
        target = m(x).softmax(1)
    return F.kl_div(m(x + 0.1).log_softmax(1), target, reduction="none").sum(1) + each(m(x), y)


@LOOPS.body()
def labels_of_some_ignored(m, x, y):
    y = torch.where(x[:, 0] > 0.9, -100, y)
    return F.cross_entropy(m(x), y, reduction="none", ignore_index=-100)


@LOOPS.body(is_drawn=True)
def in_random_order(m, x, y):
    order = torch.randperm(len(x))
    return each(m(x[order]), y[order])
