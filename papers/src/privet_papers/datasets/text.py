"""Text as tasks: `imdb`, `names`, `ag-news`, as whole numbers. See `words` on what is private about a vocabulary."""

import csv
import io
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import torch

from privet import _check
from privet.data.files import DataFolders, File, find, missing_file_message, read, read_content
from privet.data.task import Task, first, register, shuffled, split
from privet.errors import InvalidValue
from privet_papers.datasets.archives import decode_text, has_plain_file, read_plain, untar, unzip
from privet_papers.datasets.ngrams import (
    KINDS,
    Listed,
    build_features,
    build_vocabulary,
    drop_common,
    generate_ngrams,
    number_words,
    parse_orders,
    split_words,
)

Text = tuple[str, int]  # a text and its class
LONGEST = 10_000  # words of a text


def _words_task(
    name: str, train: list[Text], test: list[Text], *, words: int, length: int, vocabulary: str, size: int | None,
    classes: int, model: str, source: str, features: str = "sequence", order: "str | int" = 1, common: str = "kept",
) -> Task:  # fmt: skip
    _check.whole(least=3, words=words)
    _check.whole(length=length)
    if length > LONGEST:
        raise InvalidValue(f"length={length} must be at most {LONGEST:,}: every text takes so many numbers of memory.")
    _check.one_of(KINDS, features=features)
    _check.one_of(("kept", "dropped"), common=common)
    places = shuffled(len(train))[: first(size, len(train))]
    kept, test = [train[place] for place in places], [test[place] for place in shuffled(len(test))]
    read = drop_common if common == "dropped" else list
    cut = [read(split_words(text)) for text, _ in kept]
    held = (read(split_words(text)) for text, _ in test)
    facts: dict[str, Any] = {"words": words, "length": length}
    if features == "sequence":
        index, said = build_vocabulary(vocabulary, words, cut)
        inputs, judged = (number_words(texts, index, length=length) for texts in (cut, held))
        said += f"; the last {length} words"
    else:
        _check.one_of(("hashed",), vocabulary=vocabulary)
        orders = parse_orders(order)
        (inputs, model, facts), (judged, _, _) = (
            build_features((generate_ngrams(text, orders) for text in texts), features, words=words, length=length)
            for texts in (cut, held)
        )
        said = f"sets of {order}-grams hashed into {words:,} numbers; the last {length}"
    said += "; common words dropped" if common == "dropped" else ""
    return Task(
        name=name, train=(inputs, torch.tensor([label for _, label in kept])),
        held_out=(judged, torch.tensor([label for _, label in test])),
        evaluation=f"the public test set, {len(test):,} texts that are never trained on",
        model=model, facts=facts | {"classes": classes}, source=f"{source}; {said}",
        non_private_preprocessing="vocabulary=counted, the most frequent words" if vocabulary == "counted" else "",
    )  # fmt: skip


# --- imdb -------------------------------------------------------------------------------------------

IMDB_COUNT = 25_000  # of each part, half of them positive
IMDB = File(
    dataset="imdb", name="aclImdb_v1.tar.gz", size=84125825,
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
)  # fmt: skip
IMDB_TABLES = {  # the same reviews, one table for each part
    "train": File(dataset="imdb", name="train.csv", size=33504689,
                  sha256="3b9ea9ea967d4492154b1b0a21a971da6d8d2ccb258becfef4f1087fc1495399"),
    "test": File(dataset="imdb", name="test.csv", size=32722936,
                 sha256="a455968c7e172c976831ed9fca039f58fcc34837ff011cab5edd52a47ce98857"),
}  # fmt: skip
_REVIEW = re.compile(r"(?:.*/)?(train|test)/(pos|neg)/(\d+)_(\d+)\.txt")


@register("imdb")
def imdb(
    *, where: DataFolders, words: int = 10_000, length: int = 256, vocabulary: str = "hashed", size: int | None = None,
    features: str = "sequence", order: "str | int" = 1, common: str = "kept",
) -> Task:  # fmt: skip
    """50,000 film reviews, liked or not (Maas et al. 2011): 25,000 to train on, 25,000 to judge by.

    Bu et al. 2019, Section 4.1: the 10,000 most frequent words, 256 words of each review; their program keeps the last
    ones and fills in front. `vocabulary` is `hashed` (private, the default), `counted` (as published, no guarantee), or
    a file of public words. `features=set` (or `columns`) has the set of each review's words, hashed; with
    `order=1-2` also of its pairs of words. `common=dropped` leaves out words that say nothing, by a fixed list.
    """
    parts, form = _read_imdb_parts(where)
    for part, texts in parts.items():
        likes = sum(label for _, label in texts)
        if len(texts) != IMDB_COUNT or 2 * likes != IMDB_COUNT:
            raise InvalidValue(
                f"task='imdb' found {len(texts):,} {part} reviews, {likes:,} of them positive, not {IMDB_COUNT:,} and "
                f"{IMDB_COUNT // 2:,}. {form} is not whole. Fetch it again."
            )
    return _words_task(
        "imdb", parts["train"], parts["test"], words=words, length=length, vocabulary=vocabulary, size=size, classes=2,
        model="embedding-mlp", source=f"Large Movie Review Dataset v1.0 (Maas et al. 2011), {form}", features=features,
        order=order, common=common,
    )  # fmt: skip


