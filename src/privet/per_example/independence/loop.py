"""Does a user's own loop treat each example by itself? The verdict on a step that was followed (`loop_following`).

A record that was not exchanged must keep its loss in each counterfactual batch, wherever it stands, and so must the
gradient of its loss: `l.detach() + s * (l - l.detach())` is l whatever s is, and its gradient is not. The batch with
exchanged records must be followed to both, else the step is refused: what cannot be followed could hide anything.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from privet.errors import Unsupported
from privet.per_example.forms import without_autocast
from privet.per_example.forward_record import tensors_in
from privet.per_example.independence.counterfactuals import EXCHANGED, EXTREMES, ORDERS, Known
from privet.per_example.independence.following import Following
from privet.per_example.independence.loop_calls import call_double, random_state
from privet.per_example.independence.loop_memory import Unknown, describe, has_hooks, nodes_below
from privet.per_example.independence.model import SMALL, TOLERANCE, changed_rows
from privet.per_example.interception import track_parameters

WAY_OUT = "Compute it with torch operations from the batch in this loop, or in the dataset, one record at a time."
COUPLED = (
    "the loss of one example depends on the records of others in this loop, by values that no gradient tells of: a "
    "mean of the batch, its hardest example, classes counted in it, inputs mixed or scaled over the batch. So no clip "
    "bounds what one record does. Compute it from one example at a time or from public constants."
)
TURNED = (
    "the gradient of one example's loss depends on the records of others in this loop, though its value may not: "
    "losses that are detached in part, or chosen over the batch. So no clip bounds what one record does. Compute it "
    "from one example at a time or from public constants."
)
ORDERED = (
    "the loss of one example depends on its place in the batch in this loop: on the order or the number of rows. Both "
    "move when a record is added, so no clip bounds what one record does. Treat every row alike."
)
SCALED = (
    "what the loop does follows the number of rows of the batch, as losses or inputs that are scaled by the number of "
    "rows do. That number is private: the others move when one is added. Leave len(batch) out; the plan divides by the "
    "batch it expects."
)


AGREE, COARSE = {torch.float64: 1e-5, torch.float32: 1e-4}, 0.02  # of a row's gradient
ROUNDING = 1e-6  # of the largest row, or of 1: a trained model is sure of its examples, and p - 1 is rounding


class LoopCheck(Following):  # type: ignore[no-untyped-call]
    """Follows one batch and its counterfactuals through a loop, and says whether its losses may be clipped."""

    _way_back = ""  # why the way back from the losses could not be followed

    def check(self, losses: Tensor) -> None:
        """Raise if a record that was not exchanged has another loss, or if that could not be followed."""
        active = set(self._active)  # what fails on the way back was followed to the losses
        grads = self._follow_gradients(losses)
        self._leave_mode_stack()
        with torch._C.DisableTorchFunctionSubclass():
            known = self._lookup(losses)
            self._raise_unless_followed(known)
            if not known.is_data:
                raise Unsupported(
                    "losses do not come from the batch at hand: nothing of it enters them. Its records were sampled, "
                    "and others would be trained on. Compute them from the batch that the loop was given."
                )
            self._check_backward(losses)
            grads = self._select_followed(grads)
            used = known.numbers.union(*(self._lookup(grad).numbers for grad in grads))
            self.seen.numbers = [self.seen.numbers[place] for place in sorted(used)]  # others may be for a log
            changed = partial(changed_rows, dim=0, tolerance=TOLERANCE, least=SMALL)
            fails = {v: v in self._misplaced or not self._rows_agree(losses, v, changed) for v in active}
            turns = {v: not all(self._rows_agree(grad, v, _changed_gradients) for grad in grads) for v in self._active}
        if any(fails.get(variant) for variant in (EXCHANGED, *EXTREMES)):
            raise Unsupported(COUPLED)
        if any(turns.get(variant) for variant in (EXCHANGED, *EXTREMES)):
            raise Unsupported(TURNED)
        orders = [fails[variant] or turns.get(variant, False) for variant in ORDERS if variant in fails]
        if orders and all(orders):
            raise Unsupported(ORDERED)
        if not orders:
            self.seen.not_followed.append("the order of the examples")
        if self.memory.follows_rows(self.seen):
            raise Unsupported(SCALED)

    def follow_function(self, model: nn.Module, loss_fn: Callable[..., Any], inputs: Any, targets: Any) -> None:
        """Check what `loss_fn(model(inputs), targets)` gives, with all that it takes from the loop around it."""
        for t in tensors_in([inputs, targets]):
            known = self._lookup(t)
            self._raise_unless_followed(known)
            if known.is_given and t.dim() and len(t) == self._rows:
                self._refuse(f"an input that does not come from the batch, {describe(t)}")
        self._raise_unless_followed()
        given = ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
        start = random_state(model)
        try:
            self.before_model(model, given)
            out = call_double(model, given, start)
            with torch.enable_grad():
                for t in tensors_in([out]):
                    if t.is_floating_point() or t.is_complex():
                        t.requires_grad_()  # so that the way back to it can be looked at
                self.after_model(given, out)
                with track_parameters(
                    [], _Through()
                ):  # it may use weights, in a penalty: `clipped_sum` runs it once more
                    losses = loss_fn(out, targets)
        finally:
            start.restore(model)
        if isinstance(losses, Tensor) and losses.shape == (self._rows,):
            self.check(losses)

    def _raise_unless_followed(self, known: Known | None = None) -> None:
        reason = self._failure or ("" if known is None else known.reason)
        if reason:
            self.memory.suspect_since = reason.since if isinstance(reason, Unknown) else None
            raise Unsupported(
                f"the loop could not be followed from its batch to its losses: {reason}. So it is not known whether "
                f"one example's loss depends on others. {WAY_OUT}"
            )

    def _check_backward(self, losses: Tensor) -> None:
        """Raise if code of the user's own runs on the way back from the losses: nothing follows that."""
        outputs = [t for call in self._calls for t in call.outputs]
        ends = [t.grad_fn for t in outputs if t.grad_fn is not None]
        own = {node for call in self._calls for node in call.hooked}
        for node in nodes_below([losses.grad_fn], set(ends)):
            if node not in ends and isinstance(node, torch.autograd.function.BackwardCFunction):
                self._refuse(f"{type(node).__name__}, a backward pass of one's own")
            if has_hooks(node):
                self._refuse(f"a hook on {node.name()}, which changes gradients")
        for node in nodes_below(ends):  # inside the model: put there after its call
            if node not in own and has_hooks(node):
                self._refuse(f"a hook on {node.name()} of the model, which changes gradients")
        if any(t.grad_fn is not None and t._backward_hooks for t in (*self._kept, losses, *outputs)):
            self._refuse("a hook on a tensor, which changes gradients")
        self._raise_unless_followed()

    def _follow_gradients(self, losses: Tensor) -> list[Tensor]:
        """Gradients of the losses where they come back to the model: the way back is followed like the way there."""
        edges = self._model_edges(losses)
        if self._failure or not edges:
            return []
        try:
            with without_autocast(losses.device.type):
                ones = torch.ones_like(losses)
                found = torch.autograd.grad(losses, edges, ones, retain_graph=True, allow_unused=True)
        except Exception as error:  # of hooks, say, which are refused
            self._refuse(f"{type(error).__name__} on the way back from the losses")
            found = ()
        self._way_back, self._failure = self._failure, ""
        return [grad for grad in found if grad is not None and grad.dim() and len(grad) == self._rows]

    def _model_edges(self, losses: Tensor) -> list[GradientEdge]:
        """Where the way back meets the model first: behind it, as from its loss to its logits, is the model's own."""
        edges = [edge for call in self._calls for edge in call.edges]
        met = {edge.node for edge in edges}.intersection(nodes_below([losses.grad_fn], {edge.node for edge in edges}))
        behind = set(nodes_below([below for node in met for below, _ in node.next_functions]))
        return [edge for edge in edges if edge.node in met - behind]

    def _select_followed(self, grads: list[Tensor]) -> list[Tensor]:
        """Those gradients, if they were followed; where records choose a length, autograd knows the real one alone."""
        reasons = [self._way_back, *[self._lookup(grad).reason for grad in grads]]
        if any(reasons) and self.seen.shapes_tell:
            self.seen.not_followed.append("gradients of losses that are taken apart by the values of records")
            return []
        self._refuse(next((reason for reason in reasons if reason), ""))
        self._raise_unless_followed()
        return grads

    def _rows_agree(self, t: Tensor, variant: int, differ: Callable[[Tensor, Tensor], Tensor]) -> bool:
        """Whether each record that stayed has its row of `t`, at its place or where the model was given it."""
        other = self._counterfactual(t, variant)
        if other.shape != t.shape:
            return False
        for rows in (self._others.real_rows(variant), *[call.rows.get(variant) for call in self._calls]):
            if rows is not None and int((rows < 0).sum()) <= self._others.most_changed(variant):
                expected = t.detach()[rows.clamp(min=0).to(t.device)]
                if not bool((differ(expected, other).cpu() & (rows >= 0)).any()):
                    return True
        return False


class _Through:
    """Listens to the uses of weights, and leaves them as they are."""

    def call(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


def _changed_gradients(grads: Tensor, others: Tensor) -> Tensor:
    """Which rows differ, (rows,): each by itself, as each is clipped by itself, and beside rounding of all."""
    a, b = (t.detach().reshape(len(t), -1).to(torch.complex128 if t.is_complex() else torch.float64)
            for t in (grads, others))  # fmt: skip
    norms, far = a.nan_to_num(0, 0, 0).norm(dim=1), (a - b).nan_to_num(0, 0, 0).norm(dim=1)
    allowed = AGREE.get(grads.dtype, COARSE) * norms + ROUNDING * norms.amax().clamp(min=1.0)
    differ: Tensor = (far > allowed) | (a.isfinite() != b.isfinite()).any(1)
    return differ
