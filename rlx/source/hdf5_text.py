"""Text in HDF5, read without the library: text of any length lies in a heap, in which damage sends it in circles."""

import struct
from pathlib import Path

import h5py
import numpy as np

from rlx.errors import CorruptShardError
from rlx.source import hdf5_file

_MAX_TEXTS = 1000
_MAX_HEAP_BYTES = 2**24
_REFERENCE = struct.Struct("<IQI")  # length, the heap's place in the file, number in the heap
_HEAP = struct.Struct("<4sB3xQ")  # signature, version, bytes in all
_OBJECT = struct.Struct("<HHIQ")  # number, references, nothing, bytes
_FREE = 0


def texts(parent: h5py.Group, name: str) -> list[str]:
    """The words that a dataset lists, or the one that it is.

    Raises:
        CorruptShardError: there is none, it is no text, or it cannot be read.
    """
    found = hdf5_file.dataset(parent, name)
    place = f"{found.file.filename}: {found.name}"
    kind = h5py.check_string_dtype(found.dtype)
    if kind is None or found.size is None or not 0 < found.size <= _MAX_TEXTS:
        raise CorruptShardError(f"{place}: expected text, found {found.dtype}{list(found.shape)}")
    try:
        if kind.length is not None:
            return [str(word, "utf-8") for word in np.atleast_1d(hdf5_file.read_all(found)).reshape(-1).tolist()]
        offset = found.id.get_offset()
        if offset is None or found.file.userblock_size:
            raise CorruptShardError(f"{place}: expected text in one piece, found it in chunks")
        return _from_heaps(Path(found.file.filename), offset, found.size)
    except (ValueError, struct.error, OSError) as exc:
        raise CorruptShardError(f"{place} is damaged: expected text, found {exc}") from exc


def _from_heaps(path: Path, offset: int, count: int) -> list[str]:
    """Texts of which so many references stand at a place in the file."""
    words = []
    with path.open("rb") as file:
        file.seek(offset)
        references = list(_REFERENCE.iter_unpack(file.read(count * _REFERENCE.size)))
        if len(references) != count:
            raise ValueError(f"{len(references)} references of {count}")
        for length, heap, number in references:
            if not length:
                words.append("")
                continue
            file.seek(heap)
            signature, version, size = _HEAP.unpack(file.read(_HEAP.size))
            if signature != b"GCOL" or version != 1 or not _HEAP.size < size <= _MAX_HEAP_BYTES:
                raise ValueError(f"no heap at {heap}")
            words.append(str(_object(file.read(size - _HEAP.size), number, length), "utf-8"))
    return words


def _object(heap: bytes, number: int, length: int) -> bytes:
    """So many bytes of an object in a heap."""
    position = 0
    while position + _OBJECT.size <= len(heap):
        found, _, _, size = _OBJECT.unpack_from(heap, position)
        start = position + _OBJECT.size
        if found == number and length <= size <= len(heap) - start:
            return heap[start : start + length]
        if found == _FREE:
            break
        position = start + -(-size // 8) * 8
    raise ValueError(f"no object {number} of {length} bytes in a heap")
