"""What every command shares: errors in one line, numbers, options, progress, tables, JSON."""

import copy
import json
import math
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from privet import _check, _registry
from privet._text import format_bound, shorten
from privet.errors import InvalidValue, PrivetError

MOST_STEPS = 10**12
LONGEST_PATH, LONGEST_NAME = 4095, 255  # characters; some systems take fewer, and say so
OFTEN = 10.0  # seconds between two lines of progress in a log; a tenth of the time so far once that is more
GROUP = "privet.commands"  # entry points
WITH_PAPERS = ("reproduce", "recipes")
UNITS = ("B", "KiB", "MiB", "GiB")
MOST_SCHEDULED = 10**7  # one value is held for each
RENAMED = {
    "ahead": "plan --explore", "search": "plan --optimize", "swap": "epsilon --from PLAN --same-epsilon-by ACCOUNTANT",
    "methods": "list methods", "schedules": "list schedules",
}  # fmt: skip


Lines = list[tuple[str, str]]
Command = TypeVar("Command", bound=Callable[..., Any])


class Commands(click.Group):
    """Turns every failure into one line and an exit code: 2 a user's mistake, 1 ours, 130 Ctrl-C.

    Other distributions bring commands by entry points, which are not read for a command of our own.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is None and (cmd_name in WITH_PAPERS or cmd_name in _registry.entry_points(GROUP)):
            found = _registry.from_entry_point(GROUP, cmd_name, asked=f"`privet {cmd_name}`")
        return found

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, complete_var: str | None = None,
        standalone_mode: bool = True, **extra: Any,
    ) -> Any:  # fmt: skip
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        sys.path.append(os.getcwd())  # a user's own class, my.module:Class, may stand in the folder they are in
        try:
            code = super().main(args, prog_name or "privet", complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
            sys.exit(code if isinstance(code, int) else 0)
        except (click.exceptions.Abort, KeyboardInterrupt):
            _fail("interrupted", 130)
        except BrokenPipeError:
            # The reader left (`| head`). Nothing can be said; a second failure at exit must not be either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except click.ClickException as error:
            _fail(_usage(error), 2)
        except Exception as error:
            if os.environ.get("PRIVET_DEBUG", "") not in ("", "0"):
                traceback.print_exc()
            _fail(*_explain(error))

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = list(self.commands)  # in the order of a project, not of the alphabet
        return [*own, *sorted(set(_registry.entry_points(GROUP)) - set(own))]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; one that is gone or misspelt is answered with the one to use."""
        name = args[0]
        if name in RENAMED and self.get_command(ctx, name) is None:
            raise click.UsageError(f"`privet {name}` is now `privet {RENAMED[name]}`.", ctx)
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(
                f"No such command {shorten(name)!r}.{_check.suggestion(name, self.list_commands(ctx))}", ctx
            )
        return super().resolve_command(ctx, args)


class GroupedCommand(click.Command):
    """A command whose help has a heading above each group of options; `option_group` says which belongs where."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(param, "heading", "Other options"), []).append(record)
        for heading, records in sorted(groups.items(), key=lambda group: group[0] == "Other options"):
            with formatter.section(heading):
                formatter.write_dl(records, col_max=34)


def option_group(command: Command, options: "Sequence[Callable[[Command], Command]]", heading: str) -> Command:
    """The command with these options, in this order, below one heading of its help."""
    for option in reversed(options):
        command = option(command)
        added: Any = command.params if isinstance(command, click.Command) else vars(command)["__click_params__"]
        added[-1].heading = heading
    return command


def _explain(error: Exception) -> tuple[str, int]:
    """The message of a failure and its exit code: 2 for a user's mistake, 1 for a fault of ours."""
    if isinstance(error, PrivetError):
        return str(error), 2
    if isinstance(error, MemoryError):
        return "there is not enough memory for this. Use fewer or smaller examples, or a smaller network.", 2
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}. Check its name and permissions, or free some space.", 2
    return f"internal error: {type(error).__name__}: {error} (PRIVET_DEBUG=1 shows where)", 1


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" See {context.command_path} --help." if context is not None else ""
    if isinstance(error, click.NoSuchOption) and context is not None:
        names = [name for param in context.command.params for name in (*param.opts, *param.secondary_opts)]
        word = _check.known_word(error.option_name, [name.removeprefix("--") for name in names])
        if word is not None:  # a word of another library, or of this one in another command
            return f"No such option: {error.option_name}. Privet calls it --{word}.{hint}"
    text = error.format_message()
    return text + ("" if text.endswith((".", "?")) else ".") + hint


def _fail(message: str, code: int) -> None:
    click.echo(f"privet: {' '.join(message.split())}", err=True)
    sys.exit(code)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Warnings raised inside are printed on standard error, one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(" ".join(str(w.message).split()) for w in caught):
        click.echo(f"privet: warning: {message}", err=True)


