"""A report as one HTML page that needs nothing else: style, charts and pictures are in it, and there is no script."""

import base64
import struct
import zlib
from html import escape
from importlib import resources
from typing import Any

from privet.accounting import Guarantee
from privet.reporting import report_blocks as blocks
from privet.reporting.report_blocks import pieces, spelled
from privet.reporting.report_charts import legend_mark, svg, turns

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
STATE = {"yes": ("✓", "yes"), "no": ("✗", "no"), "open": ("○", "open")}


def html(title: str, summary: tuple[blocks.Words, ...], sections: tuple[blocks.Section, ...], *, footer: str) -> str:
    """The whole page."""
    links = "".join(f'<a href="#{one.name}">{escape(one.title)}</a>' for one in sections)
    style = (resources.files("privet.reporting") / "report.css").read_text(encoding="utf-8")
    body = "".join(map(_section, sections))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head><body>\n"
        f'<header><p class="brand">Privet <span>privacy report</span></p><h1>{escape(title)}</h1>'
        f'<ul class="summary">{"".join(f"<li>{_words(one)}</li>" for one in summary)}</ul></header>\n'
        f'<nav aria-label="Sections">{links}</nav>\n<main>\n{body}</main>\n<footer>{escape(footer)}</footer>'
        "</body></html>\n"
    )


def _section(section: blocks.Section) -> str:
    inner = "\n".join(map(_block, section.blocks))
    return (
        f'<section id="{section.name}" aria-labelledby="{section.name}-title">'
        f'<h2 id="{section.name}-title">{escape(section.title)}</h2>\n{inner}\n</section>\n'
    )


def _block(block: blocks.Block) -> str:
    if isinstance(block, blocks.Prose):
        return f'<p class="{block.tone}">{_words(block.words)}</p>'
    if isinstance(block, blocks.Promise):
        return _promise(block)
    if isinstance(block, blocks.Facts):
        rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{_words(words)}</dd></div>" for name, words in block.rows)
        return f'<dl class="facts">{rows}</dl>'
    if isinstance(block, blocks.Bullets):
        return f'<ul class="bullets">{"".join(f"<li>{_words(words)}</li>" for words in block.items)}</ul>'
    if isinstance(block, blocks.Table):
        return _table(block)
    if isinstance(block, blocks.Checklist):
        return _checklist(block)
    if isinstance(block, blocks.Charts):
        return f'<div class="charts">{"".join(map(_chart, block.charts))}</div>' if block.charts else ""
    return _pictures(block)


# --- words ------------------------------------------------------------------------------------------


def _words(words: blocks.Words) -> str:
    return "".join(map(_piece, pieces(words)))


def _piece(piece: blocks.Piece) -> str:
    if isinstance(piece, Guarantee):
        return (
            f'<span class="epsilon {piece.label}"><span class="value">{escape(spelled(piece))}</span> '
            f'<span class="tag {piece.label}">{piece.label}</span></span>'
        )
    if isinstance(piece, blocks.Raw):
        return f'<span class="raw">{escape(piece.text)} <span class="tag raw">not private</span></span>'
    if isinstance(piece, blocks.Code):
        return f"<code>{escape(piece.text)}</code>"
    return escape(piece)


def _promise(block: blocks.Promise) -> str:
    label = block.guarantee.label
    lines = "".join(f"<p>{_words(line)}</p>" for line in block.lines)
    return (
        f'<div class="promise {label}"><p class="head"><span>{escape(block.title)}</span> '
        f'<span class="tag {label}">{label}</span></p>'
        f'<p class="number"><span class="epsilon {label}"><span class="value">{escape(spelled(block.guarantee))}</span>'
        f' <span class="hidden">{label}</span></span></p>{lines}</div>'
    )


def _table(block: blocks.Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in block.head)
    rows = "".join(
        "<tr>" + "".join(
            f'<td data-name="{escape(name, quote=True)}">{_words(cell)}</td>'
            for name, cell in zip(block.head, row, strict=True)
        ) + "</tr>" for row in block.rows
    )  # fmt: skip
    caption = f"<caption>{escape(block.caption)}</caption>" if block.caption else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _checklist(block: blocks.Checklist) -> str:
    rows = "".join(
        f'<li class="{check.state}"><span class="state"><span aria-hidden="true">{STATE[check.state][0]}</span> '
        f'{STATE[check.state][1]}</span><div><p class="question">{escape(check.question)}</p>'
        f"<p>{_words(check.answer)}</p></div></li>"
        for check in block.checks
    )
    return f'<ul class="checks">{rows}</ul>'


# --- pictures ---------------------------------------------------------------------------------------


def _chart(chart: blocks.Chart) -> str:
    by_run = turns(chart)
    legend = "".join(
        f"<li>{legend_mark(line, turns=by_run)} {escape(line.name)}{_tag(line.label, line.name)}</li>"
        for line in chart.lines
    )
    caption = f"<p>{escape(chart.caption)}</p>" if chart.caption else ""
    return (
        f'<figure class="chart"><h3>{escape(chart.title)}</h3>{svg(chart)}'
        f'<figcaption><ul class="legend">{legend}</ul>{caption}</figcaption></figure>'
    )


def _tag(label: str | None, name: str) -> str:
    return "" if label is None or label in name else f' <span class="tag {label}">{label}</span>'


def _pictures(block: blocks.Pictures) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("what was attacked", *block.head))
    rows = ""
    for name, images in block.rows:
        cells = "".join(
            f"<td>{_image(image, what)}</td>" for image, what in zip(images, block.head, strict=True)
        )  # fmt: skip
        rows += f'<tr><th scope="row">{_words(name)}</th>{cells}</tr>'
    return (
        f'<figure class="pictures"><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>'
        f"</table></div><figcaption>{_words(block.caption)}</figcaption></figure>"
    )


def _image(image: Any, what: str) -> str:
    if image is None:
        return "–"
    coded = base64.b64encode(png(image)).decode()
    return f'<img alt="{escape(what, quote=True)}" width="112" height="112" src="data:image/png;base64,{coded}">'


def png(rows: Any) -> bytes:
    """Pixels (H, W, C), C of 1 or 3, whole numbers 0 to 255, as a PNG file.

    >>> png([[[0], [255]]])[:4]
    b'\\x89PNG'
    """
    height, width, depth = len(rows), len(rows[0]), len(rows[0][0])
    lines = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if depth == 1 else 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
