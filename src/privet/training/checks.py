"""The gate: what does not fit plan, model or batch is refused before anything happens, with the reason."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from privet import _check
from privet.clipping.clipped_sum import check_clip
from privet.clipping.rule import BoundedRule, bounded, clipping_rule
from privet.data.task import check_note
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import Randomness
from privet.per_example.forward_record import batch_size_of
from privet.per_example.gradients import unwrap_model
from privet.per_example.model_facts import reaches_any, trainable_parameters
from privet.planning import Plan
from privet.sampling.users import UserIds
from privet.training.processes import Group, is_sharded

LossFn = Callable[..., Tensor]
NOT_THESE = (torch.optim.LBFGS, torch.optim.SparseAdam)


def check_arguments(plan: Any, randomness: Any) -> None:
    if not isinstance(plan, Plan):
        raise InvalidValue(f"plan={plan!r} must be a Plan. It says what may be spent. Make one with plan(...).")
    if not isinstance(randomness, Randomness):
        raise InvalidValue(f"randomness={randomness!r} must be a Randomness. Leave it out, or use seeded(7) for tests.")


def check_start(
    model: nn.Module, optimizer: Optimizer, plan: Any, randomness: Any, group: Group | None
) -> tuple[nn.Module, dict[str, nn.Parameter], Group]:
    """The model inside of its wrappers, its trainable parameters and the processes: all that may begin a run of `plan`.

    Raises where they do not fit.
    """
    check_arguments(plan, randomness)
    group = Group() if group is None else group
    check_group(model, plan, group)
    check_clips(plan)
    inner = unwrap_model(model)
    named = trainable_parameters(inner)
    check_optimizer(optimizer, named, inner)
    return inner, named, group


def check_group(model: nn.Module, plan: Plan, group: Group) -> None:
    """Raise if a wrapper would move raw gradients between ranks, or what is asked for cannot be done in a group."""
    kinds = {type(module).__name__ for module in model.modules()}
    if "DistributedDataParallel" in kinds:
        raise Unsupported(
            "model=DistributedDataParallel averages gradients between ranks as they are, before clipping and noise. "
            "Nothing of that is private. Give the model itself, and group=processes.group()."
        )
    sharded = [name for name, p in model.named_parameters() if p.requires_grad and is_sharded(p)]
    if sharded or "FullyShardedDataParallel" in kinds:
        raise Unsupported(
            f"model: {', '.join(sharded[:3]) or 'all of it'} is trained and sharded by FSDP. Clipping watches each use "
            "of a trained parameter, and what FSDP puts in its place while the layer runs is not it. Shard frozen "
            "layers only, by fully_shard(layer), and keep what is trained whole; see docs/howto-distributed.md."
        )
    if group.size == 1 and _is_one_of_many():
        raise InvalidValue(
            "group=None in one of several processes: each would train a model of its own on the same records, and the "
            "budget would be spent once for each. Give group=processes.group()."
        )
    if group.size > 1 and plan.is_unsound:
        raise Unsupported(
            f"rule={plan.rule!r} has no guarantee, and its noise is read off the whole batch, which no rank has. "
            "Train it in one process."
        )


def _is_one_of_many() -> bool:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"  # started by torchrun


def check_clips(plan: Plan) -> None:
    clips = plan.steps.clipping_norms
    clip = float((clips[:1] if clips.strides == (0,) else clips).min())  # a constant is held once
    check_clip(clip)


def resolve_rule(plan: Plan, *, secure_noise: bool, uncertified: bool, non_private_preprocessing: str) -> BoundedRule:
    """The plan's clipping rule in the hands of the engine, if it may be trained by.

    This is where consent to a run without a guarantee counts: from here on it is in the rule.
    """
    rule = bounded(clipping_rule(plan.rule, uncertified=uncertified))
    check_rule(rule.is_uncertified, plan, secure_noise=secure_noise)
    check_preprocessing(non_private_preprocessing, uncertified=uncertified)
    return rule


def check_optimizer(optimizer: Optimizer, named: Mapping[str, nn.Parameter], model: nn.Module) -> None:
    if not named:
        raise InvalidValue("model has no trainable parameter. Nothing can be trained. Set requires_grad on some.")
    if isinstance(optimizer, NOT_THESE):
        raise Unsupported(
            f"optimizer={type(optimizer).__name__} asks for the loss again, or for sparse gradients. A private step "
            "has one noisy gradient, which is dense. Use SGD, Adam, AdamW or Adagrad."
        )
    if type(optimizer).__module__.startswith("accelerate."):
        raise InvalidValue(
            f"optimizer={type(optimizer).__name__} leaves steps out while it accumulates gradients, and a private step "
            "that is charged must be made. Give torch's own: do not prepare it, or take its .optimizer."
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if held - {id(p) for p in model.parameters()}:
        raise InvalidValue(
            "optimizer holds parameters that are not the model's. They would be trained without clipping and noise, or "
            "not at all. Make it from model.parameters()."
        )
    if not held & {id(p) for p in named.values()}:
        raise InvalidValue("optimizer holds no trainable parameter. Nothing would move. Use model.parameters().")


def check_rule(is_unsound: bool, plan: Plan, *, secure_noise: bool = False) -> None:
    """Raise if a rule without a guarantee runs under a plan that says it has one, or with noise that proves one."""
    if is_unsound and not plan.is_unsound:
        raise Unsupported(
            f"rule={plan.rule!r} has no guarantee, and the plan says it has. Its ledger would promise what does not "
            "hold. Plan with a sound rule."
        )
    if is_unsound and secure_noise:
        raise Unsupported(
            f"rule={plan.rule!r} has no guarantee that secure noise could keep. Leave it out, or use a sound rule."
        )


def check_preprocessing(non_private_preprocessing: str, *, uncertified: bool | None = None) -> None:
    """Raise if something was read off the records without noise, unless a run without a guarantee was asked for.

    None: it cannot be asked for.
    """
    check_note(non_private_preprocessing)
    if non_private_preprocessing and not uncertified:
        way = ", or plan with --method noisy-sgd and train with --uncertified: then the run has no guarantee"
        raise Unsupported(
            f"{non_private_preprocessing}: was read off the training records without noise. No epsilon covers it. "
            f"Leave it out{'' if uncertified is None else way}."
        )


def check_unit(plan: Plan, records: int, users: UserIds | None) -> None:
    """Raise unless records are what the plan protects, or it protects users and their owners are known."""
    unit = plan.recipe.budget.unit
    if unit == "client":
        raise Unsupported(
            "unit='client' protects clients of federated training, and here records are sampled. "
            "Plan with unit='example', or with unit='user' and give users=."
        )
    if unit == "user" and users is None:
        raise InvalidValue(
            "unit='user' protects users, and whose a record is, is not known. Give users=, the owner of each record."
        )
    if users is not None and len(users) != records:
        raise InvalidValue(f"users={len(users)} must be one owner for each of {records} records. Give as many.")


def count_records(dataset: Any) -> int:
    if isinstance(dataset, tuple) and dataset and all(isinstance(part, Tensor) for part in dataset):
        return len(dataset[0])
    try:
        return len(dataset)
    except TypeError:
        raise Unsupported(
            f"dataset={type(dataset).__name__} has no length. A coin is tossed for every record. "
            "Give tensors or a map-style dataset."
        ) from None


def physical_batch_rows(most: int | None, augmentations: int) -> int | None:
    """The rows of one piece: at most `most`, the augmented copies of an example together."""
    _check.whole(augmentations=augmentations)
    if most is None:
        return None
    _check.whole(max_physical_batch_size=most)
    if most < augmentations:
        raise InvalidValue(
            f"max_physical_batch_size={most} must be at least augmentations={augmentations}. The augmented copies of a "
            "record are clipped together. Use larger pieces, or fewer augmentations."
        )
    return most // augmentations * augmentations


# --- a batch ----------------------------------------------------------------------------------------


def check_batch(loss_fn: Any, batch: Sequence[Any], rows: int) -> None:
    """Raise unless a loss function came with inputs and targets of as many rows as the batch at hand."""
    if not callable(loss_fn) or len(batch) != 2:
        raise InvalidValue(
            f"step({type(loss_fn).__name__}, and {len(batch)} more) must have losses alone, or a loss function, inputs "
            "and targets. Write training.step(loss_fn(model(x), y)), or training.step(loss_fn, x, y)."
        )
    found = batch_size_of(tuple(batch))
    if found != rows:
        raise InvalidValue(_wrong_count_message(f"batch={found} rows", rows))


def check_losses(losses: Tensor, rows: int, outputs: Sequence[Tensor] | None) -> None:
    if outputs is None:
        raise InvalidValue(
            "losses of this batch were used up by a `step` that failed. Its forward pass is not recorded any more. "
            "Give the loss function: training.step(loss_fn, x, y)."
        )
    if losses.shape != (rows,):
        raise InvalidValue(_wrong_count_message(f"losses={tuple(losses.shape)}", rows))
    ends = {t.grad_fn for t in outputs if t.grad_fn is not None}
    if not reaches_any([losses.grad_fn], ends):
        raise InvalidValue(
            "losses do not come from a call of the model on the batch at hand. Its examples could not be clipped. "
            "Compute them in the loop, from model(x), with gradients on."
        )


def _wrong_count_message(given: str, rows: int) -> str:
    return (
        f"{given} must be one for each of the {rows} rows of the batch at hand. Another number is another batch, or a "
        "mean. Use reduction='none', and average what is left of each example."
    )
