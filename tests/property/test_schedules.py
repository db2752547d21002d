import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from privet.errors import InvalidValue
from privet.schedules import (
    Constant,
    Cosine,
    Cyclic,
    Exponential,
    InverseTime,
    Join,
    Linear,
    Piecewise,
    Product,
    StepDecay,
    Table,
    schedule,
    schedule_values,
    to_spec,
)

steps = st.integers(1, 300)
heights = st.floats(1e-3, 1e3)
decays = st.floats(0, 10)
common = {
    "start": heights,
    "grid": st.sampled_from(["closed", "before", "after"]),
    "every": st.floats(1, 50),
    "power": st.sampled_from([0.5, 1, 2, 3]),
}
with_end = st.one_of(st.builds(shape, end=heights, **common) for shape in (Linear, Exponential, Cosine))
decaying = st.one_of(
    st.builds(InverseTime, decay=decays, **common),
    st.builds(Exponential, decay=st.floats(0, 0.1), **common),
    st.builds(StepDecay, factor=st.floats(0.5, 1), **(common | {"every": st.floats(10, 50)})),
)
shares = st.lists(st.integers(1, 999), min_size=1, max_size=3, unique=True).map(
    lambda s: tuple(x / 1000 for x in sorted(s))
)
points = st.dictionaries(st.floats(0, 1), heights, min_size=1, max_size=5).map(lambda d: tuple(sorted(d.items())))
alone = st.one_of(
    with_end,
    decaying,
    st.builds(Constant, value=heights),
    st.builds(Linear, decay=decays, **common),
    st.builds(Cyclic, half=st.integers(1, 9), decay=decays, fade=decays, **common),
    st.builds(Piecewise, points=points),
    st.builds(Table, rows=st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=5).map(tuple)),
)
nested = st.recursive(
    alone,
    lambda part: st.one_of(
        st.builds(Product, parts=st.lists(part, min_size=2, max_size=3).map(tuple)),
        shares.flatmap(lambda at: st.builds(Join, at=st.just(at), parts=st.tuples(*[part] * (len(at) + 1)))),
    ),
    max_leaves=6,
)


@given(nested)
def test_the_spelling_is_read_back(shape):
    assert schedule(to_spec(shape)) == shape
    assert to_spec(to_spec(shape)) == to_spec(shape)


@given(with_end, steps)
def test_values_stay_between_start_and_end_and_move_one_way(shape, steps):
    values = schedule_values(shape, steps)
    low, high = sorted((shape.start, shape.end))
    assert (values >= low * (1 - 1e-12)).all()
    assert (values <= high * (1 + 1e-12)).all()
    moves = np.diff(values) * np.sign(shape.end - shape.start)
    assert (moves >= -1e-12 * high).all()


@given(decaying, steps)
def test_decaying_shapes_never_rise_and_begin_at_start(shape, steps):
    values = schedule_values(shape, steps)
    assert (np.diff(values) <= 0).all()
    if shape.grid != "after":
        assert values[0] == shape.start


@given(with_end, st.integers(2, 300))
def test_where_the_ends_are_met(shape, steps):
    """closed meets both ends, before only the first, after only the last."""
    shape = dataclasses.replace(shape, every=1.0)
    values = schedule_values(shape, steps)
    if shape.grid in ("closed", "before"):
        assert values[0] == pytest.approx(shape.start)
    if shape.grid in ("closed", "after"):
        assert values[-1] == pytest.approx(shape.end)
    longer = schedule_values(dataclasses.replace(shape, grid="closed"), steps + 1)
    if shape.grid != "closed":
        assert values == pytest.approx(longer[:-1] if shape.grid == "before" else longer[1:])


@given(st.one_of(with_end, decaying), steps, st.floats(0.1, 10))
def test_shapes_are_scale_free(shape, steps, scale):
    changes = {key: getattr(shape, key) * scale for key in ("start", "end") if getattr(shape, key, None) is not None}
    scaled = schedule_values(dataclasses.replace(shape, **changes), steps)
    assert scaled == pytest.approx(scale * schedule_values(shape, steps), rel=1e-9)


@given(st.one_of(with_end, decaying), steps)
def test_power_is_the_shape_of_the_power(shape, steps):
    changes = {
        key: getattr(shape, key) ** shape.power for key in ("start", "end") if getattr(shape, key, None) is not None
    }
    plain = schedule_values(dataclasses.replace(shape, power=1, **changes), steps)
    assert schedule_values(shape, steps) ** shape.power == pytest.approx(plain, rel=1e-9)


@given(with_end, st.integers(1, 40), st.integers(1, 9))
def test_holding_repeats_the_values_of_a_shorter_schedule(shape, held, every):
    one_by_one = schedule_values(dataclasses.replace(shape, every=1), held)
    assert np.array_equal(
        schedule_values(dataclasses.replace(shape, every=every), held * every), np.repeat(one_by_one, every)
    )


@given(batch=st.integers(1, 5000), factor=st.integers(1, 10**6), shift=st.integers(0, 5000), rounded=st.booleans())
def test_the_held_index_is_floor_of_rate_times_step(batch, factor, shift, rounded):
    """Exactly, at every step, also when every = 1 / (batch / size) has been rounded twice."""
    size = batch + shift + factor % 50_000
    every = 1 / (batch / size) if rounded else size / batch
    i = np.arange(3000)
    exact = i * batch // size
    e = schedule_values(InverseTime(decay=1.0, every=max(every, 1.0)), 3000)
    assert np.array_equal(np.rint(1 / e - 1), exact)


@given(st.lists(st.one_of(with_end, decaying), min_size=2, max_size=4), steps)
def test_a_product_multiplies_step_by_step_in_any_order(parts, steps):
    wanted = np.ones(steps)
    for part in parts:
        wanted = wanted * schedule_values(part, steps)
    assert schedule_values(Product(parts=parts), steps) == pytest.approx(wanted, rel=1e-12)
    assert schedule_values(Product(parts=parts[::-1]), steps) == pytest.approx(wanted, rel=1e-12)


@given(st.lists(heights, min_size=2, max_size=4), st.data(), steps)
def test_a_join_follows_its_definition(levels, data, steps):
    """Step i belongs to the part whose share of the steps contains i / T, in whole numbers."""
    thousandths = sorted(data.draw(st.sets(st.integers(1, 999), min_size=len(levels) - 1, max_size=len(levels) - 1)))
    values = schedule_values(Join(parts=levels, at=[x / 1000 for x in thousandths]), steps)
    wanted = [levels[sum(1000 * i >= x * steps for x in thousandths)] for i in range(steps)]
    assert values.tolist() == wanted


@given(st.lists(st.floats(), min_size=1, max_size=20))
def test_whatever_a_class_returns_is_passed_or_refused(numbers):
    class Gives:
        def values(self, steps):
            return np.array(numbers)

    bad = [k for k, x in enumerate(numbers) if not (np.isfinite(x) and x > 0)]
    if bad:
        with pytest.raises(InvalidValue, match=f"at step {bad[0]} "):
            schedule_values(Gives(), len(numbers))
    else:
        assert schedule_values(Gives(), len(numbers)).tolist() == numbers


def complaint(text):
    try:
        schedule(text)
    except InvalidValue as error:  # anything else fails the test
        return str(error)
    return ""


@given(st.text(max_size=30), st.sampled_from(["", "cosine:", "piecewise:", "table:", "cosine * ", "1 until 0.5 then "]))
def test_any_text_gives_a_schedule_or_one_line(text, head):
    assert "\n" not in complaint(head + text)
