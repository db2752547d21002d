"""Every family of models against one-example-at-a-time autograd, for batches of 0 to 64 and both kinds of rule.

Each case makes a model and says how to draw its inputs; where it names rules, `explain` must name them too, so that a
model does not slip to the slow way unseen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from engine_oracle import CrossEntropy, Fn, apart, gradients, size, slow_sum, summed
from privet.clipping.clipped_sum import clipped_sum
from privet.per_example import forward_record
from privet.per_example.gradients import explain
from privet.per_example.interception import track
from privet.per_example.layers import conv

R = torch.randn
CLIP = 0.5


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    draw: Callable[[int], object]
    rules: tuple[str, ...]


MODELS: dict[str, Case] = {}


def case(name: str, draw: Callable[[int], object], *rules: str):
    def add(make):
        MODELS[name] = Case(make, draw, rules)
        return make

    return add


def floats(*shape: int):
    return lambda batch: R(batch, *shape)


def words(most: int, *shape: int):
    return lambda batch: torch.randint(most, (batch, *shape))


def head(width: int) -> nn.Linear:
    return nn.Linear(width, 3)


# --- linear -----------------------------------------------------------------------------------------

case("linear", floats(4), "linear")(lambda: head(4))
case("mlp", floats(4), "linear")(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), head(6)))
case("deep mlp, no bias", floats(4), "linear")(
    lambda: nn.Sequential(*[nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh()) for _ in range(4)], head(4))
)
case("linear, 3-D", floats(5, 4), "linear")(lambda: Fn(lambda m, x: m.l(x).tanh().mean(1), l=head(4)))
case("linear, 4-D", floats(3, 2, 4), "linear")(lambda: Fn(lambda m, x: m.l(x).tanh().mean((1, 2)), l=head(4)))
case("linear, long", floats(20, 4), "linear")(lambda: Fn(lambda m, x: m.l(x).tanh().mean(1), l=head(4)))
case("linear, wide: Gram", floats(3, 30), "linear")(
    lambda: Fn(lambda m, x: m.o(m.l(x).tanh().mean(1)), l=nn.Linear(30, 40), o=head(40))
)
case("sequence first", floats(5, 4), "linear")(
    lambda: Fn(lambda m, x: m.l(x.transpose(0, 1)).tanh().mean(0), l=head(4))
)
case("rows of an example together", floats(5, 4), "linear")(
    lambda: Fn(lambda m, x: m.l(x.reshape(-1, 4)).tanh().view(len(x), 5, 3).mean(1), l=head(4))
)
case("rows of an example strided", floats(5, 4), "linear")(
    lambda: Fn(lambda m, x: m.l(x.transpose(0, 1).reshape(-1, 4)).tanh().view(5, len(x), 3).mean(0), l=head(4))
)
case("matmul", floats(4), "product")(lambda: Fn(lambda m, x: (x @ m.a).tanh() @ m.b, a=R(4, 5), b=R(5, 3)))
case("matrix and vector", floats(5, 4), "product")(lambda: Fn(lambda m, x: (x @ m.v)[:, :3], v=R(4)))
case("matrix on the left", floats(4))(lambda: Fn(lambda m, x: (m.w @ x.T).T, w=R(3, 4)))
case("addmm", floats(4), "product")(lambda: Fn(lambda m, x: torch.addmm(m.b, x, m.w), b=R(3), w=R(4, 3)))
case("addmm, scaled", floats(4))(
    lambda: Fn(lambda m, x: torch.addmm(m.b, x, m.w, beta=2.0, alpha=0.5), b=R(3), w=R(4, 3))
)
case("bmm", floats(4))(lambda: Fn(lambda m, x: torch.bmm(x[:, None], m.w.expand(len(x), 4, 3))[:, 0], w=R(4, 3)))
case("einsum", floats(2, 4))(lambda: Fn(lambda m, x: torch.einsum("bti,io->bo", x, m.w), w=R(4, 3)))
case("bilinear", floats(4))(lambda: Fn(lambda m, x: torch.einsum("bi,oij,bj->bo", x, m.w, x.tanh()), w=R(3, 4, 4)))
case("keywords", floats(4), "linear")(
    lambda: Fn(lambda m, x: F.linear(weight=m.w, bias=m.b, input=x), w=R(3, 4), b=R(3))
)

# --- convolutions -----------------------------------------------------------------------------------


def convolved(*layers: nn.Module) -> Callable[[], nn.Module]:
    """Layers, then the mean over places."""
    return Fn(lambda m, x: m.net(x).flatten(2).tanh().mean(2), net=nn.Sequential(*layers))


case("conv 1d", floats(2, 9), "convolution")(lambda: convolved(nn.Conv1d(2, 3, 3, stride=2, padding=1)))
case("conv 1d, one channel", floats(1, 9), "convolution")(lambda: convolved(nn.Conv1d(1, 3, 3, dilation=2)))
case("conv 2d", floats(2, 6, 5), "convolution")(
    lambda: convolved(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, (2, 3), stride=(2, 1)))
)
case("conv 2d, one channel", floats(1, 7, 6), "convolution")(
    lambda: convolved(nn.Conv2d(1, 3, (3, 2), stride=2, padding=(1, 2)))
)
case("conv 2d, groups", floats(4, 5, 5), "convolution")(
    lambda: convolved(nn.Conv2d(4, 6, 3, groups=2), nn.Conv2d(6, 3, 1))
)
case("conv 2d, depthwise", floats(3, 5, 5), "convolution")(lambda: convolved(nn.Conv2d(3, 3, 3, groups=3, padding=1)))
case("conv 2d, same", floats(2, 5, 5), "convolution")(
    lambda: convolved(nn.Conv2d(2, 3, (2, 4), padding="same", dilation=2))
)
case("conv 2d, circular", floats(2, 5, 5), "convolution")(
    lambda: convolved(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"))
)
case("conv 2d, reflect", floats(2, 5, 5), "convolution")(
    lambda: convolved(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect", bias=False))
)
case("conv 2d, replicate", floats(2, 5, 5), "convolution")(
    lambda: convolved(nn.Conv2d(2, 3, 3, padding=2, padding_mode="replicate"))
)
case("conv 2d, many channels out", floats(9, 5, 4), "convolution")(
    lambda: convolved(nn.Conv2d(9, 33, (3, 2), stride=(2, 1), padding=1), nn.Tanh(), nn.Conv2d(33, 9, 2, dilation=2))
)
case("conv 2d, channels last", floats(9, 5, 5), "convolution")(
    lambda: convolved(nn.Conv2d(9, 10, 3, padding=1), nn.Tanh(), nn.Conv2d(10, 3, 2)).to(
        memory_format=torch.channels_last
    )
)
case("conv 3d", floats(2, 3, 4, 4), "convolution")(lambda: convolved(nn.Conv3d(2, 3, 2, stride=(1, 2, 1))))
case("conv over frames", floats(2, 2, 5, 5), "convolution")(
    lambda: Fn(lambda m, x: m.c(x.flatten(0, 1)).tanh().mean((2, 3)).view(len(x), 2, 3).sum(1), c=nn.Conv2d(2, 3, 3))
)
case("conv transposed 1d", floats(2, 5), "transposed convolution")(
    lambda: convolved(nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1))
)
case("conv transposed 2d", floats(4, 4, 3), "transposed convolution")(
    lambda: convolved(nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2, dilation=(1, 2)), nn.Conv2d(6, 3, 1))
)
case("conv transposed 3d", floats(2, 2, 3, 2), "transposed convolution")(
    lambda: convolved(nn.ConvTranspose3d(2, 3, 2, padding=1))
)
case("weight standardisation", floats(2, 5, 5), "convolution")(
    lambda: Fn(
        lambda m, x: F.conv2d(x, (m.w - m.w.mean((1, 2, 3), keepdim=True)) / m.w.std((1, 2, 3), keepdim=True))
        .tanh().mean((2, 3)), w=R(3, 2, 3, 3),
    )
)  # fmt: skip

# --- embeddings and indexing ------------------------------------------------------------------------


def looked_up(table: nn.Module, pool: Callable = lambda e: e.mean(1)) -> nn.Module:
    return Fn(lambda m, x: m.l(pool(m.e(x))), e=table, l=head(4))


case("embedding", words(9, 6), "embedding")(lambda: looked_up(nn.Embedding(9, 4)))
case("embedding, padding", words(9, 6), "embedding")(lambda: looked_up(nn.Embedding(9, 4, padding_idx=0)))
case("embedding, long and pooled", words(9, 70), "embedding")(lambda: looked_up(nn.Embedding(9, 4)))
case("embedding, long", words(9, 70), "embedding")(
    lambda: looked_up(nn.Embedding(9, 4, padding_idx=-1), lambda e: e.tanh().mean(1))
)
case("embedding, one word", words(9), "embedding")(lambda: looked_up(nn.Embedding(9, 4), lambda e: e))
case("embedding, 3-D", words(9, 3, 2), "embedding")(
    lambda: looked_up(nn.Embedding(9, 4), lambda e: e.tanh().mean((1, 2)))
)
case("bag, mean", words(9, 6), "embedding bag")(lambda: looked_up(nn.EmbeddingBag(9, 4, padding_idx=2), lambda e: e))
case("bag, sum", words(9, 6), "embedding bag")(lambda: looked_up(nn.EmbeddingBag(9, 4, mode="sum"), lambda e: e))
case("bag, largest", words(9, 6), "embedding bag")(lambda: looked_up(nn.EmbeddingBag(9, 4, mode="max"), lambda e: e))
case("positions", words(9, 7), "embedding", "sum")(
    lambda: Fn(
        lambda m, x: m.l((m.e(x) + m.p(torch.arange(x.shape[1]))).tanh().mean(1)),
        e=nn.Embedding(9, 4), p=nn.Embedding(70, 4), l=head(4),
    )
)  # fmt: skip
case("indexing", words(9, 2), "indexing")(lambda: Fn(lambda m, x: m.t[x].tanh().sum(1), t=R(9, 3)))
case("index_select", words(9), "indexing")(lambda: Fn(lambda m, x: m.t.index_select(0, x), t=R(9, 3)))
case("words of a vector", words(9), "indexing")(
    lambda: Fn(lambda m, x: torch.stack([m.b[x], m.c[x], m.b[x] * 0], 1), b=R(9), c=R(9))
)

# --- norms ------------------------------------------------------------------------------------------


def normed(layer: nn.Module) -> nn.Module:
    return Fn(lambda m, x: m.n(m.c(x)).flatten(2).tanh().mean(2)[:, :3], c=nn.Conv2d(2, 4, 2), n=layer)


case("group norm", floats(2, 4, 4), "group norm")(lambda: normed(nn.GroupNorm(2, 4)))
case("group norm over vectors", floats(4), "group norm")(
    lambda: nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(1, 6), head(6))
)
case("instance norm", floats(2, 4, 4), "instance norm")(lambda: normed(nn.InstanceNorm2d(4, affine=True)))
case("layer norm", floats(4), "layer norm")(lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), head(6)))
case("layer norm of two dimensions", floats(2, 5, 4), "layer norm")(
    lambda: Fn(lambda m, x: m.n(x).tanh().mean((1, 3))[:, :3], n=nn.LayerNorm((5, 4)))
)
case("layer norm, no bias", floats(3, 4), "layer norm")(
    lambda: Fn(lambda m, x: m.l(m.n(x)).mean(1), n=nn.LayerNorm(4, bias=False), l=head(4))
)
case("rms norm", floats(3, 4), "rms norm")(lambda: Fn(lambda m, x: m.l(m.n(x)).mean(1), n=nn.RMSNorm(4), l=head(4)))
case("batch norm, evaluating", floats(4), "batch norm")(
    lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), head(6)).eval()
)

# --- attention --------------------------------------------------------------------------------------


def attended(**options) -> nn.Module:
    return Fn(
        lambda m, x: m.l(m.a(x, x.flip(1), x.tanh())[0].mean(1)),
        a=nn.MultiheadAttention(4, 2, batch_first=True, **options), l=head(4),
    )  # fmt: skip


case("attention", floats(5, 4), "linear")(lambda: Fn(
    lambda m, x: m.l(m.a(x, x, x)[0].mean(1)), a=nn.MultiheadAttention(4, 2, batch_first=True), l=head(4)
))  # fmt: skip
case("attention across", floats(5, 4), "linear")(lambda: attended(bias=False))
case("attention, extra keys", floats(5, 4), "linear", "spread")(lambda: attended(add_bias_kv=True))
case("attention, own widths", floats(5, 4), "linear")(lambda: attended(kdim=4, vdim=4, add_zero_attn=True))
case("attention, sequence first", floats(5, 4), "linear")(lambda: Fn(
    lambda m, x: m.l(m.a(*[x.transpose(0, 1)] * 3)[0].mean(0)), a=nn.MultiheadAttention(4, 2), l=head(4)
))  # fmt: skip
case("scaled dot product", floats(5, 4), "linear")(lambda: Fn(
    lambda m, x: m.l(F.scaled_dot_product_attention(*m.qkv(x).chunk(3, -1), is_causal=True).mean(1)),
    qkv=nn.Linear(4, 12), l=head(4),
))  # fmt: skip
case("transformer encoder", floats(5, 4), "layer norm", "linear")(lambda: Fn(
    lambda m, x: m.l(m.t(x).mean(1)),
    t=nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 2), l=head(4),
))  # fmt: skip
case("transformer", floats(5, 4), "layer norm", "linear")(lambda: Fn(
    lambda m, x: m.l(m.t(x, x.flip(1), tgt_mask=torch.full((5, 5), -9.0, dtype=x.dtype).triu(1)).mean(1)),
    t=nn.Transformer(4, 2, 1, 1, 8, 0.0, batch_first=True), l=head(4),
))  # fmt: skip
case("masked encoder", lambda n: (R(n, 5, 4), torch.arange(5).expand(n, 5) > torch.randint(1, 5, (n, 1))))(lambda: Fn(
    lambda m, x, mask: m.l(m.t(x, src_key_padding_mask=mask).mean(1)),
    t=nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), l=head(4),
))  # fmt: skip

# --- free, tied, frozen, derived --------------------------------------------------------------------


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


case("biases alone", floats(4), "sum")(lambda: Fn(lambda m, x: (x[:, :3] + m.a).tanh() - m.b, a=R(3), b=R(3)))
case("scale and shift", floats(4), "scale", "sum", "linear")(
    lambda: Fn(lambda m, x: m.l(x * m.w + m.b) * m.g - m.b[:3], w=R(4), b=R(4), g=R(()), l=head(4))
)
case("a number", floats(4), "scale")(lambda: Fn(lambda m, x: x[:, :3] * m.g, g=R(())))
case("a number below", floats(4))(lambda: Fn(lambda m, x: x[:, :3] / m.g.exp(), g=R(())))
case("broadcast scale", floats(2, 5), "scale")(
    lambda: Fn(lambda m, x: (x[:, None] * m.w).tanh().mean((2, 3)), w=R(3, 1, 5))
)
case("class token", floats(5, 4), "spread")(
    lambda: Fn(lambda m, x: m.l(torch.cat([m.c.expand(len(x), -1, -1), x], 1).tanh().mean(1)), c=R(1, 1, 4), l=head(4))
)
case("class token, repeated", floats(5, 4), "spread")(
    lambda: Fn(lambda m, x: m.l(torch.cat([m.c.repeat(len(x), 2, 1), x], 1).tanh().mean(1)), c=R(1, 3, 4), l=head(4))
)
case("where", floats(4))(lambda: Fn(lambda m, x: torch.where(x > 0, m.a * x, m.b)[:, :3], a=R(4), b=R(4)))
case("prelu", floats(4))(lambda: nn.Sequential(nn.Linear(4, 6), nn.PReLU(6), head(6)))
case("tied", floats(3), "linear")(lambda: Fn(lambda m, x: F.linear(F.linear(x, m.w).tanh(), m.w.T), w=R(5, 3)))
case("embedding tied to the output", words(3, 6), "embedding", "linear")(
    lambda: Fn(lambda m, x: F.linear(m.e(x).tanh().mean(1), m.e.weight), e=nn.Embedding(3, 4))
)
case("layer called twice", floats(4), "linear")(
    lambda: Fn(lambda m, x: m.o(m.l(m.l(x).tanh())), l=nn.Linear(4, 4), o=head(4))
)
case("siamese", lambda n: (R(n, 4), R(n, 4)), "linear")(lambda: Fn(lambda m, a, b: m.l(a) * m.l(b), l=head(4)))
case("frozen", floats(4), "linear")(
    lambda: frozen(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), head(5)), "0.weight", "2.bias")
)
case("unused", floats(4), "linear")(lambda: Fn(lambda m, x: m.l(x), l=head(4), never=nn.Linear(2, 2)))
case("lora", floats(4), "linear")(
    lambda: frozen(Fn(lambda m, x: F.linear(x, m.w + m.a @ m.b), w=R(3, 4), a=R(3, 2), b=torch.zeros(2, 4)), "w")
)
case("lora beside", floats(4), "linear")(
    lambda: frozen(Fn(lambda m, x: m.l(x) + m.b(m.a(x)), l=head(4), a=nn.Linear(4, 2), b=nn.Linear(2, 3)), "l.weight")
)
case("weight norm", floats(4), "linear")(lambda: nn.utils.parametrizations.weight_norm(head(4)))
case("spectral norm", floats(4), "linear")(lambda: nn.utils.parametrizations.spectral_norm(head(4)).eval())
case("slices apart", floats(4), "linear")(
    lambda: Fn(lambda m, x: F.linear(x, m.w[:3]) * F.linear(x, m.w[3:]), w=R(6, 4))
)
case("slices that overlap", floats(4), "linear")(
    lambda: Fn(lambda m, x: F.linear(x, m.w[:3]) * F.linear(x, m.w[1:4]), w=R(4, 4))
)
case("windows of a vector", floats(4), "linear")(lambda: Fn(lambda m, x: F.linear(x, m.w.unfold(0, 4, 1)), w=R(6)))
case("a parameter that lies transposed", floats(4), "linear")(
    lambda: Fn(lambda m, x: F.linear(x, m.w[:3]), w=R(4, 5).T)
)
case("twelve masks", floats(4), "linear")(lambda: Fn(
    lambda m, x: m.o(sum(F.linear(x, layer.weight * torch.eye(4), layer.bias).tanh() for layer in m.ls)),
    ls=nn.ModuleList(nn.Linear(4, 4) for _ in range(12)), o=head(4),
))  # fmt: skip
case("dict of parameters", floats(4), "product")(
    lambda: Fn(lambda m, x: x @ m.d["a"] @ m.l[0], d=nn.ParameterDict({"a": R(4, 5)}), l=nn.ParameterList([R(5, 3)]))
)
case("dict input", lambda n: {"x": R(n, 4), "y": R(n, 4)}, "linear")(lambda: _Named())
case("residual, zero at first", floats(4), "linear")(
    lambda: _zeroed(Fn(lambda m, x: m.o(x + m.b(m.a(x).tanh())), a=nn.Linear(4, 4), b=nn.Linear(4, 4), o=head(4)))
)
case("checkpointed", floats(4), "linear")(lambda: Fn(
    lambda m, x: m.o(checkpoint(m.l, x, use_reentrant=False).tanh()), l=nn.Linear(4, 4), o=head(4)
))  # fmt: skip
case("checkpointed attention", floats(3, 4), "linear")(lambda: Fn(
    lambda m, x: m.o(checkpoint(m.t, m.l(x), use_reentrant=False).mean(1)), l=nn.Linear(4, 4), o=head(4),
    t=nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True),
))  # fmt: skip


class _Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = head(4)

    def forward(self, *, x, y):
        return self.l(x) * self.l(y)


def _zeroed(model: nn.Module) -> nn.Module:
    nn.init.zeros_(model.b.weight)
    return model


# --- tests ------------------------------------------------------------------------------------------


def drawn(name: str, batch: int, dtype: torch.dtype):
    """(inputs, targets) in a type."""
    inputs = MODELS[name].draw(batch)

    def cast(t):
        return t.to(dtype) if t.is_floating_point() else t

    if isinstance(inputs, dict):
        inputs = {key: cast(t) for key, t in inputs.items()}
    else:
        inputs = tuple(map(cast, inputs)) if isinstance(inputs, tuple) else cast(inputs)
    return inputs, torch.randint(3, (batch,))


PLAN = {torch.float32: (1e-5, (7, 1, 0), forward_record.SMALL), torch.float64: (1e-10, (64, 2), 0)}


@pytest.mark.parametrize("name", MODELS)
def test_clipped_sum_is_the_sum_of_clipped_gradients(name, monkeypatch):
    torch.manual_seed(0)
    model = MODELS[name].make()
    for dtype, (tolerance, batches, small) in PLAN.items():
        monkeypatch.setattr(
            forward_record, "SMALL", small
        )  # gradients kept to the end of the way back, or caught on it
        model = model.to(dtype)
        for batch in batches:
            data = drawn(name, batch, dtype)
            each = gradients(model, CrossEntropy, data)
            for rule in ("flat", "per_layer"):
                found = clipped_sum(model, CrossEntropy, data, rule, CLIP)
                true = summed(model, each, rule, CLIP)
                assert apart(found.grads, true) <= tolerance * max(size(true), CLIP)
                assert (found.raw_batch_size, found.l2_bound) == (batch, CLIP)
    if MODELS[name].rules:
        told = explain(model, CrossEntropy, data)
        assert told.whole == ""
        assert {line.rule for line in told.uses} >= set(MODELS[name].rules)


@pytest.mark.parametrize("force", ["vmap", "loop", {"0": "vmap"}])
def test_a_forced_way_gives_the_same(force):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
    data = R(6, 2, 6), torch.randint(3, (6,))
    true = slow_sum(model, CrossEntropy, data, "flat", CLIP, views=2)
    found = clipped_sum(model, CrossEntropy, data, "flat", CLIP, augmentations=2, force=force)
    assert apart(found.grads, true) <= 1e-5 * size(true)


@pytest.mark.parametrize(("padding", "channels"), [(0, 1), (0, 2), (1, 1), (1, 2)])
def test_columns_of_a_convolution_in_pieces(padding, channels, monkeypatch):
    """What one piece leaves in the buffer does not reach the next, and the last piece is a smaller one."""
    monkeypatch.setattr(conv, "COLUMNS", 2 * 25 * 9 * channels)  # two examples for each thread
    batch, side = 4 * torch.get_num_threads() + 1, 7 - 2 * padding
    x, g = R(batch, side, side, channels).movedim(-1, 1), R(batch, 4, 5, 5)
    weight = R(4, channels, 3, 3, requires_grad=True)
    options = {"stride": [1, 1], "padding": [padding, padding], "dilation": [1, 1], "groups": 1}
    found = conv.weight_grads(x, g, torch.Size((3, 3)), **options)
    for b in range(batch):
        out = F.conv2d(x[b : b + 1], weight, padding=padding)
        assert torch.allclose(found[b], torch.autograd.grad(out, weight, g[b : b + 1])[0], atol=1e-4)


def test_linear_keeps_of_a_turned_input_what_autograd_keeps():
    turned, weight, saved = R(5, 2, 4).transpose(0, 1), track(R(3, 4, requires_grad=True)), set()
    kept = forward_record._copy_transposed(F.linear, (turned, weight))[0]
    with saved_tensors_hooks(lambda t: saved.add(t.data_ptr()) or t, lambda t: t):
        F.linear(kept, weight)
    assert kept.data_ptr() in saved
    assert (
        forward_record._copy_transposed(F.linear, (turned, R(3, 4), track(R(3, requires_grad=True))))[0] is turned
    )  # no copy there


@pytest.mark.slow
@given(
    batch=st.integers(1, 5), length=st.integers(1, 20), width=st.integers(1, 6), out=st.integers(1, 6),
    first=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=25)
def test_any_shape_of_linear_input(batch, length, width, out, first, seed):
    """Also where the length is the number of examples, or 2 or 3, the sizes that the model is tried with."""
    torch.manual_seed(seed)
    turn = (lambda x: x.transpose(0, 1)) if first else (lambda x: x)
    model = Fn(lambda m, x: m.o(turn(m.l(turn(x))).tanh().mean(1)), l=nn.Linear(width, out), o=head(out)).double()
    data = R(batch, length, width, dtype=torch.float64), torch.randint(3, (batch,))
    true = slow_sum(model, CrossEntropy, data, "flat", CLIP)
    assert apart(clipped_sum(model, CrossEntropy, data, "flat", CLIP).grads, true) <= 1e-10 * (size(true) + 0.01)


@pytest.mark.slow
@given(
    batch=st.integers(1, 4), channels=st.integers(1, 3), groups=st.integers(1, 2), kernel=st.integers(1, 3),
    stride=st.integers(1, 3), padding=st.integers(0, 2), dilation=st.integers(1, 2), transposed=st.booleans(),
)  # fmt: skip
@settings(max_examples=25)
def test_any_convolution(batch, channels, groups, kernel, stride, padding, dilation, transposed):
    torch.manual_seed(0)
    options = {
        "stride": stride,
        "padding": min(padding, dilation * (kernel - 1)),
        "dilation": dilation,
        "groups": groups,
    }
    kind = nn.ConvTranspose1d if transposed else nn.Conv1d
    layer = kind(channels * groups, 3 * groups, kernel, **options)
    model = Fn(lambda m, x: m.c(x).tanh().mean(2)[:, :3], c=layer).double()
    data = R(batch, channels * groups, 7, dtype=torch.float64), torch.randint(3, (batch,))
    true = slow_sum(model, CrossEntropy, data, "flat", CLIP)
    assert apart(clipped_sum(model, CrossEntropy, data, "flat", CLIP).grads, true) <= 1e-10 * size(true)
