"""What other distributions bring by entry points, and what papers print: read when it is asked for, and not before."""

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from privet import _registry
from privet._registry import Registry
from privet.accounting import registry as accountants
from privet.errors import InvalidValue, MissingExtra
from privet.planning import METHODS
from typed import run

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "numpy", "scipy", "matplotlib", "pooch", "privet_papers.tables", "privet_papers.reproduce"}


@pytest.fixture
def offered(monkeypatch):
    """Entry points in the place of those that are installed."""
    found: dict[str, dict[str, EntryPoint]] = {}

    def offer(group: str, **values: str) -> None:
        found[group] = {name: EntryPoint(name, value, group) for name, value in values.items()}

    monkeypatch.setattr(_registry, "entry_points", lambda group: found.get(group, {}))
    return offer


def loaded(*code: str) -> set[str]:
    """The modules that are there after some code."""
    text = "; ".join((*code, "import sys; print(*sys.modules)"))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.splitlines()[-1].split())


def test_a_name_of_another_distribution_is_imported_when_it_is_asked_for(offered):
    offered("some.group", far="colorsys:rgb_to_hsv", away="privet_papers.no_such_module:thing")
    there: Registry[object] = Registry("colour", group="some.group")
    there.register("near")(int)
    assert there.names() == ["near", "far", "away"]
    assert "far" in there
    assert there.maker("far").__name__ == "rgb_to_hsv"
    assert there.split("far:key=1") == ("far", "key=1")
    with pytest.raises(MissingExtra, match=r"privet_papers\.no_such_module:thing, which cannot be imported"):
        there.maker("away")
    with pytest.raises(InvalidValue, match="Did you mean 'far'") as caught:
        there.maker("fax")
    assert "pip install" not in str(caught.value)


def test_our_own_name_is_not_taken_by_another_distribution(offered):
    offered("some.group", near="no_such_module:thing")
    there: Registry[object] = Registry("colour", group="some.group")
    there.register("near")(int)
    assert there.maker("near") is int
    assert there.names() == ["near"]


@pytest.mark.parametrize(
    "command",
    [
        "train --size 80 --batch 20 --steps 3 --epsilon 4 --delta 1e-3 --task mnist",
        "train --recipe mnist-1.2",
        "train --size 80 --batch 20 --steps 3 --epsilon 4 --delta 1e-3 --task digits:features=scattering",
        "reproduce --list",
        "recipes",
    ],
)
def test_without_the_papers_one_line_says_what_to_install(offered, command, tmp_path, monkeypatch):
    from privet.data import registry

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_makers", {k: v for k, v in registry._makers.items() if k in ("digits", "csv")})
    result = run(command)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.rstrip().endswith("pip install 'privet[papers]'")


def test_help_lists_the_commands_of_the_papers_and_imports_nothing_heavy():
    shown = run("--help").stdout
    for name in ("reproduce", "recipes"):
        assert f"\n  {name}" in shown
    found = loaded(
        "from click.testing import CliRunner", "from privet.cli import main", "CliRunner().invoke(main, '-h')"
    )
    assert "privet_papers.cli" in found
    assert not HEAVY & found


def test_a_command_of_our_own_asks_nobody_else():
    asked = "assert not _registry.entry_points.cache_info().misses"
    code = ("from privet import _registry", "from privet.cli import main", "main.get_command(None, 'plan')", asked)
    assert "privet_papers" not in loaded(*code)


def test_what_papers_print_is_imported_when_it_is_asked_for():
    quiet = loaded(
        "import privet.planning, privet.accounting as a", "a.registry.names()", "list(privet.planning.METHODS)"
    )
    assert not {name for name in quiet if name.startswith("privet.published")}
    assert "privet.published.methods" in loaded("from privet.planning import method", "method('auto-step')")


def test_the_papers_accountants_are_ours_and_their_names_are_taken():
    assert list(accountants.names())[-3:] == ["zcdp", "tcdp", "pld"]
    assert all(accountants.is_ours(accountants.make(name)) for name in accountants.names())
    with pytest.raises(InvalidValue, match="registered already"):
        accountants.register("zcdp")(type("Mine", (), {}))


def test_the_table_of_methods_has_the_rows_of_both():
    assert {row.name for row in METHODS.values()} == set(METHODS)
    assert "dynamic" in METHODS
    assert "nope" not in METHODS
    with pytest.raises(InvalidValue, match=r"method='dynamik' is not known\. Did you mean 'dynamic'"):
        METHODS["dynamik"]


def test_both_distributions_have_one_version():
    files = (ROOT / "pyproject.toml", ROOT / "papers/pyproject.toml")
    product, papers = (tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files)
    assert product["version"] == papers["version"]
    assert f"privet=={product['version']}" in papers["dependencies"]
    assert product["optional-dependencies"]["papers"] == [f"privet-papers=={product['version']}"]


def test_every_entry_point_of_the_papers_is_registered_under_its_name():
    from privet import data, models

    papers = tomllib.loads((ROOT / "papers/pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    for registry, group in ((data.registry, "privet.tasks"), (models.registry, "privet.models")):
        for name, value in papers[group].items():
            assert registry.maker(name) is EntryPoint(name, value, group).load()
            assert f"{registry.maker(name).__module__}:{registry.maker(name).__name__}" == value
