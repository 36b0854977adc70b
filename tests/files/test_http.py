"""Fetching over HTTP from a server that does everything wrong that servers and lines do wrong."""

import datetime
import errno
import gzip
import hashlib
import logging
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import google_crc32c
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlx.errors import (
    CorruptShardError,
    DiskFullError,
    DownloadError,
    FileAccessError,
    ForbiddenError,
    RlxError,
    SourceError,
    SourceNotFoundError,
)
from rlx.files import http as http_files
from rlx.files.http import HttpFiles
from rlx.files.location import Location
from rlx.files.retry import Cancel, RetryPolicy
from rlx.progress import Silent
from tests.contracts.location import ReadableLocationContract, write_files
from tests.contracts.progress import Tally
from tests.gcs_server import Fault, GcsServer

NAME = "Pong/run_1-00000-of-00050"
CONTENT = random.Random(0).randbytes(300_000)
OTHER = random.Random(1).randbytes(200_000)
QUICK = RetryPolicy(attempts=3, first_delay_s=0.001, max_delay_s=0.002, max_retry_after_s=0.01)
WRONG_HASH = {"x-goog-hash": "crc32c=AAAAAA=="}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GcsServer]:
    (tmp_path / "files" / NAME).parent.mkdir(parents=True)
    (tmp_path / "files" / NAME).write_bytes(CONTENT)
    with GcsServer(tmp_path / "files") as server:
        yield server


@pytest.fixture
def base(server: GcsServer) -> HttpFiles:
    return HttpFiles(server.url, retry=QUICK)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


class TestHttpFiles(ReadableLocationContract):
    @pytest.fixture
    def location(self, tmp_path: Path) -> Iterator[Location]:
        write_files(tmp_path / "served")
        with GcsServer(tmp_path / "served") as server:
            yield HttpFiles(server.url, retry=QUICK)


def ranges(server: GcsServer) -> list[str | None]:
    return [request.range for request in server.requests]


def is_clean(here: Path) -> bool:
    """Nothing but the file itself was left behind."""
    return [path for path in here.rglob("*") if path.is_file()] == [here / NAME]


def partial(here: Path) -> Path:
    return here / f"{NAME}.partial"


def break_off(base: HttpFiles, server: GcsServer, here: Path, after: int = 1000) -> None:
    """Leaves a partial of that many bytes, as an interrupted process would."""
    server.fault("*", Fault(cut_after=after))
    server.fault("*", Fault(cut_after=0), times=QUICK.attempts - 1)
    with pytest.raises(DownloadError, match="connection broke"):
        base.fetch(NAME, here, Silent())
    assert partial(here).stat().st_size == after


# What a server says of a file


def test_stat(base: HttpFiles, server: GcsServer) -> None:
    stat = base.stat(NAME)
    assert stat.url == f"{server.url}/{NAME}"
    assert stat.bytes == len(CONTENT)
    assert (stat.crc32c, stat.md5) == (
        f"{google_crc32c.value(CONTENT):08x}",
        hashlib.md5(CONTENT).hexdigest(),
    )
    assert stat.version is not None
    assert [request.method for request in server.requests] == ["HEAD"]


def test_hashes_in_one_line(server: GcsServer, base: HttpFiles) -> None:
    two_lines = base.stat(NAME)
    server.joined_hashes = True
    assert base.stat(NAME) == two_lines


def test_composite_objects_have_no_md5(server: GcsServer, base: HttpFiles, here: Path) -> None:
    server.composite = True
    server.fault("*", Fault(cut_after=7))
    assert base.stat(NAME).md5 is None
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server)[1:] == [None, "bytes=7-"]


def test_names_are_quoted(base: HttpFiles, server: GcsServer, here: Path) -> None:
    (server.directory / "$store$_x y?.gz").write_bytes(b"x")
    assert base.fetch("$store$_x y?.gz", here, Silent()).path.name == "$store$_x y?.gz"
    assert server.requests[0].path == "/rl_unplugged/%24store%24_x%20y%3F.gz"


