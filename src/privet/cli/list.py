"""`privet list`: what has a name here: methods, schedules, tasks, models, accountants, clipping rules, attacks."""

import importlib
import json
from typing import TYPE_CHECKING

import click

from privet import _check
from privet.cli.common import check_scheduled, integer, print_object
from privet.cli.recipe_options import JSON
from privet.errors import InvalidValue

if TYPE_CHECKING:
    from privet.planning import Method


@click.command("list", short_help="List methods, schedules, tasks, models, accountants, clipping rules, attacks.")
@click.argument("what", required=False)
@click.argument("name", required=False)
@click.option("--show", metavar="SHAPE", help="With schedules: print the values of this schedule.")
@click.option("--steps", type=integer, default=10, show_default=True, help="With --show: number of steps.")
@JSON
def list_command(what: str | None, name: str | None, show: str | None, steps: int, as_json: bool) -> None:
    """List the names that options and recipes accept, each with one line about it.

    WHAT is methods, schedules, tasks, models, accountants, clipping-rules, attacks or samplings. `list methods NAME`
    shows one method in full.

    \b
    Examples:
      privet list
      privet list methods
      privet list methods auto-linear
      privet list schedules --show exponential:end=0.3 --steps 5
    """
    if show is not None and what != "schedules":
        raise click.UsageError("--show needs `privet list schedules`.")
    if name is not None and what != "methods":
        raise click.UsageError(f"Got an unexpected argument ({name}). `privet list methods NAME` takes one.")
    if what is None:
        _list_all(as_json)
        return
    if what not in ("methods", *KINDS):
        known = ("methods", *KINDS)
        raise InvalidValue(f"list={what!r} is not known.{_check.suggestion(what, known)} Known: {', '.join(known)}.")
    if what == "methods":
        _list_methods(name, as_json)
    elif show is not None:
        from privet.schedules import schedule_values

        check_scheduled(steps)
        values = schedule_values(show, steps).tolist()
        click.echo(json.dumps({"schedule": show, "values": values}) if as_json else "\n".join(map(repr, values)))
    else:
        lines = _lines(what)
        if as_json:
            print_object({what.replace("-", "_"): lines})
            return
        width = max(map(len, lines))
        for key, line in lines.items():
            click.echo(f"{key:<{width}}  {line}".rstrip())
        click.echo(f"\n{KINDS[what][1]}")


def _list_all(as_json: bool) -> None:
    from privet.planning import METHODS

    found = {"methods": {row.name: row.paper for row in METHODS.values()}}
    found |= {kind.replace("-", "_"): _lines(kind) for kind in KINDS}
    if as_json:
        print_object(found)
        return
    for kind, lines in found.items():
        click.echo(f"{kind.replace('_', '-')}: {', '.join(lines)}")
    click.echo("\n`privet list NAME` has one line about each, for example `privet list schedules`.")


# --- methods ----------------------------------------------------------------------------------------
def _list_methods(name: str | None, as_json: bool) -> None:
    from privet.planning import METHODS, method

    if name is not None:
        row = method(name)
        if as_json:
            print_object(row.as_dict())
        else:
            _print_method(row)
        return
    if as_json:
        print_object({"methods": [row.as_dict() for row in METHODS.values()]})
        return
    width = max(map(len, METHODS))
    for row in METHODS.values():
        click.echo(f"{row.name:<{width}}  {row.label:<11}  {row.paper}")
        if row.caveat:
            click.echo(f"{'':<{width}}  {row.caveat}")
    click.echo("\nThe label is that of the paper. By default each name is planned by its certified variant, by pld.")


def _print_method(row: "Method") -> None:
    lines = {
        "paper": row.paper, "noise": row.noise_says, "clip": row.clip_says, "needs": ", ".join(row.needs),
        "as published": f"rule {row.published_rule}, {row.accountant}: {row.label}", "what is wrong": row.caveat,
        "by default": f"rule {row.rule}, pld: certified ({row.certified_variant})",
    }  # fmt: skip
    click.echo(row.name)
    for name, line in lines.items():
        if line:
            click.echo(f"  {name:<13} {line}")


# --- what is registered -----------------------------------------------------------------------------
KINDS = {  # where its registry is, and what is said below its list
    "schedules": ("privet.schedules", "Written shape:key=value,...; your own as my.module:Class. Try: privet list "
                  "schedules --show cosine:end=0.1"),
    "tasks": ("privet.data.task", "For --task, with options as digits:size=500; your own as my.module:task."),
    "models": ("privet.models", "For --model; your own as my.module:Net."),
    "accountants": ("privet.accounting", "For --accountant; your own as my.module:Class."),
    "clipping-rules": ("privet.planning.clipping_rules", "For --rule; your own as my.module:Class."),
    "attacks": ("privet.attacks", "For `privet attack --attack`; your own as my.module:Class."),
    "samplings": ("privet.accounting.sampling", "For --sampling."),
}  # fmt: skip


def _lines(kind: str) -> dict[str, str]:
    registry = importlib.import_module(KINDS[kind][0]).registry
    return {name: (registry.maker(name).__doc__ or "").strip().split("\n")[0] for name in registry.names()}
