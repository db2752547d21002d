"""The redesign changes no behaviour: a base commit and the working tree, side by side on this machine.

Nothing that is recorded is stored, since the last bits differ between instruction sets. base.txt names the commit;
names.toml says what is called otherwise now. This folder is deleted with the last commit of the redesign.

    pytest tests/freeze -m prove    a sample of everything, about two minutes: part of `make prove`
    make freeze                     all of it, a quarter of an hour
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from freeze import renames, sides

GROUPS = ["commands", "runs", "ledgers", "kept", "pages"]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return sides.base_tree(tmp_path_factory.mktemp("base"))
    except sides.NoBase as error:
        pytest.fail(str(error), pytrace=False)


def check(base: Path, place: Path, groups: list[str], *, quick: bool) -> None:
    found = sides.compared(base, sides.ROOT, place, groups, quick=quick)
    if found:
        more = f"\n... and {len(found) - 10} more" * (len(found) > 10)
        pytest.fail(f"{len(found)} differences:\n" + "\n".join(one[:600] for one in found[:10]) + more, pytrace=False)


@pytest.mark.prove
def test_quick(base: Path, tmp_path: Path) -> None:
    check(base, tmp_path, GROUPS, quick=True)


@pytest.mark.freeze
@pytest.mark.parametrize("group", GROUPS)
def test_whole(base: Path, tmp_path: Path, group: str) -> None:
    check(base, tmp_path, [group], quick=False)


# --- that it can fail --------------------------------------------------------------------------------

CHANGES = {  # a file of the base, what stands there, what is put there; in which group it is found, and below what
    "noise by its last bits": (
        "engine/noise.py", "normal_(0.0, std, ", "normal_(0.0, std * (1 + 2e-7), ", "runs", "run mlp quantile/weights",
    ),
    "another order of draws": (
        "engine/randomness.py", "self._drawn[use] += 1", "self._drawn[use] += 2", "runs", "run mlp quantile/weights",
    ),
    "secure noise": (
        "engine/randomness.py", "use, self._drawn[use])", "use + (use == 2), self._drawn[use])", "runs",
        "secure/weights",
    ),
    "a clip by its last bits": (
        "engine/clip/fixed.py", "return clip / norms", "return (1 - 2e-7) * clip / norms", "runs",
        "sum lstm flat/grads",
    ),
    "the bytes of a checkpoint": (
        "training/checkpoint_file.py", '{"format": FORMAT, "version": VERSION} | dict(document)',
        'dict(document) | {"format": FORMAT, "version": VERSION}', "runs", "resumed quantile/files",
    ),
    "a search that ends early": ("accounting/rdp.py", "range(18)", "range(17)", "ledgers", "ledger 0/rdp/bounds"),
    "an epsilon by its last bit": (
        "accounting/guarantee.py", "return asdict(self) | {",
        'return asdict(self) | {"epsilon": self.epsilon * (1 + 2**-52), ', "commands",
        "plan --size 600 --batch 60 --steps 40 --delta 1e-4 --epsilon 2 --out plan.json/json/",
    ),
    "a public name": ("__init__.py", '    "spent",\n', "", "kept", "public names"),
}  # fmt: skip


@pytest.mark.freeze
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found(base: Path, tmp_path: Path, change: str) -> None:
    name, old, new, group, below = CHANGES[change]
    for folder in ("src", "results"):
        shutil.copytree(base / folder, tmp_path / "changed" / folder)
    file = tmp_path / "changed" / "src" / "privet" / name
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    found = sides.compared(base, tmp_path / "changed", tmp_path, [group], quick=True, is_renamed=False)
    assert any(one.startswith(f"{group}/{below}") for one in found), found[:10]


@pytest.mark.prove
def test_a_lost_result_is_found(base: Path, tmp_path: Path) -> None:
    for folder in ("src", "results"):
        shutil.copytree(base / folder, tmp_path / "changed" / folder)
    next((tmp_path / "changed" / "results" / "bu2019" / "table1").glob("*.json")).unlink()
    found = sides.compared(base, tmp_path / "changed", tmp_path, ["kept"], quick=True, is_renamed=False)
    assert any("only in the base: bu2019:table1" in one for one in found)


@pytest.mark.prove
def test_without_the_base_commit_it_fails_in_one_line(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    with pytest.raises(sides.NoBase, match=r"^the base commit \w{40} is not in this clone: .*\Z"):
        sides.base_tree(tmp_path, clone=tmp_path)


def test_numbers_in_reworded_texts_are_compared() -> None:
    table = {"prose": {"reworded": ["findings.why"]}, "words": {"a record": "an example"}}
    one, other = ({"findings": [{"why": why}]} for why in ("1,000 records, 2 kinds", "2 kinds, 1000 examples"))
    assert not sides.differences(one, other, table)
    assert sides.differences(one, {"findings": [{"why": "100 examples, 2 kinds"}]}, table)
    assert sides.differences({"why": "a 2"}, {"why": "b 2"}, table)
    page = {"file x.md": ["a record"], "x": "a record"}
    assert renames.as_today(page, table) == {"file x.md": ["an example"], "x": "a record"}


def test_names_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "commands": {
            "ahead": "plan --explore",
            "--noise": "--noise-multiplier",
            "--relation replace": "--adjacency one",
        },
        "keys": {"noise": "noise_multiplier", "recipe.size": "dataset_size", "old": ""},
        "values": {"relation=replace": "replace-one"},
        "python": {"privet.accounting": "privet.errors", "privet.x:y": "privet.errors:NoSolution", "Step.noise": "n"},
    }
    monkeypatch.setattr(renames, "table", lambda: table)
    assert renames.argv(["ahead", "--noise", "2", "--relation", "replace", "ahead"]) == [
        *("plan", "--explore", "--noise-multiplier", "2", "--adjacency", "one", "ahead")
    ]  # fmt: skip
    given = {"recipe": {"size": 3, "old": 1}, "size": [{"noise": 2, "relation": "replace"}]}
    assert renames.as_today(given, table) == {
        "recipe": {"dataset_size": 3}, "size": [{"noise_multiplier": 2, "relation": "replace-one"}],
    }  # fmt: skip
    assert renames.kw("Step", noise=1.0, rate=2) == {"n": 1.0, "rate": 2}
    assert renames.name("privet.accounting:InvalidValue") is renames.name("privet.errors:InvalidValue")
    assert renames.name("privet.x:y").__name__ == "NoSolution"
    monkeypatch.setenv("FREEZE_SIDE", "base")
    assert renames.argv(["ahead"]) == ["ahead"]
