"""The papers by name. A new one is a file with a `PAPER`, and a line here."""

from privet import _check
from privet_papers.reproduce.table_row import Paper, Row
from privet_papers.tables.auto2023 import PAPER as AUTO
from privet_papers.tables.bu2019 import PAPER as BU
from privet_papers.tables.du2021 import PAPER as DU
from privet_papers.tables.proactive2021 import PAPER as PROACTIVE
from privet_papers.tables.wei2021 import PAPER as WEI

PAPERS: dict[str, Paper] = {found.name: found for found in (BU, DU, PROACTIVE, WEI, AUTO)}


def paper(name: str) -> Paper:
    """The paper called `name`.

    >>> paper("bu2019").title
    'Bu, Dong, Long, Su 2019, Deep Learning with Gaussian Differential Privacy'
    """
    _check.one_of(PAPERS, paper=name)
    return PAPERS[name]


def rows_of(spelling: str) -> list[Row]:
    """The rows of `PAPER` or `PAPER:TABLE`.

    >>> [row.name for row in rows_of("bu2019:table3")]
    ['private', 'private-counted', 'non-private', 'non-private-counted', 'lstm']
    """
    name, colon, table = spelling.partition(":")
    return paper(name).of(table if colon else None)
