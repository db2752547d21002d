"""What bought what: a recipe with one of its parts changed at a time, at the same budget.

Where a row has several learning rates, one is chosen on a split of the training records; all other rows keep that of
the recipe, which favours the recipe. An accountant changes the noise that it allows: what CLT, Rényi and the exact
accounting each would have added, and what is certified of it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from privet import _check
from privet.experiments.recipes import best
from privet.experiments.row import Paper, Row, Table

NAME = "ablation"
_SCHEDULES: dict[str, Mapping[str, Any]] = {
    "growing-mu": {"method": "growing-mu", "rho_noise": 3.3},
    "sensitivity-decay": {"method": "sensitivity-decay", "rho_clip": 3.3},
    "dynamic": {"method": "dynamic", "rho_noise": 3.3, "rho_clip": 3.3},
}
_ACCOUNTANTS = {"clt": "gdp", "renyi": "rdp"}
# The parts of each recipe that are changed: [what the row is called, changes of the recipe, changes of the training]
_CHANGES: dict[str, list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]] = {
    "mnist-1.2": [
        ("features-scattering", {}, {"task": "mnist:features=scattering", "lr": (0.4, 0.8)}),
        ("features-pixels", {}, {"task": "mnist", "lr": (1.0, 4.0, 16.0)}),
        ("model-tanh-cnn", {"steps": 150}, {"task": "mnist", "model": "tanh-cnn", "lr": (10.0, 20.0, 40.0)}),
        ("batch-512", {"batch": 512, "steps": 400}, {"lr": (0.1, 0.2)}),
    ],
    "adult-1": [
        ("features-paper-bins", {}, {"task": "adult:judge=test"}),
        ("model-mlp", {}, {"model": "mlp"}),
        ("batch-1024", {"batch": 1024, "steps": 300}, {"lr": (0.5, 1.0, 2.0)}),
    ],
}


def rows_of(name: str) -> list[Row]:
    """The rows of one recipe's ablation: as it is, its parts, schedules, accountants.

    >>> [row.name for row in rows_of("adult-1")][:2]
    ['whole', 'features-paper-bins']
    """
    _check.one_of(_CHANGES, ablation=name)
    whole = replace(
        best(name).row(), paper=NAME, table=name, name="whole", place="", notes=(), published={}, label=None
    )
    found = [whole]
    found += [_changed(whole, *change) for change in _CHANGES[name]]
    found += [_changed(whole, f"schedule-{word}", keys, {}) for word, keys in _SCHEDULES.items()]
    return found + [
        _changed(whole, f"accountant-{word}", {"accountant": one}, {}) for word, one in _ACCOUNTANTS.items()
    ]


def _changed(whole: Row, name: str, recipe: Mapping[str, Any], training: Mapping[str, Any]) -> Row:
    """The row with some keys changed; a tuple is a choice."""
    choices = {key: value for key, value in training.items() if isinstance(value, tuple)}
    plain = {key: value for key, value in training.items() if key not in choices}
    return replace(
        whole, name=name, recipe={**whole.recipe, **recipe}, task=plain.pop("task", whole.task),
        model=plain.pop("model", whole.model), choices=choices,
        training={key: value for key, value in {**whole.training, **plain}.items() if key not in choices},
    )  # fmt: skip


def paper() -> Paper:
    """All of them, as tables of one paper."""
    return Paper(
        name=NAME, title="Ablation: what bought what",
        tables={name: Table(title=f"{name} with one part changed, at the same budget") for name in _CHANGES},
        rows=lambda: [row for name in _CHANGES for row in rows_of(name)],
    )  # fmt: skip