def test_passwords_and_tokens_are_sent_and_not_told(server: GcsServer, here: Path) -> None:
    base = HttpFiles(server.url.replace("://", "://user:secret@") + "/?token=secret", retry=QUICK)
    assert base.stat(NAME).url == f"{server.url}/{NAME}"
    assert server.requests[0].path == f"/rl_unplugged/{NAME}?token=secret"
    assert server.requests[0].headers["authorization"].startswith("Basic ")
    server.fault("*", Fault(status=503), times=None)
    with pytest.raises(DownloadError) as caught:
        base.fetch(NAME, here, Silent())
    assert "secret" not in str(caught.value)


# Resuming


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_broken_transfer_goes_on(base: HttpFiles, server: GcsServer, here: Path, reset: bool) -> None:
    server.fault("*", Fault(cut_after=100_000, reset=reset))
    tally = Tally()
    assert base.fetch(NAME, here, tally).path.read_bytes() == CONTENT
    assert tally.done["bytes"] == len(CONTENT)
    assert is_clean(here)
    assert len(server.requests) == 2
    if not reset:  # a reset may swallow what was under way
        assert ranges(server) == [None, "bytes=100000-"]
        assert [request.status for request in server.requests] == [200, 206]
        assert server.requests[1].headers["if-match"] == base.stat(NAME).etag


def test_progress_begins_the_count_of_failures_anew(base: HttpFiles, server: GcsServer, here: Path) -> None:
    for _ in range(10):
        server.fault("*", Fault(cut_after=1000))
        server.fault("*", Fault(status=503), times=QUICK.attempts - 2)
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server)[-1] == "bytes=10000-"


def test_the_next_call_goes_on(base: HttpFiles, server: GcsServer, here: Path) -> None:
    break_off(base, server, here, after=12_345)
    tally = Tally()
    assert base.fetch(NAME, here, tally).path.read_bytes() == CONTENT
    assert ranges(server)[-1] == "bytes=12345-"
    assert tally.done["bytes"] == len(CONTENT)
    assert is_clean(here)


def test_all_bytes_but_the_name(base: HttpFiles, server: GcsServer, here: Path) -> None:
    """The process was killed between the last byte and the rename."""
    break_off(base, server, here)
    partial(here).write_bytes(CONTENT)
    asked = len(server.requests)
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert len(server.requests) == asked
    assert is_clean(here)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1] + b"\0", id="last byte"),
        pytest.param(lambda _: CONTENT[:-1] + b"\0", id="all bytes, the last one wrong"),
        pytest.param(lambda _: CONTENT + b"\0", id="a byte too many"),
        pytest.param(lambda _: b"", id="empty"),
    ],
)
def test_a_damaged_partial_is_noticed(base: HttpFiles, server: GcsServer, here: Path, damage: object) -> None:
    break_off(base, server, here)
    assert callable(damage)
    partial(here).write_bytes(damage(partial(here).read_bytes()))
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server)[-1] is None
    assert is_clean(here)


@pytest.mark.parametrize("sidecar", ["", "{", "[]", "{}", '{"name": 1}', '{"name": "a", "url": "b", "bytes": 3}'])
def test_a_partial_without_its_version_is_not_used(
    base: HttpFiles, server: GcsServer, here: Path, sidecar: str
) -> None:
    break_off(base, server, here)
    (here / f"{NAME}.partial.json").write_text(sidecar)
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server)[-1] is None


def test_a_killed_process_is_resumed(base: HttpFiles, server: GcsServer, here: Path) -> None:
    server.fault("*", Fault(trickle=(1000, 0.01)))
    program = f"""
from pathlib import Path
from rlx.progress import Silent
from rlx.files.opening import open_source
open_source({server.url!r}).fetch({NAME!r}, Path({str(here)!r}), Silent())
"""
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        while not partial(here).exists() or partial(here).stat().st_size < 20_000:
            assert child.poll() is None
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    arrived = partial(here).stat().st_size
    assert 20_000 <= arrived < len(CONTENT)
    assert not (here / NAME).exists()
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server) == [None, f"bytes={arrived}-"]
    assert is_clean(here)


