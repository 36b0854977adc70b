"""The leaves of a TensorDict in a directory, as ``TensorDict.memmap`` writes them: a raw file each, or text as JSON."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceNotFoundError
from rlx.files.disk import absent, opened_file, read_object
from rlx.formats.common.fields import RowType
from rlx.formats.common.rows.ted_run import NUMBERS, LeafRows
from rlx.schema import TEXT

METADATA = "meta.json"
SUFFIX = ".memmap"
# Classes of leaves of texts: one per step, or the same for all.
TEXT_CLASSES = ("NonTensorStack", "NonTensorData")


_MAX_DEPTH = 16
_MAX_SIZE = 2**48
_MAX_TEXT_BYTES = 2**28
_MAX_SPAN_BYTES = 2**20
_MAX_GAP_BYTES = 2**14  # rows further apart are read one by one
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DTYPES = {f"torch.{name}": name for name in NUMBERS}


def described(root: Path) -> tuple[tuple[int, ...], dict[str, RowType | None]]:
    """Return the shape of the batch, and dtype and shape of the rows of every leaf, None if they are unknown."""
    batch = _shape(read_object(root / METADATA).get("shape"), root / METADATA)
    if not batch:
        raise CorruptShardError(f"{root / METADATA}: shape: expected a batch of steps, found {list(batch)}")
    return batch, dict(_leaves(root, "", batch, 0))


@dataclass(frozen=True, slots=True)
class MemmapLeaves:
    """The leaves of a directory.

    Args:
        rows: of each leaf, over all dimensions of the batch.
        dimensions: of the batch.
    """

    root: Path
    rows: int
    dimensions: int = 1

    def files(self, kinds: Mapping[str, RowType]) -> Sequence[str]:
        """Return one file per leaf."""
        return [
            f"{path}/{METADATA}" if kind[0] == TEXT else f"{path}{SUFFIX}"
            for path, kind in kinds.items()
            if 0 not in kind[1]
        ]

    @contextmanager
    def opened(self, kinds: Mapping[str, RowType]) -> Iterator[Mapping[str, LeafRows]]:
        """Yield the open leaves; raises as ``Leaves`` does."""
        with ExitStack() as stack:
            leaves: dict[str, LeafRows] = {}
            for path, kind in kinds.items():
                if kind[0] == TEXT:
                    leaves[path] = _TextLeaf(self.root, path, self.dimensions, self.rows)
                elif 0 in kind[1]:
                    leaves[path] = _EmptyLeaf(f"{self.root}: {path}", kind)
                else:
                    file = stack.enter_context(opened_file(_checked(self.root, path, kind, self.rows)))
                    leaves[path] = _NumberLeaf(f"{self.root}: {path}", file, kind)
            yield leaves


class _NumberLeaf:
    """Rows of numbers.

    They are read, not mapped: the pages of a map would fill the memory of the process.

    Args:
        file: of the right size; buffered.
        kind: dtype and shape of a row.
    """

    def __init__(self, place: str, file: BufferedReader, kind: RowType) -> None:
        self.place = place
        self._file = file
        self._dtype, self._shape = kind
        self._row_bytes = _row_bytes(kind)

    def read(self, first: int, count: int, stride: int = 1) -> NDArray[Any]:
        if stride == 1 or count == 1:
            return self._read(first, count)
        rows = np.empty((count, *self._shape), self._dtype)
        gap = stride * self._row_bytes
        size = 1 if gap > _MAX_GAP_BYTES else max(1, _MAX_SPAN_BYTES // max(1, gap))
        for start in range(0, count, size):
            some = min(size, count - start)
            span = self._read(first + start * stride, (some - 1) * stride + 1)
            rows[start : start + some] = span[::stride]
        return rows

    def _read(self, start: int, count: int) -> NDArray[Any]:
        rows = np.empty((count, *self._shape), self._dtype)
        self._file.seek(start * self._row_bytes)
        if (found := self._file.readinto(rows.reshape(-1).view(np.uint8).data)) != rows.nbytes:
            raise CorruptShardError(f"{self.place}: expected {rows.nbytes:,} bytes from row {start:,}, found {found:,}")
        return rows


@dataclass(slots=True)
class _EmptyLeaf:
    """Rows without a number, which are not stored."""

    place: str
    kind: RowType

    def read(self, first: int, count: int, stride: int = 1) -> NDArray[Any]:  # noqa: ARG002
        dtype, shape = self.kind
        return np.zeros((count, *shape), dtype)


class _TextLeaf:
    """Texts, all of them in memory, read from one JSON file."""

    def __init__(self, root: Path, path: str, dimensions: int, rows: int) -> None:
        self.place = f"{root}: {path}"
        texts = _texts(root, path, dimensions)
        if isinstance(texts, str):
            texts = np.full(rows, texts, object)
        if texts is None or len(texts) != rows:
            found = "none" if texts is None else f"{len(texts):,}"
            raise CorruptShardError(f"{self.place}: expected {rows:,} texts, found {found}")
        self._texts = texts

    def read(self, first: int, count: int, stride: int = 1) -> NDArray[Any]:
        return self._texts[first : first + (count - 1) * stride + 1 : stride]


def _leaves(root: Path, prefix: str, batch: tuple[int, ...], depth: int) -> Iterator[tuple[str, RowType | None]]:
    directory = root / prefix
    if depth > _MAX_DEPTH:
        raise CorruptShardError(f"{directory}: expected directories at most {_MAX_DEPTH} deep")
    for name, entry in read_object(directory / METADATA).items():
        if not isinstance(entry, dict):
            continue
        path = prefix + name
        if not _NAME.fullmatch(name):
            # Checked before any file is opened: a name may lead out of the directory.
            yield path, None
        elif "type" not in entry:
            yield path, _kind(entry, batch, f"{directory / METADATA}: {name}")
        elif entry["type"] in TEXT_CLASSES:
            yield path, _text_kind(root, path, batch)
        elif (directory / name / METADATA).is_file():
            yield from _leaves(root, f"{path}/", batch, depth + 1)
        else:
            yield path, None


def _kind(entry: Mapping[str, Any], batch: tuple[int, ...], place: str) -> RowType | None:
    dtype = _DTYPES.get(str(entry.get("dtype")))
    if dtype is None or entry.get("is_nested"):
        return None
    shape = _shape(entry.get("shape"), place)
    if shape[: len(batch)] != batch:
        raise CorruptShardError(f"{place}: shape: expected {list(batch)} and the shape of a step, found {list(shape)}")
    return dtype, shape[len(batch) :]


def _text_kind(root: Path, path: str, batch: tuple[int, ...]) -> RowType | None:
    """Return dtype and shape of one text per step; None for other leaves. Pickled data are not read."""
    texts = _texts(root, path, len(batch))
    if isinstance(texts, str):
        return TEXT, ()
    return (TEXT, texts.shape[1:]) if texts is not None and len(texts) == math.prod(batch) else None


def _texts(root: Path, path: str, dimensions: int) -> str | NDArray[Any] | None:
    """Return the text of all steps, or [S, ...] those of each; None for other leaves."""
    file = root / path / METADATA
    if not file.is_file() or not _is_inside(file, root):
        return None
    entry = read_object(file, max_bytes=_MAX_TEXT_BYTES)
    data = entry.get("data")
    if entry.get("stack_dim", 0) != 0:
        return None
    if isinstance(data, str):
        return data
    for _ in range(dimensions - 1):
        if not isinstance(data, list) or not all(isinstance(part, list) for part in data):
            return None
        data = [item for part in data for item in part]
    if not isinstance(data, list):
        return None
    try:
        texts = np.array(data, object)
    except ValueError:
        return None  # rows of different shapes
    return texts if all(isinstance(text, str) for text in texts.flat) else None


def _is_inside(file: Path, root: Path) -> bool:
    """Return whether a file is below a directory, or in the blobs that a snapshot of huggingface_hub links to."""
    there, root = file.resolve(), root.resolve()
    blobs = [parent.parent / "blobs" for parent in root.parents if parent.name == "snapshots"]
    return any(map(there.is_relative_to, [root, *blobs]))


def _shape(found: Any, place: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(size) is int and 0 <= size < _MAX_SIZE for size in found):
        raise CorruptShardError(f"{place}: shape: expected a list of numbers, found {found!r:.80}")
    return tuple(found)


def _checked(root: Path, path: str, kind: RowType, rows: int) -> Path:
    dtype, shape = kind
    file = root / f"{path}{SUFFIX}"
    if not file.is_file():
        raise SourceNotFoundError(absent(file))
    if not _is_inside(file, root):
        raise CorruptShardError(f"{file}: leads out of {root}")
    expected, found = rows * _row_bytes(kind), file.stat().st_size
    if found != expected:
        raise CorruptShardError(f"{file}: expected {expected:,} bytes for {dtype}{[rows, *shape]}, found {found:,}")
    return file


def _row_bytes(kind: RowType) -> int:
    dtype, shape = kind
    return math.prod(shape) * np.dtype(dtype).itemsize
