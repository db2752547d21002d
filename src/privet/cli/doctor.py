"""`privet doctor`: versions; checks of a model, a dataset and a plan before training; of plug-ins."""

import platform
import shutil
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet._registry import import_address
from privet._text import one_line, versions
from privet.cli.common import PATH, in_words, integer, print_object, size_in_bytes, warnings_as_lines
from privet.cli.recipe_options import JSON
from privet.errors import InvalidValue, PrivetError, Unsupported

if TYPE_CHECKING:
    from privet.diagnosis.estimate import Estimate
    from privet.diagnosis.model_check import Checkup, ModelIssue
    from privet.diagnosis.replace_layers import LayerReplacement
    from privet.planning import Plan

PACKAGES = ("privet", "torch", "numpy", "scipy", "matplotlib")
TRIAL = 8  # rows that a task's model is looked at with
LINE = "from privet.diagnosis.replace_layers import replace_layers; model, changes = replace_layers(model)"
WIDEST = 28  # of the column of names


@click.command("doctor", short_help="Check a model, a dataset and a plan before training.")
@click.argument("make", required=False, metavar="[MODULE:MAKE]")
@click.option("--task", metavar="TASK", help="A task's dataset and network: digits, mnist, or my.module:task.")
@click.option("--model", metavar="NAME", help="Another network for the task: cnn, or my.module:Net.")
@click.option("--plan", "plan_file", type=PATH, metavar="FILE", help="A plan, as `privet plan --out` writes it.")
@click.option("--data-dir", type=PATH, metavar="FOLDER", help="Folder with the files of datasets.")
@click.option("--memory", type=size_in_bytes, metavar="SIZE", help="Memory for a step: 4G. Default: what is free now.")
@click.option("--fix", is_flag=True, help="Replace layers that cannot be trained privately, and check again.")
@click.option("--rounds", type=integer, default=5, show_default=True, help="Training steps to time, private and "
              "non-private in turn.")  # fmt: skip
@click.option("--plugin", metavar="ADDRESS", help="Check your own schedule, accountant, clipping rule, layer rule, "
              "attack or dataset function, my_lab.module:Class, against the contract of its kind.")  # fmt: skip
