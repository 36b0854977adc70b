"""Dopamine's files with something wrong: a named error or the same data, and nothing unpickled."""

import gzip
import io
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rlx
from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.formats.common.npy import read_npy
from rlx.formats.common.skipping import HINT
from rlx.formats.dopamine import OBSERVATION, REWARD, file_name
from rlx.formats.dopamine.reader import Dopamine
from rlx.results import Report
from rlx.testing.source import Trajectory, read, same
from tests.conftest import Cli
from tests.dopamine_files import Episode, Ring, remove_suffix, save_npy, write_gz

ARRAYS = tuple(f"$store$_{name}" for name in ("observation", "action", "reward", "terminal"))
INDEX = ("add_count", "invalid_range")


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    ring = Ring(tmp_path / "Pong/1/replay_logs", 64)
    ring.run(Episode(length) for length in (30, 41, 17, 60, 20, 33))
    return ring


def read_all(folder: Path) -> list[Trajectory]:
    source = Dopamine(folder, ".", "Pong/1")
    return [one for shard in source.shards() for one in read(source, shard)]


@pytest.mark.parametrize("array", ARRAYS + INDEX)
def test_a_missing_array_is_named(ring: Ring, array: str) -> None:
    name = f"{array}_ckpt.1.gz"
    (ring.folder / name).unlink()
    with pytest.raises(SourceNotFoundError, match=re.escape(name)):
        read_all(ring.folder)


def test_no_files_at_all(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="add_count"):
        read_all(tmp_path)
    Ring(tmp_path, 16).run([Episode(5)])
    with pytest.raises(SourceNotFoundError, match="no shard 7"):
        Dopamine(tmp_path, ".", "Pong/1").files(7)


@pytest.mark.parametrize(
    ("array", "content", "message"),
    [
        ("$store$_observation", np.zeros((63, 2, 2), np.uint8), r"\[64, 2, 2\], found uint8\[63, 2, 2\]"),
        ("$store$_observation", np.zeros((64, 2, 2), np.int16), "found int16"),
        ("$store$_observation", np.asfortranarray(np.zeros((64, 2, 2), np.uint8)), "C-ordered"),
        ("$store$_action", np.zeros(63, np.int32), r"expected int32\[64\], found int32\[63\]"),
        ("$store$_action", np.zeros(64, np.int64), r"expected int32\[64\], found int64\[64\]"),
        ("$store$_action", np.zeros(64, ">i4"), "array of numbers"),
        ("$store$_reward", np.full(64, np.nan, np.float32), "finite"),
        ("$store$_terminal", np.zeros((), np.uint8), "uint8"),
        ("$store$_terminal", np.full(64, 2, np.uint8), "expected 0 or 1, found 2"),
        ("$store$_terminal", np.ones(64, np.uint8), "expected zero padding"),
        ("add_count", np.array(63), "expected at least 64 rows, found 63"),
        ("add_count", np.array(-1), "one number of rows"),
        ("add_count", np.array(2.5), "one number of rows"),
        ("add_count", np.array(1 << 62), "one number of rows"),
        ("add_count", np.array([127]), "one number of rows"),
        ("invalid_range", np.array([62, 63, 0, 1, 3]), "consecutive slots around 63"),
        ("invalid_range", np.array([61, 62, 63, 0, 1, 2, 3, 4]), "expected a stack of 4, found 6"),
        ("invalid_range", np.zeros((), np.int64), "consecutive slots"),
    ],
)  # fmt: skip
def test_what_contradicts_is_named(ring: Ring, array: str, content: NDArray[Any], message: str) -> None:
    ring.save(array, 1, content)
    with pytest.raises(CorruptShardError, match=message) as caught:
        read_all(ring.folder)
    assert f"{array}_ckpt.1.gz" in str(caught.value)


def test_capacities_differ(ring: Ring) -> None:
    for array, dtype in zip(ARRAYS[1:], (np.int32, np.float32, np.uint8), strict=True):
        ring.save(array, 1, np.zeros(63, dtype))
    ring.save("invalid_range", 1, np.arange(5))
    ring.save("add_count", 1, np.array(64))
    with pytest.raises(CorruptShardError, match="expected 64 rows as in the file before, found 63"):
        read_all(ring.folder)


def test_padding_with_a_frame_in_it(ring: Ring) -> None:
    observation = read_npy(ring.folder / "$store$_observation_ckpt.0.gz")
    observation[34] = 7
    ring.save("$store$_observation", 0, observation)
    with pytest.raises(CorruptShardError, match=r"observation_ckpt.0.gz: expected zero padding from slot 33"):
        read_all(ring.folder)


