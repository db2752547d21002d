"""Files of format 1, in which Privet 0.1 wrote plans, runs and totals: read, and called what they are called today."""

from collections.abc import Callable, Mapping
from typing import Any

# What a table of format 1 called otherwise. Hashes are taken over these names, so that a plan has one hash whichever
# names its file has; the ledger of a run still has them.
_GUARANTEE_1 = {"adjacency": "relation"}
_RECIPE_1 = _GUARANTEE_1 | {
    "dataset_size": "size", "batch_size": "batch", "sample_rate": "rate", "noise_multiplier": "noise",
    "clipping_norm": "clip", "uncertified": "as_published", "trial_count_distribution": "trials_law",
}  # fmt: skip
_TRAINING_1 = {
    "max_physical_batch_size": "max_physical_batch", "augmentations": "views", "ema_decay": "average",
    "steps_per_line": "reserve",
}  # fmt: skip
_STEPS_1 = {
    "sample_rate": "rate", "peak_noise_multiplier": "scale", "noise_schedule": "noise", "batch_schedule": "batch",
    "clip_schedule": "clip",
}  # fmt: skip
_RUN_1 = {"uncertified": "as_published", "non_private_preprocessing": "not_private"}
TABLES_1 = {"recipe": _RECIPE_1, "training": _TRAINING_1, "steps": _STEPS_1, "run": _RUN_1} | dict.fromkeys(
    ("guarantee", "certified", "one_run"), _GUARANTEE_1
)


def to_format_1(name: str, table: Any) -> Any:
    """The table `name` (a plan's recipe, steps or guarantee; a run) in the names of format 1."""
    return _rename_keys(table, TABLES_1[name], {"replace-one": "replace"}, to_format_1)


def from_format_1(name: str, table: Any) -> Any:
    """A table in the names of format 1, in those of today."""
    old = {before: now for now, before in TABLES_1[name].items()}
    return _rename_keys(table, old, {"replace": "replace-one"}, from_format_1)


def _rename_keys(
    table: Any, names: Mapping[str, str], adjacencies: Mapping[str, str], inner: Callable[[str, Any], Any]
) -> Any:
    if not isinstance(table, Mapping):
        return table
    found = {}
    for key, value in table.items():
        if key in ("training", "settings", "changed"):
            value = inner("training", value)
        elif key in ("adjacency", "relation") and isinstance(value, str):
            value = adjacencies.get(value, value)
        found[names.get(key, key)] = value
    return found
