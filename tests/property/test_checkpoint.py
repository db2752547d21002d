"""Checkpoints with random damage are refused; random nests come back as they were."""

import json
import math
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor

from privet.errors import InvalidValue
from privet.training import checkpoint_format
from privet.training.checkpoint_format import DTYPES, decode_state, encode_state, parse_json


@cache
def written(path: Any) -> bytes:
    """The bytes of a small checkpoint."""
    tensors: dict[str, Tensor] = {}
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(3).bfloat16(), "c": [torch.tensor(1), None, (2,)]}
    checkpoint_format.write(path / checkpoint_format.NAME, {"model": encode_state(state, "model", tensors)}, tensors)
    return (path / checkpoint_format.NAME).read_bytes()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("checkpoint"))


def refused(data: bytes) -> bool:
    try:
        checkpoint_format.parse(data)
    except InvalidValue:
        return True
    return False


def test_every_cut_and_every_flipped_bit_is_refused(data: bytes) -> None:
    assert not refused(data)
    assert all(refused(data[:length]) for length in range(len(data)))
    for place in range(len(data)):
        for bit in range(8):
            spoilt = bytearray(data)
            spoilt[place] ^= 1 << bit
            assert refused(bytes(spoilt)), (place, bit)


@given(st.data())
def test_other_damage_is_refused(data: bytes, chance: st.DataObject) -> None:
    """A block that is overwritten, moved, doubled or lost, or bytes that are added."""
    start, end = sorted((chance.draw(st.integers(0, len(data))), chance.draw(st.integers(0, len(data)))))
    filling = chance.draw(st.sampled_from([b"", b"\0", b"\xff", data[start:end], data[start:end][::-1], b"x" * 40]))
    times = chance.draw(st.integers(0, 3))
    spoilt = data[:start] + filling * times + data[end:]
    assert spoilt == data or refused(spoilt)


@given(st.binary(max_size=200))
def test_any_content_is_refused_with_our_own_error(content: bytes) -> None:
    assert refused(content)


keys = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
tensors = st.builds(
    lambda shape, dtype, seed: (
        torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        if shape
        else torch.tensor(seed % 7).to(dtype)
    ),
    shapes,
    st.sampled_from(list(DTYPES)),
    st.integers(0, 99),
)
nests = st.recursive(
    keys | st.floats() | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "a.b", "b", "$float", "$tensor"]), inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=3).map(Counter)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and one.tolist() == other.tolist()
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one == other and repr(one) == repr(other))
    return bool(one == other)


@settings(max_examples=200)
@given(nests)
@example({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})
@example({"$tensor": "model.a", "x": {"$float": "nan"}})
@example([-0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, "\ud800", True, 1])
def test_a_nest_comes_back_as_it_was(value: Any) -> None:
    tensors: dict[str, Tensor] = {}
    used: set[str] = set()
    text = json.dumps(encode_state(value, "model", tensors), allow_nan=False)
    assert same(decode_state(parse_json(text.encode()), "model", tensors, used), value)
    assert used == set(tensors)
