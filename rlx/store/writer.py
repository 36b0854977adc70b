"""Writing one shard from blocks, or from the files of another dataset: a directory of arrays and its record."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block, join
from rlx.errors import CorruptDatasetError, SchemaMismatchError
from rlx.files.beneath import remove, try_remove
from rlx.files.disk import disk_errors
from rlx.files.durable import sync_tree
from rlx.manifest import FileRecord, ShardRecord
from rlx.progress import Progress
from rlx.schema import Field, Role, Schema
from rlx.store.array import ArrayWriter
from rlx.store.codec import MIN_ROW_BYTES, NONE, Codec
from rlx.store.dictionary import REFERENCE_ROWS, Beginning, Rows, trained_dictionary
from rlx.store.raw_file import check_size
from rlx.store.statistics import Moments, ObservationMoments, action_counts, table_statistics
from rlx.store.stores import Store, array_names, store_named
from rlx.store.trajectories import Trajectories

_NO_SEGMENTS = Block({}, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, bool), np.empty(0, bool))


@dataclass(frozen=True, slots=True)
class ShardFormat:
    """How the shards of one dataset are written; the same for all of them.

    Args:
        dictionaries: of the codec ``zstd-dict``, by field.
        threads: how many threads compress the rows of a shard; the bytes do not depend on it.
    """

    schema: Schema
    store: str
    codec: Codec
    dictionaries: Mapping[str, bytes] = field(default_factory=dict)
    threads: int = 1

    def coded(self) -> list[str]:
        """Return names of the fields that need a dictionary."""
        if self.codec.name != "zstd-dict":
            return []
        return [name for name in self.schema if _is_coded(self.schema[name])]


def _is_coded(row: Field) -> bool:
    return row.row_bytes >= MIN_ROW_BYTES and not row.is_text


def train_dictionaries(blocks: Iterable[Beginning], shards: ShardFormat) -> dict[str, bytes]:
    """Return the dictionaries for a dataset that begins with these blocks: a function of its first rows alone."""
    coded = shards.coded()
    if not coded:
        return {}
    pool: dict[str, list[Rows]] = {name: [] for name in coded}
    rows = 0
    for block in blocks:
        for name in coded:
            pool[name].append(block.data[name])
        rows += block.steps
        if rows >= REFERENCE_ROWS:
            break
    level = shards.codec.level
    return {
        name: trained_dictionary(parts, shards.schema[name].row_bytes, level) for name, parts in pool.items() if parts
    }


class ShardWriter:
    """Writer that appends blocks to the arrays of one shard directory, which must be empty or absent."""

    def __init__(self, directory: Path, shards: ShardFormat) -> None:
        self._directory = directory
        self._schema = shards.schema
        self._store: Store = store_named(shards.store)
        self._arrays: dict[str, ArrayWriter] = {}
        self._observed: dict[str, ObservationMoments] = {}
        for name in shards.schema:
            row = shards.schema[name]
            codec = shards.codec if _is_coded(row) else NONE
            dictionary = shards.dictionaries.get(name, b"")
            self._arrays[name] = self._store.writer(directory, name, row, codec, dictionary, shards.threads)
            if row.role == Role.OBSERVATION and not row.is_text:
                self._observed[name] = ObservationMoments(row)
        self._steps = 0
        self._segments = [_NO_SEGMENTS]  # of all blocks, without their steps

    def append(self, block: Block) -> None:
        """Add the steps of a block, which continues the last one."""
        block.check(self._schema)
        if len(block.lengths):
            self._check_continues(block)
            self._segments.append(replace(block, data={}))
        self._steps += block.steps
        for name, array in self._arrays.items():
            array.append(block.data[name])
        for name, moments in self._observed.items():
            moments.add(block, name)

    def _check_continues(self, block: Block) -> None:
        before = self._segments[-1]
        if before.is_open:
            if block.episodes[0] != before.episodes[-1]:
                raise SchemaMismatchError(
                    f"block: continues episode {block.episodes[0]}, expected the open episode {before.episodes[-1]}"
                )
        elif block.lengths[0] < 1 and not (block.is_open and len(block.lengths) == 1):
            raise SchemaMismatchError("block: its first trajectory has no step")

    def finish(self, name: str) -> ShardRecord:
        """Make the shard durable and return its record."""
        for array in self._arrays.values():
            array.finish()
        table = self._table()
        names = [*array_names(self._schema), *table.save(self._store, self._directory)]
        self._store.seal(self._directory, names)
        statistics = self._statistics(table)
        sync_tree(self._directory)
        return ShardRecord(name, self._steps, len(table), checksums(self._directory), statistics)

    def abandon(self) -> None:
        """Close all files as they are; their contents are of no use."""
        for array in self._arrays.values():
            array.abandon()

    def _statistics(self, table: Trajectories) -> dict[str, Any]:
        statistics = table_statistics(table.returns, table.length, table.whole)
        statistics["reward"] = Moments.of(self._stored("reward")).to_json()
        if "action" in self._schema and not self._schema["action"].is_text:
            statistics["action"] = action_counts(self._stored("action"))
        observed = {name: moments.moments().to_json() for name, moments in self._observed.items()}
        return {**statistics, **{name: found for name, found in observed.items() if name not in statistics}}

    def _stored(self, name: str) -> NDArray[np.generic]:
        reader = self._store.reader(self._directory, name, self._schema[name], self._steps)
        return reader.read_range(0, self._steps)

    def _table(self) -> Trajectories:
        joined = join(self._segments)
        if joined.is_open:
            raise SchemaMismatchError("a shard ends in an open trajectory: expected complete trajectories")
        length = joined.lengths
        if (length < 1).any():
            raise SchemaMismatchError("a trajectory ends without a step")
        last = np.cumsum(length) - 1
        self._check_flags(last)
        terminated = self._stored("terminated")[last].astype(bool)
        truncated = self._stored("truncated")[last].astype(bool)
        return Trajectories(
            length,
            sum_rewards(self._stored("reward"), length),
            joined.episodes,
            terminated,
            truncated,
            joined.from_reset,
            joined.final_recorded,
            # A trajectory that ends without a flag was cut.
            joined.cut | ~(terminated | truncated),
        )

    def _check_flags(self, last: NDArray[np.int64]) -> None:
        for name in ("terminated", "truncated"):
            flagged = np.flatnonzero(self._stored(name))
            inside = flagged[~np.isin(flagged, last)]
            if len(inside):
                raise SchemaMismatchError(f"step {inside[0]} is {name}: expected its trajectory to end there")


def sum_rewards(reward: NDArray[np.generic], length: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return [N] sums of the rewards [S] of trajectories of these lengths [N]."""
    if not len(length):
        return np.empty(0)
    with np.errstate(over="ignore", invalid="ignore"):
        sums: NDArray[np.float64] = np.add.reduceat(reward.astype(np.float64), np.cumsum(length) - length)
    return sums


