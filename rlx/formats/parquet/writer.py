"""Parquet: of a dataset, one row per step, columns by TED path, and a row group per episode or several short ones; of
batches, arrays as nested lists of fixed size, one level per dimension.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from rlx.formats.common.exporter import Columns, Experience, check_values, with_values
from rlx.formats.common.parquet_file import is_parquet
from rlx.formats.common.provenance import KEY, provenance
from rlx.formats.common.rows.ted_fields import LOCATIONS, step_batches, ted_paths
from rlx.progress import Progress
from rlx.store.foreign_types import arrow_file, from_rows, pyarrow

# A trajectory that is longer gets several row groups, so that memory does not depend on its length. Short ones share
# one: for every row group there are kilobytes in memory until the file is closed.
_GROUP_STEPS = 1000
_GROUP_BYTES = 2**24
_MAX_INDEXED_ROW_BYTES = 64


class ParquetDatasetExporter:
    """Exporter of every field of the schema, and the trajectory and episode of each step.

    The observation after a step is in the next row; only at the end of a trajectory is it in the row itself, as
    ``next/observation``, which is null in other rows.
    """

    title = "Parquet"

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return an empty list: the format loses nothing."""
        check_values(self.title, experience.schema)
        return []

    def owns(self, path: Path) -> bool:
        """Return whether a file is Parquet."""
        return is_parquet(path)

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the file."""
        arrow, parquet = pyarrow()
        said = json.dumps(provenance(experience, []), sort_keys=True)
        small = [name for name, field in experience.schema.fields.items() if field.row_bytes <= _MAX_INDEXED_ROW_BYTES]
        indexed = [*LOCATIONS, *(ted_paths(experience.schema)[name] for name in small)]
        writer = None
        with arrow_file(path, "wb") as file:
            try:
                for table in _groups(arrow, experience):
                    described = table.schema.with_metadata({KEY: said})
                    writer = writer or parquet.ParquetWriter(
                        file, described, compression="zstd", use_dictionary=indexed, write_statistics=indexed
                    )
                    writer.write_table(table, row_group_size=len(table))
                    progress.advance("steps", len(table))
            finally:
                if writer is not None:
                    writer.close()


def _groups(arrow: ModuleType, experience: Experience) -> Iterator[Any]:
    held: list[Any] = []
    steps = size = 0
    for batch, piece in step_batches(experience):
        held.append(batch)
        steps, size = steps + piece.steps, size + held[-1].nbytes
        if (piece.is_last and steps >= _GROUP_STEPS) or size >= _GROUP_BYTES:
            yield arrow.Table.from_batches(held)
            held, steps, size = [], 0, 0
    if held:
        yield arrow.Table.from_batches(held)


class ParquetExporter:
    """Writer of one column per column, and one row group per batch."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write one column a column; their names keep the ``/``."""
        arrow, parquet = pyarrow()
        writer = None
        try:
            for batch in batches:
                table = arrow.table(
                    {name: from_rows(with_values(name, rows, "parquet")) for name, rows in batch.items()}
                )
                writer = writer or parquet.ParquetWriter(file, table.schema, compression="zstd")
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


DATASETS = ParquetDatasetExporter()
BATCHES = ParquetExporter()
