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
            ["make", "demo"], cwd=there, env=environment, capture_output=True, text=True, timeout=300 if again else 1500
        )
        assert done.returncode == 0, done.stderr
        assert "certified" in done.stdout
        assert "wrote demo/epsilon.png" in done.stdout
        assert ("setting up" in done.stdout) != again
        assert "the run is over: 250 of 250 steps" in done.stdout or (again and "was over already" in done.stdout)
        assert "violation" not in done.stdout
    for picture in ("epsilon.png", "attack.png"):
        assert (there / "demo" / picture).stat().st_size > 10_000
