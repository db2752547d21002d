"""The table of renames, applied on the side of the working tree; on the base's side names stay as they are written."""

import os
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("names.toml")
DERIVED = (
    "hash",
    "plan",
    "digest",
    "fingerprint",
    "bytes",
    "sha256",
    "layout",
)  # they follow from keys: equal while no key is renamed
MASKED = "(masked)"


@cache
def table() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text())


def _rows(section: str) -> dict[str, str]:
    """The rows of a section; none on the side of the base."""
    return {} if os.environ.get("FREEZE_SIDE") == "base" else table().get(section, {})


def name(address: str) -> Any:
    """What is at `module:attribute` (or what is the `module`) in the base, wherever it is now."""
    rows = _rows("python")
    module, _, attribute = address.partition(":")
    if address in rows:
        module, _, attribute = rows[address].partition(":")
    else:
        known = [old for old in rows if (module + ".").startswith(old + ".")]
        if known:
            old = max(known, key=len)
            module = rows[old] + module.removeprefix(old)
    found = import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found


def kw(of: str, **given: Any) -> dict[str, Any]:
    """Arguments of `of` by their names of today."""
    rows, values = _rows("python"), _rows("values")
    return {
        rows.get(f"{of}.{key}", rows.get(key, key)): values.get(f"{key}={value}", value)
        if isinstance(value, str)
        else value
        for key, value in given.items()
    }


def call(address: str, *args: Any, **given: Any) -> Any:
    """Call what is at the address; arguments are renamed as those of its last word."""
    return name(address)(*args, **kw(address.partition(":")[2] or address, **given))


def get(of: str, thing: Any, attribute: str) -> Any:
    """An attribute of a thing of the kind `of`; called by whoever asks, if it is a method."""
    return getattr(thing, _rows("python").get(f"{of}.{attribute}", attribute))


def argv(words: Sequence[str]) -> list[str]:
    """A command line as it is typed today."""
    rows, found, at = _rows("commands"), [], 0
    while at < len(words):
        for taken in (2, 1):
            old = " ".join(words[at : at + taken])
            if old in rows and (at == 0 or old.startswith("-")):
                found += rows[old].split()
                break
        else:
            taken = 1
            found.append(words[at])
        at += taken
    return found


def keyed(tree: Any, path: tuple[str, ...] = ()) -> Any:
    """Plain values with keys as they are today, for a file that the probe writes."""
    return _keyed(tree, path, _rows("keys"), _rows("values"))


def as_today(tree: Any, rows: dict[str, Any]) -> Any:
    """What the base gave, with keys as the working tree has them by this table."""
    return _keyed(_reworded(tree, rows.get("words", {})), (), rows.get("keys", {}), rows.get("values", {}))


def _reworded(tree: Any, words: dict[str, str], *, is_page: bool = False) -> Any:
    """Words of pages in Markdown as they are today."""
    if not words:
        return tree
    if isinstance(tree, dict):
        return {key: _reworded(value, words, is_page=key.endswith((".md", ".csv"))) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_reworded(value, words, is_page=is_page) for value in tree]
    if isinstance(tree, str) and is_page:
        for old, new in words.items():
            tree = tree.replace(old, new)
    return tree


# Files whose format, keys and all, is that of the base.
AS_THEY_WERE = ("ledger.jsonl", "ledger.json", "metrics.jsonl", "checkpoint.safetensors")


def _keyed(tree: Any, path: tuple[str, ...], rows: dict[str, str], values: dict[str, str]) -> Any:
    if path and path[-1].endswith(AS_THEY_WERE):
        return tree
    if isinstance(tree, dict):
        if {"paper", "needs"} <= tree.keys():  # a row of the methods says in words what its noise and clip do
            rows = {key: rows[key] for key in ("wrong", "sibling") if key in rows}
        named = ((_key((*path, key), rows), key, value) for key, value in tree.items())
        return {new: _keyed(value, (*path, key), rows, values) for new, key, value in named if new}
    if isinstance(tree, list):
        return [_keyed(value, path, rows, values) for value in tree]
    if isinstance(tree, str) and path:
        return values.get(f"{path[-1]}={tree}", tree)
    return tree


def _key(path: tuple[str, ...], rows: dict[str, str]) -> str:
    """The longest row that this path ends with wins."""
    for start in range(len(path)):
        old = ".".join(path[start:])
        if old in rows:
            return rows[old]
    return path[-1]
