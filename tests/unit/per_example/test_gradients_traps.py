"""Traps: models and uses for which other libraries give a wrong sum in silence, or crash. Each is refused or right.

Where a docstring names Opacus, its release 1.6 was seen to do what is said.
"""

import copy
import gc
import random
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from engine_oracle import CrossEntropy, Fn, apart, size, slow_sum
from privet.clipping.clipped_sum import clipped_sum
from privet.errors import InvalidValue, Unsupported
from privet.per_example import forward_record
from privet.per_example.gradients import explain
from privet.per_example.loop_record import recording

R = torch.randn
CLIP = 0.5


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def data(*shape: int, batch: int = 7):
    return R(batch, *shape), torch.randint(3, (batch,))


def mlp(middle: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), middle or nn.Tanh(), nn.Linear(6, 3))


def between(change) -> nn.Module:
    """Two linear layers with a function of what is between them."""
    return Fn(lambda m, x: m.b(change(m.a(x))), a=nn.Linear(4, 6), b=nn.Linear(6, 3))


def is_right(model, batch, loss_fn=CrossEntropy) -> bool:
    true = slow_sum(model, loss_fn, batch, "flat", CLIP)
    return apart(clipped_sum(model, loss_fn, batch, "flat", CLIP).grads, true) <= 1e-5 * size(true)


# --- one example sees another -----------------------------------------------------------------------


class Centred(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)) / (x.std(0) + 1e-5)


@pytest.mark.parametrize(
    "middle",
    [
        nn.BatchNorm1d(6),
        nn.BatchNorm1d(6, affine=False),
        nn.BatchNorm1d(6, track_running_stats=False).eval(),
        Centred(),
    ],
    ids=["batch norm", "without affine", "without statistics, evaluating", "one's own"],
)
def test_batch_statistics_are_refused(middle):
    """Opacus looks for BatchNorm modules with trainable parameters: without them one example moved the sum by 3.3 C."""
    with pytest.raises(Unsupported, match=r"1: .*GroupNorm"):
        clipped_sum(mlp(middle), CrossEntropy, data(4))


def test_frozen_batch_norm_in_training_is_refused():
    """Opacus takes a BatchNorm with frozen parameters for one that does nothing."""
    model = mlp(nn.BatchNorm1d(6))
    model[1].requires_grad_(False)
    with pytest.raises(Unsupported, match=r"1: BatchNorm1d mixes .* 1\.eval\(\)"):
        clipped_sum(model, CrossEntropy, data(4))


def test_batch_norm_that_starts_to_train_later_is_refused():
    """What was found out of a model holds as long as each of its modules stays in its mode."""
    model, batch = mlp(nn.BatchNorm1d(6, affine=False)), data(4)
    model[1].eval()
    assert is_right(model, batch)
    model[1].train()
    with pytest.raises(Unsupported, match="BatchNorm1d"):
        clipped_sum(model, CrossEntropy, batch)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h - h.mean(0),
        lambda h: h - h[:1].detach(),
        lambda h: h - h[-1:].detach(),
        lambda h: h.softmax(0),
        lambda h: h / h.norm(),
        lambda h: h + h.roll(3, 0),
        lambda h: h if len(h) < 5 else h - h.mean(0),
        lambda h: h.sort(0).values,
        lambda h: F.batch_norm(h, None, None, training=True),
        lambda h: h / len(h),
        lambda h: h + torch.arange(len(h))[:, None],
    ],
    ids=[
        "mean",
        "first",
        "last",
        "softmax",
        "norm",
        "roll",
        "large batches only",
        "sort",
        "functional",
        "size",
        "place",
    ],
)
def test_functions_of_the_whole_batch_are_refused(change):
    """Opacus sees modules only: `h - h.mean(0)` in a forward pass goes unnoticed, one example moves all the others."""
    with pytest.raises(Unsupported, match="depends on"):
        clipped_sum(between(change), CrossEntropy, data(4))


