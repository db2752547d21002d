"""The documentation as a site: it builds without a warning, lacks no public name, and asks nobody else for anything."""

import ast
import html
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import privet
from doc_pages import DOCS, PAGES, ROOT, blocks, named

INSIDE = {"privet.cli", "privet.web", "privet.reporting", "privet.per_example.layers"}  # nothing to import from these


def exported(package: str) -> set[str]:
    """The full names that a package offers: its `__all__`, or what its `__init__` imports as itself."""
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None)
    if names is None:
        tree = ast.parse(inspect.getsource(module))
        made = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
        names = [alias.name for alias in made if alias.asname == alias.name]
    return {f"{package}.{name}" for name in names}


def public() -> set[str]:
    """What packages offer, and what the documentation tells its readers to import."""
    packages = [found.name for found in pkgutil.walk_packages(privet.__path__, "privet.") if found.ispkg]
    names = exported("privet").union(*(exported(name) for name in packages if name not in INSIDE))
    for page in PAGES:
        for block in blocks(page, "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "privet":
                    names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def same_thing(name: str) -> set[str]:
    """The name, if no module takes it, and the one under which its maker knows it."""
    home, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(home), last)
    if inspect.ismodule(value):
        return {value.__name__}
    names = set() if f"{home}.{last}" in sys.modules else {name}
    made = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return names | {".".join(made)} if all(isinstance(part, str) for part in made) else names  # type: ignore[arg-type]


def documented(site: Path) -> set[str]:
    """Every name in the inventory of the built reference."""
    data = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ", 1)[0] for line in zlib.decompress(data).decode().splitlines()}


def articles(site: Path) -> Iterator[tuple[str, str, str]]:
    """(name, the whole page, its article) of each page."""
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        yield str(page.relative_to(site)), text, text.partition("<article")[2].partition("</article>")[0]


def faults(site: Path) -> list[str]:
    names = documented(site)
    names |= {name.rpartition(".")[0] for name in names}  # a module is there if something of it is
    found = [f"no reference: {name}" for name in sorted(public()) if not same_thing(name) & names]
    for name, text, article in articles(site):
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="?((?:https?:)?//[^"\s>]+)', text)
        found += [f"{name} asks for {url}" for url in loaded]
        for paragraph in re.findall(r"<p>(.*?)</p>", article, flags=re.S):
            if re.search(r"\n(?:[-*] |\d+\. |\| |```)", html.unescape(paragraph)):
                found.append(f"{name} has a list or a table that is none: {paragraph[:80]}")
        if "&gt;&gt;&gt;" in re.sub(r"<pre.*?</pre>|<code.*?</code>", "", article, flags=re.S):
            found.append(f"{name} has an example outside of a box")
    return found


def build(*more: str) -> subprocess.CompletedProcess[str]:
    """What `make docs` runs. Never with --quiet, which hides warnings from `strict` too."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", *more]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_the_site_builds_and_lacks_nothing(tmp_path: Path) -> None:
    done = build("-d", str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr + done.stdout
    assert "WARNING" not in done.stderr
    assert faults(tmp_path / "site") == []
    made = {name for name, _, _ in articles(tmp_path / "site")}
    assert {str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")} <= made


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["[a](nowhere.md)", "[a](index.md#nowhere)", "[a](/index.md)", '```\n--8<-- "nowhere.py"\n```', "omitted", "fine"],
)
def test_a_fault_stops_the_build(tmp_path: Path, fault: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# Page\n\n{fault}\n", encoding="utf-8")
    if fault == "omitted":
        (tmp_path / "docs/other.md").write_text("# Not in the navigation\n", encoding="utf-8")
    settings = tmp_path / "mkdocs.yml"
    settings.write_text(
        f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: docs\nnav: [index.md]\nplugins: []\nextra_css: []\n", encoding="utf-8"
    )
    assert build("-f", str(settings), "-d", str(tmp_path / "site")).returncode == (fault != "fine")


def test_make_builds_aloud() -> None:
    [line] = re.findall(r"^\t.*mkdocs build(.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
    assert line == ""


def test_every_page_is_in_the_navigation_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/-]+\.md)$", nav, flags=re.M)
    assert sorted(listed) == sorted(named(page).removeprefix("docs/") for page in PAGES if DOCS in page.parents)