class Bomb:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_no_pickle_is_opened(ring: Ring, tmp_path: Path) -> None:
    before = read_all(ring.folder)
    for suffix in range(3):
        bomb = pickle.dumps(Bomb(tmp_path / "burst"))
        write_gz(ring.folder / f"episode_end_indices_ckpt.{suffix}.gz", bomb)
    assert same(read_all(ring.folder), before)
    save_npy(ring.folder / "add_count_ckpt.1.gz", np.array(Bomb(tmp_path / "burst")), allow_pickle=True)
    with pytest.raises(CorruptShardError, match="array of numbers"):
        read_all(ring.folder)
    assert not (tmp_path / "burst").exists()


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_found_or_harmless(ring: Ring, seed: int) -> None:
    """A hundred times: cut a file or turn bits of it, in the gzip or in the npy that it holds."""
    dice = random.Random(seed)
    before = read_all(ring.folder)
    paths = sorted(path for path in ring.folder.iterdir() if "ckpt" in path.name)
    found = 0
    for _ in range(100):
        path = dice.choice(paths)
        whole = path.read_bytes()
        path.write_bytes(damaged(whole, dice))
        outcome = read_or_error(ring.folder)
        if isinstance(outcome, SourceError):
            found += 1
            assert "_ckpt." in str(outcome)
        else:
            assert same(outcome, before)
        path.write_bytes(whole)
    assert found > 50


def rows_by_shard(path: Path) -> dict[str, list[bytes]]:
    """The observations of every shard of a dataset."""
    data = rlx.open(path)
    stops = np.cumsum([shard.steps for shard in data.manifest.shards])
    steps = data[:]["observation"].numpy()
    parts = np.split(steps, stops[:-1]) if len(stops) > 1 else [steps]
    return {
        shard.name: [row.tobytes() for row in part] for shard, part in zip(data.manifest.shards, parts, strict=True)
    }


@pytest.mark.parametrize("fetched", [False, True])
def test_a_damaged_shard_is_left_out_and_counted(fetched: bool, tmp_path: Path, cli: Cli) -> None:
    """Shard 0 reads its last episode to the end in file 1, so both lose their steps; shard 2 does not."""
    ring = Ring(tmp_path / "src/Pong/1/replay_logs", 64)
    ring.run(Episode(length) for length in [30, 41, 17, 60, 25, 33])
    rlx.convert(tmp_path / "src", tmp_path / "whole", jobs=1)
    path = ring.folder / file_name(OBSERVATION, 1)
    path.write_bytes(path.read_bytes()[:200])

    def taken(destination: Path, on_error: Any = "stop") -> Report:
        if fetched:
            return rlx.download("Pong/1", source=tmp_path / "src", output=destination, jobs=1, on_error=on_error)
        return rlx.convert(tmp_path / "src", destination, jobs=1, on_error=on_error)

    stopped = taken(tmp_path / "stopped")
    assert stopped.error is not None
    assert str(stopped.error.hint).endswith(HINT)
    report = taken(tmp_path / "new", on_error="skip").raise_for_failures()
    whole, found = rows_by_shard(tmp_path / "whole"), rows_by_shard(tmp_path / "new")
    lost = [name for name in whole if whole[name] and not found[name]]
    assert lost
    assert {name: rows for name, rows in found.items() if name not in lost} == {
        name: rows for name, rows in whole.items() if name not in lost
    }
    assert [*report.left_out.reasons] == [f"shard {int(name)}" for name in lost]
    shards = {shard.name: shard for shard in rlx.open(tmp_path / "new").manifest.shards}
    for name in lost:
        steps = shards[name].dropped["damaged_shard"]
        assert len(whole[name]) <= steps <= len(whole[name]) + 1  # the last row of the files has no next one
        assert f"{steps} step" in report.left_out.reasons[f"shard {int(name)}"]
    assert rlx.verify(tmp_path / "new").ok
    again = cli("convert", tmp_path / "src", tmp_path / "cli", "--on-error", "skip", "--jobs", 1)
    assert again.code == 0
    assert f"shard {int(lost[0])} (" in again.err


def test_a_damaged_small_array_counts_as_a_missing_file(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "src/Pong/1/replay_logs", 64)
    ring.run(Episode(length) for length in [30, 41, 17, 60, 25, 33])
    shutil.copytree(tmp_path / "src", tmp_path / "without")
    remove_suffix(tmp_path / "without/Pong/1/replay_logs", 1)
    rlx.convert(tmp_path / "without", tmp_path / "expected", jobs=1)
    (ring.folder / file_name(REWARD, 1)).write_bytes(b"no gzip")
    report = rlx.convert(tmp_path / "src", tmp_path / "new", on_error="skip", jobs=1)
    assert [*report.left_out.reasons] == ["shard 1"]
    assert rows_by_shard(tmp_path / "new") == rows_by_shard(tmp_path / "expected")


def read_or_error(folder: Path) -> list[Trajectory] | SourceError:
    try:
        return read_all(folder)
    except SourceError as error:
        return error


def damaged(content: bytes, dice: random.Random) -> bytes:
    if dice.random() < 0.3:
        return content[: dice.randrange(len(content))]
    if dice.random() < 0.3:
        # Within the npy header, the checksum made right again.
        npy_bytes = bytearray(gzip.decompress(content))
        npy_bytes[dice.randrange(80)] ^= 1 << dice.randrange(8)
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
            file.write(npy_bytes)
        return packed.getvalue()
    flipped = bytearray(content)
    for _ in range(dice.choice((1, 1, 3))):
        flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
    return bytes(flipped)
