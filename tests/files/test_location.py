"""Answers that are longer than the file: no kind of location keeps more than was expected."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import google_crc32c
import pytest
import requests

from rlx.errors import CorruptShardError, DiskFullError, DownloadError, RlxError
from rlx.files.bucket import Bucket
from rlx.files.checksum import FileStat
from rlx.files.http import HttpFiles
from rlx.files.location import Content, Location
from rlx.files.partial import Partial
from rlx.files.retry import RetryPolicy
from rlx.progress import Silent
from tests.gcs_server import Fault, GcsServer

PIECE = b"x" * 1000
ONCE = RetryPolicy(attempts=1)


class Endless(Location):
    """A server that gives a checksum and no length, and never ends."""

    retry = ONCE

    def __init__(self, length: int | None = None, start: int = 0) -> None:
        self.sent, self._start = 0, start
        self._file = FileStat("a", "endless/a", bytes=length, crc32c="00000000")

    @property
    def url(self) -> str:
        return "endless"

    def _stat(self, name: str) -> FileStat:  # noqa: ARG002
        return self._file

    @contextmanager
    def _open(
        self,
        name: str,  # noqa: ARG002
        start: int = 0,  # noqa: ARG002
        stop: int | None = None,  # noqa: ARG002
        *,
        seen: FileStat | None = None,  # noqa: ARG002
    ) -> Iterator[Content]:
        yield Content(self._file, self._start, self._pieces_without_end())

    def _pieces_without_end(self) -> Iterator[bytes]:
        for _ in range(1000):
            self.sent += len(PIECE)
            yield PIECE
        raise AssertionError("it reads without end")


@pytest.mark.parametrize("length", [None, 2500])
def test_a_file_of_a_known_length(tmp_path: Path, length: int | None) -> None:
    location = Endless(length)
    expected = FileStat("a", "endless/a", bytes=2500, crc32c="00000000")
    with pytest.raises(CorruptShardError, match="endless/a has more than the expected 2,500 bytes"):
        location.fetch("a", tmp_path, Silent(), expected=expected)
    assert location.sent == 3000
    assert sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix != ".json") <= 2500


def test_a_file_of_an_unknown_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5000))
    location = Endless()
    with pytest.raises(DiskFullError, match="endless/a: the server states no length, and it has more than 2,500 bytes"):
        location.fetch("a", tmp_path, Silent())
    assert location.sent == 3000
    assert not list(tmp_path.iterdir())


def test_a_stream_and_a_range() -> None:
    with pytest.raises(CorruptShardError, match="more than the expected 1,500 bytes"):
        list(Endless(1500).stream("a"))
    with pytest.raises(DownloadError, match="requested bytes 0 to 1500, received 0 to 2000"):
        Endless().read("a", 0, 1500)
    location = Endless()
    with pytest.raises(DownloadError, match="requested bytes 50 to 60, received 0 and later ones"):
        location.read("a", 50, 60)
    assert location.sent == 0


@pytest.fixture
def plain_server(tmp_path: Path) -> Iterator[str]:
    """Python's own server, which knows no ranges."""
    (tmp_path / "served").mkdir()
    handler = partial(_Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


REDIRECTS = ["http://[bad", "ftp://x/y", "http://\xff\xfe/", "http://127.0.0.1:99999/", "//", "file:///etc/passwd"]


@pytest.mark.parametrize("target", REDIRECTS)
def test_every_answer_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    answers = []
    build = requests.adapters.HTTPAdapter.build_response

    def remembered(adapter: object, request: object, answer: object) -> requests.Response:
        answers.append(answer)
        return build(adapter, request, answer)  # type: ignore[arg-type]

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "build_response", remembered)
    (tmp_path / "a").write_bytes(PIECE)
    with GcsServer(tmp_path) as server:
        server.fault("a", Fault(status=302, headers={"Location": target}), times=None)
        with pytest.raises(RlxError):
            HttpFiles(server.url, retry=ONCE).get("a", max_bytes=2000)
    assert answers
    assert all(answer.closed for answer in answers)  # type: ignore[attr-defined]
    answers.clear()
    gc.collect()


def test_a_server_without_ranges(tmp_path: Path, plain_server: str) -> None:
    (tmp_path / "served/a").write_bytes(PIECE)
    location = Bucket(plain_server, retry=ONCE)
    with pytest.raises(DownloadError, match="sends whole files only") as raised:
        location.read("a", 10, 20)
    assert raised.value.hint == f"copy the dataset first: rlx pull {plain_server}"
    with pytest.raises(DownloadError, match="requested bytes from 10, received 0"):
        list(location.stream("a", 10))
    expected = FileStat("a", "plain/a", bytes=len(PIECE), crc32c=f"{google_crc32c.value(PIECE):08x}")
    with Partial(tmp_path / "here/a") as begun:  # of an interrupted transfer
        begun.restart(expected)
        begun.append(PIECE[:100])
    assert location.fetch("a", tmp_path / "here", Silent(), expected=expected).bytes == len(PIECE)
    assert (tmp_path / "here/a").read_bytes() == PIECE
