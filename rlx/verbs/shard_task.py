"""The work of one worker: one shard of a source, read, encoded and written."""

import errno
import glob
import os
import pickle
import platform
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import cloudpickle

from rlx.block import Block
from rlx.files.beneath import remove
from rlx.files.disk import disk_errors
from rlx.files.lock import check_seen
from rlx.formats.common.skipping import LeftOut, skipping
from rlx.formats.common.source import Source
from rlx.manifest import FileRecord, ShardRecord
from rlx.progress import Progress
from rlx.store.writer import ShardFormat, write_shard


class SharedSource:
    """A source that is pickled once for all of its shards, and unpickled once in every worker.

    Otherwise each of a thousand tasks would open the dataset that it reads again, manifest and all.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._run = uuid.uuid4().bytes  # a worker may live on, and the dataset at a path be replaced

    def __reduce__(self) -> tuple[object, ...]:
        return _shared, (self._run, self._pickled)

    @cached_property
    def _pickled(self) -> bytes:
        pickled: bytes = cloudpickle.dumps(self.source)
        return pickled


@lru_cache(maxsize=1)
def _shared(_run: bytes, pickled: bytes) -> SharedSource:
    return SharedSource(pickle.loads(pickled))


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to be written.

    Args:
        root: what the source's file names are relative to, for their checksums; none where it has no such files.
        fetched: length and checksum of the source's files that are known from their transfer, by name.
        skips: whether episodes that cannot be read are left out; None if that is not offered.
    """

    shared: SharedSource
    root: Path | None
    shard: int
    name: str
    directory: Path
    format: ShardFormat
    fetched: Mapping[str, FileRecord] = field(default_factory=dict)
    skips: bool | None = None

    @property
    def source(self) -> Source:
        """The source that the shard comes from."""
        return self.shared.source


@dataclass(frozen=True, slots=True)
class ShardResult:
    """One shard, written and not yet listed.

    Args:
        left_out: the episodes that could not be read.
    """

    record: ShardRecord
    origin: Mapping[str, Any]
    dropped: Mapping[str, int]
    left_out: LeftOut = field(default_factory=LeftOut)


def convert_shard(task: ShardTask, progress: Progress) -> ShardResult:
    """Write one shard of a source; everything about it is a function of the source's files."""
    dropped: Counter[str] = Counter()
    blocks = _counted(task.source.blocks(task.shard, dropped), progress, str(task.root or task.source.id))
    with skipping(task.skips) as left:
        record = write_shard(task.directory, task.name, task.format, blocks)
    origin: dict[str, Any] = {"source": task.source.id, "shard": task.shard}
    if task.root is not None:
        names = task.source.files(task.shard)
        records = {name: task.fetched.get(name) or source_file(task.root / name) for name in names}
        origin["files"] = {name: {"bytes": file.bytes, "crc32c": file.crc32c} for name, file in records.items()}
    return ShardResult(record, origin, dict(sorted(dropped.items())), LeftOut.of(left))


def source_file(path: Path) -> FileRecord:
    """Return length and checksum of a file, which is read once for all the shards that come from it."""
    found = path.stat()
    return _recorded(path, found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=1000)
def _recorded(path: Path, *_: int) -> FileRecord:
    return FileRecord.of(path)


def _counted(blocks: Iterable[Block], progress: Progress, place: str) -> Iterator[Block]:
    with disk_errors(place, "read"):  # those of whoever writes the blocks never come by here
        for block in blocks:
            yield block
            progress.advance("steps", block.steps)


def attempt(work: Callable[[ShardTask, Progress], ShardResult], task: ShardTask, progress: Progress) -> ShardResult:
    """Do the work in a directory of this process's own, which gets the task's name when the shard is whole.

    An engine gives the task of a worker that is lost to another, and a worker that it has only lost sight of continues
    writing. So no two ever write in one directory, and whoever is first to be done decides: all make the same bytes.
    """
    check_seen(task.directory.parents[1])
    own = task.directory.with_suffix(f".{platform.node()}-{os.getpid()}.partial")
    for left in own.parent.glob(f"{glob.escape(task.directory.stem)}.*.*"):
        with suppress(FileNotFoundError):  # somebody else is sweeping
            # Renamed first, so that no process adds files during the removal.
            remove(left.rename(left.with_suffix(".swept")))
    result = work(replace(task, directory=own), progress)
    try:
        own.rename(task.directory)
    except OSError as exc:
        if exc.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        remove(own)
    return result
