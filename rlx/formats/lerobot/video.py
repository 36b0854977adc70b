"""Frames of LeRobot's videos, by their times: decoded as a stream, one frame in memory at a time.

The boxes of an MP4 file are checked before FFmpeg allocates memory for them.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceError, imported
from rlx.files.disk import check_readable, opened_file
from rlx.formats.common.source import damage

_HEADER, _LONG, _SIZES = struct.Struct(">I4s"), struct.Struct(">Q"), struct.Struct(">4xII")
# Boxes of boxes, down to the table of a track's samples.
_NESTED = frozenset({b"moov", b"trak", b"mdia", b"minf", b"stbl"})
# Boxes that spread or pack the table of frames, which LeRobot's files do not have.
_REFUSED = frozenset({b"moof", b"mvex", b"stz2"})
_MAX_BOXES = 10_000
UNUSED = "video_frame_without_a_step"
# Seconds between a step's time and its frame's, as in LeRobot's own reader, beside the rounding of float32 times.
_TOLERANCE = 1e-4
_CODECS = frozenset({"h264", "hevc", "av1", "vp9"})
# A seek may end at a key frame after the wanted time, if frames are stored in another order than shown.
_SEEK_BACK = (0.0, 1.0, 10.0, inf)
_PADDING = 256  # pixels by which a decoder may enlarge each side


def check_samples(path: Path) -> None:
    """Raise CorruptShardError if tables claim more frames than fit into the file: FFmpeg allocates memory for each."""
    check_readable(path)
    with opened_file(path) as file:
        size = file.seek(0, 2)
        kinds: set[bytes] = set()
        for number, (kind, start, stop) in enumerate(_boxes(path, file, 0, size)):
            if number >= _MAX_BOXES:
                raise CorruptShardError(f"{path}: expected at most {_MAX_BOXES:,} MP4 boxes, found more")
            if kind in _REFUSED:
                raise CorruptShardError(f"{path}: expected an MP4 file with one table of frames, found {kind.decode()}")
            if kind == b"stsz":
                _check_table(path, file, start, stop, size)
            kinds.add(kind)
    if missing := [kind.decode() for kind in (b"moov", b"mdat", b"stsz") if kind not in kinds]:
        raise CorruptShardError(f"{path}: expected an MP4 file, found no {missing[0]} box")


def _boxes(path: Path, file: BinaryIO, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield type, start and end of the content of every box, those in ``moov`` included."""
    at = start
    while at + _HEADER.size <= stop:
        file.seek(at)
        length, kind = _HEADER.unpack(file.read(_HEADER.size))
        content = at + _HEADER.size
        if length == 1 and content + _LONG.size <= stop:
            (length,) = _LONG.unpack(file.read(_LONG.size))
            content += _LONG.size
        end = stop if length == 0 else at + length
        if not content <= end <= stop:
            raise CorruptShardError(
                f"{path} is damaged: expected a box of at most {stop - at:,} bytes at byte {at:,}, found {length:,}"
            )
        yield kind, content, end
        if kind in _NESTED:
            yield from _boxes(path, file, content, end)
        at = end


def _check_table(path: Path, file: BinaryIO, start: int, stop: int, size: int) -> None:
    if stop - start < _SIZES.size:
        raise CorruptShardError(f"{path} is damaged: expected a table of samples, found {stop - start} bytes")
    file.seek(start)
    each, count = _SIZES.unpack(file.read(_SIZES.size))
    listed = size // each if each else (stop - start) // 4
    if count > listed:
        raise CorruptShardError(f"{path} is damaged: expected at most {listed:,} frames, found {count:,} claimed")


@dataclass(frozen=True, slots=True)
class VideoPlace:
    """The part of a video that has the frames of one episode.

    Args:
        start: seconds at which the episode starts.
        stop: seconds at which another episode starts; infinity if none does.
    """

    name: str
    start: float
    stop: float = inf


def pyav() -> Any:
    """Return PyAV; raises MissingExtraError if it is not installed."""
    return imported("av", "LeRobot's videos need PyAV", "lerobot")