def write_shard(directory: Path, name: str, shards: ShardFormat, blocks: Iterable[Block]) -> ShardRecord:
    """Write all blocks as one shard into a new directory of its own."""
    with disk_errors(directory):
        remove(directory)
        directory.mkdir(parents=True)
        writer = ShardWriter(directory, shards)
        try:
            for block in blocks:
                writer.append(block)
            return writer.finish(name)
        except BaseException:
            writer.abandon()
            try_remove(directory)
            raise


def checksums(directory: Path) -> dict[str, FileRecord]:
    """Return length and crc32c of every file below a directory, by its path there, in order."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): FileRecord.of(path) for path in files}


def link_shard(shard: Path, files: Mapping[str, FileRecord], directory: Path, progress: Progress) -> None:
    """Put the files of a shard into a new directory of their own: as hard links, or else as copies.

    Shards never change, so sharing is safe; a file removed from one dataset stays in the other. The new names are not
    synced: together, those of many shards take little longer than those of one.

    Args:
        files: what the manifest says of its files; every byte is held against that.
    """
    with disk_errors(directory):
        remove(directory)
        directory.mkdir(parents=True)
        source, target = str(shard), str(directory)
        try:
            for parent in dict.fromkeys(name.rpartition("/")[0] for name in files):
                os.makedirs(f"{target}/{parent}", exist_ok=True)
            for name, expected in files.items():
                _link_file(f"{source}/{name}", expected, f"{target}/{name}")
                progress.advance("bytes", expected.bytes)
        except BaseException:
            try_remove(directory)
            raise


def _link_file(file: str, expected: FileRecord, name: str) -> None:
    """Hard-link a file; copy it across file systems, or if they have no hard links."""
    check_size(file, expected.bytes)
    try:
        # The target of a symbolic link: a hard link of the symbolic link itself would change with its target.
        os.link(os.path.realpath(file) if os.path.islink(file) else file, name)
    except OSError:
        shutil.copyfile(file, name)
    found = FileRecord.of(Path(name))
    if found != expected:
        raise CorruptDatasetError(f"{file} is damaged: crc32c {found.crc32c}, expected {expected.crc32c}")
