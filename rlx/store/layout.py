"""Where a dataset and its shards are: directories, ids and URLs, and the names inside a dataset."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from rlx.errors import DatasetNotFoundError, SourceNotFoundError
from rlx.files.checksum import FileStat
from rlx.files.location import Location
from rlx.files.opening import open_location
from rlx.files.remote_files import DEFAULT_CACHE_BYTES, AnyPath, OnePath, RemoteFiles, RemotePath
from rlx.files.urls import is_url, local_path
from rlx.home import locate
from rlx.manifest import FILE_NAME, MAX_BYTES, FileRecord, Manifest

SHARDS = "shards"
DAMAGED = "rlx.json.damaged"  # a damaged manifest, put aside by repair
ASIDE = ".damaged"  # shards and files that repair moved out of the way
NEW = ".new"  # a dataset on its way, while the one that it replaces is there
SWEPT = ".new.swept"  # such a dataset while it is removed


def shard_name(number: int) -> str:
    """Return name of a numbered shard: ``00007``."""
    return f"{number:05d}"


def shard_directory(dataset: OnePath, name: str) -> OnePath:
    """Return where a listed shard lies."""
    return dataset / SHARDS / name


def partial_directory(dataset: Path, name: str, writer: int) -> Path:
    """Return where a shard lies while the writer of this number writes it."""
    return dataset / SHARDS / f"{name}.{writer}.partial"


def find_dataset(
    dataset: str | os.PathLike[str], *, cache_bytes: int = DEFAULT_CACHE_BYTES
) -> tuple[AnyPath, Manifest]:
    """Return where a dataset lies, and its manifest; nothing else is read.

    Args:
        dataset: a directory, an id below ``$RLX_HOME`` or a URL.
        cache_bytes: of a dataset at a URL, how much of what will be fetched of its files is kept in memory.

    Raises:
        DatasetNotFoundError: the location holds no dataset.
        IncompleteDatasetError: its writing has not come as far as a manifest.
        CorruptDatasetError: its manifest is damaged.
        FormatVersionError: a newer rlx wrote it.
        ForbiddenError: the server of a URL refuses.
        DownloadError: it keeps failing.
        MissingExtraError: a URL needs obstore, which is not installed.
    """
    if not is_url(dataset):
        path = locate(dataset)
    elif (local := local_path(dataset)) is not None:
        path = local
    else:
        return _find_remote(str(dataset), cache_bytes)
    return path, Manifest.load(path)


def _find_remote(url: str, cache_bytes: int) -> tuple[RemotePath, Manifest]:
    location = open_location(url)
    manifest = read_manifest(location)
    lengths = {name: record.bytes for name, record in listed_files(manifest).items()}
    return RemotePath(RemoteFiles(location, lengths, cache_bytes), PurePosixPath()), manifest


def read_manifest(location: Location) -> Manifest:
    """Return the manifest of the dataset at a location.

    Raises:
        DatasetNotFoundError: the location holds no dataset.
        CorruptDatasetError: its manifest is damaged.
        FormatVersionError: a newer rlx wrote it.
        ForbiddenError: the server refuses access.
        DownloadError: the server keeps failing.
    """
    try:
        raw, _ = location.get(FILE_NAME, max_bytes=MAX_BYTES)
    except SourceNotFoundError as exc:
        problem = str(exc) if "no such bucket" in str(exc) else f"expected a {FILE_NAME} in it"
        raise DatasetNotFoundError(f"no dataset at {location.url}: {problem}") from exc
    return Manifest.parse(raw, f"{location.url}/{FILE_NAME}")


def seen_manifest(location: Location) -> FileStat | None:
    """Return the version of the manifest at a location, whatever it holds; None if absent."""
    try:
        return location.stat(FILE_NAME)
    except SourceNotFoundError:
        return None


def differing(there: Manifest, here: Manifest) -> str | None:
    """Return why two datasets cannot lie at one location, in words;
    None where the shards that both have are the same."""
    if different := there.difference(here):
        return different
    ours = {record.name: record.files for record in here.shards}
    for record in there.shards:
        if ours.get(record.name, record.files) != record.files:
            return f"its shard {record.name} has other files there"
    return None


def listed_files(manifest: Manifest) -> dict[str, FileRecord]:
    """Return every file of the shards, by its name below the dataset."""
    return {f"shards/{shard.name}/{name}": file for shard in manifest.shards for name, file in shard.files.items()}
