"""imdb, ag-news, names: the forms they come in, words as numbers, a public vocabulary, and what damage says."""

import csv
import gzip
import io
import lzma
import tarfile
import zipfile
from collections import Counter
from dataclasses import replace
from hashlib import sha256

import pytest
import torch

from privet.data import DataFolders, task
from privet.errors import InvalidValue
from privet_papers.datasets import text
from privet_papers.datasets.ngrams import Hashed, Listed, number_words, split_words
from privet_papers.datasets.text import LANGUAGES, parse_ag_news, parse_imdb
from public_files import alone, put
from three_steps import check_trains

GOOD, BAD = "A great film, I loved it!", "Dull.<br />It's bad; a bad film"
REVIEWS = [(GOOD, 1), (BAD, 0), ("Loved the end. The end", 1), ("no", 0)]


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "IMDB_COUNT", 4)
    return alone(tmp_path, monkeypatch)


def known(monkeypatch, constant, content):
    """The public file `constant` is this content, for the test."""
    file = getattr(text, constant)
    monkeypatch.setattr(text, constant, replace(file, sha256=sha256(content).hexdigest(), size=len(content), url=""))
    return content


# --- words ------------------------------------------------------------------------------------------


def test_words_are_cut_as_keras_does():
    assert split_words("Dull.<br />It's\tBAD;a_bad\nfilm—no") == ["dull", "br", "it's", "bad", "a", "bad", "film—no"]


def test_the_last_words_are_kept_and_zeros_stand_in_front():
    index = Listed(["a", "b"])
    assert number_words([["a"], [], ["c", "b", "a", "b"]], index, length=3).tolist() == [
        [0, 0, 2],
        [0, 0, 0],
        [3, 2, 3],
    ]
    assert number_words([["c"]], index, length=1).tolist() == [[1]]  # a word that is not listed


def test_hashed_numbers_depend_on_the_word_alone_and_spread():
    words = [f"word{i}" for i in range(20_000)]
    one, other = Hashed(1000), Hashed(1000)
    backwards = {word: other[word] for word in reversed(words)}
    assert [one[word] for word in words] == [backwards[word] for word in words]
    counts = Counter(backwards.values())
    assert (min(counts), max(counts), len(counts)) == (1, 999, 999)  # 0 stays padding
    assert max(counts.values()) < 50  # 20 are expected; beyond 50 lies a chance of 1e-5
    assert Hashed(10_000)["123456789"] == 1 + 0xCBF43926 % 9_999  # the check value of CRC-32: fixed for ever


# --- imdb -------------------------------------------------------------------------------------------


def table(rows=REVIEWS):
    written = io.StringIO(newline="")
    writer = csv.writer(written)
    writer.writerow(["label", "rating", "id", "text"])
    writer.writerows([label, 9 if label else 2, number, review] for number, (review, label) in enumerate(rows))
    return written.getvalue().encode()


def members(rows=REVIEWS):
    for part in ("train", "test"):
        for number, (review, label) in enumerate(rows):
            yield f"{part}/{'pos' if label else 'neg'}/{number}_{9 if label else 2}.txt", review.encode()
        yield f"{part}/unsup/0_0.txt", b"not used"
        yield f"{part}/urls_pos.txt", b"http://"


