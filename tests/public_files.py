"""Small files in the places of public ones."""

from pathlib import Path

import pytest

from privet.data import DataFolders


def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataFolders:
    """A folder of the test's own, no other, and no network."""
    monkeypatch.delenv("PRIVET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return DataFolders(folder=tmp_path / "data", download=False)


def put(where: DataFolders, name: str, content: bytes) -> None:
    """Write `<folder>/<name>`."""
    assert where.folder is not None
    path = where.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