def test_a_batch_that_is_no_larger_than_a_trial():
    """Every one of its examples is changed in turn, the last too."""
    with pytest.raises(Unsupported, match="depends on"):
        clipped_sum(between(lambda h: h - h[-1:].detach()), CrossEntropy, data(4, batch=3))


def test_coupling_behind_a_layer_that_starts_at_zero_is_seen():
    """At the first step nothing comes through a layer of zeros; at the second it does."""
    model = between(lambda h: h - h.mean(0))
    nn.init.zeros_(model.b.weight)
    with pytest.raises(Unsupported, match="depends on"):
        clipped_sum(model, CrossEntropy, data(4))


def test_coupling_of_gradients_alone_runs_each_example_alone():
    """Values stay apart, gradients do not: the sum is then made of examples that never meet."""
    model = between(lambda h: h + h.mean(0) - h.mean(0).detach())
    assert is_right(model, data(4))
    assert "do not agree" in explain(model, CrossEntropy, data(4)).whole


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda out, y: CrossEntropy(out, y).mean().expand(len(y)),
        lambda out, y: CrossEntropy(out - out.mean(0), y),
        lambda out, y: CrossEntropy(out, y) / len(y),
        lambda out, y: -(out @ out.T).log_softmax(1).diagonal(),
        lambda out, y: CrossEntropy(out, y) * torch.bincount(y, minlength=3)[y],
    ],
    ids=["mean, spread", "centred", "divided by the batch", "contrastive", "weighted by class counts"],
)
def test_losses_of_several_examples_are_refused(loss_fn):
    """A mean over the realised batch lets one example move the sum by 2 C; a contrastive loss by any amount."""
    with pytest.raises(Unsupported, match="loss of one example depends on"):
        clipped_sum(nn.Linear(4, 3), loss_fn, data(4))


def test_data_written_into_a_buffer_are_refused():
    """Running averages leave with the model, without noise."""

    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(6))

        def forward(self, x):
            self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
            return x

    model = mlp(Running())
    with pytest.raises(Unsupported, match=r"1\.seen: the model writes its data"):
        clipped_sum(model, CrossEntropy, data(4))
    model = Fn(lambda m, x: m.n(x).tanh().mean(2), n=nn.InstanceNorm1d(2, affine=True, track_running_stats=True))
    with pytest.raises(Unsupported, match="track_running_stats"):
        clipped_sum(model, CrossEntropy, data(2, 5))


