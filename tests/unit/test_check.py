import math

import pytest

from privet import _check
from privet.errors import InvalidValue

NOT_NUMBERS = ["1", None, True, math.nan, math.inf, -math.inf, 10**400]


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (_check.finite, [0, -1.5, 1e300], []),
        (_check.positive, [1, 1e-300], [0, -1.0]),
        (_check.non_negative, [0, 0.0, 2.5], [-1e-300]),
        (_check.fraction, [0, 0.9], [-0.1, 1, 2]),
        (_check.rate, [1, 1e-9, 256 / 60000], [0, 1.0000001, -0.1]),
        (lambda **v: _check.between(0, 1, **v), [0.5], [0, 1, 2]),
    ],
)
def test_numbers_in_range_pass_and_the_rest_is_named(check, good, bad):
    for value in good:
        check(epsilon=value)
    for value in [*bad, *NOT_NUMBERS]:
        with pytest.raises(InvalidValue, match=f"^epsilon={value!r} must "):
            check(epsilon=value)


def test_the_first_bad_of_several_is_named():
    with pytest.raises(InvalidValue, match=r"^delta=-1 "):
        _check.positive(epsilon=1, delta=-1, dataset_size=-2)


def test_whole_numbers():
    _check.whole(steps=1)
    _check.whole(least=0, steps=0)
    for value in (0, 1.0, "3", True):
        with pytest.raises(InvalidValue, match=f"^steps={value!r} must be a whole number >= 1"):
            _check.whole(steps=value)


def test_one_of_suggests_the_nearest_and_only_then():
    _check.one_of(("after", "before"), grid="after")
    with pytest.raises(InvalidValue, match=r"one of after, before\. Did you mean 'after'"):
        _check.one_of(("before", "after"), grid="aftr")
    with pytest.raises(InvalidValue) as caught:
        _check.one_of(("before", "after"), grid="zzz")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (".", "is a directory"),
        ("nowhere/a.md", "lies in a directory that does not exist"),
        ("a" * 300, "cannot be written: File name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_named(tmp_path, file, why):
    with pytest.raises(InvalidValue, match=f"^--page='.*' {why}"):
        _check.writable(tmp_path / file, name="--page")
    assert not list(tmp_path.iterdir())


def test_asking_whether_a_file_can_be_written_leaves_all_as_it_was(tmp_path):
    (tmp_path / "old").write_text("old")
    _check.writable(tmp_path / "old", name="--page")
    _check.writable(tmp_path / "new", name="--page")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]
