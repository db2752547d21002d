"""Sweeps: one recurrent layer through a whole sequence in one direction, forward and back, without autograd inside.

A sweep keeps what a backward pass needs in a few buffers, written step by step; the way back overwrites the gates with
their gradients, so a layer never holds more than one tensor of the gates' size. Everything is time-major, (T, N, ...).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from privet.per_example.layers.base import NoLayerRule

Steps = list[tuple[int, int, int]]  # (time, row of the state before, row of the state after)
Pairs = list[tuple[Tensor, Tensor]]  # a weight and its inputs, (T, N, I)
Entered = tuple[Tensor, Pairs, list[Tensor]]  # gradients (T, N, O) of a sum of products and biases, and what was summed

_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one layer in one direction, as they were given: they may be tracked."""

    ih: Tensor  # (gates, I)
    hh: Tensor  # (gates, hidden)
    ih_bias: Tensor | None = None
    hh_bias: Tensor | None = None
    hr: Tensor | None = None  # (projected, hidden), of an LSTM with proj_size


class RecurrentPass:
    """What the kinds have in common: the state is a buffer of T + 1 rows, the first given, the others computed."""

    x: Tensor  # (T, N, I)
    hidden: Tensor  # (T + 1, N, H)
    gates: Tensor  # (T, N, O): values on the way forward, then gradients

    def __init__(self, weights: Weights, *, reverse: bool) -> None:
        self.given, self.reverse = weights, reverse
        self.dtype = weights.ih.dtype if weights.ih.dtype == torch.float64 else torch.float32
        self.w_ih, self.w_hh = self._widen(weights.ih), self._widen(weights.hh)
        self.w_hr = None if weights.hr is None else self._widen(weights.hr)
        self.is_spent = False

    def _widen(self, value: Tensor) -> Tensor:
        return value.detach().to(self.dtype)

    def _bias_sum(self) -> Tensor | None:
        b, c = self.given.ih_bias, self.given.hh_bias
        return None if b is None or c is None else self._widen(b) + self._widen(c)

    def _project(self, into: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        rows, x = into.view(-1, into.shape[-1]), self.x.view(-1, self.x.shape[-1])
        if bias is None:
            torch.mm(x, weight.T, out=rows)
        else:
            torch.addmm(bias, x, weight.T, out=rows)

    def _state_buffer(self, first: Tensor) -> Tensor:
        states = self.x.new_empty(len(self.x) + 1, *first.shape)
        states[-1 if self.reverse else 0].copy_(first)
        return states

    def steps(self) -> Steps:
        """In the order of the way forward."""
        r, times = int(self.reverse), range(len(self.x))
        return [(t, t + r, t + 1 - r) for t in (reversed(times) if r else times)]

    def states_after(self, states: Tensor) -> Tensor:
        return states[:-1] if self.reverse else states[1:]

    def states_before(self, states: Tensor) -> Tensor:
        return states[1:] if self.reverse else states[:-1]

    def last_state(self, states: Tensor) -> Tensor:
        return states[0 if self.reverse else -1]

    def _copy_outputs(self) -> tuple[Tensor, Tensor]:
        """Copies, so that a model may change its outputs in place."""
        return self.states_after(self.hidden).clone(), self.last_state(self.hidden).clone()

    def forward(self, x: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, ...]:
        """(outputs, last hidden state[, last cell state])."""
        raise NotImplementedError

    def back_through_time(self, d_out: Tensor | None, d_h: Tensor, d_c: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of h and c, given those of the outputs and (to be overwritten) of the last states.

        `gates` then holds the gradients of the gates.
        """
        raise NotImplementedError

    def backward(
        self, d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, *, inputs: bool, states: bool
    ) -> tuple[Tensor | None, ...]:
        """The gradients of x and of h and c, where they are wanted."""
        if self.is_spent or torch.is_grad_enabled():
            raise NoLayerRule(
                "a recurrent layer is differentiated twice, but its first way back overwrites what it keeps"
            )
        self.is_spent, self.wants_states = True, states
        d_h = torch.zeros_like(self.last_state(self.hidden)) if d_h is None else d_h.clone()
        size = self.w_hh.shape[1] if self.w_hr is None else self.w_hr.shape[1]
        d_c = self.x.new_zeros(len(d_h), size) if d_c is None else d_c.clone()
        d_first = self.back_through_time(d_out, d_h, d_c)
        d_x = (self.gates.view(-1, self.gates.shape[-1]) @ self.w_ih).view_as(self.x) if inputs else None
        return d_x, *d_first

    def _first_state_gradient(self, following: Tensor | None) -> Tensor | None:
        """The gradient of the first hidden state, if it is wanted: where it is just zeros, one product is saved."""
        return following @ self.w_hh if self.wants_states and following is not None else None

    def gate_uses(self) -> Iterator[Entered]:
        """What the gradients of the gates belong to."""
        pairs = [(self.given.ih, self.x), (self.given.hh, self.states_before(self.hidden))]
        yield self.gates, pairs, [b for b in (self.given.ih_bias, self.given.hh_bias) if b is not None]


def _add_state_gradients(step: Tensor | None, so_far: Tensor, grads: Tensor | None, weight: Tensor) -> Tensor:
    """so_far = step + grads weight: what comes from the output of a step, and from the gates of the step after it."""
    if grads is None:  # the last step: `so_far` is the gradient of the last state
        return so_far if step is None else so_far.add_(step)
    if step is None:
        return torch.mm(grads, weight, out=so_far)
    return torch.addmm(step, grads, weight, out=so_far)


class Lstm(RecurrentPass):
    """i, f, o = sigmoid, g = tanh of the gates; c' = f c + i g; h' = o tanh(c'), or W_hr times that."""

    def forward(self, x: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, ...]:
        assert c is not None
        (t, n, _), size = x.shape, self.w_hh.shape[0] // 4
        self.x = x
        self.gates = x.new_empty(t, n, 4 * size)
        self._project(self.gates, self.w_ih, self._bias_sum())
        self.hidden, self.cells = self._state_buffer(h), self._state_buffer(c)
        self.squashed = x.new_empty(t, n, size)  # tanh(c')
        self.unprojected = self.states_after(self.hidden) if self.w_hr is None else x.new_empty(t, n, size)
        hs, cs, across = self.hidden.unbind(0), self.cells.unbind(0), self.w_hh.T
        for now, before, after in self.steps():
            gates, squashed = self.gates[now], self.squashed[now]
            gates.addmm_(hs[before], across)
            gates[:, : 2 * size].sigmoid_()
            gates[:, 2 * size : 3 * size].tanh_()
            gates[:, 3 * size :].sigmoid_()
            i, f, g, o = gates.chunk(4, 1)
            torch.mul(f, cs[before], out=cs[after]).addcmul_(i, g)
            torch.tanh(cs[after], out=squashed)
            torch.mul(o, squashed, out=self.unprojected[now])
            if self.w_hr is not None:
                torch.mm(self.unprojected[now], self.w_hr.T, out=hs[after])
        return *self._copy_outputs(), self.last_state(self.cells).clone()

    def back_through_time(self, d_out: Tensor | None, d_h: Tensor, d_c: Tensor) -> tuple[Tensor | None, Tensor | None]:
        cs, following = self.cells.unbind(0), None
        self.d_hidden = None if self.w_hr is None else torch.empty_like(self.states_after(self.hidden))
        one, two = torch.empty_like(d_c), torch.empty_like(d_c)
        for now, before, _ in reversed(self.steps()):
            d_h = _add_state_gradients(None if d_out is None else d_out[now], d_h, following, self.w_hh)
            d_m = d_h
            if self.w_hr is not None and self.d_hidden is not None:
                self.d_hidden[now].copy_(d_h)
                d_m = d_h @ self.w_hr
            gates, squashed = self.gates[now], self.squashed[now]
            i, f, g, o = gates.chunk(4, 1)
            torch.mul(d_m, o, out=one)
            d_c += _tanh_back(one, squashed, grad_input=one)
            torch.mul(d_m, squashed, out=one)
            _sigmoid_back(one, o, grad_input=o)
            torch.mul(d_c, g, out=one)
            torch.mul(d_c, i, out=two)
            _sigmoid_back(one, i, grad_input=i)
            _tanh_back(two, g, grad_input=g)
            torch.mul(d_c, cs[before], out=one)
            d_c *= f
            _sigmoid_back(one, f, grad_input=f)
            following = gates
        return self._first_state_gradient(following), d_c

    def gate_uses(self) -> Iterator[Entered]:
        yield from super().gate_uses()
        if self.given.hr is not None and self.d_hidden is not None:
            yield self.d_hidden, [(self.given.hr, self.unprojected)], []


class Gru(RecurrentPass):
    """r, z = sigmoid(x + h), n = tanh(x + r h); h' = n + z (h - n).

    The buffer's four parts are n, r, z and the hidden part of n, so that what W_ih gives lies together and what W_hh
    gives too.
    """

    def forward(self, x: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, ...]:
        (t, n, _), size = x.shape, self.w_hh.shape[0] // 3
        self.x, self.size = x, size
        self.parts = x.new_empty(t, n, 4 * size)
        self._project_inputs(size)
        self.hidden = self._state_buffer(h)
        hs, across = self.hidden.unbind(0), self.w_hh.T
        for now, before, after in self.steps():
            parts = self.parts[now]
            parts[:, size:].addmm_(hs[before], across)
            parts[:, size : 3 * size].sigmoid_()
            candidate, r, z, inner = parts.chunk(4, 1)
            candidate.addcmul_(r, inner).tanh_()
            torch.lerp(candidate, hs[before], z, out=hs[after])
        return self._copy_outputs()

    def _project_inputs(self, size: int) -> None:
        """n, r and z from x, with both biases for r and z; the hidden part of n starts as its bias."""
        rows = self.parts.view(-1, 4 * size)
        x, weight = self.x.view(len(rows), -1), self.w_ih.roll(size, 0)
        b, c = self.given.ih_bias, self.given.hh_bias
        if b is None or c is None:
            torch.mm(x, weight.T, out=rows[:, : 3 * size])
            rows[:, 3 * size :].zero_()
            return
        bias = self._widen(b).roll(size)
        bias[size:] += self._widen(c)[: 2 * size]
        torch.addmm(bias, x, weight.T, out=rows[:, : 3 * size])
        rows[:, 3 * size :] = self._widen(c)[2 * size :]

    def back_through_time(self, d_out: Tensor | None, d_h: Tensor, d_c: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hs, size = self.hidden.unbind(0), self.size
        one, two = torch.empty_like(d_h), torch.empty_like(d_h)
        for now, before, _ in reversed(self.steps()):
            if d_out is not None:
                d_h += d_out[now]
            candidate, r, z, inner = self.parts[now].chunk(4, 1)
            torch.sub(hs[before], candidate, out=one).mul_(d_h)
            torch.mul(d_h, z, out=two)
            _sigmoid_back(one, z, grad_input=z)
            torch.sub(d_h, two, out=one)
            _tanh_back(one, candidate, grad_input=candidate)
            torch.mul(candidate, inner, out=one)
            torch.mul(candidate, r, out=inner)
            _sigmoid_back(one, r, grad_input=r)
            d_h = torch.addmm(two, self.parts[now, :, size:], self.w_hh, out=d_h)
        self.gates = self.parts[..., : 3 * size].roll(-size, -1)  # in the order of W_ih: r, z, n
        return d_h, None

    def gate_uses(self) -> Iterator[Entered]:
        b, c = self.given.ih_bias, self.given.hh_bias
        yield self.gates, [(self.given.ih, self.x)], [] if b is None else [b]
        yield self.parts[..., self.size :], [(self.given.hh, self.states_before(self.hidden))], [] if c is None else [c]


class Rnn(RecurrentPass):
    """h' = tanh(x + h); the outputs themselves are all that the way back needs."""

    activate: Callable[[Tensor], Tensor] = staticmethod(torch.tanh_)
    activation_gradient: Callable[..., Tensor] = staticmethod(_tanh_back)

    def forward(self, x: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, ...]:
        self.x = x
        self.hidden = self._state_buffer(h)
        self._project(self.states_after(self.hidden), self.w_ih, self._bias_sum())
        hs, across = self.hidden.unbind(0), self.w_hh.T
        for _, before, after in self.steps():
            self.activate(hs[after].addmm_(hs[before], across))
        return self._copy_outputs()

    def back_through_time(self, d_out: Tensor | None, d_h: Tensor, d_c: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hs, following = self.hidden.unbind(0), None
        self.gates = torch.empty_like(self.states_after(self.hidden))
        for now, _, after in reversed(self.steps()):
            d_h = _add_state_gradients(None if d_out is None else d_out[now], d_h, following, self.w_hh)
            following = self.activation_gradient(d_h, hs[after], grad_input=self.gates[now])
        return self._first_state_gradient(following), None


class ReluRnn(Rnn):
    """h' = relu(x + h)."""

    activate = staticmethod(torch.relu_)
    activation_gradient = staticmethod(partial(torch.ops.aten.threshold_backward.grad_input, threshold=0))


class _Through(torch.autograd.Function):
    """A sweep as one node of the graph. `anchor` is there to be differentiated: the weights are not."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, h: Tensor, c: Tensor | None, sweep: RecurrentPass
    ) -> tuple[Tensor, ...]:
        ctx.sweep = sweep
        ctx.set_materialize_grads(False)
        return sweep.forward(x, h, c)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None = None) -> Any:
        sweep: RecurrentPass = ctx.sweep
        _, inputs, hidden, *_ = ctx.needs_input_grad
        return sweep.x.new_empty(0), *sweep.backward(d_out, d_h, d_c, inputs=inputs, states=hidden), None


def run_recurrent(sweep: RecurrentPass, x: Tensor, h: Tensor, c: Tensor | None) -> tuple[tuple[Tensor, ...], Tensor]:
    """(outputs (T, N, H), last hidden state[, last cell state]) and a tensor whose gradient comes with the sweep's."""
    anchor = torch.empty(0, device=x.device, dtype=sweep.dtype, requires_grad=True)
    with torch.autocast(x.device.type, enabled=False):
        wide = [None if t is None else t.to(sweep.dtype) for t in (x.contiguous(), h, c)]
        found = _Through.apply(anchor, *wide, sweep)  # type: ignore[no-untyped-call]
    return tuple(t.to(sweep.given.ih.dtype) for t in found), anchor
