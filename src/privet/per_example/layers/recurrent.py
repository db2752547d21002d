"""Recurrent layers: LSTM, GRU and RNN, whole sequences and single cells, from the gradients of their gates.

With gates = W_ih x_t + W_hh h_(t-1) + biases at each step t and g_t their gradient, example b has sum_t g_bt x_bt^T for
W_ih, sum_t g_bt h_b(t-1)^T for W_hh and sum_t g_bt for a bias. One Gram matrix <g_t, g_s> serves all four norms.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from privet.errors import Unsupported
from privet.per_example.forms import Dense, OuterProductSum, gram_squared_norms, prefers_gram
from privet.per_example.layers.base import (
    Function,
    ParameterUse,
    PlainRun,
    Ran,
    Shares,
    UnseenCall,
    bind_arguments,
    register,
)
from privet.per_example.layers.recurrent_sweep import Gru, Lstm, RecurrentPass, ReluRnn, Rnn, Weights, run_recurrent

_SEQUENCE = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")
_CELL = ("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh")
_KINDS: dict[Function, type[RecurrentPass]] = {
    torch.lstm: Lstm, torch.gru: Gru, torch.rnn_tanh: Rnn, torch.rnn_relu: ReluRnn,
    torch.lstm_cell: Lstm, torch.gru_cell: Gru, torch.rnn_tanh_cell: Rnn, torch.rnn_relu_cell: ReluRnn,
}  # fmt: skip


# --- shares -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Gates:
    """The gradients of the gates, shared by all that enters them: their Gram matrix is computed once."""

    g: Tensor  # (B, T, O)
    width: int  # of all inputs together
    _gram: Tensor | None = field(default=None, repr=False)

    def gram(self) -> Tensor:
        """<g_t, g_s> of each example, (B, T, T)."""
        if self._gram is None:
            self._gram = self.g @ self.g.mT
        return self._gram

    @property
    def prefers_gram(self) -> bool:
        """Whether Gram matrices are cheaper than the gradients themselves."""
        _, t, o = self.g.shape
        return prefers_gram(t, self.width, o)


@dataclass(slots=True)
class OverTime(OuterProductSum):
    """An `Outer` of tensors that lie time-major in memory, with the Gram matrix of the gates shared."""

    gates: Gates | None = None

    def squared_norms(self) -> Tensor:
        if self.gates is None or not self.gates.prefers_gram:
            return OuterProductSum.squared_norms(self)
        return gram_squared_norms(self, self.gates.gram())


# --- rules ------------------------------------------------------------------------------------------


@register(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
class Recurrent(PlainRun):
    """Whole sequences: any number of layers, both directions, dropout between layers, projections."""

    name = "recurrent"

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        if "batch_sizes" in kwargs or (len(args) > 1 and getattr(args[1], "dtype", None) is torch.int64):
            raise UnseenCall("packed sequences do not say which rows belong to which example")
        x, hx, _, _, layers, dropout, train, _, batch_first = bind_arguments(_SEQUENCE, args, kwargs)
        h, c = hx if _KINDS[func] is Lstm else (hx, None)
        sweeps: list[RecurrentPass] = []
        anchors, last = [], []
        x = x.transpose(0, 1) if batch_first else x  # (T, N, I)
        for number, directions in enumerate(_build_layers(_KINDS[func], args, kwargs)):
            outs = []
            for sweep in directions:
                k = len(sweeps)
                (out, *states), anchor = run_recurrent(sweep, x, h[k], None if c is None else c[k])
                sweeps.append(sweep)
                anchors.append(anchor)
                last.append(states)
                outs.append(out)
            x = outs[0] if len(outs) == 1 else torch.cat(outs, -1)
            if dropout and train and number < layers - 1:
                x = F.dropout(x, dropout)
        out = x.transpose(0, 1) if batch_first else x
        return (out, *(torch.stack(states) for states in zip(*last, strict=True))), anchors, sweeps

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        *_, batch_first = bind_arguments(_SEQUENCE, use.args, use.kwargs)
        yield from _layer_gradients(use, grads, 0 if batch_first else 1)


def _build_layers(
    kind: type[RecurrentPass], args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[list[RecurrentPass]]:
    """The sweeps of one layer after the other, from the flat list of weights."""
    _, hx, params, has_biases, layers, _, _, bidirectional, _ = bind_arguments(_SEQUENCE, args, kwargs)
    projected = kind is Lstm and hx[0].shape[2] != hx[1].shape[2]
    left = iter(params)
    for _ in range(layers):
        found: list[RecurrentPass] = []
        for reverse in (False, True)[: 1 + bool(bidirectional)]:
            ih, hh = next(left), next(left)
            b, c = (next(left), next(left)) if has_biases else (None, None)
            found.append(kind(Weights(ih, hh, b, c, next(left) if projected else None), reverse=reverse))
        yield found


@register(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
class Cell(PlainRun):
    """One step: a sequence of length one."""

    name = "recurrent cell"

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        x, hx, *weights = bind_arguments(_CELL, args, kwargs)
        sweep = _KINDS[func](Weights(*weights), reverse=False)
        h, c = hx if isinstance(sweep, Lstm) else (hx, None)
        (_, *states), anchor = run_recurrent(sweep, x[None], h, c)
        return (tuple(states) if len(states) == 2 else states[0]), [anchor], [sweep]

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        yield from _layer_gradients(use, grads, 0)


def _layer_gradients(use: ParameterUse, grads: list[Tensor], batch_dim: int) -> Shares:
    where = use.fact.outputs[0]
    if where is None or where.dim != batch_dim:
        raise Unsupported(
            f"{use.name[1][0]}: the examples do not lie along dimension {batch_dim} of its output. "
            "Give it one sequence per example, and mind batch_first."
        )
    place = replace(where, dim=1)
    for sweep, grad in zip(use.kept, grads, strict=True):
        if grad is not None:
            yield from _pass_gradients(use, sweep, place)


def _pass_gradients(use: ParameterUse, sweep: RecurrentPass, where: Any) -> Shares:
    def first(value: Tensor) -> Tensor:
        return use.put_examples_first(value, where).flatten(1, 2)  # (B, rows T, ...)

    for grad, pairs, biases in sweep.gate_uses():
        pairs = [(weight, a) for weight, a in pairs if use.is_tracked(weight)]
        gates = Gates(first(grad), sum(a.shape[2] for _, a in pairs))
        for weight, a in pairs:
            yield weight, OverTime(first(a), gates.g, gates=gates)
        biases = [bias for bias in biases if use.is_tracked(bias)]
        if biases:
            summed = Dense(first(grad.sum(0, keepdim=True)).sum(1))
            yield from ((bias, summed) for bias in biases)
