"""Episodes in HDF5: their rows, extra fields, and files with datasets of their own for each episode."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError
from rlx.formats.common.exporter import extra_fields
from rlx.formats.common.fields import (
    NOT_A_ROW_PER_STEP,
    NOT_NUMBERS_OR_TEXT,
    ExtraFields,
    RowType,
    check_field,
    expecting,
)
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.file import TextRows, is_text, unreadable
from rlx.formats.common.hdf5.output import Column
from rlx.formats.common.provenance import noted_fields
from rlx.formats.common.rows.episodes import RowEpisode
from rlx.formats.common.skipping import whole
from rlx.formats.common.source import EpisodeGroups, OneFile
from rlx.schema import TEXT, Field, Role, Schema

_NEXT = "next/"
INFOS = "infos"  # name at the root that extra columns use, as "next"
_INFOS = f"{INFOS}/"
_INFO = "info/"  # where a field keeps them


class Hdf5Columns:
    """Reader of the rows of an episode; a context manager, which closes the readers of texts.

    Args:
        after: datasets of next observations, by observation; empty if they are not recorded.
        first: first row of the episode in the datasets.
    """

    def __init__(
        self,
        datasets: Mapping[str, h5py.Dataset],
        after: Mapping[str, h5py.Dataset],
        schema: Schema,
        *,
        first: int = 0,
    ) -> None:
        for name, found in (*datasets.items(), *after.items()):
            check_type(found, schema[name])
        self._datasets = datasets
        self._after = after
        self._schema = schema
        self._first = first
        self._texts: dict[str, TextRows] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for texts in self._texts.values():
            texts.__exit__()

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Return [stop - start, ...] rows of a field; zeros if it has no dataset."""
        if name not in self._datasets:
            return self._schema[name].zeros(stop - start)
        return self._read(self._datasets[name], name, start, stop)

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        """Return [1, ...] the observation after a row."""
        return self._read(self._after[name], name, row, row + 1)

    def _read(self, found: h5py.Dataset, name: str, start: int, stop: int) -> NDArray[np.generic]:
        field, first = self._schema[name], self._first + start
        if field.is_text:
            texts = self._texts.setdefault(str(found.name), TextRows(found))
            return texts.read(first, self._first + stop)
        rows = hdf5_file.read(found, first, self._first + stop)
        check_field(name, field, rows, hdf5_file.place(found), first)
        return rows.reshape(stop - start, *field.shape)


def field_shape(found: h5py.Dataset, *, is_number: bool) -> tuple[int, ...]:
    """Return the shape of a row; ``()`` for one number per step, which may be stored as [N, 1]."""
    return () if is_number and found.shape[1:] == (1,) else found.shape[1:]


def check_type(found: h5py.Dataset, field: Field) -> None:
    """Raise CorruptShardError unless the rows of a dataset are those of a field."""
    shapes = {field.shape} if field.shape else {(), (1,)}
    dtype = TEXT if is_text(found) else found.dtype.name
    if dtype != field.dtype or found.shape[1:] not in shapes:
        raise CorruptShardError(
            f"{found.file.filename}: {found.name}: expected {field.dtype}{list(field.shape)}, "
            f"found {dtype}{list(found.shape[1:])}"
        )


def rows_of(group: h5py.Group, path: str, field: Field, rows: int) -> h5py.Dataset:
    """Return the dataset of a field; raises CorruptShardError unless it has this many rows of its kind."""
    if not field.is_text:
        return hdf5_file.numbers(group, path, rows=rows)
    found = hdf5_file.dataset(group, path)
    if not is_text(found) or len(found) != rows:
        raise CorruptShardError(
            f"{hdf5_file.place(found)}: expected {rows:,} texts, found {found.dtype}{list(found.shape)}"
        )
    return found


