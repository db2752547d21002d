"""Public files: fetched whole or not at all, and unpacked in memory."""

import gzip
import io
import os
import random
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from privet.data.files import DataFolders, File, read
from privet.errors import InvalidValue
from privet_papers.datasets import download as fetching
from privet_papers.datasets.archives import untar, unzip
from privet_papers.datasets.download import fetch

CONTENT = bytes(range(256)) * 4000  # about a megabyte: many pieces
FILE = File(
    dataset="some-set", name="some.bin", sha256=sha256(CONTENT).hexdigest(), size=len(CONTENT),
    url="http://nowhere.invalid"
)  # fmt: skip


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No PRIVET_DATA, a cache of its own, no proxy."""
    monkeypatch.delenv("PRIVET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, in the place of waiting."""
    found: list[float] = []
    monkeypatch.setattr(fetching, "time", SimpleNamespace(sleep=found.append))
    return found


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def words(value: object) -> str:
    """Bytes have no part in a test's name: some hold the time."""
    return value if isinstance(value, str) else "content"


def refused(call: object, match: str) -> str:
    with pytest.raises(InvalidValue, match=match) as caught:
        call()  # type: ignore[operator]
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700
    return str(caught.value)


# --- looking ----------------------------------------------------------------------------------------


# --- fetching ---------------------------------------------------------------------------------------


@dataclass
class Server:
    """What the local server does, and what it was asked."""

    content: bytes = CONTENT
    cut: list[int] = field(default_factory=list)  # how many bytes each of the first answers gives before it breaks off
    status: int = 0
    to: str = ""  # where another address is named
    sent: int = 0  # bytes
    asked: list[str | None] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    doing = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            doing.asked.append(self.headers.get("Range"))
            if doing.status:
                return self.send_error(doing.status, "Shown\x1b[31m")
            if doing.to:
                self.send_response(302)
                self.send_header("Location", doing.to)
                return self.end_headers()
            self.send_response(200)
            self.send_header("Content-Length", str(len(doing.content)))
            self.end_headers()
            body = doing.content[: doing.cut.pop(0)] if doing.cut else doing.content
            for start in range(0, len(body), 2**16):
                doing.sent += self.wfile.write(body[start : start + 2**16])
            return None

        def log_message(self, *words: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *words: object) -> None:
            """A client that hangs up is no error here."""

    http = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    doing.url = f"http://127.0.0.1:{http.server_port}/some.bin"
    yield doing
    http.shutdown()
    thread.join()
    http.server_close()


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_missing_file_is_fetched_once_and_kept(tmp_path, server, capfd, naps):
    file, where = replace(FILE, url=server.url), DataFolders(folder=tmp_path)
    assert read(where, file) == CONTENT
    assert read(where, file) == CONTENT
    assert server.asked == [None]
    assert naps == []  # all came at once
    assert left(tmp_path) == ["some.bin"]
    assert (tmp_path / "some-set/some.bin").read_bytes() == CONTENT
    shown = capfd.readouterr()
    assert shown.out == ""  # standard output is the command's own
    assert "some-set/some.bin" in shown.err


def test_nothing_is_fetched_when_that_is_not_wanted(tmp_path, server):
    refused(lambda: read(DataFolders(folder=tmp_path, download=False), replace(FILE, url=server.url)), "needs some.bin")
    assert server.asked == []


def test_a_broken_transfer_is_begun_again(tmp_path, server, naps):
    server.cut = [100_000, 50_000]
    assert fetch(replace(FILE, url=server.url), tmp_path).read_bytes() == CONTENT
    assert server.asked == [None] * 3
    assert naps == [fetching.PAUSE, 2 * fetching.PAUSE]
    assert left(tmp_path) == ["some.bin"]


def test_a_transfer_that_always_breaks_leaves_nothing(tmp_path, server):
    server.cut = [1000] * fetching.ATTEMPTS
    line = refused(lambda: fetch(replace(FILE, url=server.url), tmp_path), "broke off: .*after 4 attempts")
    assert str(tmp_path / "some-set") in line
    assert left(tmp_path) == []


def test_too_few_bytes_are_no_file(tmp_path, server):
    server.content = CONTENT[:500]
    refused(
        lambda: fetch(replace(FILE, url=server.url), tmp_path), "ended after 500 of 1,024,000 bytes, after 4 attempts"
    )
    assert left(tmp_path) == []


def test_a_server_that_sends_more_is_not_listened_to(tmp_path, server):
    server.content = CONTENT * 50
    refused(lambda: fetch(replace(FILE, url=server.url), tmp_path), "SHA-256 differs")
    assert server.sent < len(CONTENT) * 25  # the rest was not taken


@pytest.mark.parametrize("content", [CONTENT[::-1], CONTENT + b"more", CONTENT * 3])
def test_a_wrong_file_is_refused_and_removed(tmp_path, server, content):
    server.content = content
    refused(lambda: fetch(replace(FILE, url=server.url), tmp_path), "SHA-256 differs")
    assert left(tmp_path) == []


@pytest.mark.parametrize(("status", "attempts"), [(404, 1), (403, 1), (503, 4)])
def test_an_answer_that_is_no_file_is_said(tmp_path, server, status, attempts):
    server.status = status
    line = refused(lambda: fetch(replace(FILE, url=server.url), tmp_path), f"answered {status}")
    assert "--data-dir" in line
    assert len(server.asked) == attempts
    assert left(tmp_path) == []


def test_a_redirection_to_no_address_is_said(tmp_path, server):
    server.to = f"http://{'a' * 70}.invalid/"
    refused(lambda: fetch(replace(FILE, url=server.url), tmp_path), "after 4 attempts")
    assert left(tmp_path) == []


