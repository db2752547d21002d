"""`privet serve`: the planner in the browser."""

from pathlib import Path

import click

from privet.cli.common import PATH
from privet.errors import MissingExtra


@click.command("serve", short_help="The planner in the browser, on this machine.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; any but this machine's "
                                                                     "own needs a token.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0 takes a free one.")
@click.option("--token", metavar="WORD", help="Access token. Made automatically where other machines can connect.")
@click.option("--runs", type=PATH, default=Path("runs"), show_default=True, metavar="FOLDER",
              help="The folder whose runs are shown.")  # fmt: skip
@click.option("--open/--no-open", "opened", default=False, help="Open the page in a browser.")
def serve_command(*, host: str, port: int, token: str | None, runs: Path, opened: bool) -> None:
    """Plan in the browser: change the budget, batch size or rho, and see the certified noise multiplier at once.

    Everything runs on this machine, and the page loads nothing from elsewhere. Ctrl-C stops it.

    \b
    Examples:
      privet serve --open
      privet serve --runs runs --port 9000
      privet serve --host 0.0.0.0        # prints an address with a token; use it on a network you trust
    """
    try:
        from privet.web.guard import make_door
        from privet.web.server import bind_socket, page_address, server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise MissingExtra(
            f"{error.name} is not installed. The page needs it. Run: pip install 'privet[web]'"
        ) from None
    door = make_door(host, token)
    with bind_socket(host, port) as listening:
        place = page_address(door, host, listening.getsockname()[1])
        click.echo(f"the planner is at {place} (Ctrl-C stops it)")
        if door.token is not None:
            click.echo("  anyone with the token can open it; the connection is not encrypted", err=True)
        if opened:
            click.launch(place)
        server(door=door, runs=runs).run(sockets=[listening])
