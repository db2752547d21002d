"""Words as whole numbers, by a public vocabulary, and which n-grams a text has; 0 is padding and stands in front.

By default each word is hashed into one of the numbers. Counting the most frequent words, as papers do, looks at the
private texts without noise; `vocabulary=counted` does it, and is trained on by `--uncertified` only.

A linear model on sets of n-grams learns under noise what needs a network to read a sequence. Numbers come from a
CRC-32, not from counting the private texts. `features=set` gives the numbers themselves, for the model `bag`: small for
many words. `features=columns` gives a column for each number, for the model `linear`: fast for few.
"""

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privet import _check
from privet.data.files import expand_user, read_content
from privet.errors import InvalidValue
from privet_papers.datasets.archives import decode_text

_PUNCTUATION = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def split_words(text: str) -> list[str]:
    """The words of a text, as Keras cuts them: in small letters, between blanks; punctuation but ' is blank.

    >>> split_words("It's <br />GREAT, really!")
    ["it's", 'br', 'great', 'really']
    """
    return text.lower().translate(_PUNCTUATION).split()


# Words that join others: known to any reader of English, counted nowhere. `not`, `no` and `but` can turn a sentence.
_JOINING = """
a about after again all also am an and any are as at be because been before being between both br by can could did do
does doing down during each few for from further had has have having he her here hers him his how i i'm if in into is it
it's its itself just me more most my myself of off on once one only or other our out over own s same she so some such t
than that the their them then there these they this those through to too under until up very was we were what when where
which while who whom why will with would you your yours
"""
COMMON = frozenset(_JOINING.split())


def drop_common(words: list[str]) -> list[str]:
    """The words without those that join others: what nearly all texts share tells nothing, and noise comes with it.

    >>> drop_common(["it's", "not", "the", "best", "of", "films"])
    ['not', 'best', 'films']
    """
    return [word for word in words if word not in COMMON]


class Hashed(dict[str, int]):
    """Each word has a number from 1 to words - 1, by its CRC-32. It depends on no text; some words share one."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = words

    def __missing__(self, word: str) -> int:
        self[word] = found = 1 + zlib.crc32(word.encode()) % (self.words - 1)
        return found


class Listed(dict[str, int]):
    """The words of a list have the numbers from 2 on; any other word is 1."""

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__((word, number) for number, word in enumerate(dict.fromkeys(words), 2))

    def __missing__(self, word: str) -> int:
        return 1


def number_words(texts: Iterable[Sequence[str]], index: Mapping[str, int], *, length: int) -> Tensor:
    """(N, length): the last `length` words of each text as numbers, zeros in front of a shorter one."""
    rows = []
    for words in texts:
        row = [index[word] for word in words[-length:]]
        rows.append(np.array([0] * (length - len(row)) + row, dtype=np.int64))
    return torch.from_numpy(np.stack(rows))


def build_vocabulary(kind: str, words: int, texts: Iterable[Sequence[str]]) -> tuple[Mapping[str, int], str]:
    """The numbers of words, and what to say of them."""
    if kind == "hashed":
        return Hashed(words), f"words hashed into {words:,} numbers"
    if kind == "counted":
        counts = Counter(word for text in texts for word in text)
        top = sorted(counts, key=lambda word: (-counts[word], word))[: words - 2]
        return Listed(top), f"the {words - 2:,} most frequent training words, COUNTED WITHOUT PRIVACY, as published"
    path = expand_user(kind)
    if not os.path.isfile(path):
        raise InvalidValue(
            f"vocabulary={kind!r} is neither hashed nor counted nor a file. A file has one word per line, and must be "
            "public. Write vocabulary=hashed."
        )
    content = read_content(path)
    listed = decode_text(content, path).split()[: words - 2]
    return Listed(listed), f"the first {len(listed):,} words of {path.name}, SHA-256 {sha256(content).hexdigest()}"


# --- sets of n-grams --------------------------------------------------------------------------------


KINDS = ("sequence", "set", "columns")


def build_features(
    texts: Iterable[Iterable[str]], kind: str, *, words: int, length: int
) -> tuple[Tensor, str, dict[str, Any]]:
    """What a network reads of texts given by their n-grams, the network, and the facts that it is made for."""
    sets = hash_sets(texts, words=words, length=length)
    if kind == "set":
        return sets, "bag", {"words": words, "length": length}
    return to_columns(sets, words=words), "linear", {"shape": (words,)}


def parse_orders(text: "str | int") -> range:
    """`2` or `1-3` as lengths of n-grams.

    >>> parse_orders("1-3"), parse_orders(2)
    (range(1, 4), range(2, 3))
    """
    low, dash, high = str(text).partition("-")
    if not (low.isdecimal() and (high.isdecimal() or not dash)) or not 1 <= int(low) <= int(high or low) <= 9:
        raise InvalidValue(f"order={text!r} must be a length from 1 to 9, or two. Write order=2, or order=1-3.")
    return range(int(low), int(high or low) + 1)


def generate_ngrams(parts: Sequence[str], orders: range, between: str = " ") -> Iterator[str]:
    """The n-grams of a text's words or characters, in their order, the short ones first.

    >>> list(generate_ngrams(["so", "very", "good"], range(1, 3)))
    ['so', 'very', 'good', 'so very', 'very good']
    """
    for order in orders:
        for start in range(len(parts) - order + 1):
            yield between.join(parts[start : start + order])


def hash_sets(texts: Iterable[Iterable[str]], *, words: int, length: int) -> Tensor:
    """(N, length): the different numbers of each text's n-grams, from 1 to words - 1; zeros fill up in front.

    Of more than `length`, those stay whose n-gram comes last in the text.

    >>> hash_sets([["a", "b", "a"], ["c"]], words=1000, length=3).tolist()
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


def to_columns(sets: Tensor, *, words: int) -> Tensor:
    """(N, words): a column for each number, 1 over the root of how many a text has where it has it, so of length one.

    >>> to_columns(torch.tensor([[0, 0, 0, 2], [1, 2, 3, 4]]), words=5).tolist()
    [[0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.5, 0.5]]
    """
    found = torch.zeros(len(sets), words).scatter_(1, sets, 1.0)
    found[:, 0] = 0  # padding
    return found / found.sum(1, keepdim=True).clamp(min=1).sqrt()
