"""Episodes in HDF5: the rows of one, and a file that keeps each in arrays of its own."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError
from rlx.formats.common.checks import check_field, expecting
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.text import TextRows, is_text
from rlx.formats.common.rows.episodes import RowEpisode
from rlx.formats.common.source import OneFile
from rlx.schema import TEXT, Field, Schema


class Hdf5Columns:
    """Reader of the rows of an episode; a context, which closes its readers of texts.

    Args:
        datasets: of every field but the flags.
        after: of the next observations, by the names of the observations; empty where they are not recorded.
        schema: what they are to hold.
        first: row of the datasets that the episode begins with.

    Raises:
        CorruptShardError: one is of another type or shape than the schema says.
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
        """Return [stop - start, ...] rows of a field."""
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
    """Return shape of a row; ``()`` for one number a step, which may be kept as a vector of one."""
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
    """Return the dataset that a field is read from.

    Raises:
        CorruptShardError: the dataset is missing, of another type, or has more or fewer rows.
    """
    if not field.is_text:
        return hdf5_file.numbers(group, path, rows=rows)
    found = hdf5_file.dataset(group, path)
    if not is_text(found) or len(found) != rows:
        raise CorruptShardError(
            f"{hdf5_file.place(found)}: expected {rows:,} texts, found {found.dtype}{list(found.shape)}"
        )
    return found


@dataclass(frozen=True, slots=True)
class Hdf5Episodes(OneFile):
    """One file.

    Args:
        root: its directory.
        file_name: its name there.
        schema: what one step holds.
        notes: the data that were left out, and the notes that rlx wrote into the file.
        paths: where the file keeps every field but the flags; ``{}`` stands for the episode, see ``places``.
        after: the same for next observations; empty where they are not recorded.
        episodes: all of them.
        places: what stands for each of them in paths.
        first_episodes: place of the first episode of every shard, and the number of episodes.
        layout: the expected layout, for error messages.
    """

    schema: Schema
    notes: Mapping[str, Any]
    paths: Mapping[str, str]
    after: Mapping[str, str]
    episodes: tuple[RowEpisode, ...]
    places: tuple[int, ...]
    first_episodes: tuple[int, ...]
    layout: str

    def shards(self) -> Sequence[int]:
        """Return groups of whole episodes, about 100,000 steps each."""
        return range(len(self.first_episodes) - 1)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a shard.

        Raises:
            SourceNotFoundError: the file is missing.
            CorruptShardError: an episode lacks a field, has one of another type or length than it should, or NaN in it.
        """
        with expecting(self.layout), hdf5_file.opened(self.path) as file:
            chosen = slice(*self.first_episodes[shard : shard + 2])
            for episode, number in zip(self.episodes[chosen], self.places[chosen], strict=True):
                rows, after = (
                    {
                        name: rows_of(file, path.format(number), self.schema[name], episode.rows)
                        for name, path in paths.items()
                    }
                    for paths in (self.paths, self.after)
                )
                with Hdf5Columns(rows, after, self.schema) as columns:
                    yield from episode.blocks(self.schema, columns, dropped)