def _read_imdb_parts(where: DataFolders) -> tuple[dict[str, list[Text]], str]:
    """The reviews of both parts and the form they were found in: tables, the folder, the archive; else fetched."""
    if has_plain_file(where, IMDB_TABLES["train"]):
        tables = {part: parse_imdb(decode_text(read_plain(where, file), file.name), file.name)
                  for part, file in IMDB_TABLES.items()}  # fmt: skip
        return tables, "train.csv and test.csv, SHA-256 " + ", ".join(f.sha256 for f in IMDB_TABLES.values())
    folder = find(where, "imdb", "aclImdb")
    if folder is not None and folder.is_dir():
        files = ((path.relative_to(folder).as_posix(), path) for path in folder.glob("t*/*/*.txt"))
        return _group_by_part(
            (name, read_content(path)) for name, path in files if _REVIEW.fullmatch(name)
        ), "folder aclImdb"
    members = untar(read(where, IMDB), limit=2**30, name=IMDB.name)
    return _group_by_part(members), f"{IMDB.name}, SHA-256 {IMDB.sha256}"


def _group_by_part(members: Iterable[tuple[str, bytes]]) -> dict[str, list[Text]]:
    """The reviews in files `train/pos/<id>_<rating>.txt`, by part, sorted by class and id."""
    found: dict[str, list[tuple[int, int, str]]] = {"train": [], "test": []}
    for name, content in members:
        if match := _REVIEW.fullmatch(name):
            part, kind, number, _ = match.groups()
            found[part].append((int(kind == "pos"), int(number), decode_text(content, name)))
    return {part: [(text, label) for label, _, text in sorted(rows)] for part, rows in found.items()}


def parse_imdb(text: str, name: str) -> list[Text]:
    """The rows `label,rating,id,text` of a table, under that header."""
    rows = _csv_rows(text, name)
    if next(rows, None) != ["label", "rating", "id", "text"]:
        raise InvalidValue(f"{name}: must begin with label,rating,id,text. It is another table.")
    found = []
    for number, row in enumerate(rows, 2):
        if len(row) != 4 or row[0] not in ("0", "1"):
            raise InvalidValue(f"{name}, record {number}: must be label (0 or 1), rating, id, text. Fetch it again.")
        found.append((row[3], int(row[0])))
    return found


def _csv_rows(text: str, name: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text, newline=""), strict=True)
    except csv.Error as error:
        raise InvalidValue(f"{name}: is not a whole csv file: {error}. Fetch it again.") from None


# --- ag-news ----------------------------------------------------------------------------------------

_AG_URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
AG_TRAIN = File(
    dataset="ag-news", name="train.csv", size=29470338, url=_AG_URL + "train.csv",
    sha256="76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
)  # fmt: skip
AG_TEST = File(
    dataset="ag-news", name="test.csv", size=1857427, url=_AG_URL + "test.csv",
    sha256="521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
)  # fmt: skip
AG_SAMPLE = File(  # 10,000 of the training texts, title and description joined
    dataset="ag-news", name="train_sample_10000.csv", size=2474836,
    sha256="6d80c7103b0e62de031e8c0bd6e3148aeb51c2202a857e7243821ee909715bfa",
)  # fmt: skip


@register("ag-news")
def ag_news(
    *, where: DataFolders, words: int = 10_000, length: int = 64, vocabulary: str = "hashed", size: int | None = None
) -> Task:
    """Short news of four kinds (Zhang et al. 2015): 120,000 to train on, 7,600 to judge by; title and description.

    Auto DP-SGD (arXiv:2312.02400), Appendix B.1, trains on it and does not say how it prepares the text; hashed words
    and 64 of them are ours. Where only train_sample_10000.csv is there, its 10,000 texts are trained on, as `source`
    says; 2 of them are also in the test set.
    """
    sampled = not has_plain_file(where, AG_TRAIN) and has_plain_file(where, AG_SAMPLE)
    train = AG_SAMPLE if sampled else AG_TRAIN
    texts = [parse_ag_news(decode_text(read_plain(where, file), file.name), file.name) for file in (train, AG_TEST)]
    return _words_task(
        "ag-news", *texts, words=words, length=length, vocabulary=vocabulary, size=size, classes=4, model="bilstm",
        source=f"AG's News (Zhang et al. 2015), {train.name}, SHA-256 {train.sha256}"
        + ("; a SAMPLE of the 120,000 training texts" if sampled else ""),
    )  # fmt: skip


def parse_ag_news(text: str, name: str) -> list[Text]:
    """The rows `class,title,description` or `class,text` of a table without a header; classes 1 to 4 become 0 to 3."""
    found = []
    for number, row in enumerate(_csv_rows(text, name), 1):
        if len(row) not in (2, 3) or row[0] not in ("1", "2", "3", "4"):
            raise InvalidValue(
                f"{name}, record {number}: must be a class from 1 to 4, a title and a description. Fetch it again."
            )
        found.append((" ".join(row[1:]), int(row[0]) - 1))
    if not found:
        raise InvalidValue(f"{name}: has no record. Fetch it again.")
    return found


