"""A report as Markdown, for a repository or a ticket: the same words; charts as a few of their points."""

import re
from collections.abc import Sequence
from html import escape

from privet.accounting import Guarantee
from privet.reporting import report_blocks as blocks
from privet.reporting.report_blocks import pieces, spelled
from privet.reporting.report_charts import point, thinned

STATE = {"yes": "[x]", "no": "[ ] **no**:", "open": "[ ] open:"}
POINTS = 7  # of a chart's line
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~!])")


def markdown(
    title: str, summary: tuple[blocks.Words, ...], sections: tuple[blocks.Section, ...], *, footer: str
) -> str:
    """The whole text."""
    parts = [f"# {_text(title)}", "\n".join(f"- {_words(one)}" for one in summary)]
    for section in sections:
        parts.append(f"## {_text(section.title)}")
        parts += [text for text in map(_block, section.blocks) if text]
    return "\n\n".join([*parts, f"---\n{_text(footer)}"]) + "\n"


def _block(block: blocks.Block) -> str:
    if isinstance(block, blocks.Prose):
        return f"**{_words(block.words)}**" if block.tone == "warning" else _words(block.words)
    if isinstance(block, blocks.Promise):
        return "\n\n".join([f"**{_text(block.title)}: {_piece(block.guarantee)}**", *map(_words, block.lines)])
    if isinstance(block, blocks.Facts):
        return _table(("", ""), [(_text(name), _words(words)) for name, words in block.rows])
    if isinstance(block, blocks.Bullets):
        return "\n".join(f"- {_words(words)}" for words in block.items)
    if isinstance(block, blocks.Table):
        rows = [tuple(map(_words, row)) for row in block.rows]
        return _table(tuple(map(_text, block.head)), rows) + (f"\n\n{_text(block.caption)}" if block.caption else "")
    if isinstance(block, blocks.Checklist):
        return "\n".join(
            f"- {STATE[check.state]} {_text(check.question)} {_words(check.answer)}" for check in block.checks
        )
    if isinstance(block, blocks.Charts):
        return "\n\n".join(map(_chart, block.charts))
    return f"{_words(block.caption)} Pictures are in the HTML report."


def _chart(chart: blocks.Chart) -> str:
    rows = []
    for line in chart.lines:
        if line.is_faint:
            continue
        name = line.name if line.label is None or line.label in line.name else f"{line.name} ({line.label})"
        shown = ", ".join(f"{a:.4g}: {point(b, line)}" for a, b in thinned(line, POINTS))
        rows.append((_text(name), shown))
    head = (f"{_text(chart.title)}", f"{_text(chart.x_name)}: {_text(chart.y_name)}")
    return _table(head, rows) if rows else ""


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)


def _words(words: blocks.Words) -> str:
    return "".join(map(_piece, pieces(words)))


def _piece(piece: blocks.Piece) -> str:
    if isinstance(piece, Guarantee):
        return f"{spelled(piece)} ({piece.label})"
    if isinstance(piece, blocks.Raw):
        return f"{_text(piece.text)} (not private)"
    if isinstance(piece, blocks.Code):
        text = " ".join(piece.text.split()).replace("`", "'").replace("|", "\\|")
        return f"`{text}`"
    return _text(piece)


def _text(text: str) -> str:
    """Text that stands for itself: nothing in it is markup, and it has no line breaks."""
    flat = escape(re.sub(r"\s+", " ", text), quote=False)
    return _SPECIAL.sub(r"\\\1", flat)
