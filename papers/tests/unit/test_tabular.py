"""adult, location30, purchase: small files in the public formats, the numbers they become, and what damage says."""

import gzip
import io
import tarfile
import tracemalloc
from dataclasses import replace
from hashlib import sha256

import pytest
import torch

from privet.data import task
from privet.data.files import File
from privet.data.task import split
from privet.errors import InvalidValue
from privet_papers.datasets import tabular
from privet_papers.datasets.tabular import CUTS, AdultFile, parse_adult, parse_attributes
from public_files import alone, put
from three_steps import check_trains

LINES = [
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K",
    "52, Self-emp-inc, 287927, HS-grad, 9, Married-civ-spouse, Exec-managerial, Wife, Black, Female, 0, 1902, 60, "
    "Cuba, >50K",
    "18, ?, 103497, Some-college, 10, Never-married, ?, Own-child, Other, Female, 0, 0, 30, ?, <=50K",
]


@pytest.fixture
def where(tmp_path, monkeypatch):
    return alone(tmp_path, monkeypatch)


def adult_of(content, name="adult.data", count=21):
    file = File(dataset="adult", name=name, sha256=sha256(content).hexdigest(), size=len(content))
    return AdultFile(file=file, count=count)


@pytest.fixture
def small_adult(monkeypatch):
    """21 records in place of adult.data, 3 in place of adult.test, with its first line and full stops."""
    data = ("\n".join(LINES[i % 3] for i in range(21)) + "\n\n").encode()
    test = ("|1x3 Cross validator\n" + "".join(line + ".\n" for line in LINES) + "\n").encode()
    monkeypatch.setattr(tabular, "ADULT", adult_of(data))
    monkeypatch.setattr(tabular, "ADULT_TEST", adult_of(test, "adult.test", 3))
    return data, test


# --- adult ------------------------------------------------------------------------------------------


def parsed(*lines, cuts="paper", count=None):
    return parse_adult("\n".join(lines), adult_of(b"", count=len(lines) if count is None else count), cuts=CUTS[cuts])


def test_a_record_is_one_column_of_each_field_that_is_known():
    features, labels = parsed(*LINES)
    assert features.shape == (3, 123)  # as many as the LIBSVM form that the paper uses
    assert features.sum(1).tolist() == [14, 14, 11]  # three are unknown in the last
    assert labels.tolist() == [0, 1, 0]
    age, workclass, weight = features[0, :5], features[0, 5:13], features[0, 13:18]
    assert age.tolist() == [0, 0, 1, 0, 0]  # 35 to 44
    assert workclass.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]  # State-gov, the sixth
    assert weight.tolist() == [1, 0, 0, 0, 0]  # below 100,000


@pytest.mark.parametrize(("hours", "place"), [(1, 0), (34, 0), (35, 1), (39, 1), (40, 2), (41, 3), (49, 3), (50, 4)])
def test_a_cut_is_the_first_value_of_its_bin(hours, place):
    features, _ = parsed(LINES[0].replace(", 40,", f", {hours},"))
    assert features[0, -46:-41].argmax() == place  # before the 41 countries


def test_fine_bins_have_more_columns_of_the_same_records():
    features, _ = parsed(*LINES, cuts="fine")
    assert features.shape == (3, 163)
    assert features.sum(1).tolist() == [14, 14, 11]


@pytest.mark.parametrize("packed", [False, True])
def test_adult_is_split_as_in_the_paper(where, small_adult, packed):
    content = gzip.compress(small_adult[0]) if packed else small_adult[0]
    put(where, "adult/adult.data" + ".gz" * packed, content)
    found = task("adult", where=where)
    assert (found.size, len(found.held_out[1]), found.facts["shape"]) == (19, 2, (123,))
    assert found.train[0].dtype == torch.float32
    assert "fixed shuffle" in found.evaluation
    assert found.network()(found.train[0]).shape == (19, 2)
    check_trains(found)
    again = task("adult:size=5", where=where)
    assert torch.equal(again.train[0], found.train[0][:5])


def test_the_published_sizes():
    train, held = split(32_561, 32_561 // 10)
    assert (len(train), len(held)) == (29_305, 3_256)
    assert sorted([*train, *held]) == list(range(32_561))


def test_all_of_adult_can_be_trained_on_and_judged_by_the_test_file(where, small_adult):
    put(where, "adult.data", small_adult[0])
    put(where, "adult.test.gz", gzip.compress(small_adult[1]))
    found = task("adult:judge=test,bins=fine", where=where)
    assert (found.size, found.held_out[1].tolist(), found.facts["shape"]) == (21, [0, 1, 0], (163,))
    check_trains(found)


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (
            [LINES[0].replace("Cuba", "").replace("United-States", "Atlantis")],
            "native-country is not one of those that adult.names lists",
        ),
        ([LINES[0].replace("39", "old")], "line 1: age is no whole number"),
        ([LINES[0].replace("39", "-4")], "age is no whole number"),
        ([LINES[0], LINES[1].replace(", ", ",")], "line 2: must have 14 fields"),
        ([LINES[0].replace("<=50K", "50K")], "<=50K or >50K"),
        ([LINES[0].replace("Male", "?")], "sex is not one of"),
        ([LINES[0][:40]], "must have 14 fields"),
    ],
)
def test_a_damaged_line_is_named(lines, match):
    with pytest.raises(InvalidValue, match=match) as caught:
        parsed(*lines)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_cut_between_lines_is_noticed():
    with pytest.raises(InvalidValue, match="has 2 records, not 3"):
        parsed(*LINES[:2], count=3)


