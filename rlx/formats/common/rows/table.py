"""The episodes of a file in 21 bytes each: a file of short ones has millions."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlx.formats.common.rows.episodes import RowEpisode

_COLUMNS = np.dtype(
    [
        ("number", "i8"),
        ("rows", "i8"),
        ("terminated", "?"),
        ("truncated", "?"),
        ("final_recorded", "?"),
        ("from_reset", "?"),
        ("cut", "?"),
    ]
)
_PIECE = 4096


class EpisodeTable(Sequence[RowEpisode]):
    """Episodes that are made as they are asked for.

    Args:
        rows: [n] of each.
        number: of each, as the other arguments of ``RowEpisode``: [n], or the same for all.
        terminated: as there.
        truncated: as there.
        final_recorded: as there.
        from_reset: as there.
        cut: as there.

    Example:
        >>> table = EpisodeTable([3, 5], number=[0, 1], terminated=True, truncated=False, final_recorded=False)
        >>> table[1].rows, table[1].number, table[1].terminated
        (5, 1, True)
    """

    def __init__(
        self,
        rows: ArrayLike,
        *,
        number: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        final_recorded: ArrayLike,
        from_reset: ArrayLike = True,
        cut: ArrayLike = False,
    ) -> None:
        found = np.asarray(rows, np.int64)
        columns = (number, found, terminated, truncated, final_recorded, from_reset, cut)
        self._table = np.empty(len(found), _COLUMNS)
        for name, column in zip(_COLUMNS.names or (), columns, strict=True):
            self._table[name] = column

    @property
    def rows(self) -> NDArray[np.int64]:
        """[n] of each."""
        column: NDArray[np.int64] = self._table["rows"]
        return column

    def but(self, **columns: ArrayLike) -> "EpisodeTable":
        """Return the same episodes, with some columns replaced."""
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
