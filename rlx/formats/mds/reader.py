"""An MDS dataset of steps: one sample per step, columns by TED path or as the options name them."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceError
from rlx.files.disk import check_readable, opened_file, read_object
from rlx.files.location import checked_name
from rlx.formats.common.fields import RowType, expecting, flags_of
from rlx.formats.common.pictures import lossy_encoding
from rlx.formats.common.provenance import noted_fields, read_notes_beside
from rlx.formats.common.rows.episodes import Batch
from rlx.formats.common.rows.table import Table, TablePlace, TableRun, open_table
from rlx.formats.common.source import MalformedError
from rlx.formats.mds.layout import COMPRESSIONS, INDEX, LAYOUT, VERSION, Encoding, unpacked
from rlx.formats.registry import COLUMN_PATHS
from rlx.schema import TEXT
from rlx.wording import missing as is_missing

_MAX_SAMPLE_BYTES = 2**29
_COUNT = struct.Struct("<I")


class Shard:
    """An open shard; a context manager. Damage raises CorruptShardError.

    Args:
        size: expected bytes, decompressed.
        compression: of the file; None if it is not compressed.
    """

    def __init__(
        self, path: Path, samples: int, size: int, encodings: Sequence[Encoding], compression: str | None = None
    ) -> None:
        check_readable(path)
        self.path = path
        self._encodings = encodings
        found = path.stat().st_size if compression is None else size
        if found != size or size < _COUNT.size * (samples + 2):
            raise CorruptShardError(f"{path}: expected {size:,} bytes of {samples:,} samples, found {found:,}")
        self._file = opened_file(path) if compression is None else unpacked(path, compression, size)
        try:
            self._ends = self._places(samples, size)
        except BaseException:
            self._file.close()
            raise

    def _places(self, samples: int, size: int) -> NDArray[np.int64]:
        (count,) = _COUNT.unpack(self._file.read(_COUNT.size))
        if count != samples:
            raise CorruptShardError(f"{self.path}: expected {samples:,} samples, found {count:,}")
        ends = np.frombuffer(self._file.read(_COUNT.size * (samples + 1)), "<u4").astype(np.int64)
        if (np.diff(ends) < 0).any() or ends[-1] > size or ends[0] < _COUNT.size * (samples + 2):
            raise CorruptShardError(f"{self.path}: expected ascending places of samples")
        return ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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


_MAX_INDEX_BYTES = 2**28
_MAX_SAMPLES = 2**32


@dataclass(frozen=True, slots=True)
class _ShardFile:
    name: str
    samples: int
    size: int
    compression: str | None = None


class MdsTable:
    """The samples of all shards as rows.

    Args:
        named: TED path by the column's name, if they differ.
        flags: TED paths of the columns that rlx noted as flags, which MDS keeps as bytes.
    """

    unfit: Mapping[str, str] = {}

    def __init__(
        self,
        path: Path,
        shards: Sequence[_ShardFile],
        columns: Mapping[str, Encoding],
        named: Mapping[str, str],
        flags: frozenset[str],
    ) -> None:
        self._path = path
        self._shards = shards
        self._encodings = list(columns.values())
        self._places = {named.get(name, name): place for place, name in enumerate(columns)}
        if missing := [name for name in named if name not in columns]:
            raise CorruptShardError(is_missing(f"{path}: {missing[0]}", columns))
        self._starts = np.cumsum([0, *(shard.samples for shard in shards)])
        self._flags = flags
        self.lossy: dict[str, str | None] = {}
        self.kinds: Mapping[str, RowType | None] = self._kinds()

    def group_start(self, row: int) -> int:
        """Return the row itself: samples are read one by one."""
        return row

    def batches(self, paths: Sequence[str], size: int, row: int = 0) -> Generator[Batch, None, None]:
        """Yield rows of columns; see ``Table``."""
        wanted = list(dict.fromkeys(paths))
        first = int(np.searchsorted(self._starts, row, side="right")) - 1
        for number in range(first, len(self._shards)):
            start = max(0, row - int(self._starts[number]))
            with self._opened(self._shards[number]) as shard:
                for begin in range(start, self._shards[number].samples, size):
                    yield self._batch(shard, wanted, range(begin, min(begin + size, self._shards[number].samples)))

    def _batch(self, shard: Shard, paths: Sequence[str], numbers: range) -> Batch:
        kinds = {path: kind for path in paths if (kind := self.kinds[path]) is not None}
        found = {
            path: np.empty((len(numbers), *shape), {TEXT: object, "bool": "uint8"}.get(dtype, dtype))
            for path, (dtype, shape) in kinds.items()
        }
        for row, number in enumerate(numbers):
            values = shard.values(number)
            for path, (dtype, shape) in kinds.items():
                place = self._places[path]
                try:
                    stored = ("uint8" if dtype == "bool" else dtype, shape)
                    self._encodings[place].decode(values[place], stored, found[path], row)
                except MalformedError as exc:
                    raise CorruptShardError(f"{shard.path}: sample {number}: {path}: {exc}") from exc
        for path in (path for path, (dtype, _) in kinds.items() if dtype == "bool"):
            found[path] = flags_of(found[path], f"{shard.path}: {path}", numbers.start)
        return found

    def _kinds(self) -> Mapping[str, RowType | None]:
        with self._opened(self._shards[0]) as shard:
            values = shard.values(0)
            found: dict[str, RowType | None] = {}
            for path, place in self._places.items():
                try:
                    kind = self._encodings[place].row_type(values[place])
                    if self._encodings[place].is_picture:
                        self.lossy[path] = lossy_encoding(values[place])
                except MalformedError as exc:
                    raise CorruptShardError(f"{shard.path}: sample 0: {path}: {exc}") from exc
                is_flag = kind is not None and path in self._flags and kind[0] == "uint8"
                found[path] = ("bool", kind[1]) if kind is not None and is_flag else kind
        return found

    def _opened(self, shard: _ShardFile) -> Shard:
        return Shard(self._path / shard.name, shard.samples, shard.size, self._encodings, shard.compression)


@expecting(LAYOUT)
def open_mds(path: Path, **columns: str) -> TableRun:
    """Return the dataset in an MDS directory; ``columns`` are names of columns by option."""
    path = path.absolute()
    shards, encodings = _index(path)
    named = {column: COLUMN_PATHS[option] for option, column in columns.items()}
    notes = {**read_notes_beside(path), "format": "MDS"}
    flags = {name for name, field in noted_fields(notes).items() if field.dtype == "bool"}
    opened = partial(_opened, path, shards, encodings, named, frozenset({*flags, *(f"next/{name}" for name in flags)}))
    place = TablePlace(path, path, (INDEX, *(shard.name for shard in shards)), opened, LAYOUT)
    return open_table(place, notes)


@contextmanager
def _opened(
    path: Path,
    shards: Sequence[_ShardFile],
    columns: Mapping[str, Encoding],
    named: Mapping[str, str],
    flags: frozenset[str],
) -> Iterator[Table]:
    if _index(path)[0] != shards:
        raise CorruptShardError(f"{path / INDEX}: changed while it was read")
    yield MdsTable(path, shards, columns, named, flags)


def _index(path: Path) -> tuple[tuple[_ShardFile, ...], Mapping[str, Encoding]]:
    index = read_object(path / INDEX, _MAX_INDEX_BYTES)
    shards, columns = [], None
    try:
        for said in index["shards"]:
            if (said["format"], said["version"]) != ("mds", VERSION):
                raise SourceError(f"{path / INDEX}: expected shards of mds, version {VERSION}, found {said!r:.80}")
            found = {
                str(name): Encoding(str(text), size)
                for name, text, size in zip(
                    said["column_names"], said["column_encodings"], said["column_sizes"], strict=True
                )
            }
            if len(found) < len(said["column_names"]):
                raise CorruptShardError(f"{path / INDEX}: expected columns of different names")
            columns = found if columns is None else columns
            if found != columns or not all(size is None or _is_count(size) for size in said["column_sizes"]):
                raise CorruptShardError(f"{path / INDEX}: expected the same columns in every shard")
            samples, size = said["samples"], said["raw_data"]["bytes"]
            if not _is_count(samples) or not _is_count(size):
                raise CorruptShardError(f"{path / INDEX}: expected numbers of samples and bytes, found {said!r:.80}")
            if samples:
                shards.append(_shard_file(path, said, samples, size))
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CorruptShardError(f"{path / INDEX}: expected shards with columns, found {exc!r:.80}") from exc
    if not shards or columns is None:
        raise SourceError(f"{path} has no step")
    return tuple(shards), columns


def _shard_file(path: Path, said: Mapping[str, Any], samples: int, size: int) -> _ShardFile:
    """Return a shard: its plain file, or the compressed one if only that exists."""
    plain = checked_name(str(said["raw_data"]["basename"]))
    if (compression := said.get("compression")) is None or (path / plain).is_file():
        return _ShardFile(plain, samples, size)
    name = str(compression).split(":")[0]
    if name not in COMPRESSIONS:
        raise SourceError(
            f"{path / INDEX}: expected shards compressed with {', '.join(COMPRESSIONS)}, found {compression!r:.40}",
            hint="open the dataset with StreamingDataset once, which keeps decompressed shards",
        )
    return _ShardFile(checked_name(str(said["zip_data"]["basename"])), samples, size, name)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_SAMPLES
