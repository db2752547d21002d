"""A program that is told line by line on its standard input, for tests that kill what it does."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent


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


def import_path(*folders: Path) -> str:
    """PYTHONPATH of a process that imports from these folders too: in front, so that the Privet under test stays."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def environment() -> dict[str, str]:
    """That of a process which finds the tasks of the tests, and works in one thread."""
    return os.environ | {"PYTHONPATH": import_path(TESTS), "OMP_NUM_THREADS": "1"}