# What is there already


def test_a_whole_file_is_not_fetched_again(base: HttpFiles, server: GcsServer, here: Path) -> None:
    base.fetch(NAME, here, Silent())
    base.fetch(NAME, here, Silent())
    assert [request.method for request in server.requests] == ["GET", "HEAD"]


@pytest.mark.parametrize("damaged", [CONTENT[:-1], CONTENT[:-1] + b"\0", b""], ids=["short", "flipped", "empty"])
def test_a_damaged_file_is_fetched_again(base: HttpFiles, server: GcsServer, here: Path, damaged: bytes) -> None:
    base.fetch(NAME, here, Silent()).path.write_bytes(damaged)
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert [request.method for request in server.requests] == ["GET", "HEAD", "GET"]


def test_without_checksums_the_length_must_do(base: HttpFiles, server: GcsServer, here: Path) -> None:
    server.fault("*", Fault(headers={"x-goog-hash": None}), times=None, method="*")
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    base.fetch(NAME, here, Silent())
    (here / NAME).write_bytes(CONTENT[:-1])
    base.fetch(NAME, here, Silent())
    assert [request.method for request in server.requests] == ["GET", "HEAD", "HEAD", "GET"]


# An object that changes


def test_the_object_changes_between_attempts(base: HttpFiles, server: GcsServer, here: Path) -> None:
    server.fault("*", Fault(cut_after=1000, replace_with=OTHER))
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == OTHER
    assert ranges(server) == [None, "bytes=1000-", None]
    assert [request.status for request in server.requests] == [200, 412, 200]


def test_the_object_changes_and_nothing_but_its_checksum_tells(base: HttpFiles, server: GcsServer, here: Path) -> None:
    hidden = {"ETag": None, "x-goog-generation": None, "x-goog-stored-content-length": None}
    same_length = bytes(len(CONTENT))
    server.fault("*", Fault(cut_after=1000, headers=hidden, replace_with=same_length))
    server.fault("*", Fault(headers=hidden), times=None)
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == same_length
    assert ranges(server) == [None, "bytes=1000-", None]
    assert "if-match" not in server.requests[1].headers


def test_weak_etags_are_no_condition(base: HttpFiles, server: GcsServer, here: Path) -> None:
    weak = {"ETag": 'W/"x"'}
    server.fault("*", Fault(cut_after=1000, headers=weak))
    server.fault("*", Fault(headers=weak))
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=1000-"]
    assert "if-match" not in server.requests[1].headers


def test_nothing_tells_versions_apart(base: HttpFiles, server: GcsServer, here: Path) -> None:
    """Then the next process begins anew: it might mix two versions."""
    hidden: dict[str, str | None] = {"ETag": None, "x-goog-hash": None}
    server.fault("*", Fault(cut_after=1000, headers=hidden))
    server.fault("*", Fault(status=503), times=QUICK.attempts - 1)
    with pytest.raises(DownloadError):
        base.fetch(NAME, here, Silent())
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server)[-1] is None


# A server that does ranges wrong, or not at all


def test_ranges_are_ignored(base: HttpFiles, server: GcsServer, here: Path) -> None:
    server.fault("*", Fault(cut_after=200_000))
    server.fault("*", Fault(ignore_range=True, cut_after=100_000))
    server.fault("*", Fault(ignore_range=True))
    tally = Tally()
    assert base.fetch(NAME, here, tally).path.read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=200000-", "bytes=100000-"]
    assert tally.done["bytes"] == len(CONTENT)


