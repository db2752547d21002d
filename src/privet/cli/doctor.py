"""`privet doctor`: versions; checks of a model, a dataset and a plan before training; of plug-ins."""

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet._registry import one_line
from privet.cli.common import PATH, integer, print_object, warnings_as_lines
from privet.cli.doctor_report import Case, Report, in_words
from privet.errors import InvalidValue, PrivetError, Unsupported

if TYPE_CHECKING:
    from privet.planning import Plan
    from privet.training.checkup import Finding
    from privet.training.estimate import Estimate
    from privet.training.replace import Change

PACKAGES = ("privet", "torch", "numpy", "scipy", "matplotlib")
TRIAL = 8  # rows that a task's model is looked at with


def size_in_bytes(text: str) -> int:
    """A size of memory: 500M, 4G, 1.5GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    size = 0.0 if found is None else float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")
    if not 1 <= size < 2**60:
        raise click.BadParameter(f"{text!r} is not a size such as 500M or 4G")
    return int(size)


@click.command("doctor", short_help="Check a model, a dataset and a plan before training.")
@click.argument("make", required=False, metavar="[MODULE:MAKE]")
@click.option("--task", metavar="TASK", help="A task's dataset and network: digits, mnist, or my.module:task.")
@click.option("--model", metavar="NAME", help="Another network for the task: cnn, or my.module:Net.")
@click.option("--plan", "plan_file", type=PATH, metavar="FILE", help="A plan, as `privet plan --out` writes it.")
@click.option("--data-dir", type=PATH, metavar="FOLDER", help="Folder with the files of datasets.")
@click.option("--memory", type=size_in_bytes, metavar="SIZE", help="Memory for a step: 4G. Default: what is free now.")
@click.option("--fix", is_flag=True, help="Replace layers that cannot be trained privately, and check again.")
@click.option(
    "--rounds",
    type=integer,
    default=5,
    show_default=True,
    help="Training steps to time, private and non-private in turn.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def doctor_command(
    *, make: str | None, task: str | None, model: str | None, plan_file: Path | None, data_dir: Path | None,
    memory: int | None, fix: bool, rounds: int, as_json: bool,
) -> None:  # fmt: skip
    """Print versions; or check a model, a dataset and a plan, and say how to fix each problem.

    MODULE:MAKE is my.module:make, a function without arguments that returns (model, loss_fn, (inputs, targets)), as for
    `clipped_sum`. With --task, random inputs of the task's shapes are used, and no example of it is read.

    Exit code 0 if training can start; 2 if something prevents it (the findings are on standard output either way).

    \b
    Examples:
      privet doctor
      privet doctor --task digits --plan plan.json
      privet doctor my.module:make --plan plan.json --memory 4G
      privet doctor my.module:make --fix
    """
    machine = _machine()
    if make is None and task is None and plan_file is None:
        if model is not None or fix:
            raise click.UsageError("--model and --fix need --task, or the address of a model.")
        _print_machine(machine, as_json)
        return
    with warnings_as_lines():
        plan = None if plan_file is None else _loaded(plan_file)
        case = _case(make, task, model, plan, data_dir)
        report = _looked_at(case, plan, memory=memory, fix=fix, rounds=rounds)
    if as_json:
        print_object(machine | report.as_dict())
    else:
        report.print()
    stops = sum(finding.severity == "stop" for finding in report.findings)
    if stops:
        hint = "" if fix or not report.changes else " `--fix` shows replacements."
        raise Unsupported(f"{stops} problem{'s' * (stops > 1)} stop{'s' * (stops == 1)} training.{hint}")


# --- the machine ------------------------------------------------------------------------------------


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    if found["torch"] is not None:
        import torch

        found |= {"threads": torch.get_num_threads(), "gpu": torch.cuda.is_available()}
    return found


def _print_machine(machine: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_object(machine)
        return
    for name, value in machine.items():
        click.echo(f"{name:<11} {'not installed' if value is None else value}")


# --- what is looked at ------------------------------------------------------------------------------


def _loaded(file: Path) -> "Plan":
    from privet.planning import Plan

    return Plan.load(file)


def _case(make: str | None, task: str | None, model: str | None, plan: "Plan | None", folder: Path | None) -> Case:
    if make is not None:
        odd = {"--task": task, "--model": model, "--data-dir": folder}
        for option, given in odd.items():
            if given is not None:
                raise click.UsageError(f"{option} is for a task, and {make} makes its own model. Give one of them.")
        return _made(make)
    if plan is not None:
        task, model = task or _in_plan(plan, "task"), model or _in_plan(plan, "model")
    if task is None:
        for option, given in {"--model": model, "--data-dir": folder}.items():
            if given is not None:
                raise click.UsageError(f"{option} needs --task: the network is built for its dataset.")
        return Case()
    return _of_task(task, model, folder, plan)


def _in_plan(plan: "Plan", key: str) -> str | None:
    """What the plan's training table says, as `privet train` takes it where no option says otherwise."""
    word = plan.recipe.training.get(key)
    if word is not None and not isinstance(word, str):
        raise InvalidValue(f"{key}={word!r} in the plan must be a name. It is looked up. Give --{key} yourself.")
    return word


