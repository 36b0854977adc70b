"""The episodes of a file in 20 bytes each: a file of short ones has millions."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlx.source.row_episodes import RowEpisode

_COLUMNS = np.dtype(
    [
        ("number", "i8"),
        ("rows", "i8"),
        ("terminated", "?"),
        ("truncated", "?"),
        ("final_recorded", "?"),
        ("from_reset", "?"),
    ]
)
_PIECE = 4096


class EpisodeTable(Sequence[RowEpisode]):
    """Episodes that are made as they are asked for.

    Args:
        rows: [n] of each.
        columns: the other arguments of ``RowEpisode``, [n] each or the same for all.

    Example:
        >>> table = EpisodeTable([3, 5], number=[0, 1], terminated=True, truncated=False, final_recorded=False)
        >>> table[1].rows, table[1].number, table[1].terminated
        (5, 1, True)
    """

    def __init__(self, rows: ArrayLike, **columns: ArrayLike) -> None:
        self.rows: NDArray[np.int64] = np.asarray(rows, np.int64)
        self._table = np.empty(len(self.rows), _COLUMNS)
        for name, column in {"from_reset": True, **columns, "rows": self.rows}.items():
            self._table[name] = column

    def but(self, **columns: ArrayLike) -> "EpisodeTable":
        """The same episodes, with some columns replaced."""
        kept = {name: self._table[name] for name in _COLUMNS.names or () if name != "rows"}
        return EpisodeTable(self.rows, **{**kept, **columns})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpisodeTable) and np.array_equal(self._table, other._table)

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, place: int, /) -> RowEpisode: ...
    @overload
    def __getitem__(self, place: slice, /) -> list[RowEpisode]: ...
    def __getitem__(self, place: int | slice, /) -> RowEpisode | list[RowEpisode]:
        if isinstance(place, slice):
            return [RowEpisode(*row) for row in self._table[place].tolist()]
        return RowEpisode(*self._table[place].tolist())

    def __iter__(self) -> Iterator[RowEpisode]:
        for start in range(0, len(self), _PIECE):
            yield from self[start : start + _PIECE]