def test_no_progress_over_a_server_without_ranges_ends(base: HttpFiles, server: GcsServer, here: Path) -> None:
    server.fault("*", Fault(ignore_range=True, cut_after=1000), times=None)
    with pytest.raises(DownloadError, match="tried 3 times"):
        base.fetch(NAME, here, Silent())
    assert len(server.requests) == 1 + QUICK.attempts - 1


@pytest.mark.parametrize(
    "wrong",
    ["bytes 0-299999/300000", "bytes 1001-299999/300000", "bytes 1000-299999/300001", "nonsense", None],
)
def test_wrong_content_range(base: HttpFiles, server: GcsServer, here: Path, wrong: str | None) -> None:
    server.fault("*", Fault(cut_after=1000))
    lies = {"Content-Range": wrong, "x-goog-stored-content-length": None}
    server.fault("*", Fault(headers=lies))
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=1000-", None]


@pytest.mark.parametrize("status", [412, 416])
def test_a_refused_range_restarts(base: HttpFiles, server: GcsServer, here: Path, status: int) -> None:
    server.fault("*", Fault(cut_after=1000))
    server.fault("*", Fault(status=status))
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=1000-", None]


def test_a_range_that_nobody_asked_for(base: HttpFiles, server: GcsServer, here: Path) -> None:
    server.fault("*", Fault(status=206))
    with pytest.raises(DownloadError, match="expected HTTP 200, found 206"):
        base.fetch(NAME, here, Silent())


# Statuses


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_failures_are_tried_again(base: HttpFiles, server: GcsServer, here: Path, status: int) -> None:
    server.fault("*", Fault(status=status), times=2, method="*")
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    server.fault("*", Fault(status=status), times=2, method="*")
    assert base.stat(NAME).bytes == len(CONTENT)
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, ForbiddenError),
        (403, ForbiddenError),
        (404, SourceNotFoundError),
        (410, SourceNotFoundError),
        (400, DownloadError),
        (412, DownloadError),
        (418, DownloadError),
    ],
)
def test_lasting_failures_are_not(
    base: HttpFiles, server: GcsServer, here: Path, status: int, error: type[RlxError]
) -> None:
    server.fault("*", Fault(status=status), times=None, method="*")
    with pytest.raises(error, match=str(status)):
        base.fetch(NAME, here, Silent())
    with pytest.raises(error, match=str(status)):
        base.stat(NAME)
    assert len(server.requests) == 2
    assert not here.exists()


def test_a_server_that_keeps_failing(base: HttpFiles, server: GcsServer, here: Path) -> None:
    server.fault("*", Fault(status=503), times=None)
    with pytest.raises(DownloadError, match=r"found 503 Service Unavailable \(tried 3 times\)") as caught:
        base.fetch(NAME, here, Silent())
    assert caught.value.hint == "run the same command again to resume"
    assert len(server.requests) == QUICK.attempts


def test_nobody_listens(here: Path) -> None:
    with pytest.raises(DownloadError, match="Connection refused"):
        HttpFiles("http://127.0.0.1:1/bucket", retry=QUICK).fetch(NAME, here, Silent())


def test_redirects_without_end(base: HttpFiles, server: GcsServer, here: Path) -> None:
    server.fault("*", Fault(status=302, headers={"Location": f"{server.url}/{NAME}"}), times=None)
    with pytest.raises(SourceError, match="Exceeded 30 redirects"):
        base.fetch(NAME, here, Silent())


def test_a_redirect_keeps_the_range(base: HttpFiles, server: GcsServer, here: Path) -> None:
    (server.directory / "moved").write_bytes(CONTENT)
    server.fault("moved", Fault(status=302, headers={"Location": f"{server.url}/{NAME}"}), times=None)
    server.fault(NAME, Fault(cut_after=1000))
    assert base.fetch("moved", here, Silent()).path.read_bytes() == CONTENT
    assert [(asked.name, asked.range) for asked in server.requests[2:]] == [
        ("moved", "bytes=1000-"),
        (NAME, "bytes=1000-"),
    ]


