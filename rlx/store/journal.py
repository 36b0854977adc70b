"""Journals: episodes on their way into a shard, in a file that survives the end of its writer, whatever that is.

A record is the length and the checksum of its content (8 and 4 bytes), then the content, compressed: a JSON document
with its length (4 bytes), and the bytes of the arrays of a block of complete episodes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zstandard
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptDatasetError
from rlx.files.disk import disk_errors, opened_file, written_file

_RECORD, _DOCUMENT = struct.Struct("<QI"), struct.Struct("<I")
_COLUMNS = ("lengths", "episodes", "from_reset", "final_recorded", "cut")
_NO_BLOCK = (
    *(zstandard.ZstdError, struct.error, LookupError, TypeError, ValueError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError),
)
# Fast: whoever appends waits for it.
_LEVEL = 1


class Journal:
    """A new journal of a shard, to append to. The process may end at any moment; after a power cut, records may lack.

    Attributes:
        steps: number of steps in it.
        episodes: number of episodes in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps = self.episodes = 0
        self._end = 0
        path.parent.mkdir(exist_ok=True)
        self._file = written_file(path, is_buffered=False)

    def append(self, block: Block) -> None:
        """Add a block, all of it or, where the disk is full, nothing."""
        content = zstandard.ZstdCompressor(_LEVEL).compress(_encoded(block))
        record = memoryview(_RECORD.pack(len(content), google_crc32c.value(content)) + content)
        with disk_errors(self.path):
            try:
                written = 0
                while written < len(record):
                    written += self._file.write(record[written:])
            except BaseException:
                self._file.seek(self._end)
                self._file.truncate()
                raise
        self._end += len(record)
        self.steps += block.steps
        self.episodes += len(block.lengths)

    def close(self) -> None:
        """End the file; it stays."""
        self._file.close()


def read_journal(path: Path) -> Iterator[Block]:
    """Yield the blocks of a journal, up to a record whose writing was interrupted.

    Raises:
        CorruptDatasetError: a whole record holds no block.
    """
    size = path.stat().st_size
    with opened_file(path) as file:
        while len(head := file.read(_RECORD.size)) == _RECORD.size:
            length, checksum = _RECORD.unpack(head)
            if length > size - file.tell() or google_crc32c.value(content := file.read(length)) != checksum:
                return
            try:
                block = _decoded(zstandard.ZstdDecompressor().decompress(content))
            except _NO_BLOCK as exc:  # nothing that ``append`` wrote
                raise CorruptDatasetError(f"{path} is damaged: a record holds no episodes: {exc!r}") from exc
            yield block


def _encoded(block: Block) -> bytes:
    arrays = {**block.data, **{name: getattr(block, name) for name in _COLUMNS}}
    texts = {name: array.ravel().tolist() for name, array in arrays.items() if array.dtype.kind == "O"}
    layout = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
    document = json.dumps({"layout": layout, "texts": texts}).encode()
    numbers = [np.ascontiguousarray(array).tobytes() for name, array in arrays.items() if name not in texts]
    return b"".join([_DOCUMENT.pack(len(document)), document, *numbers])


def _decoded(content: bytes) -> Block:
    (length,) = _DOCUMENT.unpack_from(content)
    at = _DOCUMENT.size + length
    document: dict[str, Any] = json.loads(content[_DOCUMENT.size : at])
    arrays: dict[str, NDArray[Any]] = {}
    for name, (dtype, shape) in document["layout"].items():
        if name in document["texts"]:
            arrays[name] = np.array(document["texts"][name], object).reshape(shape)
            continue
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(content, dtype, count, at).reshape(shape)
        at += arrays[name].nbytes
    lengths, episodes, from_reset, final_recorded, cut = (arrays.pop(name) for name in _COLUMNS)
    return Block(arrays, lengths, episodes, from_reset, final_recorded, cut=cut)