@dataclass(frozen=True, slots=True)
class Hdf5Episodes(EpisodeGroups, OneFile):
    """One file with datasets of their own for each episode.

    Args:
        paths: path of every recorded field but the flags; ``{}`` stands for the number in ``places``.
        after: the same for next observations; empty if they are not recorded.
        places: number of each episode in paths.
        first_episodes: index of the first episode of every shard, and the number of episodes.
        named: name of an episode for users, with its number in ``places``.
    """

    schema: Schema
    notes: Mapping[str, Any]
    paths: Mapping[str, str]
    after: Mapping[str, str]
    episodes: tuple[RowEpisode, ...]
    places: tuple[int, ...]
    first_episodes: tuple[int, ...]
    layout: str
    named: str

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a shard."""
        with expecting(self.layout), hdf5_file.opened(self.path) as file:
            chosen = slice(*self.first_episodes[shard : shard + 2])
            for episode, number in zip(self.episodes[chosen], self.places[chosen], strict=True):
                yield from whole(self.named.format(number), self._blocks(file, episode, number, dropped), dropped)

    def _blocks(self, file: h5py.File, episode: RowEpisode, number: int, dropped: Counter[str]) -> Iterator[Block]:
        rows, after = (
            {name: rows_of(file, path.format(number), self.schema[name], episode.rows) for name, path in paths.items()}
            for paths in (self.paths, self.after)
        )
        with Hdf5Columns(rows, after, self.schema) as columns:
            yield from episode.blocks(self.schema, columns, dropped)


def field_name(path: str) -> str:
    """Return the name of the field that a file keeps at a path.

    Example:
        >>> field_name("infos/qpos"), field_name("next/lives"), field_name("params/loc")
        ('info/qpos', 'lives', 'params/loc')
    """
    name = path.removeprefix(_NEXT)
    return _INFO + name.removeprefix(_INFOS) if name.startswith(_INFOS) else name


def find_extras(
    group: h5py.Group,
    paths: Iterable[str],
    rows: int,
    known: Iterable[str],
    notes: Mapping[str, Any],
    place: Callable[[str], str] = str,
) -> tuple[ExtraFields, dict[str, str]]:
    """Return the fields of extra arrays, and the paths of next observations of those that have them.

    Args:
        rows: length of an array with one row per step.
        notes: what rlx noted when it wrote the file, such as the fields' roles.
        place: maps each of ``paths`` to a path in the group.
    """
    extras, after = ExtraFields(known), {}
    noted = noted_fields(notes)
    found: dict[str, h5py.Dataset] = {}
    for path in paths:
        try:
            found[path] = hdf5_file.dataset(group, place(path))
        except CorruptShardError as exc:
            extras.leave(path, str(exc))
    for path, array in found.items():
        name = field_name(path)
        role = noted[name].role if name in noted else None
        if path.startswith(_NEXT) and path.removeprefix(_NEXT) in found and role == Role.OBSERVATION:
            continue
        if not array.ndim or len(array) != rows:
            extras.leave(path, NOT_A_ROW_PER_STEP)
        elif (kind := row_kind(array)) is None:
            extras.leave(path, NOT_NUMBERS_OR_TEXT)
        elif (reason := unreadable(array)) is not None:
            extras.leave(path, reason)
        elif path.startswith(_NEXT):
            extras.add(path, name, kind, Role.NEXT)
        elif role != Role.OBSERVATION:
            extras.add(path, name, kind, role or Role.STEP)
        elif _NEXT + path in found and row_kind(found[_NEXT + path]) == kind and len(found[_NEXT + path]) == rows:
            if extras.add(path, name, kind, role):
                after[name] = _NEXT + path
        else:
            extras.add(path, name, kind, Role.STEP)
    return extras, after


def leaves_of(group: h5py.Group, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return the paths of all arrays at or below these names, and the reason for each name that is skipped."""
    leaves: list[str] = []
    left: dict[str, str] = {}
    for name in names:
        if hdf5_file.is_link(group, name):
            left[name] = "leads to another file, or another place in this one"
        else:
            leaves += hdf5_file.leaves(group, name)
    return leaves, left


def rows_in(group: h5py.Group, path: str) -> int:
    """Return the number of rows of an array; -1 for a scalar and an unreadable array."""
    try:
        array = hdf5_file.dataset(group, path)
    except CorruptShardError:
        return -1
    return len(array) if array.ndim and unreadable(array) is None else -1


def row_kind(array: h5py.Dataset) -> RowType | None:
    """Return dtype and shape of the rows of an array; None where they are neither numbers nor text."""
    if is_text(array):
        return TEXT, array.shape[1:]
    return (array.dtype.name, array.shape[1:]) if hdf5_file.is_numbers(array) else None


def extra_columns(schema: Schema, place: str = "{}") -> list[Column]:
    """Return the columns of the extra fields.

    Args:
        place: template of a column's path in the file; ``{}`` stands for its path among the extra columns.
    """
    columns = []
    for name in extra_fields(schema):
        is_info = name.startswith(_INFO)
        path = _INFOS + name.removeprefix(_INFO) if is_info else name
        if schema[name].role == Role.NEXT and not is_info:
            path = _NEXT + name
        columns.append(Column(place.format(path), name))
        if schema[name].role == Role.OBSERVATION:
            columns.append(Column(place.format(_NEXT + path), name, is_after=True))
    return columns
