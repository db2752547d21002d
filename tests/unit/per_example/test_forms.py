"""Shares: norms and weighted sums without the gradients agree with the gradients themselves."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from privet.per_example import forms as shares
from privet.per_example.derived_forms import (
    EmbeddingRows,
    SlicedUse,
    SumOfUses,
    ThroughFunction,
    add_uses,
    gradient_of_parameter,
)
from privet.per_example.forms import (
    Dense,
    OuterProduct,
    OuterProductSum,
    PerExampleGradient,
    compact_outer_product,
    sum_into,
)

R = torch.randn
D = torch.float64


def is_consistent(share: PerExampleGradient, true: torch.Tensor, *, rel: float = 1e-10) -> bool:
    """Norms, weighted sums, gradients and parts, against gradients (B, *shape)."""
    flat = true.reshape(len(true), true[:1].numel())
    weights = torch.linspace(0.3, 1.0, len(true), dtype=D)
    rows, some = torch.tensor([len(true) - 1, 0]), torch.tensor([0.7, 0.2], dtype=D)
    pairs = [
        (share.squared_norms(), flat.square().sum(1)),
        (share.weighted_sum(weights).reshape(-1), weights @ flat),
        (share.materialize().reshape(flat.shape), flat),
        (share.select(rows, D).squared_norms(), flat[rows].square().sum(1)),
        (share.select(rows, D).weighted_sum(some).reshape(-1), some @ flat[rows]),
    ]
    return all(torch.allclose(found.double(), want, rtol=rel, atol=rel) for found, want in pairs)


def test_dense_of_any_shape():
    for shape in ((), (3,), (2, 3), (5, 1024), (3, 700)):
        grads = R(4, *shape, dtype=D)
        assert is_consistent(Dense(grads), grads)


@pytest.mark.parametrize("count", [1000, 1024, 5000, 1 << 20])
def test_norms_of_many_equal_numbers_in_float32(count):
    """Added one by one they would lose a digit for each ten times more."""
    assert float(Dense(torch.full((1, count), 0.1)).squared_norms()) == pytest.approx(count * 0.01, rel=2e-6)


@given(batch=st.integers(1, 4), t=st.integers(1, 40), i=st.integers(1, 12), o=st.integers(1, 12))
@settings(max_examples=30)
def test_outer(batch, t, i, o):
    a, g = R(batch, t, i, dtype=D), R(batch, t, o, dtype=D)
    assert is_consistent(OuterProductSum(a, g), torch.einsum("bti,bto->boi", a, g))


def test_one_position_for_each_example():
    a, g = R(4, 1, 3, dtype=D), R(4, 1, 5, dtype=D)
    share, true = compact_outer_product(a, g), torch.einsum("bti,bto->boi", a, g)
    assert isinstance(share, OuterProduct)
    assert is_consistent(share, true)
    assert is_consistent(share.g, g[:, 0])  # the bias shares it
    assert is_consistent(add_uses([share, share], 4, 15), 2 * true)
    assert is_consistent(add_uses([share, OuterProductSum(R(4, 2, 3, dtype=D), 0 * R(4, 2, 5, dtype=D))], 4, 15), true)


@pytest.mark.parametrize("t", [63, 64, 65, 130, 257])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_gram_matrices_of_long_sequences_are_made_in_parts(t, dtype):
    a, g = R(2, t, 4 * t, dtype=dtype), R(2, t, 5 * t, dtype=dtype)
    true = torch.einsum("bti,bto->boi", a.double(), g.double()).flatten(1).square().sum(1)
    found = OuterProductSum(a, g).squared_norms().double()
    assert torch.allclose(found, true, rtol=1e-4 if dtype is torch.float32 else 1e-10)
    assert (found >= true * (1 - 1e-6)).all()  # an allowance for rounding keeps the norm from being too small


@pytest.mark.parametrize("length", [1, 2, 30])  # one product, Gram matrices, gradients that are held
@pytest.mark.parametrize(("i", "o"), [(6, 9), (9, 6)])
@pytest.mark.parametrize("time_first", [(False, False), (True, False), (False, True), (True, True)])
def test_sums_are_written_where_they_belong(length, i, o, time_first):
    a, g = (
        R(length, 4, n, dtype=D).transpose(0, 1) if first else R(4, length, n, dtype=D)
        for n, first in zip((i, o), time_first, strict=True)
    )
    true, weights = torch.einsum("bti,bto->boi", a, g), torch.linspace(0.3, 1.0, 4, dtype=D)
    for share in (OuterProductSum(a, g), compact_outer_product(a, g), SumOfUses((Dense(true),), 4, i * o)):
        for asked in (False, True):
            if asked:
                assert torch.allclose(share.squared_norms(), true.flatten(1).square().sum(1))
            buffer = torch.full((i * o + 2,), 7.0, dtype=D)
            sum_into(buffer[1:-1].view(o, i), share, weights)
            assert torch.allclose(buffer[1:-1].view(o, i), torch.einsum("b,boi->oi", weights, true))
            assert buffer[0] == buffer[-1] == 7.0


def test_outer_that_is_too_large_to_hold(monkeypatch):
    monkeypatch.setattr(shares, "MOST_HELD", 50)
    a, g = R(5, 9, 3, dtype=D), R(5, 9, 4, dtype=D)
    assert is_consistent(OuterProductSum(a, g), torch.einsum("bti,bto->boi", a, g))


@pytest.mark.parametrize("length", [2, 16, 18])  # few enough positions for a Gram matrix
def test_outer_whose_positions_cancel(length):
    """A gradient at each position and its opposite at the next: what is left is a millionth of them."""
    a = R(2, 1, 60).expand(2, length, 60) * (1 + 1e-6 * R(2, length, 1))
    g = R(2, 1, 50) * torch.tensor([1.0, -1.0]).repeat(length // 2)[:, None]
    share, true = OuterProductSum(a, g), torch.einsum("bti,bto->boi", a.double(), g.double()).flatten(1)
    assert torch.allclose(share.squared_norms().double(), true.square().sum(1), rtol=1e-5)
    weights = torch.tensor([0.5, 1.0])
    assert torch.allclose(share.weighted_sum(weights).double().flatten(), weights.double() @ true, rtol=1e-5, atol=1e-9)


@given(
    batch=st.integers(1, 4), t=st.sampled_from([0, 1, 2, 5, 17, 64, 65, 90]), size=st.integers(1, 7),
    padding=st.sampled_from([None, 0]), pooled=st.booleans(),
)  # fmt: skip
@settings(max_examples=40)
def test_rows(batch, t, size, padding, pooled):
    torch.manual_seed(t)
    index, g = torch.randint(size, (batch, t)), R(batch, 1 if pooled else t, 3, dtype=D).expand(batch, t, 3)
    true = torch.zeros(batch, size, 3, dtype=D)
    for b in range(batch):
        for p in range(t):
            if padding is None or index[b, p] != padding:
                true[b, index[b, p]] += g[b, p]
    assert is_consistent(EmbeddingRows(index, g, (size, 3), padding), true)


@pytest.mark.parametrize("length", [2, 40, 80])
def test_rows_whose_positions_cancel(length):
    g = R(2, 1, 4) * torch.tensor([1.0, -1.0]).repeat(length // 2)[:, None] * (1 + 1e-5 * R(2, length, 1))
    share = EmbeddingRows(torch.zeros(2, length, dtype=torch.int64), g, (3, 4))
    true = g.double().sum(1)
    assert torch.allclose(share.squared_norms().double(), true.square().sum(1), rtol=1e-5)
    assert torch.allclose(share.weighted_sum(torch.ones(2))[0].double(), true.sum(0), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("length", [4, 80])
def test_rows_of_which_some_examples_have_one_twice(length):
    index = torch.stack([torch.arange(length), torch.arange(length) // 2, torch.zeros(length).long()])
    g = R(3, length, 4)
    g[1, 1::2] = -g[1, ::2] * (1 + 1e-5)  # cancels
    for padding in (None, 0):
        share, few = (EmbeddingRows(index, one, (length, 4), padding) for one in (g.double(), g))
        assert is_consistent(share, share.materialize())
        assert torch.allclose(few.squared_norms().double(), share.squared_norms(), rtol=1e-5, atol=0)
        only = torch.tensor([0.0, 1.0, 0.0])
        assert torch.allclose(few.weighted_sum(only).double(), share.weighted_sum(only.double()), rtol=1e-5, atol=1e-12)


def test_no_example_at_all():
    none, no_weights = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    for share in (
        Dense(R(3, 2)),
        Dense(R(3)),
        OuterProductSum(R(3, 2, 2), R(3, 2, 4)),
        EmbeddingRows(torch.zeros(3, 2).long(), R(3, 2, 2), (5, 2)),
    ):
        part = share.select(none, torch.float32)
        assert part.squared_norms().shape == (0,)
        assert not part.weighted_sum(no_weights).any()


def test_uses_are_added_before_the_norm():
    a, g = R(3, 2, 4, dtype=D), R(3, 2, 5, dtype=D)
    true = torch.einsum("bti,bto->boi", a, g)
    assert is_consistent(add_uses([OuterProductSum(a, g), OuterProductSum(a, g)], 3, 20), 2 * true)
    assert is_consistent(add_uses([OuterProductSum(a, g), OuterProductSum(a, -g)], 3, 20), 0 * true)
    both = add_uses([OuterProductSum(a, g), Dense(true)], 3, 20)
    assert isinstance(both, SumOfUses)
    assert is_consistent(both, 2 * true)
    index = torch.tensor([[0, 1], [2, 2], [1, 0]])
    rows = EmbeddingRows(index, R(3, 2, 4, dtype=D), (5, 4))
    assert is_consistent(add_uses([rows, rows], 3, 20), 2 * rows.materialize())


def test_several_in_pieces(monkeypatch):
    a, g = R(5, 2, 4, dtype=D), R(5, 2, 5, dtype=D)
    true = torch.einsum("bti,bto->boi", a, g)
    monkeypatch.setattr(shares, "MOST_HELD", 40)
    assert is_consistent(add_uses([OuterProductSum(a, g), Dense(true)], 5, 20), 2 * true)


def through(parameter: torch.Tensor, make, shape) -> tuple[torch.Tensor, PerExampleGradient, torch.Tensor]:
    """A function of a parameter, a share of it, and the parameter's true gradients."""
    derived = make(parameter)
    grads = R(3, *shape, dtype=D)
    true = [torch.autograd.grad(derived, parameter, grad, retain_graph=True)[0] for grad in grads]
    return derived, Dense(grads), torch.stack(true)