def archive(rows=REVIEWS, prefix="aclImdb/"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as written:
        for name, content in members(rows):
            entry = tarfile.TarInfo(prefix + name)
            entry.size = len(content)
            written.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def tables(where, monkeypatch):
    content = table()
    file = replace(text.IMDB_TABLES["train"], sha256=sha256(content).hexdigest(), size=len(content))
    monkeypatch.setattr(text, "IMDB_TABLES", {"train": file, "test": replace(file, name="test.csv")})
    for part in ("train", "test"):
        put(where, f"imdb/{part}.csv.xz", lzma.compress(content))


def reviews(found):
    """What a task holds, in no order."""
    return sorted((tuple(row), label) for x, y in (found.train, found.held_out)
                  for row, label in zip(x.tolist(), y.tolist(), strict=True))  # fmt: skip


def test_every_form_holds_the_same_reviews(where, monkeypatch, tables):
    from_tables = task("imdb", where=where)
    other = DataFolders(folder=where.folder / "2", download=False)
    put(other, "imdb/aclImdb_v1.tar.gz", known(monkeypatch, "IMDB", archive()))
    from_archive = task("imdb", where=other)
    for name, content in members():
        put(other, f"imdb/aclImdb/{name}", content)
    from_folder = task("imdb", where=other)
    assert "folder" in from_folder.source
    assert reviews(from_tables) == reviews(from_archive) == reviews(from_folder)
    check_trains(from_archive)


def test_a_review_is_its_last_words(where, tables):
    found = task("imdb:words=50,length=3", where=where)
    assert found.train[0].shape == (4, 3)
    assert (found.facts["words"], found.facts["classes"]) == (50, 2)
    index = Hashed(50)
    wanted = sorted(([0] * (3 - len(words)) + [index[w] for w in words], label)
                    for words, label in ((split_words(review)[-3:], label) for review, label in REVIEWS))  # fmt: skip
    assert sorted(zip(found.train[0].tolist(), found.train[1].tolist(), strict=True)) == wanted
    assert found.network()(found.train[0]).shape == (4, 2)
    check_trains(found)
    assert "hashed into 50 numbers" in found.source


def test_common_words_are_dropped_from_both_parts_by_a_fixed_list(where, tables):
    found = task("imdb:features=set,words=5000,length=8,common=dropped", where=where)
    index = Hashed(5000)
    left = (({"great", "film", "loved"}, 1), ({"dull", "bad", "film"}, 0), ({"loved", "end"}, 1), ({"no"}, 0))
    wanted = sorted((sorted(index[word] for word in words), label) for words, label in left)
    for inputs, labels in (found.train, found.held_out):
        rows = ((sorted(filter(None, row)), label) for row, label in zip(inputs.tolist(), labels.tolist(), strict=True))
        assert sorted(rows) == wanted
    check_trains(found)
    assert "common words dropped" in found.source
    with pytest.raises(InvalidValue, match="common='drop' must be one of dropped, kept"):
        task("imdb:common=drop", where=where)


def test_a_counted_vocabulary_says_that_it_is_not_private(where, tables):
    found = task("imdb:vocabulary=counted,words=5", where=where)
    assert "WITHOUT PRIVACY" in found.source
    assert "vocabulary=counted" in found.non_private_preprocessing  # which `train` refuses: test_training_loop
    hashed = task("imdb", where=where)
    assert ("WITHOUT PRIVACY" in hashed.source, hashed.non_private_preprocessing) == (False, "")
    counts = Counter(word for review, _ in REVIEWS for word in split_words(review))
    top = sorted(counts, key=lambda word: (-counts[word], word))[:3]  # 0 is padding, 1 any other word
    index = {word: number for number, word in enumerate(top, 2)}
    longest = max((split_words(review) for review, _ in REVIEWS), key=len)
    row = [index.get(word, 1) for word in longest]
    assert row in [[n for n in kept if n] for kept in found.train[0].tolist()]


def test_a_public_list_of_words(where, tables, tmp_path):
    (tmp_path / "public.txt").write_text("film\nbad\nend\nloved\n")
    found = task(f'imdb:vocabulary="{tmp_path}/public.txt",words=5', where=where)
    assert "the first 3 words of public.txt, SHA-256" in found.source
    assert found.non_private_preprocessing == ""
    assert int(found.train[0].max()) == 4
    with pytest.raises(InvalidValue, match="length=1000000000000 must be at most"):
        task("imdb:length=1000000000000", where=where)
    with pytest.raises(InvalidValue, match="neither hashed nor counted nor a file"):
        task("imdb:vocabulary=~nobody-of-this-name/a.txt", where=where)
    with pytest.raises(InvalidValue, match="neither hashed nor counted nor a file"):
        task("imdb:vocabulary=guessed", where=where)


def test_a_part_of_the_training_reviews_is_mixed(where, tables):
    whole, part = task("imdb", where=where), task("imdb:size=2", where=where)
    assert torch.equal(part.train[0], whole.train[0][:2])
    assert torch.equal(part.held_out[0], whole.held_out[0])
    with pytest.raises(InvalidValue, match="size=5 is more than the 4"):
        task("imdb:size=5", where=where)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (archive(REVIEWS[:3]), "found 3 train reviews, 2 of them positive, not 4 and 2"),
        (archive([(GOOD, 1)] * 4), "4 of them positive"),
        (archive(prefix="../"), "outside its folder"),
        (archive()[:-30], "is not a whole tar.gz"),
        (archive([(GOOD, 1), (BAD, 0), ("ok", 1)]), "found 3 train"),
    ],
)
def test_a_damaged_archive_of_reviews_is_refused(where, monkeypatch, content, match):
    put(where, "imdb/aclImdb_v1.tar.gz", known(monkeypatch, "IMDB", content))
    with pytest.raises(InvalidValue, match=match) as caught:
        task("imdb", where=where)
    assert "\n" not in str(caught.value)


def test_reviews_that_are_not_utf8_are_refused(where):
    put(where, "imdb/aclImdb/train/pos/0_9.txt", b"caf\xe9")
    with pytest.raises(InvalidValue, match=r"train/pos/0_9.txt: is not UTF-8 at byte 3"):
        task("imdb", where=where)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("text,label\n", "must begin with label,rating,id,text"),
        ("", "must begin with"),
        ("label,rating,id,text\n2,1,0,no\n", "record 2: must be label"),
        ("label,rating,id,text\n1,1,0\n", "record 2: must be label"),
        ('label,rating,id,text\n1,1,0,"cut', "is not a whole csv file"),
        ('label,rating,id,text\n1,1,0,"a"b"\n', "is not a whole csv file"),
    ],
)
def test_a_damaged_table_of_reviews_is_refused(content, match):
    with pytest.raises(InvalidValue, match=match):
        parse_imdb(content, "train.csv")


