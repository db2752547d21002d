"""A look at a model before training: findings, each with the way out.

A copy of the model is run on a few rows, random ones as a rule, so that nothing in it moves and no record is looked at.
"""

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privet._text import join_names, one_line, shorten
from privet.diagnosis.replace_layers import LayerReplacement, check_sizes, mixes_examples, replace_layers
from privet.errors import PrivetError
from privet.per_example.gradients import Explanation, Work, explain, prepare_work, unwrap_model
from privet.per_example.model_facts import trainable_parameters
from privet.per_example.trial_pass import FEW, MANY, change_example, first_examples, same_random_state, swap_example

Severity = Literal["stop", "warn", "slow", "note"]
ORDER: tuple[Severity, ...] = ("stop", "warn", "slow", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIssue:
    """One thing found. `stop`: do not start; `warn`: better not; `slow`: costs time; `note`: good to know."""

    severity: Severity
    where: str  # a module, a parameter, `model`, `dataset` or `plan`
    why: str
    way_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What was found of a model, the gravest first; replacements that make it trainable; how the engine goes through.

    The explanation is that of the model with its replacements made, and None if it still cannot be trained.
    """

    findings: tuple[ModelIssue, ...]
    changes: tuple[LayerReplacement, ...] = ()
    explanation: Explanation | None = field(default=None, hash=False)


def sort_by_severity(found: "list[ModelIssue] | tuple[ModelIssue, ...]") -> tuple[ModelIssue, ...]:
    return tuple(sorted(found, key=lambda finding: ORDER.index(finding.severity)))


def issue_from_error(where: str, error: PrivetError, *, names: Collection[str] = ()) -> ModelIssue:
    """What a gate refuses: the last sentence of a message says what to do, the first words may be a name."""
    head, _, rest = str(error).partition(": ")
    where, text = (head, rest) if rest and head in names else (where, str(error))
    why, stop, way_out = text.rpartition(". ")
    return ModelIssue(severity="stop", where=where, why=f"{why}." if stop else text, way_out=way_out if stop else "")


def issue_from_failure(error: Exception, model: nn.Module) -> ModelIssue:
    if isinstance(error, PrivetError):
        kinds = (model.named_modules(), model.named_parameters(), model.named_buffers())
        return issue_from_error("model", error, names={name for kind in kinds for name, _ in kind} - {""})
    return ModelIssue(
        severity="stop", where="model",
        why=f"It fails on a trial batch: {type(error).__name__}: {shorten(one_line(error), 200)}.",
        way_out="Check that the network fits the shapes and types of the records.",
    )  # fmt: skip


# --- a model ----------------------------------------------------------------------------------------


def examine_model(model: nn.Module, loss_fn: Callable[..., Tensor], batch: Any) -> Checkup:
    """What stops, slows or surprises when this model is trained privately; `batch` as for `clipped_sum`.

    >>> model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    >>> batch = torch.randn(8, 4), torch.randint(3, (8,))
    >>> found = examine_model(model, nn.CrossEntropyLoss(reduction="none"), batch)
    >>> [(f.severity, f.where, f.way_out) for f in found.findings]
    [('stop', '1', 'Use GroupNorm(1, 6) in its place.')]
    """
    model = unwrap_model(model)
    try:
        check_sizes(model)
        mended, changes = replace_layers(model)
    except PrivetError as error:
        return Checkup(findings=(issue_from_failure(error, model),))
    found = [
        ModelIssue(severity="stop", where=change.name or "model", why=f"{change.before} {change.why}.",
                   way_out=f"Use {change.after} in its place.") for change in changes
    ]  # fmt: skip
    found += [*_parameter_issues(model), *_mode_issues(model)]
    left = [_manual_replacement_issue(name, m) for name, m in mended.named_modules() if mixes_examples(m)]
    if left or not trainable_parameters(mended):
        return Checkup(findings=sort_by_severity(found + left), changes=changes)
    more, explanation = _trial_issues(mended, loss_fn, batch)
    return Checkup(findings=sort_by_severity(found + more), changes=changes, explanation=explanation)


def _manual_replacement_issue(name: str, module: nn.Module) -> ModelIssue:
    return ModelIssue(
        severity="stop", where=name or "model",
        why=f"{type(module).__name__} is a batch norm: it mixes the examples of a batch, and has no exact counterpart.",
        way_out="Replace it by hand with a norm within an example (nn.GroupNorm, nn.LayerNorm), or leave it out.",
    )  # fmt: skip


def _parameter_issues(model: nn.Module) -> Iterator[ModelIssue]:
    named = dict(model.named_parameters())
    if not trainable_parameters(model):
        yield ModelIssue(severity="stop", where="model", why="It has no trainable parameter: nothing can be clipped.",
                      way_out="Set requires_grad on some.")  # fmt: skip
    for name, tensor in [*named.items(), *model.named_buffers()]:
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            yield ModelIssue(
                severity="stop", where=name,
                why="It holds NaN or infinity: gradients that are not finite count as zero, and only noise is left.",
                way_out="Initialise or load the weights again.",
            )  # fmt: skip
    frozen = [name for name, p in named.items() if not p.requires_grad]
    if frozen:
        count = sum(named[name].numel() for name in frozen)
        yield ModelIssue(severity="note", where=join_names(frozen, 4),
                      why=f"Frozen: {count} parameters are neither clipped nor noised.")  # fmt: skip
    for names in _tied_parameters(model):
        yield ModelIssue(
            severity="note", where=join_names(names, 4), why="Tied: one parameter, clipped and noised once."
        )
    half = [name for name, p in trainable_parameters(model).items() if p.dtype in (torch.float16, torch.bfloat16)]
    if half:
        yield ModelIssue(
            severity="note", where=join_names(half, 4),
            why="Half precision: norms, clipping and noise are in float32; updates are rounded to the parameters.",
            way_out="Give the loss function to the step: training.step(loss_fn, x, y).",
        )  # fmt: skip


def _tied_parameters(model: nn.Module) -> list[list[str]]:
    names: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    return [same for same in names.values() if len(same) > 1]


def _mode_issues(model: nn.Module) -> Iterator[ModelIssue]:
    if not model.training:
        yield ModelIssue(severity="warn", where="model", why="It is in eval mode: dropout is off while it is trained.",
                      way_out="Call model.train() first.")  # fmt: skip
    kept = [name for name, module in model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and not mixes_examples(module)]  # fmt: skip
    if kept:
        yield ModelIssue(
            severity="warn", where=join_names(kept, 4),
            why="Batch norm in eval mode: it uses its stored statistics, which are published with the model.",
            way_out="Keep it in eval(), and only if the statistics come from public data.",
        )  # fmt: skip


# --- a model on trial -------------------------------------------------------------------------------


def _trial_issues(model: nn.Module, loss_fn: Any, batch: Any) -> tuple[list[ModelIssue], Explanation | None]:
    try:
        work = prepare_work(model, loss_fn, batch)
        found = list(_buffer_issues(work))
        if any(finding.severity == "stop" for finding in found):
            return found, None
        explanation = explain(model, loss_fn, batch)
        return found + list(_speed_issues(explanation)) + list(_unused_issues(work)), explanation
    except Exception as error:  # a user's own model or loss may fail in any way
        return [issue_from_failure(error, model)], None


def _buffer_issues(work: Work) -> Iterator[ModelIssue]:
    """Buffers are published with the model: what they learn of the data in a forward pass has no noise."""
    before = dict(work.model.named_buffers())
    if not before:
        return
    few, many = _buffers_after(work, first_examples(FEW)), _buffers_after(work, first_examples(MANY))
    try:
        other = _buffers_after(work, change_example(0))
    except Exception:  # some models take no other values than those of the data
        other = _buffers_after(work, swap_example(0))
    for name, was in before.items():
        if not (_same_values(many.get(name), other.get(name)) and _same_values(many.get(name), few.get(name))):
            yield ModelIssue(
                severity="stop", where=name,
                why="A forward pass writes its data, or how many records there are, into this buffer, without noise. "
                "It would be published with the model.",
                way_out="Leave it out, or freeze it by eval().",
            )  # fmt: skip
        elif not _same_values(was, many.get(name)):
            why = "This buffer changes in a forward pass, whatever the data: it gives nothing away."
            yield ModelIssue(severity="note", where=name, why=why)


def _buffers_after(work: Work, take: Any) -> dict[str, Tensor]:
    """The buffers after a pass of a copy of the model, always from the same start."""
    model = copy.deepcopy(work.model)
    with same_random_state(model), torch.enable_grad():
        work.losses(model, take)
        return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def _same_values(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


def _speed_issues(explanation: Explanation) -> Iterator[ModelIssue]:
    if explanation.whole:
        yield ModelIssue(
            severity="slow", where="model", why=f"It is run example by example: {explanation.whole}.",
            way_out="Exact, but slow. Write that part with torch functions that keep a row per example.",
        )  # fmt: skip
    for line in explanation.uses:
        if line.is_slow:
            yield ModelIssue(
                severity="slow", where=join_names(list(line.parameters), 4),
                why=f"No rule for {line.function}: a gradient is made and held for each example.",
                way_out="Exact, but slow. Use another layer, or teach the engine this one: docs/howto-layer.md.",
            )  # fmt: skip


def _unused_issues(work: Work) -> Iterator[ModelIssue]:
    with same_random_state(work.model), torch.enable_grad():
        losses = work.losses(None, first_examples(MANY))
        grads = torch.autograd.grad(losses.sum(), list(work.named.values()), allow_unused=True)
    names = [name for name, grad in zip(work.named, grads, strict=True) if grad is None]
    if names:
        yield ModelIssue(severity="note", where=join_names(names, 4),
                      why="The loss does not depend on them here: they get noise alone.",
                      way_out="Freeze them: requires_grad_(False).")  # fmt: skip
