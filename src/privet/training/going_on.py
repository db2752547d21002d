"""What lies in a folder, a run, a federation or a tuning, and the command that goes on with it."""

from pathlib import Path

RUN, FEDERATION, TUNING = "run.json", "federation.json", "tuning.json"  # the description of each
WEIGHTS = "checkpoint.safetensors"  # of a run


def is_federation(folder: Path) -> bool:
    """Whether a federation has its folder there."""
    return (folder / FEDERATION).exists()


def going_on(folder: Path) -> str:
    """The command that goes on with what lies in a folder.

    >>> going_on(Path("runs/a"))
    'privet train --resume runs/a'
    """
    return f"privet {'federate' if is_federation(folder) else 'train'} --resume {folder}"
