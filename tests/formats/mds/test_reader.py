"""An MDS dataset that MosaicML's own writer wrote (scripts/make_mds.py), whole and damaged."""

import bz2
import gzip
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.formats.common.rows.table import TableRun
from rlx.formats.finding import find_run
from rlx.formats.mds import FORMAT
from rlx.formats.mds.reader import open_mds
from rlx.testing.source import SourceContract, read, same, steps_or_error

GOLDEN = Path(__file__).parents[2] / "golden/mds"
COLUMNS = {"observation": "frame", "action": "act", "reward": "r", "terminated": "done"}
OPTIONS = "mds:" + ",".join(f"{option}={column}" for option, column in COLUMNS.items())


def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "a"))


def change_index(path: Path, **said: Any) -> None:
    index = json.loads((path / "index.json").read_text())
    index["shards"][0] |= said
    (path / "index.json").write_text(json.dumps(index))


class TestMds(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return copy(tmp_path)

    @pytest.fixture
    def source(self, root: Path) -> TableRun:
        return open_mds(root, **COLUMNS)


def test_every_value(tmp_path: Path) -> None:
    source = find_run(copy(tmp_path), None, OPTIONS)
    first, second, third = read(source, 0)
    assert first["observation"].shape == (4, 8, 9, 3)
    assert third["observation"][:5, 0, 0, 0].tolist() == [32, 33, 34, 35, 36]
    assert (second["action"].tolist(), third["reward"].tolist()) == ([0], [16, 16.5, 17, 17.5, 18])
    assert third["state"].tolist() == [[32, 0.5], [33, 0.5], [34, 0.5], [35, 0.5], [36, 0.5]]
    assert (third["odd"][0].tolist(), third["task"][0]) == ([32, 33, 34], "pick \u00fcp")
    assert source.notes == {"format": "MDS", "not_taken": {"meta": "neither numbers nor text"}}
    assert source.schema["odd"].dtype == "int16"


def test_names_have_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match=r"next/reward is missing, found .*; expected an MDS dataset"):
        find_run(copy(tmp_path), None)
    with pytest.raises(CorruptShardError, match="pixels is missing, found act, done, frame"):
        open_mds(copy(tmp_path / "b"), **{**COLUMNS, "observation": "pixels"})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 1}, SourceError, "expected shards of mds, version 2"),
        ({"samples": 6}, CorruptShardError, "shard.00000.mds: expected 6 samples, found 7"),
        ({"samples": -1}, CorruptShardError, "expected numbers of samples and bytes"),
        ({"samples": 2**31}, CorruptShardError, "expected 1,364 bytes of 2,147,483,648 samples, found 1,364"),
        ({"raw_data": {"basename": "shard.00000.mds", "bytes": 9}}, CorruptShardError, "expected 9 bytes of 7 samples"),
        ({"raw_data": {"basename": "../a", "bytes": 9}}, SourceError, "a"),
        ({"raw_data": None}, CorruptShardError, "expected shards with columns"),
        ({"column_sizes": [8]}, CorruptShardError, "expected shards with columns"),
        ({"column_sizes": [1, 1, None, None, None, 4, 8, None]}, CorruptShardError, "expected the same columns"),
    ],
)
def test_bad_index(change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    path = copy(tmp_path)
    change_index(path, **change)
    with pytest.raises(error, match=message):
        read(open_mds(path, **COLUMNS), 0)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    path = copy(tmp_path)
    for file in path.glob("*"):
        file.write_bytes(file.read_bytes().replace(b'"json"', b'"pkl" '))
    assert open_mds(path, **COLUMNS).notes["not_taken"] == {"meta": "neither numbers nor text"}


def test_nothing_there(tmp_path: Path) -> None:
    assert FORMAT.recognises(GOLDEN)
    assert not FORMAT.recognises(tmp_path)
    with pytest.raises(SourceNotFoundError, match=r"index.json is missing; expected an MDS dataset"):
        open_mds(tmp_path)


def test_wrong_bytes_are_values_or_a_named_error(tmp_path: Path) -> None:
    path, dice, found = copy(tmp_path), random.Random(0), Counter[bool]()
    whole = {file: file.read_bytes() for file in path.glob("*")}
    for number in range(2000):
        file = dice.choice(list(whole))
        content = bytearray(whole[file])
        if number % 5 == 0:
            content = content[: dice.randrange(len(content))]
        for _ in range(0 if number % 5 == 0 else dice.choice((1, 3, 20))):
            content[dice.randrange(len(content))] = dice.randrange(256)
        file.write_bytes(content)
        found[isinstance(steps_or_error(lambda path: open_mds(path, **COLUMNS), path), int)] += 1
        file.write_bytes(whole[file])
    assert min(found.values()) > 100, found


def test_samples_are_read_from_any_row(tmp_path: Path) -> None:
    source = open_mds(copy(tmp_path), **COLUMNS)
    with source.place.opened() as table:
        for row in range(9):
            batch = next(table.batches(["action", "state"], 2, row))
            assert batch["action"][0] == (0, 1, 2, 0, 0, 1, 2, 3, 4)[row]
            assert batch["state"].dtype == np.float32


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda content: zstandard.ZstdCompressor(level=3).compress(content),
    "gz": gzip.compress,
    "bz2": bz2.compress,
}


