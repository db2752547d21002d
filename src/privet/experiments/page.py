"""The page of results, from the folder of results: only what was run in full is in it, each row with its command."""

import math
from collections.abc import Sequence
from pathlib import Path

from privet.errors import InvalidValue
from privet.experiments import ablation, recipes
from privet.experiments.papers import PAPERS
from privet.experiments.results import all_of
from privet.experiments.row import Paper
from privet.experiments.runner import scaled
from privet.experiments.table import Line, cells

HEAD = """# Results

Made by `privet reproduce --page` (or `privet recipes --page`), from runs in full on the real data: do not edit. A row
that was not run is not here. Each figure stands as `published / ours`, ours as the mean over the runs, with `±` the
standard deviation over seeds.

- *certified epsilon*: a proven upper bound for the mechanism that ran, by `pld`, from the ledger of the run. The runs
  have seeds, so that they can be repeated; for that they are not private themselves.
- *label of the paper's epsilon*: `approximate` (a central limit theorem, no bound), `claimed` (its proof does not cover
  the algorithm) or `certified`.
- The command of a row runs it again. Its data is looked for in `PRIVET_DATA` and fetched where it can be.
- Times are of one CPU core, which other work shared.
"""
SCHEDULES = ("growing-mu", "sensitivity-decay", "dynamic")


def write_page(out: Path, page: Path) -> int:
    """Write the page of all full results in `out`; how many rows it has.

    Raises:
        InvalidValue: there is no result, or the page cannot be written.
    """
    parts, count = [HEAD], 0
    for paper in (recipes.paper(), ablation.paper(), *PAPERS.values()):
        lines = [line for line in _lines(out, paper) if line.results and any(r.figures for r in line.results)]
        if lines:
            parts.append(_chapter(paper, lines))
            count += len(lines)
            parts += _schedules(lines)
    if not count:
        raise InvalidValue(
            f"out={str(out)!r} has no full result. The page would be empty. Run `privet reproduce bu2019`."
        )
    try:
        page.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidValue(f"page={str(page)!r} cannot be written: {error.strerror}. Choose another place.") from None
    return count


def command(line: Line) -> str:
    """What was typed for a row of the page."""
    row, seeds = line.row, [result.seed for result in line.results if result.seed is not None]
    if row.paper in (recipes.NAME, ablation.NAME):
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
    text = [_bar((*found.names, "command")), _bar(["---"] * (len(found.names) + 1)), *map(_bar, rows), ""]
    text += [f"- {note}" for note in found.notes] + ([""] if found.notes else [])
    return "\n".join(text)


def _bar(words: Sequence[str]) -> str:
    return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"


# --- which schedule helps ---------------------------------------------------------------------------


def _schedules(lines: Sequence[Line]) -> list[str]:
    """What each schedule adds to constant noise at the same certified budget, in the paper and here."""
    by_name = {(line.row.paper, line.row.table, line.row.name): line for line in lines}
    rows = []
    for (paper, table, name), line in by_name.items():
        setting, _, last = name.rpartition("-constant")
        if last or not setting:
            continue
        for schedule in SCHEDULES:
            other = by_name.get((paper, table, f"{setting}-{schedule}"))
            if other is not None:
                tuned = "chosen for each" if other.row.choices else "one for all"
                rows.append((f"{table}, {setting}", schedule, tuned, *_gain(line, other)))
    if not rows:
        return []
    head = ("setting", "schedule", "learning rate", "published gain", "our gain", "standard error", "verdict")
    text = [
        "### Which schedule helps\n",
        "Gain in points of accuracy over constant noise at the same certified epsilon. Where one learning rate serves",
        "all, a clip that decays lowers it too, and may gain by that alone. Two standard errors are called a gain.\n",
        _bar(head), _bar(["---"] * len(head)), *map(_bar, rows), "",
    ]  # fmt: skip
    return ["\n".join(text)]


def _gain(constant: Line, other: Line) -> tuple[str, str, str, str]:
    published = other.row.published["accuracy"] - constant.row.published["accuracy"]
    one, two = constant.ours("accuracy"), other.ours("accuracy")
    assert one is not None
    assert two is not None
    gain = two[0] - one[0]
    if one[1] is None or two[1] is None:
        return f"{published:+.2f}", f"{gain:+.2f}", "–", "one run: not decided"
    error = math.sqrt(one[1] ** 2 / one[2] + two[1] ** 2 / two[2])
    verdict = "no difference" if abs(gain) <= 2 * error else "helps" if gain > 0 else "hurts"
    return f"{published:+.2f}", f"{gain:+.2f}", f"{error:.2f}", verdict