class Counting(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.count = count
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        self.seen = self.seen + self.count(x)
        return x


def test_a_count_of_examples_in_a_buffer_is_refused_and_of_passes_is_not():
    """The size of a Poisson batch is private, and a buffer is published with the model."""
    with pytest.raises(Unsupported, match=r"1\.seen: the model writes its data"):
        clipped_sum(mlp(Counting(len)), CrossEntropy, data(4))
    steps = mlp(Counting(lambda x: 1))
    clipped_sum(steps, CrossEntropy, data(4))
    assert steps[1].seen == 1  # the trial passes are not counted


def by_recording(model, x, y):
    with recording(model):
        losses = CrossEntropy(model(x), y)
    return clipped_sum(model, losses, ())


def by_function(model, x, y):
    return clipped_sum(model, CrossEntropy, (x, y))


BOTH_WAYS = pytest.mark.parametrize("way", [by_recording, by_function])


@BOTH_WAYS
def test_data_written_into_a_frozen_parameter_are_refused(way):
    """The rows of a frozen table that max_norm had made shorter told which words were there."""

    def averaged(m, x):
        with torch.no_grad():
            m.seen.mul_(0.9).add_(0.1 * x.mean(0))
        return m.l(x)

    table = nn.Embedding(9, 4, max_norm=100.0).requires_grad_(False)  # so large that it shortens none
    model = Fn(lambda m, x: m.l(m.e(x)), e=table, l=nn.Linear(4, 3))
    with pytest.raises(Unsupported, match=r"e\.weight: .* writes into this parameter.*max_norm"):
        way(model, torch.randint(9, (7,)), torch.randint(3, (7,)))
    model = Fn(averaged, l=nn.Linear(4, 3))
    model.seen = nn.Parameter(torch.zeros(4), requires_grad=False)
    with pytest.raises(Unsupported, match=r"seen: .* writes into this parameter"):
        way(model, *data(4))


class Largest(nn.Module):
    """Keeps the largest value; beyond 5 it is the data's."""

    def __init__(self, *, in_place):
        super().__init__()
        self.in_place = in_place
        self.register_buffer("top", torch.full((6,), 5.0))

    def forward(self, x):
        found = torch.maximum(self.top, x.detach().amax(0))
        if self.in_place:
            self.top.copy_(found)
        else:
            self.top = found
        return x


@BOTH_WAYS
@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_only_some_data_move_is_refused_when_they_do(way, in_place):
    """In the trial pass it kept its values. Rewritten with those it has, as cached masks are, it is let be."""
    model, (x, y) = mlp(Largest(in_place=in_place)), data(4)
    way(model, x, y)
    way(model, x, y)
    with pytest.raises(Unsupported, match=r"1\.top: the model wrote into this buffer now"):
        way(model, 1000 * x, y)


@BOTH_WAYS
def test_a_buffer_that_is_written_now_and_then_is_refused(way):
    def lazily(m, x):
        if m.turn:
            m.seen.copy_(x.detach().mean(0))
        return m.l(x)

    model = Fn(lazily, l=nn.Linear(4, 3))
    model.register_buffer("seen", torch.zeros(4))
    model.turn = False
    way(model, *data(4))
    model.seen.fill_(2.0)  # outside of a pass it is the user's
    way(model, *data(4))
    model.turn = True
    with pytest.raises(Unsupported, match="seen: the model wrote into this buffer now"):
        way(model, *data(4))


def test_data_in_what_a_module_saves_of_its_own_are_refused():
    class Remembers(nn.Module):
        def forward(self, x):
            self.seen = x.detach().mean(0)
            return x

        def get_extra_state(self):
            return {"seen": getattr(self, "seen", None)}

    with pytest.raises(Unsupported, match=r"1: get_extra_state\(\)"):
        clipped_sum(mlp(Remembers()), CrossEntropy, data(4))


def test_a_batch_of_one_row_says_nothing_of_larger_ones():
    """One row is never coupled to others, and what was found of it was believed ever after."""

    def contrast(model, x):
        with recording(model):
            out = model(x)
            losses = F.cross_entropy(out @ out.T, torch.arange(len(x)), reduction="none")
        return clipped_sum(model, losses, ())

    model = nn.Linear(4, 3)
    assert contrast(model, R(1, 4)).raw_batch_size == 1
    with pytest.raises(Unsupported, match="depends on"):
        contrast(model, R(7, 4))
    alone = between(lambda h: h - h.mean(0) if len(h) > 3 else h)  # which batches of three do not show
    assert clipped_sum(alone, CrossEntropy, data(4, batch=2)).raw_batch_size == 2
    with pytest.raises(Unsupported, match="depends on"):
        clipped_sum(alone, CrossEntropy, data(4))


def test_losses_that_only_look_alike_are_looked_at_each():
    """Means over dimension 1 and 0 have one name in autograd's graph."""
    model = nn.Linear(7, 7)
    for dim in (1, 0):
        with recording(model):
            losses = (model(R(7, 7)) ** 2).mean(dim)
        if dim:
            clipped_sum(model, losses, ())
    with pytest.raises(Unsupported, match="depends on"):
        clipped_sum(model, losses, ())


def test_outputs_without_a_second_dimension():
    """One number for each example; a loss over several of them is still found out."""
    model, (x, _) = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), data(4)
    with recording(model):
        losses = model(x).square()
    assert clipped_sum(model, losses, ()).raw_batch_size == len(x)
    with recording(model):
        out = model(x)
        losses = (out - out.mean()).square()
    with pytest.raises(Unsupported, match="depends on"):
        clipped_sum(model, losses, ())


