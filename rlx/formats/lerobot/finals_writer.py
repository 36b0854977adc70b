"""Final observations, for which LeRobot has no row: an additional table among its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.pieces import Piece
from rlx.formats.lerobot.features import Feature
from rlx.store.arrow import pyarrow

FILE_NAME = "meta/final_observations.parquet"
_EPISODE, _LENGTH, _CUT = "episode_index", "length", "cut"
_GROUP_BYTES, _GROUP_ROWS = 2**20, 1000


class FinalObservations:
    """Writer of a row per episode whose final observation is known: number and length of the episode, and that
    observation.

    Args:
        directory: the dataset's.
        features: those of the observations, by the names of the fields.
        names: what the features are called.
    """

    def __init__(self, directory: Path, features: Mapping[str, Feature], names: Mapping[str, str]) -> None:
        self._path = directory / FILE_NAME
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
        columns = dict(zip((_EPISODE, _LENGTH, _CUT), map(arrow.array, zip(*self._numbers, strict=True)), strict=True))
        for name, rows in self._rows.items():
            columns[self._names[name]] = self._features[name].column(np.concatenate(rows))
            rows.clear()
        self._numbers, self._bytes = [], 0
        table = arrow.table(columns)
        self._writer = self._writer or parquet.ParquetWriter(self._path, table.schema, compression="snappy")
        self._writer.write_table(table, row_group_size=len(table))