@JSON
def doctor_command(
    *, make: str | None, task: str | None, model: str | None, plan_file: Path | None, data_dir: Path | None,
    memory: int | None, fix: bool, rounds: int, plugin: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Print versions; or check a model, a dataset and a plan, and say how to fix each problem.

    MODULE:MAKE is my.module:make, a function without arguments that returns (model, loss_fn, (inputs, targets)), as for
    `clipped_sum`. With --task, random inputs of the task's shapes are used, and no example of it is read.

    Exit code 0 if training can start; 2 if something prevents it (the findings are on standard output either way).
    With --plugin: 0 if it keeps its contract, 1 if not.

    \b
    Examples:
      privet doctor
      privet doctor --task digits --plan plan.json
      privet doctor my.module:make --plan plan.json --memory 4G
      privet doctor my.module:make --fix
      privet doctor --plugin my_lab.shapes:Sawtooth
    """
    if plugin is not None:
        return _check_plugin(plugin, make, as_json)
    machine = _machine()
    if make is None and task is None and plan_file is None:
        if model is not None or fix:
            raise click.UsageError("--model and --fix need --task, or the address of a model.")
        if as_json:
            print_object(machine)
            return 0
        for name, value in machine.items():
            click.echo(f"{name:<11} {'not installed' if value is None else value}")
        return 0
    from privet.planning import Plan

    with warnings_as_lines():
        plan = None if plan_file is None else Plan.load(plan_file)
        case = _case(make, task, model, plan, data_dir)
        report = _examine(case, plan, memory=memory, fix=fix, rounds=rounds)
    if as_json:
        print_object(machine | report.as_dict())
    else:
        report.print()
    stops = sum(finding.severity == "stop" for finding in report.findings)
    if stops:
        hint = "" if fix or not report.changes else " `--fix` shows replacements."
        raise Unsupported(f"{stops} problem{'s' * (stops > 1)} stop{'s' * (stops == 1)} training.{hint}")
    return 0


# --- the machine ------------------------------------------------------------------------------------
def _machine() -> dict[str, Any]:
    made_by: dict[str, Any] = {name: None if text == "unknown" else text for name, text in versions(*PACKAGES).items()}
    found = {"python": made_by.pop("python"), "system": platform.platform()} | made_by
    if found["torch"] is not None:
        import torch

        found |= {"threads": torch.get_num_threads(), "gpu": torch.cuda.is_available()}
    return found


# --- a plug-in --------------------------------------------------------------------------------------
def _check_plugin(address: str, make: str | None, as_json: bool) -> int:
    from privet.attacks.contract import ATTACK
    from privet.diagnosis.plugin_check import check_plugin

    with warnings_as_lines():
        made = None if make is None else _of_user(f"model={make!r}", import_address(make, kind="model"))
        found = check_plugin(address, more=(ATTACK,), make=made)
    if as_json:
        print_object(found.as_dict())
    else:
        click.echo(f"{found.address}: {found.kind}")
        for outcome in found.outcomes:
            why = "" if outcome.passes else f": {outcome.why}"
            click.echo(f"  {'pass' if outcome.passes else 'FAIL'}  {outcome.check}{why}")
    return 0 if found.passes else 1


# --- what is looked at ------------------------------------------------------------------------------
def _case(make: str | None, task: str | None, model: str | None, plan: "Plan | None", folder: Path | None) -> "Case":
    if make is not None:
        for option, given in {"--task": task, "--model": model, "--data-dir": folder}.items():
            if given is not None:
                raise click.UsageError(f"{option} is for a task, and {make} makes its own model. Give one of them.")
        return _model_case(make)
    if plan is not None:
        task, model = task or _in_plan(plan, "task"), model or _in_plan(plan, "model")
    if task is None:
        for option, given in {"--model": model, "--data-dir": folder}.items():
            if given is not None:
                raise click.UsageError(f"{option} needs --task: the network is built for its dataset.")
        return Case()
    return _task_case(task, model, folder, plan)


def _in_plan(plan: "Plan", key: str) -> str | None:
    """What the plan's training table says, as `privet train` takes it where no option says otherwise."""
    word = plan.recipe.training.get(key)
    if word is not None and not isinstance(word, str):
        raise InvalidValue(f"{key}={word!r} in the plan must be a name. It is looked up. Give --{key} yourself.")
    return word


def _task_case(spelling: str, network: str | None, folder: Path | None, plan: "Plan | None") -> "Case":
    from privet.data import DataFolders, task
    from privet.diagnosis.estimate import random_rows

    where = None if folder is None else DataFolders(folder=folder)
    found = _of_user(f"task={spelling!r}", lambda: task(spelling, where=where))
    what = f"model={network!r}" if network else f"the model of task={spelling!r}"
    model = _of_user(what, lambda: found.network(network))
    rows_of = _of_user(f"task={spelling!r}", lambda: random_rows(found.train, found.facts, model))
    own = found.model if isinstance(found.model, str) else type(model).__name__
    return Case(
        task=spelling, name=network or own, model=model, loss_fn=found.losses, rows_of=rows_of, batch=rows_of(TRIAL),
        records=found.size, users=found.users, non_private_preprocessing=found.non_private_preprocessing,
        findings=() if plan is None else _load_weights(model, plan, {"task": spelling, "model": network}),
    )  # fmt: skip


def _load_weights(model: Any, plan: "Plan", flags: dict[str, Any]) -> "tuple[ModelIssue, ...]":
    """Put the plan's first weights in place and freeze what does not learn; what fails is a finding."""
    from privet.diagnosis.model_check import issue_from_error
    from privet.training.settings import Settings
    from privet.training.setup import load_first_weights

    try:
        settings = Settings.of({**plan.recipe.training, **flags})
        _of_user(f"the model with weights={settings.weights!r}", lambda: load_first_weights(model, settings))
    except PrivetError as error:
        return (issue_from_error("plan", error),)
    return ()


def _model_case(address: str) -> "Case":
    from torch import nn

    from privet.diagnosis.estimate import repeat_rows
    from privet.per_example.forward_record import batch_size_of

    made = _of_user(f"model={address!r}", import_address(address, kind="model"))
    if not isinstance(made, (tuple, list)) or len(made) != 3 or not isinstance(made[0], nn.Module):
        raise InvalidValue(
            f"model={address!r} must be a function without arguments that returns (model, loss_fn, (inputs, targets)). "
            f"What it returns is another {type(made).__name__}."
        )
    model, loss_fn, batch = made
    return Case(
        name=address, model=model, loss_fn=loss_fn, rows_of=repeat_rows(batch), batch=batch, rows=batch_size_of(batch)
    )  # fmt: skip


def _of_user(what: str, make: Any) -> Any:
    """What a user's own function makes; it may fail in any way."""
    try:
        return make()
    except PrivetError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {one_line(error)}"
        raise InvalidValue(f"{what} cannot be made: {text}. PRIVET_DEBUG=1 shows where.") from error


# --- the look ---------------------------------------------------------------------------------------
def _examine(case: "Case", plan: "Plan | None", *, memory: int | None, fix: bool, rounds: int) -> "Report":
    from privet.diagnosis.model_check import examine_model, issue_from_error, sort_by_severity
    from privet.diagnosis.plan_check import examine_plan
    from privet.diagnosis.replace_layers import replace_layers
    from privet.training.checks import check_preprocessing

    findings: list[ModelIssue] = list(case.findings)
    changes: tuple[LayerReplacement, ...] = ()
    checkup, estimated, limit = None, None, memory
    if case.model is not None:
        model = case.model
        if fix:
            model, changes = replace_layers(model)
        checkup = examine_model(model, case.loss_fn, case.batch)
        findings += checkup.findings
        changes = changes or checkup.changes
    try:
        check_preprocessing(case.non_private_preprocessing)
    except PrivetError as error:
        findings.append(issue_from_error("dataset", error))
    if plan is not None:
        findings += examine_plan(
            plan, records=case.records, users=case.users, rows=case.rows, parameters=case.parameters
        )
    if checkup is not None and checkup.explanation is not None:
        estimated, limit = _estimate(case, plan, findings, memory=memory, rounds=rounds)
    return Report(
        case=case, plan=plan, findings=sort_by_severity(findings), changes=changes, is_fixed=fix, checkup=checkup,
        estimate=estimated, limit=limit,
    )  # fmt: skip


def _estimate(
    case: "Case", plan: "Plan | None", findings: "list[ModelIssue]", *, memory: int | None, rounds: int
) -> "tuple[Estimate | None, int | None]":
    """The estimate for the model as training would take it; what fails is a finding."""
    from privet.diagnosis.estimate import estimate, free_memory
    from privet.diagnosis.model_check import ModelIssue, issue_from_failure
    from privet.diagnosis.replace_layers import replace_layers

    assert case.rows_of is not None
    limit = free_memory() if memory is None else memory
    batch = case.rows or 64
    try:
        found = estimate(
            replace_layers(case.model)[0], case.loss_fn, case.rows_of, plan=plan, batch_size=batch, rounds=rounds,
            limit=limit,
        )  # fmt: skip
    except Exception as error:  # a user's own model may fail in any way, and memory may not suffice
        findings.append(issue_from_failure(error, case.model))
        return None, limit
    if not found.fits:
        findings.append(ModelIssue(
            severity="warn", where="model", why=f"One record at a time takes about {in_words(found.peak_bytes)}.",
            way_out=f"Use more memory than {in_words(limit)}, or a smaller model.",
        ))  # fmt: skip
    return found, limit


# --- the report -------------------------------------------------------------------------------------
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
    non_private_preprocessing: str = ""  # what the task read off its records
    findings: "tuple[ModelIssue, ...]" = ()  # of what the plan's table does to the model

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
    findings: "tuple[ModelIssue, ...]"
    changes: "tuple[LayerReplacement, ...]"
    is_fixed: bool
    checkup: "Checkup | None"
    estimate: "Estimate | None"
    limit: int | None

    @property
    def epochs(self) -> float | None:
        """Times that a record takes part, on average."""
        from privet.diagnosis.estimate import mean_and_largest_rate

        return None if self.plan is None else mean_and_largest_rate(self.plan)[0] * len(self.plan.steps)

    @property
    def seconds(self) -> float | None:
        """Of all steps of the plan, by their mean batch."""
        from privet.diagnosis.estimate import mean_and_largest_rate

        if self.plan is None or self.estimate is None:
            return None
        mean, largest = mean_and_largest_rate(self.plan)
        return self.estimate.private_ms / 1e3 * len(self.plan.steps) * mean / largest

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "task": self.case.task, "model": self.case.name, "findings": [asdict(one) for one in self.findings],
            "changes": [asdict(change) for change in self.changes], "fixed": self.is_fixed,
        }  # fmt: skip
        if self.checkup is not None and self.checkup.explanation is not None:
            found |= self.checkup.explanation.as_dict()
        if self.plan is not None:
            found["plan"] = {
                "guarantee": self.plan.guarantee.as_dict(), "steps": len(self.plan.steps),
                "batch_size": self.plan.batch_size,
                "epochs": self.epochs, "seconds": self.seconds,
            }  # fmt: skip
        if self.estimate is not None:
            found["milliseconds"] = {"private": self.estimate.private_ms, "plain": self.estimate.plain_ms}
            found["estimate"] = asdict(self.estimate) | {"limit": self.limit}
        return found

    def print(self) -> None:
        """The same for people."""
        click.echo(str(self.case))
        if self.plan is not None:
            steps = self.plan.steps
            click.echo(f"plan: {self.plan.guarantee}")
            click.echo(
                f"      {len(steps)} steps, expected batch size {self.plan.batch_size:.6g}, "
                f"{self.plan.recipe.dataset_size:,} {self.plan.recipe.budget.unit}s ({self.epochs:.4g} epochs), "
                f"{steps.sampling} sampling, rule {self.plan.rule}"
            )
        if self.is_fixed:
            _print_changes(self.changes)
        click.echo()
        _print_findings(self.findings)
        if self.checkup is not None and self.checkup.explanation is not None:
            click.echo(f"\nclipping{', once the replacements are made' if self.checkup.changes else ''}:")
            click.echo(textwrap.indent(str(self.checkup.explanation), "  "))
            click.echo("  agrees with autograd example by example")
        if self.estimate is not None:
            _print_estimate(self.estimate, self.limit, self.seconds)


