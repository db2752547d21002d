"""A program that is told line by line on its standard input, for tests that kill what it does."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def told(program: str, *words: object) -> Iterator["subprocess.Popen[str]"]:
    """The Python program, running; at the end its input is closed, which ends it."""
    command = [sys.executable, "-c", program, *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
