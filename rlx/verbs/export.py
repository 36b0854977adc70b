"""``rlx convert --to``: a dataset, or local files of a run, into the format of another project.

An export records a fingerprint of its source and settings, by which the same command recognises a finished one.
"""

import hashlib
import json
import logging
import time
import zipfile
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rlx.block import Block
from rlx.errors import CorruptShardError, DatasetExistsError, ExportError, RlxError, SourceError
from rlx.files.atomic import whole
from rlx.files.disk import is_there, opened_file
from rlx.formats.common import parquet_file
from rlx.formats.common.exporter import DatasetExporter, Experience, empty_fields, pieces
from rlx.formats.common.fields import not_taken
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.names import names_in_file, renamed_block, renamed_schema
from rlx.formats.common.provenance import FILE_NAME, KEY
from rlx.formats.common.skipping import LeftOut, skipping
from rlx.formats.common.source import Source
from rlx.formats.registry import formats, writable
from rlx.progress import Progress
from rlx.schema import Field, Schema, is_action
from rlx.store.trajectories import COLUMNS, Trajectories
from rlx.verbs.ingest import chosen_shards
from rlx.verbs.inputs import StoredDataset, open_source
from rlx.verbs.report import Counted, bytes_at, check_apart
from rlx.verbs.shard_task import source_file

logger = logging.getLogger(__name__)
_FINGERPRINT = "fingerprint"
# Files with rlx's notes, for formats that are directories; Minari and RLDS keep notes in files of their own.
_BESIDE = (FILE_NAME, "data/metadata.json", "metadata.json")
_MAX_BYTES = 2**24
EXPORT_FORMATS = tuple(writable("datasets"))


@dataclass(frozen=True, slots=True)
class ExportReport(Counted):
    """The file or directory of another project's format that a function has written.

    Args:
        dataset: path of the file or directory.
        id: name of the exported dataset.
        format: name of the format.
        shards: number of shards that were exported.
        skipped_shards: number of these that an earlier call wrote: all or none.
        steps: number of steps.
        trajectories: number of trajectories.
        bytes: size of all files.
        seconds: duration of the call.
        losses: data that the format could not hold.
        names: name in the files of each field whose own name the format reserves; rlx reads it by its own name again.
        not_taken: reason for each entry of the source's files that rlx did not read.
        left_out: the episodes of the source's files that could not be read, with ``on_error="skip"``.
    """

    dataset: Path
    id: str
    format: str
    shards: int
    skipped_shards: int
    steps: int
    trajectories: int
    bytes: int
    seconds: float
    losses: Sequence[str]
    names: Mapping[str, str]
    not_taken: Mapping[str, str]
    left_out: LeftOut = field(default_factory=LeftOut)

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        return {
            "dataset": str(self.dataset),
            "id": self.id,
            "format": self.format,
            **self._counts(),
            "losses": list(self.losses),
            "names": dict(self.names),
            "not_taken": dict(self.not_taken),
            **self.left_out.note(),
        }


