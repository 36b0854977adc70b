"""Datasets of the hub, by the real client of huggingface_hub against a hub on loopback."""

import logging
import shutil
import time
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError

from rlx.errors import CorruptShardError, DownloadError, ForbiddenError, SourceError, SourceNotFoundError
from rlx.files import hub as hub_module
from rlx.files import hub_api
from rlx.files.hub import Hub, HubAddress
from rlx.files.hub_api import asked, repositories
from rlx.files.location import Location
from rlx.files.retry import Cancel, RetryPolicy
from rlx.files.urls import TAG, organisation_of
from rlx.progress import Silent
from tests.contracts.location import LARGE, LocationContract, get, put
from tests.hub_server import Fault, HubServer, Request

# huggingface_hub uploads by an argument that its HTTP library has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
QUICK = RetryPolicy(attempts=3, first_delay_s=0.01, max_delay_s=0.02)


class Committing(Hub):
    """Commits whatever is put or deleted at once, as the contract of all locations wants to see it."""

    def put(self, name: str, pieces: Iterable[bytes], *, bytes: int, crc32c: str) -> None:
        super().put(name, pieces, bytes=bytes, crc32c=crc32c)
        assert self._commit_all(self._head())

    def delete(self, names: Sequence[str]) -> None:
        super().delete(names)
        assert self._commit_all(self._head())


class TestRoot(LocationContract):
    """The contract, at the root of a repository."""

    @pytest.fixture
    def empty(self, hub: HubServer) -> Location:  # noqa: ARG002
        location = Committing("hf://datasets/me/pong", retry=QUICK)
        location.create()
        return location


class TestBelow(LocationContract):
    """The contract, below a path."""

    @pytest.fixture
    def empty(self, hub: HubServer) -> Location:
        hub.add("me/pong", {"README.md": b"card", "run/5x/rlx.json": b"another"})
        return Committing("hf://datasets/me/pong@main/run/5", retry=QUICK)


def test_what_is_put_shows_all_at_once(hub: HubServer) -> None:
    hub.add("me/pong", {"old": b"old"})
    location = Hub("hf://datasets/me/pong", retry=QUICK)
    put(location, "a", b"a")
    put(location, "b", bytes(10_000))
    location.delete(["old"])
    assert "a" not in hub.files("me/pong")
    assert len(hub.repos["me/pong"].commits) == 1
    assert location.replace("rlx.json", b"{}", seen=None)
    assert hub.files("me/pong") == {"a": b"a", "b": bytes(10_000), "rlx.json": b"{}"}
    assert len(hub.repos["me/pong"].commits) == 2


def test_one_commit_is_read_whatever_comes_after(hub: HubServer) -> None:
    first = hub.add("me/pong", {"rlx.json": b"{}", "a": b"one"})
    location = Hub("hf://datasets/me/pong", retry=QUICK)
    assert get(location, "rlx.json") == b"{}"
    hub.add("me/pong", {"a": b"two"})
    assert get(location, "a") == b"one"
    assert location.pinned == f"hf://datasets/me/pong@{first}"
    assert get(Hub(f"hf://datasets/me/pong@{first}"), "a") == b"one"
    assert get(Hub("hf://datasets/me/pong@main"), "a") == b"two"


def test_somebody_else_commits_meanwhile(hub: HubServer) -> None:
    hub.add("me/pong", {"rlx.json": b"{}"})
    location = Hub("hf://datasets/me/pong", retry=QUICK)
    seen = location.stat("rlx.json")
    hub.add("me/pong", {"README.md": b"new"})
    assert not location.replace("rlx.json", b"mine", seen=seen)
    assert hub.files("me/pong")["rlx.json"] == b"{}"


def test_objects_that_the_storage_has_are_not_sent_again(hub: HubServer) -> None:
    hub.add("me/other", {"large": bytes(100_000)})
    hub.add("me/pong", {})
    location = Hub("hf://datasets/me/pong", retry=QUICK)
    put(location, "large", bytes(100_000))
    assert location.replace("rlx.json", b"{}", seen=None)
    assert not [request for request in hub.requests if request.method == "PUT"]
    assert hub.files("me/pong")["large"] == bytes(100_000)


