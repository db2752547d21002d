"""Docstrings as the reference shows them: examples in boxes, and parameters that share a line on lines of their own."""

import re

from griffe import Extension, Object

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.M)  # from a prompt to the next empty line
LAID_OUT = re.compile(r"\S {3,}\S|^\S.*\n {4}", flags=re.M)  # columns, or an indented block
SHARED = re.compile(r"^( +)(\w+(?:, \w+)+): (.+)", flags=re.M)


class Readable(Extension):
    """A doctest becomes a box of code; `noise, clip: of the plans` becomes two parameters."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value
            if obj.is_module:  # formatters move its code to the margin, where it would flow like a sentence
                text = "\n\n".join(in_columns(part) for part in text.split("\n\n"))
            obj.docstring.value = SHARED.sub(one_by_one, EXAMPLE.sub(boxed, text))


def in_columns(part: str) -> str:
    return f"```text\n{part}\n```" if LAID_OUT.search(part) and not part.startswith(" ") else part


def boxed(found: re.Match[str]) -> str:
    return f"```pycon\n{found[0]}\n```"


def one_by_one(found: re.Match[str]) -> str:
    return "\n".join(f"{found[1]}{name}: {found[3]}" for name in found[2].split(", "))
