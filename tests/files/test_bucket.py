"""Buckets and web servers as locations, against real servers on loopback."""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import rlx
from rlx.errors import (
    DownloadError,
    ForbiddenError,
    MissingExtraError,
    RlxError,
    SourceError,
    SourceNotFoundError,
)
from rlx.files import bucket
from rlx.files.bucket import Bucket, endpoint, is_anonymous
from rlx.files.location import Location, WritableLocation
from rlx.files.opening import open_location
from rlx.files.retry import RetryPolicy
from tests.contracts.location import FILES, LARGE, LocationContract, ReadableLocationContract, get, put
from tests.factories import LARGE as PICTURES
from tests.factories import make_block, write_dataset
from tests.gcs_server import Fault, GcsServer
from tests.s3_server import S3Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GcsServer]:
    """A server that gives FILES to whoever asks."""
    for name, content in FILES.items():
        path = tmp_path / "served" / "a b" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with GcsServer(tmp_path / "served") as server:
        yield server


class BucketContract(LocationContract):
    """What a bucket promises beside that: it keeps the checksum that it was told."""

    def test_stat_knows_the_checksum(self, location: WritableLocation) -> None:
        assert location.stat("shards/00000/zarr.json").crc32c == "c1b581a5"
        put(location, "large", bytes(20_000_000))
        assert location.stat("large").crc32c is not None

    def test_no_such_bucket(self, empty: WritableLocation) -> None:
        scheme = urlsplit(empty.url).scheme
        location = open_location(f"{scheme}://no-such-bucket/set")
        for use in (
            lambda: get(location, "a"),
            lambda: put(location, "a", b"1"),
            lambda: list(location.list("shards")),
        ):
            with pytest.raises(SourceNotFoundError, match=rf"^{scheme}://no-such-bucket/set: no such bucket"):
                use()


class TestS3(BucketContract):
    @pytest.fixture
    def empty(self, bucket: str) -> WritableLocation:
        return open_location(f"{bucket}/some prefix/ä")


class TestAzure(BucketContract):
    @pytest.fixture
    def empty(self, container: str) -> WritableLocation:
        return open_location(f"{container}/some prefix/ä")


class TestHttp(ReadableLocationContract):
    @pytest.fixture
    def location(self, server: GcsServer) -> Location:
        return open_location(f"{server.url}/a%20b/")