def test_a_gitignore_that_excludes_files_is_named(hub: HubServer) -> None:
    hub.add("me/pong", {".gitignore": b"ignored"})
    with pytest.raises(SourceError, match=r"\.gitignore excludes large"):
        put(Hub("hf://datasets/me/pong", retry=QUICK), "large", bytes(10_000))


def test_no_token_leaves_the_hub(hub: HubServer) -> None:
    hub.add("me/pong", {LARGE: bytes(100_000)}, private=True)
    assert get(Hub("hf://datasets/me/pong"), LARGE) == bytes(100_000)
    away = [request for request in hub.requests if request.path.startswith("/cdn/")]
    assert away
    assert not [request for request in away if "Authorization" in request.headers]


@pytest.mark.parametrize(
    ("url", "error", "message", "hint"),
    [
        ("hf://datasets/me/nothing", SourceNotFoundError, "hf://datasets/me/nothing: no such dataset", None),
        ("hf://datasets/me/pong@v9", SourceNotFoundError, "hf://datasets/me/pong@v9: no such revision", None),
        ("hf://datasets/me/pong/below", SourceNotFoundError, "below/rlx.json: no such file", None),
    ],
)
def test_what_does_not_exist_is_named(
    hub: HubServer, url: str, error: type[SourceError], message: str, hint: str | None
) -> None:
    hub.add("me/pong", {"a": b"a"})
    with pytest.raises(error, match=message) as raised:
        Hub(url, retry=QUICK).stat("rlx.json")
    assert raised.value.hint == hint


def test_private_and_gated_datasets_are_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    hub.add("me/private", {"a": b"a"}, private=True)
    hub.add("me/gated", {"a": b"a"}, gated=True)
    with pytest.raises(ForbiddenError, match="no such dataset, or it is private") as raised:
        Hub("hf://datasets/me/private", retry=QUICK).stat("a")
    assert raised.value.hint is not None
    assert "hf auth login" in raised.value.hint
    with pytest.raises(ForbiddenError, match="access is gated") as raised:
        Hub("hf://datasets/me/gated@main", retry=QUICK).stat("a")
    assert raised.value.hint == f"accept its conditions at {hub.url}/datasets/me/gated, then hf auth login"
    with pytest.raises(ForbiddenError, match="hf://datasets/me/new: access denied"):
        Hub("hf://datasets/me/new", retry=QUICK).create()


@pytest.mark.parametrize("headers", [{"Retry-After": "0"}, {"RateLimit": '"api";r=0;t=0'}])
def test_too_many_requests_are_tried_again(hub: HubServer, headers: dict[str, str]) -> None:
    hub.add("me/pong", {"a": b"a"})
    refused: list[Request] = []

    def busy(request: Request) -> Fault | None:
        if len(refused) < 2 and "/resolve/" in request.path:
            refused.append(request)
            return Fault(429, headers)
        return None

    hub.faults = busy
    assert get(Hub("hf://datasets/me/pong", retry=QUICK), "a") == b"a"
    assert len(refused) == 2


class Waits(Cancel):
    """Remembers how long it was to wait, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False


@pytest.mark.parametrize("fault", [Fault(429, {"Retry-After": "99999999"}), Fault(503), Fault(cut=5)])
def test_the_hub_decides_no_wait_of_its_own(hub: HubServer, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub sleeps for as long as it is asked to, and retries what is retried here."""
    waits = Waits()
    for module in (hub_module, hub_api):
        monkeypatch.setattr(module, "Cancel", lambda: waits)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", pytest.fail)
    hub.add("me/pong", {"x/a": b"a"})
    hub.faults = lambda request: fault if request.path.startswith("/api/") else None
    policy = RetryPolicy(attempts=3)
    location = Hub("hf://datasets/me/pong", retry=policy)
    monkeypatch.setattr("rlx.files.hub_api.DEFAULT_RETRY", policy)
    for ask in (lambda: repositories(author="me"), lambda: list(location.list("x")), location._head):
        before, waits.seconds = len(hub.requests), []
        with pytest.raises(DownloadError):
            ask()
        assert len(hub.requests) - before == 3
        assert len(waits.seconds) == 2
        assert max(waits.seconds) <= policy.max_retry_after_s


