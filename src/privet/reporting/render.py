"""The report's template as Markdown, and that Markdown as one HTML page and as PDF.

The prose stands in report.md.j2. No number gets from there into a report by itself: text is escaped, and what is
neither text nor went through the filter `guarantee`, `public` or `raw` stops the report. Where the formats differ (a
label is a word in brackets or a coloured tag, a chart is a table or a drawing), the text has a mark, and what belongs
there is put in its place afterwards. markdown-it makes no link, no image and no HTML of anything.
"""

import base64
import math
import os
import re
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, StrictUndefined, pass_context
from jinja2.runtime import Context
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from privet._text import format_count, shorten
from privet.accounting import Guarantee
from privet.accounting.guarantee import format_outward
from privet.errors import InvalidValue, MissingExtra
from privet.reporting import charts
from privet.reporting.charts import Chart

State = Literal["yes", "no", "open"]
SIGN = {"certified": "≤", "approximate": "≈", "claimed": "claimed to be", "empirical": "≥"}
STATE = {"yes": ("[x]", "✓"), "no": ("[ ] **no**:", "✗"), "open": ("[ ] open:", "○")}  # in Markdown, and in HTML
RULES = ("table", "list", "heading", "escape", "entity", "backticks")  # all that the template uses
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
SECONDS = 120
_OPEN, _CLOSE, _CUT = "\ue000", "\ue001", "\ue002"  # of a mark, and between head, body and foot
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_ALONE = re.compile(f"<p>{_MARK.pattern}</p>\n?")
_FORGED = re.compile(f"[{_OPEN}-{_CUT}]")
_BLANK = re.compile(rf"[\s{_OPEN}-{_CUT}]+")
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~!])")
_LIST = re.compile(r"^([0-9]*)([-+.)])(?= |$)")  # what would begin a list


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading of the report, and a word for links."""

    name: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question of the checklist: answered, answered with no, or left to people."""

    question: str
    state: State


class Page:
    """The template with its values: once, for both formats. `sections` and `checks` are those that it came by."""

    def __init__(self, values: Mapping[str, Any], source: str | None = None) -> None:
        self.sections: list[Section] = []
        self.checks: list[Check] = []
        self._marks: list[tuple[str, str]] = []
        template = _template() if source is None else environment().from_string(source)
        text = template.render(
            **values, mark=self._mark, box=self._box, section=self._section, check=self._check,
            count=self._count, cut=Markup(_CUT),
        )  # fmt: skip
        text = re.sub(r"\n? +", " ", text)  # lines of the template go on where the next is indented
        self._head, self._body, self._foot = (part.strip() for part in f"{text}{_CUT}{_CUT}".split(_CUT)[:3])

    @property
    def summary(self) -> tuple[str, ...]:
        """The lines below the heading, in Markdown."""
        return tuple(line.removeprefix("- ") for line in self._finish(self._head, 0).splitlines() if line[:2] == "- ")

    def markdown(self) -> str:
        """For a repository or a ticket: charts are a few of their points, pictures are left out."""
        text = self._finish(f"{self._head}\n\n{self._body}\n\n---\n{self._foot}", 0)
        return re.sub(r"\n{3,}", "\n\n", text) + "\n"

    def html(self, title: str) -> str:
        """One page that needs nothing else: style, charts and pictures are in it, and there is no script."""
        links = "".join(f'<a href="#{one.name}">{escape(one.title)}</a>' for one in self.sections)
        style = (resources.files("privet.reporting") / "report.css").read_text(encoding="utf-8")
        head, body, foot = (self._finish(_render(part), 1) for part in (self._head, self._body, self._foot))
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="referrer" content="no-referrer">'
            f"<title>{escape(title)}</title><style>\n{style}</style></head><body>\n"
            f'<header><p class="brand">Privet <span>privacy report</span></p>{head}</header>\n'
            f'<nav aria-label="Sections">{links}</nav>\n<main>\n{body}</main>\n<footer>{foot}</footer>'
            "</body></html>\n"
        )

    def _finish(self, text: str, which: int) -> str:
        """The text with each mark's Markdown (0) or HTML (1); what stands alone is no paragraph."""

        def put(found: re.Match[str]) -> str:
            return self._marks[int(found[1])][which]

        return _MARK.sub(put, _ALONE.sub(put, text))

    # --- what the template calls ---
    def _mark(self, markdown: str, html: str) -> Markup:
        self._marks.append((_FORGED.sub("", markdown), _FORGED.sub("", html)))
        return Markup(f"{_OPEN}{len(self._marks) - 1}{_CLOSE}")

    def _box(self, name: str, label: str = "", *, caller: Callable[[], str]) -> Markup:
        """Paragraphs of one look; a warning is bold in Markdown."""
        stars = self._mark("**", "") if name == "warning" else Markup("")
        start, end = self._mark("", f'<div class="{f"{name} {label}".strip()}">'), self._mark("", "</div>\n")
        return Markup(f"\n\n{start}\n\n{stars}{caller().strip()}{stars}\n\n{end}\n\n")

    def _section(self, name: str, title: str, *, caller: Callable[[], str]) -> Markup:
        self.sections.append(Section(name=name, title=title))
        head = f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{escape(title)}</h2>\n'
        start, end = self._mark(f"## {text(title)}", head), self._mark("", "</section>\n")
        return Markup(f"{start}\n\n{caller().strip()}\n\n{end}\n\n")

    def _check(self, question: str, state: bool | State) -> Markup:
        """A question of the checklist; what follows on its line is the answer."""
        known: State = ("yes" if state else "no") if isinstance(state, bool) else state
        self.checks.append(Check(question=question, state=known))
        box, sign = STATE[known]
        return self._mark(
            f"{box} {text(question)}",
            f'<span class="state {known}"><span aria-hidden="true">{sign}</span> {known}</span> '
            f'<span class="question">{escape(question)}</span>',
        )

    def _count(self, state: State) -> int:
        return sum(check.state == state for check in self.checks)


