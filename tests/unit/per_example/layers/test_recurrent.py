"""Recurrent layers: per-example gradients against one example at a time, for every shape of layer PyTorch has."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from privet.clipping.clipped_sum import clipped_sum
from privet.errors import Unsupported
from privet.per_example.layers import recurrent
from privet.per_example.layers.base import NoLayerRule
from privet.per_example.layers.recurrent_sweep import Gru, Lstm, RecurrentPass, ReluRnn, Rnn, Weights, run_recurrent

IN, H, T = 4, 5, 3
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
KINDS: dict[str, tuple[Callable[..., nn.Module], type[RecurrentPass]]] = {
    "lstm": (nn.LSTM, Lstm),
    "gru": (nn.GRU, Gru),
    "rnn": (nn.RNN, Rnn),
    "relu": (partial(nn.RNN, nonlinearity="relu"), ReluRnn),
}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell, "relu": partial(nn.RNNCell, nonlinearity="relu")}
loss_fn = nn.CrossEntropyLoss(reduction="none")

pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
    pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching"),
]


class Reader(nn.Module):
    """A recurrent layer whose outputs and last states all enter the loss; inputs are (B, T, I)."""

    def __init__(self, kind: str = "lstm", **options: Any) -> None:
        super().__init__()
        self.layer = KINDS[kind][0](IN, H, **options)
        width = (options.get("proj_size") or H) * (1 + bool(options.get("bidirectional")))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        first = self.layer.batch_first
        hx = () if not states else (tuple(states) if len(states) > 1 else states[0],)
        out, last = self.layer(x if first else x.transpose(0, 1), *hx)
        out = out if first else out.transpose(0, 1)
        last = sum(s.tanh().sum((0, 2)) * k for k, s in enumerate(last if isinstance(last, tuple) else (last,), 1))
        return self.head(out).tanh().sum(1) + last[:, None] * torch.tensor([0.5, -0.3, 0.1], dtype=x.dtype)


def batch(size: int, dtype: torch.dtype = torch.float64, length: int = T) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, length, IN, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(3, (size,), generator=generator)


def one_at_a_time(model: nn.Module, x: Any, y: Tensor) -> list[dict[str, Tensor]]:
    """The gradients of each example, the slow, obvious way."""
    parts = x if isinstance(x, tuple) else (x,)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = []
    for b in range(len(y)):
        losses = loss_fn(model(*(t[b : b + 1] for t in parts)), y[b : b + 1])
        grads = torch.autograd.grad(losses.sum(), list(named.values()), materialize_grads=True, allow_unused=True)
        found.append(dict(zip(named, grads, strict=True)))
    return found


def check(model: nn.Module, x: Any, y: Tensor, *, fast: bool = True) -> None:
    """The clipped sum and the norms are those of one example at a time, with half of the examples clipped."""
    each = one_at_a_time(model, x, y)
    norms = torch.stack([torch.stack([g.norm() for g in grads.values()]).norm() for grads in each])
    clip = float(norms.median())
    factors = (clip / norms).clamp(max=1)
    with watching(len(y)) as calls:
        found = clipped_sum(model, loss_fn, (x, y), clipping_norm=clip)
    tolerance = TOLERANCE[norms.dtype]
    torch.testing.assert_close(found.raw_norms, norms, rtol=tolerance, atol=0)
    for name in each[0]:
        wanted = torch.stack([f * grads[name] for f, grads in zip(factors, each, strict=True)]).sum(0)
        torch.testing.assert_close(found.grads[name], wanted, rtol=tolerance, atol=tolerance * float(wanted.norm()))
    assert bool(calls) == fast


@contextmanager
def watching(size: int) -> Iterator[list[Any]]:
    """Filled where the rules here do the work for a batch of `size`; empty where each example is run alone."""
    calls: list[Any] = []
    real = recurrent._layer_gradients

    def noted(use: Any, grads: Any, batch_dim: int) -> Any:
        calls.extend([use] if use.batch == size else [])
        return real(use, grads, batch_dim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent, "_layer_gradients", noted)
        yield calls


def combinations() -> list[Any]:
    """All of them: a third, in which any two choices meet, in each run of the tests, the others in the long one."""
    found = []
    for number, options in enumerate(itertools.product(KINDS, (1, 2), *[(False, True)] * 3)):
        few = (number // 16 + number // 8 + number) % 3 == 0
        found.append(pytest.param(*options, marks=[] if few else pytest.mark.prove))
    return found


@pytest.mark.parametrize(("kind", "layers", "both", "first", "bias"), combinations())
def test_every_layer_is_exact(kind, layers, both, first, bias):
    torch.manual_seed(0)
    model = Reader(kind, num_layers=layers, bidirectional=both, batch_first=first, bias=bias).double()
    check(model, *batch(5))


@pytest.mark.parametrize(("layers", "both", "bias"), [(1, False, True), (2, True, True), (2, False, False)])
def test_projections_are_exact(layers, both, bias):
    torch.manual_seed(0)
    model = Reader("lstm", num_layers=layers, bidirectional=both, bias=bias, proj_size=2, batch_first=True).double()
    check(model, *batch(5))


@pytest.mark.parametrize(("kind", "size"), [("lstm", 1), ("gru", 2), ("lstm", 7), ("gru", 64)])
def test_single_precision_at_any_batch_size(kind, size):
    torch.manual_seed(0)
    check(Reader(kind, num_layers=2, bidirectional=True), *batch(size, torch.float32))


def test_no_example_gives_zero():
    model = Reader("gru")
    found = clipped_sum(model, loss_fn, batch(0, torch.float32))
    assert found.raw_batch_size == 0
    assert all(not bool(grad.any()) for grad in found.grads.values())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_computes_what_pytorch_computes(kind, dtype, tolerance):
    torch.manual_seed(0)
    make, sweep = KINDS[kind]
    layer = make(IN, H).to(dtype)
    x = torch.randn(9, 6, IN, dtype=dtype, requires_grad=True)
    first = [torch.randn(6, H, dtype=dtype, requires_grad=True) for _ in range(2 if kind == "lstm" else 1)]
    out, last = layer(x, tuple(s[None] for s in first) if len(first) == 2 else first[0][None])
    wanted = [out, *(s[0] for s in (last if isinstance(last, tuple) else (last,)))]
    (found), _ = run_recurrent(sweep(Weights(*layer.parameters()), reverse=False), x, first[0], (*first, None)[1])
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)
    pull = [torch.randn_like(t) for t in wanted]
    grads = [torch.autograd.grad(outs, [x, *first], pull, retain_graph=True) for outs in (found, wanted)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("kind", ["lstm", "rnn"])
def test_dropout_between_layers_uses_pytorchs_random_numbers(kind):
    """With one seed the masks are PyTorch's own, so without clipping the sum is the gradient of the whole batch."""
    torch.manual_seed(0)
    model, (x, y) = Reader(kind, num_layers=3, dropout=0.4, bidirectional=True).double(), batch(6)
    clipped_sum(model, loss_fn, (x, y), clipping_norm=1e9)  # what is found out of the model draws numbers of its own
    torch.manual_seed(5)
    found = clipped_sum(model, loss_fn, (x, y), clipping_norm=1e9)
    torch.manual_seed(5)
    wanted = torch.autograd.grad(loss_fn(model(x), y).sum(), list(model.parameters()))
    for grad, true in zip(found.grads.values(), wanted, strict=True):
        torch.testing.assert_close(grad, true, rtol=1e-9, atol=1e-12)
    other = clipped_sum(model, loss_fn, (x, y), clipping_norm=1e9)  # a fresh mask
    assert not torch.allclose(other.grads["head.weight"], found.grads["head.weight"], rtol=1e-4)
    model.eval()
    check(model, x, y)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_states_given_with_the_batch(kind):
    torch.manual_seed(0)

    class Given(Reader):
        def forward(self, x: Tensor, *states: Tensor) -> Tensor:
            return super().forward(x, *(s.transpose(0, 1) for s in states))

    model, (x, y) = Given(kind, num_layers=2).double(), batch(5)
    states = [torch.randn(5, 2, H, dtype=torch.float64) for _ in range(2 if kind == "lstm" else 1)]
    check(model, (x, *states), y)