class TestGoogle(ReadableLocationContract):
    @pytest.fixture
    def location(self, server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Location:
        monkeypatch.setenv("GOOGLE_BASE_URL", server.url.removesuffix("/rl_unplugged"))
        return open_location("gs://rl_unplugged/a b")


def test_the_end_of_the_url_does_not_matter(bucket: str) -> None:
    put(open_location(f"{bucket}/set/"), "a", b"1")
    assert get(open_location(f"{bucket}/set"), "a") == b"1"
    put(open_location(bucket), "set/b", b"2")
    assert get(open_location(f"{bucket}/set"), "b") == b"2"


def test_a_bucket_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server(lets_anybody=False) as server:
        server.make_bucket("closed")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        location = open_location("s3://closed/set")
        for use in (
            lambda: get(location, "a"),
            lambda: location.read("a", 0, 1),
            lambda: put(location, "a", b"1"),
            lambda: put(location, "a", bytes(20_000_000)),
            lambda: list(location.list("shards")),
            lambda: location.delete(["a"]),
        ):
            with pytest.raises(ForbiddenError, match="access denied") as refused:
                use()
            assert "AWS_ACCESS_KEY_ID" in str(refused.value.hint)


def test_azure_with_the_key_of_somebody_else(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bm90IHRoZSBrZXk=")
    location = open_location(f"{container}/set")
    for size in (1, 20_000_000):
        with pytest.raises(ForbiddenError, match="access denied") as refused:
            put(location, "a", bytes(size))
        assert "AZURE_STORAGE_ACCOUNT_KEY" in str(refused.value.hint)
    with pytest.raises(ForbiddenError, match="access denied"):
        location.delete(["a"])


def test_azure_gives_public_data_to_anybody(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(open_location(f"{container}/set"), "a", b"1")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    location = open_location(f"{container}/set")
    assert get(location, "a") == b"1"
    with pytest.raises(ForbiddenError, match="access denied"):
        put(location, "a", b"2")


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(DownloadError, match=r"^http://127\.0\.0\.1:1/set/a: .*error sending request$") as failed:
        get(open_location("http://somebody:secret@127.0.0.1:1/set", retry=RetryPolicy(attempts=1)), "a")
    assert "secret" not in str(failed.value)


def test_a_server_that_fails_at_first(server: GcsServer) -> None:
    server.fault("*/rlx.json", Fault(status=503), times=2)
    assert get(open_location(f"{server.url}/a b"), "rlx.json") == FILES["rlx.json"]


def test_a_server_that_does_not_like_a_request(server: GcsServer) -> None:
    server.fault("*", Fault(status=400))
    with pytest.raises(DownloadError) as failed:
        get(open_location(f"{server.url}/a b"), "rlx.json")
    said = "Server returned non-2xx status code: 400 Bad Request (400)"
    assert str(failed.value) == f"{server.url}/a b/rlx.json: {said}"


def test_a_server_that_keeps_failing(server: GcsServer) -> None:
    server.fault("*", Fault(status=503), times=None)
    with pytest.raises(DownloadError, match=r"rlx\.json: after 2 retries: .* 503 Service Unavailable \(503\)$"):
        get(open_location(f"{server.url}/a b", retry=RetryPolicy(attempts=3)), "rlx.json")


def test_a_connection_that_breaks_is_taken_up_again(server: GcsServer) -> None:
    server.fault("*/c/0/0/0", Fault(cut_after=200_000), times=1)
    assert get(open_location(f"{server.url}/a b"), LARGE) == FILES[LARGE]


def test_a_server_that_knows_no_ranges(server: GcsServer) -> None:
    server.fault("*", Fault(ignore_range=True), times=None)
    location = open_location(f"{server.url}/a b")
    with pytest.raises(RlxError):
        location.read(LARGE, 10, 20)
    with pytest.raises(RlxError):
        list(location.stream(LARGE, 10))


def test_a_web_server_cannot_be_written(server: GcsServer) -> None:
    location = open_location(server.url)
    assert location.is_read_only
    with pytest.raises(SourceError):
        put(location, "a", b"1")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "ftp://host/set",
            "ftp:// is not supported: expected one of s3://, gs://, az://, hf://, http://, https://, file://",
        ),
        ("s3://", "expected s3://BUCKET"),
        ("https:///set?token=secret", "^https:///set is not a URL"),
        ("https://host/set#secret", "^https://host/set: expected no query"),
        ("https://host/set?token=secret", "https://host/set: expected no query"),
        ("https://me:secret@host/set?token=secret", "https://host/set: expected no query"),
        ("file://me:secret@elsewhere/set", "^file://elsewhere/set is on another machine"),
    ],
)
def test_urls_that_are_none(url: str, said: str) -> None:
    with pytest.raises(SourceError, match=said) as failed:
        open_location(url)
    assert "secret" not in str(failed.value)


def test_a_url_that_the_client_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    with pytest.raises(SourceError, match=r"^az://container/set: .* did not match any known pattern") as failed:
        get(open_location("az://me:secret@container/set"), "a")
    assert "secret" not in str(failed.value)


def test_azure_wants_to_know_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SourceError, match="Account must be specified") as failed:
        get(open_location("az://container/set"), "a")
    assert failed.value.hint == "set AZURE_STORAGE_ACCOUNT_NAME"


def test_without_credentials_nothing_is_signed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    given = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_SERVICE_ACCOUNT", "az": "AZURE_STORAGE_SAS_KEY"}
    for scheme, name in given.items():
        monkeypatch.delenv(name, raising=False)
        assert is_anonymous(scheme)
        monkeypatch.setenv(name, "something")
        assert not is_anonymous(scheme)


def test_the_endpoint_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint("az") is None
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/account")
    assert endpoint("az") == "http://127.0.0.1:10000/account"