def test_what_is_missing_is_said_in_one_line(where):
    with pytest.raises(InvalidValue, match=r"needs aclImdb_v1\.tar\.gz.*ai\.stanford\.edu"):
        task("imdb", where=where)
    with pytest.raises(InvalidValue, match=r"needs train\.csv.*ag_news_csv"):
        task("ag-news", where=where)
    with pytest.raises(InvalidValue, match=r"needs data\.zip or Arabic\.txt to Vietnamese\.txt.*download\.pytorch"):
        task("names", where=where)


# --- ag-news ----------------------------------------------------------------------------------------

NEWS = b'"3","Wall St. falls","Oil\\and dollars"\n"1","Talks","Again"\n'
SAMPLE = b'"3","Wall St. falls . Oil\\and dollars"\n"1","Talks . Again"\n"4","Robots"\n'


@pytest.fixture
def news(where, monkeypatch):
    put(where, "ag_news/test.csv.gz", gzip.compress(known(monkeypatch, "AG_TEST", NEWS)))
    put(where, "ag_news/train_sample_10000.csv.gz", gzip.compress(known(monkeypatch, "AG_SAMPLE", SAMPLE)))
    known(monkeypatch, "AG_TRAIN", NEWS)


def test_title_and_description_are_read_as_one(where, news):
    sample = task("ag-news", where=where)
    assert "SAMPLE" in sample.source
    assert (sample.size, sorted(sample.train[1].tolist())) == (3, [0, 2, 3])
    assert sample.network()(sample.train[0]).shape == (3, 4)
    check_trains(sample)
    put(where, "ag_news/train.csv", NEWS)
    whole = task("ag-news", where=where)
    assert "SAMPLE" not in whole.source
    assert whole.size == 2
    assert set(reviews(whole)) <= set(reviews(sample))  # the joined form holds the same words


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('"5","a","b"\n', "record 1: must be a class from 1 to 4"),
        ('"1"\n', "record 1: must be"),
        ('"1","a","b","c"\n', "record 1: must be"),
        ('"1","a\n', "is not a whole csv file"),
        ("", "has no record"),
    ],
)
def test_damaged_news_are_refused(content, match):
    with pytest.raises(InvalidValue, match=match):
        parse_ag_news(content, "train.csv")


def test_another_file_of_the_same_name_is_refused(where, news):
    put(where, "ag_news/train.csv", b'"1","not","it"\n')
    with pytest.raises(InvalidValue, match=r"is not the public file ag-news/train\.csv"):
        task("ag-news", where=where)


# --- names ------------------------------------------------------------------------------------------


def names_of(language):
    return f"{language}a\nÓ{language}\nO'{language} ß\n"


def test_names_are_characters_without_accents(where):
    for language in LANGUAGES:
        put(where, f"names/{language}.txt", names_of(language).encode())
    found = task("names", where=where)
    assert (found.size, len(found.held_out[1])) == (44, 10)  # of 54, a fifth judges
    rows = dict(reviews(found))
    letters = {letter: number for number, letter in enumerate(text.ALPHABET, 2)}
    written = [letters[c] for c in "OArabic"]
    assert rows[(0,) * 13 + tuple(written)] == 0  # in front: zeros
    assert rows[(0,) * 10 + tuple([letters[c] for c in "O'Arabic "] + [1])] == 0  # ß is not in the alphabet
    assert found.network()(found.train[0]).shape == (44, 18)
    check_trains(found)
    assert (found.facts["words"], len(text.ALPHABET)) == (60, 58)


def test_the_zip_of_the_tutorial_holds_the_same(where):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("data/eng-fra.txt", "not used")
        for language in LANGUAGES:
            archive.writestr(f"data/names/{language}.txt", names_of(language))
            archive.writestr(f"__MACOSX/data/names/{language}.txt", "not used")
    put(where, "names/data.zip", packed.getvalue())
    from_zip = task("names", where=where)
    other = DataFolders(folder=where.folder / "2", download=False)
    for language in LANGUAGES:
        put(other, f"names/{language}.txt", names_of(language).encode())
    assert torch.equal(from_zip.train[0], task("names", where=other).train[0])
    put(where, "names/data.zip", packed.getvalue()[:-50])
    with pytest.raises(InvalidValue, match="is not a whole zip file"):
        task("names", where=where)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, r"needs Greek\.txt"),
        (b"", "Greek.txt: must have one name in each line"),
        (b"a" * 101, "Greek.txt: must have one name in each line"),
        (b"\xff\xfe", "Greek.txt: is not UTF-8"),
    ],
)
def test_damaged_names_are_refused(where, content, match):
    for language in LANGUAGES:
        put(where, f"names/{language}.txt", names_of(language).encode())
    if content is None:
        (where.folder / "names/Greek.txt").unlink()
    else:
        put(where, "names/Greek.txt", content)
    with pytest.raises(InvalidValue, match=match):
        task("names", where=where)
