"""Parquet: a row a step; what is no single number is a list of fixed size, one in another for every dimension."""

from collections.abc import Iterable
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rlx.errors import MissingExtraError
from rlx.export.protocol import Columns


class ParquetExporter:
    """Writes a column a column, and a row group a batch."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Writes one column a column; their names keep the ``/``.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        arrow, parquet = _pyarrow()
        writer = None
        try:
            for batch in batches:
                table = arrow.table({name: _array(arrow, rows) for name, rows in batch.items()})
                writer = writer or parquet.ParquetWriter(file, table.schema, compression="zstd")
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow  # noqa: PLC0415  (an extra)
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as exc:
        raise MissingExtraError(
            "parquet needs pyarrow, which is not installed", hint="pip install 'rlx[parquet]'"
        ) from exc
    return pyarrow, pyarrow.parquet


def _array(arrow: ModuleType, rows: NDArray[np.generic]) -> Any:
    array = arrow.array(rows.reshape(-1))
    for size in reversed(rows.shape[1:]):
        array = arrow.FixedSizeListArray.from_arrays(array, size)
    return array
