"""Make files, directories and their names survive a power cut."""

import os
from pathlib import Path
from typing import BinaryIO

from rlx.files.disk import disk_errors, is_there, walk


def make_directories(directory: Path) -> None:
    """Make a directory and its missing parents, unless they are there."""
    missing = [each for each in (directory, *directory.parents) if not is_there(each)]
    directory.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync(made.parent)


def sync_tree(directory: Path) -> None:
    """Make every file and directory of a tree survive a power cut."""
    with disk_errors(directory, "synced"):
        for parent, _, names in walk(directory):
            for name in names:
                sync(f"{parent}/{name}")
            sync(parent)


def sync(path: Path | str) -> None:
    """Make the content of a file, or the renames in a directory, survive a power cut."""
    with disk_errors(path, "synced"):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_file(file: BinaryIO, path: Path) -> None:
    """Make the content of an open file survive a power cut."""
    file.flush()
    with disk_errors(path, "synced"):
        os.fsync(file.fileno())
