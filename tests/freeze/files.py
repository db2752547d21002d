"""Files as values that can be compared: parsed, with the layout they were written in, and tensors by their digests."""

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

SKIPPED = (".lock", ".html", ".png", ".svg", ".pdf", ".new")  # process ids; pages are compared by `report --json`
_WRITTEN = {
    "lines": lambda value: json.dumps(value, indent=1, allow_nan=False),
    "wide lines": lambda value: json.dumps(value, indent=2, allow_nan=False),
    "blanks": lambda value: json.dumps(value, allow_nan=False),
    "compact": lambda value: json.dumps(value, separators=(",", ":"), allow_nan=False),
}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def json_of(text: str) -> dict[str, Any]:
    """The value, and how it was written: so that value and layout give the bytes again."""
    value = json.loads(text)
    ways = [way for way, write in _WRITTEN.items() if write(value) == text.rstrip("\n")]
    return {"value": value, "layout": [*ways[:1], len(text) - len(text.rstrip("\n"))] if ways else sha(text.encode())}


def safetensors_of(data: bytes) -> dict[str, Any]:
    """The header, what is JSON inside, and the digest of every other tensor."""
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    found: dict[str, Any] = {"tensors": [], "metadata": header.get("__metadata__"), "bytes": sha(data)}
    for tensor, about in header.items():
        if tensor == "__metadata__":
            continue
        start, end = about["data_offsets"]
        piece = body[start:end]
        if tensor == "json":
            found["json"] = json_of(piece.decode())
        elif tensor != "sha256":
            found["tensors"].append([tensor, about["dtype"], about["shape"], sha(piece)])
    return found


def content(file: Path) -> Any:
    if file.suffix == ".safetensors":
        return safetensors_of(file.read_bytes())
    text = file.read_text()
    if file.suffix in (".json", ".count"):
        return json_of(text)
    if file.suffix == ".jsonl":
        return [json_of(line) for line in text.splitlines()]
    if file.suffix == ".toml":
        return tomllib.loads(text)
    return text.splitlines()


def folder(place: Path, *, deep: bool = True) -> dict[str, Any]:
    """All files in a folder, and below it; `file NAME` is the key, so that no key of JSON is meant."""
    there = sorted(place.rglob("*") if deep else place.glob("*"))
    files = [file for file in there if file.is_file() and file.suffix not in SKIPPED]
    return {_named(file.relative_to(place)): content(file) for file in files}


def _named(file: Path) -> str:
    """A fingerprint in a name follows from keys; the file itself says it too, and there it is compared."""
    return "file " + re.sub(r"\.[0-9a-f]{12}\.run\b", ".fingerprint.run", str(file))