def test_public_data_need_no_credentials(bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    put(open_location(f"{bucket}/set"), "a", b"1")
    for name in s3_server.environment:
        if name != "AWS_ENDPOINT_URL":
            monkeypatch.delenv(name)
    assert get(open_location(f"{bucket}/set"), "a") == b"1"


def test_without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match="obstore") as failed:
        open_location("s3://bucket/set")
    assert failed.value.hint == "pip install 'rlx[cloud]'"


def test_a_forked_process_is_refused_instead_of_crashing(bucket: str) -> None:
    location = Bucket(f"{bucket}/set")
    put(location, "a", b"1")
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_read, args=(location, sender))
    child.start()
    assert receiver.recv() == "ForkError"
    child.join()


def _read(location: Location, sender: "multiprocessing.connection.Connection") -> None:
    try:
        get(location, "a")
    except RlxError as exc:
        sender.send(type(exc).__name__)


# Plain web servers give no ETag; where there is one, obstore itself goes on.
_NO_ETAG = {"ETag": None}
_BREAKS = [
    Fault(cut_after=70_000),
    Fault(cut_after=70_000, headers=_NO_ETAG),
    Fault(cut_after=70_000, headers=_NO_ETAG, reset=True),
    Fault(cut_after=0, headers=_NO_ETAG),
]


@pytest.mark.parametrize("fault", _BREAKS)
def test_a_connection_that_breaks_within_a_file_is_retried(fault: Fault, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    (tmp_path / "a").write_bytes(content)
    with GcsServer(tmp_path) as server:
        location = open_location(server.url)
        server.fault("a", fault, times=2)
        assert location.get("a", max_bytes=2**20)[0] == content
        server.fault("a", fault, times=2)
        assert location.read("a", 0, len(content))[0] == content
        server.fault("a", fault, times=2)
        assert b"".join(location.stream("a")) == content
        server.fault("a", fault, times=3)
        assert location.read("a", 100_000, 250_000)[0] == content[100_000:250_000]


def test_a_file_that_changes_between_two_tries_is_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1" * 300_000)
    with GcsServer(tmp_path) as server:
        changed = {**_NO_ETAG, "Last-Modified": "Thu, 01 Jan 1970 00:00:00 GMT"}
        server.fault("a", Fault(cut_after=200_000, headers=changed, replace_with=b"2" * 300_000))
        with pytest.raises(DownloadError, match="has changed while it was read"):
            list(open_location(server.url).stream("a"))


@pytest.mark.parametrize("fault", [Fault(stall_after=0), Fault(stall_after=0, headers=_NO_ETAG), Fault(stall_after=-1)])
def test_a_server_that_stalls_is_given_up(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STALL_S": 0.2, "CONNECT_S": 0.2}.items():
        monkeypatch.setattr(bucket, name, value)
    impatient = RetryPolicy(first_delay_s=0.1, max_silence_s=0.5)
    (tmp_path / "a").write_bytes(os.urandom(300_000))
    with GcsServer(tmp_path) as server:
        server.fault("a", fault, times=None)
        started = time.monotonic()
        with pytest.raises(DownloadError):
            open_location(server.url, retry=impatient).read("a", 0, 300_000)
        with pytest.raises(DownloadError):
            list(open_location(server.url, retry=impatient).stream("a"))
        assert time.monotonic() - started < 20


def test_sampling_goes_on_when_connections_break(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", [[make_block([30, 50], schema=PICTURES)]], schema=PICTURES)
    here = rlx.open(tmp_path / "set")
    with GcsServer(tmp_path) as server:
        there = rlx.open(f"{server.url}/set")
        server.fault("set/shards/*", Fault(cut_after=0, headers=_NO_ETAG), times=4)
        server.fault("set/shards/*", Fault(headers=_NO_ETAG), times=None)
        assert (there[:]["observation"] == here[:]["observation"]).all()


def test_a_user_without_a_home_directory_is_anonymous(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    for name in ("HOME", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert is_anonymous("gs")
