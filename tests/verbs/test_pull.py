"""Pulling a dataset: what arrives is what was pushed, whatever happens on the way, and nothing else gets here."""

import json
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rlx
from rlx.errors import (
    CorruptDatasetError,
    CorruptShardError,
    DatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    DiskFullError,
    DownloadError,
    ForbiddenError,
    FormatVersionError,
    SourceNotFoundError,
)
from rlx.files.opening import open_location
from rlx.files.retry import RetryPolicy
from rlx.manifest import FileRecord, Manifest
from rlx.progress import Silent
from rlx.store.dataset_writer import claimed
from rlx.store.verification import verify
from rlx.verbs.pull import pull
from rlx.verbs.push import push
from rlx.verbs.transfers import TransferReport, transfer
from tests.contracts.progress import Tally
from tests.factories import LARGE, make_block, write_dataset
from tests.gcs_server import Fault, GcsServer
from tests.verbs.datasets import check_listed, tree, wait_until
from tests.verbs.processes import child

FRAMES = "shards/00001/observation/c/0/0/0"


def write(path: Path, shards: int = 3, *, codec: str = "none", first_episode: int = 0) -> Path:
    blocks = [[make_block((30, 50), first_episode=first_episode + 2 * n, schema=LARGE)] for n in range(shards)]
    return write_dataset(path, blocks, schema=LARGE, planned=3, codec=codec).path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three shards of pictures as they are, 100 kB each."""
    return write(tmp_path / "served/set")


@pytest.fixture
def server(dataset: Path) -> Iterator[GcsServer]:
    """A web server below which the dataset lies."""
    with GcsServer(dataset.parent) as server:
        yield server


def pulled(url: str, destination: Path | None, *, overwrite: bool = False) -> TransferReport:
    return pull(url, destination, overwrite=overwrite)


@pytest.mark.parametrize("kind", ["bucket", "container", "directory", "file", "web"])
def test_what_arrives_is_what_lay_there(
    kind: str, dataset: Path, server: GcsServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = {"directory": str(dataset), "file": dataset.as_uri(), "web": f"{server.url}/set"}.get(kind)
    if url is None:
        url = f"{request.getfixturevalue(kind)}/set"
        push(dataset, url, progress=Silent())
    tally = Tally()
    report = pull(url, tmp_path / "here", progress=tally)
    assert tree(tmp_path / "here") == tree(dataset)
    assert verify(tmp_path / "here").ok
    num_files = len(tree(dataset)) - 1
    assert (report.transferred_files, report.transferred_bytes, report.skipped_shards) == (num_files, report.bytes, 0)
    assert tally.done == tally.expected == {"bytes": report.transferred_bytes, "shards": 3}
    again = pulled(url, tmp_path / "here")
    assert (again.transferred_files, again.transferred_bytes, again.skipped_shards) == (0, 0, 3)
    assert tree(tmp_path / "here") == tree(dataset)
    assert again.to_json()["dataset"] == str(tmp_path / "here")
    assert (again.to_json()["transferred_bytes"], again.to_json()["failed_shards"]) == (0, [])


def test_it_lands_below_home_by_its_id(server: GcsServer, home: Path, dataset: Path) -> None:
    assert pulled(f"{server.url}/set", None).dataset == home / "Test/1"
    assert tree(home / "Test/1") == tree(dataset)


@pytest.mark.parametrize("id", ["../../secret", "/etc/rlx", ".hidden", "a//b", "a\\..\\b"])
def test_an_id_does_not_lead_out_of_home(id: str, server: GcsServer, home: Path, dataset: Path, tmp_path: Path) -> None:
    replace(Manifest.load(dataset), id=id).save(dataset)
    with pytest.raises(DatasetError, match="is not a path below") as refused:
        pulled(f"{server.url}/set", None)
    assert refused.value.hint == "choose a directory with -o"
    assert not home.exists()
    assert len(rlx.open(pulled(f"{server.url}/set", tmp_path / "here").dataset)) == 240


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "a/../../../evil", "..", "a\\b", ".bashrc", "a//b", ""])
@pytest.mark.parametrize("what", ["file", "shard", "planned"])
def test_a_manifest_cannot_name_what_is_outside(
    name: str, what: str, dataset: Path, server: GcsServer, tmp_path: Path
) -> None:
    manifest = Manifest.load(dataset)
    first, *others = manifest.shards
    if what == "file":
        files = {**first.files, name: FileRecord(4, "00000000")}
        evil = replace(manifest, shards=[replace(first, files=files), *others])
    elif what == "shard":
        evil = replace(manifest, shards=[*manifest.shards, replace(first, name=name)])
    else:
        evil = replace(manifest, planned=[name])
    evil.save(dataset)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CorruptDatasetError, match=r"/set/rlx\.json is damaged"):
        pulled(f"{server.url}/set", tmp_path / "here")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["zarr.json/evil", "action"])
def test_a_manifest_that_takes_a_name_twice(name: str, dataset: Path, server: GcsServer, tmp_path: Path) -> None:
    manifest = Manifest.load(dataset)
    files = {**manifest.shards[0].files, name: FileRecord(0, "00000000")}
    replace(manifest, shards=[replace(manifest.shards[0], files=files), *manifest.shards[1:]]).save(dataset)
    report = pull(f"{server.url}/set", tmp_path / "here", jobs=1, progress=Silent())
    # A directory has the name of the array.
    expected = "no such file" if name == "action" else "both as a file and as a directory"
    assert expected in str(report.failures["00000"])
    assert report.shards == 2


def test_only_new_shards_are_fetched(tmp_path: Path) -> None:
    url = str(tmp_path / "set")
    write(tmp_path / "set", 2)
    pulled(url, tmp_path / "here")
    write(tmp_path / "set", 3)
    manifest = Manifest.load(tmp_path / "set")
    replace(manifest, notes={"reward": "clipped"}).save(tmp_path / "set")
    report = pulled(url, tmp_path / "here")
    assert (report.skipped_shards, report.steps) == (2, 240)
    assert report.transferred_bytes == manifest.shards[2].bytes
    assert tree(tmp_path / "here") == tree(tmp_path / "set")


def test_another_dataset_is_not_written_over(dataset: Path, tmp_path: Path) -> None:
    pulled(str(dataset), tmp_path / "here")
    before = tree(tmp_path / "here")
    coded = write(tmp_path / "coded", codec="zstd")
    with pytest.raises(DatasetExistsError, match="holds another dataset: its codec is"):
        pulled(str(coded), tmp_path / "here")
    remade = write(tmp_path / "remade", first_episode=50)
    with pytest.raises(DatasetExistsError, match="its shard 00000 is not that of"):
        pulled(str(remade), tmp_path / "here")
    assert tree(tmp_path / "here") == before
    pulled(str(coded), tmp_path / "here", overwrite=True)
    assert tree(tmp_path / "here") == tree(coded)


def test_a_directory_that_holds_something_else(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("")
    with pytest.raises(DatasetExistsError, match=r"holds thesis\.tex"):
        pulled(str(dataset), tmp_path / "mine")
    with pytest.raises(DatasetExistsError, match="is the source itself"):
        pulled(str(dataset), dataset, overwrite=True)
    assert verify(dataset).ok


def test_a_damaged_object_is_named_and_its_shard_not_listed(
    dataset: Path, server: GcsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = (dataset / FRAMES).read_bytes()
    (dataset / FRAMES).write_bytes(whole[:5000] + b"\xff" + whole[5001:])
    report = pulled(f"{server.url}/set", tmp_path / "here")
    (failure,) = report.failures.values()
    assert isinstance(failure, CorruptShardError)
    assert f"{server.url}/set/{FRAMES} arrived corrupt: expected crc32c" in str(failure)
    assert f"shard 00001: {failure}" in caplog.text
    assert (report.failed_shards, check_listed(tmp_path / "here")) == (["00001"], ["00000", "00002"])
    (dataset / FRAMES).write_bytes(whole)
    again = pulled(f"{server.url}/set", tmp_path / "here")
    # All but the one that was damaged had arrived.
    assert (again.transferred_bytes, again.skipped_shards) == (len(whole), 2)
    assert tree(tmp_path / "here") == tree(dataset)


@pytest.mark.parametrize("more", [-99_000, -7, 4])
def test_an_object_of_another_length(more: int, dataset: Path, server: GcsServer, tmp_path: Path) -> None:
    whole = (dataset / FRAMES).read_bytes()
    found = (whole + bytes(4))[: len(whole) + more]
    (dataset / FRAMES).write_bytes(found)
    report = pulled(f"{server.url}/set", tmp_path / "here")
    assert f"has {len(found):,} bytes, expected {len(whole):,}" in str(report.failures["00001"])
    assert check_listed(tmp_path / "here") == ["00000", "00002"]


def test_an_object_that_is_gone(dataset: Path, server: GcsServer, tmp_path: Path) -> None:
    (dataset / FRAMES).unlink()
    report = pulled(f"{server.url}/set", tmp_path / "here")
    assert isinstance(report.failures["00001"], SourceNotFoundError)
    assert check_listed(tmp_path / "here") == ["00000", "00002"]


def test_a_file_goes_on_where_it_stopped(dataset: Path, server: GcsServer, tmp_path: Path) -> None:
    size = (dataset / FRAMES).stat().st_size
    half = f"{tmp_path}/here/source/pull/{FRAMES}.partial"
    server.fault(f"*{FRAMES}", Fault(trickle=(1000, 0.01)), times=None)
    with child("pull", f"{server.url}/set", tmp_path / "here", 8) as started:
        wait_until(lambda: Path(half).exists() and Path(half).stat().st_size > 5000)
        started.kill(whole_group=True)
    arrived = Path(half).stat().st_size
    assert 5000 < arrived < size
    server.heal()
    asked = len(server.requests)
    report = pulled(f"{server.url}/set", tmp_path / "here")
    ranges = [request.range for request in server.requests[asked:] if request.name.endswith(FRAMES)]
    assert ranges == [f"bytes={arrived}-"]
    assert tree(tmp_path / "here") == tree(dataset)
    assert report.transferred_bytes < report.bytes - arrived


def test_what_had_arrived_is_not_told_again(dataset: Path, server: GcsServer, tmp_path: Path) -> None:
    server.fault(f"*{FRAMES}", Fault(status=404), times=None)
    first = pulled(f"{server.url}/set", tmp_path / "here")
    server.heal()
    again = pulled(f"{server.url}/set", tmp_path / "here")
    assert (again.transferred_files, again.transferred_bytes) == (1, (dataset / FRAMES).stat().st_size)
    assert first.transferred_files == len(tree(dataset)) - 2  # that file, and the manifest


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment(seed: int, dataset: Path, server: GcsServer, tmp_path: Path) -> None:
    server.fault("*", Fault(trickle=(3000, 0.003)), times=None)
    with child("pull", f"{server.url}/set", tmp_path / "here", 3) as started:
        time.sleep(0.1 * seed)
        started.kill(whole_group=True)
    whole = check_listed(tmp_path / "here")
    server.heal()
    pulled(f"{server.url}/set", tmp_path / "here")
    assert tree(tmp_path / "here") == tree(dataset)
    assert set(check_listed(tmp_path / "here")) >= set(whole)


def test_what_arrived_of_another_version_is_forgotten(dataset: Path, tmp_path: Path) -> None:
    arriving = tmp_path / "here/source/pull" / FRAMES
    arriving.parent.mkdir(parents=True)
    size = (dataset / FRAMES).stat().st_size
    arriving.with_name("0.partial").write_bytes(bytes(500))
    stat = {"name": FRAMES, "url": "elsewhere", "bytes": size, "crc32c": "deadbeef"}
    arriving.with_name("0.partial.json").write_text(json.dumps(stat))
    (tmp_path / "here/source/pull/shards/00001/zarr.json").write_bytes(b"none of it")
    assert pulled(str(dataset), tmp_path / "here").transferred_bytes == Manifest.load(dataset).bytes
    assert tree(tmp_path / "here") == tree(dataset)


def test_raw_files_of_a_download_stay(dataset: Path, tmp_path: Path) -> None:
    kept = tmp_path / "here/source/run_5-00000-of-00050"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"kept")
    pulled(str(dataset), tmp_path / "here")
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_a_server_that_fails_for_some_files(
    dataset: Path, server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlx.files.bucket.DEFAULT_RETRY", RetryPolicy(attempts=2, first_delay_s=0.1))
    server.fault("*shards/00002/*", Fault(status=503), times=None)
    report = pulled(f"{server.url}/set", tmp_path / "here")
    assert isinstance(report.failures["00002"], DownloadError)
    assert "run the same command again" in str(report.error and report.error.hint)
    assert check_listed(tmp_path / "here") == ["00000", "00001"]
    server.heal()
    assert pulled(f"{server.url}/set", tmp_path / "here").skipped_shards == 2
    assert tree(tmp_path / "here") == tree(dataset)


def test_forbidden_missing_and_unknown(dataset: Path, server: GcsServer, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"no dataset at .*/nothing: expected rlx\.json in it"):
        pulled(f"{server.url}/nothing", tmp_path / "here")
    server.fault("*/rlx.json", Fault(status=403))
    with pytest.raises(ForbiddenError, match="access denied"):
        pulled(f"{server.url}/set", tmp_path / "here")
    raw = (dataset / "rlx.json").read_bytes()
    (dataset / "rlx.json").write_bytes(raw.replace(b"Test/1", b"Test/2"))
    with pytest.raises(CorruptDatasetError, match="is damaged: expected crc32c"):
        pulled(f"{server.url}/set", tmp_path / "here")
    (dataset / "rlx.json").write_bytes(replace(Manifest.load(write(tmp_path / "new")), format_version=99).encode())
    with pytest.raises(FormatVersionError, match="format version 99"):
        pulled(f"{server.url}/set", tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_server_that_forbids_in_the_middle(dataset: Path, server: GcsServer, tmp_path: Path) -> None:
    server.fault(f"*{FRAMES}", Fault(status=403), times=None)
    with pytest.raises(ForbiddenError, match=f"{FRAMES}: access denied"):
        pulled(f"{server.url}/set", tmp_path / "here")
    server.heal()
    pulled(f"{server.url}/set", tmp_path / "here")
    assert tree(tmp_path / "here") == tree(dataset)


@pytest.mark.usefixtures("bucket")
def test_no_such_bucket(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="no such bucket"):
        pulled("s3://nowhere/set", tmp_path / "here")


def test_one_writer_at_a_time(dataset: Path, tmp_path: Path) -> None:
    with claimed(tmp_path / "here"), child("pull", str(dataset), tmp_path / "here", 1) as started:
        assert "DatasetLockedError" in started.output()[0]


def test_no_room(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DiskFullError, match="no room for") as raised:
        pulled(str(dataset), tmp_path / "here")
    assert raised.value.hint == "free some space, or choose another directory with -o"
    assert not (tmp_path / "here/rlx.json").exists()


def test_a_dataset_without_shards(tmp_path: Path) -> None:
    write(tmp_path / "set", 0)
    report = pulled(str(tmp_path / "set"), tmp_path / "here")
    assert (report.transferred_files, report.shards) == (0, 0)
    assert tree(tmp_path / "here") == tree(tmp_path / "set")


def test_what_was_pulled_can_be_pushed_and_pulled_again(dataset: Path, bucket: str, tmp_path: Path) -> None:
    push(dataset, bucket, progress=Silent())
    pulled(bucket, tmp_path / "one")
    assert push(tmp_path / "one", bucket, progress=Silent()).transferred_files == 0
    push(tmp_path / "one", f"{bucket}/copy", progress=Silent())
    pulled(f"{bucket}/copy", tmp_path / "two")
    assert tree(tmp_path / "two") == tree(dataset)
    assert open_location(bucket).stat("rlx.json").bytes == (tmp_path / "two/rlx.json").stat().st_size


def test_ctrl_c_keeps_what_has_arrived(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(items: Sequence[str], move: Any, **more: Any) -> Generator[Any, None, None]:
        for number, moved in enumerate(transfer(items, move, **more)):
            if number == 30:
                raise KeyboardInterrupt
            yield moved

    with monkeypatch.context() as patched:
        patched.setattr("rlx.verbs.receiving.transfer", stopped)
        with pytest.raises(KeyboardInterrupt):
            pull(str(dataset), tmp_path / "here", jobs=1, progress=Silent())
    report = pulled(str(dataset), tmp_path / "here")
    assert report.transferred_bytes < report.bytes
    assert tree(tmp_path / "here") == tree(dataset)
