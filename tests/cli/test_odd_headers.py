"""Servers whose headers are odd, hostile or wrong: a named error and the right exit code, or the right data."""

import gzip
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import rlx
from rlx.errors import RlxError
from rlx.files import bucket
from rlx.files.retry import RetryPolicy
from tests.conftest import SAMPLE_RUN, Cli, Result
from tests.factories import make_block, write_dataset
from tests.odd_server import Answer, OddServer

Odd = Callable[[Answer], None]
_LONGEST_S = 30.0


def header(name: str, value: str | bytes) -> Odd:
    """Set a header to this in every answer."""
    return lambda answer: answer.set(name, value)


def twice(name: str, value: str) -> Odd:
    return lambda answer: answer.add(name, value)


def without(*names: str) -> Odd:
    def leave_out(answer: Answer) -> None:
        for name in names:
            answer.drop(name)

    return leave_out


def status(line: bytes, **headers: str) -> Odd:
    def answer_so(answer: Answer) -> None:
        answer.status = line
        for name, value in headers.items():
            answer.set(name.replace("_", "-"), value)

    return answer_so


def in_ranges(odd: Odd) -> Odd:
    """Make only answers odd that are parts, which ``download`` does not ask for."""
    return lambda answer: odd(answer) if answer.is_range else None


def gzipped(answer: Answer) -> None:
    """Encode without being asked, and say so."""
    answer.body = gzip.compress(answer.body)
    answer.set("Content-Encoding", "gzip")
    answer.set("Content-Length", str(len(answer.body)))


def chunked(body: Callable[[bytes], bytes]) -> Odd:
    def encode(answer: Answer) -> None:
        answer.drop("Content-Length")
        answer.set("Transfer-Encoding", "chunked")
        answer.body = body(answer.body)

    return encode


def whole_for_a_part(answer: Answer) -> None:
    """Send everything, although a part was asked for, with 206."""
    answer.status = b"206 Partial Content"
    answer.set("Content-Range", f"bytes 0-{len(answer.body) - 1}/{len(answer.body)}")


def redirected(to: str) -> Odd:
    return status(b"302 Found", Location=to)