def test_a_buffer_that_follows_the_weights_is_let_be():
    """Spectral norm in training iterates on a buffer from the weights alone; the trial passes leave no trace in it."""
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    before = copy.deepcopy(model.state_dict())
    explain(model, CrossEntropy, data(4))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# --- data that decide -------------------------------------------------------------------------------


def test_rows_chosen_by_the_data_are_not_taken_for_others():
    """As many rows as before, but not as many of each example: by shape alone they look alike."""

    def chosen(m, x):
        mask = x != 0
        return torch.zeros(len(x), 3).index_add(0, mask.nonzero()[:, 0], m.l(m.e(x[mask])))

    model = Fn(chosen, e=nn.Embedding(9, 4), l=nn.Linear(4, 3))
    full = torch.randint(1, 9, (4, 4))
    short = full.clone()
    short[0, 1:] = short[1, 3:] = 0  # 12 rows of 4 examples, 1 of the first
    y = torch.tensor([0, 1, 2, 0])
    assert is_right(model, (full, y))
    assert is_right(model, (short, y))


def test_a_branch_on_the_data_runs_each_example_alone():
    """A batch-wide maximum decides: harmless with the first batch, not with the second."""
    model = between(lambda h: h / h.abs().max() if h.abs().max() > 5 else h)
    x, y = data(4)
    assert is_right(model, (0.1 * x, y))
    assert is_right(model, (10 * x, y))
    assert "path depends on the data" in explain(model, CrossEntropy, (x, y)).whole


def test_a_layer_left_out_in_some_batches():
    """Opacus raises an AttributeError, or takes the gradient of the step before, when a layer was skipped."""
    model = Fn(
        lambda m, x: m.b(m.c(m.a(x)).tanh() if m.deep else m.a(x)),
        a=nn.Linear(4, 4),
        c=nn.Linear(4, 4),
        b=nn.Linear(4, 3),
    )
    for deep in (True, False, True):
        model.deep = deep
        assert is_right(model, data(4))
    assert float(clipped_sum(model, CrossEntropy, data(4)).grads["c.weight"].norm()) > 0
    model.deep = False
    assert float(clipped_sum(model, CrossEntropy, data(4)).grads["c.weight"].norm()) == 0


def test_random_layer_drop_leaves_the_random_numbers_alone():
    """The trial passes draw numbers of their own."""
    model = Fn(lambda m, x: m.b(m.c(x) if random.random() < 0.5 else x), c=nn.Linear(4, 4), b=nn.Linear(4, 3))
    random.seed(3)
    before = random.getstate()
    assert [explain(copy.deepcopy(model), CrossEntropy, data(4)).whole for _ in range(4)] == [""] * 4
    assert random.getstate() == before


def test_calls_of_one_layer_in_two_layouts_stay_told_apart():
    """The number of steps changes, and with it which call is which: the sizes alone would allow the wrong reading."""

    def forward(m, x):
        steps = sum(m.l(x[:, t]).tanh() for t in range(x.shape[1]))
        return steps + m.l(x.transpose(0, 1)).tanh().mean(0)

    model = Fn(forward, l=nn.Linear(3, 3))
    for length in (4, 6, 2, 3):
        assert is_right(model, data(length, 3, batch=3))


# --- parameters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 9])
def test_positions_without_a_batch_dimension(batch):
    """Opacus takes the first dimension of position ids for the examples, also where it only happens to be as long."""
    model = Fn(
        lambda m, x: m.l((m.e(x) + m.p(torch.arange(x.shape[1]))).tanh().mean(1)),
        e=nn.Embedding(9, 4), p=nn.Embedding(9, 4), l=nn.Linear(4, 3),
    )  # fmt: skip
    for length in (batch, 3, 2):
        assert is_right(model, (torch.randint(9, (batch, length)), torch.randint(3, (batch,))))


