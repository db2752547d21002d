"""A small disk for tests of full ones."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path, *, size: str) -> Iterator[Path]:
    """A new folder that is a disk of its own; where nothing can be mounted, the test is skipped."""
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
