"""Journals: what is in them survives, and becomes a shard exactly once."""

import json
import shutil
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

import rlx
from rlx.block import Block
from rlx.errors import CorruptDatasetError, DiskFullError
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import claimed
from rlx.store.journal import Journal, read_journal
from rlx.store.layout import JOURNAL
from rlx.testing.dataset_exporter import random_block
from tests.factories import LARGE, make_block, write_dataset
from tests.privileges import unprivileged

TEXTS = Schema.of(observation=("string", ()), action=("int64", (2,)), reward="float64")


def _same(one: Block, other: Block) -> bool:
    columns = ("lengths", "episodes", "from_reset", "final_recorded", "cut")
    pairs = [(getattr(one, name), getattr(other, name)) for name in columns]
    pairs += [(one.data[name], other.data[name]) for name in one.data]
    return one.data.keys() == other.data.keys() and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def _journal(path: Path, blocks: list[Block]) -> Path:
    journal = Journal(path)
    for block in blocks:
        journal.append(block)
    journal.close()
    return path


@pytest.mark.parametrize("schema", [TEXTS, LARGE], ids=["texts", "pictures"])
def test_a_journal_yields_the_blocks_that_were_appended(schema: Schema, tmp_path: Path) -> None:
    blocks = [random_block(schema, seed=seed) for seed in range(3)]
    found = list(read_journal(_journal(tmp_path / "journal" / "00000", blocks)))
    assert all(_same(*pair) for pair in zip(found, blocks, strict=True))


@given(cut=st.integers(0, 10_000), flipped=st.booleans())
@example(cut=7, flipped=True)  # of the length
def test_a_record_whose_writing_was_interrupted_is_left_out(
    cut: int, flipped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal" / "00000"
    blocks = [make_block([length], first_episode=length) for length in (3, 1, 5)]
    ends = [0]
    journal = Journal(path)
    for block in blocks:
        journal.append(block)
        ends.append(path.stat().st_size)
    journal.close()
    content = bytearray(path.read_bytes())
    cut %= len(content)
    if flipped:
        content[cut] ^= 0xFF
    path.write_bytes(content if flipped else content[:cut])
    found = list(read_journal(path))
    assert len(found) == sum(end <= cut for end in ends[1:])
    assert all(_same(*pair) for pair in zip(found, blocks, strict=False))


def test_a_block_for_which_there_is_no_room_leaves_those_before_it(small_disk: Path) -> None:
    noise = Schema.of(observation=("uint8", (80_000,)), action=("int64", ()))
    journal = Journal(small_disk / "journal" / "00000")
    journal.append(make_block([3]))
    with pytest.raises(DiskFullError):
        journal.append(random_block(noise, seed=0))
    journal.append(make_block([5]))
    journal.close()
    assert [block.steps for block in read_journal(journal.path)] == [3, 5]


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A dataset with one shard, and a journal of the next."""
    path = write_dataset(tmp_path / "data", [[make_block([3, 5])]]).path
    _journal(path / JOURNAL / "00001", [make_block([2], first_episode=2), make_block([4], first_episode=3)])
    return path


@pytest.mark.parametrize("way", ["open", "claim"])
def test_the_shard_of_a_journal_is_written_by_the_next_to_open_the_dataset(way: str, left: Path) -> None:
    if way == "claim":
        with claimed(left):
            pass
    dataset = Dataset(left, partial=way == "claim")
    assert dataset.trajectories.length.tolist() == [3, 5, 2, 4]
    assert dataset.trajectories.episode.tolist() == [0, 1, 2, 3]
    assert not (left / JOURNAL).exists()
    assert rlx.verify(left).ok
    assert len(rlx.open(left)) == 14


def test_the_journal_of_a_listed_shard_is_removed(left: Path) -> None:
    (left / JOURNAL / "00001").rename(left / JOURNAL / "00000")
    assert rlx.open(left).trajectories.length.tolist() == [3, 5]
    assert not (left / JOURNAL).exists()


def test_a_journal_belongs_to_the_dataset_that_is_replaced(left: Path) -> None:
    with claimed(left, overwrite=True) as claim:
        write_dataset(left.parent / "other", [[make_block([7])]])
        for name in ("rlx.json", "shards"):
            (left.parent / "other" / name).rename(claim.place / name)
        claim.finish()
    assert rlx.open(left).trajectories.length.tolist() == [7]


def test_a_dataset_that_cannot_be_written_opens_without_its_journal(
    left: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (left / "shards").chmod(0o500)
    with unprivileged():
        assert len(rlx.open(left)) == 8
    assert "not in its shards yet" in caplog.text
    (left / "shards").chmod(0o700)
    assert len(rlx.open(left)) == 14


def _document(layout: object) -> bytes:
    document = json.dumps({"layout": layout, "texts": {}}).encode()
    return zstandard.compress(struct.pack("<I", len(document)) + document)


@pytest.mark.parametrize(
    "content",
    [
        b"not compressed",
        zstandard.compress(b""),
        zstandard.compress(struct.pack("<I", 4) + b'{"a"'),
        _document({}),
        _document({"observation": ["O", [3]]}),
        _document({"observation": ["<f4", [1 << 60]]}),
        _document({"observation": ["<f4", [1 << 70]]}),
        _document(["observation"]),
        zstandard.compress(struct.pack("<I", 100_000) + b"[" * 100_000),
    ],
    ids=["no frame", "nothing", "no JSON", "no arrays", "objects", "too long", "longer", "a list", "nested"],
)
def test_a_record_that_no_recorder_wrote_is_an_error_by_name(
    content: bytes, left: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = left / JOURNAL / "00001"
    journal.write_bytes(struct.pack("<QI", len(content), google_crc32c.value(content)) + content)
    with pytest.raises(CorruptDatasetError, match="00001 is damaged: a record holds no episodes"), claimed(left):
        pass
    assert len(rlx.open(left)) == 8
    assert "not in its shards yet" in caplog.text


def test_an_empty_journal_is_no_shard(left: Path) -> None:
    shutil.copy(left / JOURNAL / "00001", left / JOURNAL / "00002")
    (left / JOURNAL / "00001").write_bytes(b"")
    assert [shard.name for shard in rlx.open(left).manifest.shards] == ["00000", "00002"]
