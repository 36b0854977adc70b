"""Episodes in Minari's Arrow and Parquet storages: one file each, of T + 1 rows; the last row is no step.

Dict and Tuple spaces are structs, arrays are lists of their flattened numbers, and pictures may be JPEG files.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceError
from rlx.files.disk import check_readable, read_object
from rlx.formats.common import parquet_file
from rlx.formats.common.fields import NOT_OF_STEPS, ExtraFields, RowType, check_field
from rlx.formats.common.rows.episodes import Batch, RowStream
from rlx.formats.common.rows.table import column_rows
from rlx.formats.common.skipping import skippable, typical
from rlx.formats.common.source import batch_rows
from rlx.formats.minari.episode import ROLES, EpisodeDataset, MinariFields, StoredEpisode
from rlx.formats.minari.layout import (
    GROUPS,
    INFOS,
    METADATA,
    NAMED,
    NUMBER,
    STEPS,
    Space,
    describe,
    is_image,
    leaf_space,
)
from rlx.schema import TEXT, Role, Schema
from rlx.store.foreign_types import pyarrow, row_type

_MAX_DEPTH = 32
_SHAPE = b"shape"
_INDEX = "_index_"
_MAX_SIZE = 2**32


class EpisodeFile(NamedTuple):
    """An open file.

    Args:
        batches: yields record batches of at most this many rows.
    """

    rows: int
    batches: Callable[[int], Iterator[Any]]


@contextmanager
def opened(path: Path, storage: str) -> Iterator[EpisodeFile]:
    """Yield an open file of either storage; raises CorruptShardError if it is damaged."""
    arrow, _ = pyarrow()
    check_readable(path)
    if storage == "parquet":
        with parquet_file.opened(path) as file:
            yield EpisodeFile(file.rows, file.record_batches)
        return
    with ExitStack() as stack:
        with parquet_file.translated(path):
            reader = stack.enter_context(arrow.ipc.open_file(stack.enter_context(arrow.memory_map(os.fsencode(path)))))
            rows = sum(_batch(path, reader, number).num_rows for number in range(reader.num_record_batches))
        yield EpisodeFile(rows, lambda size: _ipc_batches(path, reader, size))


def _ipc_batches(path: Path, reader: Any, size: int) -> Iterator[Any]:
    for number in range(reader.num_record_batches):
        with parquet_file.translated(path):
            batch = _batch(path, reader, number)
            batch.validate(full=True)  # offsets in the file may point anywhere
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)


def _batch(path: Path, reader: Any, number: int) -> Any:
    batch = reader.get_batch(number)
    if batch.num_rows * max(1, batch.num_columns) > 8 * path.stat().st_size:
        raise CorruptShardError(f"{path}: expected rows of at least a bit a column, found {batch.num_rows:,} rows")
    return batch


def leaves_of(batch: Any) -> dict[str, Any]:
    """Return the columns by path; a struct is a group of columns."""
    found: dict[str, Any] = {}
    groups = [(name, column, 0) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    if len(set(batch.schema.names)) < len(groups):
        raise ValueError("expected columns of different names")
    arrow, _ = pyarrow()
    while groups:
        path, column, depth = groups.pop(0)
        if not arrow.types.is_struct(column.type) or depth > _MAX_DEPTH:
            found[path] = column
            continue
        for number, field in enumerate(column.type):
            groups.append((f"{path}/{field.name}", column.field(number), depth + 1))
    return found


def shapes_of(batch: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the fields of infos note, by path."""
    found: dict[str, tuple[int, ...]] = {}
    fields = [(field.name, field) for field in batch.schema]
    arrow, _ = pyarrow()
    while fields:
        path, field = fields.pop()
        if arrow.types.is_struct(field.type):
            fields += [(f"{path}/{below.name}", below) for below in field.type]
        elif (said := (field.metadata or {}).get(_SHAPE)) is not None:
            sizes = said.split(b",") if said else []
            if all(size.isdigit() and len(size) < 10 for size in sizes):
                found[path] = tuple(map(int, sizes))
    return found


