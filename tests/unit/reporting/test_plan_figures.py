"""The plan-ahead figure: drawn for many cells, one, and some without an answer; the same view is the same file."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from privet.planning import ahead
from privet.planning.frontier import Frontier
from privet.reporting.plan_figures import save_frontier


@pytest.fixture(scope="module")
def found() -> Frontier:
    """Full batches are quick; the other batch is made up."""
    given = {"epsilon": 2.0, "delta": 1e-5, "dataset_size": 100, "batches": [100]}
    found = ahead(**given, steps=[5, 500], noise_multiplier="linear:decay=0.1")  # which ends before 500 steps
    smaller = [replace(cell, batch_size=50.0, frontier=False, holds=True) for cell in found.cells]
    return replace(found, cells=(*smaller, *found.cells))


def test_a_table_has_every_cell(found: Frontier, tmp_path: Path) -> None:
    save_frontier(found, tmp_path / "ahead.csv")
    with (tmp_path / "ahead.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["steps"]), float(row["batch_size"])) for row in rows] == [(5, 50), (500, 50), (5, 100), (500, 100)]
    good, bad = rows[0], rows[1]
    assert float(good["noise_multiplier"]) == found.cells[0].noise_multiplier
    assert (good["label"], good["why"]) == ("certified", "")
    assert float(good["epsilon_lower"]) <= float(good["epsilon"]) <= 2
    assert (bad["noise_multiplier"], bad["epsilon"], bad["label"]) == ("", "", "")
    assert "is 0 at step 10" in bad["why"]
    assert {row["closed_holds"] for row in rows} == {"True", "False"}


def test_a_drawing_names_what_it_shows(found: Frontier, tmp_path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        save_frontier(found, tmp_path / "one.svg")
        save_frontier(found, tmp_path / "other.svg")
    text = (tmp_path / "one.svg").read_text(encoding="utf-8")
    for words in (
        "batch 50",
        "batch 100",
        "frontier",
        "closed form 3.676 (claimed): for constant noise",
        "full batch",
        "epsilon 2 (certified) at delta 1e-05, 100 records",
        "noise multiplier of the first step",
        "rounds (steps T)",
    ):
        assert f">{words}<" in text or words in text, words
    assert text == (tmp_path / "other.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_one_cell_is_enough(suffix: str, tmp_path: Path) -> None:
    save_frontier(ahead(epsilon=2.0, dataset_size=100, batches=[100], steps=[1]), tmp_path / f"ahead{suffix}")
    assert (tmp_path / f"ahead{suffix}").stat().st_size > 5000