def test_the_closed_bucket(tmp_path: Path, here: Path) -> None:
    with GcsServer(tmp_path, bucket="atari-replay-datasets") as server:
        server.fault("*", Fault(status=403), times=None, method="*")
        with pytest.raises(ForbiddenError, match=r"closed in April 2025 \(pytorch/rl#3113\)") as caught:
            HttpFiles(f"{server.url}/dqn").fetch(NAME, here, Silent())
    assert caught.value.hint is not None
    assert "rlx download Pong/5" in caught.value.hint


# Lengths and checksums


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ({"x-goog-hash": "crc32c=AAAAAA=="}, r"expected crc32c 00000000, found [0-9a-f]{8}"),
        ({"x-goog-hash": "md5=AAAAAAAAAAAAAAAAAAAAAA=="}, r"expected md5 0{32}, found [0-9a-f]{32}"),
    ],
)
def test_wrong_checksums(base: HttpFiles, server: GcsServer, here: Path, lie: dict[str, str], told: str) -> None:
    server.fault("*", Fault(headers=lie), times=2)
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    (here / NAME).unlink()
    server.fault("*", Fault(headers=lie), times=None)
    with pytest.raises(CorruptShardError, match=told):
        base.fetch(NAME, here, Silent())
    assert list((here / NAME).parent.iterdir()) == []
    assert ranges(server) == [None] * 6


def test_a_content_length_too_short(base: HttpFiles, server: GcsServer, here: Path) -> None:
    short: dict[str, str | None] = {"Content-Length": "1000"}
    server.fault("*", Fault(headers=short))
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=1000-"]
    (here / NAME).unlink()
    server.fault("*", Fault(headers={**short, "x-goog-stored-content-length": None}), times=None)
    with pytest.raises(CorruptShardError, match="expected crc32c"):
        base.fetch(NAME, here, Silent())


def test_a_content_length_too_long(base: HttpFiles, server: GcsServer, here: Path) -> None:
    long: dict[str, str | None] = {"Content-Length": "300001", "x-goog-stored-content-length": None}
    server.fault("*", Fault(headers=long))
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=300000-", None]
    (here / NAME).unlink()
    server.fault("*", Fault(headers=long), times=None)
    with pytest.raises(DownloadError):
        base.fetch(NAME, here, Silent())


def test_neither_length_nor_checksum(base: HttpFiles, server: GcsServer, here: Path) -> None:
    nothing = dict.fromkeys(["Content-Length", "x-goog-stored-content-length", "x-goog-hash"])
    server.fault("*", Fault(headers=nothing))
    with pytest.raises(DownloadError, match="neither length nor checksum"):
        base.fetch(NAME, here, Silent())
    assert len(server.requests) == 1


# gzip


@pytest.fixture
def gzipped(server: GcsServer) -> bytes:
    """The object, now stored with Content-Encoding: gzip."""
    stored = gzip.compress(CONTENT, mtime=0)
    (server.directory / NAME).write_bytes(stored)
    server.gzip_encoded = ["*"]
    return stored


def test_what_is_stored_lands_on_the_disk(base: HttpFiles, server: GcsServer, here: Path, gzipped: bytes) -> None:
    server.fault("*", Fault(cut_after=1000))
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == gzipped
    assert ranges(server) == [None, "bytes=1000-"]
    assert base.stat(NAME).bytes == len(gzipped)


@pytest.mark.usefixtures("gzipped")
def test_a_server_that_decompresses_is_refused(base: HttpFiles, server: GcsServer, here: Path) -> None:
    server.fault("*", Fault(transcode=True), times=None)
    with pytest.raises(DownloadError, match="the server decompresses"):
        base.fetch(NAME, here, Silent())
    assert len(server.requests) == 1


