"""What goes wrong with a file of records is told by its place: no message shows what a record holds."""

import itertools
import random

import numpy as np
import pytest

from privet.data.task import task
from privet.errors import PrivetError
from privet.schedules import schedule_values
from typed import run

SECRET = "Zebrafinch"
NUMBER = 918273.5


def said(spelling: str) -> str:
    with pytest.raises(PrivetError) as caught:
        task(spelling)
    return str(caught.value)


def outcome(spelling: str) -> str:
    """What is said of a task, or nothing if there is nothing to say."""
    try:
        task(spelling)
    except PrivetError as error:
        return str(error)
    return ""


def damaged(place: int, how: str) -> str:
    """Ten records of which one cell is a secret, or one line is broken in a way."""
    rows = [["age", "hours", "income"], *([str(20 + k), str(k), "no" if k % 2 else "yes"] for k in range(10))]
    row, column = divmod(place, 3)
    rows[row][column] = SECRET if how != "number" else str(NUMBER)
    lines = [",".join(cells) for cells in rows]
    lines[row] = {"more": f"{lines[row]},{SECRET}", "quoted": f'"{lines[row]}', "null": f"{SECRET}\0"}.get(
        how, lines[row]
    )
    return "\n".join(lines[1:] if how == "headless" and row else lines) + "\n"


OPTIONS = (
    "target=income,columns=age", "target=hours,measure=rmse", "target=income,classes=no; yes", "target=pay",
    'target=income,columns="age; pay"', 'target=income,ranges="pay 0 1"',
)  # fmt: skip


@pytest.mark.parametrize("how", ["cell", "number", "more", "quoted", "null", "headless"])
def test_no_cell_of_a_table_is_shown(tmp_path, how):
    """Each cell below the header in turn; where the header is missing, those of the first record too."""
    path, refusals = tmp_path / "a.csv", 0
    first = 3
    for place, options in itertools.product(range(first, 33, 4), OPTIONS):
        path.write_text(damaged(place, how))
        found = outcome(f"csv:path={path},{options}")
        refusals += found != ""
        assert SECRET not in found
        assert str(NUMBER) not in found
    assert refusals > 10


def test_a_table_without_a_header_shows_nothing_of_its_first_record(tmp_path):
    path = tmp_path / "a.csv"
    for first in (f"{SECRET},{NUMBER},no", f"{SECRET},{SECRET},no", f"{SECRET},,no"):
        path.write_text(f"{first}\n1,2,yes\n3,4,no\n")
        for options in OPTIONS:
            found = said(f"csv:path={path},{options}")
            assert SECRET not in found
            assert str(NUMBER) not in found


def test_the_place_is_named(tmp_path):
    (tmp_path / "a.csv").write_text(f"age,income\n1,no\n{SECRET},yes\n")
    assert "record 2: 'age' is missing or not numeric" in said(f"csv:path={tmp_path}/a.csv,target=income")


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.ones((4, 2)), "y": np.array([0, 1, 0, 918273])},
        {"x": np.ones((4, 2)), "y": np.array([0, 1, 0, -918273])},
        {"x": np.ones((4, 2)), "y": np.array([0, 1, 0, 1]), "x_test": np.ones((4, 2)), "y_test": [0, 1, 0, 918273]},
        {"x": np.array([[SECRET]] * 4), "y": np.array([0, 1, 0, 1])},
        {"x": np.array([[SECRET]] * 4, dtype=object), "y": np.array([0, 1, 0, 1])},
        {"x": np.array([[918273e300], [1.0]]), "y": np.array([0, 1])},
    ],
)
def test_no_value_of_an_array_is_shown(tmp_path, arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    for options in ("", ",classes=2"):
        found = said(f"npz:path={tmp_path}/a.npz{options}")
        assert "918273" not in found
        assert SECRET not in found


def test_no_picture_shows_what_it_holds(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(f"\x89PNG\r\n\x1a\n{SECRET}".encode("latin-1"))
    assert SECRET not in said(f"folder:path={tmp_path}")


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.toml", "a.txt"])
def test_a_file_of_records_that_is_taken_for_another_shows_nothing(tmp_path, name):
    """A slip: the records are named where a schedule, a ledger, a recipe or a plan belongs."""
    file, line = tmp_path / name, f"{SECRET},{NUMBER},no"
    for text in (f"{line}\n" * 3, f"age,hours,income\n{line}\n", f"{NUMBER}\n{SECRET}\n", f"{SECRET}\n"):
        file.write_text(text)
        for command in ("epsilon --delta 1e-5 --from", "plan", "train --task digits --out runs/x --plan"):
            result = run(command, str(file))
            assert result.exit_code == 2, result.stderr
            assert SECRET not in result.stderr
            assert str(NUMBER) not in result.stderr
        with pytest.raises(PrivetError) as caught:
            schedule_values(f"table:{file}", 3)
        assert SECRET not in str(caught.value)
        assert str(NUMBER) not in str(caught.value)


def test_random_damage_of_a_table_is_told_by_its_place(tmp_path):
    """Bytes changed at random, by a fixed seed: whatever is said holds no run of six bytes of a record."""
    draw, path = random.Random(5), tmp_path / "a.csv"
    records = [f"{draw.randrange(10**7, 10**8)},{draw.randrange(10**7, 10**8)},{k % 2}" for k in range(6)]
    whole = ("age,hours,income\n" + "\n".join(records) + "\n").encode()
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content)
        found = outcome(f"csv:path={path},target=income,classes=0; 1").replace(str(path), "")
        numbers = [cell for row in records for cell in row.split(",") if len(cell) == 8]
        assert not any(number[k : k + 6] in found for number in numbers for k in range(3))
