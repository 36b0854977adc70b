"""Dictionaries of the frame codec: reference frames of a run with entropy tables, and their form in ``zarr.json``."""

import base64
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import zstandard
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.store.codec import MAX_LEVELS

logger = logging.getLogger(__name__)
CODEC_NAME = "rlx.zstd_dict"
# Rows from the start of the run that the reference frames are spread over.
REFERENCE_ROWS = 8192
# Reference frames of large rows, and of short runs.
REFERENCE_FRAMES = 64
# From this level on, for archives, a dictionary holds more.
ARCHIVE_LEVEL = 10
# Most reference frames, and most bytes of them, below that level and from it on. Measured on frames of 84 x 84, 96 x 96
# x 3 and 210 x 160 x 3: more make the datasets smaller by less than 1 %, and the last gain nothing beyond 64.
_MOST_FRAMES = (384, 1024)
_MOST_BYTES = (3 * 2**20, 8 * 2**20)
# Rows that the entropy tables are made of: 1,000 make no difference.
SAMPLES = 64
_FEWEST = 8
_TABLES_BYTES = 4096  # more than entropy tables ever take
_PACKED_LEVEL = 12
_MAX_BYTES = 64 * 2**20
_MAGIC = b"\x37\xa4\x30\xec"  # begins a dictionary with entropy tables


class Rows(Protocol):
    """Rows of a field: an array, or what decodes a row when it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> NDArray[np.generic]:
        """Return one row."""


class Beginning(Protocol):
    """Consecutive steps, of which only some rows are used: a block, or rows that are decoded one by one."""

    @property
    def steps(self) -> int:
        """Steps in it."""

    @property
    def data(self) -> Mapping[str, Rows]:
        """Rows of every field that needs a dictionary."""


def reference_frames(rows: int, row_bytes: int, level: int) -> int:
    """Return how many of the first rows of a run a dictionary holds."""
    archive = level >= ARCHIVE_LEVEL
    most = min(_MOST_FRAMES[archive], _MOST_BYTES[archive] // row_bytes)
    # In proportion to the rows, so that short runs are not mostly dictionary.
    return min(rows, max(REFERENCE_FRAMES, most * min(rows, REFERENCE_ROWS) // REFERENCE_ROWS))


def spread(rows: int, count: int) -> NDArray[np.int64]:
    """Return [count] of the rows, in order and evenly spaced."""
    return np.linspace(0, max(rows - 1, 0), count).astype(np.int64)


def trained_dictionary(parts: Sequence[Rows], row_bytes: int, level: int) -> bytes:
    """Return a dictionary for the rows of a run: some of its first rows, after entropy tables made from others.

    It depends on the first ``REFERENCE_ROWS`` rows and the level alone. A run of few rows has no entropy tables.

    Args:
        parts: the rows from the start of a run on, in order; possibly none.
    """
    rows = min(REFERENCE_ROWS, sum(map(len, parts)))
    chosen = spread(rows, reference_frames(rows, row_bytes, level))
    content = _raw(b"".join(_picked(parts, chosen)))
    others = np.setdiff1d(np.arange(rows), chosen)
    if len(others) < _FEWEST:
        return content
    samples = _picked(parts, others[spread(len(others), min(SAMPLES, len(others)))])
    return _with_tables(content, samples, level)


def _picked(parts: Sequence[Rows], rows: NDArray[np.int64]) -> list[bytes]:
    # Only these are copied: joining all rows first took longer than the rest of it, and as much memory again.
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    places = np.searchsorted(ends, rows, side="right")
    return [parts[place][row - ends[place]].tobytes() for place, row in zip(places, rows, strict=True)]


def _raw(content: bytes) -> bytes:
    """Return raw content with a prefix that keeps zstd from reading it as entropy tables."""
    content = content[: _MAX_BYTES - _TABLES_BYTES]
    return b"\0" + content if content.startswith(_MAGIC) else content


def _with_tables(content: bytes, samples: Sequence[bytes], level: int) -> bytes:
    """Return a dictionary with entropy tables; without them where none can be made, as of rows that are all alike."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd  # only writers need it
        else:
            import backports.zstd as zstd
    except ImportError:
        logger.info("backports.zstd is not installed: compressed frames take about 8 %% more bytes")
        return content
    try:
        raw = zstd.ZstdDict(content, is_raw=True)
        finished: bytes = zstd.finalize_dict(raw, samples, len(content) + _TABLES_BYTES, level).dict_content
    except zstd.ZstdError:
        return content
    return finished


def zstandard_dictionary(dictionary: bytes) -> zstandard.ZstdCompressionDict:
    """Return a dictionary of either kind for the zstandard library."""
    return zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_AUTO)


@lru_cache(maxsize=8)
def dictionary_metadata(level: int, dictionary: bytes) -> dict[str, Any]:
    """Return the frame codec as it stands in ``zarr.json``: the dictionary compressed, so that it takes a few kB."""
    packed = base64.b64encode(zstandard.ZstdCompressor(level=_PACKED_LEVEL).compress(dictionary)).decode()
    key = "full_dictionary" if dictionary.startswith(_MAGIC) else "dictionary"
    return {"name": CODEC_NAME, "configuration": {"level": level, key: packed}}


def parse_dictionary(configuration: Mapping[str, Any]) -> tuple[int, bytes]:
    """Return level and dictionary of a frame codec that ``zarr.json`` describes."""
    try:
        level = configuration["level"]
        if not isinstance(level, int) or not 0 <= level <= MAX_LEVELS["zstd-dict"]:
            raise CorruptDatasetError(f"codec {CODEC_NAME}: level {level!r}")
        if "full_dictionary" in configuration:
            dictionary = _unpacked(configuration["full_dictionary"])
            if not dictionary.startswith(_MAGIC):
                raise CorruptDatasetError(f"codec {CODEC_NAME}: its full dictionary has no entropy tables")
            return level, dictionary
        return level, _raw(_unpacked(configuration["dictionary"]))
    except (KeyError, TypeError, ValueError, zstandard.ZstdError) as exc:
        raise CorruptDatasetError(f"codec {CODEC_NAME}: its configuration is damaged: {exc}") from exc


@lru_cache(maxsize=64)
def _unpacked(text: str) -> bytes:
    """Return the dictionary of this text in ``zarr.json``; the same object for all shards of a dataset."""
    packed = base64.b64decode(text, validate=True)
    size = zstandard.frame_content_size(packed)
    if not 0 < size <= _MAX_BYTES:
        raise CorruptDatasetError(f"codec {CODEC_NAME}: dictionary of {size} bytes")
    return zstandard.ZstdDecompressor().decompress(packed, max_output_size=_MAX_BYTES)