def part_name(number: int, storage: str) -> str:
    """Return the name of the file of an episode."""
    return f"{number}/part-0.{storage}"


def scanned(
    root: Path, storage: str, count: int, spaces: Mapping[str, Space | None]
) -> tuple[MinariFields, dict[int, int], list[str]]:
    """Return the fields of the episodes, the steps of each by its number, and unknown keys of their metadata.

    Args:
        spaces: of ``observations`` and ``actions``.
    """
    if count < 1:
        raise SourceError(f"{root} has no episode")
    steps: dict[int, int] = {}
    others: dict[str, None] = {}
    for number in range(count):
        with skippable(NAMED.format(number)):
            metadata = read_object(root / str(number) / METADATA)
            if type(length := metadata.get(STEPS)) is not int or length < 0:
                place = root / str(number) / METADATA
                raise CorruptShardError(f"{place}: {STEPS}: expected steps, found {length!r:.40}")
            check_readable(root / part_name(number, storage))
            steps[number] = length
            others |= {f"*/{METADATA}: {key}": None for key in metadata if key not in (STEPS, NUMBER)}
    found = typical(steps, NAMED, lambda first: _described(root, storage, first, spaces))
    return found, steps, list(others)


def _described(root: Path, storage: str, number: int, spaces: Mapping[str, Space | None]) -> MinariFields:
    path = root / part_name(number, storage)
    with opened(path, storage) as file:
        if (first := next(file.batches(1), None)) is None:
            raise CorruptShardError(f"{path}: expected a row more than steps, found none")
        with parquet_file.translated(path):
            return _fields(path, first, spaces)


class ArrowEpisode(StoredEpisode):
    """An episode in a file of its own."""

    def __init__(
        self, root: Path, storage: str, number: int, schema: Schema, leaves: Mapping[str, EpisodeDataset]
    ) -> None:
        self._number = number
        self._schema = schema
        self._leaves = leaves
        self._path = root / part_name(number, storage)
        said = read_object(root / str(number) / METADATA).get(STEPS)
        self._stack = ExitStack()
        try:
            file = self._stack.enter_context(opened(self._path, storage))
            self.steps = _checked(self._path, said, file.rows)
            self._stream = RowStream(self._path, self._batches(file))
            self._stack.callback(self._stream.close)
        except BaseException:
            self._stack.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        rows = self._stream.rows(name, start, stop)
        check_field(name, self._schema[name], rows, f"{self._path}: {self._leaves[name].path}", start)
        return rows

    def _corrupt(self, name: str, expected: str, found: str) -> CorruptShardError:
        return CorruptShardError(f"{self._path}: {self._leaves[name].path}: expected {expected}, found {found}")

    def _batches(self, file: EpisodeFile) -> Generator[Batch, None, None]:
        at = 0
        for batch in file.batches(batch_rows(self._schema)):
            with parquet_file.translated(self._path):
                columns = leaves_of(batch)
            yield {name: self._rows(name, columns, at) for name in self._leaves}
            at += batch.num_rows

    def _rows(self, name: str, columns: Mapping[str, Any], at: int) -> NDArray[Any]:
        field, path = self._schema[name], self._leaves[name].path
        if path not in columns:
            raise self._corrupt(name, "the column", "none")
        column, place = columns[path], f"{self._path}: {path}"
        # The last row pads columns that have no value after the last step, with zeros or null.
        count = len(column) if self._leaves[name].extra else min(len(column), self.steps - at)
        shape: tuple[int, ...] = (math.prod(field.shape),) if _is_list(column) else ()
        if is_picture := _is_file(column):
            shape = field.shape if len(field.shape) == 3 else (*field.shape, 1)
        if math.prod(shape) != math.prod(field.shape):
            raise self._corrupt(name, f"{list(field.shape)} in every row", str(list(shape)))
        rows = column_rows(column[:count], (field.dtype, shape), place, is_picture=is_picture)
        return np.concatenate([rows.reshape(count, *field.shape), field.zeros(len(column) - count)])


