"""Commands as a user types them, and what is expected of their answers."""

import json
from typing import Any

from click.testing import CliRunner, Result

from privet.cli import main


def run(line: str, *more: str) -> Result:
    """The command, split at blanks; what may hold blanks comes in `more`."""
    return CliRunner().invoke(main, [*line.split(), *more])


def answer(line: str, *more: str) -> dict[str, Any]:
    """The one JSON object that the command prints."""
    result = run(line, *more, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(result: Result, words: str) -> None:
    """One line on standard error with these words, nothing else, and exit code 2."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("privet: ")
