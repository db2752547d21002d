"""A module imports only from its left; up to planning there is no torch; a new module must be placed here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import privet

SOURCE = Path(privet.__file__).parent

# From left to right; names on one line do not import each other.
LAYERS = (
    ("errors",),
    ("_files",),
    ("_check",),
    ("_registry",),
    ("schedules",),
    ("accounting",),
    ("planning",),
    ("ledger",),
    ("noise",),
    ("engine",),
    ("models",),
    ("data",),
    ("training",),
    ("federated", "auditing", "attacks"),
    ("reporting",),
    ("experiments",),
    ("web",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
LIGHT = {name for name in RANK if RANK[name] <= RANK["planning"]}
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
        if top in HEAVY and importer in LIGHT:
            found.append(f"{name} (nothing up to planning imports it)")
        if top != "privet":
            continue
        target = rest[0] if rest else ""
        if target not in RANK:
            if not (importer in ("cli", "web") and target == ""):
                found.append(f"{name} (import it from its own module)")
        elif target != importer and RANK[target] >= RANK[importer]:
            found.append(name)
    return found


@pytest.mark.parametrize(("top", "file"), [pytest.param(t, f, id=str(f.relative_to(SOURCE))) for t, f in modules()])
def test_imports_go_left(top: str, file: Path) -> None:
    assert top in RANK, f"{top} is new: place it in LAYERS"
    assert wrong(top, file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("schedules", "from privet.accounting import Ledger"),
        ("accounting", "def late():\n    import torch"),
        ("accounting", "from privet import planning"),
        ("auditing", "from privet.attacks import invert"),
        ("reporting", "import privet.cli"),
        ("accounting", "from privet import spent"),
    ],
)
def test_the_check_sees_a_wrong_import(importer: str, source: str) -> None:
    assert wrong(importer, source)
