"""The rounded Gaussian is right for every word, also for those made to deceive it. mpmath is the oracle."""

import math
from decimal import Context, Decimal, localcontext

import mpmath
import numpy as np
import pytest
from scipy import special

from privet.errors import InvalidValue
from privet.noise import discrete
from privet.noise.discrete import BITS, DIGITS, DOUBT, FEW, MORE, rounded_gaussian
from privet.noise.randomness import os_randomness, seeded

SPREADS = [0.3, 1.0, 3.7, 1000.5, 2.0**20 / 3, 5e8]


class Scripted:
    """A source whose words are known: one for each value, then those that doubtful values ask for."""

    def __init__(self, first, more):
        self.queue = [np.array(first, np.uint64), more]
        self.asked = []

    def random_words(self, count):
        self.asked.append(count)
        if len(self.asked) == 1:
            return self.queue[0]
        return np.array(list(self.queue[1]) * (count // MORE), np.uint64)


def upper(t, spread):
    """P[N(0, spread^2) > t], to 120 digits."""
    return mpmath.erfc(mpmath.mpf(t) / mpmath.mpf(spread) / mpmath.sqrt(2)) / 2


def holds(j, low, high, spread):
    """Whether all tail chances from low to high belong to the cell |Z| = j."""
    return upper(mpmath.mpf(j) + 0.5, spread) <= low and (j == 0 or high <= upper(mpmath.mpf(j) - 0.5, spread))


def wrong(bits, spread, more=(0, 0, 0, 0)):
    """How many of the values that these bits give are not in the cell where the bits put them."""
    source = Scripted([2 * b for b in bits], more)
    extra = discrete._join_words(list(more))
    found = rounded_gaussian(len(bits), spread=spread, randomness=source)
    count = 0
    with mpmath.workdps(DIGITS + 20):
        for b, value in zip(bits, found.tolist(), strict=True):
            alone = Scripted([2 * b], more)
            rounded_gaussian(1, spread=spread, randomness=alone)
            if len(alone.asked) == 1:  # decided by the first word, so for whatever might follow
                low, high = mpmath.ldexp(b, -64), mpmath.ldexp(b + 1, -64)
            else:
                p = (b << 64 * MORE) + extra
                low, high = mpmath.ldexp(p + 1, -BITS), mpmath.ldexp(p, -BITS)  # some chance of this last unit
            count += not holds(abs(value), low, high, spread)
    return count


def deceiving(spread):
    """Words next to borders of cells, near and far out."""
    with mpmath.workdps(DIGITS):
        borders = [math.floor(spread * z) + 0.5 for z in (0, 0.01, 0.7, 1.1, 2.2, 3.3, 5.0, 6.5)]
        at = [int(mpmath.floor(mpmath.ldexp(upper(b, spread), 64))) for b in borders]
    return sorted({min(max(word + k, 0), 2**63 - 1) for word in at for k in (-300, -1, 0, 1, 300)})


ENDS = [0, 1, 2, 1000, FEW - 1, FEW, FEW + 1, 2**53, 2**53 + 1, 2**62, 2**63 - 2, 2**63 - 1]


@pytest.mark.parametrize("spread", SPREADS)
def test_a_word_says_the_value(spread):
    some = (np.random.default_rng(0).integers(0, 2**63, 150) >> np.arange(150) % 20).tolist()
    assert wrong(some + ENDS, spread) == 0


@pytest.mark.parametrize("more", [(0, 0, 0, 0), (2**64 - 1,) * 4, (2**63, 5, 0, 1)])
@pytest.mark.parametrize("spread", SPREADS)
def test_words_at_the_border_of_two_cells_are_told_apart(spread, more):
    assert wrong(deceiving(spread), spread, more) == 0


def test_without_doubt_some_would_be_wrong(monkeypatch):
    """The oracle's own test."""
    monkeypatch.setattr(discrete, "DOUBT", 0.0)
    monkeypatch.setattr(discrete, "FEW", 0)
    assert wrong(deceiving(5e8), 5e8) + wrong([0, 1, 2], 5e8) > 0


@pytest.mark.parametrize("step", [-1, 0, 1])
def test_the_last_of_320_bits_decides(step):
    """A border to 120 digits, and the numbers on both sides of it: one apart in 320 bits."""
    spread, border = 1000.5, 1234
    with mpmath.workdps(DIGITS):
        p = int(mpmath.floor(mpmath.ldexp(upper(border + 0.5, spread), BITS))) + step
    first, more = p >> 64 * MORE, [p >> 64 * k & 2**64 - 1 for k in range(MORE - 1, -1, -1)]
    found = rounded_gaussian(1, spread=spread, randomness=Scripted([2 * first], more))
    assert found.tolist() == [border + 1 if step < 0 else border]


@pytest.mark.parametrize(("bits", "more", "sigmas"), [(2**20, 0, 7.4), (1, 0, 9.0), (0, 2**63, 9.1), (0, 0, 20.7)])
def test_the_tail_has_no_end_that_matters(bits, more, sigmas):
    """All bits zero: 20.8 standard deviations, whose chance is 2^-320."""
    found = rounded_gaussian(1, spread=1e6, randomness=Scripted([2 * bits], [more, 0, 0, 0]))
    assert found[0] > sigmas * 1e6
    assert found[0] < 21e6


def test_the_lowest_bit_is_the_sign():
    words = os_randomness().random_words(100) & ~np.uint64(1)
    plus, minus = (rounded_gaussian(100, spread=50.0, randomness=Scripted(w, [7] * 4)) for w in (words, words + 1))
    assert (plus == -minus).all()
    assert (plus >= 0).all()


@pytest.mark.parametrize("z", ["0", "1e-30", "0.5", "1", "4", "7.25", "13", "21.99"])
def test_tails_have_110_digits(z):
    with localcontext(Context(prec=DIGITS)):
        found = discrete._gaussian_tail(Decimal(z))
    with mpmath.workdps(200):
        assert abs(mpmath.mpf(str(found)) - upper(mpmath.mpf(z), 1)) < mpmath.mpf(10) ** -112


def test_no_border_lies_beyond_the_farthest():
    with mpmath.workdps(50):
        assert upper(discrete.FARTHEST, 1) < mpmath.mpf(2) ** -353
    assert discrete._gaussian_tail(Decimal("22.1")) == 0


@pytest.mark.slow
def test_the_inverse_of_phi_is_far_better_than_is_asked():
    """scipy's ndtri on the way to a value, against Phi to 40 digits: 500 times nearer than half of the doubt."""
    numbers = np.random.default_rng(1)
    near = [np.exp(-2) * (1 + t) for t in (0, 1e-15, -1e-15, 1e-9, -1e-9)]  # where its formula changes
    near += [np.exp(-32) * (1 + t) for t in (0, 1e-15, -1e-15, 1e-9, -1e-9)]
    p = np.concatenate([2.0 ** -numbers.uniform(1, 20.1, 4_000), numbers.uniform(0, 0.5, 2_000), near, [0.5, 2.0**-20]])
    worst = 0.0
    with mpmath.workdps(40):
        for chance, z in zip(p.tolist(), (-special.ndtri(p)).tolist(), strict=True):
            density = mpmath.exp(-(mpmath.mpf(z) ** 2) / 2) / mpmath.sqrt(2 * mpmath.pi)
            off = abs(upper(z, 1) - chance) / density
            worst = max(worst, float(off) / max(1.0, z))
    assert worst < DOUBT / 2 / 500


def test_a_seed_repeats_and_nothing_else_does():
    def drawn(source):
        return rounded_gaussian(40, spread=1e5, randomness=source).tolist()

    assert drawn(seeded(3)) == drawn(seeded(3))
    assert (
        len({tuple(drawn(source)) for source in (seeded(3), seeded(4), seeded(3, 1), os_randomness(), os_randomness())})
        == 5
    )


def test_blocks_are_drawn_one_after_the_other(monkeypatch):
    monkeypatch.setattr(discrete, "BLOCK", 8)
    found = rounded_gaussian(20, spread=1e6, randomness=seeded(0))
    assert len(set(found.tolist())) == 20
    assert rounded_gaussian(0, spread=1.0, randomness=os_randomness()).shape == (0,)


@pytest.mark.parametrize("spread", [0.0, -1.0, math.nan, math.inf, 2.0**41])
def test_a_spread_without_a_proof_is_refused(spread):
    with pytest.raises(InvalidValue, match="spread="):
        rounded_gaussian(1, spread=spread, randomness=os_randomness())
