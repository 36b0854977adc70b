"""A shard in a second dataset without a second copy of its bytes, where the file system can do that."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from rlx.errors import CorruptDatasetError
from rlx.files.disk import disk_errors
from rlx.manifest import FileRecord
from rlx.progress import Progress
from rlx.store.raw_file import check_size


def link_shard(shard: Path, files: Mapping[str, FileRecord], directory: Path, progress: Progress) -> None:
    """Put the files of a shard into a new directory of their own: as hard links, or else as copies.

    Shards never change, so sharing is safe; a file removed from one dataset stays in the other. The new names are not
    synced: together, those of many shards take little longer than those of one.

    Args:
        shard: where the shard lies.
        files: what the manifest says of its files; every byte is held against that.
        directory: where they are wanted.
        progress: is advanced in ``bytes``.

    Raises:
        CorruptDatasetError: a file is missing or damaged; partial output is removed.
        DiskFullError: no space is left for a copy; partial output is removed.
    """
    with disk_errors(directory):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        try:
            for name, expected in files.items():
                _link_file(shard / name, expected, directory / name)
                progress.advance("bytes", expected.bytes)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def _link_file(file: Path, expected: FileRecord, name: Path) -> None:
    """Give a file a second name; copy it where that lies elsewhere, or the file system has no hard links."""
    check_size(file, expected.bytes)
    name.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Of a symbolic link the file that it stands for: a link of a link would change with what it points at.
        os.link(file.resolve(), name)
    except OSError:
        shutil.copyfile(file, name)
    found = FileRecord.of(name)
    if found != expected:
        raise CorruptDatasetError(f"{file} is damaged: crc32c {found.crc32c}, expected {expected.crc32c}")