@contextmanager
def progress_bar(first: str) -> "Iterator[Callable[..., None] | None]":
    """A bar on standard error, if someone watches: call it with (what, done, of), or with a word alone."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(first, total=None)

        def tell(what: str, done: int = 0, of: int | None = None) -> None:
            bar.update(line, description=what, completed=done, total=of)

        yield tell


@contextmanager
def progress(first: str) -> "Iterator[Callable[..., None]]":
    """The same for work that says nothing else: where nobody watches, a line now and then, as in a log."""
    with progress_bar(first) as bar:
        if bar is not None:
            yield bar
            return
        said, over = [first], threading.Event()

        def tell(what: str, done: int = 0, of: int | None = None) -> None:
            said[0] = f"{first}: {what}" + ("" if of is None else f" ({done} of {of} done)")

        def repeat() -> None:
            start = time.monotonic()
            while not over.wait(max(OFTEN, (time.monotonic() - start) / 10)):
                click.echo(f"{said[0]}, {time.monotonic() - start:.0f} s so far", err=True)

        line = threading.Thread(target=repeat, daemon=True)
        line.start()
        try:
            yield tell
        finally:
            over.set()
            line.join()


# --- values ------------------------------------------------------------------------------------------
def number(text: str) -> float:
    """A finite number, or a fraction such as 256/60000."""
    try:
        found = float(_registry.parse_number(text.strip()))
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise click.BadParameter(f"{text!r} is not a finite number or a fraction such as 256/60000")
    return found


def integer(text: str | int) -> int:
    """A whole number of at least 1; 6e4 is one too."""
    try:
        found = float(text)
    except (ValueError, OverflowError):
        found = 0.0
    if not (1 <= found <= MOST_STEPS and found.is_integer()):
        raise click.BadParameter(f"{text!r} is not a whole number from 1 to {MOST_STEPS:.0e}")
    return int(found)


class Place(click.Path):
    """A file or folder. An empty name is none: as a path it would be the folder one is in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip():
            self.fail(
                f"{value!r} is not a name. It would mean the current folder. Write `.` for that folder", param, ctx
            )
        is_long = len(str(value)) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in Path(value).parts)
        if is_long or "\0" in str(value):
            self.fail("no file can have such a name: it is too long, or has a null in it", param, ctx)
        return super().convert(value, param, ctx)


PATH = Place(path_type=Path)


class Option(click.Option):
    """An option with `former` names, which are accepted and not shown."""

    def __init__(self, names: Sequence[str], *, former: tuple[str, ...] = (), **how: Any) -> None:
        super().__init__([*names, *former], **how)
        self._shown = copy.copy(self)
        self._shown.opts = [name for name in self.opts if name not in former]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return click.Option.get_help_record(self._shown, ctx)


def adjacency_of(text: str) -> str:
    """A name of neighbouring datasets as the library has it; it is checked where it is used."""
    from privet.accounting.guarantee import parse_adjacency

    return str(parse_adjacency(text))


def size_in_bytes(text: str) -> int:
    """A size of memory: 500M, 4G, 1.5GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    size = 0.0 if found is None else float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")
    if not 1 <= size < 2**60:
        raise click.BadParameter(f"{text!r} is not a size such as 500M or 4G")
    return int(size)


def plain_name(name: str) -> str:
    """Of a task's name what may stand in a file's."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name.split(":")[0])


def free_folder(root: Path, name: str) -> Path:
    """runs/digits, or runs/digits-2 if there is one."""
    name = plain_name(name)
    tried = 1
    while (place := root / (name if tried == 1 else f"{name}-{tried}")).exists():
        tried += 1
    return place


def in_words(size: int | None) -> str:
    amount = float(size or 0)
    for unit in UNITS:
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.3g} TiB"


def check_scheduled(steps: int) -> None:
    if steps > MOST_SCHEDULED:
        raise InvalidValue(
            f"steps={steps} of a schedule must be at most {MOST_SCHEDULED:.0e}. One value is held for each."
        )


def span(first: float, last: float, *, digits: int = 6) -> str:
    """First and last, rounded up: with so much noise the budget is kept, and no share is above such a clip."""
    one, other = (format_bound(value, up=True, digits=digits) for value in (first, last))
    return one if one == other else f"{one} to {other}"


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, width: int, title: str | None = None
) -> None:
    """A table as wide as the terminal, or `width` elsewhere; the first `left` columns are aligned on the left."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=bool(title))
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=place < left)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else width, highlight=False, markup=False).print(table)


def say_written(*files: Path | None, as_json: bool) -> None:
    """Tell of files that were written behind the answer, which is printed first: if writing fails, it is not lost."""
    for file in files:
        if file is not None and not as_json:
            click.echo(f"wrote {file}")


def print_lines(lines: Lines, width: int = 10) -> None:
    """What is said below an answer: a word, and what it is about."""
    for name, text in lines:
        click.echo(f"  {name:<{width}}{text}")


def load(plan_file: Path | None, folder: Path | None) -> Any:
    """The plan in a file, or else the run in a folder; None where neither is given."""
    from privet.planning import Plan
    from privet.training.run import Run

    if plan_file is not None:
        return Plan.load(plan_file)
    return None if folder is None else Run.load(folder)


def keep_for_report(store: Callable[[], Path], note: str = "") -> None:
    """Leave what was found in the run's folder, where `privet report` looks for it; a failure is only said."""
    try:
        click.echo(f"privet: kept {store()} for `privet report`{note}", err=True)
    except PrivetError as error:
        click.echo(f"privet: warning: not kept for `privet report`: {error}", err=True)


def print_object(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, allow_nan=False))
