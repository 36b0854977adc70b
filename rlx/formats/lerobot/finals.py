"""Final observations, for which LeRobot has no row: a table that rlx adds to the files of a dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.exporter import Piece
from rlx.formats.common.parquet_file import opened
from rlx.formats.common.rows.episodes import RowEpisode
from rlx.formats.lerobot.features import Feature
from rlx.formats.lerobot.layout import CUT, EPISODE, FINALS, LENGTH
from rlx.store.arrow import pyarrow, to_rows

_COLUMNS = (EPISODE, LENGTH)
_SCANNED_ROWS = 2**14
_GROUP_BYTES, _GROUP_ROWS = 2**20, 1000


def with_finals(root: Path, episodes: Sequence[RowEpisode]) -> list[RowEpisode]:
    """Return the episodes of a dataset, each with whether its final observation is in the table, and whether it was
    cut.

    Raises:
        CorruptShardError: the table is damaged, or is not of these episodes: somebody has changed them since.
    """
    path, known = root / FINALS, list(episodes)
    if not path.is_file():
        return known
    last = -1
    with opened(path) as file:
        names = (*_COLUMNS, *([CUT] if CUT in file.names else []))
        for batch in file.batches(names, _SCANNED_ROWS):
            try:
                numbers, lengths, *cuts = (to_rows(batch[name], ()).tolist() for name in names)
            except ValueError as exc:
                raise CorruptShardError(f"{path}: {' or '.join(_COLUMNS)}: {exc}") from exc
            for number, length, *cut in zip(numbers, lengths, *cuts, strict=True):
                if not (last < number < len(known) and known[int(number)].rows == length):
                    raise CorruptShardError(
                        f"{path}: expected the numbers and lengths of episodes, found {number} of {length} steps",
                        hint=f"rm {path} if the dataset was changed since rlx wrote it; last steps are left out then",
                    )
                known[int(number)] = replace(known[int(number)], final_recorded=True, cut=cut == [True])
                last = number
    return known


class FinalObservations:
    """Writer of a row per episode whose final observation is known: number and length of the episode, and that
    observation.

    Args:
        directory: the dataset's.
        features: those of the observations, by the names of the fields.
        names: what the features are called.
    """

    def __init__(self, directory: Path, features: Mapping[str, Feature], names: Mapping[str, str]) -> None:
        self._path = directory / FINALS
        self._features = features
        self._names = names
        self._numbers: list[tuple[int, int, bool]] = []
        self._rows: dict[str, list[NDArray[np.generic]]] = {name: [] for name in features}
        self._bytes = 0
        self._writer: Any = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            if self._writer is not None:
                self._writer.close()

    def add(self, piece: Piece, *, is_cut: bool) -> None:
        """Take the last piece of an episode, and whether its recording was cut."""
        if not piece.final_recorded:
            return
        self._numbers.append((piece.trajectory, piece.start + piece.steps, is_cut))
        for name, rows in self._rows.items():
            rows.append(piece.next(name)[-1:].copy())
            self._bytes += rows[-1].nbytes
        if self._bytes >= _GROUP_BYTES or len(self._numbers) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._numbers:
            return
        arrow, parquet = pyarrow()
        columns = dict(zip((EPISODE, LENGTH, CUT), map(arrow.array, zip(*self._numbers, strict=True)), strict=True))
        for name, rows in self._rows.items():
            columns[self._names[name]] = self._features[name].column(np.concatenate(rows))
            rows.clear()
        self._numbers, self._bytes = [], 0
        table = arrow.table(columns)
        self._writer = self._writer or parquet.ParquetWriter(self._path, table.schema, compression="snappy")
        self._writer.write_table(table, row_group_size=len(table))
