"""A row of a paper's table as a value: what was published, where, and the recipe that runs it.

A paper is one file: a function that gives its rows. To add a table, add rows.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from privet import _check
from privet.accounting.guarantee import LABELS
from privet.errors import InvalidValue
from privet.planning import Plan, Recipe, plan

if TYPE_CHECKING:
    from privet.training.run import Run
    from privet_papers.reproduce.results import Result

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = Literal["trains", "federates", "accounts", "baseline", "attacks", "not run"]
KINDS: tuple[str, ...] = get_args(Kind)
IN_PERCENT = ("accuracy",)  # as the papers print it; all other measures are as the task gives them

QUICK_SIZE = 4000  # training records of the task `digits`
QUICK_STEPS = 100  # at most
QUICK_BATCH = QUICK_SIZE // 20  # at most
READS_IMAGES = ("cnn", "shallow-cnn", "pool-cnn", "tanh-cnn", "mlp", "linear")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of ours. An epsilon has its label; a mu, an accuracy and the like have none."""

    value: float
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a figure: points, and the label of what is on its axis if that is an epsilon."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table: the published figures, and what gives ours.

    kind       trains      trained privately, once for each seed
               federates   the same by clients, each with some of the records: `size` and `batch` count clients
               accounts    privacy figures alone, by the accountants: nothing is trained
               baseline    the same network without clipping and noise: not private
               attacks     the update of its first step is attacked: what that gives away
               not run     listed with its published figures, and `why`
    published  as printed: `accuracy` (in percent), `rmse`, `<accountant> epsilon`, `gdp mu`, or a name of the row's own
    label      of the paper's epsilon: certified, approximate or claimed
    recipe     keywords of `Recipe.of`; `training` holds those of its [training] table (`train`'s settings)
    choices    settings that the paper does not state: values are tried on a split of the training records, and the
               best is taken, see choosing.py (`--quick` takes the middle one)
    figures    a function that computes figures which no accountant gives by name
    curve      a function that gives the line that is drawn for this row; a row that trains draws its measure
    after      a function that completes the result of a run with what only the run knows (None for a baseline's)
    trace      `raw_gradient_norm`: what is noted on the way of a training; it is not private

    >>> row = Row(paper="bu2019", table="table1", name="sigma-1.3", place="Table 1, row 1", kind="trains", task="mnist",
    ...           published={"accuracy": 95.0}, label="approximate",
    ...           recipe={"dataset_size": 60000, "batch_size": 256, "epochs": 15, "noise_multiplier": 1.3,
    ...                   "delta": 1e-5})
    >>> row.key, row.steps, quick(row).task, quick(row).steps
    ('bu2019:table1:sigma-1.3', 3516, 'digits', 100)
    """

    paper: str
    table: str
    name: str
    place: str
    kind: Kind
    published: Mapping[str, float] = field(default_factory=dict)
    label: str | None = None
    task: str | None = None
    model: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    why: str = ""
    figures: "Callable[[Row], Mapping[str, Figure]] | None" = field(default=None, repr=False)
    curve: "Callable[[Row], Curve] | None" = field(default=None, repr=False)
    after: "Callable[[Row, Result, Run | None], Result] | None" = field(default=None, repr=False)
    panel: str = ""  # where its curve is drawn
    trace: str | None = None

    def __post_init__(self) -> None:
        _check.one_of(KINDS, kind=self.kind)
        if self.label is not None:
            _check.one_of(LABELS, label=self.label)
        if (self.kind == "not run") != bool(self.why):
            raise InvalidValue(f"why={self.why!r} must say why a row is not run, and only then. Row {self.key}.")
        if self.is_trained and self.task is None:
            raise InvalidValue(f"task is missing in the row {self.key}. It needs data. Name one.")

    @property
    def key(self) -> str:
        """`bu2019:table1:sigma-1.3`, as on the command line."""
        return f"{self.paper}:{self.table}:{self.name}"

    @property
    def is_trained(self) -> bool:
        """Whether it needs data and time, and has seeds."""
        return self.kind in ("trains", "federates", "baseline", "attacks")

    @property
    def steps(self) -> int | None:
        """The number of steps, if it is known."""
        return self.as_recipe().count if self.recipe else None

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides what is trained, or computed: another row has another."""
        parts = (self.key, self.kind, self.task, self.model, dict(self.recipe), dict(self.training), dict(self.choices))
        computed = [] if self.is_trained else [dict(self.published), _called(self.figures), _called(self.curve)]
        text = json.dumps([*parts, self.trace, *computed], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def as_recipe(self) -> Recipe:
        """What is asked of `plan`. A row that gives a number for the noise asks what it costs.

        A baseline has no noise; the recipe of its batches stands for it, with noise 1 that nobody adds.
        """
        given = dict(self.recipe)
        if self.kind == "baseline":
            given = {
                key: given[key]
                for key in ("dataset_size", "batch_size", "sample_rate", "epochs", "steps", "delta")
                if key in given
            }
            given["noise_multiplier"] = 1.0
        if "epsilon" not in given and "solve" not in given:
            given["solve"] = "epsilon"
        settings = {"task": self.task, "model": self.model, **self.training}
        return Recipe.of(**given, training={key: value for key, value in settings.items() if value is not None})

    def plan(self) -> Plan:
        """The plan of the row, exactly as it will be spent."""
        return plan(self.as_recipe())


def keyed(key: str) -> Callable[[Function], Function]:
    """Decorator: what a function of a row is called in fingerprints, so that it may be renamed, and results stay."""

    def keep(function: Function) -> Function:
        function.key = key  # type: ignore[attr-defined]
        return function

    return keep


def _called(function: Callable[..., Any] | None) -> list[Any]:
    """The key of a function, else its name, and what it is given beside the row."""
    if isinstance(function, partial):
        return [_called(function.func), list(function.args), function.keywords]
    return [getattr(function, "key", getattr(function, "__qualname__", None))]


def quick(row: Row) -> Row:
    """The same recipe on `digits`, by rule: what makes `--quick` quick.

    4,000 records; the row's batch, at most a twentieth of them; at most 100 steps; the row's network if it reads
    images, else `mlp`; of each choice the middle one; all else as it is. A budget stays, so its noise is another; noise
    stays, so its epsilon is another.
    """
    if not row.is_trained:
        return row
    full = row.as_recipe()
    batch = min(QUICK_BATCH, max(1, round((full.base_rate or 1.0) * full.dataset_size)))
    kept = {
        key: value
        for key, value in row.recipe.items()
        if key not in ("dataset_size", "batch_size", "sample_rate", "epochs", "steps")
    }
    recipe = kept | {
        "dataset_size": QUICK_SIZE,
        "batch_size": batch,
        "steps": min(QUICK_STEPS, full.count or QUICK_STEPS),
    }
    middle = {key: values[len(values) // 2] for key, values in row.choices.items()}
    name = (row.model or "cnn").partition(":")[0]
    model = row.model if name in READS_IMAGES else "mlp"
    return replace(row, task="digits", model=model, recipe=recipe, training={**row.training, **middle}, choices={})


def capped(row: Row, steps: int) -> Row:
    """The first `steps` steps of a row, as a recipe of its own."""
    if not row.is_trained or (row.steps or 0) <= steps:
        return row
    return replace(row, recipe={key: v for key, v in row.recipe.items() if key != "epochs"} | {"steps": steps})


# --- papers -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table or a figure of a paper; a figure has axes."""

    title: str
    x: str = ""
    y: str = ""
    log_y: bool = False

    @property
    def is_figure(self) -> bool:
        return bool(self.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper: its tables by name, and the function that gives all their rows in order."""

    name: str
    title: str
    tables: Mapping[str, Table]
    rows: Callable[[], list[Row]] = field(repr=False)

    def of(self, table: str | None = None) -> list[Row]:
        """The rows of one table, or all."""
        if table is not None:
            _check.one_of(self.tables, table=table)
        return [row for row in self.rows() if table in (None, row.table)]
