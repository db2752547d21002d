"""Where files of a dataset are found: the folder asked for, PRIVET_DATA, the user's cache; else the public source."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where to look: `folder` (`--data-dir`), then PRIVET_DATA, then the cache; and whether to fetch what is missing."""

    folder: Path | None = None
    download: bool = True

    def folders(self) -> list[Path]:
        """The folders in the order they are looked at."""
        given = [self.folder, os.environ.get("PRIVET_DATA"), os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/privet"]
        return [Path(folder).expanduser() for folder in given if folder]
