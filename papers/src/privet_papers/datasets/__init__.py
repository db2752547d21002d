"""The papers' public datasets as tasks. Whoever imports one of them may download its files: see `download`."""

from privet.data import files
from privet_papers.datasets.download import fetch

files.download = fetch
