"""What TorchRL's AtariDQNExperienceReplay does to a download that fails, by the numbers of the peer list: not here."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlx
from rlx.errors import CorruptShardError, DatasetNotFoundError, DownloadError, ForbiddenError
from rlx.manifest import Manifest
from tests.gcs_server import Fault, GcsServer
from tests.verbs.datasets import (
    RLU_NAMES,
    check_listed,
    converted,
    fetch,
    from_directory,
    quick,
    shard_trees,
    tree,
    write_dopamine,
    write_rlu,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GcsServer]:
    with GcsServer(write_rlu(tmp_path / "files")) as server:
        yield server


def test_r1_one_failed_file_costs_no_finished_work(server: GcsServer, tmp_path: Path) -> None:
    server.fault(RLU_NAMES[3], Fault(status=404), times=None)
    fetch(quick(server), tmp_path / "set")
    before = shard_trees(tmp_path / "set")
    assert check_listed(tmp_path / "set") == ["00000", "00001", "00002"]
    server.fault("*", Fault(status=500), times=None, method="*")
    with pytest.raises(DownloadError):
        fetch(quick(server), tmp_path / "set")
    assert shard_trees(tmp_path / "set") == before


def test_r1_a_new_attempt_wipes_nothing(server: GcsServer, tmp_path: Path) -> None:
    fetch(quick(server), tmp_path / "set", shards=[0])
    stamp = (tmp_path / "set/shards/00000/zarr.json").stat()
    fetch(quick(server), tmp_path / "set")
    again = (tmp_path / "set/shards/00000/zarr.json").stat()
    assert (again.st_ino, again.st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)
    assert sum(request.name == RLU_NAMES[0] and request.method == "GET" for request in server.requests) == 1


def test_r2_asking_for_fewer_or_more_shards_fetches_only_what_is_missing(server: GcsServer, tmp_path: Path) -> None:
    for shards in ([0, 1], [1], [0, 1, 2]):
        fetch(quick(server), tmp_path / "set", shards=shards)
    fetched = [request.name for request in server.requests if request.method == "GET"]
    assert sorted(fetched) == RLU_NAMES[:3]


def test_r3_no_other_program_is_needed(server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert not fetch(quick(server), tmp_path / "set").failures


def test_r3_a_refusal_is_told_as_one(server: GcsServer, tmp_path: Path) -> None:
    server.fault("*", Fault(status=403), times=None, method="*")
    with pytest.raises(ForbiddenError, match=r"access denied \(HTTP 403\)"):
        fetch(quick(server), tmp_path / "set")
    assert len(server.requests) < 60, "each file is asked for once: it is not tried again"


def test_r3_no_network_is_told_as_that(tmp_path: Path) -> None:
    with GcsServer(tmp_path) as server:
        base = quick(server)
    with pytest.raises(DownloadError, match=r"no answer: .*refused"):
        fetch(base, tmp_path / "set")


def test_r4_a_file_cut_short_is_found_when_it_is_converted(tmp_path: Path) -> None:
    logs = write_dopamine(tmp_path / "files") / "Pong/1/replay_logs"
    path = logs / "$store$_observation_ckpt.2.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    report = converted(logs, tmp_path / "set")
    assert report.failed_shards == ["00001", "00002"]
    assert all(isinstance(error, CorruptShardError) for error in report.failures.values())
    assert all("$store$_observation_ckpt.2.gz" in str(error) for error in report.failures.values())
    path.write_bytes(whole)
    assert tree(converted(logs, tmp_path / "set").dataset) == tree(converted(logs, tmp_path / "other").dataset)


def test_r4_a_missing_file_is_found_when_it_is_converted(tmp_path: Path) -> None:
    logs = write_dopamine(tmp_path / "files") / "Pong/1/replay_logs"
    (logs / "$store$_observation_ckpt.0.gz").unlink()
    report = converted(logs, tmp_path / "set")
    assert report.failed_shards == ["00000"]
    assert "$store$_observation_ckpt.0.gz" in str(report.failures["00000"])
    assert len(rlx.open(report.dataset)) == report.steps


def test_r5_the_manifest_tells_what_is_missing(tmp_path: Path) -> None:
    files = write_rlu(tmp_path / "files")
    (files / RLU_NAMES[1]).write_bytes(b"no gzip")
    report = from_directory(files, tmp_path / "set")
    manifest = Manifest.load(report.dataset)
    assert (manifest.missing, manifest.format_version) == (["00001"], 1)
    assert all(record.crc32c for shard in manifest.shards for record in shard.files.values())
    assert manifest.lineage[0]["rlx"] == rlx.__version__


def test_r5_nothing_is_called_a_dataset_before_there_is_one(tmp_path: Path) -> None:
    files = write_rlu(tmp_path / "files")
    for name in RLU_NAMES:
        (files / name).write_bytes(b"no gzip")
    assert from_directory(files, tmp_path / "set").failed_shards == ["00000", "00001", "00002", "00003"]
    with pytest.raises(DatasetNotFoundError, match=r"expected rlx\.json in it"):
        rlx.open(tmp_path / "set")


def test_r5_temporary_files_of_others_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/something").write_bytes(os.urandom(10))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    assert not from_directory(write_rlu(tmp_path / "files"), tmp_path / "set").failures
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["something"]
