"""Ledgers with random damage: refused, or charged at least what was used. Random cuts: what was there is charged."""

from functools import cache

from hypothesis import example, given, settings, strategies as st

from privet import plan
from privet.errors import InvalidValue
from privet.ledger.assumptions import LoopFacts
from privet.ledger.format import chain_line, charge_row, header_line, loop_row, make_header, repair_row
from privet.ledger.reading import parse

PLAN = plan(
    delta=1e-5, dataset_size=1000, batch_size=10, steps=400, noise_multiplier="2 * exponential:end=0.5", solve="epsilon"
)
LIMIT = 4
NOTE = 0  # in place of a count: a line about the loop, which charges nothing
shapes = st.lists(st.integers(NOTE, LIMIT), min_size=1, max_size=12)


@cache
def written(counts: tuple[int, ...]) -> list[bytes]:
    """The lines of a run that reserved these counts, or noted something of its loop, without a disk."""
    line, digest = header_line(make_header(PLAN, run="0" * 32, steps_per_line=LIMIT, seeded=False))
    lines, first, steps = [line], 0, PLAN.steps
    for place, count in enumerate(counts):
        if count == NOTE:
            line, digest = chain_line(
                digest, loop_row(first, LoopFacts(steps=place, outside=("float32 (50, 2)",) * place))
            )
            lines.append(line)
            continue
        here = slice(first, first + count)
        row = charge_row(
            first,
            noises=steps.noise_multipliers[here],
            rates=steps.sample_rates[here],
            clips=steps.clipping_norms[here],
            kind="poisson",
        )
        line, digest = chain_line(digest, row)
        lines.append(line)
        first += count
    return lines


def charged(data: bytes) -> int | None:
    """How many steps a content is charged for, each as planned; None if it is refused."""
    try:
        found = parse(data)
    except InvalidValue:
        return None
    assert found.ledger == PLAN.ledger().first(found.ledger.steps)
    return found.ledger.steps


@settings(max_examples=150)
@given(shapes, st.floats(0, 1))
def test_a_cut_anywhere_charges_every_line_of_which_a_byte_is_left(counts, where):
    lines = written(tuple(counts))
    data = b"".join(lines)
    cut = len(lines[0]) + round(where * (len(data) - len(lines[0])))
    begun, size = 0, len(lines[0])
    for line, count in zip(lines[1:], counts, strict=True):
        if cut > size:
            begun += count
        size += len(line)
    found = charged(data[:cut])
    assert found is not None
    assert begun <= found <= begun + 4 * LIMIT  # a torn line of the loop could hide some, if it is long


@given(shapes, st.floats(0, 1, exclude_max=True))
def test_a_cut_in_the_header_is_refused(counts, where):
    lines = written(tuple(counts))
    assert charged(lines[0][: int(where * (len(lines[0]) - 1))]) is None


@settings(max_examples=300)
@given(shapes, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=4))
def test_flipped_bits_are_refused_or_charged_at_least_as_much(counts, flips):
    data = bytearray(b"".join(written(tuple(counts))))
    for where, bit in flips:
        data[int(where * len(data))] ^= 1 << bit
    found = charged(bytes(data))
    assert found is None or found >= sum(counts)


@settings(max_examples=150)
@given(shapes, st.floats(0, 1), st.integers(1, 900), st.binary(min_size=1, max_size=5))
@example(counts=[4] * 12, where=1.0, length=900, filling=b"\0")
@example(counts=[1] * 12, where=1.0, length=900, filling=b"\n")
@example(counts=[1] * 12, where=1.0, length=900, filling=b'{"torn":\n')
@example(counts=[NOTE, *[1] * 5], where=1.0, length=900, filling=b"x")
def test_an_overwritten_stretch_is_refused_or_charged_at_least_as_much(counts, where, length, filling):
    data = b"".join(written(tuple(counts)))
    length = min(length, len(data))
    start = round(where * (len(data) - length))
    found = charged(data[:start] + (filling * length)[:length] + data[start + length :])
    assert found is None or found >= sum(counts)


@settings(max_examples=100)
@given(shapes, st.data())
def test_lines_that_are_missing_moved_or_doubled_are_refused(counts, data):
    lines = written(tuple(counts))
    one = data.draw(st.integers(1, len(lines) - 1))
    other = data.draw(st.integers(1, len(lines) - 1))
    changed = [lines[:one] + lines[one + 1 :]] if one < len(lines) - 1 else []
    changed.append([*lines[: other + 1], lines[one], *lines[other + 1 :]])
    if one != other:
        swapped = list(lines)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        changed.append(swapped)
    for found in (charged(b"".join(content)) for content in changed):
        assert found is None or (NOTE in counts and found >= sum(counts))  # only a note is missed by no step


@settings(max_examples=100)
@given(shapes, st.integers(1, 60), st.integers(0, 400), st.integers(0, 3))
def test_a_repaired_ledger_that_is_cut_or_flipped_never_charges_less(counts, torn, where, bit):
    """A torn piece and its repair; then damage to one byte from the torn piece on, or a cut in the repair."""
    lines = written(tuple(counts))
    whole = parse(b"".join(lines))
    tail = (b'{"step":%d,"count":' % sum(counts) + b"4" * torn)[:torn]
    before = b"".join(lines) + tail
    count = parse(before).ledger.steps - sum(counts)
    assert count == LIMIT
    first = sum(counts)
    data = before + b"\n" + chain_line(whole.position.digest, repair_row(tail, first, count))[0]
    assert charged(data) == first + count
    place = len(before) - torn + min(where, len(data) - len(before) + torn - 1)
    flipped = bytearray(data)
    flipped[place] ^= 1 << bit
    for found in (charged(bytes(flipped)), charged(data[: max(place, len(before))])):
        assert found is None or found >= first + count
