import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    FileAccessError,
    FormatVersionError,
    IncompleteDatasetError,
)
from rlx.manifest import Manifest, ShardRecord
from rlx.store.dataset import Dataset
from rlx.store.layout import small_copies
from rlx.store.verification import UNLISTED, Kind, Problem, verify
from tests.factories import LARGE, make_block, relist, write_dataset
from tests.gcs_server import GcsServer
from tests.privileges import unprivileged

SHARDS = [[make_block([3, 5], first_episode=2 * shard, schema=LARGE)] for shard in range(2)]


@pytest.fixture(params=["zarr", "memmap"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    codec = "zstd-dict" if request.param == "zarr" else "none"
    return write_dataset(tmp_path / "data", SHARDS, schema=LARGE, store=request.param, codec=codec, planned=3).path


class Tally:
    def __init__(self) -> None:
        self.expected: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def expect(self, unit: str, amount: int) -> None:
        self.expected[unit] += amount

    def advance(self, unit: str, amount: int) -> None:
        self.done[unit] += amount


def test_a_whole_dataset(path: Path) -> None:
    tally = Tally()
    found = verify(path, progress=tally)
    manifest = Manifest.load(path)
    assert (found.ok, found.problems, found.missing_shards) == (True, [], ["00002"])
    assert (found.shards, found.bytes) == (2, manifest.bytes)
    assert found.files == sum(len(shard.files) for shard in manifest.shards)
    assert tally.expected == tally.done == Counter({"bytes": manifest.bytes})
    assert len(rlx.open(path, verify=True)) == 16


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "harm",
    [
        Path.stat,
        flip,
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(file.read_bytes() + b"more"),
        lambda file: file.unlink(),
    ],
    ids=["whole", "flipped", "shorter", "longer", "gone"],
)
def test_at_a_url_the_same_is_found(path: Path, harm: Callable[[Path], object]) -> None:
    for name in list(Manifest.load(path).shards[1].files)[::5]:
        harm(path / "shards/00001" / name)
    tally = Tally()
    with GcsServer(path.parent) as server:
        found = verify(f"{server.url}/data", progress=tally)
    assert found == verify(path)
    assert tally.expected == tally.done == Counter({"bytes": found.bytes})


def test_at_a_url_a_manifest_that_tells_another_story(path: Path) -> None:
    manifest = Manifest.load(path)
    manifest.shards[0].statistics["length"]["max"] += 1
    manifest.save(path)
    with GcsServer(path.parent) as server:
        found = verify(f"{server.url}/data")
    assert found.problems == verify(path).problems
    assert "the manifest's statistics of length differ" in found.problems[0].problem


def test_a_flipped_bit_in_any_file(path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in Manifest.load(path).shards[1].files:
        file = path / "shards" / "00001" / name
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        file.write_bytes(damaged)
        (problem,) = verify(path).problems
        assert (problem.shard, problem.file) == ("00001", name)
        assert problem.problem.startswith("has crc32c")
        with pytest.raises(CorruptDatasetError, match=f"00001/{name}: has crc32c"):
            rlx.open(path, verify=True)
        file.write_bytes(whole)
    assert verify(path).ok


def test_missing_truncated_and_longer_files(path: Path) -> None:
    name = Dataset(path).shard_files(0)[0]
    file = path / name
    whole, below = file.read_bytes(), name.removeprefix("shards/00000/")
    expected = f"{len(whole):,}"
    for raw, text in ((whole[:-1], f"{len(whole) - 1:,}"), (whole + b"\0", f"{len(whole) + 1:,}"), (b"", "0")):
        file.write_bytes(raw)
        assert verify(path).problems == [Problem("00000", below, f"has {text} bytes, expected {expected}")]
    file.unlink()
    assert verify(path).problems == [Problem("00000", below, "is missing")]
    file.mkdir()
    assert verify(path).problems == [Problem("00000", below, "is missing")]


def test_a_shard_that_nobody_may_search(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are not missing; the second time as from Python 3.14 on, where ``is_file`` passes over the refusal."""
    shard = path / "shards" / "00000"
    for is_file in (Path.is_file, os.path.isfile):
        monkeypatch.setattr(Path, "is_file", is_file)
        shard.chmod(0)
        with unprivileged():
            problems = verify(path).problems
        shard.chmod(0o755)
        assert {problem.kind for problem in problems} == {Kind.UNREADABLE}


def test_shards_that_nobody_may_list(path: Path) -> None:
    (path / "shards").chmod(0)
    with unprivileged(), pytest.raises(FileAccessError, match=f"^{path}: shards cannot be read"):
        Dataset(path, verify=True)
    (path / "shards").chmod(0o755)


def test_a_missing_shard(path: Path) -> None:
    (path / "shards" / "00001").rename(path / "elsewhere")
    problems = verify(path).problems
    assert {problem.shard for problem in problems} == {"00001"}
    assert {problem.problem for problem in problems} == {"is missing"}


def test_extra_files_and_directories(path: Path) -> None:
    (path / "shards" / "00000" / "notes.txt").touch()
    (path / "shards" / "00000" / "dangling").symlink_to("nowhere")
    (path / "shards" / "00002.4711.partial").mkdir()
    (path / "shards" / "00007").mkdir()
    (path / "rlx.json.partial").touch()
    (path / "shards" / "stray").touch()
    (path / "shards" / "link").symlink_to(path / "shards" / "00000")
    found = verify(path)
    assert found.problems == [
        Problem("00000", "dangling", UNLISTED, Kind.UNLISTED),
        Problem("00000", "notes.txt", UNLISTED, Kind.UNLISTED),
        Problem(None, "shards/link", UNLISTED, Kind.UNLISTED),
        Problem(None, "shards/stray", UNLISTED, Kind.UNLISTED),
    ]


def test_what_interrupted_commands_left_is_no_damage(path: Path) -> None:
    left = ["rlx.json.partial", "rlx.json.12-34.partial", "shards/00000/zarr.json.12-34.partial"]
    for name in left:
        (path / name).touch()
    (path / "shards" / "00002.4711.partial").mkdir()
    (path / "shards" / "00007").mkdir()
    left.append("shards/small.0123456789abcdef")
    for name in (left[-1], small_copies(Manifest.load(path))[0]):  # as a bucket has them: an old one, and the newest
        (path / name).touch()
    found = verify(path)
    assert (found.ok, set(found.leftovers)) == (True, {*left, "shards/00002.4711.partial", "shards/00007"})


def statistics(key: str, figure: str, value: object) -> Callable[[ShardRecord], ShardRecord]:
    def change(shard: ShardRecord) -> ShardRecord:
        return replace(shard, statistics={**shard.statistics, key: {**shard.statistics[key], figure: value}})

    return change


DISAGREEING: dict[str, Callable[[ShardRecord], ShardRecord]] = {
    "steps": lambda shard: replace(shard, steps=9),
    "trajectories": lambda shard: replace(shard, trajectories=3),
    "return": statistics("return", "sum", 9.0),
    "whole episodes": statistics("whole_length", "count", 1),
    "longest": statistics("length", "max", 6.0),
    "null": statistics("return", "min", None),
    "no statistics": lambda shard: replace(shard, statistics={}),
}


@pytest.mark.parametrize("change", DISAGREEING.values(), ids=DISAGREEING)
def test_a_manifest_that_disagrees(path: Path, change: Callable[[ShardRecord], ShardRecord]) -> None:
    manifest = Manifest.load(path)
    manifest.with_shards([change(manifest.shards[1])]).save(path)
    (problem,) = verify(path).problems
    assert (problem.shard, problem.file) == ("00001", None)


def column(path: Path, name: str) -> Path:
    """The file of a small array of the first shard."""
    zarr, memmap = path / "shards/00000" / name / "c" / "0", path / "shards/00000" / f"{name}.memmap"
    return zarr if zarr.exists() else memmap


FORGED = {
    "terminated in the middle": ("terminated", 1, 1, "differ from its table"),
    "an end without its flag": ("terminated", 2, 0, "differ from its table"),
    "truncated besides": ("truncated", 7, 1, "differ from its table"),
    "a table with a flag more": ("trajectories/truncated", 0, 1, "differ from its table"),
    "another reward": ("reward", 3, 0x41, "not the sums of its rewards"),
    "another length": ("trajectories/length", 0, 4, "do not add up to 8 steps"),
}


@pytest.mark.parametrize(("name", "position", "value", "message"), FORGED.values(), ids=FORGED)
def test_files_that_disagree_with_each_other(path: Path, name: str, position: int, value: int, message: str) -> None:
    file = column(path, name)
    raw = bytearray(file.read_bytes())
    assert raw[position] != value
    raw[position] = value
    file.write_bytes(raw)
    relist(path)
    (problem,) = verify(path).problems
    assert (problem.shard, problem.file) == ("00000", None)
    assert message in problem.problem


@pytest.mark.parametrize("name", ["action", "observation", "trajectories/length"])
def test_metadata_of_another_shape_or_dtype(path: Path, name: str) -> None:
    directory = path / "shards" / "00000" / name
    is_zarr = directory.is_dir()
    file = directory / "zarr.json" if is_zarr else directory.with_name("meta.json")
    for key, value in (("shape", [9]), ("data_type" if is_zarr else "dtype", "int8")):
        whole = json.loads(file.read_text())
        array = whole if is_zarr else whole[directory.name]
        kept, array[key] = array[key], value
        file.write_text(json.dumps(whole))
        relist(path)
        (problem,) = verify(path).problems
        assert "expected" in problem.problem
        array[key] = kept
        file.write_text(json.dumps(whole))


def test_a_damaged_manifest_is_a_problem(path: Path) -> None:
    raw = bytearray((path / "rlx.json").read_bytes())
    raw[100] ^= 4
    (path / "rlx.json").write_bytes(raw)
    found = verify(path)
    (problem,) = found.problems
    assert (problem.shard, problem.file, found.ok) == (None, "rlx.json", False)


def test_a_store_that_there_is_not(path: Path) -> None:
    replace(Manifest.load(path), store="tape").save(path)
    (problem,) = verify(path).problems
    assert "store 'tape' is unknown" in problem.problem


def test_what_is_no_dataset_raises(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        verify(tmp_path / "nothing")
    replace(Manifest.load(path), format_version=2).save(path)
    with pytest.raises(FormatVersionError):
        verify(path)
    (path / "rlx.json").unlink()
    with pytest.raises(IncompleteDatasetError):
        verify(path)
