"""What bought what: a recipe with one of its parts changed at a time, at the budget that its accountant is asked for.

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
_SAME_RATE = "the learning rate is that of the recipe, which favours the recipe"
# The parts of each recipe that are changed: [what the row is called, changes of the recipe, changes of the training]
_CHANGES: dict[str, list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]] = {
    "mnist-1.2": [
        ("features-scattering", {}, {"task": "mnist:features=scattering", "lr": (0.4, 0.8)}),
        ("features-pixels", {}, {"task": "mnist", "lr": (0.25, 1.0, 4.0)}),
        ("model-tanh-cnn", {"steps": 150}, {"task": "mnist", "model": "tanh-cnn", "lr": (0.5, 1.0, 2.0)}),
        ("batch-512", {"batch": 512, "steps": 400}, {"lr": (0.1, 0.2)}),
    ],
    "adult-1": [
        ("features-paper-bins", {}, {"task": "adult:judge=test"}),
        ("model-mlp", {}, {"model": "mlp"}),
        ("batch-1024", {"batch": 1024, "steps": 300}, {"lr": (0.5, 1.0, 2.0)}),
    ],
    "fashion-mnist-1.2": [
        ("features-scattering", {}, {"task": "fashion-mnist:features=scattering", "lr": (0.4, 0.8)}),
        ("features-pixels", {}, {"task": "fashion-mnist", "lr": (0.25, 1.0, 4.0)}),
        ("batch-512", {"batch": 512, "steps": 400}, {"lr": (0.1, 0.2)}),
    ],
    "imdb-1": [
        ("features-common-words", {}, {"task": "imdb:features=set,words=16384"}),
        ("model-with-bias", {}, {"model": "bag:bias=learned"}),
        ("batch-1024", {"batch": 1024, "steps": 200}, {"lr": (6.0, 12.0, 24.0)}),
    ],
    "names-1": [
        ("features-pairs", {}, {"task": "names:features=set,words=4096,order=1-2"}),
        ("features-2048", {}, {"task": "names:features=set,words=2048"}),
        ("model-with-bias", {}, {"model": "bag:bias=learned"}),
        ("batch-1024", {"batch": 1024, "steps": 200}, {"lr": (8.0, 16.0, 32.0)}),
    ],
    "cifar10-3": [
        ("features-scattering", {}, {"task": "cifar10:features=scattering"}),
        ("batch-1024", {"batch": 1024, "steps": 600}, {"lr": (0.1, 0.2)}),
    ],
    "movielens-1m-10": [
        ("model-one-factor", {}, {"model": "stars:factors=1"}),
        ("batch-80017", {"batch": 80017}, {}),
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
    found = [_changed(whole, *change) for change in _CHANGES[name]]
    found += [_changed(whole, f"schedule-{word}", keys, {}) for word, keys in _SCHEDULES.items()]
    found = [row if row.choices else replace(row, notes=(_SAME_RATE,)) for row in found]
    exact = whole.as_recipe().base_rate == 1  # a Gaussian mechanism: the central limit theorem is not needed
    accountants = {word: one for word, one in _ACCOUNTANTS.items() if not (exact and one == "gdp")}
    return [whole, *found] + [
        _changed(whole, f"accountant-{word}", {"accountant": one}, {}) for word, one in accountants.items()
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
        tables={name: Table(title=f"{name} with one part changed, epsilon by its accountant") for name in _CHANGES},
        rows=lambda: [row for name in _CHANGES for row in rows_of(name)],
    )  # fmt: skip
