"""Names in an MDS dataset, the encodings of its columns, and the compression of its shards.

A shard is the number of its samples, their offsets, a JSON of the columns, and the samples. A sample is the sizes of
the values of variable-size columns, and all values.
"""

from __future__ import annotations

import bz2
import gzip
import math
import re
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np
import zstandard
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.files.disk import disk_errors, opened_file
from rlx.formats.common.fields import RowType
from rlx.formats.common.pictures import decode_picture, picture_shape
from rlx.formats.common.source import MalformedError
from rlx.schema import TEXT, Field

INDEX, SHARD, VERSION = "index.json", "shard.{:05d}.mds", 2
LAYOUT = (
    "expected an MDS dataset of one sample per step: index.json with shards, columns observation, action, next/reward, "
    "next/terminated, next/truncated; `from_` mds:observation=NAME,... names others"
)
_SCALARS = frozenset(
    {"uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
)
_ARRAY = re.compile(r"ndarray(?::([a-z]+\d+)(?::(\d{1,9}(?:,\d{1,9}){0,15}))?)?")
_PICTURES = frozenset({"png", "jpeg"})
_DTYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
           64: "uint64", 65: "int64", 66: "float64"}  # fmt: skip
_SHAPE_DTYPES = ("u1", "<u2", "<u4", "<u8")
# How each of streaming's compressions is opened, by its name in the index. It has brotli and snappy too.
COMPRESSIONS: Mapping[str, Callable[[BinaryIO], BinaryIO]] = MappingProxyType(
    {
        "zstd": lambda file: zstandard.ZstdDecompressor().stream_reader(file),
        "gz": lambda file: gzip.GzipFile(fileobj=file),  # type: ignore[dict-item, return-value]
        "bz2": lambda file: bz2.BZ2File(file),  # type: ignore[dict-item, return-value]
    }
)
_FAILURES = (zstandard.ZstdError, zlib.error, OSError, EOFError, ValueError)
_CHUNK = 2**18
# Shards of the writer's default size are accepted; larger ones only if they are not compressed better than this.
_ANY_BYTES, _MAX_RATIO = 2**26, 1024


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a column encodes values.

    Args:
        text: MDS's name of it: ``ndarray:float32:3``.
        size: bytes of every value; None if they differ.
    """

    text: str
    size: int | None

    @property
    def is_picture(self) -> bool:
        """Whether values are files of pictures."""
        return self.text in _PICTURES

    def row_type(self, value: bytes) -> RowType | None:
        """Return dtype and shape of a value; None if it is neither numbers nor text."""
        if self.text == "str":
            return TEXT, ()
        if self.text == "int":
            return "int64", ()
        if self.text in _SCALARS:
            return self.text, ()
        if self.is_picture:
            return "uint8", picture_shape(value)
        if (match := _ARRAY.fullmatch(self.text)) is None or match[1] not in (*_SCALARS, None):
            return None
        dtype, shape, _ = _array(match, value)
        return dtype, shape

    def decode(self, value: bytes, kind: RowType, out: NDArray[np.generic], row: int) -> None:
        """Decode a value into ``out[row]``; raises MalformedError unless it has the dtype and shape of ``kind``."""
        if self.text == "str":
            try:
                out[row] = str(value, "utf-8")
            except UnicodeDecodeError as exc:
                raise MalformedError(f"expected UTF-8 text, found {value[:40]!r}") from exc
        elif self.is_picture:
            out[row] = decode_picture(value, kind[1])
        else:
            match = _ARRAY.fullmatch(self.text)
            dtype, shape, numbers = (*kind, value) if match is None else _array(match, value)
            if (dtype, shape) != kind or len(numbers) != np.dtype(dtype).itemsize * math.prod(shape):
                raise MalformedError(f"expected {kind[0]}{list(kind[1])}, found {dtype}{list(shape)}")
            out[row] = np.frombuffer(numbers, np.dtype(dtype).newbyteorder("<")).reshape(shape)


def _array(match: re.Match[str], value: bytes) -> tuple[str, tuple[int, ...], bytes]:
    """Return dtype, shape and bytes of an array; the value begins with what the encoding does not fix."""
    at = 0
    dtype: str = match[1]
    try:
        if dtype is None:
            dtype, at = _DTYPES[value[0]], 1
        if match[2] is not None:
            shape = tuple(int(size) for size in match[2].split(","))
        else:
            dimensions, kind = divmod(value[at], 4)
            stop = at + 1 + dimensions * 2**kind
            shape = tuple(np.frombuffer(value[at + 1 : stop], _SHAPE_DTYPES[kind], dimensions).tolist())
            at = stop
    except (LookupError, ValueError) as exc:
        raise MalformedError(f"expected an array, found {value[:20]!r}") from exc
    if len(value) - at != np.dtype(dtype).itemsize * math.prod(shape):
        raise MalformedError(f"expected {dtype}{list(shape)}, found {len(value) - at:,} bytes")
    return dtype, shape, value[at:]


def encoding_of(field: Field, *, is_picture: bool) -> Encoding:
    """Return the encoding of a field: pictures as PNG, flags as bytes."""
    if field.is_text:
        return Encoding("str", None)
    if is_picture:
        return Encoding("png", None)
    dtype = "uint8" if field.dtype == "bool" else field.dtype
    size = np.dtype(dtype).itemsize * math.prod(field.shape)
    return Encoding(f"ndarray:{dtype}:{','.join(map(str, field.shape))}" if field.shape else dtype, size)


def unpacked(path: Path, compression: str, size: int) -> BinaryIO:
    """Return a temporary file of the decompressed content, at its start.

    Args:
        size: expected bytes; others raise CorruptShardError.
    """
    packed = path.stat().st_size
    if size > max(_ANY_BYTES, _MAX_RATIO * packed):
        raise CorruptShardError(f"{path}: expected at most {_MAX_RATIO} times {packed:,} bytes unpacked, found {size}")
    out: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  (the shard closes it)
    try:
        with opened_file(path) as file:
            _copy(path, COMPRESSIONS[compression](file), out, size)
        out.seek(0)
    except BaseException:
        out.close()
        raise
    return out


def _copy(path: Path, source: BinaryIO, out: BinaryIO, size: int) -> None:
    """Copy the content; stops with an error after ``size`` bytes."""
    found = 0
    while found <= size:
        try:
            chunk = source.read(_CHUNK)
        except _FAILURES as exc:
            raise CorruptShardError(f"{path} is damaged: {str(exc)[:200]}") from exc
        if not chunk:
            break
        found += len(chunk)
        with disk_errors(path):
            out.write(chunk)
    if found != size:
        raise CorruptShardError(f"{path}: expected {size:,} bytes unpacked, found {'more' if found > size else found}")