@pytest.mark.usefixtures("gzipped")
def test_a_proxy_that_decompresses_is_found_out(base: HttpFiles, server: GcsServer, here: Path) -> None:
    silent = dict.fromkeys(["x-goog-stored-content-encoding", "x-goog-stored-content-length"])
    server.fault("*", Fault(transcode=True, headers=silent), times=None)
    with pytest.raises(CorruptShardError, match="expected crc32c"):
        base.fetch(NAME, here, Silent())


# Silence, and Ctrl-C


def test_a_stalled_transfer_goes_on(server: GcsServer, here: Path) -> None:
    base = HttpFiles(server.url, retry=QUICK, read_timeout_s=0.1)
    server.fault("*", Fault(stall_after=-1))
    server.fault("*", Fault(stall_after=1000))
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server) == [None, None, "bytes=1000-"]


def test_a_slow_line_is_not_a_stall(server: GcsServer, here: Path) -> None:
    base = HttpFiles(server.url, retry=QUICK, read_timeout_s=0.5)
    server.fault("*", Fault(trickle=(10_000, 0.02)))
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "fault", [Fault(stall_after=1000, stall_s=3600), Fault(trickle=(1000, 0.01))], ids=["stall", "trickle"]
)
@pytest.mark.timeout(60)
def test_cancelling_a_transfer(server: GcsServer, here: Path, fault: Fault) -> None:
    """A stalled one ends at once too, or the test times out."""
    base = HttpFiles(server.url, retry=QUICK, read_timeout_s=3600)
    server.fault("*", fault)
    cancel = Cancel()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(base.fetch, NAME, here, Silent(), cancel=cancel)
        while not partial(here).exists() or partial(here).stat().st_size < 1000:
            time.sleep(0.005)
        cancel.set()
        with pytest.raises(CancelledError):
            future.result()
    arrived = partial(here).stat().st_size
    assert base.fetch(NAME, here, Silent()).path.read_bytes() == CONTENT
    assert ranges(server)[-1] == f"bytes={arrived}-"


def test_cancelling_a_wait(server: GcsServer, here: Path) -> None:
    base = HttpFiles(server.url, retry=RetryPolicy(first_delay_s=3600, max_delay_s=3600, jitter=lambda: 1))
    server.fault("*", Fault(status=503), times=None)
    cancel = Cancel()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(base.fetch, NAME, here, Silent(), cancel=cancel)
        while not server.requests:
            time.sleep(0.005)
        cancel.set()
        with pytest.raises(CancelledError):
            future.result()


def test_cancelled_before_it_began(base: HttpFiles, server: GcsServer, here: Path) -> None:
    cancel = Cancel()
    cancel.set()
    with pytest.raises(CancelledError):
        base.fetch(NAME, here, Silent(), cancel=cancel)
    with pytest.raises(CancelledError):
        base.stat(NAME, cancel=cancel)
    assert server.requests == []


# Waiting


def test_retry_after_is_honoured(server: GcsServer, here: Path) -> None:
    policy = RetryPolicy(attempts=3, first_delay_s=0, max_retry_after_s=0.2)
    server.fault("*", Fault(status=429, headers={"Retry-After": "3600"}))
    HttpFiles(server.url, retry=policy).fetch(NAME, here, Silent())
    first, second = server.requests
    assert second.time - first.time >= 0.2


def test_retry_after_as_seconds_date_or_nonsense() -> None:
    policy = RetryPolicy(jitter=lambda: 0, clock=lambda: 1_000_000_000)
    date = formatdate(1_000_000_042, usegmt=True)
    past = formatdate(999_999_000, usegmt=True)
    told = ["7", " 7 ", date, past, "9999999", "soon", "-1", "", None]
    assert [policy.delay_s(1, retry_after) for retry_after in told] == [7, 7, 42, 0, 300, 0, 0, 0, 0]


def test_waits_double_up_to_their_bound() -> None:
    policy = RetryPolicy(jitter=lambda: 1, first_delay_s=1, max_delay_s=10)
    assert [policy.delay_s(failures) for failures in (1, 2, 3, 4, 5, 5000)] == [1, 2, 4, 8, 10, 10]


