"""Every result that is kept is found by the row that made it, and loads: so none is ever run again for a name."""

from functools import partial

import pytest

from privet_papers import recipes
from privet_papers.reproduce import results
from privet_papers.reproduce.runner import scaled
from privet_papers.reproduce.table_row import Row
from privet_papers.tables import PAPERS

KEPT = results.kept()
FILES = sorted(path for path in KEPT.rglob("*.json") if not path.name.endswith(".choice.json"))
ROWS = [row for paper in (recipes.paper(), recipes.ablation_paper(), *PAPERS.values()) for row in paper.rows()]


@pytest.mark.skipif(not FILES, reason="no results beside the package")
def test_every_kept_result_is_found_and_loads():
    assert len(FILES) > 300
    found = set()
    for row in ROWS:
        made, scale = scaled(row, "full")
        if row.kind != "not run":
            for result in results.all_of(KEPT, made, scale):
                assert result == results.read(results.place(KEPT, made, scale, result.seed))
                found.add(results.place(KEPT, made, scale, result.seed))
    assert found == set(FILES)


def called(row: Row) -> list[object]:
    """The functions that make a computed row's figures and line."""
    found: list[object] = []
    for function in (row.figures, row.curve):
        while isinstance(function, partial):
            function = function.func
        found += [] if function is None else [function]
    return found


def test_a_function_of_a_row_has_a_key_of_its_own():
    """Its name may then change, and the fingerprint of the row does not."""
    assert [function for row in ROWS for function in called(row) if not getattr(function, "key", "")] == []
