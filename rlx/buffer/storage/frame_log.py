"""Compressed frames in memory: appended to large pages, which are freed whole when no frame in them is used."""

import numpy as np
from numpy.typing import NDArray

from rlx.store.chunk_codec import ZstdChunks
from rlx.store.dictionary import REFERENCE_FRAMES, REFERENCE_ROWS, reference_dictionary

Frames = NDArray[np.uint8]
Places = NDArray[np.int64]

_PAGE_BYTES = 1 << 20
# A place is the number of its page and the offset in it.
_PAGE = 1 << 32
_EVERY = REFERENCE_ROWS // REFERENCE_FRAMES


class FrameLog:
    """Frames of equal size, compressed one by one; each is found by its place.

    The first frames are compressed by themselves; once enough were seen, the others against a dictionary of frames
    spread over those.

    Args:
        frame_bytes: bytes of a frame.
        level: zstd's.
    """

    def __init__(self, frame_bytes: int, level: int) -> None:
        self.frame_bytes = frame_bytes
        self._level = level
        self._codecs = [ZstdChunks(frame_bytes, level)]
        self._references: list[Frames] = []
        self._seen = 0
        self.clear()

    def clear(self) -> None:
        """Forget all frames; not the dictionary."""
        self._pages: dict[int, bytearray] = {}
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
            self._pages[self._current][self._filled : self._filled + len(data)] = data
            places[done:stop] = self._current * _PAGE + self._filled + ends[done:stop] - sizes[done:stop] - before
            self._filled += len(data)
            self.hold(places[done:stop])
            done = stop
        return places, sizes

    def _learn(self, frames: Frames) -> None:
        """Collect references, and make the dictionary when there are enough."""
        if len(self._codecs) > 1:
            return
        self._references += list(frames[-self._seen % _EVERY :: _EVERY].copy())
        self._seen += len(frames)
        if self._seen >= REFERENCE_ROWS:
            dictionary = reference_dictionary([np.stack(self._references)])
            self._codecs.append(ZstdChunks(self.frame_bytes, self._level, dictionary))
            self._references.clear()
            self._filled = _PAGE  # frames compressed against it need a page of their own

    def _room(self, needed: int) -> int:
        """Return bytes left in the current page; a new one if those are fewer than needed."""
        if self._current not in self._pages or self._filled + needed > len(self._pages[self._current]):
            self._drop_unused(self._current)
            self._current += 1
            self._filled = 0
            self._pages[self._current] = bytearray(max(_PAGE_BYTES, needed))
            self._codec_of[self._current] = self._codecs[-1]
        return len(self._pages[self._current]) - self._filled

    def hold(self, places: Places) -> None:
        """Take note that these frames are in use."""
        for page, count in _counts(places):
            self._used[page] = self._used.get(page, 0) + count

    def release(self, places: Places) -> None:
        """Take note that a user of these frames is gone; free pages without used frames."""
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
        unique, first, inverse = np.unique(places, return_index=True, return_inverse=True)
        if not len(unique):
            return np.empty((0, self.frame_bytes), np.uint8)
        pages, starts = np.divmod(unique, _PAGE)
        ends = starts + sizes[first]
        breaks = np.flatnonzero((pages[1:] != pages[:-1]) | (starts[1:] != ends[:-1])) + 1
        runs = np.append(0, breaks)
        last = np.append(breaks, len(unique)) - 1
        found = zip(pages[runs].tolist(), starts[runs].tolist(), ends[last].tolist(), strict=True)
        views = [memoryview(self._pages[page])[start:end] for page, start, end in found]
        codecs = [self._codec_of[page] for page in pages[runs].tolist()]
        counts = (last + 1 - runs).tolist()
        # Pages are in the order of writing, so those without a dictionary come first.
        plain = codecs.count(self._codecs[0])
        parts = [
            codec.decode_run(chosen, sum(amounts))
            for codec, chosen, amounts in (
                (self._codecs[0], views[:plain], counts[:plain]),
                (self._codecs[-1], views[plain:], counts[plain:]),
            )
            if chosen
        ]
        decoded = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return decoded if len(unique) == len(places) and (np.diff(inverse) == 1).all() else decoded[inverse]


def _counts(places: Places) -> list[tuple[int, int]]:
    pages, counts = np.unique(places // _PAGE, return_counts=True)
    return list(zip(pages.tolist(), counts.tolist(), strict=True))