def export(
    source: Path,
    destination: Path,
    format: str,
    *,
    source_format: str | None = None,
    shards: Sequence[int] | None = None,
    skips: bool = False,
    overwrite: bool = False,
    exporter: DatasetExporter | None = None,
    progress: Progress,
) -> ExportReport:
    """Write a dataset, or local files, in the format of another project.

    Args:
        source_format: as of ``convert``.
        skips: whether episodes that cannot be read are left out.
        overwrite: whether to replace an existing export of the same format. Otherwise the result of the same command
            is kept, and its report returned.
        exporter: an exporter of the format with other settings than the default.

    Raises what ``rlx.convert`` does with ``to``.
    """
    started = time.monotonic()
    check_apart(source, destination)
    with skipping(skips) as left:
        opened, root = open_source(source, source_format)
        numbers = chosen_shards(opened, shards)
        exporter = exporter or formats()[format].datasets
        made_of = fingerprint(opened, root, numbers, exporter, skips=skips)
        empty = empty_fields(opened.schema) if getattr(exporter, "notes_empty", False) else {}
        names = names_in_file(_without(opened.schema, empty), exporter.taken)
        experience = SelectedShards(opened, numbers, made_of, names, empty)
        if skips:
            count = len(experience.trajectories)  # reads all steps, and so knows what is left out
            experience.notes = {**experience.notes, **LeftOut.of(left).note()}
            if left and not count:
                raise CorruptShardError(f"{experience.id} has only {LeftOut.of(left)}")
            if left:
                logger.warning("%s: left out: %s", experience.id, LeftOut.of(left))
        finished = not overwrite and made_of is not None and made_of == recorded_fingerprint(destination)
        if finished and exporter.owns(destination):
            losses = list(exporter.losses(experience))
        else:
            finished = False
            losses = export_dataset(experience, destination, exporter, overwrite=overwrite, progress=progress)
        table = experience.trajectories
    return ExportReport(
        destination,
        experience.id,
        format,
        len(numbers),
        len(numbers) if finished else 0,
        int(table.length.sum()),
        len(table),
        bytes_at(destination),
        time.monotonic() - started,
        losses,
        experience.names,
        not_taken(opened.notes),
        LeftOut.of(left),
    )


class SelectedShards:
    """Some shards of a source, concatenated, as input of exporters.

    Args:
        fingerprint: fingerprint of the export; None if unknown.
        names: other names of some fields.
        empty: the fields that are left out, of shape [0], because a note of them is enough.
    """

    def __init__(
        self,
        source: Source,
        shards: Sequence[int],
        fingerprint: str | None = None,
        names: Mapping[str, str] = MappingProxyType({}),
        empty: Mapping[str, Field] = MappingProxyType({}),
    ) -> None:
        self._source = source
        self._shards = shards
        self.id, self.notes, self.fingerprint, self.names = source.id, source.notes, fingerprint, names
        self.schema, self.empty = renamed_schema(_without(source.schema, empty), names), empty

    @cached_property
    def trajectories(self) -> Trajectories:
        """The table of all trajectories; reads all steps if the source has no table."""
        if isinstance(self._source, StoredDataset):
            return self._source.table(self._shards)
        return survey(self.blocks(), self.schema)

    def blocks(self) -> Iterator[Block]:
        """Yield all steps."""
        for shard in self._shards:
            for block in self._source.blocks(shard, Counter()):
                yield renamed_block(self._written(block), self.names)

    def _written(self, block: Block) -> Block:
        data = {name: rows for name, rows in block.data.items() if name not in self.empty}
        return replace(block, data=data) if self.empty else block


def _without(schema: Schema, names: Collection[str]) -> Schema:
    return Schema({name: field for name, field in schema.fields.items() if name not in names})


def survey(blocks: Iterable[Block], schema: Schema) -> Trajectories:
    """Return the trajectory table of blocks."""
    # Lists of Python's numbers would take ten times as much, for millions of short trajectories.
    columns = [array(code) for code in "qdqbbbbb"]
    row: list[Any] = []
    for piece in pieces(blocks, schema):
        if piece.start == 0:
            row = [0, 0.0, piece.episode, False, False, piece.from_reset, True, False]
        row[0] += piece.steps
        row[1] += float(piece.data["reward"].sum(dtype=np.float64))
        row[3:5] = bool(piece.data["terminated"][-1]), bool(piece.data["truncated"][-1])
        row[6] = piece.final_recorded
        row[7] = piece.cut or not (row[3] or row[4])
        if piece.is_last:
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    fields = zip(columns, COLUMNS.values(), strict=True)
    return Trajectories(*(np.array(column, field.dtype) for column, field in fields))


