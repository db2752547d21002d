"""The two commands the README leads with, from nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.prove
@pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="not a source tree")
def test_make_demo_from_nothing_and_again(tmp_path: Path) -> None:
    there = tmp_path / "privet"
    skipped = shutil.ignore_patterns(".venv", ".git", "demo", ".*_cache", "__pycache__", ".hypothesis", "*.egg-info")
    shutil.copytree(ROOT, there, ignore=skipped)
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")
    }
    for again in (False, True):
        done = subprocess.run(
            ["make", "demo"], cwd=there, env=environment, capture_output=True, text=True, timeout=60 if again else 1500
        )
        assert done.returncode == 0, done.stderr
        assert "certified" in done.stdout
        assert "wrote demo/epsilon.png" in done.stdout
        assert ("setting up" in done.stdout) != again
    assert (there / "demo" / "epsilon.png").stat().st_size > 10_000