def _checked(path: Path, steps: Any, rows: int) -> int:
    """Return the steps of a file of this many rows; raises CorruptShardError unless its metadata agree."""
    if steps != rows - 1:
        raise CorruptShardError(f"{path}: expected a row more than {steps!r:.40} steps, found {rows:,}")
    return rows - 1


def _fields(path: Path, first: Any, spaces: Mapping[str, Space | None]) -> MinariFields:
    leaves: dict[str, EpisodeDataset] = {}
    extras, lossy = ExtraFields(), list[str]()
    columns, shapes, groups = leaves_of(first), shapes_of(first), defaultdict[str, list[str]](list)
    for column in columns:
        groups[column.split("/")[0]].append(column)
    for group, ours in GROUPS.items():
        role = ROLES.get(ours, Role.NEXT)
        for column in groups.pop(group, []):
            below = _below(column, spaces.get(group))
            space = leaf_space(spaces.get(group), below)
            name = f"{ours}/{below}" if below else ours
            kind = _kind(path, column, columns[column], _shape(space))
            if extras.add(column, name, kind, role, describe(space)):
                leaves[name] = EpisodeDataset(column, extra=int(role == Role.OBSERVATION))
                if is_image(space) and _is_file(columns[column]):
                    lossy.append(name)
        if not any(name.split("/")[0] == ours for name in leaves):
            raise CorruptShardError(f"{path}: {group}: expected numbers or text")
    for column in groups.pop(INFOS, []):
        name = column.replace(INFOS, "info", 1)
        if extras.add(column, name, _kind(path, column, columns[column], shapes.get(column)), Role.OBSERVATION):
            leaves[name] = EpisodeDataset(column, extra=1)
    for column in (column for found in groups.values() for column in found):
        extras.leave(column, NOT_OF_STEPS)
    return MinariFields(extras.fields, leaves, lossy, extras.not_taken)


def _below(column: str, space: Space | None) -> str:
    """Return the path in a group as in Minari's HDF5: entries of a Tuple are ``_index_0`` and so on."""
    parts: list[str] = []
    for part in column.split("/")[1:]:
        is_entry = leaf_space(space, "/".join(parts)) or {}
        parts.append(f"{_INDEX}{part}" if is_entry.get("type") == "Tuple" else part)
    return "/".join(parts)


def _shape(space: Space | None) -> tuple[int, ...] | None:
    space = space or {}
    sizes: Any = {
        "Box": space.get("shape"),
        "Discrete": [],
        "MultiBinary": np.atleast_1d(space.get("n", 0)).tolist(),
        "MultiDiscrete": list(np.shape(space.get("nvec", 0))),
    }.get(str(space.get("type")))
    if not isinstance(sizes, list) or not all(type(size) is int and 0 <= size < _MAX_SIZE for size in sizes):
        return None
    return tuple(sizes)


def _kind(path: Path, name: str, column: Any, shape: tuple[int, ...] | None) -> RowType | None:
    if _is_file(column):
        return None if shape is None or len(shape) not in (2, 3) else ("uint8", shape)
    try:
        kind = row_type(column)
    except ValueError as exc:
        raise CorruptShardError(f"{path}: {name}: {exc}") from exc
    if kind is None or shape is None or kind[0] == TEXT:
        return kind
    if math.prod(shape) != math.prod(kind[1]):
        raise CorruptShardError(f"{path}: {name}: expected {list(shape)} as its space says, found {list(kind[1])}")
    return kind[0], shape


def _is_file(column: Any) -> bool:
    arrow, _ = pyarrow()
    return bool(arrow.types.is_binary(column.type))


def _is_list(column: Any) -> bool:
    arrow, _ = pyarrow()
    return bool(arrow.types.is_fixed_size_list(column.type) or arrow.types.is_list(column.type))
