"""An HDF5 file that keeps every episode in datasets of its own."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.block import Block
from rlx.formats.common.expected_layout import expecting
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.columns import Hdf5Columns, rows_of
from rlx.formats.common.one_file import OneFile
from rlx.formats.common.rows.episodes import RowEpisode
from rlx.schema import Schema


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
