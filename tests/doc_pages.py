"""The pages of the documentation as data: blocks of code, headings, links, commands."""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks/README.md"])

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```", flags=re.M | re.S)


def named(page: Path) -> str:
    """A short name, for the ids of tests."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks in these languages, also inside of lists."""
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [textwrap.dedent(block["text"]) for block in found if block["language"] in languages]


def prose(page: Path) -> str:
    """The page without its blocks, its spans of code and its comments."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.S)
    return re.sub(r"`[^`\n]*`", "code", text)


def links(page: Path) -> list[tuple[str, str]]:
    """(path, anchor) of each link to a file; the path is empty within the page."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [(path, anchor) for path, _, anchor in (link.partition("#") for link in found) if "://" not in path]


def anchors(page: Path) -> set[str]:
    """The anchors that both GitHub and the site give to the headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    heads = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", head).strip() for head in re.findall(r"^#+ (.*)", text, flags=re.M)]
    kept = [re.sub(r"[^\w\s-]", "", head).strip().lower() for head in heads]
    return {re.sub(r"\s", "-", head) for head in kept} & {re.sub(r"[-\s]+", "-", head) for head in kept}


def commands(page: Path) -> list[str]:
    """Each line `privet ...` that a reader is told to type, without comments, on one line."""
    found = []
    for block in blocks(page, "sh", "console", ""):
        for line in block.replace("\\\n", " ").splitlines():
            words = re.sub(r"(^|\s)#.*", "", line.removeprefix("$ ")).strip()
            if words.startswith("privet "):
                found.append(re.split(r" && | \| |  +(?=[a-z])", words)[0])
    return found


def answered(page: Path) -> list[tuple[str, list[str]]]:
    """(command, lines of its answer) of each block that shows one."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(page, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return [(command, lines) for command, lines in found if lines]
