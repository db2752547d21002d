"""The best recipe known for each dataset and budget: one TOML file each, run and shown like the rows of a paper.

A file is a recipe as `privet train FILE` reads it. Its table [about] is for people: what it beats, and how it was
tuned; the runs that tuned it are not charged to the budget.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from privet import _check
from privet.experiments.results import all_of
from privet.experiments.row import Paper, Row, Table
from privet.experiments.runner import scaled
from privet.experiments.table import Line
from privet.planning import Recipe
from privet.planning.recipe_file import read_table

NAME = "recipes"  # of the rows, and of the folder of their results
_FILES = files("privet.experiments") / "best"


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