# The disk


def test_no_room(base: HttpFiles, server: GcsServer, small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(400_000))
    with pytest.raises(DiskFullError, match="no room left") as caught:
        base.fetch(NAME, small_disk, Silent())
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert len(server.requests) == 1
    assert not (small_disk / NAME).exists()


def test_other_errors_of_the_disk_are_not_hidden(base: HttpFiles, here: Path) -> None:
    here.write_bytes(b"a file where the directory should be")
    with pytest.raises(FileAccessError, match="not a directory"):
        base.fetch(NAME, here, Silent())


# All at once


def test_eight_files_at_once(base: HttpFiles, server: GcsServer, here: Path) -> None:
    contents = {f"Pong/{number}": random.Random(number).randbytes(100_000) for number in range(8)}
    for name, content in contents.items():
        (server.directory / name).write_bytes(content)
        server.fault(name, Fault(cut_after=50_000))
    together = threading.Barrier(8, timeout=30)
    tally = Tally()

    def fetch(name: str) -> bytes:
        together.wait()
        return base.fetch(name, here, tally).path.read_bytes()

    with ThreadPoolExecutor(8) as pool:
        assert dict(zip(contents, pool.map(fetch, contents), strict=True)) == contents
    assert len(server.requests) == 16


FAULTS = st.one_of(
    st.builds(Fault, cut_after=st.integers(0, 3000), reset=st.booleans()),
    st.builds(Fault, status=st.sampled_from([408, 412, 416, 429, 500, 503])),
    st.builds(Fault, ignore_range=st.just(True), cut_after=st.integers(0, 3000)),
    st.builds(Fault, headers=st.sampled_from([WRONG_HASH, {"Content-Range": "bytes 1-2/3"}, {"ETag": None}])),
    st.builds(Fault, cut_after=st.integers(0, 3000), replace_with=st.binary(min_size=1, max_size=3000)),
)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with GcsServer(tmp_path_factory.mktemp("shared")) as server:
        yield server


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=st.lists(FAULTS, max_size=8), content=st.binary(max_size=3000))
def test_any_trouble_ends_with_the_right_bytes(
    shared_server: GcsServer, tmp_path: Path, faults: list[Fault], content: bytes
) -> None:
    name = os.urandom(8).hex()
    path = shared_server.directory / name
    path.write_bytes(content)
    for fault in faults:
        shared_server.fault(name, fault)
    base = HttpFiles(shared_server.url, retry=RetryPolicy(attempts=len(faults) + 1, first_delay_s=0.0))
    fetched = fetch_stubbornly(base, name, tmp_path, times=len(faults) + 1)
    # One version of the object, never a mixture of two.
    assert fetched.read_bytes() in [content, *(fault.replace_with for fault in faults)]
    assert sorted(tmp_path.glob(f"{name}*")) == [fetched]
    assert len([asked for asked in shared_server.requests if asked.name == name]) <= 2 * len(faults) + 1


def fetch_stubbornly(base: HttpFiles, name: str, here: Path, times: int) -> Path:
    """Runs the command again, as a user would: 412 and 416 are lasting when no range was asked for."""
    for _ in range(times - 1):
        with suppress(DownloadError):
            return base.fetch(name, here, Silent()).path
    return base.fetch(name, here, Silent()).path


@pytest.mark.parametrize(("asked", "seconds", "said"), [("99999999999", 300, "5 min 0 s"), ("12", 12, "12 s")])
def test_a_long_wait_is_said(
    asked: str, seconds: float, said: str, server: GcsServer, caplog: pytest.LogCaptureFixture
) -> None:
    waited: list[float] = []

    class Impatient(Cancel):
        def wait(self, seconds: float) -> bool:
            waited.append(seconds)
            return False

    server.fault("*", Fault(status=429, headers={"Retry-After": asked}), method="HEAD")
    base = HttpFiles(server.url, retry=RetryPolicy(attempts=3, first_delay_s=0))
    with caplog.at_level(logging.WARNING):
        base.stat(NAME, cancel=Impatient())
    assert waited == [seconds]
    assert f"found 429 Too Many Requests; trying again in {said}" in caplog.text