# --- what may stand in a report ---------------------------------------------------------------------
def admit(value: Any) -> Markup:
    """What the template writes: text is escaped; a number has to say first what it is.

    >>> admit("a *b*"), admit(0.5)
    Traceback (most recent call last):
    TypeError: a report has a bare float, 0.5. Write it through the filter guarantee, public or raw.
    """
    if isinstance(value, Markup):
        return value
    if type(value) is str:
        return text(value)
    what = f"a bare {type(value).__name__}, {shorten(str(value), 40)}"
    raise TypeError(f"a report has {what}. Write it through the filter guarantee, public or raw.")


def text(value: str) -> Markup:
    """Text that stands for itself: nothing in it is markup, and it has no line breaks.

    >>> print(text("<b> [a](b)"), text("- a"))
    &lt;b&gt; \\[a\\](b) \\- a
    """
    flat = escape(_BLANK.sub(" ", value), quote=False)
    return Markup(_LIST.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", flat)))


def epsilon(guarantee: Guarantee, *, digits: int = 4) -> str:
    """The epsilon with its sign, on the safe side; its label is put beside it by whoever writes.

    >>> epsilon(Guarantee(epsilon=2.99949, epsilon_lower=None, delta=1e-5, label="certified", method="pld"))
    'ε ≤ 3'
    """
    figure = format_outward(guarantee.epsilon, up=guarantee.label != "empirical", digits=digits)
    return f"ε {SIGN[guarantee.label]} {figure}"


def percent(value: float, *, up: bool, digits: int = 3) -> str:
    """A share of one as per cent, rounded to the side that is asked for, and never above 100.

    >>> percent(0.123456, up=True), percent(0.5, up=False)
    ('12.4 %', '50 %')
    """
    return f"{format_outward(min(100 * value, 100.0), up=up, digits=digits)} %"


@cache
def environment() -> Environment:
    """Jinja with our filters alone: the others make text of numbers."""
    found = Environment(autoescape=True, finalize=admit, undefined=StrictUndefined, line_statement_prefix="%")
    found.filters = {"length": len, "guarantee": _guarantee, "interval": _interval, "public": _public, "raw": _raw,
                     "code": _code, "charts": _charts, "pictures": _pictures,
                     "counted": lambda number, noun: text(format_count(number, noun, commas=True))}  # fmt: skip
    return found


@cache
def _template() -> Any:
    source = (resources.files("privet.reporting") / "report.md.j2").read_text(encoding="utf-8")
    return environment().from_string(source)


@pass_context
def _guarantee(context: Context, value: Guarantee, title: str = "") -> Markup:
    """An epsilon with its label; with a title, it is the number that everything is about, and large."""
    said, label = epsilon(value), value.label
    number = f'<span class="epsilon {label}"><span class="value">{escape(said)}</span>'
    tag = f'<span class="tag {label}">{label}</span>'
    if not title:
        return _mark(context, f"{said} ({label})", f"{number} {tag}</span>")
    return _mark(
        context,
        f"**{text(title)}: {said} ({label})**",
        f'<p class="head"><span>{escape(title)}</span> {tag}</p>'
        f'<p class="number">{number} <span class="hidden">{label}</span></span></p>',
    )


def _interval(value: Guarantee) -> Markup:
    """Where the true epsilon lies, with the label; nothing if there is no lower bound."""
    if value.epsilon_lower is None:
        return Markup("")
    low, high = format_outward(value.epsilon_lower, up=False), format_outward(value.epsilon, up=True)
    return Markup(f"between {low} and {high} ({value.label})")


def _public(value: Any, form: str = ",", *, percent_up: bool = False) -> Markup:
    """A number that everybody may know: chosen, counted in what is public, or a bound that was proven."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"public: {type(value).__name__} is no finite number.")
    return text(percent(value, up=True) if percent_up else f"{value:{form}}")


@pass_context
def _raw(context: Context, value: str | float | list[Any]) -> Markup:
    """Something that was computed from training records without noise: it is shown with the words `not private`."""
    if isinstance(value, list):
        value = " ".join(map(str, value))
    said = value if isinstance(value, str) else f"{value:.4g}"
    tag = '<span class="tag raw">not private</span>'
    return _mark(context, f"{text(said)} (not private)", f'<span class="raw">{escape(said)} {tag}</span>')


@pass_context
def _code(context: Context, value: str | list[str]) -> Markup:
    value = value if isinstance(value, str) else " ".join(value)
    flat = " ".join(value.split()).replace("`", "'").replace("|", "\\|")
    return _mark(context, f"`{flat}`", f"<code>{escape(value)}</code>")


@pass_context
def _charts(context: Context, value: Sequence[Chart]) -> Markup:
    """Charts side by side: drawings in HTML, some of their points in Markdown."""
    html = f'<div class="charts">{"".join(map(_figure, value))}</div>\n' if value else ""
    return Markup("\n\n") + _mark(context, "\n\n".join(filter(None, map(_chart_table, value))), html)


@pass_context
def _pictures(context: Context, value: Sequence[Any], *heads: str) -> Markup:
    """Rows of (name, images) as small pictures, each under its head; HTML alone has them."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("what was attacked", *heads))
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{_image(image, what)}</td>" for image, what in zip(images, heads, strict=True))
        + "</tr>"
        for name, images in value
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return _mark(context, "", f'<div class="pictures">{table}</div>\n')


def _mark(context: Context, markdown: str, html: str) -> Markup:
    found: Markup = context["mark"](markdown, html)
    return found


# --- HTML -------------------------------------------------------------------------------------------
def _render(source: str) -> str:
    parser = MarkdownIt("zero", {"html": False}).enable(RULES)
    return str(parser.renderer.render(_name_cells(parser.parse(source)), parser.options, {}))


def _name_cells(tokens: list[Token]) -> list[Token]:
    """Each cell knows the head of its column, for narrow screens; a table without heads is one of facts."""
    heads: list[str] = []
    table, column = None, 0
    for place, token in enumerate(tokens):
        if token.type == "table_open":
            table, heads = token, []
        elif token.type == "tr_open":
            column = 0
        elif token.type == "th_open":
            heads.append("".join(part.content for part in tokens[place + 1].children or ()))
            token.attrSet("scope", "col")
        elif token.type == "thead_close" and table is not None and not any(heads):
            table.attrSet("class", "facts")
        elif token.type == "td_open":
            if heads[column]:
                token.attrSet("data-name", heads[column])
            column += 1
    return tokens


def _figure(chart: Chart) -> str:
    by_run = charts.turns(chart)
    legend = "".join(
        f"<li>{charts.legend_mark(line, turns=by_run)} {escape(line.name)}{_tag(line.label, line.name)}</li>"
        for line in chart.lines
    )
    caption = f"<p>{escape(chart.caption)}</p>" if chart.caption else ""
    return (
        f'<figure class="chart"><h3>{escape(chart.title)}</h3>{charts.svg(chart)}'
        f'<figcaption><ul class="legend">{legend}</ul>{caption}</figcaption></figure>'
    )


def _chart_table(chart: Chart) -> str:
    axes, rows = charts.table(chart)
    lines = [(text(chart.title), text(axes)), ("---", "---"), *((text(name), said) for name, said in rows)]
    return "\n".join(f"| {a} | {b} |" for a, b in lines) if rows else ""


def _tag(label: str | None, name: str) -> str:
    return "" if label is None or label in name else f' <span class="tag {label}">{label}</span>'


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


def pdf(page: str) -> bytes:
    """The page as it is printed.

    Raises:
        MissingExtra: no browser is there.
        InvalidValue: it does not print.
    """
    browser = next((found for name in BROWSERS if (found := shutil.which(name)) is not None), None)
    if browser is None:
        raise MissingExtra(
            "no program that prints web pages is there. A PDF needs Chromium or Chrome. Install one, or write .html "
            "and print it from your browser."
        )
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, encoding="utf-8", errors="replace")
        command = [
            browser, "--headless", "--disable-gpu", "--no-first-run", "--no-pdf-header-footer",
            f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}", source.as_uri(),
        ]  # fmt: skip
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium does not start otherwise; the page is ours and has no script
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
            said = done.stderr.decode(errors="replace")
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        if not made.exists():
            last = shorten(" ".join(said.split())[-200:], 200)
            raise InvalidValue(f"{browser}: made no PDF: {last}. Write .html, and print it from your browser.")
        return made.read_bytes()
