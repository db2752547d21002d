"""The page of results, from the folder of results: only what was run in full is in it, each row with its command."""

from collections.abc import Sequence
from pathlib import Path

from privet._files import write_file
from privet.errors import InvalidValue
from privet_papers import recipes
from privet_papers.reproduce.gains import schedules
from privet_papers.reproduce.results import all_of
from privet_papers.reproduce.runner import scaled
from privet_papers.reproduce.table_row import Paper
from privet_papers.reproduce.tables import Line, bar, cells
from privet_papers.tables import PAPERS

HEAD = """# Results

Made by `privet reproduce --page` (or `privet recipes --page`), from runs in full on the real data: do not edit. A row
that was not run is not here. Each figure stands as `published / ours`, ours as the mean over the runs, with `±` the
standard deviation over seeds.

- *certified epsilon*: a proven upper bound for the mechanism that ran, by `pld`, from the ledger of the run. The runs
  have seeds, so that they can be repeated; for that they are not private themselves. Neighbours differ in one record
  that counts or is left out (zero-out; Poisson sampling), or in one client where the table says so.
- *label of the paper's epsilon*: `approximate` (a central limit theorem, no bound), `claimed` (its proof does not cover
  the algorithm) or `certified`.
- The command of a row runs it again if its `--out` names another folder than the one that has this result. Its data
  is looked for in `PRIVET_DATA` and fetched where it can be. Later code may draw other random numbers for a seed: then
  the run is another one of the same kind. `about.source` in a result's file is a hash of the code that made it.
- Where `runs` is 1 there is no spread: a difference as large as the `±` of like rows says nothing.
- Figures that are curves alone are not here; `privet reproduce PAPER:FIGURE --plot FILE` draws them.
- Times are of one CPU core, which other work shared.
"""


def write_page(out: Path, page: Path) -> int:
    """Write the page of all full results in `out`; how many rows it has.

    Raises:
        InvalidValue: there is no result, or the page cannot be written.
    """
    parts, count = [HEAD], 0
    for paper in (recipes.paper(), recipes.ablation_paper(), *PAPERS.values()):
        lines = [line for line in _lines(out, paper) if line.results and any(r.figures for r in line.results)]
        if lines:
            parts.append(_chapter(paper, lines))
            count += len(lines)
            parts += schedules(lines)
    if not count:
        raise InvalidValue(
            f"out={str(out)!r} has no full result. The page would be empty. Run `privet reproduce bu2019`."
        )
    try:
        write_file(page, ("\n".join(parts).rstrip() + "\n").encode())
    except OSError as error:
        raise InvalidValue(f"page={str(page)!r} cannot be written: {error.strerror}. Choose another place.") from None
    return count


def command(line: Line) -> str:
    """What was typed for a row of the page."""
    row, seeds = line.row, [result.seed for result in line.results if result.seed is not None]
    if row.paper in (recipes.NAME, recipes.ABLATION):
        asked = f"--run {row.name}" if row.paper == recipes.NAME else f"--ablation {row.table}"
        return f"privet recipes {asked} --seeds {max(seeds) + 1}"
    said = f"privet reproduce {row.paper}:{row.table} --rows {row.name}"
    if not row.is_trained:
        return said
    return f"{said} --full --seeds {max(seeds) + 1}"


def _lines(out: Path, paper: Paper) -> list[Line]:
    found = []
    for row in paper.rows():
        made, scale = scaled(row, "full")
        found.append(Line(row=row, results=() if row.kind == "not run" else tuple(all_of(out, made, scale))))
    return found


def _chapter(paper: Paper, lines: Sequence[Line]) -> str:
    parts = [f"## {paper.title}\n"]
    for name, table in paper.tables.items():
        own = [line for line in lines if line.row.table == name]
        if own:
            parts += [f"### {name}: {table.title}\n", _markdown(own)]
    return "\n".join(parts)


def _markdown(lines: Sequence[Line]) -> str:
    found = cells(lines)
    rows = [(*row, f"`{command(line)}`") for row, line in zip(found.rows, lines, strict=True)]
    text = [bar((*found.names, "command")), bar(["---"] * (len(found.names) + 1)), *map(bar, rows), ""]
    text += [f"- {note}" for note in found.notes] + ([""] if found.notes else [])
    return "\n".join(text)
