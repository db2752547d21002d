"""A moving average of the weights: computed from what was released alone, so it costs no privacy."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.hooks import RemovableHandle

from privet import _check
from privet.errors import InvalidValue
from privet.noise.release import match_strides
from privet.per_example.independence.buffers import tensor_version
from privet.per_example.model_facts import self_moving_buffers
from privet.per_example.trial_pass import own_parameters


class WeightAverage:
    """mean <- d mean + (1 - d) weights after each step, d = min(decay, (1 + t) / (10 + t)) at the t-th.

    The smaller d of the first steps lets the starting weights be forgotten. Kept in float32 or better.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], *, decay: float) -> None:
        _check.between(0, 1, ema_decay=decay)
        self._named, self.decay, self.steps = dict(named), decay, 0
        self.mean: dict[str, Tensor] = {name: _widen(p).clone() for name, p in named.items()}

    @torch.no_grad()
    def add(self) -> None:
        self.steps += 1
        weight = 1 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, p in self._named.items():
            self.mean[name].lerp_(_widen(p), weight)

    @contextmanager
    def swap_weights(self) -> Iterator[None]:
        own = {name: p.detach().clone() for name, p in self._named.items()}
        try:
            self._copy_weights(self.mean)
            yield
        finally:
            self._copy_weights(own)

    @torch.no_grad()
    def _copy_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, p in self._named.items():
            p.copy_(weights[name])


def _widen(p: Tensor) -> Tensor:
    return p.detach().to(torch.promote_types(p.dtype, torch.float32))


