"""The redesign changes no behaviour: a base commit and the working tree, side by side on this machine.

Nothing that is recorded is stored, since the last bits differ between instruction sets. base.txt names the commit;
names.toml says what is called otherwise now. This folder is deleted with the last commit of the redesign.

    pytest tests/freeze -m prove -k quick     about a minute
    pytest tests/freeze -m prove              some minutes
"""

import shutil
from pathlib import Path

import pytest

from freeze import sides

pytestmark = pytest.mark.prove
GROUPS = ["commands", "runs", "ledgers", "kept"]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return sides.base_tree(tmp_path_factory.mktemp("base"))
    except sides.NoBase as error:
        pytest.fail(str(error), pytrace=False)


def check(base: Path, here: Path, place: Path, groups: list[str], *, quick: bool) -> None:
    found = sides.differences(*sides.both(base, here, place, groups, quick=quick))
    if found:
        more = "" if len(found) <= 10 else f"\n... and {len(found) - 10} more"
        pytest.fail(f"{len(found)} differences:\n" + "\n".join(one[:600] for one in found[:10]) + more, pytrace=False)


def test_quick(base: Path, tmp_path: Path) -> None:
    check(base, sides.ROOT, tmp_path, GROUPS, quick=True)


@pytest.mark.parametrize("group", GROUPS)
def test_whole(base: Path, tmp_path: Path, group: str) -> None:
    check(base, sides.ROOT, tmp_path, [group], quick=False)