def _of_task(spelling: str, network: str | None, folder: Path | None, plan: "Plan | None") -> Case:
    from privet.data import Where, task
    from privet.training.estimate import random_rows

    where = None if folder is None else Where(folder=folder)
    found = _of_user(f"task={spelling!r}", lambda: task(spelling, where=where))
    what = f"model={network!r}" if network else f"the model of task={spelling!r}"
    model = _of_user(what, lambda: found.network(network))
    rows_of = _of_user(f"task={spelling!r}", lambda: random_rows(found.train, found.facts, model))
    own = found.model if isinstance(found.model, str) else type(model).__name__
    return Case(
        task=spelling, name=network or own, model=model, loss_fn=found.losses, rows_of=rows_of, batch=rows_of(TRIAL),
        records=found.size, users=found.users, not_private=found.not_private,
        findings=() if plan is None else _weighted(model, plan, {"task": spelling, "model": network}),
    )  # fmt: skip


def _weighted(model: Any, plan: "Plan", flags: dict[str, Any]) -> "tuple[Finding, ...]":
    """Put the plan's first weights in place and freeze what does not learn; what fails is a finding."""
    from privet.training.checkup import of_error
    from privet.training.parts import first_weights
    from privet.training.settings import Settings

    try:
        settings = Settings.of({**plan.recipe.training, **flags})
        _of_user(f"the model with weights={settings.weights!r}", lambda: first_weights(model, settings))
    except PrivetError as error:
        return (of_error("plan", error),)
    return ()


def _made(address: str) -> Case:
    from torch import nn

    from privet._registry import imported
    from privet.engine.batches import size_of
    from privet.training.estimate import repeated

    made = _of_user(f"model={address!r}", imported(address, kind="model"))
    if not isinstance(made, (tuple, list)) or len(made) != 3 or not isinstance(made[0], nn.Module):
        raise InvalidValue(
            f"model={address!r} must be a function without arguments that returns (model, loss_fn, (inputs, targets)). "
            f"What it returns is another {type(made).__name__}."
        )
    model, loss_fn, batch = made
    return Case(
        name=address, model=model, loss_fn=loss_fn, rows_of=repeated(batch), batch=batch, rows=size_of(batch)
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


def _looked_at(case: Case, plan: "Plan | None", *, memory: int | None, fix: bool, rounds: int) -> Report:
    from privet.training.checkup import about_model, gravest_first, of_error
    from privet.training.checkup_plan import about_plan
    from privet.training.gate import check_covered
    from privet.training.replace import fixed

    findings: list[Finding] = list(case.findings)
    changes: tuple[Change, ...] = ()
    checkup, estimated, limit = None, None, memory
    if case.model is not None:
        model = case.model
        if fix:
            model, changes = fixed(model)
        checkup = about_model(model, case.loss_fn, case.batch)
        findings += checkup.findings
        changes = changes or checkup.changes
    try:
        check_covered(case.not_private)
    except PrivetError as error:
        findings.append(of_error("dataset", error))
    if plan is not None:
        findings += about_plan(plan, records=case.records, users=case.users, rows=case.rows, parameters=case.parameters)
    if checkup is not None and checkup.explanation is not None:
        estimated, limit = _estimated(case, plan, findings, memory=memory, rounds=rounds)
    return Report(
        case=case, plan=plan, findings=gravest_first(findings), changes=changes, is_fixed=fix, checkup=checkup,
        estimate=estimated, limit=limit,
    )  # fmt: skip


def _estimated(
    case: Case, plan: "Plan | None", findings: "list[Finding]", *, memory: int | None, rounds: int
) -> "tuple[Estimate | None, int | None]":
    """The estimate for the model as training would take it; what fails is a finding."""
    from privet.training.checkup import Finding, of_failure
    from privet.training.estimate import estimate, free_memory
    from privet.training.replace import fixed

    assert case.rows_of is not None
    limit = free_memory() if memory is None else memory
    batch = case.rows or 64
    try:
        found = estimate(fixed(case.model)[0], case.loss_fn, case.rows_of, plan=plan, batch=batch, rounds=rounds,
                         limit=limit)  # fmt: skip
    except Exception as error:  # a user's own model may fail in any way, and memory may not suffice
        findings.append(of_failure(error, case.model))
        return None, limit
    if not found.fits:
        findings.append(Finding(
            severity="warn", where="model", why=f"One record at a time takes about {in_words(found.peak_bytes)}.",
            way_out=f"Use more memory than {in_words(limit)}, or a smaller model.",
        ))  # fmt: skip
    return found, limit
