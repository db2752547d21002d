"""Does any example see another? One is changed, and every tensor of the others must stay as it was."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from privet.errors import Unsupported
from privet.per_example import trial_pass
from privet.per_example.forward_record import map_tensors, tensors_in
from privet.per_example.layers.base import NoLayerRule

TOLERANCE = 1e-5  # relative: kernels may add in another order
ROUGH = {torch.float64: 1e-6, torch.float32: 1e-2}  # the same, where batches of two sizes are compared
ROUGH_GRADIENTS = {torch.float64: 1e-6, torch.float32: 1e-3}
SMALL = 1e-3  # losses below this are rounding: those of examples that a trained model is sure of
MOST_GROUPS = 32
ADVICE = "Use a layer that stays within an example (nn.GroupNorm, nn.LayerNorm), or take the statistic out."


def refuse_batch_norm(model: nn.Module) -> None:
    """Raise if a batch norm would mix the examples: the commonest mistake gets its own advice."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            channels = module.num_features
            raise Unsupported(
                f"{name or 'the model'}: {type(module).__name__} mixes the examples of a batch, so no clip bounds what "
                f"one of them does. Use nn.GroupNorm({group_count(module)}, {channels}) in its place, or call "
                f"{name + '.' if name else ''}eval() to freeze its statistics."
            )


def group_count(module: Any) -> int:
    """The groups of a GroupNorm in place of a batch norm: 32, or the next fewer that share the channels evenly.

    BatchNorm1d may stand behind a dense layer: of a group of two numbers only their signs would be left. It gets one.
    """
    channels = int(module.num_features)
    if isinstance(module, nn.BatchNorm1d):
        return 1
    return next((g for g in range(MOST_GROUPS, 1, -1) if channels % g == 0 and channels > g), 1)


# --- where examples lie -----------------------------------------------------------------------------


def growing_dim(few: Tensor, many: Tensor) -> int | None:
    """The dimension that holds the examples: the one whose size grows as their number does, from 2 to 3."""
    if few.dim() != many.dim():
        raise NoLayerRule("a tensor changes its number of dimensions with the number of examples")
    grown = [d for d in range(few.dim()) if few.shape[d] != many.shape[d]]
    if not grown:
        return None
    if len(grown) > 1 or few.shape[grown[0]] * trial_pass.MANY != many.shape[grown[0]] * (trial_pass.MANY - 1):
        raise NoLayerRule(f"sizes {tuple(few.shape)} and {tuple(many.shape)} do not follow the number of examples")
    return grown[0]


def changed_rows(a: Tensor, b: Tensor, dim: int, tolerance: float = TOLERANCE, least: float = 0.0) -> Tensor:
    """Which rows differ, (rows,), by more than the tolerance of the largest number, or of `least` if that is more."""
    x, y = _example_rows(a, dim), _example_rows(b, dim)
    if not x.is_floating_point() and not x.is_complex():
        return (x != y).any(1)
    scale = x.nan_to_num(0, 0, 0).abs().amax().clamp(min=least) if x.numel() else x.new_zeros(())
    return ((x - y).abs() > tolerance * scale).any(1) | (x.isfinite() != y.isfinite()).any(1)


def _example_rows(t: Tensor, dim: int) -> Tensor:
    return t.movedim(dim, 0).flatten(1) if t.dim() > 1 else t[:, None]


# --- checks -----------------------------------------------------------------------------------------


def check_buffers(base: trial_pass.TrialPass, other: trial_pass.TrialPass) -> None:
    """Raise if other data, or more of them, leave other values in a buffer, which is published without noise."""
    for name, before in base.buffers.items():
        if not torch.equal(before, other.buffers[name]):
            raise Unsupported(
                f"{name}: the model writes its data into this buffer, without noise. Leave it out, or freeze it by "
                "eval()."
            )
    for name, state in base.extra.items():
        if state != other.extra[name]:
            raise Unsupported(
                f"{name or 'the model itself'}: get_extra_state() holds data of the batch, and is saved without noise. "
                "Leave it out."
            )


def check_path(base: trial_pass.TrialPass) -> None:
    """Raise TooHard if values of the data decide what the model does: each example must then be run alone."""
    if base.decisions:
        raise NoLayerRule(f"its path depends on the data, by {base.decisions[0]}")


def check_independent(
    few: trial_pass.TrialPass, base: trial_pass.TrialPass, other: trial_pass.TrialPass, which: int
) -> None:
    for small, big, changed in zip(few.modules, base.modules, other.modules, strict=True):
        name = big[0]
        if _other_rows_moved(small[2], big[2], changed[2], which) and not _other_rows_moved(
            small[1], big[1], changed[1], which
        ):
            raise Unsupported(
                f"{name or 'the model itself'}: an example's output depends on the other examples of the batch, so no "
                f"clip bounds what one of them does. {ADVICE}"
            )
    if _other_rows_moved(few.outputs, base.outputs, other.outputs, which):
        raise Unsupported(f"the loss of one example depends on the others. {ADVICE}")


def _other_rows_moved(few: Sequence[Tensor], base: Sequence[Tensor], other: Sequence[Tensor], which: int) -> bool:
    """Whether the row of an example that was not changed has moved."""
    for small, a, b in zip(few, base, other, strict=False):
        try:
            dim = growing_dim(small, a)
        except NoLayerRule:
            continue  # packed or otherwise shapeless: judged by what comes of it
        if dim is None or a.shape != b.shape:
            continue
        changed = changed_rows(a, b, dim).cpu()
        rows = torch.arange(len(changed))
        together, strided = rows // (len(rows) // trial_pass.MANY) != which, rows % trial_pass.MANY != which
        if bool(changed[together].any()) and bool(changed[strided].any()):
            return True
    return False


