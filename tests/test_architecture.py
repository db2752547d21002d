"""The page of the house shows what is there: its files, the protocols' lines, the layers."""

import ast
import re
from importlib import import_module
from inspect import getsource

import pytest

from doc_pages import DOCS, ROOT, blocks

PAGE = DOCS / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")
HOMES = {
    "Schedule": "schedules.base",
    "Accountant": "accounting.accountant",
    "NoiseMechanism": "noise.mechanism",
    "Drawing": "sampling.samplers",
    "ClippingRule": "clipping.rule",
    "LayerRule": "per_example.layers.base",
    "Attack": "attacks.base",
}


def lines_of(source: str) -> dict[str, dict[str, list[str]]]:
    """{class: {method: arguments}} of a module."""
    return {
        node.name: {
            item.name: [a.arg for a in (*item.args.args, *item.args.kwonlyargs)]
            for item in node.body
            if isinstance(item, ast.FunctionDef)
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


[SHOWN] = [lines_of(block) for block in blocks(PAGE, "python")]


def test_every_protocol_is_shown():
    assert set(SHOWN) == set(HOMES)


@pytest.mark.parametrize("name", HOMES)
def test_the_protocols_on_the_page_are_those_of_the_code(name):
    assert SHOWN[name] == lines_of(getsource(import_module(f"privet.{HOMES[name]}")))[name]


def test_the_files_on_the_page_and_in_the_picture_are_there():
    picture = (DOCS / "pictures/architecture.svg").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)+\w*(?:\.py|\.toml)?)`", TEXT) + re.findall(r">((?:\w+/)+\w+\.py)<", picture)
    assert len(named) > 50
    homes = (ROOT, ROOT / "src/privet", ROOT / "papers/src/privet_papers")
    assert [file for file in named if not any((home / file).exists() for home in homes)] == []


def test_every_folder_has_its_place_among_the_layers():
    [table] = re.findall(r"(?m)^    errors(?:.*\n    )*.*$", TEXT)
    told = re.findall(r"\w+", table)
    here = {path.name for path in (ROOT / "src/privet").iterdir() if (path / "__init__.py").exists()} - {"published"}
    here |= {path.stem for path in (ROOT / "src/privet").glob("*.py") if not path.stem.startswith("__")}
    assert len(told) == len(set(told))
    assert set(told) == here
