"""What lies in a folder, a run or a federation, and the command that goes on with it."""

from pathlib import Path

FEDERATION = "federation.json"  # the description of a federation; that of a run is run.json


def is_federation(folder: Path) -> bool:
    """Whether a federation has its folder there."""
    return (folder / FEDERATION).exists()


def going_on(folder: Path) -> str:
    """The command that goes on with what lies in a folder.

    >>> going_on(Path("runs/a"))
    'privet train --resume runs/a'
    """
    return f"privet {'federate' if is_federation(folder) else 'train'} --resume {folder}"