@pytest.mark.parametrize("kind", ["lstm", "rnn"])
def test_states_that_are_learned(kind):
    torch.manual_seed(0)

    class Learned(Reader):
        def __init__(self) -> None:
            super().__init__(kind)
            self.start = nn.ParameterList(nn.Parameter(torch.randn(1, 1, H)) for _ in range(2 if kind == "lstm" else 1))

        def forward(self, x: Tensor, *states: Tensor) -> Tensor:
            return super().forward(x, *(p.expand(1, len(x), H).contiguous() for p in self.start))

    check(Learned().double(), *batch(5))


@pytest.mark.parametrize(("kind", "bias"), [*((kind, True) for kind in CELLS), ("gru", False)])
def test_cells_in_a_loop(kind, bias):
    torch.manual_seed(0)

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = CELLS[kind](IN, H, bias=bias), nn.Linear(H, 3)

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for t in range(x.shape[1]):
                state = self.cell(x[:, t], state)
            return self.head(state[0] + state[1] if isinstance(state, tuple) else state)

    check(Loop().double(), *batch(5))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_layer_used_twice_adds_its_gradients_before_the_norm(kind):
    torch.manual_seed(0)

    class Twice(Reader):
        def forward(self, x: Tensor, *states: Tensor) -> Tensor:
            return super().forward(x) + super().forward(x.flip(1) ** 2)

    check(Twice(kind, batch_first=True).double(), *batch(5))


