"""A module imports only from its left; up to the ledger there is no torch; a new module is placed here.

`published` lies beside: it imports from the left of `training`, and nothing imports it but the registries, by name. The
papers are right of everything.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import privet
import privet_papers

SOURCE = Path(privet.__file__).parent
PAPERS = Path(privet_papers.__file__).parent

# From left to right; names on one line do not import each other.
LAYERS = (
    ("errors",),
    ("_text",),
    ("_files",),
    ("_check",),
    ("_registry",),
    ("schedules",),
    ("accounting",),
    ("planning",),
    ("ledger",),
    ("per_example",),
    ("clipping",),
    ("noise",),
    ("sampling",),
    ("models",),
    ("data",),
    ("training",),
    ("tuning", "diagnosis"),
    ("auditing", "attacks", "federated"),
    ("reporting",),
    ("web",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PUBLISHED = "published"
RANK_PUBLISHED = RANK["training"]
LIGHT = {name for name in RANK if RANK[name] <= RANK["ledger"]}
HEAVY = {"torch", "torchvision", "matplotlib", "flwr", "opacus"}


def modules() -> Iterator[tuple[str, Path]]:
    """(top-level name, file) for every source file except the package's own `__init__`, which is lazy."""
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE)
        if place.parts != ("__init__.py",):
            yield place.parts[0].removesuffix(".py"), file


def imports(tree: ast.AST) -> Iterator[str]:
    """The dotted names a file imports anywhere, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute in this library"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong(importer: str, source: str) -> list[str]:
    """The imports of a file of the layer `importer` that go the wrong way."""
    found = []
    for name in imports(ast.parse(source)):
        top, *rest = name.split(".")
        if top == "privet_papers" and importer != top:
            found.append(f"{name} (the papers plug in by entry points)")
        if top in HEAVY and importer in LIGHT:
            found.append(f"{name} (nothing up to the ledger imports it)")
        if top != "privet":
            continue
        target = rest[0] if rest else ""
        if importer == "privet_papers":
            continue
        if PUBLISHED in (importer, target):
            if target != importer and (importer != PUBLISHED or RANK.get(target, RANK_PUBLISHED) >= RANK_PUBLISHED):
                found.append(f"{name} (nothing imports published, which imports from the left of training)")
        elif target not in RANK:
            if not (importer in ("cli", "web") and target == ""):
                found.append(f"{name} (import it from its own module)")
        elif target != importer and RANK[target] >= RANK[importer]:
            found.append(name)
    return found


@pytest.mark.parametrize(("top", "file"), [pytest.param(t, f, id=str(f.relative_to(SOURCE))) for t, f in modules()])
def test_imports_go_left(top: str, file: Path) -> None:
    assert top in RANK or top == PUBLISHED, f"{top} is new: place it in LAYERS"
    assert wrong(top, file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("file", sorted(PAPERS.rglob("*.py")), ids=lambda file: str(file.relative_to(PAPERS)))
def test_the_papers_import_absolutely(file: Path) -> None:
    assert wrong("privet_papers", file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("schedules", "from privet.accounting import Ledger"),
        ("accounting", "def late():\n    import torch"),
        ("accounting", "from privet import planning"),
        ("auditing", "from privet.attacks import inversion"),
        ("reporting", "import privet.cli"),
        ("accounting", "from privet import spent"),
        ("planning", "from privet.published.methods import decay"),
        ("cli", "from privet.published import clipping"),
        ("published", "from privet.training.run import Run"),
        ("cli", "def late():\n    from privet_papers.cli import main"),
    ],
)
def test_the_check_sees_a_wrong_import(importer: str, source: str) -> None:
    assert wrong(importer, source)
