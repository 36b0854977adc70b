"""The fingerprint of an export: tells whether what lies at the destination is the result of the same command."""

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlx.errors import RlxError, SourceError
from rlx.formats.common import parquet_file
from rlx.formats.common.exporter import DatasetExporter
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.provenance import FILE_NAME, KEY
from rlx.formats.common.source import Source
from rlx.formats.parquet import reader as parquet
from rlx.pipeline.convert import StoredDataset
from rlx.pipeline.shard_task import source_file

_FINGERPRINT = "fingerprint"
# Where formats that are directories have rlx's notes; Minari and RLDS have files of their own for them.
_BESIDE = (FILE_NAME, "data/metadata.json", "metadata.json")
_MAX_BYTES = 2**24


def fingerprint(source: Source, root: Path, shards: Sequence[int], exporter: DatasetExporter) -> str | None:
    """Return a checksum of what is exported, and how; None if a file cannot be read, which reading it explains.

    Args:
        source: a dataset, or files of another format.
        root: the directory that the names of its files are relative to.
        shards: numbers of the shards to export.
        exporter: its settings belong to the command.
    """
    settings = {name: getattr(exporter, name) for name in getattr(exporter, "__dataclass_fields__", ())}
    try:
        files = [_files(source, root, shard) for shard in shards]
    except (OSError, SourceError):
        return None
    made_of = [source.id, source.schema.to_json(), dict(source.notes), list(shards), files, settings]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def recorded_fingerprint(path: Path) -> str | None:
    """Return the fingerprint that rlx wrote into an export; None if there is none, or it cannot be read."""
    try:
        said = _provenance_beside(path) if path.is_dir() else json.loads(_provenance_within(path))
        found = said[_FINGERPRINT]
    except (OSError, RlxError, ValueError, TypeError, LookupError, RecursionError, zipfile.BadZipFile):
        return None
    return found if isinstance(found, str) else None


def _files(source: Source, root: Path, shard: int) -> Mapping[str, tuple[int, str]]:
    """Return length and checksum of the files of a shard; a dataset's manifest has them."""
    if isinstance(source, StoredDataset):
        records = source.record(shard).files
    else:
        records = {name: source_file(root / name) for name in source.files(shard)}
    return {name: (record.bytes, record.crc32c) for name, record in records.items()}


def _provenance_beside(directory: Path) -> Any:
    for name in _BESIDE:
        path = directory / name
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:
            return json.loads(path.read_bytes())[KEY]
    return None


def _provenance_within(path: Path) -> Any:
    if hdf5_file.is_hdf5(path):
        with hdf5_file.opened(path) as file:
            return hdf5_file.mark(file, KEY)
    if parquet.recognises(path):
        with parquet_file.opened(path) as file_of_rows:
            return file_of_rows.note(KEY)
    with zipfile.ZipFile(path) as archive:
        return archive.comment