def fingerprint(
    source: Source, root: Path, shards: Sequence[int], exporter: DatasetExporter, *, skips: bool = False
) -> str | None:
    """Return a checksum of the exported data and the exporter's settings.

    None if a file cannot be read: the export will raise the error.

    Args:
        source: a dataset, or files of another format.
        exporter: the exporter, whose settings count.
        skips: whether episodes that cannot be read are left out.
    """
    settings = {name: getattr(exporter, name) for name in getattr(exporter, "__dataclass_fields__", ())}
    settings |= {"skips": True} if skips else {}
    try:
        files = [_files(source, root, shard) for shard in shards]
    except (OSError, SourceError):
        return None
    made_of = [source.id, source.schema.to_json(), dict(source.notes), list(shards), files, settings]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def recorded_fingerprint(path: Path) -> str | None:
    """Return the fingerprint that rlx wrote into an export; None if it is missing or unreadable."""
    try:
        said = _provenance_beside(path) if path.is_dir() else json.loads(_provenance_within(path))
        found = said[_FINGERPRINT]
    except (OSError, RlxError, ValueError, TypeError, LookupError, RecursionError, zipfile.BadZipFile):
        return None
    return found if isinstance(found, str) else None


def _files(source: Source, root: Path, shard: int) -> Mapping[str, tuple[int, str]]:
    """Return length and checksum of the files of a shard; those of a dataset are in its manifest."""
    if isinstance(source, StoredDataset):
        records = {name.split("/", 2)[2]: record for name, record in source.records(shard).items()}
    else:
        records = {name: source_file(root / name) for name in source.files(shard)}
    return {name: (record.bytes, record.crc32c) for name, record in records.items()}


def _provenance_beside(directory: Path) -> Any:
    for name in _BESIDE:
        path = directory / name
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:
            with opened_file(path) as file:
                return json.loads(file.read())[KEY]
    return None


def _provenance_within(path: Path) -> Any:
    if hdf5_file.is_hdf5(path):
        with hdf5_file.opened(path) as file:
            return hdf5_file.attribute(file, KEY)
    if parquet_file.is_parquet(path):
        with parquet_file.opened(path) as file_of_rows:
            return file_of_rows.note(KEY)
    with zipfile.ZipFile(path) as archive:
        return archive.comment


def export_dataset(
    experience: Experience, destination: Path, exporter: DatasetExporter, *, overwrite: bool = False, progress: Progress
) -> list[str]:
    """Write a dataset in another project's format; it is there when all of it is.

    Losses of the format, and names that it reserves, are logged as warnings before anything is written.

    Args:
        exporter: ``datasets`` of the format.

    Returns:
        what the format could not hold.
    """

    def check() -> None:
        _check_free(destination, exporter, overwrite=overwrite)

    with whole(destination, check) as partial:
        _check_actions(experience.schema, exporter)
        losses = list(exporter.losses(experience))
        for loss in losses:
            logger.warning("%s cannot hold %s", exporter.title, loss)
        for name, written in experience.names.items():
            logger.warning("%s reserves the name %s: the field is %s there", exporter.title, name, written)
        if not (steps := int(experience.trajectories.length.sum())):
            raise ExportError(f"{experience.id} has no steps to export")
        progress.expect("steps", steps)
        exporter.write(experience, partial, destination, progress)
    return losses


def _check_actions(schema: Schema, exporter: DatasetExporter) -> None:
    if not any(map(is_action, schema)):
        raise ExportError(
            f"{exporter.title} holds an action per step, found only {', '.join(schema)}",
            hint="`to` zarr keeps steps without actions",
        )


def _check_free(destination: Path, exporter: DatasetExporter, *, overwrite: bool) -> None:
    if not is_there(destination) and not destination.is_symlink():
        return
    if not overwrite:
        raise DatasetExistsError(f"{destination} already exists", hint="`overwrite` replaces it")
    if not exporter.owns(destination):
        raise DatasetExistsError(
            f"{destination} is not in the format of {exporter.title}: expected that format, or a new name"
        )
