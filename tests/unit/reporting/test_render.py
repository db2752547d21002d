"""The template of a report lets no number through that does not say what it is, and nothing from outside be markup."""

import re
from html.parser import HTMLParser
from importlib import resources

import pytest
from jinja2 import TemplateSyntaxError, UndefinedError, nodes

from privet.accounting import Guarantee
from privet.reporting.render import Page, environment, text

SOURCE = (resources.files("privet.reporting") / "report.md.j2").read_text(encoding="utf-8")
FOUND = Guarantee(epsilon=1.23401, epsilon_lower=1.2, delta=1e-5, label="certified", method="pld")
NASTY = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "[a](javascript:alert(3))", "![a](https://x.y/z.png)",
    "<https://x.y>", "https://x.y", "`code`", "**bold** _it_", "a | b", "# head", "- one", "1. one", "> quote", "***",
    "a\n\n<b>\n\n# c", "&lt;b&gt; &amp;", "\\", "\\|", "| --- |", "~~~\n<b>", "[x]: https://x.y",
    "\ue0000\ue001 \ue002", "---", "=", "\u2028<b>", "    indented",
)  # fmt: skip


def written(source: str, **values: object) -> tuple[str, str]:
    """(Markdown, HTML) of a small template; of the page, its body alone."""
    page = Page(values, f"{{{{ cut }}}}{source}{{{{ cut }}}}")
    return page.markdown().removesuffix("---\n\n").strip(), page.html("t").partition("<main>\n")[2].partition(
        "</main>"
    )[0].strip()


# --- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("trap", [1.5, 3, True, None, 2 + 0j, FOUND, (1.5,), {"a": 1.5}, b"1.5", FOUND.epsilon])
@pytest.mark.parametrize(
    "source", ["{{ x }}", "{% for one in [x] %}{{ one }}{% endfor %}", "{{ x if x is defined else '' }}", "| {{ x }} |"]
)
def test_what_is_no_text_and_has_no_filter_is_refused(trap: object, source: str) -> None:
    with pytest.raises(TypeError, match="guarantee, public or raw"):
        written(source, x=trap)


def test_what_is_not_there_is_an_error_and_no_gap() -> None:
    for source in ("{{ x }}", "{{ x.y }}", "{{ g.nothing }}", "{{ x | public }}"):
        with pytest.raises((UndefinedError, TypeError)):
            written(source, g=FOUND)


@pytest.mark.parametrize("word", ["string", "format(1)", "round", "int", "join", "safe", "e", "tojson", "pprint"])
def test_a_filter_that_makes_text_of_a_number_is_not_there(word: str) -> None:
    with pytest.raises(TemplateSyntaxError, match="No filter named"):
        written(f"{{{{ x | {word} }}}}", x=1.5)


def test_each_filter_says_what_a_number_is() -> None:
    assert written("{{ g | guarantee }}", g=FOUND)[0] == "ε ≤ 1.235 (certified)"
    assert written("{{ x | raw }}", x=0.123456)[0] == "0.1235 (not private)"
    assert written("{{ x | public }}", x=12345)[0] == "12,345"
    assert written("{{ x | public(percent_up=true) }}", x=0.05401)[0] == "5.41 %"
    assert "not private</span>" in written("{{ x | raw }}", x=0.123456)[1]
    for trap in (FOUND, "1.5", True, float("nan"), float("inf"), None):
        with pytest.raises(TypeError):
            written("{{ x | public }}", x=trap)
    for trap in (1.5, "1.5"):
        with pytest.raises((TypeError, AttributeError)):
            written("{{ x | guarantee }}", x=trap)


def test_the_template_names_no_epsilon_and_puts_no_text_together() -> None:
    """An epsilon is shown by `guarantee` alone; `~`, `+` and `%` would make text of a number before it is looked at."""
    tree = environment().parse(SOURCE)
    assert not [node.attr for node in tree.find_all(nodes.Getattr) if "epsilon" in node.attr]
    assert not [node.arg.value for node in tree.find_all(nodes.Getitem)
                if isinstance(node.arg, nodes.Const) and "epsilon" in str(node.arg.value)]  # fmt: skip
    assert not list(tree.find_all((nodes.Concat, nodes.Mod)))
    for node in tree.find_all(nodes.Filter):
        if node.name == "public":
            assert "guarantee" not in {found.name for found in node.node.find_all(nodes.Name)}


# --- text -------------------------------------------------------------------------------------------


class Parsed(HTMLParser):
    """The words and tags of a page, and its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words, self.tags, self.names = "", set[str](), set[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words += data


PLACES = ("{{ x }}", "- {{ x }}", "| a |\n| --- |\n| {{ x }} |", "# {{ x }}", "a {{ x }} b", "{{ x | code }}",
          "{{ x | raw }}", "- {{ x | code }} b {{ x | raw }}", "| {{ x }} |\n| --- |\n| {{ x | code }} |")  # fmt: skip


@pytest.mark.parametrize("said", NASTY)
@pytest.mark.parametrize("source", PLACES)
def test_text_is_text(said: str, source: str) -> None:
    """What a browser would show is what was given, and nothing of it is markup or a link."""
    markdown, html = written(source, x=said)
    page = Parsed(html)
    assert page.tags <= {"p", "h1", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "span"}
    assert page.names <= {"class", "scope", "data-name"}
    given = re.sub(r"[\s\ue000-\ue002]+", " ", said).strip()
    assert given in re.sub(r"\s+", " ", page.words)
    assert markdown.count("\n") == source.count("\n")  # and it has no line of its own


def test_text_cannot_pass_for_a_mark() -> None:
    forged = "\ue0000\ue001 \ue002"
    for source in (
        "{{ g | guarantee }} {{ x }}",
        "{{ g | guarantee }} {{ x | code }}",
        "{{ g | guarantee }} {{ x | raw }}",
    ):
        markdown, html = written(source, x=forged, g=FOUND)
        assert markdown.count("certified") == 1
        assert html.count("ε ≤ 1.235") == 1
    assert "\ue000" not in text(forged)