def test_uses_of_one_parameter_are_added_before_the_norm():
    """Through F.linear Opacus misses a use, or counts two as two parameters: one example contributed 26.6 C."""
    model = Fn(lambda m, x: F.linear(F.linear(x, m.w).tanh(), m.w.T) + F.linear(x, m.w.T @ m.w), w=5 * R(6, 3))
    x, y = data(3)
    found = clipped_sum(model, CrossEntropy, (x[:1], y[:1]), "flat", CLIP)
    assert size(found.grads) <= CLIP
    assert is_right(model, (x, y))


def test_padding_of_every_kind():
    """Opacus unfolds with zeros whatever the padding mode says."""
    for mode in ("circular", "reflect", "replicate"):
        layer = nn.Conv1d(2, 3, 3, padding=2, padding_mode=mode)
        assert is_right(Fn(lambda m, x: m.c(x).tanh().mean(2), c=layer), data(2, 5))


def test_words_that_pad_get_nothing():
    """Opacus gives the row of padding_idx a gradient, which PyTorch does not."""
    model = Fn(lambda m, x: m.l(m.e(x).mean(1)), e=nn.Embedding(5, 4, padding_idx=0), l=nn.Linear(4, 3))
    batch = torch.randint(2, (7, 6)), torch.randint(3, (7,))
    assert is_right(model, batch)
    assert not clipped_sum(model, CrossEntropy, batch).grads["e.weight"][0].any()


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_that_read_the_batch_are_refused(options):
    """Both options let an example's words change what others do."""
    model = Fn(lambda m, x: m.e(x).mean(1), e=nn.Embedding(9, 3, **options))
    with pytest.raises(Unsupported, match=next(iter(options))):
        clipped_sum(model, CrossEntropy, (torch.randint(9, (5, 4)), torch.randint(3, (5,))))


def test_parameters_indexed_by_the_place_in_the_batch_are_refused():
    """Examples then depend on who else was drawn."""
    with pytest.raises(Unsupported, match="place"):
        clipped_sum(Fn(lambda m, x: x[:, :3] * m.p[torch.arange(len(x))], p=R(9, 3)), CrossEntropy, data(4))


class Hidden(torch.autograd.Function):
    """A product that no torch function announces."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.T @ x


def test_parameters_inside_a_custom_function_are_not_lost():
    """Also where the layer above starts at zero, so that at first no gradient comes through to compare with."""
    model = Fn(lambda m, x: m.b(Hidden.apply(x, m.w)), w=R(6, 4), b=nn.Linear(6, 3))
    nn.init.zeros_(model.b.weight)
    batch = data(4)
    assert is_right(model, batch)
    nn.init.normal_(model.b.weight)
    assert is_right(model, batch)


def test_a_first_batch_that_shows_nothing_settles_nothing():
    """No gradient of it is finite, so the rules cannot be compared with autograd: that is done with the next batch."""
    model = Fn(lambda m, x: Hidden.apply(x, m.w) / x[:, :1].abs(), w=R(3, 4))
    x, y = data(4)
    nothing = x.clone()
    nothing[:, 0] = 0
    assert size(clipped_sum(model, CrossEntropy, (nothing, y)).grads) == 0
    assert is_right(model, (x, y))


def test_weight_decay_inside_the_loss():
    """The loss may use parameters too: each example then has the whole penalty."""
    model = nn.Linear(4, 3)
    assert is_right(model, data(4), lambda out, y: CrossEntropy(out, y) + 0.1 * model.weight.square().sum())


@pytest.mark.parametrize("small", [0, 1 << 20])
@pytest.mark.parametrize("source", ["a leaf", "another model", "inside"])
def test_data_that_need_gradients_of_their_own(monkeypatch, small, source):
    """What lies below is not the model's: no gradient may be lost for it, large or small."""
    monkeypatch.setattr(forward_record, "SMALL", small)
    x, y = data(4)
    if source != "inside":
        x = x.requires_grad_() if source == "a leaf" else nn.Linear(4, 4)(x)
    inside = source == "inside"
    model = Fn(lambda m, x: m.a(x) * m.b(x.requires_grad_() if inside else x), a=nn.Linear(4, 3), b=nn.Linear(4, 3))
    assert is_right(model, (x, y))
    assert explain(model, CrossEntropy, (x, y)).whole == ""