class Packed(Reader):
    """Sequences of different lengths, packed; the last states alone are used."""

    ordered = False

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=self.ordered)
        out, last = self.layer(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        return self.head(out.sum(1) + (last[0] if isinstance(last, tuple) else last)[-1])


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [*((kind, [2, 3, 1, 3, 1]) for kind in KINDS), ("lstm", [3, 3, 3, 3, 3]), ("gru", [3, 3, 3, 1, 2])],
)
def test_packed_sequences_run_example_by_example(kind, lengths):
    """Rows of a packed sequence are in an order of its own: even equal lengths at first must not be relied on."""
    torch.manual_seed(0)
    x, y = batch(5)
    check(Packed(kind, batch_first=True).double(), (x, torch.tensor(lengths)), y, fast=False)


def test_a_model_that_packs_from_some_time_on():
    """What was found out of it no longer holds."""
    torch.manual_seed(0)

    class Later(Packed):
        packs = False

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return super().forward(x, lengths) if self.packs else Reader.forward(self, x)

    model, (x, y) = Later("gru", batch_first=True).double(), batch(5)
    for model.packs in (False, True):
        check(model, (x, torch.tensor([3, 3, 3, 2, 1])), y, fast=not model.packs)


def test_several_sequences_to_an_example():
    """A reader of sentences, three to each example."""
    torch.manual_seed(0)

    class Sentences(Reader):
        def forward(self, x: Tensor, *states: Tensor) -> Tensor:
            start = torch.tanh(x[:, :, 0, :1]).expand(-1, -1, H).reshape(1, -1, H)
            return super().forward(x.flatten(0, 1), start).unflatten(0, (-1, 3)).sum(1)

    x = torch.randn(5, 3, T, IN, dtype=torch.float64)
    check(Sentences("gru", batch_first=True).double(), x, batch(5)[1])


def test_frozen_weights_have_no_gradient():
    torch.manual_seed(0)
    model = Reader("lstm", num_layers=2).double()
    model.layer.weight_hh_l0.requires_grad_(False)
    model.layer.bias_ih_l1.requires_grad_(False)
    check(model, *batch(5))
    assert "layer.weight_hh_l0" not in clipped_sum(model, loss_fn, batch(5)).grads


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(("length", "wide"), [(2, 40), (12, 40), (40, 3)])
def test_norms_by_gram_matrices_and_by_gradients(kind, length, wide):
    """Short sequences through a wide layer take Gram matrices, long ones the gradients themselves."""
    torch.manual_seed(0)
    model = nn.Sequential(KINDS[kind][0](IN, wide, batch_first=True), Last(), nn.Linear(wide, 3))
    for dtype in (torch.float64, torch.float32):
        check(model.to(dtype), *batch(5, dtype, length))


