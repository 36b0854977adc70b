"""The manifest of a dataset that lies at a location."""

from rlx.errors import DatasetNotFoundError, SourceNotFoundError
from rlx.files.location import Location, Stored
from rlx.manifest import FILE_NAME, MAX_BYTES, FileRecord, Manifest


def read_manifest(location: Location) -> Manifest:
    """Return the manifest of the dataset at a location.

    Raises:
        DatasetNotFoundError: the location holds no dataset.
        CorruptDatasetError: its manifest is damaged.
        FormatVersionError: a newer rlx wrote it.
        ForbiddenError: the server refuses.
        DownloadError: the server keeps failing.
    """
    try:
        raw, _ = location.get(FILE_NAME, max_bytes=MAX_BYTES)
    except SourceNotFoundError as exc:
        problem = str(exc) if "no such bucket" in str(exc) else f"expected a {FILE_NAME} in it"
        raise DatasetNotFoundError(f"no dataset at {location.url}: {problem}") from exc
    return Manifest.parse(raw, f"{location.url}/{FILE_NAME}")


def seen_manifest(location: Location) -> Stored | None:
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