def test_complex_parameters_are_refused():
    """Their imaginary part would be left out without a word."""
    model = Fn(lambda m, x: (x.to(torch.complex64) @ m.w).abs(), w=R(4, 3, dtype=torch.complex64))
    with pytest.raises(Unsupported, match="w: complex"):
        clipped_sum(model, CrossEntropy, data(4))


def test_an_input_changed_in_place_is_refused():
    """PyTorch notices for its own gradients; a layer's kept input is not one of those."""

    def forward(m, x):
        x = x.clone()
        out = m.l(x)
        x.zero_()
        return out

    with pytest.raises(Unsupported, match="changed in place"):
        clipped_sum(Fn(forward, l=nn.Linear(4, 3)), CrossEntropy, data(4))


def test_in_place_activations():
    """Opacus asks for them to be replaced."""
    assert is_right(
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(True), nn.Linear(5, 5), nn.ELU(inplace=True), nn.Linear(5, 3)), data(4)
    )


# --- values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("rows", [slice(0, 3), slice(4, 5), slice(0, 7)])
def test_an_example_that_is_not_finite_counts_as_zero(value, rows):
    """In Opacus one NaN example makes every parameter NaN: 0 times NaN is NaN."""
    model, (x, y) = mlp(), data(4)
    spoilt = x.clone()
    spoilt[rows] = value
    kept = [i for i in range(7) if i not in range(7)[rows]]
    found = clipped_sum(model, CrossEntropy, (spoilt, y), "flat", CLIP).grads
    true = slow_sum(model, CrossEntropy, (x[kept], y[kept]), "flat", CLIP)
    assert apart(found, true) <= 1e-5 * max(size(true), CLIP)
    assert is_right(model, (x, y))  # and the model is not taken for what it was with such examples


@pytest.mark.parametrize("scale", [3e20, 1e30, 1e37])
def test_an_example_too_large_for_a_square_in_float32(scale):
    """3e20 squared is no float32: its norm is taken in float64, and it is clipped like any other."""
    model, (x, y) = nn.Linear(4, 3), data(4)
    x[2] = scale * R(4)
    assert is_right(model, (x, y))


