"""Steps in memory with compressed images; a ``next`` observation and the following observation share one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.index.continuity import Leaves, Path, bytes_of
from rlx.buffer.index.ring import run_starts
from rlx.buffer.protocol import Rows
from rlx.buffer.storage.ring import RingStorage
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.numbers import check_whole
from rlx.store.chunk_codec import ZstdChunks
from rlx.store.codec import MAX_LEVELS
from rlx.store.dictionary import trained_dictionary
from rlx.store.kernel import Kernel, address, kernel
from rlx.store.memory import empty_rows

Frames = NDArray[np.uint8]
Places = NDArray[np.int64]

_PAGE_BYTES = 1 << 20
# A place is the number of its page and the offset in it.
_PAGE = 1 << 32
# A dictionary is made of as many frames, spread over the first 512 and then over the first 8,192.
_LEARNED = 128
_EVERY = (4, 64)


class FrameLog:
    """Frames of equal size, compressed one by one; each is found by its place.

    The first frames are compressed by themselves, which takes more memory and reads slower; the others against a
    dictionary of earlier ones.
    """

    def __init__(self, frame_bytes: int, level: int) -> None:
        self.frame_bytes = frame_bytes
        self._level = level
        self._codecs = [ZstdChunks(frame_bytes, level)]
        self._references: list[Frames] = []
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

    def append(self, frames: Frames) -> tuple[Places, NDArray[np.int32]]:
        """Return [n] where frames [n, frame_bytes] are now, held once, and [n] their compressed bytes."""
        self._learn(frames)
        encoded = self._codecs[-1].encode(frames)
        sizes = np.array([len(frame) for frame in encoded], np.int32)
        ends = np.cumsum(sizes, dtype=np.int64)
        places = np.empty(len(encoded), np.int64)
        done = 0
        while done < len(encoded):
            before = int(ends[done] - sizes[done])
            room = self._room(int(sizes[done]))
            stop = int(np.searchsorted(ends, before + room, side="right"))
            data = b"".join(encoded[done:stop])
            self._pages[self._current][self._filled : self._filled + len(data)] = np.frombuffer(data, np.uint8)
            places[done:stop] = self._current * _PAGE + self._filled + ends[done:stop] - sizes[done:stop] - before
            self._filled += len(data)
            self.hold(places[done:stop])
            done = stop
        return places, sizes

    def _learn(self, frames: Frames) -> None:
        if not self._every:
            return
        every = self._every[0]
        self._references += list(frames[-self._seen % every :: every].copy())
        self._seen += len(frames)
        if len(self._references) >= _LEARNED:
            dictionary = trained_dictionary([np.stack(self._references[:_LEARNED])], self.frame_bytes, self._level)
            self._codecs.append(ZstdChunks(self.frame_bytes, self._level, dictionary))
            del self._every[0]
            self._references = self._references[:: self._every[0] // every] if self._every else []
            self._filled = _PAGE  # frames compressed against it need a page of their own

    def _room(self, needed: int) -> int:
        """Return bytes left in the current page; a new one if those are fewer than needed."""
        if self._current not in self._pages or self._filled + needed > len(self._pages[self._current]):
            self._drop_unused(self._current)
            self._current += 1
            self._filled = 0
            self._pages[self._current] = np.empty(max(_PAGE_BYTES, needed), np.uint8)
            self._codec_of[self._current] = self._codecs[-1]
        return len(self._pages[self._current]) - self._filled

    def hold(self, places: Places) -> None:
        """Count a user of these frames."""
        for page, count in _counts(places):
            self._used[page] = self._used.get(page, 0) + count

    def release(self, places: Places) -> None:
        """Drop a user of these frames; free pages without used frames."""
        for page, count in _counts(places):
            self._used[page] -= count
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
        held = {page: self._pages[page] for page in set(pages)}  # other threads run while frames are decoded
        starts = {page: address(content) - page * _PAGE for page, content in held.items()}
        dictionaries = {page: self._codec_of[page].digested_for(compiled) for page in held}
        frames = empty_rows(len(places), self.frame_bytes)
        start, dictionary = (
            np.fromiter(map(of.__getitem__, pages), np.int64, len(pages)) for of in (starts, dictionaries)
        )
        compiled.decode(places + start, sizes, dictionary, frames)
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


def _counts(places: Places) -> Iterable[tuple[int, int]]:
    return Counter((places // _PAGE).tolist()).items()


IMAGE_BYTES = 1024


@dataclass(slots=True)
class _Refs:
    """Where the frames of one key are: [max_size] places, -1 where nothing is, and [max_size] compressed bytes."""

    place: NDArray[np.int64]
    size: NDArray[np.int32]


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
        self._refs: dict[Path, _Refs] = {}
        self._latest: dict[Path, dict[int, tuple[Frames, int, int]]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory that steps take."""
        refs = sum(refs.place.nbytes + refs.size.nbytes for refs in self._refs.values())
        return refs + sum(log.nbytes for log in self._logs.values()) + sum(t.nbytes for t in self._tensors.values())

    def _allocate(self) -> None:
        self._logs, self._refs, self._latest = {}, {}, {}
        small = {}
        for path, (dtype, shape) in self._schema.items():
            row_bytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
            if row_bytes < IMAGE_BYTES:
                small[path] = torch.empty(self.max_size, *shape, dtype=dtype)
                continue
            self._refs[path] = _Refs(np.full(self.max_size, -1, np.int64), np.zeros(self.max_size, np.int32))
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
            refs.place.fill(-1)

    def _append(self, rows: Rows, leaves: Leaves) -> None:
        super()._append(rows, {path: leaf for path, leaf in leaves.items() if path in self._tensors})
        images = {path: leaf for path, leaf in leaves.items() if path in self._refs}
        flat = {path: leaf.reshape(rows.size, *self._schema[path][1]) for path, leaf in images.items()}
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
                place, size = log.append(frames[key])
                self._put(log, key, rows, place, size)
                log.release(place)

    def _write_pairs(self, log: FrameLog, key: Path, rows: Rows, now: Frames, after: Frames) -> None:
        """Write observations and next ones; an observation that was the next of the step before only once."""
        known = np.zeros(len(rows), bool)
        place, size = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
        lane = rows // self._ring.size
        known[1:] = (lane[1:] == lane[:-1]) & (now[1:] == after[:-1]).all(axis=1)
        latest = self._latest.setdefault(key, {})
        starts = run_starts(lane)
        seen = {
            start: latest[b] for start, b in zip(starts.tolist(), lane[starts].tolist(), strict=True) if b in latest
        }
        same = {start: found for start, found in seen.items() if np.array_equal(now[start], found[0])}
        new = np.flatnonzero(~known & ~np.isin(np.arange(len(rows)), list(same)))
        # In the order of time, so that a slice is contiguous in memory.
        order = np.argsort(np.concatenate([2 * new, 2 * np.arange(len(rows)) + 1]), kind="stable")
        places, sizes = log.append(np.concatenate([now[new], after])[order])
        back = np.argsort(order, kind="stable")
        places, sizes = places[back], sizes[back]
        place[new], size[new] = places[: len(new)], sizes[: len(new)]
        after_place, after_size = places[len(new) :], sizes[len(new) :]
        shared = np.flatnonzero(known)
        place[shared], size[shared] = after_place[shared - 1], after_size[shared - 1]
        for start, (_, old_place, old_size) in same.items():
            place[start], size[start] = old_place, old_size
        self._put(log, key, rows, place, size)
        self._put(log, ("next", *key), rows, after_place, after_size)
        log.release(places)
        self._keep_latest(log, latest, lane, np.append(starts[1:], len(rows)) - 1, after, after_place, after_size)

    def _put(self, log: FrameLog, path: Path, rows: Rows, place: Rows, size: NDArray[np.int32]) -> None:
        refs = self._refs[path]
        log.hold(place)
        old = refs.place[rows]
        refs.place[rows], refs.size[rows] = place, size
        log.release(old[old >= 0])

    def _keep_latest(
        self,
        log: FrameLog,
        latest: dict[int, tuple[Frames, int, int]],
        lane: Rows,
        last: Rows,
        after: Frames,
        place: Rows,
        size: NDArray[np.int32],
    ) -> None:
        """Remember the last next observation of every lane, which the lane's next step is likely to start with."""
        log.hold(place[last])
        lanes = lane[last].tolist()
        log.release(np.array([latest[b][1] for b in lanes if b in latest], np.int64))
        for b, i in zip(lanes, last.tolist(), strict=True):
            latest[b] = after[i].copy(), int(place[i]), int(size[i])

    def _read(self, rows: Rows, paths: Sequence[Path]) -> Leaves:
        small = super()._read(rows, [path for path in paths if path in self._tensors])
        leaves = {**small, **self._read_images(rows, [path for path in paths if path in self._refs])}
        return {path: leaves[path] for path in paths}

    _observations = RingStorage._observations

    def _read_images(self, rows: Rows, paths: Sequence[Path]) -> Leaves:
        leaves = {}
        for key, log in self._logs.items():
            wanted = [path for path in paths if self._log_of(path) == key]
            if not wanted:
                continue
            refs = [self._refs[path] for path in wanted]
            place, size = (np.concatenate([getattr(r, name)[rows] for r in refs]) for name in ("place", "size"))
            decoded = log.read(place, size).reshape(len(wanted), len(rows), log.frame_bytes)
            for path, frames in zip(wanted, decoded, strict=True):
                leaves[path] = _tensor(frames, *self._schema[path])
        return leaves


def _log_key(path: Path) -> Path:
    return path[1:] if path[0] == "next" and len(path) > 1 else path


def _tensor(frames: Frames, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    flat: Any = torch.from_numpy(frames)
    tensor: torch.Tensor = flat.view(dtype).reshape(len(frames), *shape)
    return tensor
