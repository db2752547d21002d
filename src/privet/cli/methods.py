"""`privet methods`: the methods of the papers, and what is proven of them."""

from typing import TYPE_CHECKING

import click

from privet.cli.shell import print_object

if TYPE_CHECKING:
    from privet.planning import Method


@click.command("methods", short_help="The methods of the papers, and what is proven of them.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def methods_command(name: str | None, as_json: bool) -> None:
    """The methods of the papers: paper, label as published, and what is wrong; or one of them in full.

    \b
    Examples:
      privet methods
      privet methods auto-linear
    """
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
        if row.wrong:
            click.echo(f"{'':<{width}}  {row.wrong}")
    click.echo("\nThe label is that of the paper. By default each name means its sound sibling, certified by pld.")


def _print_method(row: "Method") -> None:
    """One method in full."""
    lines = {
        "paper": row.paper,
        "noise": row.noise_says,
        "clip": row.clip_says,
        "needs": ", ".join(row.needs),
        "as published": f"rule {row.published_rule}, {row.accountant}: {row.label}",
        "what is wrong": row.wrong,
        "by default": f"rule {row.rule}, pld: certified ({row.sibling})",
    }
    click.echo(row.name)
    for name, line in lines.items():
        if line:
            click.echo(f"  {name:<13} {line}")
