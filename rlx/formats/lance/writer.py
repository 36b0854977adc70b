"""Lance: one row per step, columns by TED path."""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from os import strerror
from pathlib import Path
from typing import Any

from rlx.errors import ExportError
from rlx.formats.common.exporter import Experience, check_values
from rlx.formats.common.provenance import save_provenance
from rlx.formats.common.rows.ted_fields import step_batches, ted_paths
from rlx.formats.lance import DATA, VERSIONS, checked, lance
from rlx.progress import Progress
from rlx.schema import Schema
from rlx.store.foreign_types import pyarrow

_FILE_BYTES = 2**30
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


class LanceExporter:
    """Exporter of every field of the schema, and the trajectory and episode of each step.

    Lance names its files at random and dates them, so the same dataset gives the same rows but not the same bytes.
    """

    title = "Lance"
    notes_empty = True

    def taken(self, schema: Schema) -> Collection[str]:  # noqa: ARG002  (whatever it is)
        """Return an empty list: any name can be used."""
        return []

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return an empty list: the format loses nothing. Names with a dot raise ExportError."""
        check_values(self.title, experience.schema)
        if dotted := [name for name in experience.schema if "." in name]:
            raise ExportError(
                f"Lance holds names without a dot, found {', '.join(dotted)}",
                hint=f"rlx preprocess SRC DST --transform rename:{dotted[0]}={dotted[0].replace('.', '_')}",
            )
        return []

    def owns(self, path: Path) -> bool:
        """Return whether a directory is a Lance dataset."""
        return (path / VERSIONS).is_dir() and (path / DATA).is_dir()

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:
        """Write the directory."""
        checked(destination)
        module, steps = lance(), _Steps(experience, progress)
        reader = steps.reader()
        try:
            module.write_dataset(reader, str(path), mode="create", max_bytes_per_file=_FILE_BYTES)
        except OSError as exc:
            if steps.failure is not None:
                raise steps.failure from None
            if (code := _SYSTEM_ERROR.search(str(exc))) is None:
                raise
            raise OSError(int(code[1]), strerror(int(code[1])), str(path)) from exc
        save_provenance(path, experience, self.losses(experience))


class _Steps:
    """The steps as a reader of Arrow's record batches, which keeps an error that Lance would turn into text.

    Attributes:
        failure: the error of reading the steps, if any.
    """

    def __init__(self, experience: Experience, progress: Progress) -> None:
        self.failure: BaseException | None = None
        self._experience = experience
        self._progress = progress
        self._schema: Any = None

    def reader(self) -> Any:
        arrow, _ = pyarrow()
        batches = self._batches()
        first = next(batches)
        return arrow.RecordBatchReader.from_batches(first.schema, chain([first], batches))

    def _batches(self) -> Iterator[Any]:
        try:
            for batch, piece in step_batches(self._experience):
                yield batch.cast(self._schema_of(batch))
                self._progress.advance("steps", piece.steps)
        except BaseException as exc:
            self.failure = exc
            raise

    def _schema_of(self, batch: Any) -> Any:
        """Return a batch's schema with lists of any size for texts: Lance cannot write texts in lists of fixed size."""
        arrow, _ = pyarrow()
        if self._schema is None:
            texts = {name: field.shape for name, field in self._experience.schema.fields.items() if field.is_text}
            paths = ted_paths(self._experience.schema)
            kinds: dict[str, Any] = {}
            for name, shape in texts.items():
                kind = arrow.string()
                for _ in shape:
                    kind = arrow.list_(kind)
                kinds |= {paths[name]: kind, f"next/{name}": kind}
            self._schema = arrow.schema([field.with_type(kinds.get(field.name, field.type)) for field in batch.schema])
        return self._schema


DATASETS = LanceExporter()
