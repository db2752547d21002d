"""A user's own CSV, NPZ or folder of pictures as a task; what is wrong is said in one line."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from privet.data import task
from privet.errors import InvalidValue
from three_steps import check_trains

PEOPLE = "age,hours,sex,income\n" + "".join(
    f"{20 + k},{4 * k},{k % 2},{'high' if k % 3 == 0 else 'low'}\n" for k in range(20)
)


def refused(spelling: str, match: str) -> None:
    with pytest.raises(InvalidValue, match=match) as caught:
        task(spelling)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


# --- csv --------------------------------------------------------------------------------------------


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE)
    return path


def test_a_csv_file(people):
    made = task(f'csv:path={people},target=income,ranges="age 20 40; hours 0 40"')
    check_trains(made)
    assert (made.size, len(made.held_out[1]), made.name) == (16, 4, "people.csv")
    assert made.facts == {"shape": (3,), "classes": 2}
    assert made.train[0][1].tolist() == pytest.approx([0.05, 0.1, 1])
    assert made.train[0][-1].tolist() == pytest.approx([0.9, 1, 0])  # hours 72 are set to the end of the range
    assert made.train[1][:4].tolist() == [0, 1, 1, 0]  # high, low by letters
    assert made.held_out[0][:, 0].tolist() == pytest.approx([0.2, 0.35, 0.5, 0.95])  # one in each five
    assert "read from the records" in made.source


def test_classes_that_are_given_are_not_read(people):
    made = task(f'csv:path={people},target=income,columns="hours; age",classes="low; middle; high",every=2')
    assert made.facts == {"shape": (2,), "classes": 3}
    assert made.train[1][:3].tolist() == [2, 2, 0]
    assert made.train[0][1].tolist() == [12, 23]
    assert "read from the records" not in made.source
    assert made.size == 10


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("x,y\n" + "".join(f"1,{k}\n" for k in (10, 9, 2, 10, 9, 2)))
    assert task(f"csv:path={path},target=y,every=6").train[1].tolist() == [2, 1, 0, 2, 1]


def test_a_number_to_be_guessed(people):
    made = task(f"csv:path={people},target=hours,columns=age,measure=rmse")
    check_trains(made)
    assert made.train[1].dtype == torch.float32
    assert made.measure.name == "rmse"
    assert made.facts["classes"] == 1
    losses = made.losses(torch.tensor([[1.0], [5.0]]), torch.tensor([3.0, 5.0]))
    assert losses.tolist() == [4, 0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("target=wages", "no column 'wages'"),
        ("target=income,columns=ages", "no column 'ages'"),
        ("target=income,columns=income", "other than the target"),
        ("target=sex", "record 1: 'income' is missing or not numeric"),
        ("target=income,measure=rmse", "record 1: 'income' is missing or not numeric"),
        ("target=income,measure=auc", "must be one of accuracy, rmse"),
        ("target=income,classes=high", "record 2 has another class in 'income' than high"),
        ('target=income,ranges="age 0"', "must read `column low high`"),
        ('target=income,ranges="age 9 3"', "must read `column low high`"),
        ('target=income,ranges="age 0 inf"', "must read `column low high`"),
        ('target=income,ranges="wages 0 1"', "names 'wages'"),
        ("target=income,every=1", "every=1 must be"),
        ("target=income,every=21", "leaves no record"),
        ("target=income,header=no", "no option 'header'"),
        ("columns=age", "needs the option 'target'"),
    ],
)
def test_wrong_options_are_refused(people, options, match):
    refused(f"csv:path={people},{options}", match)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "has 0 lines"),
        (b"x,y\n", "has 1 lines"),
        (b"x,y\n1,0\n", "has 2 lines"),
        (b"x,x\n1,0\n1,1\n", "repeated name"),
        (b"x,\n1,0\n1,1\n", "empty or repeated"),
        (b"x,y\n1,0\n1\n", "record 2 has 1 fields"),
        (b"x,y\n1,0\n1,1,1\n", "record 2 has 3 fields"),
        (b"x,y\n1,0\nnan,1\n", "record 2: 'x' is missing or not numeric"),
        (b"x,y\n1,0\n-inf,1\n", "record 2: 'x' is missing or not numeric"),
        (b"x,y\n1,0\n,1\n", "record 2: 'x' is missing or not numeric"),
        (b"x,y\n1,0\ntwo,1\n", "record 2: 'x' is missing or not numeric"),
        (b"x,y\n1,0\n1e300,1\n", "missing or not finite in float32"),
        (b"x,y\n1,0\n2,0\n", "needs two classes"),
        (b"y\n1\n0\n", "other than the target"),
        (b"x,y\n1,0\n\xff\xfe,1\n", "not a CSV file in UTF-8"),
        (b'x,y\n1,0\n"2,1\n', "not a CSV file in UTF-8"),
        (b"x,y\n1,0\n\x00,1\n", "not a CSV file|not numeric"),
    ],
)
def test_a_broken_csv_is_refused(tmp_path, content, match):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    refused(f"csv:path={path},target=y,every=2", match)


def test_a_csv_as_spreadsheets_write_it(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeff x , y\r\n 1, 0\r\n\r\n2,1\r\n".encode())
    assert task(f"csv:path={path},target=y,every=2").train[0].tolist() == [[1.0]]


@pytest.mark.parametrize("kind", ["csv:target=y,path=", "npz:path=", "folder:path="])
def test_a_path_that_is_not_there_is_said(tmp_path, kind):
    for path in (tmp_path / "nothing", "~nobody-of-this-name/a", "a" * 5000):
        refused(f"{kind}{path}", "is not there")


@pytest.mark.parametrize("kind", ["csv:target=y,path=", "npz:path="])
def test_a_device_is_not_read(kind):
    """One of them, /dev/zero, has no end."""
    refused(f"{kind}/dev/null", "is no plain file")


# --- npz --------------------------------------------------------------------------------------------


def save(path: Path, **arrays: object) -> str:
    np.savez(path, **arrays)
    return f"npz:path={path}"


def test_an_npz_file(tmp_path):
    x = np.arange(60, dtype=np.float64).reshape(10, 2, 3)
    made = task(save(tmp_path / "a.npz", x=x, y=np.arange(10) % 3))
    check_trains(made)
    assert made.facts == {"shape": (2, 3), "classes": 3}
    assert made.train[0].shape == (8, 2, 3)
    assert made.held_out[0].flatten(1)[:, 0].tolist() == [24, 42]
    assert "read from the records" in made.source
    assert "read from the records" not in task(f"npz:path={tmp_path / 'a.npz'},classes=5").source


def test_pictures_in_an_npz_file_are_scaled_and_judged_by_their_own(tmp_path):
    x = np.full((6, 1, 28, 28), 51, dtype=np.uint8)
    made = task(save(tmp_path / "a.npz", x=x, y=np.arange(6), x_test=x[:2] * 5, y_test=[5, 1]))
    check_trains(made)
    assert made.size == 6
    assert made.facts == {"shape": (1, 28, 28), "classes": 6}
    assert made.model == "cnn"
    assert made.train[0].unique().tolist() == pytest.approx([0.2])
    assert made.held_out[0].unique().tolist() == [1]


X, Y = np.ones((4, 2)), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({}, "no array 'x'"),
        ({"x": X}, "no array 'y'"),
        ({"x": X, "y": Y[:3]}, r"x is \[4, 2\] and y is \[3\]"),
        ({"x": X, "y": Y[:, None]}, r"y is \[4, 1\]"),
        ({"x": X[:, 0], "y": Y}, r"x is \[4\]"),
        ({"x": X[:0], "y": Y[:0]}, r"x is \[0, 2\]"),
        ({"x": X * np.nan, "y": Y}, "missing or not finite"),
        ({"x": X * 1e300, "y": Y}, "missing or not finite"),
        ({"x": X.astype(str), "y": Y}, "x is str_"),
        ({"x": X, "y": Y * 1.0}, "y is float64"),
        ({"x": X, "y": Y - 1}, "record 1 has no class in y"),
        ({"x": X, "y": Y * 10**9}, "record 2 has a class in y that is not below 4, the number of records"),
        ({"x": X, "y": Y * 0}, "classes=1 must be"),
        ({"x": X.astype(object), "y": Y}, "objects, which are not unpickled"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "another shape"),
        ({"x": X * 255, "y": Y, "x_test": (X * 255).astype(np.uint8), "y_test": Y}, "float64.*uint8.*or type"),
        ({"x": X, "y": Y, "x_test": X}, "no array 'y_test'"),
        ({"x": X, "y": Y, "y_test": Y}, "no array 'x_test'"),
        ({"\x1b[31m\n": X}, r"It has \?\[31m\?"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_broken_arrays_are_refused(tmp_path, arrays, match):
    refused(save(tmp_path / "a.npz", **arrays), match)


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("privet.data.tables.SURELY", 1000)
    zeros, path = np.zeros((1000, 100)), tmp_path / "a.npz"
    assert task(save(path, x=zeros, y=np.arange(1000) % 2)).size == 800
    np.savez_compressed(path, x=zeros, y=np.arange(1000) % 2)
    refused(f"npz:path={path}", "unpacks to 808,")


def test_a_class_beyond_those_given_is_refused(tmp_path):
    refused(save(tmp_path / "a.npz", x=X, y=Y * 3) + ",classes=3", "record 2 has a class in y that is not below 3")


# --- folder -----------------------------------------------------------------------------------------


def draw(path: Path, shade: int, *, size: tuple[int, int] = (20, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, 0, 0)).save(path)


def test_a_folder_of_pictures(tmp_path):
    for number in range(5):
        draw(tmp_path / f"cat/{number}.png", 51)
        draw(tmp_path / f"dog/{number}.PNG", 255)
    (tmp_path / "cat/notes.txt").write_text("no picture")
    (tmp_path / "readme.txt").write_text("no class")
    draw(tmp_path / ".ipynb_checkpoints/0.png", 9)
    (tmp_path / "cat/._0.png").write_bytes(b"what another system keeps of a picture")
    made = task(f"folder:path={tmp_path}")
    check_trains(made)
    assert made.facts == {"shape": (3, 32, 32), "classes": 2}
    assert made.train[1].tolist() == [0] * 4 + [1] * 4  # of each class as many, for they come one after the other
    assert made.train[0][:, 0].amax((1, 2)).tolist() == pytest.approx([0.2] * 4 + [1] * 4)
    assert made.held_out[1].tolist() == [0, 1]
    assert task(f"folder:path={tmp_path},side=16,colours=1").facts["shape"] == (1, 16, 16)


def test_a_folder_with_its_own_test_pictures(tmp_path):
    for name in ("train/a/1.png", "train/b/1.png", "train/b/2.png", "test/b/1.png", "test/a/1.png"):
        draw(tmp_path / name, 9)
    made = task(f"folder:path={tmp_path}")
    assert made.train[1].tolist() == [0, 1, 1]
    assert made.held_out[1].tolist() == [0, 1]
    (tmp_path / "test/.cache").mkdir()
    draw(tmp_path / "test/c/1.png", 9)
    refused(f"folder:path={tmp_path}", "has the class 'c' in test, but not in train")
    (tmp_path / "test/c/1.png").rename(tmp_path / "test/b/3.png")
    (tmp_path / "test/c").rename(tmp_path / "train/c")
    refused(f"folder:path={tmp_path}", "train/c: has no picture")


def test_broken_folders_are_refused(tmp_path):
    refused(f"folder:path={tmp_path}", "fewer than two folders")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    refused(f"folder:path={tmp_path}", "a: has no picture")
    whole = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(whole, "PNG")
    (tmp_path / "a/1.png").write_bytes(whole.getvalue())
    (tmp_path / "b/1.png").write_bytes(whole.getvalue()[:200])
    refused(f"folder:path={tmp_path}", "b/1.png: is not a whole picture")
    refused(f"folder:path={tmp_path},colours=4", "colours=4 must be")
    refused(f"folder:path={tmp_path},side=0", "side=0 must be")
    refused(f"folder:path={tmp_path / 'a/1.png'}", "is no folder")


# --- found in review --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        (
            np.ones((10, 2)),
            np.array([2**64 - 1, *[0, 1] * 4, 1], dtype=np.uint64),
            "has no class in y",
        ),
        (np.ones((10, 0)), np.array([0, 1] * 5), "its records are empty"),
        (np.full((10, 2), 1e300), np.array([0, 1] * 5), "missing or not finite in float32"),
    ],
)
def test_npz_values_that_would_turn_into_others_are_refused(tmp_path, x, y, match):
    np.savez(tmp_path / "a.npz", x=x, y=y)
    refused(f"npz:path={tmp_path / 'a.npz'}", match)


def test_a_column_named_twice_is_refused(people):
    """Its range would have scaled one of the two."""
    refused(f'csv:path={people},target=income,columns="age; age",ranges="age 20 40"', "each once")


def test_a_folder_says_that_its_classes_are_taken_as_public(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(5):
            Image.new("RGB", (4, 4)).save(tmp_path / name / f"{k}.png")
    assert "taken as public" in task(f"folder:path={tmp_path},side=4").source


@pytest.mark.parametrize("y", [np.arange(200) % 10, np.arange(200) // 20], ids=["in turn", "one after the other"])
def test_no_class_is_only_trained_on_or_only_judged_by(tmp_path, y):
    """Every fifth record of classes in turn had two of the ten, which were then not trained on at all."""
    made = task(save(tmp_path / "a.npz", x=np.arange(200.0)[:, None], y=y))
    for _, labels in (made.train, made.held_out):
        assert labels.unique().tolist() == list(range(10))
    places = torch.cat([made.train[0], made.held_out[0]]).flatten()
    assert sorted(places.tolist()) == list(range(200))
    assert "one in each 5 records" in made.evaluation
