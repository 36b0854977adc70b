"""Parquet: of a dataset, one row per step, columns by TED path; of batches, arrays as nested lists of fixed size, one
level per dimension.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rlx.formats.common.batches import Columns, with_values
from rlx.formats.common.exporter import Experience, check_values
from rlx.formats.common.parquet_file import is_parquet
from rlx.formats.common.pictures import Arranged, as_pictures
from rlx.formats.common.provenance import KEY, provenance
from rlx.formats.common.rows.ted_fields import INDEX, LOCATIONS, feature_of, step_batches, ted_paths
from rlx.progress import Progress
from rlx.schema import Role, Schema
from rlx.store.foreign_types import arrow_file, from_rows, pyarrow, write_tables

# Longer trajectories get several row groups, so that memory does not depend on their length. Short ones share one:
# every row group keeps kilobytes in memory until the file is closed.
_GROUP_STEPS = 1000
_GROUP_BYTES = 2**24
_MAX_INDEXED_ROW_BYTES = 64


class ParquetDatasetExporter:
    """Exporter of every field of the schema, and the trajectory and episode of each step.

    A row group has an episode or several short ones. The observation after a step is in the next row; only at the end
    of a trajectory is it in the row itself, as ``next/observation``, which is null in other rows.
    """

    title = "Parquet"
    notes_empty = True
    _cuts_episodes = False

    def taken(self, schema: Schema) -> Collection[str]:  # noqa: ARG002  (whatever it is)
        """Return an empty list: any name can be used."""
        return []

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return an empty list: the format loses nothing."""
        check_values(self.title, experience.schema)
        return []

    def owns(self, path: Path) -> bool:
        """Return whether a file is Parquet."""
        return is_parquet(path)

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the file."""
        schema = experience.schema
        note = json.dumps(provenance(experience, self.losses(experience)), sort_keys=True)
        groups = self._groups(experience, progress)
        described = (group.replace_schema_metadata({KEY: note, **self._metadata(group.schema)}) for group in groups)
        with arrow_file(path, "wb") as file:
            write_tables(file, described, **self._encoding(schema))

    def _groups(self, experience: Experience, progress: Progress) -> Iterator[Any]:
        arrow, _ = pyarrow()
        held: list[Any] = []
        steps = size = 0
        for batch, piece in step_batches(experience, self._pictures(experience.schema)):
            held.append(batch)
            steps, size = steps + piece.steps, size + batch.nbytes
            if (steps >= _GROUP_STEPS and (piece.is_last or self._cuts_episodes)) or size >= _GROUP_BYTES:
                yield arrow.Table.from_batches(held)
                held, steps, size = [], 0, 0
            progress.advance("steps", piece.steps)
        if held:
            yield arrow.Table.from_batches(held)

    def _pictures(self, schema: Schema) -> Mapping[str, Arranged]:  # noqa: ARG002
        return {}

    def _metadata(self, schema: Any) -> Mapping[str, str]:  # noqa: ARG002
        return {}

    def _encoding(self, schema: Schema) -> Mapping[str, Any]:
        small = [name for name, field in schema.fields.items() if field.row_bytes <= _MAX_INDEXED_ROW_BYTES]
        indexed = [INDEX, *LOCATIONS, *(ted_paths(schema)[name] for name in small)]
        return {"use_dictionary": indexed, "write_statistics": indexed}


class HfParquetExporter(ParquetDatasetExporter):
    """Exporter for the library ``datasets``: pictures become PNG.

    The metadata describe the columns to ``datasets``, so that ``load_dataset`` decodes the pictures. The hub's viewer
    reads a row group at once; those of datasets' own files of pictures have 100 rows.
    """

    title = "Parquet of datasets"
    _cuts_episodes = True

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost shapes of pictures."""
        super().losses(experience)
        schema = experience.schema
        return [loss for name, one in self._pictures(schema).items() for loss in one.loss(name, schema[name])]

    def _pictures(self, schema: Schema) -> Mapping[str, Arranged]:
        found = {name: as_pictures(schema[name]) for name in schema.names(Role.OBSERVATION)}
        return {name: arranged for name, arranged in found.items() if arranged is not None}

    def _metadata(self, schema: Any) -> Mapping[str, str]:
        features = {field.name: feature_of(field.type) for field in schema}
        return {"huggingface": json.dumps({"info": {"features": features}})}

    def _encoding(self, schema: Schema) -> Mapping[str, Any]:  # noqa: ARG002
        return {}


class ParquetExporter:
    """Writer of one Parquet column per column, and one row group per batch."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write the batches; names of columns keep the ``/``."""
        arrow, _ = pyarrow()
        tables = (
            arrow.table({name: from_rows(with_values(name, rows, "parquet")) for name, rows in batch.items()})
            for batch in batches
        )
        write_tables(file, tables)


DATASETS = ParquetDatasetExporter()
HF_DATASETS = HfParquetExporter()
BATCHES = ParquetExporter()
