"""What the how-tos show as a part of one's own passes `privet doctor --plugin`, as they say."""

import pytest

from doc_pages import DOCS, blocks
from typed import run

# page: (what the block has in it, where it ends, the decorator left out, the address below the module)
PARTS = {
    "schedule": ("class Sawtooth", "", "", "Sawtooth:teeth=4"),
    "accountant": ("class PlainZcdp", "ledger = Ledger()", '@register("plain-zcdp")\n', "PlainZcdp"),
    "clip": ("class FirstLayerLess", "rule = FirstLayerLess", "", "FirstLayerLess:part=0.2"),
    "data": ("def rings", "assert task", "", "rings"),
    "new-attack": ("class FirstRow", "found = attack", '@register("first-row")\n', "FirstRow"),
}
IMPORTS = {"clip": "import torch\n", "data": "from privet.data import DataFolders\n"}  # made earlier on the page


@pytest.mark.parametrize("page", PARTS)
def test_a_part_of_a_how_to_passes_its_contract(page, tmp_path, monkeypatch):
    mark, end, decorator, address = PARTS[page]
    [source] = [block for block in blocks(DOCS / f"howto-{page}.md", "python") if mark in block]
    source = source.partition(end)[0] if end else source
    module = f"how_to_{page.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(IMPORTS.get(page, "") + source.replace(decorator, ""), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    answer = run(f"doctor --plugin {module}:{address}")
    assert answer.exit_code == 0, answer.output
    assert "FAIL" not in answer.output
