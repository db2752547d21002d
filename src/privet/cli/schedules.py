"""`privet schedules`: the shapes a schedule can have."""

import json

import click

from privet.cli.shell import check_scheduled, integer


@click.command("schedules", short_help="The shapes a schedule can have.")
@click.option("--show", metavar="SHAPE", help="Print the values of this shape.")
@click.option("--steps", type=integer, default=10, show_default=True,
              help="Over how many steps.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def schedules_command(show: str | None, steps: int, as_json: bool) -> None:
    """The shapes a schedule can have, or the values of one.

    \b
    Examples:
      privet schedules
      privet schedules --show exponential:end=0.3 --steps 5
    """
    from privet import schedules

    check_scheduled(steps)
    if show is not None:
        values = schedules.values_of(show, steps).tolist()
        click.echo(json.dumps({"schedule": show, "values": values}) if as_json else "\n".join(map(repr, values)))
        return
    shapes = {name: _first_line(schedules.registry.maker(name)) for name in schedules.registry.names()}
    if as_json:
        click.echo(json.dumps({"schedules": shapes}))
        return
    width = max(map(len, shapes))
    for name, line in shapes.items():
        click.echo(f"{name:<{width}}  {line}")
    click.echo(
        "\nWritten shape:key=value,...; your own as my.module:Class. Try: privet schedules --show cosine:end=0.1"
    )


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]
