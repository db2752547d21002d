"""movielens-1m: the forms it comes in, one split for all of them, users, and what damage says."""

import io
import zipfile
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch

from privet.data import task
from privet.errors import InvalidValue
from privet_papers.datasets import ratings
from privet_papers.datasets.ratings import EXPECTED_STARS
from public_files import alone, put
from three_steps import check_trains

ROWS = [(2, 9, 5), (1, 7, 3), (1, 3952, 1), (6040, 7, 4), (2, 1, 2), (3, 3, 3), (3, 4, 5)]  # in no order


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.setattr(ratings, "COUNT", len(ROWS))
    return alone(tmp_path, monkeypatch)


def dat(rows=ROWS):
    return "".join(f"{user}::{movie}::{stars}::97830{user}\n" for user, movie, stars in rows).encode()


def npz(rows=ROWS, **changes):
    user, movie, stars = np.array(rows, dtype=np.uint16).T
    arrays = {"user": user, "movie": movie, "rating": stars.astype(np.uint8)} | changes
    packed = io.BytesIO()
    np.savez(packed, **{name: array for name, array in arrays.items() if array is not None})
    return packed.getvalue()


def zipped(content, name="ml-1m/ratings.dat"):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ml-1m/README", "ratings of films")
        archive.writestr(name, content)
    return packed.getvalue()


def archive_of(monkeypatch, content):
    monkeypatch.setattr(ratings, "ARCHIVE", replace(ratings.ARCHIVE, sha256=sha256(content).hexdigest()))
    return content


def test_every_form_gives_the_same_task(where, monkeypatch):
    forms = {"ml-1m.zip": archive_of(monkeypatch, zipped(dat())), "ratings.npz": npz(ROWS[::-1]), "ratings.dat": dat()}
    found = []
    for name, content in forms.items():  # each is preferred to those before it
        put(where, f"movielens_1m/{name}", content)
        found.append(task("movielens-1m", where=where))
        assert name in found[-1].source
    for other in found[1:]:
        for one, two in zip((*other.train, *other.held_out), (*found[0].train, *found[0].held_out), strict=True):
            assert torch.equal(one, two)


def test_records_have_owners_and_are_numbered_from_zero(where):
    put(where, "movielens_1m/ratings.dat", dat())
    found = task("movielens-1m", where=where)
    assert (found.size, len(found.held_out[1])) == (5, 2)  # a fifth, rounded up: 200,042 of 1,000,209
    assert torch.equal(found.users, found.train[0][:, 0])
    pairs, stars = torch.cat([found.train[0], found.held_out[0]]), torch.cat([found.train[1], found.held_out[1]])
    seen = {(user + 1, movie + 1, kind + 1) for (user, movie), kind in zip(pairs.tolist(), stars.tolist(), strict=True)}
    assert seen == set(ROWS)
    assert found.network()(found.train[0]).shape == (5, 5)  # ids up to the last of the public ranges have their rows
    check_trains(found)


def test_the_measure_is_the_rmse_of_the_mean_rating(where):
    outputs = torch.tensor([[0.0, 0, 0, 0, 0], [-99, -99, -99, -99, 99]])  # the mean 2, and 4
    each = EXPECTED_STARS.each(outputs, torch.tensor([2, 1]))
    assert each.tolist() == pytest.approx([0, 9])
    assert EXPECTED_STARS.finish(float(each.mean())) == pytest.approx((9 / 2) ** 0.5)
    assert not EXPECTED_STARS.higher_is_better


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("ratings.dat", dat()[:-12], "line 7: must be user::movie::stars::time"),
        ("ratings.dat", dat().replace(b"::", b","), "line 1: must be"),
        ("ratings.dat", dat(ROWS[:-1]), "has 6 ratings, not 7"),
        ("ratings.dat", b"", "has 0 ratings, not 7"),
        ("ratings.dat", dat([*ROWS[:-1], (0, 1, 1)]), "has a user that is not from 1 to 6,040"),
        ("ratings.dat", dat([*ROWS[:-1], (6041, 1, 1)]), "has a user that is not"),
        ("ratings.dat", dat([*ROWS[:-1], (1, 3953, 1)]), "has a movie that is not"),
        ("ratings.dat", dat([*ROWS[:-1], (1, 1, 6)]), "has a rating that is not"),
        ("ratings.dat", dat([*ROWS[:-1], (2, 9, 1)]), "a user rates one movie twice"),
        ("ratings.npz", npz()[:-30], "is not a whole NPZ"),
        ("ratings.npz", b"rubbish", "is not a whole NPZ"),
        ("ratings.npz", npz(rating=None), "must hold the arrays"),
        ("ratings.npz", npz(rating=np.ones(7)), "must be whole numbers"),
        ("ratings.npz", npz(rating=np.ones(6, dtype=int)), "must be whole numbers"),
        ("ratings.npz", npz(user=np.array([print] * 7)), "is not a whole NPZ"),  # would be unpickled
        ("ml-1m.zip", zipped(dat()), "is not the public file"),
    ],
)
def test_damage_is_one_clear_line(where, name, content, match):
    put(where, f"movielens_1m/{name}", content)
    with pytest.raises(InvalidValue, match=match) as caught:
        task("movielens-1m", where=where)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (zipped(dat(), "other/ratings.dat"), "lacks ml-1m/ratings.dat"),
        (zipped(bytes(2**26 + 1)), "unpacks to more than"),
        (zipped(dat())[:-40], "is not a whole zip file"),
    ],
)
def test_a_hostile_archive_is_refused(where, monkeypatch, content, match):
    put(where, "movielens_1m/ml-1m.zip", archive_of(monkeypatch, content))
    with pytest.raises(InvalidValue, match=match):
        task("movielens-1m", where=where)


def test_a_file_too_large_is_not_parsed(where, monkeypatch):
    monkeypatch.setattr(ratings, "_LIMIT", 99)
    put(where, "movielens_1m/ratings.dat", dat() * 2)
    with pytest.raises(InvalidValue, match="bytes, more than 99"):
        task("movielens-1m", where=where)


def test_what_is_missing_is_said_in_one_line(where):
    with pytest.raises(InvalidValue, match=r"needs ratings\.dat, ratings\.npz or ml-1m\.zip.*grouplens"):
        task("movielens-1m", where=where)
