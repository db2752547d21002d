"""Saving a run and taking it up again: weights from the checkpoint, spending from the ledger alone.

save(training, scheduler=scheduler)                       # now and then, between two steps
training = resume(model, optimizer, dataset, plan, out="runs/a", scheduler=scheduler)

What was charged after the last save stays charged and is never done again. Coins and noise are drawn afresh.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from privet import _check
from privet.clipping.rule import bounded
from privet.errors import InvalidValue
from privet.ledger.file import LedgerFile
from privet.ledger.format import LedgerPosition
from privet.planning import Plan
from privet.training import checkpoint, checkpoint_format
from privet.training.processes import Group, is_sharded
from privet.training.training import Training


def save(training: Training, *, scheduler: LRScheduler | None = None, extra: dict[str, Any] | None = None) -> str:
    """Replace the checkpoint in the run's folder; gives its checksum. `extra` is kept beside it: plain values.

    In a group rank 0 alone writes, at its own time; the other ranks get an empty checksum.

    Raises:
        InvalidValue: the run has no folder, a batch is at hand, a weight is not finite or was moved by something else
            than a private step, or the disk is full.
    """
    mark = training.position
    if not training.group.is_first:
        return ""
    if training.out is None or mark is None:
        raise InvalidValue(
            "out=None keeps nothing. A checkpoint lies beside its ledger. Give out='runs/a', for example."
        )
    if training.has_pending_batch:
        raise InvalidValue("a batch is pending, or the averaged weights are in place. Save between two steps.")
    training.check_state()
    training.note()
    average = training.average
    return checkpoint.save(
        training.out, model=_unsharded_part(training.model), optimizer=training.optimizer, scheduler=scheduler,
        rule_state=bounded(training.rule).state_dict(),
        average=None if average is None else average.mean,
        extra={
            "step": training.steps_done, "plan": training.plan.hash, "lines": mark.lines, "digest": mark.digest,
            "averaged": 0 if average is None else average.steps, "more": dict(extra or {}),
        },
    )  # fmt: skip


def resume(
    model: nn.Module, optimizer: Optimizer, dataset: Any, plan: Plan, *, out: str | Path,
    scheduler: LRScheduler | None = None, **options: Any,
) -> Training:  # fmt: skip
    """The run in the folder `out`, at the ledger's next step, with the weights of its last checkpoint.

    Make model, optimizer and scheduler as for a new run; `options` are those of `Training`. Without a checkpoint the
    weights stay as they are; what is charged is charged. In a group all ranks call it; ledger and checkpoint are those
    of rank 0, and there may be more ranks or fewer than before.

    Raises:
        InvalidValue: the ledger is damaged, of another plan, open elsewhere, or older than the checkpoint; or the
            checkpoint is damaged or of another model, optimizer or scheduler. Then nothing is changed.
    """
    group: Group = options.get("group") or Group()
    with _checkpoint_folder(out, group) as folder, ExitStack() as undo:
        kept = checkpoint.peek(folder) if (folder / checkpoint_format.NAME).exists() else None
        mark = None if kept is None else _ledger_position(out, kept, plan)
        ledger = _open_ledger(out, plan, mark, group)
        if ledger is not None:
            undo.callback(ledger.close)
        training = Training(model, optimizer, dataset, plan, out=out, ledger=ledger, **options)
        if kept is not None:
            _check_same(out, training, kept)
            checkpoint.load(folder, model=_unsharded_part(model), optimizer=optimizer, scheduler=scheduler)
            _restore_states(training, kept)
            training.accept_state()
        undo.pop_all()  # the training closes it
    return training


@contextmanager
def _checkpoint_folder(out: str | Path, group: Group) -> Iterator[Path]:
    """Where the checkpoint is: in the run's folder, or in a copy of rank 0's for a rank that may not see that."""
    if group.size == 1:
        yield Path(out)
        return
    file = Path(out) / checkpoint_format.NAME
    content = b""

    def read() -> None:
        nonlocal content
        content = checkpoint_format.read_bytes(file) if group.is_first and file.exists() else b""

    group.run_on_first(read)
    content = group.broadcast_bytes(content)
    if group.is_first:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory() as copy:
        if content:
            (Path(copy) / checkpoint_format.NAME).write_bytes(content)
        yield Path(copy)


def _open_ledger(out: str | Path, plan: Plan, mark: LedgerPosition | None, group: Group) -> LedgerFile | None:
    ledger: LedgerFile | None = None

    def open_it() -> None:
        nonlocal ledger
        ledger = LedgerFile.open(out, plan, at_least=mark) if group.is_first else None

    group.run_on_first(open_it)
    return ledger


def _unsharded_part(model: nn.Module) -> nn.Module:
    """The model, or what of it is not sharded over ranks: the same parameters and buffers under the same names."""
    if not any(is_sharded(p) for p in model.parameters()):
        return model
    found = nn.Module()
    for name, value in model.state_dict(keep_vars=True).items():
        *path, last = name.split(".")
        at = found
        for word in path:
            if word not in at._modules:
                at.add_module(word, nn.Module())
            at = at.get_submodule(word)
        if isinstance(value, nn.Parameter) and not is_sharded(value):
            at.register_parameter(last, value)
        elif not is_sharded(value):
            at.register_buffer(last, value)
    return found


def _ledger_position(out: str | Path, kept: checkpoint.Checkpoint, plan: Plan) -> LedgerPosition:
    """The place in the ledger that the checkpoint has seen."""
    extra = kept.extra
    try:
        _check.whole(least=0, step=extra["step"], lines=extra["lines"], averaged=extra["averaged"])
        mark = LedgerPosition(extra["lines"], str(extra["digest"]))
        of = extra["plan"]
    except (KeyError, InvalidValue) as error:
        raise InvalidValue(f"{out}: the checkpoint is not one of a run: {error}. Begin a new run.") from None
    if of != plan.hash:
        raise InvalidValue(f"{out}: the checkpoint is of another plan. Its ledger counts for that. Give that plan.")
    return mark


def _check_same(out: str | Path, training: Training, kept: checkpoint.Checkpoint) -> None:
    if (training.average is None) != (kept.average is None):
        raise InvalidValue(
            f"{out}: ema_decay={None if training.average is None else training.average.decay!r} does not fit the "
            "checkpoint. The average is made along the way. Give what the run began with."
        )
    if bounded(training.rule).remembers != (kept.rule_state is not None):
        raise InvalidValue(f"{out}: the checkpoint is of another clipping rule. Give the plan that the run began with.")


def _restore_states(training: Training, kept: checkpoint.Checkpoint) -> None:
    bounded(training.rule).load_state_dict(kept.rule_state)
    if training.average is not None and kept.average is not None:
        training.average.steps = kept.extra["averaged"]
        for name, mean in training.average.mean.items():
            mean.copy_(kept.average[name])
