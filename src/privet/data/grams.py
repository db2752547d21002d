"""Which n-grams a text has, each hashed into a number: a set, where a sequence has an order and repeats.

A linear model on such sets learns under noise what needs a network to read a sequence. Numbers come from a CRC-32, not
from counting the private texts. `features=set` gives the numbers themselves, for the model `bag`: small for many words.
`features=columns` gives a column for each number, for the model `linear`: fast for few.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privet import _check
from privet.data.words import Hashed
from privet.errors import InvalidValue

KINDS = ("sequence", "set", "columns")


def featured(
    texts: Iterable[Iterable[str]], kind: str, *, words: int, length: int
) -> tuple[Tensor, str, dict[str, Any]]:
    """What a network reads of texts given by their n-grams, the network, and the facts that it is made for."""
    sets = hashed_sets(texts, words=words, length=length)
    if kind == "set":
        return sets, "bag", {"words": words, "length": length}
    return columns(sets, words=words), "linear", {"shape": (words,)}


def orders_of(text: "str | int") -> range:
    """`2` or `1-3` as lengths of n-grams.

    >>> orders_of("1-3"), orders_of(2)
    (range(1, 4), range(2, 3))
    """
    low, dash, high = str(text).partition("-")
    if not (low.isdecimal() and (high.isdecimal() or not dash)) or not 1 <= int(low) <= int(high or low) <= 9:
        raise InvalidValue(f"order={text!r} must be a length from 1 to 9, or two. Write order=2, or order=1-3.")
    return range(int(low), int(high or low) + 1)


def grams(parts: Sequence[str], orders: range, between: str = " ") -> Iterator[str]:
    """The n-grams of a text's words or characters, in their order, the short ones first.

    >>> list(grams(["so", "very", "good"], range(1, 3)))
    ['so', 'very', 'good', 'so very', 'very good']
    """
    for order in orders:
        for start in range(len(parts) - order + 1):
            yield between.join(parts[start : start + order])


def hashed_sets(texts: Iterable[Iterable[str]], *, words: int, length: int) -> Tensor:
    """(N, length): the different numbers of each text's n-grams, from 1 to words - 1; zeros fill up in front.

    Of more than `length`, those stay whose n-gram comes last in the text.

    >>> hashed_sets([["a", "b", "a"], ["c"]], words=1000, length=3).tolist()
    [[0, 930, 172], [0, 0, 613]]
    """
    _check.whole(least=3, words=words)
    _check.whole(length=length)
    index = Hashed(words)
    rows = []
    for text in texts:
        last_first = dict.fromkeys(reversed([index[gram] for gram in text]))
        row = list(last_first)[:length][::-1]
        rows.append(np.array([0] * (length - len(row)) + row, dtype=np.int64))
    return torch.from_numpy(np.stack(rows))


def columns(sets: Tensor, *, words: int) -> Tensor:
    """(N, words): a column for each number, 1 over the root of how many a text has where it has it, so of length one.

    >>> columns(torch.tensor([[0, 0, 0, 2], [1, 2, 3, 4]]), words=5).tolist()
    [[0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.5, 0.5]]
    """
    found = torch.zeros(len(sets), words).scatter_(1, sets, 1.0)
    found[:, 0] = 0  # padding
    return found / found.sum(1, keepdim=True).clamp(min=1).sqrt()
