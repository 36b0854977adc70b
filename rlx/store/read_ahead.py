"""Reading ahead of a dataset at a URL: pages of its files are held in memory, and read from there like local files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from rlx.files.disk_cache import PAGE_BYTES
from rlx.files.remote_files import RemotePath
from rlx.manifest import Manifest
from rlx.schema import Field, Role
from rlx.store.array import ArrayReader, Rows
from rlx.store.chunk_codec import most_bytes
from rlx.store.layout import listed_files
from rlx.store.native.mapping import PageMemory, Pages
from rlx.store.raw_file import RangedRawReader, RawFileReader
from rlx.store.shard_file import CRC_BYTES, INDEX_ENTRY_BYTES, RangedShardReader, ShardFileReader
from rlx.store.shards import Shards
from rlx.store.step_reader import Indices, Places, SelectedPlaces, SelectedSteps, Stack, StepReader
from rlx.store.trajectories import Trajectories

_ENTRY = np.dtype([("start", "<i8"), ("length", "<i8")])
_FLAGS = frozenset({"terminated", "truncated"})  # are read of the table of trajectories
# Steps around runs of steps that are held with them: stacks and n-step returns read some.
_MARGIN = 16
_NONE: Pages = np.empty(0, np.int64)


class Held:
    """Pages that stay in memory until they are released."""

    def __init__(self, release: Callable[[Sequence[Pages], Indices], None]) -> None:
        self.pages: list[Pages] = []
        self.steps: Indices = _NONE
        self._release = release

    def release(self) -> None:
        """Release the pages, unless another holder needs them."""
        pages, steps = self.pages, self.steps
        self.pages, self.steps = [], _NONE
        self._release(pages, steps)


class ReadAhead:
    """The steps of a dataset at a URL, some of them in memory, as compressed as in its files.

    Any steps can be read; pages that are not held are fetched for the read. It can be shared between threads.
    """

    def __init__(self, dataset: RemotePath, manifest: Manifest, steps: StepReader) -> None:
        self._files = dataset.files
        lengths = {name: file.bytes for name, file in listed_files(manifest).items() if "/trajectories/" not in name}
        self.memory = PageMemory(lengths)
        self._holders = np.zeros(len(self.memory.present), np.uint16)
        self._is_coming = np.zeros(len(self.memory.present), bool)  # a thread fetches the page
        # By step, how often it is held: one look at it saves looking for the pages of every field.
        self._covered = np.zeros(int(manifest.steps), np.uint16)
        self._lock = threading.Condition()
        self._readers = 0
        self._is_dropping = False
        whole = steps._reader if isinstance(steps, SelectedSteps) else steps
        self._shards = _FetchedShards(dataset, manifest, self.memory, whole.trajectories)
        self._whole = _FetchedSteps(StepReader(self._shards), self)
        self.steps: StepReader = steps.of(self._whole) if isinstance(steps, SelectedSteps) else self._whole

    def hold(self, steps: Indices) -> Held:
        """Fetch what is not here of steps [n], by few requests, many at once; return their pages."""
        self._files.check_process()  # also where all pages are here: a thread that the fork lacks may hold the lock
        located = self.steps.locate(_distinct(np.sort(steps)))
        wanted = located.whole.steps if isinstance(located, SelectedPlaces) else located.steps
        places = self._whole.locate(_widened(wanted, int(self._shards.first_step[-1])))
        self._open(places)
        held = Held(self._let_go)
        try:
            for phase in (_index_pages, _data_pages):
                self._fetch(held, [phase(rows) for rows in self._rows(places, self._shards.schema.fields)])
        except BaseException:
            held.release()
            raise
        with self._lock:
            self._covered[places.steps] += 1
            held.steps = places.steps
        return held

    @contextmanager
    def reading(self, steps: Indices, names: Iterable[str], back: int = 0) -> Iterator[None]:
        """While entered, the pages that these fields of steps are read from are here.

        Args:
            back: observations before those of the steps that are read, too.
        """
        held = Held(self._let_go)
        try:
            while missing := self._enter(steps, names, back):
                self._fetch(held, missing)
            try:
                yield
            finally:
                self._leave()
        finally:
            if held.pages:
                held.release()

    def _open(self, places: Places) -> None:
        is_closed = ~self._shards.is_open[places.shard]
        if is_closed.any():
            numbers = np.unique(places.shard[is_closed]).tolist()
            self._shards.each(self._shards.arrays, numbers)
            self._shards.is_open[numbers] = True

    def _enter(self, steps: Indices, names: Iterable[str], back: int) -> list[Pages]:
        """Return the pages of steps that are not here; if all are, they stay until ``_leave``."""
        with self._lock:
            while self._is_dropping:
                self._lock.wait()
            self._readers += 1
        missing: list[Pages] = []
        try:
            if all(self._covered[np.maximum(steps - n, 0) if n else steps].all() for n in range(back + 1)):
                return []
            places = self._whole.locate(steps)
            self._open(places)
            rows = self._rows(places, names, back)
            for phase in (_index_pages, _data_pages):
                pages = [phase(each) for each in rows]
                missing = [absent for some in pages if len(absent := some[~self.memory.present[some]])]
                if missing:
                    return missing
        except BaseException:
            missing = [_NONE]
            raise
        finally:
            if missing:
                self._leave()
        return []

    def _leave(self) -> None:
        with self._lock:
            self._readers -= 1
            if not self._readers:
                self._lock.notify_all()

    def _rows(self, places: Places, names: Iterable[str], back: int = 0) -> list[_FieldRows]:
        shards, shard = self._shards, places.shard
        found = []
        for name in names:
            table = shards.places[name]
            if name in _FLAGS or not table.is_known:
                continue
            if shards.schema[name].role == Role.OBSERVATION:
                row = places.steps + places.trajectory - shards.first_row[shard]
                # Those before the trajectory are not needed; nothing is before the shard.
                rows = np.concatenate([np.maximum(row + offset, 0) for offset in range(-back, 2)])
                found.append(_FieldRows(table, np.concatenate([shard] * (back + 2)), rows))
            else:
                found.append(_FieldRows(table, shard, places.steps - shards.first_step[shard]))
        return found

    def _fetch(self, held: Held, pages: Sequence[Pages]) -> None:
        wanted = np.unique(np.concatenate([_NONE, *map(_distinct, pages)]))
        with self._lock:
            self._holders[wanted] += 1
            held.pages.append(wanted)
        while len(missing := self._unclaimed(wanted)):
            try:
                for name, number, content in self._files.fetch(self.memory.by_file(missing)):
                    page = self.memory.number(name, number)
                    with self._lock:
                        if self._holders[page]:
                            self.memory.fill(page, content)
            finally:
                with self._lock:
                    self._is_coming[missing] = False
                    self._lock.notify_all()

    def _unclaimed(self, wanted: Pages) -> Pages:
        """Claim and return the pages that are not here and that no other thread fetches; wait for those of others."""
        with self._lock:
            while len(absent := wanted[~self.memory.present[wanted]]):
                missing = absent[~self._is_coming[absent]]
                if len(missing):
                    self._is_coming[missing] = True
                    return missing
                self._lock.wait()
        return _NONE

    def _let_go(self, pages: Sequence[Pages], steps: Indices) -> None:
        """Drop unheld pages while nobody reads."""
        with self._lock:
            while self._is_dropping:
                self._lock.wait()
            try:
                self._is_dropping = True
                while self._readers:
                    self._lock.wait()
                self._covered[steps] -= 1
                for some in pages:
                    self._holders[some] -= 1
                    self.memory.drop(some[(self._holders[some] == 0) & self.memory.present[some]])
            finally:  # after Ctrl-C, too, or all others would wait forever
                self._is_dropping = False
                self._lock.notify_all()


class _FieldPlaces:
    """Where the rows of a field are in the memory of pages, by shard.

    Attributes:
        row_bytes: bytes of a row; 0 where rows are compressed in chunks.
        start, data: [shards] offsets of the first row or of the index of chunks, and of the chunks.
        size, longest: [shards] bytes of the file of chunks, and most bytes of an encoded chunk.
        chunk: [shards] rows per chunk; ``has_long_chunks``: whether any is above 1.
        is_known: whether the field is read from that memory.
        memory: of the pages, from which offsets count.
    """

    def __init__(self, field: Field, shards: int, memory: PageMemory) -> None:
        self.is_known = not field.is_text and field.row_bytes > 0
        self.row_bytes, self.memory = 0, memory
        self.start, self.data, self.size, self.longest = np.zeros((4, shards), np.int64)
        self.chunk = np.ones(shards, np.int64)
        self.has_long_chunks = False


class _FieldRows:
    """Rows [n] of a field, each in a shard."""

    def __init__(self, table: _FieldPlaces, shard: Indices, rows: Indices) -> None:
        self.table, self.shard = table, shard
        self.rows = rows // table.chunk[shard] if table.has_long_chunks else rows


def _index_pages(rows: _FieldRows) -> Pages:
    table = rows.table
    size = table.row_bytes or INDEX_ENTRY_BYTES
    start = table.start[rows.shard] + rows.rows * size
    return _pages(start, start + size)


def _data_pages(rows: _FieldRows) -> Pages:
    table, shard = rows.table, rows.shard
    if table.row_bytes:
        return _NONE
    entries = table.memory.rows_at(table.start[shard] + rows.rows * INDEX_ENTRY_BYTES, _ENTRY)
    start, length = entries["start"], entries["length"]
    # A damaged index may claim most of the file: that is not fetched, and reading its rows raises the error.
    is_sound = (start >= 0) & (length > 0) & (length <= table.longest[shard]) & (start <= table.size[shard] - length)
    start = (table.data[shard] + start)[is_sound]
    return _pages(start, start + length[is_sound])


def _pages(start: Indices, stop: Indices) -> Pages:
    """Return pages that hold a byte of these ranges, none of them empty; some more than once."""
    first, last = start // PAGE_BYTES, (stop - 1) // PAGE_BYTES
    widest = int((last - first).max()) if len(first) else 0
    return np.concatenate([np.minimum(first + n, last) for n in range(widest + 1)])


def _distinct(numbers: Indices) -> Indices:
    """Return numbers without those that equal the one before: most repeats, of pages of consecutive steps."""
    is_new = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=is_new[1:])
    return numbers[is_new]


def _widened(steps: Indices, total: int) -> Indices:
    """Return steps, ascending, with those around every run of them."""
    ends = np.flatnonzero(np.diff(steps) > 1)
    first, last = steps[np.append(0, ends + 1)], steps[np.append(ends, len(steps) - 1)]
    around = np.arange(1, _MARGIN + 1)
    wide = np.concatenate([steps, (first[:, None] - around).reshape(-1), (last[:, None] + around).reshape(-1)])
    return _distinct(np.sort(wide[(wide >= 0) & (wide < total)]))


class _FetchedShards(Shards):
    """Shards whose arrays are read from the memory of pages.

    Attributes:
        is_open: [shards] whether that is known.
    """

    def __init__(self, dataset: RemotePath, manifest: Manifest, memory: PageMemory, table: Trajectories) -> None:
        super().__init__(dataset, manifest)
        self.is_remote = False  # what is read is here
        self._most_open = len(self.records) * len(self.schema.fields) + 1  # memory, not maps
        self._table, self._memory = table, memory
        self.is_open = np.zeros(len(self.records), bool)
        self.places = {
            name: _FieldPlaces(field, len(self.records), memory) for name, field in self.schema.fields.items()
        }

    def trajectories(self) -> Trajectories:
        return self._table

    def _opened(self, number: int, name: str) -> ArrayReader:
        reader, field, table = super()._opened(number, name), self.schema[name], self.places[name]
        if isinstance(reader, RangedRawReader) and table.is_known:
            file = self._memory.file(str(reader.path.inner))
            table.start[number], table.row_bytes = file.start, field.row_bytes
            return RawFileReader(reader.path, field, reader.rows, file)
        if isinstance(reader, RangedShardReader) and table.is_known:
            file = self._memory.file(str(reader.path.inner))
            found = ShardFileReader(reader.path, field, reader.codec, chunk=reader.chunk, rows=reader.rows, file=file)
            table.data[number] = file.start
            table.start[number] = file.start + len(file.memory) - CRC_BYTES - found.index.nbytes
            table.size[number], table.chunk[number] = len(file.memory), reader.chunk
            table.longest[number] = most_bytes(reader.codec.chunk_bytes, 1)
            table.has_long_chunks |= reader.chunk > 1
            return found
        table.is_known = False
        return reader


class _FetchedSteps(StepReader):
    """Reader that fetches missing pages before another reader reads them."""

    def __init__(self, reader: StepReader, ahead: ReadAhead) -> None:
        vars(self).update(vars(reader))  # the same tables; nothing of the size of the dataset is made twice
        self._reader, self._ahead = reader, ahead

    def read_all(
        self,
        places: Places,
        stacks: Mapping[str, Stack] | None = None,
        names: Sequence[str] | None = None,
        sides: Mapping[str, int] | None = None,
        *,
        shared: bool = False,
    ) -> dict[str, tuple[Rows, Rows | None]]:
        back = max((stack.k for stack in (stacks or {}).values()), default=1) - 1
        with self._ahead.reading(places.steps, self._shards.schema.fields if names is None else names, back):
            return self._reader.read_all(places, stacks, names, sides, shared=shared)

    def planned(
        self, name: str, places: Places, shape: tuple[int, ...], stack: Stack | None = None, side: int | None = None
    ) -> Callable[[int], list[Rows]]:
        """Return a function that reads a batch's field."""
        read, steps = super().planned(name, places, shape, stack, side), places.steps.reshape(shape[0], -1)

        def fetched(batch: int) -> list[Rows]:
            with self._ahead.reading(steps[batch], [name], 0 if stack is None else stack.k - 1):
                return read(batch)

        return fetched

    def read(self, name: str, places: Places) -> Rows:
        """Read as ``StepReader.read`` does."""
        with self._ahead.reading(places.steps, [name]):
            return self._reader.read(name, places)

    def read_observations(self, name: str, places: Places, *, shared: bool = False) -> tuple[Rows, Rows]:
        """Read as ``StepReader.read_observations`` does."""
        with self._ahead.reading(places.steps, [name]):
            return self._reader.read_observations(name, places, shared=shared)

    def read_stacks(self, name: str, places: Places, stack: Stack) -> tuple[Rows, Rows]:
        """Read as ``StepReader.read_stacks`` does."""
        with self._ahead.reading(places.steps, [name], stack.k - 1):
            return self._reader.read_stacks(name, places, stack)
