"""numpy's ``.npz``: ``numpy.load(file)["next/reward"]``."""

from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from rlx.formats.common.batches import Columns, gathered, without_nul


class NpzExporter:
    """Writer of a compressed ``.npz``; holds all rows in memory. Texts are numpy's Unicode strings, all of one
    width."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write one array a column."""
        columns = gathered(batches)
        arrays: dict[str, Any] = {
            name: without_nul(name, rows, "npz").astype(str) if rows.dtype == object else rows
            for name, rows in columns.items()
        }
        np.savez_compressed(file, **arrays)
