"""A shard of an MDS dataset: where its samples are, and the values of one."""

import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.files.disk import check_readable
from rlx.formats.mds.layout import Encoding

_MAX_SAMPLE_BYTES = 2**29
_COUNT = struct.Struct("<I")


class Shard:
    """An open shard; a context.

    Args:
        path: of the file.
        samples: how many it is to have.
        size: bytes that it is to have.
        encodings: of its columns, in order.

    Raises:
        SourceNotFoundError: the file does not exist.
        CorruptShardError: it has another size, or no place for each sample in order. ``values`` raises it where a
            sample's sizes are not those of its columns.
    """

    def __init__(self, path: Path, samples: int, size: int, encodings: Sequence[Encoding]) -> None:
        check_readable(path)
        self.path = path
        self._encodings = encodings
        found = path.stat().st_size
        if found != size or size < _COUNT.size * (samples + 2):
            raise CorruptShardError(f"{path}: expected {size:,} bytes of {samples:,} samples, found {found:,}")
        self._file = path.open("rb")
        try:
            self._ends = self._places(samples, size)
        except BaseException:
            self._file.close()
            raise

    def _places(self, samples: int, size: int) -> NDArray[np.int64]:
        """Return [samples + 1] where each sample begins, and the end of the last."""
        (count,) = _COUNT.unpack(self._file.read(_COUNT.size))
        if count != samples:
            raise CorruptShardError(f"{self.path}: expected {samples:,} samples, found {count:,}")
        ends = np.fromfile(self._file, "<u4", samples + 1).astype(np.int64)
        if (np.diff(ends) < 0).any() or ends[-1] > size or ends[0] < _COUNT.size * (samples + 2):
            raise CorruptShardError(f"{self.path}: expected ascending places of samples")
        return ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def values(self, number: int) -> list[bytes]:
        """Return the value of every column of a sample."""
        start, stop = self._ends[number : number + 2].tolist()
        if stop - start > _MAX_SAMPLE_BYTES:
            raise self._corrupt(number, f"at most {_MAX_SAMPLE_BYTES:,} bytes", f"{stop - start:,}")
        self._file.seek(start)
        sample = self._file.read(stop - start)
        free = sum(encoding.size is None for encoding in self._encodings)
        at = _COUNT.size * free
        if len(sample) < at:
            raise self._corrupt(number, f"the sizes of {free} columns", f"{len(sample):,} bytes")
        sizes = iter(np.frombuffer(sample, "<u4", free).tolist())
        values = []
        for encoding in self._encodings:
            size = next(sizes) if encoding.size is None else encoding.size
            values.append(sample[at : at + size])
            at += size
        if at != len(sample):
            raise self._corrupt(number, f"{at:,} bytes", f"{len(sample):,}")
        return values

    def _corrupt(self, number: int, expected: str, found: str) -> CorruptShardError:
        return CorruptShardError(f"{self.path}: sample {number}: expected {expected}, found {found}")
