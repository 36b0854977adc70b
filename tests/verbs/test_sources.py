"""Runs from several bases: which one serves a file, and what is noticed of those that do not."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlx
from rlx.errors import DatasetExistsError, DownloadError, FileAccessError, ForbiddenError, OptionError
from rlx.formats import rl_unplugged
from rlx.verbs.sources import DEFAULTS, Base, Place, configured_bases
from tests.conftest import Cli
from tests.gcs_server import Fault, GcsServer
from tests.verbs.datasets import (
    RLU_NAMES,
    RLU_SHARDS,
    fetch,
    from_directory,
    quick,
    tree_from_anywhere,
    write_dopamine,
    write_rlu,
)
from tests.verbs.test_download_http import WRONG_HASH

PLAIN = {"x-goog-hash": None}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_rlu(tmp_path / "files")


@pytest.fixture
def servers(files: Path, tmp_path: Path) -> Iterator[tuple[GcsServer, GcsServer]]:
    with GcsServer(write_rlu(tmp_path / "mirror")) as mirror, GcsServer(files) as published:
        yield mirror, published


@pytest.fixture
def undisturbed(files: Path, tmp_path: Path) -> dict[str, str]:
    return tree_from_anywhere(from_directory(files, tmp_path / "undisturbed", shards=list(RLU_SHARDS)).dataset)


def places(*servers: GcsServer) -> list[Place]:
    """The servers as bases; the last one is rlx's own."""
    bases: list[Place] = [(Base(server.url), quick(server)) for server in servers]
    return [*bases[:-1], (DEFAULTS[0], bases[-1][1])]


