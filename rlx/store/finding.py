"""Which dataset a path, an id or a URL means: what it says of itself, and the way to its files."""

import os
from pathlib import PurePosixPath

from rlx.files.location import is_url, local_path, open_location
from rlx.files.remote_files import DEFAULT_CACHE_BYTES, RemoteFiles
from rlx.files.remote_path import AnyPath, RemotePath
from rlx.home import locate
from rlx.manifest import Manifest
from rlx.store.remote_manifest import listed_files, read_manifest


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