class Last(nn.Module):
    def forward(self, found: tuple[Tensor, Any]) -> Tensor:
        return found[0][:, -1]


def test_a_gram_norm_whose_positions_cancel_is_not_too_small():
    """g_t a_t^T of opposite signs leave a millionth: in single precision the Gram matrix alone would keep nothing."""
    torch.manual_seed(0)
    a, g = torch.randn(3, 1, 30), torch.randn(3, 1, 30)
    a, g = torch.cat([a, a * (1 + 1e-6)], 1), torch.cat([g, -g], 1)
    share = recurrent.OverTime(a, g, gates=recurrent.Gates(g, 30))
    true = (g.double().mT @ a.double()).flatten(1).square().sum(1)
    assert share.gates is not None
    assert share.gates.prefers_gram
    torch.testing.assert_close(share.squared_norms().double(), true, rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_broken_example_counts_as_zero(kind):
    torch.manual_seed(0)
    model, (x, y) = Reader(kind).double(), batch(4)
    broken = x.clone()
    broken[2, 1, 0] = float("nan")
    keep = [0, 1, 3]
    found, wanted = clipped_sum(model, loss_fn, (broken, y)), clipped_sum(model, loss_fn, (x[keep], y[keep]))
    for name, grad in wanted.grads.items():
        torch.testing.assert_close(found.grads[name], grad)


@pytest.mark.parametrize("kind", ["gru", "rnn"])
def test_outputs_may_be_changed_in_place(kind):
    torch.manual_seed(0)

    class Changed(Last):
        def forward(self, found: tuple[Tensor, Any]) -> Tensor:
            out, last = found
            last.mul_(3.0)
            return out.mul_(2.0).relu_().sum(1) + last[0]

    check(nn.Sequential(KINDS[kind][0](IN, H, batch_first=True), Changed(), nn.Linear(H, 3)).double(), *batch(4))


def test_sequences_that_run_over_the_examples_are_refused():
    """batch_first forgotten: the layer reads the examples one after the other."""
    model = nn.Sequential(nn.LSTM(IN, H), Last(), nn.Linear(H, 3))
    with pytest.raises(Unsupported, match="depends on the other"):
        clipped_sum(model, loss_fn, batch(4, torch.float32, length=6))


def test_half_precision_is_summed_in_single():
    torch.manual_seed(0)
    model, (x, y) = Reader("lstm", num_layers=2).bfloat16(), batch(6, torch.bfloat16)
    found = clipped_sum(model, loss_fn, (x, y), clipping_norm=1e9)
    each = one_at_a_time(model.double(), x.double(), y)
    for name, grad in found.grads.items():
        exact = torch.stack([grads[name] for grads in each]).sum(0)
        assert grad.dtype == torch.float32
        assert float((grad - exact).norm() / exact.norm()) < 0.05


def test_a_model_that_differentiates_itself_runs_example_by_example():
    torch.manual_seed(0)

    class Penalised(Reader):
        def forward(self, x: Tensor, *states: Tensor) -> Tensor:
            x = x.clone().requires_grad_()
            out = super().forward(x)
            (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return out + grad.square().sum((1, 2))[:, None]

    check(Penalised("gru", batch_first=True).double(), *batch(4), fast=False)


def test_a_sweep_goes_back_once():
    layer = nn.RNN(IN, H)
    x = torch.randn(T, 2, IN, requires_grad=True)
    found, _ = run_recurrent(Rnn(Weights(*layer.parameters()), reverse=False), x, torch.zeros(2, H), None)
    torch.autograd.grad(found[0].sum(), x, retain_graph=True)
    with pytest.raises(NoLayerRule, match="twice"):
        torch.autograd.grad(found[0].sum(), x)