def check_single_example(model: nn.Module, run: trial_pass.Run, *, is_random: bool) -> None:
    """Raise if an example's loss depends on how many others there are, or on its place among them."""
    with trial_pass.evaluating(model) if is_random else nullcontext():
        base = trial_pass.detached_losses(model, run, trial_pass.first_examples(trial_pass.MANY))[1:]
        other = trial_pass.detached_losses(model, run, trial_pass.second_and_third)
    differ = changed_rows(base, other, 0, ROUGH.get(base.dtype, 0.1), SMALL)
    if bool(differ.any()) and not _is_noisy(model, run, is_random=is_random):
        raise Unsupported(
            "the loss of one example depends on the size of the batch, or on its place there, so the others move when "
            "one is added. Leave len(batch) out of the model and the loss; the plan divides by the batch it expects."
        )


def _is_noisy(model: nn.Module, run: trial_pass.Run, *, is_random: bool) -> bool:
    """Whether two passes over the same examples differ though the model is evaluating: nothing can then be said."""
    if not is_random:
        return False
    with trial_pass.evaluating(model):
        before = trial_pass.detached_losses(model, run, trial_pass.first_examples(trial_pass.MANY))
        after = trial_pass.detached_losses(model, run, trial_pass.first_examples(trial_pass.MANY), seed=2)
    return bool(changed_rows(before, after, 0).any())


def check_whole_batch(model: nn.Module, run: trial_pass.Run) -> None:
    """Raise if, in a batch of this size, exchanging half of the examples moves the losses of the other half."""
    base = trial_pass.detached_losses(model, run, lambda t: t)
    if len(base) <= trial_pass.MANY:
        return
    half = torch.randperm(len(base), generator=torch.Generator().manual_seed(0)) % 2 == 0
    for rows in (half, ~half):
        other = trial_pass.detached_losses(model, run, trial_pass.exchange_rows(rows))
        if bool(changed_rows(base, other, 0).cpu()[~rows].any()):
            raise Unsupported(f"the loss of one example depends on the others in a batch of {len(base)}. {ADVICE}")


def check_independent_gradients(model: nn.Module, run: trial_pass.Run, named: Mapping[str, Tensor]) -> None:
    """Raise TooHard if a change of one example moves the gradients of others, though it may not move their losses.

    `h.detach() + s * (h - h.detach())` is h, and so is what a backward pass of one's own belongs to.
    """
    base = trial_pass.losses_with_graph(model, run, trial_pass.first_examples(trial_pass.MANY))
    for which in range(trial_pass.MANY):
        other = trial_pass.with_changed_example(
            lambda take: trial_pass.losses_with_graph(model, run, take), which, FACTORS[1]
        )
        weights = torch.tensor([0.0 if k == which else 1.0 + k for k in range(trial_pass.MANY)]).to(base)
        pairs = [(a.double(), b.double()) for a, b in zip(*[
            torch.autograd.grad(one @ weights, list(named.values()), retain_graph=True, materialize_grads=True,
                                allow_unused=True) for one in (base, other)
        ], strict=True)]  # fmt: skip
        far = torch.stack([(a - b).norm() for a, b in pairs]).norm()
        size = torch.stack([a.norm() for a, _ in pairs]).norm()
        if bool(far > ROUGH_GRADIENTS.get(base.dtype, 0.1) * size + 1e-9):
            raise NoLayerRule(
                "the gradient of one example's loss depends on the others, by values that are detached or a backward "
                "pass of its own"
            )


FACTORS = 1.25, -4.0  # of an example that is changed: a little, and so that what was likely is not


def check_losses(loss_fn: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> None:
    """Raise if the loss of one example depends on the outputs or targets of others, also where no gradient tells.

    A detached mean of the batch and classes counted in it move the losses, and autograd does not see it.
    """
    if type(outputs) not in (Tensor, tuple, list, dict):
        return  # a class of its own, which cannot be taken apart here
    rows = len(tensors_in([outputs])[0])

    def at(take: trial_pass.Take) -> Tensor:
        torch.manual_seed(0)
        return loss_fn(*map_tensors((outputs, targets), lambda t: take(t) if t.dim() and len(t) == rows else t))

    with torch.no_grad(), torch.random.fork_rng(devices=trial_pass.cuda_devices(tensors_in([outputs]))):
        base = at(trial_pass.first_examples(trial_pass.MANY))
        others = [
            (which, trial_pass.with_changed_example(at, which, factor))
            for which in range(trial_pass.MANY) for factor in FACTORS
        ]  # fmt: skip
        alone = at(trial_pass.second_and_third)
    still = torch.arange(trial_pass.MANY)
    if any(bool(changed_rows(base, other, 0).cpu()[still != which].any()) for which, other in others):
        raise Unsupported(f"the loss of one example depends on the others. {ADVICE}")
    if bool(changed_rows(base[1:], alone, 0, ROUGH.get(base.dtype, 0.1), SMALL).any()):
        raise Unsupported(
            "the loss of one example depends on the size of the batch, so the others move when one is "
            "added. Leave len(batch) out of the loss; the plan divides by the batch it expects."
        )
