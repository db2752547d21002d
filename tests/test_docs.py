"""What the documentation says is run: code blocks, commands and their answers, links, names of files."""

import ast
import re
import shlex
import warnings
from pkgutil import resolve_name

import click
import pytest

from doc_pages import DOCS, PAGES, ROOT, anchors, answered, blocks, commands, links, named, prose
from privet import Recipe, accounting, attacks, clipping, data, models, schedules
from privet.cli import main
from privet.noise import mechanism
from privet.planning import clipping_rules
from privet.sampling import samplers
from privet.training.settings import Settings
from typed import run

OWN_TEST = {"howto-schedule.md"}  # its first block is a module of the user's: tests/unit/schedules/test_schedules.py
PEER_WARNS = {"from-opacus.md"}  # Opacus warns about its own hooks and its generator
for registry in (accounting.registry, clipping_rules.registry):  # before a page has a copy: a module registers but once
    list(map(registry.maker, registry.names()))
REGISTRIES = [
    package.registry for package in (accounting, attacks, data, models, schedules, clipping, accounting.sampling)
]

COMMANDS = {name: main.get_command(click.Context(main), name) for name in main.list_commands(click.Context(main))}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and page.name not in OWN_TEST], ids=named
)
def test_python_blocks_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for registry in REGISTRIES:  # what a page registers stays on the page
        monkeypatch.setattr(registry, "_makers", dict(registry._makers))
    monkeypatch.setattr(mechanism, "_makers", dict(mechanism._makers))
    monkeypatch.setattr(samplers, "_drawings", dict(samplers._drawings))
    names: dict[str, object] = {"__name__": "page"}
    with warnings.catch_warnings():
        if page.name in PEER_WARNS:
            warnings.simplefilter("ignore")
        for block in blocks(page, "python"):
            exec(compile(block, str(page), "exec"), names)


def test_excerpts_are_lines_of_the_examples():
    """Blocks marked `py` are cut from scripts that tests/e2e/test_examples.py runs."""
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py"))
    lines = {line.partition("  #")[0].strip() for line in scripts.splitlines()}
    shown = [line.strip() for page in PAGES for block in blocks(page, "py") for line in block.splitlines()]
    assert set(shown) <= lines
    assert len(shown) > 10


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=named)
def test_recipes_can_be_planned_and_trained(page, tmp_path):
    for block in blocks(page, "toml"):
        (tmp_path / "recipe.toml").write_text(block, encoding="utf-8")
        recipe = Recipe.load(tmp_path / "recipe.toml", dataset_size=4000)
        assert Settings.of(recipe.training).task in data.registry.names()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    for path, anchor in links(page):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_are_named_are_there(page):
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:src|papers|tests|docs|examples|benchmarks)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=named)
def test_commands_have_the_options_that_are_written(page):
    for line in commands(page):
        _, name, *words = shlex.split(line)
        if name.startswith("-") or name == "COMMAND":
            continue
        command = COMMANDS[name]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known - {"--help"}
        assert not unknown, f"{line}: {unknown}"


ANSWERS = [
    (page, command, lines)
    for page in PAGES
    for command, lines in answered(page)
    if command.split()[1] in ("plan", "epsilon") and "--from" not in command and "--explore" not in command
]


@pytest.mark.parametrize(
    ("page", "command", "lines"), ANSWERS, ids=[f"{named(page)}-{command.split()[1]}" for page, command, _ in ANSWERS]
)
def test_the_answers_that_are_shown_are_the_answers(page, command, lines, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = run(command.partition("#")[0].removeprefix("privet ")).output.splitlines()
    for line in lines:
        assert line in said or line.split()[0] in ("time", "..."), line


def test_answers_are_looked_at():
    assert len(ANSWERS) >= 3


def test_every_command_and_every_example_has_its_place():
    told = (DOCS / "reference/cli.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `privet (\w+)`", told, flags=re.M)) == set(COMMANDS)
    plain = {name for name, command in COMMANDS.items() if not any("--json" in p.opts for p in command.params)}
    assert plain == {"serve"}  # as the page says
    shown = (DOCS / "examples.md").read_text(encoding="utf-8")
    for script in (ROOT / "examples").glob("*.py"):
        assert f'--8<-- "examples/{script.name}"' in shown


@pytest.mark.parametrize(
    "what", ["schedule", "accountant", "mechanism", "sampler", "clip", "layer", "data", "new-attack"]
)
def test_each_extension_point_has_a_page_with_code(what):
    page = DOCS / f"howto-{what}.md"
    made = [node for block in blocks(page, "python") for node in ast.parse(block).body]
    assert any(isinstance(node, ast.ClassDef | ast.FunctionDef) for node in made)


def test_the_readme_leads_with_the_two_commands_a_picture_and_ten_lines():
    page = ROOT / "README.md"
    assert re.findall(r"^make (\w+)", blocks(page, "sh")[0], flags=re.M) == ["demo", "test"]
    [picture] = re.findall(r"!\[[^]]+\]\(([^)]+)\)", prose(page))
    assert 10_000 < (ROOT / picture).stat().st_size < 200_000
    code = [line for line in blocks(page, "python")[0].splitlines() if line and not line.startswith(("import", "from"))]
    assert len(code) <= 10


def test_the_version_to_cite_is_the_version():
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "CITATION.cff", "README.md")]
    found = {re.search(r"^ *version(?: = |: )[\"{]?([\d.]+)", text, flags=re.M)[1] for text in texts}
    assert len(found) == 1


def test_the_maths_page_names_functions_and_modules_that_exist():
    """Of the package or, left out there, of its accounting."""
    text = (DOCS / "math.md").read_text(encoding="utf-8")
    homes = ("privet", "privet.accounting", "privet.accounting.pld")
    named_there = set(re.findall(r"`((?:[a-z_]+\.)+\w+)`", text))
    assert len(named_there) > 30
    for name in named_there:
        if name.endswith(".py"):
            assert list((ROOT / "src/privet").rglob(name)), name
        else:
            assert any(found(f"{home}.{name}") for home in homes), name


def found(name):
    """Whether there is a module or a function of this full name."""
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_an_unknown_option_would_be_noticed(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("```sh\nprivet plan --size 100 \\\n    --nosuch 3   # what\n```\n", encoding="utf-8")
    assert commands(page) == ["privet plan --size 100      --nosuch 3"]
    with pytest.raises(AssertionError, match="--nosuch"):
        test_commands_have_the_options_that_are_written(page)
    assert isinstance(main, click.Group)
