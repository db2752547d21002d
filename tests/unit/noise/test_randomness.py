"""Sources of randomness: private ones never repeat, seeded ones always do."""

import copy
import pickle

import numpy as np
import pytest
import torch

from privet.errors import InvalidValue, Unsupported
from privet.noise import randomness
from privet.noise.randomness import Randomness, os_randomness, seeded


def told(source: Randomness) -> list[list[float]]:
    """A few numbers of every kind."""
    noise = torch.empty(8).normal_(generator=source.torch_generator())
    return [source.numpy_generator().random(8).tolist(), noise.tolist(), source.random_words(8).tolist()]


def test_fresh_sources_never_agree_and_never_repeat_themselves():
    source = os_randomness()
    seen = [numbers for _ in range(3) for numbers in told(source)] + told(os_randomness())
    seen += told(copy.deepcopy(source)) + told(pickle.loads(pickle.dumps(source)))
    assert len({tuple(numbers) for numbers in seen}) == len(seen) == 18


def test_a_seed_repeats_everything_and_moves_on():
    first, second = seeded(7), seeded(7)
    assert told(first) == told(second)
    assert told(first) == told(second)
    assert told(first) != told(seeded(7))


def test_coins_drawn_ahead_leave_the_noise_as_it_is():
    ahead, behind = seeded(7), seeded(7)
    for _ in range(5):
        ahead.numpy_generator()
    assert told(ahead)[1:] == told(behind)[1:]


@pytest.mark.parametrize("other", [seeded(8), seeded(7, 0), seeded(7, 1), seeded(7 + 2**32), seeded(7 + 2**64)])
def test_other_seeds_and_paths_are_other_streams(other):
    """Also seeds that torch's own manual_seed takes for one."""
    same = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7 + 2**32)
    assert torch.equal(torch.rand(9, generator=same[0]), torch.rand(9, generator=same[1]))
    assert not any(mine == theirs for mine, theirs in zip(told(seeded(7)), told(other), strict=True))


def test_every_bit_of_a_generators_state_is_filled():
    """Over 200 fresh generators each of the 624 x 32 bits is both 0 and 1; a fresh source fails once in 1e55."""
    place = slice(24, 24 + 8 * 624)
    words = np.stack([os_randomness().torch_generator().get_state().numpy()[place].view(np.uint64) for _ in range(200)])
    ever, always = np.bitwise_or.reduce(words), np.bitwise_and.reduce(words)
    assert (ever == 0xFFFFFFFF).all()
    assert (always == 0).all()


def test_a_torch_that_keeps_its_state_otherwise_is_refused(monkeypatch):
    randomness._template.cache_clear()
    monkeypatch.setattr(randomness, "_SECOND", 1)
    with pytest.raises(Unsupported, match="order not known"):
        os_randomness().torch_generator()
    monkeypatch.undo()
    assert os_randomness().torch_generator()


def test_a_seeded_source_says_what_it_is():
    assert (os_randomness().noise_is_secret, seeded(0).noise_is_secret) == (True, False)
    assert str(seeded(3, 1)) == "seed 3/1: reproducible, not private"
    assert "not" not in str(os_randomness())


@pytest.mark.parametrize("seed", [-1, 1.5, "x", True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(InvalidValue, match="seed="):
        seeded(seed)
    with pytest.raises(InvalidValue, match="path="):
        seeded(0, seed)
