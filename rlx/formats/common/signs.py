"""Signs of a format: what a path holds, as data, so that a format is recognised without its reader."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from rlx.errors import CorruptShardError
from rlx.files.disk import listed, opened_file
from rlx.formats.common.source import begins_with

_MOST_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class Sign:
    """What a path has that holds data of a format: all that is given here.

    Args:
        files: names or globs below a directory, each of one file or more.
        begins: first bytes of the first file of ``files``; without these, of the path, a file.
        text: part of the first file of ``files``.
        members: names in an HDF5 file; the last part of one may be a glob.
        archived: names in a zip archive.
        lacks: names in the directory or in the HDF5 file that it does not have.

    Example:
        >>> Sign(files=("meta/info.json",)).is_at(Path("nowhere"))
        False
    """

    files: Sequence[str] = ()
    begins: bytes = b""
    text: bytes = b""
    members: Sequence[str] = ()
    archived: Sequence[str] = ()
    lacks: Sequence[str] = ()

    def is_at(self, path: Path) -> bool:
        """Return whether a path has all of it; False for missing and damaged files."""
        if self.files:
            return self._is_in(path)
        if self.members:
            return self._is_in_hdf5(path)
        if self.archived:
            return _holds_archived(path, self.archived)
        return bool(self.begins) and begins_with(path, self.begins)

    def _is_in(self, directory: Path) -> bool:
        if not directory.is_dir() or any((directory / name).exists() for name in self.lacks):
            return False
        found = [_file(directory, name) for name in self.files]
        if (first := found[0]) is None or None in found or not begins_with(first, self.begins):
            return False
        if not self.text:
            return True
        with opened_file(first) as file:
            return self.text in file.read(_MOST_BYTES)

    def _is_in_hdf5(self, path: Path) -> bool:
        from rlx.formats.common.hdf5 import file as hdf5_file  # and with it h5py

        if not hdf5_file.is_hdf5(path):
            return False
        try:
            with hdf5_file.opened(path) as file:
                for name in self.members:
                    parent, _, last = name.rpartition("/")
                    if "*" not in last:
                        is_there = hdf5_file.has(file, name)
                    else:
                        members = hdf5_file.group(file, parent) if hdf5_file.has(file, parent) else {}
                        is_there = any(fnmatchcase(member, last) for member in hdf5_file.names(members))
                    if not is_there:
                        return False
                return not any(hdf5_file.has(file, name) for name in self.lacks)
        except CorruptShardError:
            return False


def _file(directory: Path, name: str) -> Path | None:
    if "*" in name:
        return next((path for path in listed(directory, name) if path.is_file()), None)
    return path if (path := directory / name).is_file() else None


def _holds_archived(path: Path, names: Sequence[str]) -> bool:
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with opened_file(path) as file, zipfile.ZipFile(file) as archive:
            return {*names} <= {*archive.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return False
