"""Ratings as a task: `movielens-1m`. Each record has an owner, its user, and `users` says who."""

import io
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.data.files import DataFolders, File, find, missing_file_message, read, read_content, unzip_arrays
from privet.data.task import Measure, Task, first, register, split
from privet.errors import InvalidValue
from privet_papers.datasets.archives import unzip

Ratings = NDArray[np.int64]  # (N, 3): user from 1, movie from 1, stars 1 to 5

COUNT = 1_000_209
USERS, MOVIES, STARS = 6040, 3952, 5  # the ranges that the readme of GroupLens gives
ARCHIVE = File(
    dataset="movielens-1m", name="ml-1m.zip", size=5917549,
    sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
    url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
)  # fmt: skip
_LIMIT = 2**26  # bytes of ratings.dat, some 25 million, and of the arrays


def _squared_error_of_the_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared distance from the expected number of stars to the stars that were given."""
    stars = torch.arange(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
    return (outputs.softmax(1) @ stars - targets).square()


EXPECTED_STARS = Measure(
    name="rmse", each=_squared_error_of_the_mean, finish=lambda mean: mean**0.5, higher_is_better=False
)


@register("movielens-1m")
def movielens_1m(*, where: DataFolders, size: int | None = None) -> Task:
    """1,000,209 ratings by 6,040 users, 1 to 5 stars: 800,167 to train on, 200,042 (a fifth) to judge by.

    Bu et al. 2019, Section 4.1: a classification into five kinds whose measure is the root of the mean squared error;
    as there, the rating that is judged is the mean of the stars under the network's probabilities. The paper splits at
    random, we sort by user and movie and take the fixed shuffle. Which of the movies 1 to 3,952 were rated at all (the
    paper's 3,706) is a fact of the private records, so each number has its row.

    Inputs are (user, movie) from 0, targets stars - 1. `users` has the owner of each training record; a guarantee per
    record is not one per user, who has 165 of them in the mean.
    """
    ratings, form = _read(where)
    ratings = ratings[np.lexsort((ratings[:, 1], ratings[:, 0]))]
    check(ratings, form)
    train, held = split(len(ratings), -(-len(ratings) // 5))
    train = train[: first(size, len(train))]
    pairs, targets = torch.tensor(ratings[:, :2] - 1), torch.tensor(ratings[:, 2] - 1)
    return Task(
        name="movielens-1m", train=(pairs[train], targets[train]), held_out=(pairs[held], targets[held]),
        evaluation=f"{len(held):,} of the {len(ratings):,} ratings, by a fixed shuffle, never trained on",
        model="ncf", facts={"users": USERS, "movies": MOVIES, "classes": STARS}, measure=EXPECTED_STARS,
        users=pairs[train, 0].clone(), source=f"MovieLens 1M (GroupLens; Harper and Konstan 2015), {form}",
    )  # fmt: skip


def _read(where: DataFolders) -> tuple[Ratings, str]:
    """The ratings and the form they were found in: ratings.dat, ratings.npz, ml-1m.zip, else fetched."""
    path = find(where, "movielens-1m", "ratings.dat", "ml-1m/ratings.dat", "ratings.npz")
    if path is not None:
        content = read_content(path)
        if len(content) > _LIMIT:
            raise InvalidValue(f"{path}: has {len(content):,} bytes, more than {_LIMIT:,}. Fetch it again.")
        form = f"{path.name}, SHA-256 {sha256(content).hexdigest()}"
        return (parse_dat if path.suffix == ".dat" else parse_npz)(content), form
    if find(where, "movielens-1m", ARCHIVE.name) is None and not where.download:
        raise InvalidValue(
            missing_file_message(where, "movielens-1m", "ratings.dat, ratings.npz or ml-1m.zip", source=ARCHIVE.url)
        )
    held = unzip(read(where, ARCHIVE), lambda path: path == "ml-1m/ratings.dat", limit=_LIMIT, name=ARCHIVE.name)
    if not held:
        raise InvalidValue(f"{ARCHIVE.name}: lacks ml-1m/ratings.dat. Fetch it again.")
    return parse_dat(held["ml-1m/ratings.dat"]), f"{ARCHIVE.name}, SHA-256 {ARCHIVE.sha256}"


def parse_dat(content: bytes) -> Ratings:
    """The lines `user::movie::stars::timestamp`; the time is not used.

    >>> parse_dat(b"1::1193::5::978300760\\n").tolist()
    [[1, 1193, 5]]
    """
    rows = []
    for number, line in enumerate(io.BytesIO(content), 1):
        fields = line.rstrip(b"\r\n").split(b"::", maxsplit=4)
        if len(fields) != 4 or not all(field.isdigit() and len(field) < 12 for field in fields):
            raise InvalidValue(
                f"ratings.dat, line {number}: must be user::movie::stars::time, four whole numbers. Fetch it again."
            )
        rows.append([int(field) for field in fields[:3]])
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def parse_npz(content: bytes) -> Ratings:
    """Arrays `user`, `movie` and `rating` of whole numbers, one place for each rating. Nothing is unpickled."""
    arrays = unzip_arrays(content, limit=_LIMIT, name="ratings.npz")
    if not {"user", "movie", "rating"} <= arrays.keys():
        raise InvalidValue("ratings.npz: must hold the arrays user, movie and rating. Use a whole copy.")
    columns = [arrays[name] for name in ("user", "movie", "rating")]
    shape = columns[0].shape
    if len(shape) != 1 or any(column.shape != shape or column.dtype.kind not in "iu" for column in columns):
        raise InvalidValue("ratings.npz: user, movie and rating must be whole numbers, one for each rating.")
    return np.stack([column.astype(np.int64) for column in columns], axis=1)


def check(ratings: Ratings, form: str) -> None:
    """Raise unless sorted ratings are as many as published, in their ranges, and no movie is rated twice by a user."""
    name = form.partition(",")[0]
    if len(ratings) != COUNT:
        raise InvalidValue(f"{name}: has {len(ratings):,} ratings, not {COUNT:,}. Fetch it again.")
    for column, (what, most) in enumerate((("user", USERS), ("movie", MOVIES), ("rating", STARS))):
        low, high = int(ratings[:, column].min()), int(ratings[:, column].max())
        if low < 1 or high > most:
            raise InvalidValue(f"{name}: has a {what} that is not from 1 to {most:,}. Fetch it again.")
    twice = (ratings[1:, :2] == ratings[:-1, :2]).all(1)
    if twice.any():
        raise InvalidValue(f"{name}: a user rates one movie twice. Fetch it again.")
