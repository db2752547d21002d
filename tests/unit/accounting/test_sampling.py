"""One spelling for each sampling, there and back."""

import pytest

from privet.accounting.sampling import POISSON, FixedSize, Poisson, Shuffled, TruncatedPoisson, registry, sampling
from privet.errors import InvalidValue, PrivetError

EXAMPLES = (Poisson(), FixedSize(), Shuffled(), TruncatedPoisson(cap=400, size=60000))


@pytest.mark.parametrize("kind", EXAMPLES, ids=str)
def test_spelled_and_read_again(kind):
    assert sampling(str(kind)) == kind
    assert sampling(kind) is kind
    assert kind.name == registry.split(str(kind))[0]


def test_every_registered_sampling_has_an_example():
    assert {kind.name for kind in EXAMPLES} == set(registry.names())


def test_equal_parameters_compare_equal():
    assert Poisson() == POISSON
    assert TruncatedPoisson(cap=4, size=9) == sampling("truncated-poisson: cap=4, size=9")
    assert TruncatedPoisson(cap=4, size=9) != TruncatedPoisson(cap=5, size=9)
    assert len({POISSON, Poisson(), Shuffled()}) == 2


@pytest.mark.parametrize(
    "text",
    ["poison", "truncated-poisson", "truncated-poisson:cap=4", "truncated-poisson:cap=x,size=9", "poisson:cap=4"],
)
def test_a_wrong_spelling_is_one_clear_error(text):
    with pytest.raises(PrivetError):
        sampling(text)


@pytest.mark.parametrize("values", [{"cap": 0, "size": 9}, {"cap": 4, "size": 0}, {"cap": 1.5, "size": 9}])
def test_caps_and_sizes_are_whole(values):
    with pytest.raises(InvalidValue):
        TruncatedPoisson(**values)


def test_anything_else_is_refused():
    with pytest.raises(InvalidValue, match="sampling=3"):
        sampling(3)
