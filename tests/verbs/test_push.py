"""Pushing a dataset: what is sent, in which order, and what a half-done push leaves."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import rlx
from rlx.errors import (
    CorruptDatasetError,
    DatasetError,
    DatasetExistsError,
    DatasetLockedError,
    DatasetNotFoundError,
    DownloadError,
    ForbiddenError,
    IncompleteDatasetError,
    PartialError,
    SourceNotFoundError,
)
from rlx.files.location import Location, Upload, WritableLocation
from rlx.files.opening import open_location
from rlx.manifest import Manifest
from rlx.progress import Silent
from rlx.store.dataset_writer import claimed
from rlx.store.layout import CLAIM, read_manifest
from rlx.store.repair import repair
from rlx.store.verification import verify
from rlx.verbs.push import push
from tests.contracts.progress import Tally
from tests.factories import make_block, write_dataset
from tests.s3_server import S3Server
from tests.verbs.datasets import tree
from tests.verbs.processes import child
from tests.verbs.pushes import During, content, files, sent, stop_after, write


@pytest.fixture(params=["bucket", "container", "directory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A location where nothing is."""
    if request.param == "directory":
        return str(tmp_path / "share/pong")
    return f"{request.getfixturevalue(request.param)}/sets/pong"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three shards, of pictures."""
    return write(tmp_path / "set", 3)


def test_all_of_it_is_there(dataset: Path, url: str) -> None:
    tally = Tally()
    report = push(dataset, url, progress=tally)
    assert content(open_location(url)) == files(dataset)
    num_bytes = sum(len(one) for name, one in files(dataset).items() if name != "rlx.json")
    assert (report.transferred_files, report.transferred_bytes) == (len(files(dataset)) - 1, num_bytes)
    assert tally.done["bytes"] == tally.expected["bytes"] == num_bytes
    assert (report.steps, report.shards, report.skipped_shards) == (24, 3, 0)
    assert report.to_json() | {"seconds": 0, "steps_per_second": 0} == {
        "dataset": str(dataset),
        "id": "Test/1",
        "store": "zarr",
        "shards": 3,
        "steps": 24,
        "trajectories": 6,
        "bytes": num_bytes,
        "seconds": 0,
        "steps_per_second": 0,
        "skipped_shards": 0,
        "failed_shards": [],
        "not_taken": {},
        "url": open_location(url).url,
        "transferred_files": len(files(dataset)) - 1,
        "transferred_bytes": num_bytes,
    }


def test_again_sends_nothing(dataset: Path, url: str) -> None:
    sent(dataset, url)
    before = open_location(url).stat("rlx.json")
    report = sent(dataset, url)
    assert (report.transferred_files, report.transferred_bytes, report.skipped_shards) == (0, 0, 3)
    assert open_location(url).stat("rlx.json") == before


def test_a_directory_is_a_dataset(dataset: Path, tmp_path: Path) -> None:
    sent(dataset, str(tmp_path / "copy"))
    assert verify(tmp_path / "copy").ok
    assert len(rlx.open(tmp_path / "copy")) == 24


def test_only_new_shards_are_sent(tmp_path: Path, url: str) -> None:
    sent(write(tmp_path / "set", 2), url)
    assert read_manifest(open_location(url)).missing == ["00002"]
    report = sent(write(tmp_path / "set", 3), url)
    assert {name.split("/")[1] for name in content(open_location(url)) if "/" in name} == {"00000", "00001", "00002"}
    assert report.skipped_shards == 2
    assert report.transferred_bytes == rlx.open(tmp_path / "set").manifest.shards[2].bytes
    assert content(open_location(url)) == files(tmp_path / "set")


def test_what_is_missing_or_cut_there_is_sent_again(dataset: Path, url: str) -> None:
    sent(dataset, url)
    location = open_location(url)
    gone, cut = list(files(dataset))[-1], "shards/00001/action/c/0"
    location.delete([gone])
    location.put(cut, [b"x"], bytes=1, crc32c="00000000")
    assert sent(dataset, url).transferred_files == 2
    assert content(location) == files(dataset)


def test_another_dataset_is_not_written_over(dataset: Path, tmp_path: Path, url: str) -> None:
    sent(dataset, url)
    before = content(open_location(url))
    other = write_dataset(tmp_path / "other", [[make_block((4,))], [make_block((9,))]]).path
    with pytest.raises(DatasetExistsError, match="holds another dataset: its field observation is") as refused:
        sent(other, url)
    assert refused.value.hint is not None
    assert "`overwrite`" in refused.value.hint
    remade = write(tmp_path / "remade", 3, first_episode=70)
    with pytest.raises(DatasetExistsError, match="its shard 00000 has other files there"):
        sent(remade, url)
    assert content(open_location(url)) == before
    report = sent(other, url, overwrite=True)
    assert report.transferred_files == len(files(other)) - 1
    assert content(open_location(url)) == files(other)


def test_shards_that_are_gone_here_stay_there_unless_one_insists(dataset: Path, url: str) -> None:
    sent(dataset, url)
    before = content(open_location(url))
    (dataset / "shards/00001/action/c/0").write_bytes(b"")
    repair(dataset, delete=True)
    with pytest.raises(DatasetExistsError, match=r"its shard 00001 is not in .*set"):
        sent(dataset, url)
    assert content(open_location(url)) == before
    sent(dataset, url, overwrite=True)
    assert content(open_location(url)) == files(dataset)


def test_the_manifest_is_last_and_first_to_go(
    dataset: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = Recorded(open_location(url))
    monkeypatch.setattr("rlx.verbs.sending.open_location", lambda _: location)
    sent(dataset, url)
    claimed, *sends, listed, released = location.writes
    assert (claimed, listed, released) == (f"replace {CLAIM}", "replace rlx.json", f"delete {CLAIM}")
    assert sorted(sends) == sorted(f"put {name}" for name in files(dataset) if name != "rlx.json")
    location.writes.clear()
    other = write(tmp_path / "other", 2, planned=2)
    sent(other, url, overwrite=True)
    claimed, first, second, *sends, listed, released = location.writes
    assert (claimed, released) == (f"replace {CLAIM}", f"delete {CLAIM}")
    gone = sorted(set(files(dataset)) - set(files(other)))
    assert all(name.startswith("shards/00002/") for name in gone)
    gone += [name for name in second.split() if "/small." in name]
    assert (first, second, listed) == ("delete rlx.json", f"delete {' '.join(gone)}", "replace rlx.json")
    assert sorted(sends) == sorted(f"put {name}" for name in files(other) if name != "rlx.json")


def test_what_is_listed_nowhere_goes_last(dataset: Path, url: str) -> None:
    sent(dataset, url)
    location = open_location(url)
    location.put("shards/00007/zarr.json", [b"{}"], bytes=2, crc32c="00000000")
    assert sent(dataset, url).transferred_files == 0
    assert content(location) == files(dataset)


def test_what_is_none_of_the_dataset_stays(dataset: Path, bucket: str) -> None:
    location = open_location(bucket)
    location.put("thesis.tex", [b"{}"], bytes=2, crc32c="00000000")
    location.put("shards2/00000/zarr.json", [b"{}"], bytes=2, crc32c="00000000")
    sent(dataset, bucket)
    sent(dataset, bucket, overwrite=True)
    assert content(location) == files(dataset)
    assert location.stat("thesis.tex")
    assert location.stat("shards2/00000/zarr.json")


class Recorded:
    """A location that is claimed as a bucket is, and what is written there."""

    directory = None

    def __init__(self, location: Location) -> None:
        self._location = location
        self.writes: list[str] = []

    def put_all(self, files: Sequence[Upload]) -> None:
        WritableLocation.put_all(self, files)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        found = getattr(self._location, name)
        if name not in ("put", "replace", "delete"):
            return found

        def recorded(names: str | list[str], *arguments: object, **more: object) -> object:
            said = names if isinstance(names, str) else " ".join(names)
            result = found(names, *arguments, **more)
            self.writes.append(f"{name} {said}")
            return result

        return recorded


def test_a_damaged_file_here_is_named_and_nothing_is_listed(dataset: Path, url: str) -> None:
    victim = dataset / "shards/00001/observation/c/0/0/0"
    content_ = bytearray(victim.read_bytes())
    content_[7] ^= 1
    victim.write_bytes(content_)
    with pytest.raises(CorruptDatasetError, match="shards/00001/observation/c/0/0/0 is damaged: ") as failed:
        sent(dataset, url)
    assert failed.value.hint == f"rlx repair {dataset}"
    with pytest.raises(DatasetNotFoundError):
        read_manifest(open_location(url))
    assert "shards/00001/observation/c/0/0/0" not in content(open_location(url))
    victim.unlink()
    with pytest.raises(CorruptDatasetError, match="is missing"):
        sent(dataset, url)


def test_an_interrupted_push_goes_on(dataset: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{bucket}/set"
    with monkeypatch.context() as patched:
        stop_after(4, patched)
        with pytest.raises(KeyboardInterrupt):
            push(dataset, url, jobs=1, progress=Silent())
    with pytest.raises(DatasetNotFoundError):
        read_manifest(open_location(url))
    there = len(content(open_location(url)))
    assert 4 <= there < len(files(dataset)) - 1
    tally = Tally()
    report = push(dataset, url, progress=tally)
    assert report.transferred_files == len(files(dataset)) - 1 - there
    assert tally.done["bytes"] == tally.expected["bytes"] == report.bytes
    assert content(open_location(url)) == files(dataset)


@pytest.mark.parametrize("wait_s", [0.0, 0.02, 0.1])
def test_a_killed_push_never_looks_whole_and_goes_on(dataset: Path, url: str, wait_s: float) -> None:
    with child("push", str(dataset), url, 2) as started:
        time.sleep(wait_s)
        started.kill(whole_group=True)
    there = content(open_location(url))
    assert "rlx.json" not in there or there == files(dataset)
    sent(dataset, url)
    assert content(open_location(url)) == files(dataset)


def test_leftovers_of_a_killed_push_are_no_damage_and_are_swept(dataset: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    sent(dataset, str(there))
    left = ["rlx.json.12-34.partial", "shards/00000/zarr.json.12-34.partial", "shards/00001/action/c/0.1-2.partial"]
    for name in left:
        (there / name).write_bytes(b"half")
    found = verify(there)
    assert (found.ok, sorted(found.leftovers)) == (True, sorted(left))
    sent(dataset, str(there))
    assert verify(there).leftovers == []
    assert files(there) == files(dataset)


def test_some_files_that_cannot_be_sent(dataset: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    location = open_location(url)
    put, failing = location.put, ["shards/00001/action/c/0", "shards/00002/zarr.json"]

    def broken(name: str, *arguments: object, **more: object) -> None:
        if name in failing:
            raise DownloadError(f"{name}: the line is dead")
        put(name, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(location, "put", broken)
    monkeypatch.setattr("rlx.verbs.sending.open_location", lambda _: location)
    with pytest.raises(PartialError, match=r"2 of \d+ files could not be sent to .*: the line is dead") as failed:
        sent(dataset, url)
    assert failed.value.hint == "run the same command again: it sends the rest"
    assert "rlx.json" not in content(open_location(url))
    failing.clear()
    sent(dataset, url)
    assert content(open_location(url)) == files(dataset)


def test_whoever_is_overtaken_lists_nothing(dataset: Path, url: str) -> None:
    location = open_location(url)
    manifest = Manifest.load(dataset)

    another = replace(manifest, notes={"by": "another"}).encode()
    overtaking = During(lambda: location.replace("rlx.json", another, seen=None))
    with pytest.raises(DatasetLockedError, match="changed by another push meanwhile"):
        push(dataset, url, progress=overtaking)
    assert read_manifest(location).notes == {"by": "another"}


def test_a_bucket_that_refuses(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server(lets_anybody=False) as server:
        server.make_bucket("closed")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ForbiddenError, match="access denied"):
            sent(dataset, "s3://closed/set")


@pytest.mark.usefixtures("bucket")
def test_no_such_bucket(dataset: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="s3://nowhere/set: no such bucket"):
        sent(dataset, "s3://nowhere/set")


def test_a_web_server_is_refused_before_anything_is_asked(dataset: Path) -> None:
    with pytest.raises(DatasetError, match=r"http://127\.0\.0\.1:1/set is read-only"):
        sent(dataset, "http://127.0.0.1:1/set")


def test_a_dataset_that_is_being_written_waits(dataset: Path, url: str) -> None:
    with claimed(dataset), pytest.raises(IncompleteDatasetError, match="is being written"):
        sent(dataset, url)


def test_directories_that_hold_something_else(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("")
    with pytest.raises(DatasetExistsError, match=r"holds thesis\.tex"):
        sent(dataset, str(tmp_path / "mine"))
    with pytest.raises(DatasetExistsError, match="is the source itself"):
        sent(dataset, str(dataset))
    assert tree(dataset)


def test_no_dataset(tmp_path: Path, url: str) -> None:
    with pytest.raises(DatasetNotFoundError):
        sent(tmp_path / "nothing", url)
