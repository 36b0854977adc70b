"""Opening shards on demand: their arrays, their trajectory tables, and which shard holds which step."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptDatasetError, DatasetError
from rlx.files.disk import reading
from rlx.files.remote_files import AnyPath, each_below, local, remote
from rlx.fork import on_fork
from rlx.manifest import FileRecord, Manifest
from rlx.schema import Role
from rlx.store.array import ArrayReader, Rows
from rlx.store.field_files import FieldFiles
from rlx.store.layout import shard_directory
from rlx.store.raw_file import check_sizes
from rlx.store.stores import array_names, store_named
from rlx.store.trajectories import Trajectories
from rlx.wording import command

T = TypeVar("T")

# Memory maps: Linux allows a process 65,530, of which rlx takes a third for one dataset.
MAX_MAPS = 20_000
# Checking the length of every file that a batch of single steps touches takes a tenth of the time of reading it.
CHECK_SHARE = 0.02
_CHECK_S = 0.25
# Files that are checked in one go, if many are open.
_CHECKED_AT_ONCE = 64


class Shards:
    """The shards of a dataset. Their arrays are opened when first read; as many as may be mapped stay open.

    Attributes:
        records: the shards that have steps, in order.
        first_step: [len(records) + 1] index of the first step of each, and the number of steps.
        first_row: [len(records) + 1] the same for observations.
    """

    def __init__(self, dataset: AnyPath, manifest: Manifest) -> None:
        self.dataset = dataset
        self.is_remote = remote(dataset) is not None
        self.schema = manifest.schema
        self.records = [record for record in manifest.shards if record.steps]
        self._store = store_named(manifest.store)
        steps = np.array([record.steps for record in self.records], np.int64)
        trajectories = np.array([record.trajectories for record in self.records], np.int64)
        self.first_step = np.concatenate([[0], np.cumsum(steps)])
        self.first_row = np.concatenate([[0], np.cumsum(steps + trajectories)])
        self._open: OrderedDict[tuple[int, str], ArrayReader] = OrderedDict()
        self._whole: set[int] = set()  # shards whose files were all there, each of its length
        self.tables = {name: FieldFiles(field, len(self.records)) for name, field in self.schema.fields.items()}
        self._unchecked: list[ArrayReader] = []
        self._renew_lock()
        on_fork(self, Shards._renew_lock)
        self._most_open = max(MAX_MAPS * len(self.schema.fields) // max(len(array_names(self.schema)), 1), 1)
        self._is_cached = False
        self._next_check = 0.0

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def array(self, number: int, name: str) -> ArrayReader:
        """Return the reader of a field of the shard at this place in ``records``."""
        # Without the lock: a look into a dict is atomic, and this is asked for every shard that a batch touches.
        array = self._open.get((number, name))
        if array is not None:
            return array
        # Nor while it is opened: several that are far away are opened at once.
        opened = self._opened(number, name)
        with self._lock:
            array = self._open.setdefault((number, name), opened)
            self.tables[name].add(number, array)
            if len(self._open) > self._most_open:
                self._close_some()
            return array

    def _close_some(self) -> None:
        """Close the files that were opened first, an eighth of all, but never the last one."""
        closed: dict[str, list[int]] = {}
        for number, name in list(self._open)[: max(self._most_open // 8, 1)]:
            del self._open[number, name]
            closed.setdefault(name, []).append(number)
        for name, numbers in closed.items():
            self.tables[name] = self.tables[name].without(numbers)

    def files(self, name: str, shard: NDArray[np.int64]) -> FieldFiles:
        """Return the files of a field, with those of these shards [n] open unless they are too many at once."""
        for number in self.tables[name].lacks(shard):
            self.array(number, name)
        return self.tables[name]

    def arrays(self, number: int) -> dict[str, ArrayReader]:
        """Return the readers of all fields of a shard."""
        return {name: self.array(number, name) for name in self.schema.fields}

    def each(self, read: Callable[[int], T], numbers: Sequence[int], *, depth: int = 0) -> list[T]:
        """Return the results of a reading function for these shards: in parallel if they are remote.

        Args:
            depth: 1 where the function itself reads many things at once.
        """
        return each_below(self.dataset, read, numbers, depth=depth)

    def check_lengths(self) -> None:
        """Raise CorruptDatasetError if a file of an open shard has been cut: reading past its end kills the process.

        It checks some of them in turn, as often as ``CHECK_SHARE`` of the time allows, and at least every 0.25 seconds.
        """
        began = time.monotonic()
        if began < self._next_check or self.is_remote:
            return
        waiting = self._unchecked or list(self._open.values())
        self._unchecked = waiting[_CHECKED_AT_ONCE:]
        for array in waiting[:_CHECKED_AT_ONCE]:
            array.check_length()
        ended = time.monotonic()
        self._next_check = ended + min((ended - began) / CHECK_SHARE, _CHECK_S)

    def each_field(self, read: Callable[[str], T], names: Sequence[str], numbers: NDArray[np.int64]) -> list[T]:
        """Return the results of a reading function for these fields, in these shards: in parallel if they must be
        fetched."""
        if (far := remote(self.dataset)) is None:
            return list(map(read, names))
        files = far.files
        before = files.traffic.requests
        if self._is_cached:
            found = [read(name) for name in names]
        else:
            # Opened before, or every field would open them.
            self.each(self.arrays, np.unique(numbers).tolist())
            found = files.at_once(read, names, depth=1)
        # A guess for the next call: threads cost as much as reading from the cache.
        self._is_cached = files.traffic.requests == before
        return found

    def _opened(self, number: int, name: str) -> ArrayReader:
        record, field = self.records[number], self.schema[name]
        directory = self._directory(number)
        rows = record.steps + (record.trajectories if field.role == Role.OBSERVATION else 0)
        return self._store.reader(directory, name, field, rows)

    def _directory(self, number: int) -> AnyPath:
        """Return the directory of a shard; check the files of a local one when it is first needed.

        Others are checked when read.
        """
        directory = shard_directory(self.dataset, self.records[number].name)
        if local(directory) is not None and number not in self._whole:
            self._check(number, directory)
            self._whole.add(number)
        return directory

    def _check(self, number: int, directory: AnyPath) -> None:
        try:
            check_sizes(str(directory), self.records[number].sizes())
        except CorruptDatasetError as exc:
            name = self.records[number].name
            if name not in Manifest.load(Path(str(self.dataset))).listed:
                raise DatasetError(
                    f"shard {name} of {self.dataset} was dropped since the dataset was opened", hint="open it again"
                ) from exc
            raise CorruptDatasetError(str(exc), hint=command("rlx", "repair", self.dataset)) from exc

    def table(self, number: int) -> Trajectories:
        """Return the trajectory table of one shard."""
        record = self.records[number]
        directory = self._directory(number)
        return Trajectories.load(self._store, directory, record)

    def trajectories(self) -> Trajectories:
        """Return the trajectory table of all shards."""
        if not self.is_remote:
            directories = [str(shard_directory(self.dataset, record.name)) for record in self.records]
            if (table := Trajectories.load_all(self._store, directories, self.records)) is not None:
                return table
        return Trajectories.concatenate(self.each(self.table, range(len(self.records)), depth=1))

    def of_steps(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return [n] which shard each of these steps is in."""
        return np.searchsorted(self.first_step, steps, side="right") - 1

    def verify(self, number: int) -> None:
        """Raise CorruptDatasetError unless every byte of a shard is as it was written."""
        record = self.records[number]
        directory = shard_directory(self.dataset, record.name)
        if local(directory) is not None:
            self._check(number, directory)
        for name, file in record.files.items():
            with reading(directory / name):
                found = FileRecord.of(directory / name)
            if found != file:
                message = f"{directory / name} is damaged: crc32c {found.crc32c}, expected {file.crc32c}"
                remedy = (
                    "push a whole copy with `overwrite`" if self.is_remote else command("rlx", "repair", self.dataset)
                )
                raise CorruptDatasetError(message, hint=remedy)