class Video:
    """An open video, which reads frames in the order of their times. Damage raises CorruptShardError.

    Args:
        shape: [H, W, 3] that every frame must have.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path = path
        self._shape = shape
        self._av = pyav()
        # PyAV before 17 always converts in one thread.
        self._one_thread = {"threads": 1} if int(self._av.__version__.split(".")[0]) >= 17 else {}
        check_samples(path)
        height, width, _ = shape
        # The decoder refuses larger frames before it allocates them, whatever the container says.
        limits = {"max_pixels": str((height + _PADDING) * (width + _PADDING)), "threads": "1"}
        with self._translated():
            self._file = self._av.open(str(path), format="mp4", options=limits, metadata_errors="replace")
            try:
                self._stream = self._prepared(limits)
            except BaseException:
                self._file.close()
                raise
        self._frames: Iterator[tuple[float, Any]] = iter(())
        self._ahead: tuple[float, Any] | None = None
        self._last: tuple[float, NDArray[np.uint8]] | None = None
        self._rewind()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._frames = iter(())
        self._file.close()

    def seek(self, time: float) -> None:
        """Continue with the first frame at or after a time."""
        if self._ahead is not None and abs(self._ahead[0] - time) <= _tolerance(time):
            return
        for back in _SEEK_BACK:
            self._rewind(max(0.0, time - back))
            if self._ahead is not None and self._ahead[0] <= time + _tolerance(time):
                break
        while self._ahead is not None and self._ahead[0] < time - _tolerance(time):
            self._advance()

    def frames(self, times: Sequence[float], dropped: Counter[str]) -> NDArray[np.uint8]:
        """Return [n, H, W, 3] the frames at ascending times; counts frames between them in ``dropped``."""
        frames = np.empty((len(times), *self._shape), np.uint8)
        for number, time in enumerate(times):
            frames[number] = self._frame(time, dropped)
        return frames

    def skip_to(self, time: float, dropped: Counter[str]) -> None:
        """Skip the frames before a time, or to the end of the file, and count them in ``dropped``."""
        while self._ahead is not None and self._ahead[0] < time - _tolerance(time):
            dropped[UNUSED] += 1
            self._advance()

    def _frame(self, time: float, dropped: Counter[str]) -> NDArray[np.uint8]:
        near = _tolerance(time)
        if self._last is not None and abs(self._last[0] - time) <= near:
            return self._last[1]  # two steps with the same time
        self.skip_to(time, dropped)
        if self._ahead is None or self._ahead[0] > time + near:
            found = "the end of the video" if self._ahead is None else f"one at {self._ahead[0]:.4f} s"
            raise CorruptShardError(f"{self.path}: expected a frame at {time:.4f} s, found {found}")
        shown, frame = self._ahead
        if (frame.height, frame.width) != self._shape[:2]:
            raise CorruptShardError(
                f"{self.path}: expected frames of {list(self._shape[:2])}, found {[frame.height, frame.width]}"
            )
        with self._translated():
            self._last = (shown, frame.to_ndarray(format="rgb24", **self._one_thread))
        self._advance()
        return self._last[1]

    def _prepared(self, limits: dict[str, str]) -> Any:
        """Return the first stream of video, with its decoder's limits set."""
        if not self._file.streams.video:
            raise CorruptShardError(f"{self.path}: expected a video, found none")
        stream = self._file.streams.video[0]
        codec = stream.codec_context
        if codec is None or codec.codec.canonical_name not in _CODECS:
            found = "an unknown one" if codec is None else codec.codec.canonical_name
            raise SourceError(f"{self.path}: expected a codec of {', '.join(sorted(_CODECS))}, found {found}")
        codec.options = {**limits, "err_detect": "explode"}
        codec.thread_count = 1
        return stream

    def _rewind(self, time: float = 0.0) -> None:
        self._ahead = self._last = None
        with self._translated():
            if time:
                base = self._stream.time_base
                self._file.seek(int(time / base), stream=self._stream, backward=True)
            else:
                self._file.seek(0, backward=True)
        self._frames = self._decoded()
        self._advance()

    def _advance(self) -> None:
        before = self._ahead
        with self._translated():
            self._ahead = next(self._frames, None)
        if before is not None and self._ahead is not None and self._ahead[0] <= before[0]:
            raise CorruptShardError(
                f"{self.path} is damaged: expected frames at ascending times, found {before[0]} and {self._ahead[0]}"
            )

    def _decoded(self) -> Iterator[tuple[float, Any]]:
        for packet in self._file.demux(self._stream):
            if packet.is_corrupt:
                raise CorruptShardError(f"{self.path} is damaged: it ends within a frame")
            for frame in packet.decode():
                if frame.time is None or frame.is_corrupt:
                    raise CorruptShardError(f"{self.path} is damaged: a frame cannot be decoded")
                yield frame.time, frame

    def _translated(self) -> AbstractContextManager[None]:
        return damage(self.path, self._av.FFmpegError, ValueError, OverflowError, MemoryError)


def _tolerance(time: float) -> float:
    return _TOLERANCE + float(np.spacing(np.float32(time))) if time < inf else 0.0
