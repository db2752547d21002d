"""What `privet doctor` found, as text and as plain values."""

import shutil
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from privet.planning import Plan
    from privet.training.checkup import Checkup, Finding
    from privet.training.estimate import Estimate
    from privet.training.replace import Change

LINE = "from privet.training.replace import fixed; model, changes = fixed(model)"
WIDEST = 28  # of the column of names
UNITS = ("B", "KiB", "MiB", "GiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is looked at: a model (or none, a plan alone), its loss, rows for it, and what is known of the records."""

    task: str | None = None
    name: str | None = None  # of the model
    model: Any = None
    loss_fn: Any = None
    rows_of: Callable[[int], Any] | None = None
    batch: Any = None
    records: int | None = None
    users: Any = None
    rows: int | None = None  # of a user's own batch
    not_private: str = ""  # what the task read off its records
    findings: "tuple[Finding, ...]" = ()  # of what the plan's table does to the model

    @property
    def parameters(self) -> int:
        """How many numbers are trained, as far as they are known."""
        from torch.nn.parameter import is_lazy

        return 0 if self.model is None else sum(
            p.numel() for p in self.model.parameters() if p.requires_grad and not is_lazy(p)
        )  # fmt: skip

    def __str__(self) -> str:
        if self.model is None:
            return "only a plan; give --task or the address of a model to check more"
        before = "" if self.task is None else f"task {self.task}, "
        tensors = sum(p.requires_grad for p in self.model.parameters())
        return f"{before}model {self.name}: {self.parameters} parameters to train in {tensors} tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that is printed. `changes` are made if `is_fixed`, else they are what `--fix` would make."""

    case: Case
    plan: "Plan | None"
    findings: "tuple[Finding, ...]"
    changes: "tuple[Change, ...]"
    is_fixed: bool
    checkup: "Checkup | None"
    estimate: "Estimate | None"
    limit: int | None

    @property
    def epochs(self) -> float | None:
        """Times that a record takes part, on average."""
        from privet.training.estimate import rates_of

        return None if self.plan is None else rates_of(self.plan)[0] * len(self.plan.steps)

    @property
    def seconds(self) -> float | None:
        """Of all steps of the plan, by their mean batch."""
        from privet.training.estimate import rates_of

        if self.plan is None or self.estimate is None:
            return None
        mean, largest = rates_of(self.plan)
        return self.estimate.private_ms / 1e3 * len(self.plan.steps) * mean / largest

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found: dict[str, Any] = {
            "task": self.case.task, "model": self.case.name, "findings": [one.as_dict() for one in self.findings],
            "changes": [change.as_dict() for change in self.changes], "fixed": self.is_fixed,
        }  # fmt: skip
        if self.checkup is not None and self.checkup.explanation is not None:
            found |= self.checkup.explanation.as_dict()
        if self.plan is not None:
            found["plan"] = {
                "guarantee": self.plan.guarantee.as_dict(), "steps": len(self.plan.steps), "batch": self.plan.batch,
                "epochs": self.epochs, "seconds": self.seconds,
            }  # fmt: skip
        if self.estimate is not None:
            found["milliseconds"] = {"private": self.estimate.private_ms, "plain": self.estimate.plain_ms}
            found["estimate"] = self.estimate.as_dict() | {"limit": self.limit}
        return found

    def print(self) -> None:
        """The same for people."""
        click.echo(str(self.case))
        if self.plan is not None:
            steps = self.plan.steps
            click.echo(f"plan: {self.plan.guarantee}")
            click.echo(
                f"      {len(steps)} steps, expected batch size {self.plan.batch:.6g}, {self.plan.recipe.size:,} "
                f"{self.plan.recipe.budget.unit}s ({self.epochs:.4g} epochs), {steps.sampling} sampling, rule "
                f"{self.plan.rule}"
            )
        if self.is_fixed:
            _print_changes(self.changes)
        click.echo()
        _print_findings(self.findings)
        if self.checkup is not None and self.checkup.explanation is not None:
            _print_ways(str(self.checkup.explanation), bool(self.checkup.changes))
        if self.estimate is not None:
            _print_estimate(self.estimate, self.limit, self.seconds)


def _print_changes(changes: "tuple[Change, ...]") -> None:
    if not changes:
        click.echo("nothing to replace")
        return
    click.echo("replaced:")
    for change in changes:
        click.echo(f"  {change.name or 'the model'}: {change.before} -> {change.after}; {change.weights}")
    click.echo(f"add to your code, before the optimizer is created:\n  {LINE}")


def _print_findings(findings: "tuple[Finding, ...]") -> None:
    if not findings:
        click.echo("nothing found: training can start")
        return
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 120
    names = min(WIDEST, max(len(finding.where) for finding in findings))
    for finding in findings:
        head = f"{finding.severity:<4}  {finding.where:<{names}}  "
        lines = [finding.why] + ([f"-> {finding.way_out}"] if finding.way_out else [])
        if len(finding.where) > names:
            click.echo(head.rstrip())
            head = " " * (names + 8)
        for line in lines:
            click.echo(textwrap.fill(line, max(width - 1, names + 40), initial_indent=head,
                                     subsequent_indent=" " * (names + 8)))  # fmt: skip
            head = " " * (names + 8)


def _print_ways(ways: str, is_mended: bool) -> None:
    click.echo(f"\nclipping{', once the replacements are made' if is_mended else ''}:")
    click.echo(textwrap.indent(ways, "  "))
    click.echo("  agrees with autograd example by example")


def _print_estimate(found: "Estimate", limit: int | None, seconds: float | None) -> None:
    scaled = "" if found.rows == found.batch else f" (from trials of {found.rows})"
    click.echo(
        f"\nprivate step {found.private_ms:.2f} ms, non-private {found.plain_ms:.2f} ms: "
        f"{found.private_ms / found.plain_ms:.2f} times, at batch size {found.batch}{scaled}"
        + ("" if seconds is None else f"; the whole plan about {_time(seconds)}")
    )
    if found.peak_bytes is None or found.bytes_each is None:
        click.echo("memory was not measured")
        return
    advice = "a whole batch fits" if found.physical is None else f"use max_physical_batch={found.physical}"
    there = "" if limit is None else f" of {in_words(limit)}"
    click.echo(
        f"memory about {in_words(found.peak_bytes)}{there}, {in_words(found.bytes_each)} per example in a physical "
        f"batch: {advice}"
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def in_words(size: int | None) -> str:
    """Bytes as people read them."""
    amount = float(size or 0)
    for unit in UNITS:
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.3g} TiB"