def test_no_network_is_one_line_that_says_what_to_put_where(tmp_path):
    line = refused(lambda: read(DataFolders(folder=tmp_path), FILE), "cannot be reached")
    assert str(tmp_path / "some-set") in line
    assert FILE.url in line


def test_a_folder_that_cannot_be_written_is_said(server):
    nobody_may = Path("/proc")  # not even root
    refused(lambda: fetch(replace(FILE, url=server.url), nobody_may), "cannot be written")


def test_a_file_where_the_folder_should_be_is_said(tmp_path, server):
    put(tmp_path / "some-set", b"")
    refused(lambda: fetch(replace(FILE, url=server.url), tmp_path), "cannot be written")


# --- unpacking --------------------------------------------------------------------------------------


def tar(*members: tuple[str, bytes, bytes]) -> bytes:
    """A tar.gz of (name, content, type)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content, kind in members:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            entry.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def test_the_plain_files_of_an_archive_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packed = tar(("set", b"", tarfile.DIRTYPE), ("set/a", b"1", tarfile.REGTYPE), ("set/b", b"", tarfile.REGTYPE))
    assert list(untar(packed, limit=2**20, name="t")) == [("set/a", b"1"), ("set/b", b"")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("/etc/cron.d/x", tarfile.REGTYPE),
        ("../x", tarfile.REGTYPE),
        ("set/../../x", tarfile.REGTYPE),
        ("set\\..\\x", tarfile.REGTYPE),
        ("C:x", tarfile.REGTYPE),
        ("set/link", tarfile.SYMTYPE),
        ("set/hard", tarfile.LNKTYPE),
        ("set/pipe", tarfile.FIFOTYPE),
        ("set/disk", tarfile.BLKTYPE),
    ],
)
def test_a_hostile_member_is_refused(tmp_path, monkeypatch, name, kind):
    monkeypatch.chdir(tmp_path)
    packed = tar(("set/a", b"1", tarfile.REGTYPE), (name, b"x", kind))
    refused(lambda: list(untar(packed, limit=2**20, name="t.tgz")), "Do not use it")
    assert list(tmp_path.iterdir()) == []


WHOLE = tar(("a", os.urandom(50_000), tarfile.REGTYPE))


def header(kind: bytes, content: bytes) -> bytes:
    """A member of any kind, not packed."""
    entry = tarfile.TarInfo("a")
    entry.type, entry.size = kind, len(content)
    return entry.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


def noted(*notes: str) -> bytes:
    """A tar.gz of one empty file with these notes, such as `GNU.sparse.size=1`, of 8 to 90 characters each."""
    lines = "".join(f"{len(note) + 4} {note}\n" for note in notes).encode()
    return gzip.compress(header(b"x", lines) + header(b"0", b"") + bytes(1024))


def with_hole(size: int) -> bytes:
    """A tar.gz of one file that is nothing but a hole, as GNU tar writes it."""
    block = bytearray(header(tarfile.GNUTYPE_SPARSE, b""))
    number = b"%011o\0" % size
    block[386:410], block[483:495] = number + b"%011o\0" % 0, number
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return gzip.compress(bytes(block) + bytes(1024))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "not a whole tar.gz"),
        (b"plain", "not a whole tar.gz"),
        (gzip.compress(b"no archive" * 100), "not a whole tar.gz"),
        (WHOLE[:-4], "not a whole tar.gz"),
        (WHOLE[: len(WHOLE) // 2], "not a whole tar.gz"),
        (WHOLE[:-8] + bytes(8), "not a whole tar.gz"),
        (tar(("zeros", bytes(2**24), tarfile.REGTYPE)), "more than 1,000,000 bytes"),
        (gzip.compress(gzip.decompress(WHOLE) + bytes(2**24)), "more than 1,000,000 bytes"),
        (with_hole(80_000_000), "has a file with holes"),
        (noted("GNU.sparse.size=80000000", "GNU.sparse.numblocks=0"), "is no plain file"),
        (noted("GNU.sparse.major=1", "GNU.sparse.minor=0"), "has a file with holes"),
        (noted("GNU.sparse.size=x"), "not a whole tar.gz"),
        (noted("GNU.sparse.map=1,x"), "not a whole tar.gz"),
        (noted("size=-512"), "more than 1,000,000 bytes"),
        (noted("size=" + "9" * 30), "more than 1,000,000 bytes"),
        (noted(*(f"number{k}=v" for k in range(101))), "is no plain file"),  # each member has a copy of all notes
        (gzip.compress(header(b"g", bytes(2**17))), "has a header of 131,072 bytes"),
        (gzip.compress(header(b"x", b"8 n=abc\n") * 3000 + bytes(1024)), "not a whole tar.gz"),  # a chain too deep
    ],
    ids=words,
)
def test_a_damaged_or_swollen_archive_is_refused(content, match):
    refused(lambda: list(untar(content, limit=1_000_000, name="t.tgz")), match)


def test_a_damaged_zip_is_refused_in_any_case():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in "abc":
            archive.writestr(name, name * 50)
    draw, refusals = random.Random(0), 0
    for _ in range(400):
        content = bytearray(packed.getvalue())
        for _ in range(2):
            content[draw.randrange(len(content))] = draw.randrange(256)
        try:
            unzip(bytes(content), lambda path: True, limit=1000, name="a.zip")
        except InvalidValue as error:
            assert str(error).isprintable()  # noqa: PT017
            refusals += 1
    assert refusals > 100
    refused(lambda: unzip(packed.getvalue(), lambda path: True, limit=149, name="a.zip"), "more than 149 bytes")
    assert len(unzip(packed.getvalue(), lambda path: True, limit=150, name="a.zip")) == 3