@pytest.mark.parametrize(
    ("make", "shape", "kind"),
    [
        (lambda p: p[1:3], (2, 5), SlicedUse),
        (lambda p: p.T, (5, 4), SlicedUse),
        (lambda p: p[:, ::2], (4, 3), SlicedUse),
        (lambda p: p.expand(2, 4, 5), (2, 4, 5), ThroughFunction),
        (lambda p: p.unfold(1, 3, 1), (4, 3, 3), ThroughFunction),
        (lambda p: p - p.mean(1, keepdim=True), (4, 5), ThroughFunction),
        (lambda p: p @ p.T, (4, 4), ThroughFunction),
    ],
    ids=["slice", "transpose", "every second", "expand", "windows", "centred", "square"],
)
def test_functions_of_a_parameter(make, shape, kind):
    parameter = torch.nn.Parameter(R(4, 5, dtype=D))
    derived, inner, true = through(parameter, make, shape)
    share = gradient_of_parameter(parameter, [(derived, inner)], 3)
    assert isinstance(share, kind)
    assert is_consistent(share, true)


def test_views_that_meet_are_added():
    parameter = torch.nn.Parameter(R(4, 5, dtype=D))
    one, share_one, true_one = through(parameter, lambda p: p[:3], (3, 5))
    two, share_two, true_two = through(parameter, lambda p: p[1:], (3, 5))
    assert is_consistent(gradient_of_parameter(parameter, [(one, share_one), (two, share_two)], 3), true_one + true_two)


