"""Where a dataset and its shards are, and how one dataset takes the place of another: locally, or at a URL.

Shards of both have the same names. So locally the new ones first move below ``shards/`` under other names, and one
replacement of the manifest switches to them; then they get their own names by hard links, and a second replacement of
the manifest lists these. A reader of the directory finds at any moment the old dataset or the new one. At a URL, a file
beside the manifest claims the place for the dataset that is on its way.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from rlx.errors import (
    DatasetError,
    DatasetExistsError,
    DatasetLockedError,
    DatasetNotFoundError,
    ForbiddenError,
    SourceNotFoundError,
)
from rlx.files import lock
from rlx.files.atomic import PARTIAL
from rlx.files.beneath import check_entries, remove, try_remove
from rlx.files.checksum import FileStat
from rlx.files.disk import is_there, walk
from rlx.files.disk_cache import DiskCache
from rlx.files.durable import sync, sync_tree
from rlx.files.location import Location, WritableLocation
from rlx.files.opening import open_location
from rlx.files.remote_files import DEFAULT_CACHE_BYTES, AnyPath, OnePath, RemoteFiles, RemotePath, small_files
from rlx.files.urls import is_url, local_path
from rlx.home import locate
from rlx.manifest import FILE_NAME, MAX_BYTES, FileRecord, Manifest, ShardRecord

logger = logging.getLogger(__name__)
CITATION = "CITATION.bib"  # beside the manifest: what somebody gave with the data
SHARDS = "shards"
DAMAGED = "rlx.json.damaged"  # a damaged manifest, put aside by repair
ASIDE = ".damaged"  # shards and files that repair moved out of the way
NEW = ".new"  # a dataset on its way, while the one that it replaces is there
SWEPT = ".new.swept"  # such a dataset while it is removed
JOURNAL = ".journal"  # episodes of shards that a recorder has not written yet, by the name of the shard
SOURCE_FILES = "source"  # raw files of the source, while they are downloaded and converted
OWN = frozenset({FILE_NAME, CITATION, SHARDS, DAMAGED, ASIDE, NEW, SWEPT, SOURCE_FILES, JOURNAL, lock.FILE_NAME})


def is_own(name: str) -> bool:
    """Return whether an entry of a dataset's directory with this name is rlx's.

    Example:
        >>> is_own("rlx.json.partial"), is_own("notes.txt")
        (True, False)
    """
    return name in OWN or (name.startswith(FILE_NAME) and name.endswith(PARTIAL))


def shard_name(number: int) -> str:
    """Return name of a numbered shard: ``00007``."""
    return f"{number:05d}"


def shard_directory(dataset: OnePath, name: str) -> OnePath:
    """Return the directory of a listed shard."""
    return dataset / SHARDS / name


def partial_directory(dataset: Path, name: str, writer: int) -> Path:
    """Return the directory of a shard while the writer of this number writes it."""
    return dataset / SHARDS / f"{name}.{writer}.partial"


def find_dataset(
    dataset: str | os.PathLike[str], *, cache_bytes: int = DEFAULT_CACHE_BYTES, disk: DiskCache | None = None
) -> tuple[AnyPath, Manifest]:
    """Return the location of a dataset, and its manifest; nothing else is read.

    Args:
        dataset: a directory, an id below ``$RLX_HOME`` or a URL.
        cache_bytes: of a dataset at a URL, how much of what will be fetched of its files is kept in memory.
        disk: of a dataset at a URL, keeps what is fetched of its files on the local disk.
    """
    if not is_url(dataset):
        path = locate(dataset)
    elif (local := local_path(dataset)) is not None:
        path = local
    else:
        return _find_remote(str(dataset), cache_bytes, disk)
    return path, Manifest.load(path)


def _find_remote(url: str, cache_bytes: int, disk: DiskCache | None) -> tuple[RemotePath, Manifest]:
    location = open_location(url)
    manifest = read_manifest(location)
    records = listed_files(manifest)
    lengths = {name: record.bytes for name, record in records.items()}
    checksums = {name: record.crc32c for name, record in records.items()}
    return RemotePath(RemoteFiles(location, lengths, cache_bytes, disk, checksums), PurePosixPath()), manifest


def read_manifest(location: Location) -> Manifest:
    """Return the manifest of the dataset at a location."""
    try:
        raw, _ = location.get(FILE_NAME, max_bytes=MAX_BYTES)
    except SourceNotFoundError as exc:
        told = ("no such bucket", "no such dataset", "no such revision", "HF_HUB_OFFLINE")
        is_told = any(reason in str(exc) for reason in told)
        problem = str(exc).removeprefix(f"{location.url}: ") if is_told else f"expected {FILE_NAME} in it"
        raise DatasetNotFoundError(f"no dataset at {location.url}: {problem}") from exc
    return Manifest.parse(raw, f"{location.url}/{FILE_NAME}")


def seen_manifest(location: Location) -> FileStat | None:
    """Return the version of the manifest at a location, whatever it holds; None if absent."""
    try:
        return location.stat(FILE_NAME)
    except SourceNotFoundError:
        return None


def differing(there: Manifest, here: Manifest) -> str | None:
    """Return why two datasets cannot share a location; None if the shards that both have are the same."""
    if different := there.difference(here):
        return different
    ours = {record.name: record.files for record in here.shards}
    for record in there.shards:
        if ours.get(record.name, record.files) != record.files:
            return f"its shard {record.name} has other files there"
    return None


def listed_files(manifest: Manifest) -> dict[str, FileRecord]:
    """Return every file of the shards, by its name below the dataset."""
    return shard_files(*manifest.shards)


def shard_files(*shards: ShardRecord) -> dict[str, FileRecord]:
    """Return the files of shards, by their names below the dataset."""
    return {f"{SHARDS}/{shard.name}/{name}": file for shard in shards for name, file in shard.files.items()}


def small_copies(manifest: Manifest) -> tuple[str, Sequence[str]]:
    """Return the name of the file with copies of small files that fits a manifest, and the order of these."""
    files = listed_files(manifest)
    return small_files(
        {name: record.bytes for name, record in files.items()}, {name: record.crc32c for name, record in files.items()}
    )


def discard(path: Path) -> None:
    """Remove the leftovers of an interrupted replacement of a dataset."""
    swept = path / SWEPT
    remove(swept)
    if is_there(path / NEW):
        # Renamed first: a worker that outlives its killed writer for a moment could add a file meanwhile.
        remove((path / NEW).rename(swept))


def abandon(path: Path) -> None:
    """Remove the files of a new dataset; listed shards are kept, and named."""
    place = path / NEW
    if not is_there(place / FILE_NAME):
        discard(path)
    elif not _is_listed(path, _renamed(Manifest.load(place))):
        logger.warning("%s is unchanged; finished shards of the new dataset are in %s", path, place)


def take_place(path: Path) -> None:
    """Replace a dataset, which the caller has claimed, by the complete one in its ``.new``."""
    listed = Manifest.load(path / NEW)
    under_other_names = _renamed(listed)
    (path / SHARDS).mkdir(exist_ok=True)
    remove(path / JOURNAL)
    try:
        for record, renamed in zip(listed.shards, under_other_names.shards, strict=True):
            remove(path / SHARDS / renamed.name)
            (path / NEW / SHARDS / record.name).rename(path / SHARDS / renamed.name)
        sync(path / SHARDS)
        under_other_names.save(path)
    except BaseException:
        settle(path)
        raise
    _name(path, listed)


def settle(path: Path) -> None:
    """Finish, or undo, the last step of a replacement that was interrupted in it.

    Raises:
        FileAccessError: a link or a device has a name of rlx; nothing is changed.
    """
    check_entries(path, is_own)
    for name in (SOURCE_FILES, NEW, f"{NEW}/{SHARDS}"):
        check_entries(path / name)
    if not is_there(path / NEW / FILE_NAME):
        return
    listed = Manifest.load(path / NEW)
    under_other_names = _renamed(listed)
    if listed.shards and _is_listed(path, under_other_names):
        _name(path, listed)
        return
    if _is_listed(path, listed):
        _keep(path / SHARDS, listed)
        discard(path)
        return
    for record, renamed in zip(listed.shards, under_other_names.shards, strict=True):
        if is_there(moved := path / SHARDS / renamed.name):
            moved.rename(path / NEW / SHARDS / record.name)


def _renamed(listed: Manifest) -> Manifest:
    names = {record.name: f"new-{number:08d}" for number, record in enumerate(listed.shards)}
    shards = [replace(record, name=names[record.name]) for record in listed.shards]
    return replace(listed, shards=shards, planned=[names.get(name, name) for name in listed.planned])


def _is_listed(path: Path, wanted: Manifest) -> bool:
    try:
        return list(Manifest.load(path).shards) == list(wanted.shards)
    except DatasetError:
        return False  # a damaged manifest, which is not the new one's


def _name(path: Path, listed: Manifest) -> None:
    under_other_names = _renamed(listed)
    _keep(path / SHARDS, under_other_names)
    for record, renamed in zip(listed.shards, under_other_names.shards, strict=True):
        linked = path / SHARDS / f"{record.name}.partial"
        _link_tree(path / SHARDS / renamed.name, linked)
        sync_tree(linked)
        linked.rename(path / SHARDS / record.name)
    sync(path / SHARDS)
    listed.save(path)
    _keep(path / SHARDS, listed)
    discard(path)


def _link_tree(directory: Path, copy: Path) -> None:
    for folder, _, names in walk(directory):
        made = copy / os.path.relpath(folder, directory)
        made.mkdir()
        for name in names:
            try:
                os.link(f"{folder}/{name}", made / name)
            except OSError:  # a file system without hard links
                shutil.copyfile(f"{folder}/{name}", made / name)


def _keep(shards: Path, listed: Manifest) -> None:
    names = listed.listed
    for entry in shards.iterdir():
        if entry.is_dir() and entry.name not in names:
            # Renamed first: NFS and FUSE keep directories whose files somebody reads, and others need the name.
            swept = entry if entry.suffix == ".swept" else entry.with_name(f"{entry.name}.{os.getpid()}.swept")
            try_remove(entry.rename(swept))


CLAIM = "rlx.json.pushing"


@contextmanager
def claimed_for(location: WritableLocation, manifest: Manifest, *, overwrite: bool) -> Iterator[None]:
    """Prevent pushes of two datasets to one location.

    The claim is that one's manifest. It stays when its push is interrupted, because files of it are there; a push of
    the same dataset, or of its continuation, takes it over: that writes the same under the same names.

    Args:
        overwrite: whether to take over any claim; ``check_claim`` then fails for its previous owner.
    """
    seen = _seen(location, manifest, overwrite=overwrite)
    if not location.replace(CLAIM, manifest.encode(), seen=seen):
        raise DatasetLockedError(f"{location.url}: another push to it is starting", hint="run the same command again")
    try:
        yield
    except DatasetExistsError:  # known before anything is sent
        _release(location)
        raise
    _release(location)


def check_claim(location: WritableLocation, manifest: Manifest) -> None:
    """Raise DatasetLockedError if another push has taken over the location."""
    with suppress(SourceNotFoundError):  # another process has moved it; the manifest decides
        content, _ = location.get(CLAIM, max_bytes=MAX_BYTES)
        if content != manifest.encode():
            raise DatasetLockedError(
                f"{location.url}: another push has taken over, of {_parsed(location, content).id}",
                hint="wait for it, then inspect the result: rlx inspect " + location.url,
            )


def _seen(location: WritableLocation, manifest: Manifest, *, overwrite: bool) -> FileStat | None:
    """Return the version of the claim that may be replaced; None if no claim exists."""
    try:
        if overwrite:
            return location.stat(CLAIM)
        content, seen = location.get(CLAIM, max_bytes=MAX_BYTES)
    except SourceNotFoundError:
        return None
    claimed = _parsed(location, content)
    if different := differing(claimed, manifest):
        raise DatasetLockedError(
            f"{location.url}: another dataset, {claimed.id}, is being pushed there, or its push was interrupted: "
            f"{different}",
            hint="wait for it, or run that push again; `overwrite` replaces an abandoned one",
        )
    return seen


def _parsed(location: WritableLocation, content: bytes) -> Manifest:
    return Manifest.parse(content, f"{location.url}/{CLAIM}")


def _release(location: WritableLocation) -> None:
    with suppress(ForbiddenError):  # without permission to delete, a claim equal to the manifest stays
        location.delete([CLAIM])