class StateGuard:
    """Checksums of all that a model holds; `check` raises if something else than a private step has changed them.

    Trained weights are compared in each step, by their bits, so that writes by `.data` or NumPy are found. What is
    frozen is compared by version in each step and by its bits in a `deep` check: in checked steps, when a checkpoint is
    saved and at the end.
    """

    def __init__(self, model: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
        self._model, self._trained = model, trained
        self._words: dict[str, tuple[int, int, Any]] = {}  # place, length and bits of a tensor in memory
        self._sums: dict[str, int] = {}
        self._others: dict[str, tuple[Tensor, int, int, int]] = {}  # tensor, its place, version, checksum
        self._held: list[tuple[str, Mapping[str, Any], str]] = []  # where the model holds what is frozen
        self.accept(deep=True)

    def accept(self, *, deep: bool = False) -> None:
        """What the model holds now is right."""
        self._sums = {name: self._checksum(name, p) for name, p in self._trained.items()}
        if deep:
            self._others = {
                name: (t, t.data_ptr(), tensor_version(t), self._checksum(name, t)) for name, t in self._find_frozen()
            }

    def find_changed(self, *, deep: bool = False) -> str:
        """The name of something that was changed; empty if there is none."""
        with torch._C.DisableTorchFunctionSubclass():
            for name, p in self._trained.items():
                if self._checksum(name, p) != self._sums[name]:
                    return name
            free: frozenset[str] | None = None
            for name, t in self._find_frozen() if deep else self._frozen_tensors():
                known = self._others.get(name)
                if known is not None and not deep and known[0] is t and known[1:3] == (t.data_ptr(), tensor_version(t)):
                    continue
                if known is not None and known[3] == self._checksum(name, t):
                    self._others[name] = t, t.data_ptr(), tensor_version(t), known[3]
                    continue
                free = self_moving_buffers(self._model) if free is None else free
                if name not in free:
                    return name
        return ""

    def check(self, *, deep: bool = False) -> None:
        """Raise if something was changed."""
        name = self.find_changed(deep=deep)
        if name:
            raise InvalidValue(
                f"{name}: was changed by something else than a private step. Nothing bounds what records do there. Let "
                "training.step alone move the model; what uses released weights and no records (a projection, an "
                'average, lookahead) goes into `with training.post_processing("why"):`.'
            )

    def _find_frozen(self) -> Iterator[tuple[str, Tensor]]:
        """What the model holds beside its trained weights: looked for again, as modules may have come or gone."""
        trained = {id(p) for p in self._trained.values()}
        whole = {id(p) for _, p in own_parameters(self._model)}  # not those that FSDP gathers and drops again
        self._held = [
            (f"{prefix}.{name}" if prefix else name, kept, name)
            for prefix, module in self._model.named_modules()
            for kept in (module._parameters, module._buffers)
            for name, t in kept.items()
            if t is not None and id(t) not in trained and (kept is module._buffers or id(t) in whole)
        ]
        return self._frozen_tensors()

    def _frozen_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, kept, key in self._held:
            t = kept.get(key)
            if t is not None:
                yield name, t

    def _checksum(self, name: str, t: Tensor) -> int:
        """The sum of the bits, read as whole numbers; 0 for what has no memory here."""
        kept = self._words.get(name)  # it keeps that memory alive: nothing else can lie at its place
        if kept is None or kept[0] != t.data_ptr() or kept[1] != t.numel():
            kept = t.data_ptr(), t.numel(), _tensor_words(t)
            if _is_dense(t):  # else it is a copy, to be made again
                self._words[name] = kept
        words = kept[2]
        return int(words.sum()) if isinstance(words, Tensor) else int(np.add.reduce(words, axis=None))


def _tensor_words(t: Tensor) -> Any:
    """The bits of a tensor as whole numbers, in its own memory: NumPy's for a CPU, where a sum costs a microsecond."""
    t = t.detach()
    if t.layout != torch.strided or t.is_meta or type(t).__name__ == "DTensor":
        return np.zeros(0, dtype=np.int64)
    dense = t if _is_dense(t) else t.contiguous()
    flat = dense.as_strided((t.numel(),), (1,)).view(torch.uint8)
    if len(flat) % 8 == 0 and flat.data_ptr() % 8 == 0 and flat.storage_offset() % 8 == 0:
        flat = flat.view(torch.int64)
    return flat.numpy() if flat.device.type == "cpu" else flat


def _is_dense(t: Tensor) -> bool:
    """Whether its numbers fill a stretch of memory, in some order."""
    left = 1
    for stride, length in sorted(zip(t.stride(), t.shape, strict=True)):
        if length > 1:
            if stride != left:
                return False
            left *= length
    return True


class Weights:
    """What a run trains, its moving average, and who may move them.

    Args:
        named: the trainable parameters of `model`.
        average: the decay of the moving average, if there is one.
        is_busy: a method that tells whether a batch is at hand. Then nobody else may let the optimizer step.
    """

    def __init__(
        self, model: nn.Module, named: Mapping[str, nn.Parameter], optimizer: Optimizer, *, average: float | None,
        is_busy: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._model, self._named, self._optimizer = model, dict(named), optimizer
        self._start = self._trainable()
        self.average = None if average is None else WeightAverage(named, decay=average)
        self._state = StateGuard(model, named)
        self.is_stepping = False
        self._is_lent = ""  # to whom: the weights are not the run's own now, or its user changes them
        self._is_busy = weakref.WeakMethod(is_busy)
        self._hook: RemovableHandle | None = None

    def refuse_others(self) -> None:
        """From now on the optimizer refuses a step that is not private, until `close`."""
        self._hook = self._optimizer.register_step_pre_hook(_Refuse(weakref.ref(self)))

    def close(self) -> None:
        """Let others step again."""
        if self._hook is not None:
            self._hook.remove()

    # --- what they are ---

    @property
    def are_averaged(self) -> bool:
        """Whether the averaged weights are in place."""
        return self._is_lent == "averaged"

    def find_changed(self) -> str:
        """The name of something that was changed by something else than a private step; empty if there is none."""
        return "" if self._is_lent == "averaged" else self._state.find_changed(deep=True)

    def check(self, *, deep: bool = False) -> None:
        """Raise if something else than a private step has changed them."""
        if self._is_lent != "averaged":
            self._state.check(deep=deep)

    def accept(self) -> None:
        """What the model holds now is right."""
        self._state.accept(deep=True)

    def check_model(self) -> None:
        """Raise unless a step may be made: with the parameters of the start, and the run's own weights in them."""
        if self._is_lent == "post-processing":
            raise InvalidValue(
                "a batch was asked for inside of post_processing. What is done there to the model must not come from "
                "records. Leave it first."
            )
        now = self._trainable()
        if now != self._start:
            odd = sorted(now.keys() ^ self._start.keys()) or ["a parameter was replaced"]
            raise InvalidValue(
                f"model: its trainable parameters are not those of the start ({', '.join(odd[:3])}). Clip, noise and "
                "optimizer are for those. Freeze or change layers first, then make a Training."
            )
        if self._is_lent:
            raise InvalidValue(
                "model: it holds its averaged weights. A step on them would be lost. Leave ema_weights()."
            )

    def _trainable(self) -> dict[str, tuple[int, torch.Size]]:
        with torch._C.DisableTorchFunctionSubclass():  # they may be tracked, and this is no use of them
            return {name: (id(p), p.shape) for name, p in self._model.named_parameters() if p.requires_grad}

    # --- who moves them ---

    def step(self, grads: Mapping[str, Tensor]) -> None:
        """Let the optimizer make its step by what was released, and by nothing else."""
        for group in self._optimizer.param_groups:
            for p in group["params"]:
                p.grad = None  # what was not released must not reach the weights
        for name, grad in grads.items():
            p = self._named[name]
            p.grad = grad if grad.dtype == p.dtype and grad.stride() == p.stride() else match_strides(p, grad)
        self.is_stepping = True
        try:
            self._step_under_guard()
        finally:
            self.is_stepping = False
            self._model.zero_grad()
        if self.average is not None:
            self.average.add()

    def _step_under_guard(self) -> None:
        """Hooks of the optimizer may look, and set a learning rate, but not move gradients or weights.

        Weights are checked after all hooks before the step, and accepted before all those after it.
        """
        before: Any = self._optimizer._optimizer_step_pre_hooks  # both in the order of their calls
        after: Any = self._optimizer._optimizer_step_post_hooks
        is_alone = {*map(type, before.values())} <= {_Refuse} and not after
        if is_alone and not (_global_optimizer_pre_hooks or _global_optimizer_post_hooks):
            try:
                self._optimizer.step()
            finally:
                self._state.accept()
            return
        with self._guard_hooks():
            self._optimizer.step()

    @contextmanager
    def _guard_hooks(self) -> Iterator[None]:
        """The last hook before an optimizer's step, and the first after it.

        What an optimizer without hooks has made is accepted too, and what a step that failed on its way; what a hook
        made is not.
        """
        params = [p for group in self._optimizer.param_groups for p in group["params"]]
        kept = [None if p.grad is None else p.grad.clone() for p in params]
        is_unseen = is_begun = False

        def check(*_: Any) -> None:
            nonlocal is_unseen, is_begun
            self._state.check()
            is_begun = is_unseen = True
            if not all(_same_gradient(p.grad, grad) for p, grad in zip(params, kept, strict=True)):
                raise InvalidValue(
                    "optimizer has a hook that changed the released gradients. Records could move the weights by it, "
                    "without clip and noise. Let hooks look, or change weights in training.post_processing."
                )

        def accept(*_: Any) -> None:
            nonlocal is_unseen
            self._state.accept()
            is_unseen = False

        hooks = self._optimizer.register_step_pre_hook(check), self._optimizer.register_step_post_hook(accept)
        after: Any = self._optimizer._optimizer_step_post_hooks
        after.move_to_end(hooks[1].id, last=False)
        try:
            yield
            is_unseen |= not is_begun
        finally:
            if is_unseen:
                accept()
            for hook in hooks:
                hook.remove()

    @contextmanager
    def use_average(self) -> Iterator[None]:
        """The averaged weights in place."""
        assert self.average is not None
        before, self._is_lent = self._is_lent, "averaged"
        try:
            with self.average.swap_weights():
                yield
        finally:
            self._is_lent = before

    @contextmanager
    def post_processing(self) -> Iterator[None]:
        """The user changes what the model holds, by no records: what it holds after it is right."""
        self._is_lent = "post-processing"
        try:
            yield
        finally:
            self._is_lent = ""
            self.accept()

    def is_raw(self) -> bool:
        """Whether an optimizer's step that is about to happen is another than ours, on gradients that are not ours."""
        if self.is_stepping:
            return False
        is_busy = self._is_busy()
        if is_busy is not None and is_busy():
            return True
        return any(p.grad is not None for group in self._optimizer.param_groups for p in group["params"])


class _Refuse:
    """A hook of an optimizer's step: it refuses one that is not private. It keeps no run, nor its ledger, alive."""

    def __init__(self, weights: "weakref.ref[Weights]") -> None:
        self._weights = weights

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Refuse":
        return self  # a copied optimizer is refused with the first

    def __call__(self, *_: Any) -> None:
        weights = self._weights()
        if weights is not None and weights.is_raw():
            raise InvalidValue(
                "optimizer.step was called by another than training.step, with a batch at hand or on gradients that "
                "training did not put there. It would move the weights by gradients without clipping and noise. Call "
                "training.step(losses) alone; in a LightningModule set automatic_optimization = False."
            )


def _same_gradient(grad: Tensor | None, kept: Tensor | None) -> bool:
    if grad is None or kept is None:
        return grad is kept
    return torch.equal(grad.nan_to_num(), kept.nan_to_num())