def _print_changes(changes: "tuple[LayerReplacement, ...]") -> None:
    if not changes:
        click.echo("nothing to replace")
        return
    click.echo("replaced:")
    for change in changes:
        click.echo(f"  {change.name or 'the model'}: {change.before} -> {change.after}; {change.weights}")
    click.echo(f"add to your code, before the optimizer is created:\n  {LINE}")


def _print_findings(findings: "tuple[ModelIssue, ...]") -> None:
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


def _print_estimate(found: "Estimate", limit: int | None, seconds: float | None) -> None:
    scaled = "" if found.rows == found.batch_size else f" (from trials of {found.rows})"
    click.echo(
        f"\nprivate step {found.private_ms:.2f} ms, non-private {found.plain_ms:.2f} ms: "
        f"{found.private_ms / found.plain_ms:.2f} times, at batch size {found.batch_size}{scaled}"
        + ("" if seconds is None else f"; the whole plan about {_time(seconds)}")
    )
    if found.peak_bytes is None or found.bytes_each is None:
        click.echo("memory was not measured")
        return
    advice = "a whole batch fits" if found.physical is None else f"use max_physical_batch_size={found.physical}"
    there = "" if limit is None else f" of {in_words(limit)}"
    click.echo(
        f"memory about {in_words(found.peak_bytes)}{there}, {in_words(found.bytes_each)} per example in a physical "
        f"batch: {advice}"
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