def test_a_refused_certificate_is_said_at_once(tmp_path: Path) -> None:
    key, certificate = _self_signed()
    (tmp_path / "both.pem").write_bytes(key + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    accepted.append(connection)
                    with suppress(OSError), context.wrap_socket(connection, server_side=True):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(DownloadError, match=r"the server.s certificate is refused: .*self-signed") as error:
            HttpFiles(url, retry=RetryPolicy(first_delay_s=60)).stat("file")
        assert error.value.hint == "REQUESTS_CA_BUNDLE=FILE trusts the certificates in FILE"
    assert len(accepted) == 1


@pytest.mark.parametrize("target", ["http", "file"])
def test_a_redirect_to_what_anybody_can_change(
    target: str, server: GcsServer, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = _self_signed()
    here.mkdir()
    (here / "both.pem").write_bytes(key + certificate)
    (here / "trusted.pem").write_bytes(certificate)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(here / "trusted.pem"))
    location = {"http": f"{server.url}/{NAME}", "file": f"file://{server.directory}/{NAME}"}[target]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(here / "both.pem")

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", location)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as redirecting:
        redirecting.socket = context.wrap_socket(redirecting.socket, server_side=True)
        threading.Thread(target=redirecting.serve_forever, daemon=True).start()
        base = HttpFiles(f"https://127.0.0.1:{redirecting.server_address[1]}", retry=QUICK)
        with pytest.raises(SourceError, match=f"it redirects from https to {target}"):
            base.fetch(NAME, here / "there", Silent())
        redirecting.shutdown()
    assert not server.requests


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "169.254.0.1:80", "[fe80::1]", "[::ffff:169.254.169.254]", "2852039166", "0xa9fea9fe"),
        *("metadata.google.internal", "[fd00:ec2::254]", "100.100.100.200"),
    ],
)
def test_a_redirect_to_a_link_local_address(host: str, base: HttpFiles, server: GcsServer, here: Path) -> None:
    server.fault("moved", Fault(status=302, headers={"Location": f"http://{host}/latest/meta-data"}), method="*")
    with pytest.raises(SourceError, match=r"it redirects to \S+, a link-local address"):
        base.fetch("moved", here, Silent())
    server.fault("moved", Fault(status=302, headers={"Location": f"//{host}/latest/meta-data"}), method="*")
    with pytest.raises(SourceError, match=r"it redirects to \S+, a link-local address"):
        base.stat("moved")


def test_a_link_local_address_that_is_asked_for(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own server, under an address of the kind that redirects may not lead to."""
    monkeypatch.setattr(http_files, "_METADATA_NAMES", {"127.0.0.1"})
    server.fault("moved", Fault(status=302, headers={"Location": f"{server.url}/{NAME}"}), method="*")
    assert HttpFiles(server.url, retry=QUICK).stat("moved").bytes == len(CONTENT)


def test_a_redirect_takes_no_password_along(server: GcsServer, here: Path) -> None:
    port = urlsplit(server.url).port
    private = f"http://localhost:{port}/rl_unplugged/{NAME}"
    server.fault("moved", Fault(status=302, headers={"Location": private}))
    base = HttpFiles(server.url.replace("http://", "http://user:secret@") + "?token=secret", retry=QUICK)
    assert base.fetch("moved", here, Silent()).path.read_bytes() == CONTENT
    first, second = server.requests
    assert ("authorization" in first.headers, "token=secret" in first.path) == (True, True)
    assert "secret" not in second.path + str(second.headers)
    assert "authorization" not in second.headers


def _self_signed() -> tuple[bytes, bytes]:
    """A key and a certificate for 127.0.0.1 that nobody trusts, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), built.public_bytes(pem)
