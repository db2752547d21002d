"""The best recipe known for each dataset and budget: one TOML file each, run and shown like the rows of a paper.

A file is a recipe as `privet train FILE` reads it. Its table [about] is for people: what it beats, and how it was
tuned; the runs that tuned it are not charged to the budget."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from privet import _check
from privet.planning import Recipe
from privet.planning.recipe import read_table
from privet_papers.reproduce.results import all_of
from privet_papers.reproduce.runner import scaled
from privet_papers.reproduce.table_row import Paper, Row, Table
from privet_papers.reproduce.tables import Line

NAME = "recipes"  # of the rows, and of the folder of their results
_FILES = files("privet_papers") / "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A recipe that ships with the package. `published` is the best published figure at that budget, `reached` ours.

    >>> best("digits-3").recipe().budget.epsilon
    3.0
    """

    name: str
    dataset: str
    says: str
    tuned: str  # on what, and over what
    runs: int  # that tuned it
    measure: str = "accuracy"
    published: float | None = None
    by: str = ""  # whose it is, and where it stands
    label: str | None = None  # of the epsilon that it is published with
    goal: float | None = None
    reached: float | None = None  # the mean over seeds, from the results that were committed
    spread: float | None = None
    seeds: int = 0

    @property
    def path(self) -> Path:
        """The TOML file."""
        return Path(str(_FILES / f"{self.name}.toml"))

    @property
    def command(self) -> str:
        """What to type to train it."""
        return f"privet train --recipe {self.name}"

    def recipe(self) -> Recipe:
        """What is asked of `plan`, and how it is trained."""
        return Recipe.load(self.path)

    def row(self) -> Row:
        """The recipe as a row: it runs, is kept and is shown like one of a paper."""
        table = read_table(self.path)
        training: dict[str, Any] = dict(table.pop("training"))
        return Row(
            paper=NAME, table=self.dataset, name=self.name, place=self.by, kind="trains", label=self.label,
            published={} if self.published is None else {self.measure: self.published}, task=training.pop("task"),
            model=training.pop("model", None), recipe=table, training=training, notes=self._notes(),
        )  # fmt: skip

    def _notes(self) -> tuple[str, ...]:
        said = f"{self.runs or 'no'} runs tuned it: {self.tuned}"
        return (self.says, *([f"published: {self.by}"] if self.by else []), said)


@cache
def recipes() -> Mapping[str, Best]:
    """All of them by name, by dataset and then by budget."""
    found = [_read(Path(str(file))) for file in _FILES.iterdir() if file.name.endswith(".toml")]
    return {one.name: one for one in sorted(found, key=_order)}


def best(name: str) -> Best:
    """The recipe called `name`.

    Raises:
        InvalidValue: there is none; the nearest is named.
    """
    _check.one_of(recipes(), recipe=name)
    return recipes()[name]


def paper() -> Paper:
    """The recipes as tables of one paper, a table for each dataset."""
    names = dict.fromkeys(one.dataset for one in recipes().values())
    return Paper(
        name=NAME, title="Recipes: the best known for a dataset and a budget",
        tables={name: Table(title=f"{name}, delta 1/(10 n)") for name in names},
        rows=lambda: [one.row() for one in recipes().values()],
    )  # fmt: skip


def line(row: Row, out: Path, steps: int | None = None) -> Line:
    """A row and the results that a folder has of it: of whole runs, or of so many steps."""
    made, scale = scaled(row, "full", steps)
    return Line(row=row, results=tuple(all_of(out, made, scale)))


def _read(file: Path) -> Best:
    about = tomllib.loads(file.read_text(encoding="utf-8"))["about"]
    return Best(name=file.name.removesuffix(".toml"), **about)


def _order(one: Best) -> tuple[str, float, str]:
    return one.dataset, one.recipe().budget.epsilon, one.name


# --- ablation ---------------------------------------------------------------------------------------


ABLATION = "ablation"
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
        ("batch-512", {"batch_size": 512, "steps": 400}, {"lr": (0.1, 0.2)}),
    ],
    "adult-1": [
        ("features-paper-bins", {}, {"task": "adult:judge=test"}),
        ("model-mlp", {}, {"model": "mlp"}),
        ("batch-1024", {"batch_size": 1024, "steps": 300}, {"lr": (0.5, 1.0, 2.0)}),
    ],
    "fashion-mnist-1.2": [
        ("features-scattering", {}, {"task": "fashion-mnist:features=scattering", "lr": (0.4, 0.8)}),
        ("features-pixels", {}, {"task": "fashion-mnist", "lr": (0.25, 1.0, 4.0)}),
        ("batch-512", {"batch_size": 512, "steps": 400}, {"lr": (0.1, 0.2)}),
    ],
    "imdb-1": [
        ("features-common-words", {}, {"task": "imdb:features=set,words=16384"}),
        ("model-with-bias", {}, {"model": "bag:bias=learned"}),
        ("batch-1024", {"batch_size": 1024, "steps": 200}, {"lr": (6.0, 12.0, 24.0)}),
    ],
    "names-1": [
        ("features-pairs", {}, {"task": "names:features=set,words=4096,order=1-2"}),
        ("features-2048", {}, {"task": "names:features=set,words=2048"}),
        ("model-with-bias", {}, {"model": "bag:bias=learned"}),
        ("batch-1024", {"batch_size": 1024, "steps": 200}, {"lr": (8.0, 16.0, 32.0)}),
    ],
    "cifar10-3": [
        ("features-scattering", {}, {"task": "cifar10:features=scattering"}),
        ("batch-1024", {"batch_size": 1024, "steps": 600}, {"lr": (0.1, 0.2)}),
    ],
    "movielens-1m-10": [
        ("model-one-factor", {}, {"model": "stars:factors=1"}),
        ("batch-80017", {"batch_size": 80017}, {}),
    ],
}


def rows_of(name: str) -> list[Row]:
    """The rows of one recipe's ablation: as it is, its parts, schedules, accountants.

    >>> [row.name for row in rows_of("adult-1")][:2]
    ['whole', 'features-paper-bins']
    """
    _check.one_of(_CHANGES, ablation=name)
    whole = replace(
        best(name).row(), paper=ABLATION, table=name, name="whole", place="", notes=(), published={}, label=None
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


def ablation_paper() -> Paper:
    """All of them, as tables of one paper."""
    return Paper(
        name=ABLATION, title="Ablation: what bought what",
        tables={name: Table(title=f"{name} with one part changed, epsilon by its accountant") for name in _CHANGES},
        rows=lambda: [row for name in _CHANGES for row in rows_of(name)],
    )  # fmt: skip