# Each with whether every command succeeds; None where some do.
ODD: dict[str, tuple[Odd, bool | None]] = {
    "nothing odd": (lambda _: None, True),
    "negative length": (header("Content-Length", "-1"), None),
    "huge length": (header("Content-Length", "9" * 18), False),
    "length beyond 64 bits": (header("Content-Length", "9" * 30), False),
    "length of 5000 digits": (header("Content-Length", "9" * 5000), False),
    "stored length of 5000 digits": (header("x-goog-stored-content-length", "9" * 5000), None),
    "length that is no number": (header("Content-Length", "many"), None),
    "length in Arabic digits": (header("Content-Length", "٣٤"), None),
    "length with a sign": (header("Content-Length", "+5"), None),
    "two lengths": (twice("Content-Length", "5"), None),
    "no length": (without("Content-Length"), None),
    "no length and no version": (without("Content-Length", "ETag", "Last-Modified"), None),
    "part without its range": (without("Content-Range"), None),
    "part of another place": (in_ranges(header("Content-Range", "bytes 7-8/9")), None),
    "part that ends before it starts": (in_ranges(header("Content-Range", "bytes 9-1/10")), None),
    "part in other units": (in_ranges(header("Content-Range", "rows 0-1/2")), None),
    "part of 5000 digits": (in_ranges(header("Content-Range", f"bytes {'9' * 5000}-{'9' * 5000}/*")), None),
    "whole with 206": (whole_for_a_part, None),
    "gzip that nobody asked for": (gzipped, None),
    "gzip that is none": (header("Content-Encoding", "gzip"), None),
    "unknown encoding": (header("Content-Encoding", "zap"), None),
    "chunks without an end": (chunked(lambda body: b"%x\r\n%s\r\n" % (len(body), body)), None),
    "chunks of no size": (chunked(lambda body: b"zz\r\n" + body), False),
    "chunks of negative size": (chunked(lambda body: b"-5\r\n" + body), False),
    "chunks of huge size": (chunked(lambda body: b"f" * 40 + b"\r\n" + body), False),
    "chunks beside a length": (header("Transfer-Encoding", "chunked"), False),
    "version with control characters": (header("ETag", b'"\x01\x1b[31m\x7f"'), None),
    "version of 100 kB": (header("ETag", '"' + "e" * 10**5 + '"'), None),
    "version that is empty": (header("ETag", ""), None),
    "version in Latin-1": (header("ETag", b'"\xff\xfe"'), None),
    "loop of redirects": (lambda answer: redirected(answer.path)(answer), False),
    "redirect to nowhere": (redirected(""), False),
    "redirect to a file": (redirected("file:///etc/passwd"), False),
    "redirect to a bad port": (redirected("http://127.0.0.1:99999/x"), False),
    "redirect to a bad host": (redirected("http://[::1/x"), False),
    "redirect with control characters": (status(b"302 Found", Location="http://\x1b[31m/\x01"), False),
    "redirect without a location": (status(b"302 Found"), False),
    "come back in years": (status(b"503 Busy", Retry_After="99999999999"), False),
    "come back before": (status(b"503 Busy", Retry_After="-5"), False),
    "come back in the year 1": (status(b"503 Busy", Retry_After="Mon, 01 Jan 0001 00:00:00 -0000"), False),
    "come back on no day": (status(b"429 Slow", Retry_After="Mon, 99 Foo 20260 77:88:99 GMT"), False),
    "come back after 5000 digits": (status(b"503 Busy", Retry_After="9" * 5000), False),
    "date of no day": (header("Date", "yesterday"), True),
    "modified on no day": (header("Last-Modified", "soon"), None),
    "modified in year 0": (header("Last-Modified", "Mon, 00 Jan 0000 00:00:00 GMT"), None),
    "header of a megabyte": (header("X-Long", "x" * 2**20), None),
    "a thousand headers": (lambda answer: answer.headers.extend([(b"X", b"y")] * 1000), None),
    "header that is not Latin-1": (header("X-Odd", b"\xff\xfe\x80\x00"), None),
    "header without a colon": (lambda answer: answer.headers.insert(0, (b"no colon here\r\nX", b"y")), None),
    "status 999": (status(b"999 Odd"), False),
    "status 204": (status(b"204 No Content"), False),
    "status 100": (status(b"100 Continue"), False),
    "status 0": (status(b"0 None"), False),
    "status that is no number": (status(b"OK fine"), False),
    "status with control characters": (status(b"500 \x1b[31mred\x07"), False),
    "checksum that is none": (header("x-goog-hash", "crc32c=????, md5=\xff"), None),
}
DOWNLOAD = ["Pong/5", "--source", "URL", "--shards", "0", "--jobs", "1", "-o", "OUT"]
COMMANDS: dict[str, Sequence[str]] = {
    "sample": ["URL/data", "--seed", "1"],
    "inspect": ["URL/data", "--stats", "--trajectories"],
    "verify": ["URL/data"],
    "view": ["URL/data", "-o", "OUT.html"],
    "doctor": ["URL/data"],
    "pull": ["URL/data", "-o", "OUT"],
    "convert": ["URL/data", "OUT"],
    "list": ["--remote", "--source", "URL"],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served")
    write_dataset(directory / "data", [[make_block([3, 5])]])
    (directory / "Pong").symlink_to(SAMPLE_RUN / "Pong")
    return directory


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once, and not often: waits have tests of their own."""
    computed = RetryPolicy.delay_s

    def at_once(self: RetryPolicy, failures: int, retry_after: str | None = None) -> float:
        return min(0.01, max(0.0, computed(self, failures, retry_after)))

    monkeypatch.setattr(RetryPolicy, "delay_s", at_once)
    monkeypatch.setattr(bucket, "STALL_S", 5.0)


def ran(cli: Cli, name: str, arguments: Sequence[str], url: str, out: Path) -> Result:
    started = time.monotonic()
    result = cli(name, *(word.replace("URL", url).replace("OUT", str(out)) for word in arguments))
    assert time.monotonic() - started < _LONGEST_S, (name, result)
    assert "Traceback" not in result.err, (name, result.err[-3000:])
    assert result.code in (0, 1, 3, 4, 5, 6), (name, result)
    assert (result.code == 0) != ("error: " in result.err), (name, result)
    assert not any(character in result.err + result.out for character in "\x1b\x07\x01\x7f"), (name, result)
    return result


@pytest.mark.parametrize("kind", ODD)
def test_odd_headers(kind: str, cli: Cli, served: Path, tmp_path: Path) -> None:
    odd, expected = ODD[kind]
    with OddServer(served, odd) as server:
        fine = [ran(cli, "download", DOWNLOAD, server.url, tmp_path / "out").code == 0]
        assert not fine[0] or len(rlx.open(tmp_path / "out")) == 871
        try:
            there = rlx.open(f"{server.url}/data")[:]
        except RlxError:
            fine.append(False)
        else:
            fine.append(True)
            assert (there == rlx.open(served / "data")[:]).all()
    assert expected is None or set(fine) == {expected}


@pytest.mark.soak
@pytest.mark.parametrize("kind", ODD)
def test_odd_headers_and_other_commands(kind: str, cli: Cli, served: Path, tmp_path: Path) -> None:
    with OddServer(served, ODD[kind][0]) as server:
        for name, arguments in COMMANDS.items():
            ran(cli, name, arguments, server.url, tmp_path / name)
