"""report: the one entry. A run's folder in; one page that a non-expert can follow and an expert can check out."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privet._text import shorten
from privet.accounting.guarantee import MEANING
from privet.errors import InvalidValue
from privet.ledger.assumptions import NONE, list_assumptions
from privet.reporting import words
from privet.reporting.evidence import ATTACK, write_plainly
from privet.reporting.facts import RunFacts, ends, gather, printable, versions_of
from privet.reporting.render import Page, Section, pdf
from privet.training.run import Run, versions

NAME = "report.html"
MOST_RUNS = 8
FORMATS = (".html", ".md", ".json", ".pdf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """Title, page, and the facts behind it. Made by `report`."""

    title: str
    page: Page
    runs: tuple[RunFacts, ...]
    show_private: bool

    @property
    def summary(self) -> tuple[str, ...]:
        """The report in a few lines of Markdown."""
        return self.page.summary

    @property
    def sections(self) -> tuple[Section, ...]:
        """Its headings, each with a name for links."""
        return tuple(self.page.sections)

    def html(self) -> str:
        """One page that needs nothing else."""
        return self.page.html(self.title)

    def markdown(self) -> str:
        """The same words as Markdown."""
        return self.page.markdown()

    def as_dict(self) -> dict[str, Any]:
        checks = [{"question": check.question, "state": check.state} for check in self.page.checks]
        runs = [facts.as_dict(show_private=self.show_private) for facts in self.runs]
        return {"title": self.title, "runs": runs, "checklist": checks, "show_private": self.show_private}

    def save(self, path: str | Path) -> Path:
        """Write the report in the format of the path's ending: .html, .md, .json or .pdf.

        Raises:
            InvalidValue: the ending is another, or nothing can be written there.
            MissingExtra: a PDF is asked for, and no program is there that makes one.
        """
        path = Path(path)
        check_path(path)
        write: dict[str, Callable[[], bytes]] = {
            ".html": lambda: self.html().encode(errors="replace"),
            ".md": lambda: self.markdown().encode(errors="replace"),
            ".json": lambda: (json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n").encode(),
            ".pdf": lambda: pdf(self.html()),
        }
        return write_plainly(path, write[path.suffix.lower()]())


def report(
    run: "str | Path | Run", *baselines: "str | Path | Run", show_private: bool = False, title: str | None = None
) -> Report:
    """The report of a run, and of baselines beside it: what it guarantees, what that means, what was found against it.

    Everything is read from the run's folder: plan, ledger, metrics, and what `privet audit --run` and
    `privet attack --run` left there. The run may be unfinished.

    Args:
        baselines: other runs to compare it with.
        show_private: also show what comes from training records without noise, marked so.

    >>> import tempfile
    >>> from privet import plan, train
    >>> p = plan(epsilon=2.0, delta=1e-3, dataset_size=100, batch_size=10, steps=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(p, "digits:size=100", out=folder + "/a", model="linear")
    ...     found = report(run)
    >>> [section.name for section in found.sections][:3]
    ['protected', 'guarantee', 'plan']

    Raises:
        InvalidValue: a folder is not a run's, or a file in it is damaged, a link, or very large.
    """
    if len(baselines) >= MOST_RUNS:
        raise InvalidValue(f"runs={len(baselines) + 1} must be at most {MOST_RUNS}. A page shows no more. Give fewer.")
    every = [gather(one.folder if isinstance(one, Run) else one) for one in (run, *baselines)]
    return compose(every, show_private=show_private, title=title)


def compose(every: Sequence[RunFacts], *, show_private: bool = False, title: str | None = None) -> Report:
    """The report of facts that are gathered: the first run's, beside the others."""
    facts, *baselines = named = _name_apart(every)
    run = facts.run
    if title is None:
        task = printable(shorten(run.settings.task, 60))
        beside = f" beside {', '.join(one.name for one in baselines)}" if baselines else ""
        title = f"{facts.name}: {task}, trained {'privately' if facts.is_guaranteed else 'without a guarantee'}{beside}"
    page = Page({
        "title": title, "facts": facts, "baselines": baselines, "every": named, "show_private": show_private,
        "run": run, "about": run.about, "plan": run.plan, "recipe": run.plan.recipe, "steps": run.plan.steps,
        "g": run.guarantee, "unit": run.guarantee.unit, "MEANING": MEANING, "ATTACK": ATTACK,
        "NONE": NONE, "ends": ends, "assumptions": list_assumptions(run.guarantee), "versions": versions_of(run),
        "folder": str(run.folder), "sampling": str(run.plan.steps.sampling), "version": versions()["privet"],
        "source": str(run.about["source"]), "words": words,
    })  # fmt: skip
    return Report(title=title, page=page, runs=named, show_private=show_private)


def check_path(path: Path) -> None:
    """Raise unless a report can be written at `path`; asked before anything is computed."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidValue(f"out={str(path)!r} must end in {', '.join(FORMATS)}.")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a directory" if path.is_dir() else "lies in a directory that does not exist"
        raise InvalidValue(f"out={str(path)!r} {what}. Give a file in a directory that exists.")


def _name_apart(every: Sequence[RunFacts]) -> tuple[RunFacts, ...]:
    """The runs, those of equal names told apart by the folder above."""
    names = [one.name for one in every]
    return tuple(
        replace(one, name=f"{one.run.folder.resolve().parent.name}/{one.name}") if names.count(one.name) > 1 else one
        for one in every
    )