@pytest.mark.parametrize(
    ("name", "spoil", "match"),
    [
        ("adult.data", lambda data: data[:-9], "is not the public file"),
        ("adult.data.gz", lambda data: gzip.compress(data[:-9]), "does not hold the public file"),
        ("adult.data.gz", lambda data: gzip.compress(data)[:-9], "gzip"),
        ("adult.data.gz", lambda data: gzip.compress(data + bytes(1000)), "unpacks to more"),
        ("adult.data.xz", lambda data: b"\xfd7zXZ", "does not end with its xz stream"),
        ("adult.data.xz", lambda data: data, "is not a whole xz file"),
    ],
)
def test_a_damaged_file_is_refused(where, small_adult, name, spoil, match):
    put(where, f"adult/{name}", spoil(small_adult[0]))
    with pytest.raises(InvalidValue, match=match):
        task("adult", where=where)


def test_what_is_missing_is_said_in_one_line(where):
    with pytest.raises(InvalidValue, match=r"needs adult\.data.*archive\.ics\.uci\.edu.*PRIVET_DATA") as caught:
        task("adult", where=where)
    assert "\n" not in str(caught.value)


def test_options_are_checked(where):
    with pytest.raises(InvalidValue, match="bins='coarse' must be one of fine, paper"):
        task("adult:bins=coarse", where=where)
    with pytest.raises(InvalidValue, match="judge='me' must be one of paper, test"):
        task("adult:judge=me", where=where)


# --- location30, purchase ---------------------------------------------------------------------------

ROWS = b'"1",0,1,0\n"2",1,1,1\n"1",0,0,0\n3,1,0,0\n"2",0,0,1\n'


def tgz(**members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def small(made, content):
    file = replace(made.file, sha256=sha256(content).hexdigest(), size=len(content))
    return replace(made, file=file, count=5, classes=3, width=3)


def test_attributes_are_read_as_they_are():
    features, labels = parse_attributes(ROWS.replace(b"1\n", b"1\r\n"), small(tabular.LOCATION, b""))
    assert features.tolist() == [[0, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]]
    assert labels.tolist() == [0, 1, 0, 2, 1]


@pytest.mark.parametrize(
    ("name", "constant", "file", "inside"),
    [
        ("location30", "LOCATION", "dataset_location.tgz", "bangkok"),
        ("purchase", "PURCHASE", "dataset_purchase.tgz", "dataset_purchase"),
    ],
)
def test_attribute_tasks_are_split_four_to_one(where, monkeypatch, name, constant, file, inside):
    content = tgz(**{inside: ROWS})
    monkeypatch.setattr(tabular, constant, small(getattr(tabular, constant), content))
    put(where, f"{name}/{file}", content)
    found = task(name, where=where)
    assert (found.size, len(found.held_out[1])) == (4, 1)
    assert found.network()(found.train[0]).shape == (4, 3)
    check_trains(found)
    assert sha256(content).hexdigest() in found.source


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (ROWS[:-2], "line 5: must be a class from 1 to 3 and 3 attributes"),
        (ROWS.replace(b"3,1", b"4,1"), "line 4: must be a class"),
        (ROWS.replace(b'"1",0,1', b'"0",0,1'), "line 1: must be a class"),
        (ROWS.replace(b'"1",0,1', b'"-",0,1'), "line 1: must be a class"),
        (ROWS.replace(b'"1",0,1', b"9" * 5000 + b",0,1"), "line 1: must be a class"),
        (ROWS.replace(b"1,1,1", b"1,2,1"), "not 0 or 1"),
        (ROWS.replace(b"1,1,1", b"1;1,1"), "not 0 or 1"),
        (ROWS + ROWS, "has 10 records, not 5"),
        (b"", "has 0 records, not 5"),
    ],
)
def test_damaged_attributes_are_refused(rows, match):
    with pytest.raises(InvalidValue, match=match):
        parse_attributes(rows, small(tabular.LOCATION, b""))


def test_empty_lines_do_not_fill_the_memory():
    """As a list they took eight bytes each."""
    empty = b"\n" * 10**6
    tracemalloc.start()
    with pytest.raises(InvalidValue, match="line 1: must be a class"):
        parse_attributes(empty, small(tabular.LOCATION, b""))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(empty)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (tgz(other=ROWS), "must hold one file 'dataset_purchase', holds 0"),
        (tgz(**{"../dataset_purchase": ROWS}), "outside its folder"),
        (tgz(dataset_purchase=ROWS)[:-20], "is not a whole tar.gz"),
        (tgz(dataset_purchase=bytes(2**21)), "unpacks to more than"),
        (b"no archive", "is not a whole tar.gz"),
    ],
)
def test_a_damaged_or_hostile_archive_is_refused(where, monkeypatch, content, match):
    monkeypatch.setattr(tabular, "PURCHASE", small(tabular.PURCHASE, b""))
    put(where, "purchase/dataset_purchase.tgz", content)
    with pytest.raises(InvalidValue, match=match):
        task("purchase", where=where)


def test_purchase_says_what_to_put_where(where):
    with pytest.raises(InvalidValue, match=r"needs dataset_purchase\.tgz.*privacytrustlab") as caught:
        task("purchase", where=where)
    assert str(where.folder / "purchase") in str(caught.value)
