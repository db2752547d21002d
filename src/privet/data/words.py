"""Words as whole numbers, by a public vocabulary; 0 is padding and stands in front.

By default each word is hashed into one of the numbers. Counting the most frequent words, as papers do, looks at the
private texts without noise; `vocabulary=counted` does it, and is trained on by `--as-published` only.
"""

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from privet.data.files import content_of, expanded
from privet.data.packed import text_of
from privet.errors import InvalidValue

_PUNCTUATION = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def words_of(text: str) -> list[str]:
    """The words of a text, as Keras cuts them: in small letters, between blanks; punctuation but ' is blank.

    >>> words_of("It's <br />GREAT, really!")
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


def uncommon(words: list[str]) -> list[str]:
    """The words without those that join others: what nearly all texts share tells nothing, and noise comes with it.

    >>> uncommon(["it's", "not", "the", "best", "of", "films"])
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


def numbered(texts: Iterable[Sequence[str]], index: Mapping[str, int], *, length: int) -> Tensor:
    """(N, length): the last `length` words of each text as numbers, zeros in front of a shorter one."""
    rows = []
    for words in texts:
        row = [index[word] for word in words[-length:]]
        rows.append(np.array([0] * (length - len(row)) + row, dtype=np.int64))
    return torch.from_numpy(np.stack(rows))


def vocabulary_of(kind: str, words: int, texts: Iterable[Sequence[str]]) -> tuple[Mapping[str, int], str]:
    """The numbers of words, and what to say of them."""
    if kind == "hashed":
        return Hashed(words), f"words hashed into {words:,} numbers"
    if kind == "counted":
        counts = Counter(word for text in texts for word in text)
        top = sorted(counts, key=lambda word: (-counts[word], word))[: words - 2]
        return Listed(top), f"the {words - 2:,} most frequent training words, COUNTED WITHOUT PRIVACY, as published"
    path = expanded(kind)
    if not os.path.isfile(path):
        raise InvalidValue(
            f"vocabulary={kind!r} is neither hashed nor counted nor a file. A file has one word per line, and must be "
            "public. Write vocabulary=hashed."
        )
    content = content_of(path)
    listed = text_of(content, path).split()[: words - 2]
    return Listed(listed), f"the first {len(listed):,} words of {path.name}, SHA-256 {sha256(content).hexdigest()}"