@pytest.mark.parametrize(("length", "scale"), [(2, 1e6), (16, 1e5), (20, 1e8), (64, 1e10), (20, 1e12)])
def test_positions_that_cancel_stay_within_the_bound(length, scale):
    """From Gram matrices the norm of a gradient that cancels is all rounding: too small by any factor."""
    signs = torch.tensor([1.0, -1.0] * (length // 2))[:, None]
    model = Fn(lambda m, x: (m.l(x) * signs).sum(1), l=nn.Linear(200, 150, bias=False))
    x, y = 0.1 * R(3, length, 200), torch.randint(3, (3,))
    nearly = scale * R(1, 1, 200) * (1 + 3e-7 * torch.arange(length)[:, None])
    without = clipped_sum(model, CrossEntropy, (x, y), "flat", 1.0).grads
    with_it = clipped_sum(model, CrossEntropy, (torch.cat([x, nearly]), torch.cat([y, y[:1]])), "flat", 1.0).grads
    assert apart(with_it, without) <= 1 + 1e-6


def test_many_equal_numbers_have_the_right_norm():
    """torch adds them one after the other: at sixteen million it is off by a hundredth, on the wrong side."""
    model = Fn(
        lambda m, x: (
            (m.w * x[:, :1]).mean(1, keepdim=True) * torch.ones(3) * 0 + (m.w * x).sum(1)[:, None] * torch.ones(3)
        ),
        w=torch.zeros(1 << 20),
    )
    x, y = torch.full((1, 1), 0.1), torch.zeros(1, dtype=torch.int64)
    found = clipped_sum(model, lambda out, y: out[:, 0], (x, y), "flat", 1.0)
    assert float(found.raw_norms[0]) == pytest.approx(0.1 * 1024, rel=1e-6)


# --- uses of the library ----------------------------------------------------------------------------


def test_an_empty_batch_is_zero():
    """Opacus fails on the first layer; a Poisson sample may well be empty."""
    found = clipped_sum(mlp(), CrossEntropy, data(4, batch=0), "per_layer", CLIP)
    assert size(found.grads) == 0
    assert (found.raw_batch_size, found.l2_bound) == (0, CLIP)


def test_dropout_draws_what_plain_training_draws():
    """With the same seed and a clip that nothing reaches, the sum is the gradient of plain training."""
    model, (x, y) = mlp(nn.Dropout(0.5)), data(4)
    clipped_sum(model, CrossEntropy, (x, y))  # the trial passes are made here
    torch.manual_seed(5)
    found = clipped_sum(model, CrossEntropy, (x, y), "flat", 1e6).grads
    torch.manual_seed(5)
    true = torch.autograd.grad(CrossEntropy(model(x), y).sum(), list(model.parameters()))
    assert apart(found, dict(zip(found, true, strict=True))) < 1e-5


def test_the_first_call_leaves_no_trace():
    """Weights, buffers, gradients, modes and random numbers are as they were."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6).eval(), nn.Dropout(), nn.Linear(6, 3))
    before = copy.deepcopy(model.state_dict())
    batch = data(4)
    state = torch.get_rng_state()
    explain(model, CrossEntropy, batch)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [m.training for m in model] == [True, False, True, True]
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_an_error_inside_the_model_leaves_plain_parameters():
    """The class of the parameters is changed for the time of a pass only."""

    def forward(m, x):
        out = m.l(x)
        if m.is_broken:
            raise ArithmeticError("broken")
        return out

    model = Fn(forward, l=nn.Linear(4, 3))
    for model.is_broken in (True, False, True):
        if model.is_broken:
            with pytest.raises(ArithmeticError):
                model.other = clipped_sum(model, CrossEntropy, data(4))
        else:
            assert is_right(model, data(4))
        assert type(model.l.weight) is nn.Parameter


def test_changes_between_steps_are_followed():
    """Frozen, thawed, copied, evaluated: each time the sum is that of the model as it is."""
    model, batch = mlp(nn.Dropout(0.0)), data(4)
    assert is_right(model, batch)
    model[0].weight.requires_grad_(False)
    assert is_right(model, batch)
    assert "0.weight" not in clipped_sum(model, CrossEntropy, batch).grads
    model[0].weight.requires_grad_(True)
    assert is_right(copy.deepcopy(model).eval(), batch)
    assert is_right(model, data(4, batch=3))


def test_models_train_side_by_side_in_threads():
    """Each thread is told of its own model's parameters only: they meet in the middle of every pass."""
    meeting = threading.Barrier(2, timeout=120)

    def forward(m, x):
        h = m.a(x)
        meeting.wait()
        return m.b(h.tanh())

    models = [Fn(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3)) for _ in range(2)]
    batch, found = data(4), {}

    def work(which):
        found[which] = [clipped_sum(models[which], CrossEntropy, batch, "flat", CLIP).grads for _ in range(2)][-1]

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for which, model in enumerate(models):
        model._forward = lambda m, x: m.b(m.a(x).tanh())
        true = slow_sum(model, CrossEntropy, batch, "flat", CLIP)
        assert apart(found[which], true) <= 1e-5 * size(true)
        assert explain(model, CrossEntropy, batch).whole == ""  # what was found out in the threads


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_clipped_in_full(dtype):
    """Norms and sums are in float32: the bound holds as it does there."""
    model, (x, y) = mlp().to(dtype), data(4)
    found = clipped_sum(model, lambda out, y: CrossEntropy(out.float(), y), (x[:1].to(dtype), y[:1]), "flat", 1e-3)
    assert all(grad.dtype == torch.float32 for grad in found.grads.values())
    assert size(found.grads) == pytest.approx(1e-3, rel=1e-5)
    assert size(found.grads) <= 1e-3 * (1 + 1e-6)


def test_autocast_is_no_reason_to_run_each_example_alone():
    """Products of the model in bfloat16 are rough, and so is autograd there."""
    model, (x, y) = mlp(), data(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert explain(model, rough_loss, (x, y)).whole == ""
        found = clipped_sum(model, rough_loss, (x, y), "flat", CLIP).grads
        true = slow_sum(model, rough_loss, (x, y), "flat", CLIP)
    assert apart(found, true) <= 0.02 * size(true)


def rough_loss(out, y):
    return CrossEntropy(out.float(), y)


def test_autocast_does_not_reach_norms_and_sums():
    """Rounding a sum of many to bfloat16 would let one example move it by more than its clip."""
    model, (x, y) = mlp(), data(4, batch=40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = clipped_sum(model, rough_loss, (x, y), "flat", CLIP).grads
        ones = [clipped_sum(model, rough_loss, (x[b : b + 1], y[b : b + 1]), "flat", CLIP).grads for b in range(40)]
    assert apart(found, {name: sum(one[name] for one in ones) for name in found}) <= 1e-5 * size(found)


def test_another_loss_is_looked_at_anew():
    """The first loss keeps the examples apart, the second does not."""
    model, batch = nn.Linear(4, 3), data(4)
    assert is_right(model, batch)
    with pytest.raises(Unsupported, match="depends on"):
        clipped_sum(model, lambda out, y: CrossEntropy(out - out.mean(0), y), batch)


def test_a_forced_loop_does_not_write_data_into_buffers():
    """One image alone has batch statistics too, and they go into the running mean without noise."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 3))
    with pytest.raises(Unsupported, match="BatchNorm2d"):
        clipped_sum(model, CrossEntropy, data(1, 5, 5), force="loop")


@pytest.mark.parametrize(
    ("batch", "word"),
    [
        ((R(3, 4), torch.zeros(2)), "sizes"),
        ((R(3, 4),), "pair"),
        ((R(3, 4), torch.tensor(1)), "sizes"),
    ],
)
def test_batches_that_are_none(batch, word):
    """Every tensor has its examples along dimension 0, as many in each."""
    with pytest.raises(InvalidValue, match=word):
        clipped_sum(nn.Linear(4, 3), CrossEntropy, batch)


def test_a_mean_loss_is_no_loss_per_example():
    """Opacus undoes the mean by multiplying with the batch size; here the loss says what it is."""
    with pytest.raises(InvalidValue, match="reduction='none'"):
        clipped_sum(nn.Linear(4, 3), nn.CrossEntropyLoss(), data(4))


def test_nothing_of_a_step_stays_in_memory():
    """Hooks on autograd's nodes make circles that Python's collector cannot see; a step must leave none."""
    alive: list[weakref.ref[object]] = []

    class Held:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

    def pack(value: torch.Tensor) -> Held:
        held = Held(value)
        alive.append(weakref.ref(held))
        return held

    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 40),
                          nn.LayerNorm(40), nn.Linear(40, 3))  # fmt: skip
    loss, batch = nn.CrossEntropyLoss(reduction="none"), (torch.randn(64, 1, 8, 8), torch.randint(3, (64,)))
    clipped_sum(model, loss, batch)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.value):
        clipped_sum(model, loss, batch)
    gc.collect()
    assert alive
    assert not [ref for ref in alive if ref() is not None]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, when it is loaded
def test_a_compiled_model_is_run_uncompiled_and_says_so():
    """Compiled code would hide how parameters are used."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    batch = torch.randn(7, 4), torch.randint(3, (7,))
    plain = clipped_sum(model, CrossEntropy, batch)
    with pytest.warns(UserWarning, match=r"torch\.compile is bypassed"):
        found = clipped_sum(torch.compile(model), CrossEntropy, batch)
    assert all(torch.equal(found.grads[name], grad) for name, grad in plain.grads.items())
    model.compile()
    assert torch.equal(clipped_sum(model, CrossEntropy, batch).grads["0.weight"], plain.grads["0.weight"])
