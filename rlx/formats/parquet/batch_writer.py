"""Parquet: one row per step; arrays are nested lists of fixed size, one level per dimension."""

from collections.abc import Iterable
from typing import BinaryIO

from rlx.formats.common.batches import Columns
from rlx.store.arrow import from_rows, pyarrow


class ParquetExporter:
    """Writer of one column per column, and one row group per batch."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write one column a column; their names keep the ``/``.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        arrow, parquet = pyarrow()
        writer = None
        try:
            for batch in batches:
                table = arrow.table({name: from_rows(rows) for name, rows in batch.items()})
                writer = writer or parquet.ParquetWriter(file, table.schema, compression="zstd")
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()
