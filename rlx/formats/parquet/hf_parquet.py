"""Parquet as the library ``datasets`` writes it: one row per step, columns by TED path, pictures as PNG."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlx.formats.common.exporter import Experience, check_values
from rlx.formats.common.parquet_file import is_parquet
from rlx.formats.common.pictures import Arranged, as_pictures
from rlx.formats.common.provenance import KEY, provenance
from rlx.formats.common.rows.ted_fields import step_batches
from rlx.progress import Progress
from rlx.schema import Role, Schema
from rlx.store.foreign_types import arrow_file, pyarrow

_GROUP_ROWS = 1000  # of datasets' own files of pictures, 100; the hub's viewer reads a group at once
_GROUP_BYTES = 2**24


class HfParquetExporter:
    """Exporter of every field of the schema, and the trajectory and episode of each step; pictures become PNG.

    The metadata describe the columns to ``datasets``, so that ``load_dataset`` decodes the pictures.
    """

    title = "Parquet of datasets"

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return pictures whose shape changes."""
        schema = experience.schema
        check_values(self.title, schema)
        return [loss for name, one in _pictures(schema).items() for loss in one.loss(name, schema[name])]

    def owns(self, path: Path) -> bool:
        """Return whether a file is Parquet."""
        return is_parquet(path)

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the file."""
        arrow, parquet = pyarrow()
        pictures = _pictures(experience.schema)
        note = json.dumps(provenance(experience, self.losses(experience)), sort_keys=True)
        writer, held = None, list[Any]()
        with arrow_file(path, "wb") as file:
            try:
                for batch, piece in step_batches(experience, pictures):
                    if writer is None:
                        described = {KEY: note, "huggingface": json.dumps(_described(batch.schema))}
                        schema = batch.schema.with_metadata(described)
                        writer = parquet.ParquetWriter(file, schema, compression="zstd")
                    held.append(batch.replace_schema_metadata(schema.metadata))
                    rows, size = sum(one.num_rows for one in held), sum(one.nbytes for one in held)
                    if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
                        _write(arrow, writer, held)
                    progress.advance("steps", piece.steps)
                if held:
                    _write(arrow, writer, held)
            finally:
                if writer is not None:
                    writer.close()


def _write(arrow: Any, writer: Any, held: list[Any]) -> None:
    table = arrow.Table.from_batches(held)
    writer.write_table(table, row_group_size=len(table))
    held.clear()


def _pictures(schema: Schema) -> dict[str, Arranged]:
    found = {name: as_pictures(schema[name]) for name in schema.names(Role.OBSERVATION)}
    return {name: arranged for name, arranged in found.items() if arranged is not None}


def _described(schema: Any) -> Mapping[str, Any]:
    """Return the columns as ``datasets`` describes them: its types by name."""
    return {"info": {"features": {field.name: _feature(field.type) for field in schema}}}


def _feature(kind: Any) -> Mapping[str, Any]:
    arrow, _ = pyarrow()
    if arrow.types.is_struct(kind):
        return {"_type": "Image"}
    if arrow.types.is_fixed_size_list(kind):
        return {"feature": _feature(kind.value_type), "length": kind.list_size, "_type": "List"}
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return {"dtype": names.get(str(kind), str(kind)), "_type": "Value"}


DATASETS = HfParquetExporter()