def test_a_parameter_that_does_not_lie_in_order():
    parameter = torch.nn.Parameter(R(5, 4, dtype=D).T)
    derived, inner, true = through(parameter, lambda p: p[:2], (2, 5))
    assert is_consistent(gradient_of_parameter(parameter, [(derived, inner)], 3), true)


@pytest.mark.parametrize("positions", [1, 8, 70])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_norm_whose_factors_underflow_is_not_too_small(positions, swapped):
    """|a|^2 is nothing in float32, yet |a| |g| is not; a record whose norm is taken for 0 would not be clipped."""
    tiny, huge = torch.full((3, positions, 400), 2.5e-23), torch.full((3, positions, 400), 2e16)
    a, g = (huge, tiny) if swapped else (tiny, huge)
    a[2] = 0
    share = compact_outer_product(a, g)
    true = (g.double().mT @ a.double()).flatten(1).norm(dim=1)
    found = share.squared_norms().double().sqrt()
    assert (found >= true * (1 - 1e-6)).all()
    assert true[0] > 1e-4


def test_zero_inputs_keep_their_norm():
    """What is added for underflow is far below any clip."""
    for positions in (1, 8, 70):
        found = compact_outer_product(torch.zeros(2, positions, 400), torch.ones(2, positions, 400)).squared_norms()
        assert (found < 1e-28).all()
