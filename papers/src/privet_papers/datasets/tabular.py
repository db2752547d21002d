"""Records of attributes as tasks: `adult`, `location30`, `purchase`.

What is prepared uses public constants only: the value lists of `adult.names` and round numbers as cuts. A mean, a
quantile or a list of seen values would be a statistic of the private records.
"""

import io
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet import _check
from privet.data.files import DataFolders, File, find, missing_file_message, read, read_content
from privet.data.task import Task, first, register, split
from privet.errors import InvalidValue
from privet_papers.datasets.archives import decode_text, read_plain, untar

Bytes = NDArray[np.uint8]


def _to_tensors(features: Bytes, labels: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    return torch.tensor(features, dtype=torch.float32), torch.tensor(labels)


# --- adult ------------------------------------------------------------------------------------------

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdultFile:
    """One of the two files, and its number of records."""

    file: File
    count: int


def _adult_file(name: str, digest: str, size: int, count: int) -> AdultFile:
    return AdultFile(file=File(dataset="adult", name=name, sha256=digest, size=size, url=_UCI + name), count=count)


ADULT = _adult_file("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", 3974305, 32561)
ADULT_TEST = _adult_file(
    "adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", 2003153, 16281
)

# The value lists of adult.names, in its order. A `?` (unknown) has no column: all of the field's are 0.
VALUES = {
    "workclass": "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay, "
    "Never-worked",
    "education": "Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, 7th-8th, 12th, "
    "Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool",
    "marital-status": "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent, "
    "Married-AF-spouse",
    "occupation": "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, "
    "Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv, "
    "Protective-serv, Armed-Forces",
    "relationship": "Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried",
    "race": "White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black",
    "sex": "Female, Male",
    "native-country": "United-States, Cambodia, England, Puerto-Rico, Canada, Germany, Outlying-US(Guam-USVI-etc), "
    "India, Japan, Greece, South, China, Cuba, Iran, Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, "
    "Portugal, Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, Guatemala, "
    "Nicaragua, Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, Holand-Netherlands",
}
FIELDS = ("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship",
          "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country")  # fmt: skip
# The first value of each bin but the first. `paper` has as many bins as the LIBSVM form: 5, 5, 5, 2, 2, 5.
CUTS = {
    "paper": {
        "age": (25, 35, 45, 55), "fnlwgt": (100_000, 150_000, 200_000, 250_000), "education-num": (9, 10, 11, 13),
        "capital-gain": (1,), "capital-loss": (1,), "hours-per-week": (35, 40, 41, 50),
    },
    "fine": {
        "age": tuple(range(20, 75, 5)), "fnlwgt": (100_000, 200_000, 300_000), "education-num": tuple(range(2, 17)),
        "capital-gain": (1, 2_000, 3_000, 4_000, 5_000, 7_000, 10_000, 15_000, 50_000),
        "capital-loss": (1, 1_500, 1_600, 1_700, 1_800, 1_900, 2_000, 2_200, 2_500),
        "hours-per-week": (10, 20, 30, 35, 40, 41, 45, 50, 55, 60, 70),
    },
}  # fmt: skip


@register("adult")
def adult(*, where: DataFolders, bins: str = "paper", judge: str = "paper", size: int | None = None) -> Task:
    """Income above $50,000 from a census record (UCI Adult), as 0/1 columns: 123 of them, as in Bu et al. 2019.

    Bu et al., Section 4.1, split the 32,561 records of adult.data at random into 29,305 and 3,256; here by the fixed
    shuffle. `judge=test` trains on all 32,561 and judges by the 16,281 of adult.test. The 8 named fields give 99
    columns from the lists of adult.names; the 6 numeric ones are put into bins. The LIBSVM form cuts at quantiles of
    the records, which is not private: our cuts are round numbers, as many. `bins=fine` has more of them.
    """
    _check.one_of(CUTS, bins=bins)
    _check.one_of(("paper", "test"), judge=judge)
    features, labels = parse_adult(decode_text(read_plain(where, ADULT.file), ADULT.file.name), ADULT, cuts=CUTS[bins])
    if judge == "paper":
        train, held = split(len(labels), len(labels) // 10)
        test = features[held], labels[held]
        words = f"{len(held):,} of the {len(labels):,} records of adult.data, by a fixed shuffle, never trained on"
    else:
        train = np.arange(len(labels))
        test = parse_adult(decode_text(read_plain(where, ADULT_TEST.file), "adult.test"), ADULT_TEST, cuts=CUTS[bins])
        words = f"adult.test, {ADULT_TEST.count:,} records that are never trained on"
    train = train[: first(size, len(train))]
    return Task(
        name="adult", train=_to_tensors(features[train], labels[train]), held_out=_to_tensors(*test), evaluation=words,
        model="mlp", facts={"shape": (features.shape[1],), "classes": 2},
        source=f"UCI Adult (Becker and Kohavi 1996), SHA-256 of adult.data {ADULT.file.sha256}; columns from the lists "
        f"of adult.names and fixed cuts (bins={bins})",
    )  # fmt: skip


def parse_adult(text: str, expected: AdultFile, *, cuts: dict[str, tuple[int, ...]]) -> tuple[Bytes, NDArray[np.int64]]:
    """0/1 columns (N, F) and labels (1: above 50K) of the lines of adult.data or adult.test."""
    rows, labels = [], []
    starts, width = _column_starts(cuts)
    for number, line in enumerate(text.splitlines(), 1):
        if not line or (number == 1 and line.startswith("|")):
            continue
        fields = line.split(", ")
        place = f"{expected.file.name}, line {number}"
        label = fields[-1].removesuffix(".")
        if len(fields) != 15 or label not in ("<=50K", ">50K"):
            raise InvalidValue(f"{place}: must have 14 fields and <=50K or >50K. Fetch it again.")
        rows.append([at for name, field in zip(FIELDS, fields, strict=False)
                     for at in _active_columns(name, field, starts, cuts, place)])  # fmt: skip
        labels.append(int(label == ">50K"))
    if len(labels) != expected.count:
        raise InvalidValue(f"{expected.file}: has {len(labels):,} records, not {expected.count:,}. Fetch it again.")
    features = np.zeros((len(rows), width), dtype=np.uint8)
    for row, columns in zip(features, rows, strict=True):
        row[columns] = 1
    return features, np.array(labels, dtype=np.int64)


def _column_starts(cuts: dict[str, tuple[int, ...]]) -> tuple[dict[str, dict[str, int] | int], int]:
    """Where each field's columns are (that of its first bin, or one for each value), and how many there are."""
    starts: dict[str, dict[str, int] | int] = {}
    width = 0
    for name in FIELDS:
        values = VALUES[name].split(", ") if name in VALUES else []
        starts[name] = {value: width + place for place, value in enumerate(values)} if values else width
        width += len(values) or len(cuts[name]) + 1
    return starts, width


def _active_columns(
    name: str, field: str, starts: dict[str, dict[str, int] | int], cuts: dict[str, tuple[int, ...]], place: str
) -> list[int]:
    start = starts[name]
    if isinstance(start, int):
        if not (field.isascii() and field.isdigit()):
            raise InvalidValue(f"{place}: {name} is no whole number. Fetch it again.")
        return [start + bisect_right(cuts[name], int(field))]
    if field == "?" and name in ("workclass", "occupation", "native-country"):
        return []
    if field not in start:
        raise InvalidValue(f"{place}: {name} is not one of those that adult.names lists. Fetch it again.")
    return [start[field]]


# --- location30, purchase ---------------------------------------------------------------------------

_SHOKRI = "https://github.com/privacytrustlab/datasets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """A file whose lines are a class from 1 and then 0/1 attributes, all separated by commas."""

    file: File
    inside: str  # the name of the file in the archive
    count: int
    classes: int
    width: int


LOCATION = Attributes(
    file=File(
        dataset="location30", name="dataset_location.tgz", size=287293,
        sha256="927203f85a868f8ee17a0ded1dc61699efe602167beabe34fbf45b4b1de94b33",
        url=f"{_SHOKRI}/raw/master/dataset_location.tgz",
    ),
    inside="bangkok", count=5010, classes=30, width=446,
)  # fmt: skip
PURCHASE = Attributes(  # its SHA-256 is not published and we have no copy: shape and values are checked
    file=File(dataset="purchase", name="dataset_purchase.tgz", sha256="", size=0),
    inside="dataset_purchase", count=197324, classes=100, width=600,
)  # fmt: skip


@register("location30")
def location30(*, where: DataFolders, size: int | None = None) -> Task:
    """30 kinds of people from the places they checked in at, 446 of them, 0 or 1 (Shokri et al. 2017).

    5,010 records, split 4:1 by the fixed shuffle, as Wei and Liu 2021 split Purchase, for which it stands in.
    """
    return _attributes_task(LOCATION, read(where, LOCATION.file), size=size, of="Bangkok check-ins")


@register("purchase")
def purchase(*, where: DataFolders, size: int | None = None) -> Task:
    """100 kinds of shoppers from 600 products they bought or not (Shokri et al. 2017): 197,324 records, split 4:1.

    Wei and Liu 2021, Section VI, cluster the records into 10 and 50 classes of their own; these are the 100 published.
    Nothing is fetched: put dataset_purchase.tgz in place.
    """
    path = find(where, "purchase", PURCHASE.file.name)
    if path is None:
        raise InvalidValue(missing_file_message(where, "purchase", PURCHASE.file.name, source=_SHOKRI))
    return _attributes_task(PURCHASE, read_content(path), size=size, of="purchases")


def _attributes_task(made: Attributes, content: bytes, *, size: int | None, of: str) -> Task:
    name = made.file.name
    held = [text for path, text in untar(content, limit=made.count * (2 * made.width + 8) + 2**20, name=name)
            if path.rpartition("/")[2] == made.inside]  # fmt: skip
    if len(held) != 1:
        raise InvalidValue(f"{name}: must hold one file {made.inside!r}, holds {len(held)}. Fetch it again.")
    features, labels = parse_attributes(held[0], made)
    train, test = split(made.count, made.count // 5)
    train = train[: first(size, len(train))]
    return Task(
        name=made.file.dataset, train=_to_tensors(features[train], labels[train]),
        held_out=_to_tensors(features[test], labels[test]),
        evaluation=f"{len(test):,} of the {made.count:,} records, by a fixed shuffle, never trained on",
        model="mlp:layers=2,hidden=128", facts={"shape": (made.width,), "classes": made.classes},
        source=f"{of} of Shokri et al. 2017, {_SHOKRI}, {name}, SHA-256 {sha256(content).hexdigest()}",
    )  # fmt: skip


def parse_attributes(content: bytes, made: Attributes) -> tuple[Bytes, NDArray[np.int64]]:
    """Attributes (N, width) and classes from 0 of lines `"13",0,1,0,...`."""
    rows = list(_attribute_rows(content, made))
    if len(rows) != made.count:
        raise InvalidValue(f"{made.inside}: has {len(rows):,} records, not {made.count:,}. Fetch it again.")
    cells = np.frombuffer(b"".join(rest for _, rest in rows), dtype=np.uint8).reshape(len(rows), -1)
    features = cells[:, ::2] - ord("0")
    if features.max() > 1 or (cells[:, 1::2] != ord(",")).any():
        raise InvalidValue(f"{made.inside}: has an attribute that is not 0 or 1. Fetch it again.")
    return features, np.array([label for label, _ in rows], dtype=np.int64)


def _attribute_rows(content: bytes, made: Attributes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(io.BytesIO(content), 1):  # one at a time: as a list, empty lines fill the memory
        word, _, rest = line.rstrip(b"\r\n").partition(b",")
        bare = word[1:-1] if word[:1] == word[-1:] == b'"' and len(word) > 2 else word
        if (
            not (bare.isdigit() and len(bare) < 10)
            or not 1 <= int(bare) <= made.classes
            or len(rest) != 2 * made.width - 1
        ):
            raise InvalidValue(
                f"{made.inside}, line {number}: must be a class from 1 to {made.classes} and {made.width} attributes "
                "0 or 1, separated by commas. Fetch it again."
            )
        yield int(bare) - 1, rest
