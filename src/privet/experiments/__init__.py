"""The papers' tables as rows of recipes: the published figure beside ours."""

from privet.experiments.papers import PAPERS as PAPERS
from privet.experiments.papers import paper as paper
from privet.experiments.papers import rows_of as rows_of
from privet.experiments.row import Curve as Curve
from privet.experiments.row import Figure as Figure
from privet.experiments.row import Paper as Paper
from privet.experiments.row import Row as Row
from privet.experiments.row import Table as Table