def packed(path: Path, compression: str = "zstd") -> Path:
    """The dataset as streaming's writer keeps it with ``compression="zstd:3"``."""
    index = json.loads((path / "index.json").read_text())
    for shard in index["shards"]:
        plain = path / shard["raw_data"]["basename"]
        content = PACKERS[compression](plain.read_bytes())
        shard["compression"] = f"{compression}:3"
        shard["zip_data"] = {"basename": f"{plain.name}.{compression}", "bytes": len(content), "hashes": {}}
        (path / shard["zip_data"]["basename"]).write_bytes(content)
        plain.unlink()
    (path / "index.json").write_text(json.dumps(index))
    return path


class TestPacked(TestMds):
    @pytest.fixture(params=PACKERS)
    def root(self, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
        return packed(copy(tmp_path), request.param)


def test_packed_shards_have_the_same_steps(tmp_path: Path) -> None:
    whole, found = open_mds(GOLDEN, **COLUMNS), open_mds(packed(copy(tmp_path)), **COLUMNS)
    assert same(read(found, 0), read(whole, 0))
    shutil.copy(GOLDEN / "shard.00000.mds", tmp_path / "a")  # as StreamingDataset leaves it
    assert list(open_mds(tmp_path / "a", **COLUMNS).files(0))[1:] == ["shard.00000.mds", "shard.00001.mds.zstd"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"compression": "snappy"}, SourceError, "expected shards compressed with zstd, gz, bz2, found 'snappy'"),
        ({"compression": "br:11"}, SourceError, "expected shards compressed with zstd, gz, bz2, found 'br:11'"),
        ({"compression": "gz"}, CorruptShardError, "shard.00000.mds.zstd is damaged: Not a gzipped file"),
        ({"zip_data": None}, CorruptShardError, "expected shards with columns"),
        ({"zip_data": {"basename": "../a"}}, SourceError, "is not a relative path"),
        (
            {"raw_data": {"basename": "shard.00000.mds", "bytes": 1000}},
            CorruptShardError,
            "mds.zstd: expected 1,000 bytes unpacked, found more",
        ),
        (
            {"raw_data": {"basename": "shard.00000.mds", "bytes": 2000}},
            CorruptShardError,
            "mds.zstd: expected 2,000 bytes unpacked, found 1364",
        ),
        (
            {"raw_data": {"basename": "shard.00000.mds", "bytes": 2**31}},
            CorruptShardError,
            r"expected at most 1024 times [\d,]+ bytes unpacked, found 2147483648",
        ),
    ],
)
def test_bad_packed_shards(change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    path = packed(copy(tmp_path))
    change_index(path, **change)
    with pytest.raises(error, match=message):
        read(open_mds(path, **COLUMNS), 0)


def test_an_index_that_is_no_text_is_none(tmp_path: Path) -> None:
    path = copy(tmp_path)
    assert FORMAT.recognises(path)
    (path / "index.json").write_bytes(b"\xff\xfe mds")
    assert not FORMAT.recognises(path)


def test_a_dataset_of_no_samples(tmp_path: Path) -> None:
    path = copy(tmp_path)
    index = json.loads((path / "index.json").read_text())
    (path / "index.json").write_text(json.dumps({**index, "shards": []}))
    with pytest.raises(SourceError, match="a has no step"):
        open_mds(path, **COLUMNS)
