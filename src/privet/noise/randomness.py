"""Where coins and noise come from: the operating system, or a seed for a run that is reproducible and not private.

A private source holds no state. Every draw starts a new generator from the system's entropy, so a forked worker, a
copy, a saved and loaded object or a resumed run cannot draw the same numbers again.
"""

import os
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from privet import _check
from privet.errors import Unsupported

Bytes = NDArray[np.uint8]

_WORDS = 624  # the state of torch's generator on the CPU, a Mersenne Twister
_PLACE = slice(24, 24 + 8 * _WORDS)  # where its words are, each in eight bytes
_SECOND = 1812433254  # its second word after seed 1, by the Twister's published initialisation
_COINS, _NOISE, _WORDS_OF = range(3)  # what a draw is for: sampling ahead of the noise changes neither


class Randomness:
    """A source of generators, passed to whatever draws; `noise_is_secret` unless it was made from a seed.

    Without a seed the `path` means nothing.

    >>> Randomness().noise_is_secret, Randomness(3).noise_is_secret
    (True, False)
    >>> print(Randomness(3))
    seed 3: reproducible, not private
    """

    __slots__ = ("_drawn", "path", "seed")

    def __init__(self, seed: int | None = None, *path: int) -> None:
        if seed is not None:
            _check.whole(least=0, seed=seed)
        for part in path:
            _check.whole(least=0, path=part)
        self.seed, self.path = seed, path
        self._drawn = [0, 0, 0]

    @property
    def noise_is_secret(self) -> bool:
        """Whether nobody can draw the same numbers again. A guarantee holds only then."""
        return self.seed is None

    def numpy_generator(self) -> np.random.Generator:
        words = self._entropy(_COINS, 12).view(np.uint64)
        return np.random.Generator(np.random.Philox(key=words[:2], counter=words[2:]))

    def torch_generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A new torch generator on `device`, for noise.

        `manual_seed` would leave only 2^32 different generators on the CPU: seeds 2^32 apart are one stream. So the
        whole state of 19,968 bits is filled. Elsewhere a generator is keyed by the 64 bits that torch takes.
        """
        made = torch.Generator(device)
        if made.device.type != "cpu":
            return made.manual_seed(int(self._entropy(_NOISE, 2).view(np.uint64)[0]))
        state = _template().copy()
        state[_PLACE].view(np.uint64)[:] = self._entropy(_NOISE, _WORDS)
        made.set_state(torch.from_numpy(state))
        return made

    def random_words(self, count: int) -> NDArray[np.uint64]:
        """Random 64-bit words, straight from the operating system's cryptographic generator where private."""
        if self.noise_is_secret:
            return np.frombuffer(os.urandom(8 * count), np.uint64)
        return np.random.Philox(key=self._entropy(_WORDS_OF, 4).view(np.uint64)).random_raw(count)

    def _entropy(self, use: int, words: int) -> NDArray[np.uint32]:
        if self.seed is None:
            return np.frombuffer(os.urandom(4 * words), np.uint32)
        self._drawn[use] += 1
        key = (*self.path, use, self._drawn[use])
        return np.random.SeedSequence(self.seed, spawn_key=key).generate_state(words).astype(np.uint32)

    def __str__(self) -> str:
        if self.noise_is_secret:
            return "operating system: private"
        return f"seed {'/'.join(map(str, (self.seed, *self.path)))}: reproducible, not private"


def os_randomness() -> Randomness:
    return Randomness()


def seeded(seed: int, *path: int) -> Randomness:
    """A reproducible source, not private. Other numbers in `path` (a rank, the step of a resume), another stream.

    >>> int(seeded(3).numpy_generator().integers(100)) == int(seeded(3).numpy_generator().integers(100))
    True
    >>> float(seeded(3).numpy_generator().random()) == float(seeded(3, 1).numpy_generator().random())
    False
    """
    return Randomness(seed, *path)


@cache
def _template() -> Bytes:
    """The bytes of a CPU generator that is about to turn its state over; refused if torch has changed their order."""
    state: Bytes = torch.Generator().manual_seed(1).get_state().numpy()
    if len(state) < _PLACE.stop or state[_PLACE].view(np.uint64)[:2].tolist() != [1, _SECOND]:
        raise Unsupported(
            f"torch={torch.__version__} keeps its generator's state in an order not known here. A seed of 32 bits "
            "could be guessed. Use torch 2.13, or report this."
        )
    return state
