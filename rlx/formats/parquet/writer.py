"""Parquet: of a dataset, a row a step, columns by TED path, and a row group an episode, or for several short ones; of
batches, arrays as nested lists of fixed size, one level per dimension.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.exporter import Columns, Experience, Piece, small_pieces
from rlx.formats.common.parquet_file import is_parquet
from rlx.formats.common.provenance import KEY, provenance
from rlx.formats.common.rows.ted_fields import CUT, EPISODE, FROM_RESET, INDEX, TRAJECTORY, ted_paths
from rlx.progress import Progress
from rlx.schema import Role, Schema
from rlx.store.arrow import arrow_type, from_rows, pyarrow

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

    def losses(self, experience: Experience) -> Sequence[str]:  # noqa: ARG002  (whatever it is)
        """Return an empty list: nothing is lost."""
        return []

    def owns(self, path: Path) -> bool:
        """Return whether a file is Parquet."""
        return is_parquet(path)

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the file."""
        arrow, parquet = pyarrow()
        said = json.dumps(provenance(experience, []), sort_keys=True)
        small = [name for name, field in experience.schema.fields.items() if field.row_bytes <= _MAX_INDEXED_ROW_BYTES]
        indexed = [INDEX, TRAJECTORY, EPISODE, FROM_RESET, CUT, *(ted_paths(experience.schema)[name] for name in small)]
        writer = None
        with arrow.OSFile(str(path), "wb") as file:
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
    """Yield the tables of the row groups."""
    held: list[Any] = []
    steps = size = 0
    cut = experience.trajectories.cut
    for piece, index in _numbered(experience):
        held.append(_batch(arrow, experience.schema, piece, index, cut))
        steps, size = steps + piece.steps, size + held[-1].nbytes
        if (piece.is_last and steps >= _GROUP_STEPS) or size >= _GROUP_BYTES:
            yield arrow.Table.from_batches(held)
            held, steps, size = [], 0, 0
    if held:
        yield arrow.Table.from_batches(held)


def _numbered(experience: Experience) -> Iterator[tuple[Piece, int]]:
    """Yield the pieces, each with how many steps came before."""
    index = 0
    for piece in small_pieces(experience.blocks(), experience.schema):
        yield piece, index
        index += piece.steps


def _batch(arrow: ModuleType, schema: Schema, piece: Piece, index: int, cut: NDArray[np.bool_]) -> Any:
    count = piece.steps
    constants: dict[str, int | bool] = {
        TRAJECTORY: piece.trajectory,
        EPISODE: piece.episode,
        FROM_RESET: piece.from_reset,
        CUT: bool(cut[piece.trajectory]),
    }
    columns = {path: from_rows(piece.rows(name)) for name, path in ted_paths(schema).items()}
    for name in schema.names(Role.OBSERVATION):
        recorded = piece.next(name)[count - 1 :] if piece.is_last and piece.final_recorded else piece.data[name][:0]
        nulls = arrow.nulls(count - len(recorded), arrow_type(schema[name].dtype, schema[name].shape))
        columns[f"next/{name}"] = arrow.concat_arrays([nulls, from_rows(recorded)])
    columns[INDEX] = from_rows(np.arange(index, index + count))
    columns |= {path: from_rows(np.full(count, value)) for path, value in constants.items()}
    return arrow.RecordBatch.from_pydict(columns)


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


DATASETS = ParquetDatasetExporter()
BATCHES = ParquetExporter()
