"""What the documentation says is run: every Python block, every link to a file."""

import re
from pathlib import Path

import pytest

from privet.accounting import registry

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks/README.md"]
)


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)


OWN_TEST = {"howto-schedule.md"}  # its first block is a module of the user's: tests/unit/test_schedules.py


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page) and page.name not in OWN_TEST], ids=lambda page: page.name
)
def test_python_blocks_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_makers", dict(registry._makers))  # what a page registers stays on the page
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_the_maths_page_names_functions_and_tests_that_exist():
    text = (ROOT / "docs/math.md").read_text(encoding="utf-8")
    for path in set(re.findall(r"`(tests/[\w/.]+)`", text)):
        assert (ROOT / path).exists(), path
    import privet.accounting as accounting

    for module, name in set(re.findall(r"`(gdp|rdp|zcdp|tcdp|composition|proactive|tradeoff)\.(\w+)`", text)):
        assert hasattr(getattr(accounting, module), name), f"{module}.{name}"
