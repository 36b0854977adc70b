"""Steps in memory with compressed images; a ``next`` observation and the following observation share one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.index.continuity import Columns, Flags, Leaves, Path, bytes_of
from rlx.buffer.index.ring import run_starts
from rlx.buffer.protocol import Rows
from rlx.buffer.storage.ring import RingStorage
from rlx.buffer.storage.step_schema import in_torch
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.numbers import check_whole
from rlx.store.chunk_codec import ZstdChunks, row_of
from rlx.store.codec import MAX_LEVELS
from rlx.store.dictionary import trained_dictionary
from rlx.store.native.gather import FileTable
from rlx.store.native.kernel import Kernel, Numbers, RowArrays, kernel
from rlx.store.native.memory import empty_rows

Frames = NDArray[np.uint8]
Places = NDArray[np.int64]

Refs = NDArray[np.void]
# Where a frame is, -1 for nowhere, and its compressed bytes.
_REF = np.dtype([("place", np.int64), ("size", np.int32)])

_PAGE_BYTES = 1 << 20
# A place is the number of its page and the offset in it.
_PAGE = 1 << 32
# A dictionary is made of as many frames, spread over the first 512 and then over the first 8,192.
_LEARNED = 128
_EVERY = (4, 64)
_WORTH = 8  # a learner waits for its writes: a search must save an eighth of the bytes
_NONE = np.empty(0, np.int64)


class FrameLog:
    """Frames of equal size, compressed one by one; each is found by its place.

    The first frames are compressed by themselves, which takes more memory and reads slower; the others against a
    dictionary of earlier ones.
    """

    def __init__(self, frame_bytes: int, level: int) -> None:
        self.frame_bytes = frame_bytes
        self._level = level
        self._codec = ZstdChunks(frame_bytes, level)
        self._references: list[bytes] = []
        self._every = list(_EVERY)
        self._seen = 0
        self.clear()

    def clear(self) -> None:
        """Forget all frames; not the dictionary."""
        self._pages: dict[int, Frames] = {}
        self._codec_of: dict[int, ZstdChunks] = {}
        self._used: dict[int, int] = {}
        self._current = -1
        self._filled = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken by frames."""
        return sum(len(page) for page in self._pages.values())

    def append(self, arrays: RowArrays, rows: Numbers | None = None, like: Numbers | None = None) -> Refs:
        """Return [n] where frames are now, held once by the caller.

        Args:
            arrays: [frames, frame_bytes] each; their frames are numbered one array after the other.
            rows: [n] numbers of the frames; all by default.
            like: [n] number of a frame that each may repeat, which is held already; -1 for none. One that does is not
                kept again: its size is 0, and its place is not set.
        """
        if rows is None:
            rows = np.arange(sum(map(len, arrays)))
        if like is None:
            like = np.full(len(rows), -1)
        if self._every:
            self._learn(arrays, rows[like < 0])
        found, sizes, done = np.empty(len(rows), _REF), np.empty(len(rows), np.int32), 0
        if self._current not in self._pages:
            self._turn_page()
        while done < len(rows):
            free = self._pages[self._current][self._filled :]
            count = self._codec.encode_rows(arrays, rows[done:], like[done:], free, sizes[done:])
            if count:
                written = sizes[done : done + count]
                ends = self._current * _PAGE + self._filled + np.cumsum(written, dtype=np.int64)
                found["place"][done : done + count] = ends - written
                self._filled = int(ends[-1]) % _PAGE
                self._used[self._current] += int(np.count_nonzero(written))
                done += count
            if done < len(rows):
                self._turn_page(int(sizes[done]))
        found["size"] = sizes
        return found

    def _learn(self, arrays: RowArrays, rows: Numbers) -> None:
        every = self._every[0]
        chosen = rows[-self._seen % every :: every].tolist()
        self._references += [row_of(arrays, row).tobytes() for row in chosen]
        self._seen += len(rows)
        if len(self._references) >= _LEARNED:
            references = np.frombuffer(b"".join(self._references[:_LEARNED]), np.uint8).reshape(_LEARNED, -1)
            dictionary = trained_dictionary([references], self.frame_bytes, self._level)
            self._codec = ZstdChunks(self.frame_bytes, self._level, dictionary, worth=_WORTH)
            del self._every[0]
            self._references = self._references[:: self._every[0] // every] if self._every else []
            self._turn_page()  # frames compressed against it need a page of their own

    def _turn_page(self, needed: int = 0) -> None:
        self._drop_unused(self._current)
        self._current += 1
        self._filled = 0
        self._pages[self._current] = np.empty(max(_PAGE_BYTES, needed), np.uint8)
        self._codec_of[self._current] = self._codec
        self._used[self._current] = 0

    def exchange(self, held: Places, released: Places) -> None:
        """Count a user of each of some frames, and one less of others; free pages without used frames."""
        if not len(held) + len(released):
            return
        pages = np.concatenate([held, released]) // _PAGE
        first = int(pages.min())
        pages -= first
        count = int(pages.max()) + 1
        more, less = (np.bincount(part, minlength=count) for part in (pages[: len(held)], pages[len(held) :]))
        for page, change in enumerate((more - less).tolist(), first):
            if change:
                self._used[page] += change
                if page != self._current:
                    self._drop_unused(page)

    def _drop_unused(self, page: int) -> None:
        if not self._used.get(page):
            self._used.pop(page, None)
            self._codec_of.pop(page, None)
            self._pages.pop(page, None)

    def read(self, places: Places, sizes: NDArray[np.int32]) -> Frames:
        """Return the frames [n, frame_bytes] at these places; one that is asked for twice is decoded once."""
        compiled = kernel()
        return self._read_in_python(places, sizes) if compiled is None else self._read_by(compiled, places, sizes)

    def _read_by(self, compiled: Kernel, places: Places, sizes: NDArray[np.int32]) -> Frames:
        pages = (places // _PAGE).tolist()
        table, numbers = FileTable(len(set(pages)), self.frame_bytes), dict[int, int]()
        for page in pages:
            if page not in numbers:
                dictionary = self._codec_of[page].digested_for(compiled)
                # It keeps the page, as other threads run while frames are decoded.
                table.add(numbers.setdefault(page, len(numbers)), self._pages[page].data, 0, dictionary)
        frames = empty_rows(len(places), self.frame_bytes)
        number = np.fromiter(map(numbers.__getitem__, pages), np.int64, len(pages))
        compiled.decode(table, number, places % _PAGE, sizes, frames)
        return frames

    def _read_in_python(self, places: Places, sizes: NDArray[np.int32]) -> Frames:
        unique, first, inverse = np.unique(places, return_index=True, return_inverse=True)
        if not len(unique):
            return np.empty((0, self.frame_bytes), np.uint8)
        pages, starts = np.divmod(unique, _PAGE)
        ends = starts + sizes[first]
        breaks = np.flatnonzero((pages[1:] != pages[:-1]) | (starts[1:] != ends[:-1])) + 1
        runs = np.append(0, breaks)
        last = np.append(breaks, len(unique)) - 1
        found = zip(pages[runs].tolist(), starts[runs].tolist(), ends[last].tolist(), strict=True)
        views = [self._pages[page].data[start:end] for page, start, end in found]
        codecs = [self._codec_of[page] for page in pages[runs].tolist()]
        pieces = zip(codecs, views, (last + 1 - runs).tolist(), strict=True)
        parts = []
        for codec, group in groupby(pieces, itemgetter(0)):
            _, chosen, amounts = zip(*group, strict=True)
            parts.append(codec.decode_run(chosen, sum(amounts)))
        decoded = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return decoded if len(unique) == len(places) and (np.diff(inverse) == 1).all() else decoded[inverse]


IMAGE_BYTES = 1024


@dataclass(slots=True)
class _Latest:
    """The last next observation of each lane, which the lane's next step is likely to start with, and where it is."""

    frames: Frames
    refs: Refs


class CompressedStorage(LazyTensorStorage):
    """Storage that compresses keys of a kilobyte or more per step, row by row; others are kept in tensors.

    An observation that equals the next observation of the previous step, bit for bit, is stored once; any other is
    stored separately. Every row can be read without the others.

    Args:
        max_size: maximum number of steps, over all lanes.
        ndim: dimensions of the written steps: those of the lanes, then time.
        level: zstd level; a higher one compresses better and writes slower, but does not read slower.

    Example:
        >>> frames = rlx.open("Pong/5")[:64]
        >>> buffer = rlx.ReplayBuffer(storage=rlx.buffer.CompressedStorage(1000), batch_size=8)
        >>> _ = buffer.extend(frames)
        >>> buffer.sample()["observation"].shape
        torch.Size([8, 84, 84])
    """

    def __init__(self, max_size: int, *, ndim: int = 1, level: int = 6) -> None:
        check_whole("level", level, 0, MAX_LEVELS["zstd-dict"])
        super().__init__(max_size, ndim=ndim)
        self._level = level
        self._logs: dict[Path, FrameLog] = {}
        self._refs: dict[Path, Refs] = {}
        self._latest: dict[Path, _Latest] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory that steps take."""
        refs = sum(refs.nbytes for refs in self._refs.values())
        return refs + sum(log.nbytes for log in self._logs.values()) + sum(t.nbytes for t in self._tensors.values())

    def _allocate(self) -> None:
        self._logs, self._refs, self._latest = {}, {}, {}
        small = {}
        for path, (dtype, shape) in self._schema.items():
            row_bytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
            if row_bytes < IMAGE_BYTES:
                small[path] = torch.empty(self.max_size, *shape, dtype=dtype)
                continue
            self._refs[path] = _nowhere(self.max_size)
            self._logs.setdefault(self._log_of(path), FrameLog(row_bytes, self._level))
        self._hold(small)

    def _log_of(self, path: Path) -> Path:
        """Return the key whose log a key's frames are in: an observation and the next one share theirs."""
        now = _log_key(path)
        return now if self._schema.get(now) == self._schema[path] else path

    def empty(self) -> None:
        """Remove all steps; keep the schema and the dictionaries of the images."""
        super().empty()
        self._latest.clear()
        for log in self._logs.values():
            log.clear()
        for refs in self._refs.values():
            refs["place"] = -1

    def _append(self, rows: Rows, leaves: Columns) -> None:
        super()._append(rows, {path: leaf for path, leaf in leaves.items() if path in self._tensors})
        images = {path: leaf for path, leaf in leaves.items() if path in self._refs}
        flat = {path: in_torch(leaf).reshape(rows.size, *self._schema[path][1]) for path, leaf in images.items()}
        self._write_images(rows.reshape(-1), flat)

    def _write(self, rows: Rows, leaves: Leaves) -> None:
        super()._write(rows, {path: leaf for path, leaf in leaves.items() if path in self._tensors})
        self._write_images(rows, {path: leaf for path, leaf in leaves.items() if path in self._refs})

    def _write_images(self, rows: Rows, leaves: Leaves) -> None:
        if not len(rows):
            return
        frames = {path: bytes_of(leaf) for path, leaf in leaves.items()}
        for key, log in self._logs.items():
            after = ("next", *key)
            if after in frames and self._log_of(after) == key:
                self._write_pairs(log, key, rows, frames[key], frames[after])
            else:
                found = log.append([frames[key]])
                log.exchange(_NONE, self._put(key, rows, found))

    def _write_pairs(self, log: FrameLog, key: Path, rows: Rows, now: Frames, after: Frames) -> None:
        """Write observations and next ones; an observation that was the next of the step before only once."""
        ring, count = self._ring, len(rows)
        latest = self._latest.get(key)
        if latest is None:
            latest = _Latest(np.empty((ring.lanes, log.frame_bytes), np.uint8), _nowhere(ring.lanes))
            self._latest[key] = latest
        lane = rows // ring.size
        first = run_starts(lane)
        known = latest.refs[lane[first]]
        # In the order of time, so that a slice is contiguous in memory.
        frames, like = np.empty(2 * count, np.int64), np.full(2 * count, -1)
        frames[::2], frames[1::2] = np.arange(count), np.arange(count, 2 * count)
        like[2::2] = frames[1:-1:2]
        like[2 * first] = np.where(known["place"] >= 0, 2 * count + lane[first], -1)
        found = log.append([now, after, latest.frames], frames, like)
        shared = (found["size"] == 0).nonzero()[0]
        continued = (found["size"][2 * first] == 0).nonzero()[0]
        found[shared] = found[shared - 1]
        found[2 * first[continued]] = known[continued]
        last = np.full(ring.lanes, -1)
        last[lane] = np.arange(1, 2 * count, 2)  # rows of a lane may be apart
        lanes = (last >= 0).nonzero()[0]
        last = last[lanes]
        old = latest.refs["place"][lanes]
        held = [found["place"][shared], found["place"][last]]
        released = [self._put(key, rows, found[::2]), self._put(("next", *key), rows, found[1::2]), old[old >= 0]]
        log.exchange(np.concatenate(held), np.concatenate(released))
        latest.frames[lanes], latest.refs[lanes] = after[last // 2], found[last]

    def _put(self, path: Path, rows: Rows, found: Refs) -> Places:
        """Let rows of a key refer to frames that are held for them; return the places that they referred to."""
        refs = self._refs[path]
        old: Places = refs["place"][rows]
        refs[rows] = found
        return old[old >= 0]

    def _read(self, rows: Rows, paths: Sequence[Path], *, may_be_arrays: bool = False) -> Columns:
        small = super()._read(rows, [path for path in paths if path in self._tensors], may_be_arrays=may_be_arrays)
        leaves = {**small, **self._read_images(rows, [path for path in paths if path in self._refs])}
        return {path: leaves[path] for path in paths}

    _observations = RingStorage._observations

    def _shared(self, paths: Sequence[Path]) -> Callable[[Rows, Rows], Flags] | None:
        if not paths or any(path not in self._refs for path in paths):
            return None
        pairs = [(self._refs[path], self._refs["next", *path]) for path in paths]

        def shared(before: Rows, rows: Rows) -> Flags:
            same: Flags = np.logical_and.reduce([now["place"][rows] == then["place"][before] for now, then in pairs])
            return same

        return shared

    def _read_images(self, rows: Rows, paths: Sequence[Path]) -> Leaves:
        leaves = {}
        for key, log in self._logs.items():
            wanted = [path for path in paths if self._log_of(path) == key]
            if not wanted:
                continue
            refs = [self._refs[path] for path in wanted]
            found = np.concatenate([ref[rows] for ref in refs])
            decoded = log.read(found["place"], found["size"]).reshape(len(wanted), len(rows), log.frame_bytes)
            for path, frames in zip(wanted, decoded, strict=True):
                leaves[path] = _tensor(frames, *self._schema[path])
        return leaves


def _nowhere(count: int) -> Refs:
    refs = np.zeros(count, _REF)
    refs["place"] = -1
    return refs


def _log_key(path: Path) -> Path:
    return path[1:] if path[0] == "next" and len(path) > 1 else path


def _tensor(frames: Frames, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    flat: Any = torch.from_numpy(frames)
    tensor: torch.Tensor = flat.view(dtype).reshape(len(frames), *shape)
    return tensor
