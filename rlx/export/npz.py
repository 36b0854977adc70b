"""numpy's ``.npz``: ``numpy.load(file)["next/reward"]``."""

from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from rlx.export.protocol import Columns, gathered


class NpzExporter:
    """Writes a compressed ``.npz``; holds all rows in memory."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Writes one array a column."""
        arrays: dict[str, Any] = gathered(batches)
        np.savez_compressed(file, **arrays)