def test_requests_of_others_are_theirs(hub: HubServer) -> None:
    hub.add("me/pong", {"a": b"a"})
    agents = []

    def other(api: HfApi) -> None:
        agents.append(api.dataset_info("me/pong"))
        with pytest.raises(HfHubHTTPError, match=r"Server error .503"):  # its own words
            HfApi(endpoint=hub.url).dataset_info("me/pong")

    hub.faults = lambda request: (
        None if "rlx/" in request.headers.get("User-Agent", request.headers.get("user-agent", "")) else Fault(503)
    )
    asked("hf://datasets/me/pong", other)
    assert agents[0].id == "me/pong"


def test_a_hub_that_stalls_is_given_up(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.files.hub_api._SILENCE_S", 0.05)
    monkeypatch.setattr("rlx.files.hub_api.DEFAULT_RETRY", QUICK)
    hub.add("me/pong", {"a": b"a"})

    def stall(request: Request) -> None:
        if request.path.startswith("/api/"):
            time.sleep(0.2)

    hub.faults = stall
    location = Hub("hf://datasets/me/pong", retry=QUICK)
    for ask in (lambda: repositories(author="me"), location._head):
        with pytest.raises(DownloadError, match="timed out"):
            ask()


def test_names_that_no_dataset_has_are_left_out(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("me/pong", "me/a\x1b[31m", "me/a/b"):
        hub.add(name, {})
    assert repositories(author="me") == ["me/pong"]
    assert "me/a/b: not names of datasets" in caplog.text


@pytest.mark.parametrize("route", ["/preupload/", "/commit/", ".git/info/lfs", "/lfs/"])
def test_a_hub_that_fails_once_is_asked_again(hub: HubServer, route: str) -> None:
    hub.add("me/pong", {})
    refused: list[Request] = []

    def failing(request: Request) -> Fault | None:
        if route in request.path and not refused:
            refused.append(request)
            return Fault(500)
        return None

    hub.faults = failing
    location = Hub("hf://datasets/me/pong", retry=QUICK)
    put(location, "large", bytes(10_000))
    assert location.replace("rlx.json", b"{}", seen=None)
    assert hub.files("me/pong") == {"large": bytes(10_000), "rlx.json": b"{}"}
    assert refused


def test_a_hub_that_keeps_failing_is_named(hub: HubServer) -> None:
    hub.add("me/pong", {"a": b"a"})
    hub.faults = lambda request: Fault(503) if "/resolve/" in request.path else None
    with pytest.raises(DownloadError, match=r"hf://datasets/me/pong/a: .*503.*tried 3 times"):
        Hub("hf://datasets/me/pong", retry=QUICK).stat("a")


def test_a_cut_connection_resumes(hub: HubServer, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000
    hub.add("me/pong", {"large": content})
    cuts = iter([300_000, 400_000])
    hub.faults = lambda request: Fault(cut=next(cuts, 10**9)) if request.path.startswith("/cdn/") else None
    fetched = Hub("hf://datasets/me/pong", retry=QUICK).fetch("large", tmp_path, Silent())
    assert fetched.path.read_bytes() == content
    assert fetched.transferred == len(content)


def test_a_file_that_is_not_what_the_hub_says_is_refused(hub: HubServer, tmp_path: Path) -> None:
    hub.add("me/pong", {"large": bytes(10_000)})
    (oid,) = hub.objects
    hub.objects[oid] = bytes(9_999) + b"x"
    with pytest.raises(SourceError, match="sha256"):
        Hub("hf://datasets/me/pong", retry=QUICK).fetch("large", tmp_path, Silent())


def test_a_damaged_file_of_a_snapshot_is_fetched_again_and_then_refused(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/pong", {"run/large": bytes(10_000), "run/small": b"s"})
    (oid,) = hub.objects
    whole, hub.objects[oid] = hub.objects[oid], bytes(9_999) + b"x"
    for _ in range(2):
        with pytest.raises(CorruptShardError, match="run/large differs from its sha256 in git LFS"):
            Hub("hf://datasets/me/pong/run", retry=QUICK).snapshot()
    hub.objects[oid] = whole
    found, _ = Hub("hf://datasets/me/pong/run", retry=QUICK).snapshot(Silent())
    (found / "large").resolve().write_bytes(bytes(9_999) + b"y")
    Hub("hf://datasets/me/pong/run", retry=QUICK).snapshot(Silent())
    assert (found / "large").read_bytes() == whole
    (found / "large").resolve().write_bytes(b"z")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CorruptShardError, match="run/large differs"):
        Hub("hf://datasets/me/pong/run", retry=QUICK).snapshot()


def test_the_log_of_a_cut_download_has_no_signature(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    hub.add("me/pong", {"large": bytes(1_000_000)})
    cuts = iter([300_000])
    hub.faults = lambda request: Fault(cut=next(cuts, 10**9)) if request.path.startswith("/cdn/") else None
    logging.getLogger("huggingface_hub").addHandler(caplog.handler)
    try:
        Hub("hf://datasets/me/pong", retry=QUICK).snapshot()
    finally:
        logging.getLogger("huggingface_hub").removeHandler(caplog.handler)
    assert "Error while downloading from" in caplog.text
    assert "s3cret" not in caplog.text


def test_files_of_the_cache_are_read_from_there(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/pong", {"run/rlx.json": b"{}", "run/large": bytes(10_000), "other": b"no"})
    found, card = Hub("hf://datasets/me/pong/run", retry=QUICK).snapshot()
    assert not card.exists()
    assert {path.name for path in found.iterdir()} == {"rlx.json", "large"}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.requests)
    location = Hub("hf://datasets/me/pong/run", retry=QUICK)
    assert get(location, "large") == bytes(10_000)
    assert location.read("large", 3, 5)[0] == bytes(2)
    with pytest.raises(SourceNotFoundError, match="HF_HUB_OFFLINE is set"):
        location.stat("nothing")
    assert Hub("hf://datasets/me/pong/run", retry=QUICK).snapshot() == (found, card)
    shutil.rmtree(tmp_path / "hub")
    with pytest.raises(SourceError, match="hf://datasets/me/pong"):
        Hub("hf://datasets/me/pong/run", retry=QUICK).snapshot()
    assert len(hub.requests) == asked


def test_the_datasets_of_an_organisation_that_rlx_made(hub: HubServer) -> None:
    hub.add("me/pong", {"README.md": b"---\ntags:\n- rlx\n---\n"})
    hub.add("me/text", {"README.md": b"---\ntags:\n- text\n---\n"})
    hub.add("you/pong", {"README.md": b"---\ntags:\n- rlx\n---\n"})
    assert repositories(author="me", tag=TAG) == ["me/pong"]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("hf://datasets/me/pong", HubAddress("me/pong")),
        ("hf://datasets/me/pong/", HubAddress("me/pong")),
        ("hf://datasets/me/pong@refs/pr/3/a", HubAddress("me/pong", "refs/pr/3", "a")),
        ("hf://datasets/me/pong@a%2Fb/c/d", HubAddress("me/pong", "a/b", "c/d")),
    ],
)
def test_addresses(url: str, address: HubAddress) -> None:
    assert HubAddress.parse(url) == address
    assert HubAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    "url", ["hf://me/pong", "hf://datasets/me", "hf://datasets/me/pong/../x", "hf://datasets/a b/c", "hf://models/a/b"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(SourceError, match=r"expected hf://datasets/|not a relative path"):
        HubAddress.parse(url)
    assert organisation_of("hf://datasets/me") == "me"


def test_the_storage_is_asked_directly_until_its_signature_expires(hub: HubServer) -> None:
    content = bytes(range(256)) * 40
    commit = hub.add("me/pong", {"a": content})
    location = Hub(f"hf://datasets/me/pong@{commit}")
    assert location.read("a", 0, 10)[0] == content[:10]
    hub.requests.clear()
    found, stat = location.read("a", 5000, 5100)
    assert (found, stat.sha256, stat.bytes) == (content[5000:5100], sha256(content).hexdigest(), len(content))
    (request,) = hub.requests
    assert request.path.startswith("/cdn/")
    assert "Authorization" not in request.headers
    expired = iter([Fault(403)])
    hub.faults = lambda request: next(expired, None) if "/cdn/" in request.path else None
    assert location.read("a", 7, 9)[0] == content[7:9]
    assert [request.path.split("/")[1] for request in hub.requests[1:]] == ["cdn", "datasets", "cdn"]