class _Chosen(NamedTuple):
    """Trajectories of a shard, as if it had no others.

    Args:
        number: [n] their places in the shard, ascending.
        start: [n] their first steps in the shard.
        table: the trajectories; ``length`` counts the steps that are taken.
    """

    number: NDArray[np.int64]
    start: NDArray[np.int64]
    table: Trajectories


def shard_blocks(
    shards: Shards,
    number: int,
    max_steps: int,
    *,
    trajectories: NDArray[np.int64] | None = None,
    steps: int | None = None,
) -> Iterator[Block]:
    """Yield one shard in blocks of at most ``max_steps`` steps, cut between trajectories where one fits, else inside
    it.

    Args:
        trajectories: [n] only these, places in the shard in ascending order.
        steps: maximum number of steps in all; the last trajectory is cut there.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps is {max_steps}, expected at least 1")
    chosen = _chosen(shards, number, trajectories, steps)
    ends = np.cumsum(chosen.table.length)
    position, total = 0, int(ends[-1]) if len(ends) else 0
    while position < total:
        stop = _stop(ends, position, max_steps)
        yield _block(shards, number, chosen, ends, position, stop)
        position = stop
        for array in shards.arrays(number).values():
            array.release()


def _chosen(shards: Shards, number: int, trajectories: NDArray[np.int64] | None, steps: int | None) -> _Chosen:
    every = shards.table(number)
    picked = np.arange(len(every)) if trajectories is None else trajectories
    table = every if trajectories is None else every.pick(picked)
    if steps is not None:
        before = table.start
        picked = picked[before < steps]
        table = every.pick(picked)
        length = np.minimum(table.length, steps - before[: len(picked)])
        # The last step of a cut trajectory is followed by the observation of its next step.
        is_cut = length < table.length
        table = replace(table, length=length, final_recorded=table.final_recorded | is_cut, cut=table.cut | is_cut)
    return _Chosen(picked, every.start[picked], table)


def _stop(ends: NDArray[np.int64], position: int, max_steps: int) -> int:
    """Return the last end of a trajectory within reach, or else as far as a block reaches."""
    reached = int(np.searchsorted(ends, position + max_steps, side="right")) - 1
    if reached >= 0 and ends[reached] > position:
        return int(ends[reached])
    return position + max_steps


def _block(shards: Shards, number: int, chosen: _Chosen, ends: NDArray[np.int64], start: int, stop: int) -> Block:
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, stop, side="left"))
    here = slice(first, last + 1)
    before = (ends - chosen.table.length)[here]
    begins = np.maximum(before, start)
    lengths = np.minimum(ends[here], stop) - begins
    is_open = bool(ends[last] > stop)
    steps = chosen.start[here] + begins - before
    # Observations: one row more for every trajectory of the shard before this one, and for each that ends in the block.
    closed = np.ones(len(lengths), np.int64)
    closed[-1] -= is_open
    rows = {Role.OBSERVATION: (steps + chosen.number[here], lengths + closed)}
    arrays = shards.arrays(number)
    data = {
        name: _read(arrays[name], *rows.get(field.role, (steps, lengths)))
        for name, field in shards.schema.fields.items()
    }
    table = chosen.table
    columns = (table.episode[here], table.from_reset[here], table.final_recorded[here])
    return Block(data, lengths, *columns, is_open, table.cut[here])


def _read(array: ArrayReader, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> Rows:
    total = int(counts.sum())
    first, stop = int(starts[0]), int(starts[-1] + counts[-1])
    if stop - first == total:
        return array.read_range(first, stop)
    return array.read(np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(total))