def bases_of(dataset: Path) -> list[str]:
    """Which server each shard came from."""
    shards = rlx.open(dataset).manifest.shards
    return [base for shard in shards for base in shard.origin["bases"]]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(status=404), id="lacks"),
        pytest.param(Fault(status=403), id="refuses"),
        pytest.param(Fault(status=503), id="fails"),
        pytest.param(Fault(headers=WRONG_HASH), id="states another checksum"),
        pytest.param(Fault(headers={**PLAIN, "x-goog-stored-content-length": "7"}), id="states another length"),
    ],
)
def test_a_shard_that_one_base_does_not_have_comes_from_the_next(
    servers: tuple[GcsServer, GcsServer],
    undisturbed: dict[str, str],
    tmp_path: Path,
    fault: Fault,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mirror, published = servers
    mirror.fault(RLU_NAMES[1], fault, times=None, method="*")
    report = fetch(places(*servers), tmp_path / "set")
    assert not report.failures
    assert tree_from_anywhere(report.dataset) == undisturbed
    if fault.status == 503:  # a base that does not answer is tried last from then on
        assert set(bases_of(report.dataset)) == {published.url}
        return
    assert bases_of(report.dataset) == [mirror.url, published.url, mirror.url, mirror.url]
    assert rlx.open(report.dataset).manifest.notes["origin"] == [mirror.url, published.url]
    assert f"{RLU_NAMES[1]} comes from {published.url} instead" in caplog.text


def test_a_changed_shard_of_a_mirror_without_checksums_is_noticed(
    servers: tuple[GcsServer, GcsServer], undisturbed: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mirror, published = servers
    mirror.fault("*", Fault(headers=PLAIN), times=None, method="*")
    changed = mirror.directory / RLU_NAMES[2]
    changed.write_bytes(changed.read_bytes()[::-1])
    report = fetch(places(*servers), tmp_path / "set")
    assert tree_from_anywhere(report.dataset) == undisturbed
    assert bases_of(report.dataset) == [mirror.url, mirror.url, published.url, mirror.url]
    assert "expected crc32c" in caplog.text


@pytest.mark.parametrize("shard", [0, 2])  # the dictionary is made of the first
def test_a_damaged_shard_is_noticed_without_any_checksum_of_the_servers(
    servers: tuple[GcsServer, GcsServer], undisturbed: dict[str, str], tmp_path: Path, shard: int
) -> None:
    for server in servers:
        server.fault("*", Fault(headers=PLAIN), times=None, method="*")
    mirror, published = servers
    damaged = mirror.directory / RLU_NAMES[shard]
    damaged.write_bytes(damaged.read_bytes()[:-9] + bytes(9))
    report = fetch(places(*servers), tmp_path / "set")
    assert not report.failures
    assert tree_from_anywhere(report.dataset) == undisturbed
    assert bases_of(report.dataset)[shard] == published.url
    assert bases_of(report.dataset).count(mirror.url) == 3
    (published.directory / RLU_NAMES[shard]).write_bytes(damaged.read_bytes())
    assert fetch(places(*servers), tmp_path / "none").failed_shards == [f"{shard:05d}"]


def test_a_server_that_does_not_answer_is_not_asked_for_every_file(files: Path, tmp_path: Path) -> None:
    with GcsServer(files) as server:
        server.fault("*", Fault(status=503), times=None, method="*")
        with pytest.raises(DownloadError, match=f"{RLU_NAMES[0]}.*503"):
            fetch([(DEFAULTS[0], quick(server))], tmp_path / "set", shards=list(range(50)))
        assert {request.name for request in server.requests} == {*RLU_NAMES[:2]}


def test_the_only_file_that_a_server_fails_to_read_may_be_the_first(files: Path, tmp_path: Path) -> None:
    with GcsServer(files) as server:
        server.fault(RLU_NAMES[0], Fault(status=503), times=None, method="*")
        report = fetch([(DEFAULTS[0], quick(server))], tmp_path / "set")
    assert report.failed_shards == ["00000"]
    assert report.shards == len(RLU_SHARDS) - 1


def test_the_checksum_of_a_damaged_shard_does_not_count(
    servers: tuple[GcsServer, GcsServer], undisturbed: dict[str, str], tmp_path: Path
) -> None:
    first, second = servers
    damaged = first.directory / RLU_NAMES[1]
    damaged.write_bytes(damaged.read_bytes()[:-9] + bytes(9))
    report = fetch([(Base(server.url), quick(server)) for server in servers], tmp_path / "set")
    assert not report.failures
    assert tree_from_anywhere(report.dataset) == undisturbed
    assert bases_of(report.dataset)[1] == second.url


def test_a_transfer_that_breaks_off_is_not_resumed_with_other_bytes(
    servers: tuple[GcsServer, GcsServer], undisturbed: dict[str, str], tmp_path: Path
) -> None:
    mirror, published = servers
    for server in servers:
        server.fault("*", Fault(headers=PLAIN), times=None, method="HEAD")
    mirror.fault(RLU_NAMES[3], Fault(cut_after=500, headers=PLAIN))
    mirror.fault(RLU_NAMES[3], Fault(cut_after=0, headers=PLAIN), times=None)
    mirror.fault("*", Fault(headers=PLAIN), times=None)
    published.fault("*", Fault(headers=PLAIN), times=None)
    report = fetch(places(*servers), tmp_path / "set")
    assert tree_from_anywhere(report.dataset) == undisturbed
    assert [request.range for request in published.requests if request.method == "GET"][:1] == [None]


def test_the_copy_in_another_order_is_used_alone(files: Path, tmp_path: Path) -> None:
    with GcsServer(files) as ordered, GcsServer(files) as unordered:
        servers = (ordered, unordered)
        bases: list[Place] = [(base, quick(server)) for base, server in zip(DEFAULTS, servers, strict=True)]
        ordered.fault(RLU_NAMES[1], Fault(status=403), times=None, method="*")
        report = fetch(bases, tmp_path / "set")
        assert report.failed_shards == ["00001"]  # not mixed
        ordered.fault("*", Fault(status=403), times=None, method="*")
        with pytest.raises(ForbiddenError):
            fetch(bases, tmp_path / "set")
        with pytest.raises(DatasetExistsError, match="shards of atari_episodes_ordered: mixing them"):
            fetch(bases[1:], tmp_path / "set")
        report = fetch(bases, tmp_path / "other")
        assert not report.failures
        assert rlx.open(report.dataset).manifest.notes["order"].startswith("unknown")
        assert set(bases_of(report.dataset)) == {unordered.url}


def test_dopamines_layout_fails_over_too(tmp_path: Path) -> None:
    with GcsServer(write_dopamine(tmp_path / "a")) as one, GcsServer(write_dopamine(tmp_path / "b")) as other:
        expected = tree_from_anywhere(fetch(quick(other), tmp_path / "expected", "Pong/1").dataset)
        one.fault("*observation_ckpt.2.gz", Fault(status=404), times=None, method="*")
        bases: list[Place] = [(Base(server.url), quick(server)) for server in (one, other)]
        report = fetch(bases, tmp_path / "set", "Pong/1")
        assert tree_from_anywhere(report.dataset) == expected
        assert [shard.origin["bases"] for shard in rlx.open(report.dataset).manifest.shards][1] == [one.url, other.url]


@pytest.fixture
def listed(servers: tuple[GcsServer, GcsServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Bases in ``RLX_SOURCES``: one that is dead, one that lacks the run, one that has it, a directory."""
    mirror, published = servers
    (mirror.directory / RLU_NAMES[0]).unlink()
    probed = published.directory / "Pong/run_1-00000-of-00050"
    probed.write_bytes((published.directory / RLU_NAMES[0]).read_bytes())
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://user:s3cret@127.0.0.1:{unused.getsockname()[1]}/base?token=s3cret"
    bases = [dead, mirror.url, published.url, str(tmp_path / "files")]
    monkeypatch.setenv("RLX_SOURCES", " ".join(bases))
    return bases


def test_list_shows_and_probes_them(listed: list[str], cli: Cli) -> None:
    result = cli("list", "--sources", "--json")
    assert (result.code, result.err) == (0, "")
    assert "s3cret" not in result.out
    found = json.loads(result.out)
    assert [one["state"] for one in found] == ["unreachable", "missing", "ok", "ok"]
    assert [one["layout"] for one in found] == [None, None, "rlu", "rlu"]
    assert {one["configured"] for one in found} == {"RLX_SOURCES"}
    assert found[3]["source"] == listed[3]
    shown = cli("list", "--sources", "--game", "Breakout")
    assert (shown.code, shown.out.count("missing"), "s3cret" in shown.out + shown.err) == (0, 3, False)


@pytest.mark.usefixtures("listed")
def test_download_uses_them(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.verbs.sources._SOON", quick.__globals__["QUICK"])
    result = cli("download", "Pong/5", "--shards", "0-3", "-o", tmp_path / "set", "--json", "--quiet")
    assert result.code == 0, result.err
    assert "s3cret" not in result.err + (tmp_path / "set/rlx.json").read_text()
    plan = json.loads(cli("download", "Pong/5", "--shards", "0", "-o", tmp_path / "new", "--dry-run", "--json").out)
    assert plan["files"][0]["bytes"]


def test_where_the_list_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured_bases() == list(DEFAULTS)
    assert [base.url.rpartition("/")[2] for base in DEFAULTS] == ["atari_episodes_ordered", "atari_episodes"]
    path = tmp_path / "config/rlx/sources.toml"
    path.parent.mkdir(parents=True)
    path.write_text('sources = ["gs://mine/rlu", {url = "/data/dqn", layout = "dopamine"}, "default"]\n')
    assert configured_bases() == [
        Base("gs://mine/rlu", None, str(path)),
        Base("/data/dqn", "dopamine", str(path)),
        *DEFAULTS,
    ]
    monkeypatch.setenv("RLX_SOURCES", "default /data/dqn")
    assert configured_bases() == [*DEFAULTS, Base("/data/dqn", None, "RLX_SOURCES")]
    assert not rl_unplugged.is_ordered("gs://mine/atari_episodes/")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sources = [", "is not TOML"),
        ("sources = " + "[" * 10_000, "is not TOML"),
        ("sources = []", "expected a list of sources"),
        ('source = ["a"]', "expected a list of sources"),
        ("sources = [3]", "expected a URL or {url, layout}, found 3"),
        ('sources = [{url = "a", retries = 3}]', "expected a URL or {url, layout}"),
        ('sources = [{url = "a", layout = "lmdb"}]', "unknown layout 'lmdb': expected rlu or dopamine"),
    ],
)
def test_a_list_that_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "config/rlx/sources.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(OptionError) as raised:
        configured_bases()
    assert problem in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_list_that_is_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "config/rlx/sources.toml"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(FileAccessError, match=r"sources\.toml is not a regular file"):
        configured_bases()