# --- names ------------------------------------------------------------------------------------------

LANGUAGES = ("Arabic", "Chinese", "Czech", "Dutch", "English", "French", "German", "Greek", "Irish", "Italian",
             "Japanese", "Korean", "Polish", "Portuguese", "Russian", "Scottish", "Spanish", "Vietnamese")  # fmt: skip
ALPHABET = string.ascii_letters + " .,;'-"  # numbers from 2 on; any other character is 1
NAME_LENGTH = 20
NAME_GRAMS = 64  # of a name that are kept
_NAMES_URL = "https://download.pytorch.org/tutorial/data.zip"
_NAMES_LIMIT = 2**24


@register("names")
def names(
    *,
    where: DataFolders,
    size: int | None = None,
    features: str = "sequence",
    order: "str | int" = "1-3",
    words: int = 2048,
) -> Task:
    """Surnames of 18 languages, by their characters; a fifth judges, by a fixed shuffle.

    Du et al. 2021 train an LSTM on it; the text does not describe how. Accents are dropped, the alphabet is a constant
    (ASCII letters, blank and .,;'-), a name has 20 places, filled in front. The corrected files have 20,050 names:
    16,040 to train on, 4,010 to judge by. Put the files Arabic.txt to Vietnamese.txt, or the zip of the PyTorch
    tutorial (an older version with 20,074), in place; nothing is fetched. `features=columns` (or
    `set`) has each name's n-grams of `order` in small letters, ^ before and $ after it, hashed into `words` numbers.
    """
    _check.one_of(KINDS, features=features)
    files, form = _read_names_files(where)
    lists = [parse_names(files[language], language) for language in LANGUAGES]
    texts = [(name, label) for label, found in enumerate(lists) for name in found]
    train, held = split(len(texts), len(texts) // 5)
    train = train[: first(size, len(train))]
    spelled = [text for text, _ in texts]
    model, facts = "char-lstm", {"words": len(ALPHABET) + 2, "length": NAME_LENGTH}
    if features == "sequence":
        inputs = number_words(spelled, Listed(ALPHABET), length=NAME_LENGTH)
    else:
        parts = (generate_ngrams(f"^{text.lower()}$", parse_orders(order), "") for text in spelled)
        inputs, model, facts = build_features(parts, features, words=words, length=NAME_GRAMS)
    labels = torch.tensor([label for _, label in texts])
    digest = sha256(b"".join(files[language] for language in LANGUAGES)).hexdigest()
    return Task(
        name="names", train=(inputs[train], labels[train]), held_out=(inputs[held], labels[held]),
        evaluation=f"{len(held):,} of the {len(texts):,} names, by a fixed shuffle, never trained on",
        model=model, facts=facts | {"classes": len(LANGUAGES)},
        source=f"surnames by language (Robertson, practical-pytorch), {form}, SHA-256 of all {digest}",
    )  # fmt: skip


def _read_names_files(where: DataFolders) -> tuple[dict[str, bytes], str]:
    """The content of each language's file, and the form it was found in: the files, or the zip."""
    paths = {language: find(where, "names", f"{language}.txt", f"names/{language}.txt") for language in LANGUAGES}
    if any(paths.values()):
        absent = [language for language, path in paths.items() if path is None]
        if absent:
            raise InvalidValue(missing_file_message(where, "names", f"{absent[0]}.txt", source=_NAMES_URL))
        return {language: read_content(path) for language, path in paths.items() if path}, "18 files"
    packed = find(where, "names", "data.zip", "names.zip")
    if packed is None:
        raise InvalidValue(
            missing_file_message(where, "names", "data.zip or Arabic.txt to Vietnamese.txt", source=_NAMES_URL)
        )
    wanted = {f"{language}.txt": language for language in LANGUAGES}
    members = unzip(
        read_content(packed), lambda path: path.rpartition("/")[2] in wanted and not path.startswith("__MACOSX/"),
        limit=_NAMES_LIMIT, name=str(packed),
    )  # fmt: skip
    found = {wanted[path.rpartition("/")[2]]: content for path, content in members.items()}
    if len(found) != len(LANGUAGES) or len(members) != len(LANGUAGES):
        raise InvalidValue(f"{packed}: must hold one file for each of the 18 languages. Fetch it again.")
    return found, packed.name


def parse_names(content: bytes, language: str) -> list[str]:
    """The names in a file, one in each line, without accents.

    >>> parse_names("O'Néàl".encode(), "Irish")
    ["O'Neal"]
    """
    lines = decode_text(content, f"{language}.txt").splitlines()
    found = [unicodedata.normalize("NFD", line.strip()) for line in lines if line.strip()]
    if not found or max(map(len, found)) > 100:
        raise InvalidValue(f"{language}.txt: must have one name in each line, at most 100 characters. Fetch it again.")
    return ["".join(c for c in name if unicodedata.category(c) != "Mn") for name in found]
