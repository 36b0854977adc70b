"""HDF5 read with care: every failure of the library names the file, and nothing leads out of it.

An HDF5 file may point at other files (external links, external storage, virtual datasets); from a stranger's file
that would read whatever they like.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceNotFoundError

# What h5py raises where a file is damaged.
_FAILURES = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError)


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """The open file.

    Raises:
        SourceNotFoundError: there is none.
        CorruptShardError: it is not HDF5, or shorter than it was written.
    """
    if not path.is_file():
        raise SourceNotFoundError(f"{path} is missing")
    try:
        file = h5py.File(path, "r")
    except _FAILURES as exc:
        raise _damaged(str(path), exc) from exc
    try:
        yield file
    finally:
        file.close()


def group(parent: h5py.Group, name: str) -> h5py.Group:
    """The group of this name.

    Raises:
        CorruptShardError: there is none.
    """
    found = _member(parent, name)
    if not isinstance(found, h5py.Group):
        raise CorruptShardError(f"{_place(parent, name)}: expected a group, found a dataset")
    return found


def dataset(parent: h5py.Group, name: str) -> h5py.Dataset:
    """The dataset of this name, which the file itself holds.

    Raises:
        CorruptShardError: there is none, or it lies in another file.
    """
    found = _member(parent, name)
    if not isinstance(found, h5py.Dataset):
        raise CorruptShardError(f"{_place(parent, name)}: expected a dataset, found a group")
    try:
        elsewhere = found.is_virtual or found.external
        size, stored = found.size, found.id.get_storage_size()
    except _FAILURES as exc:
        raise _damaged(_place(parent, name), exc) from exc
    if elsewhere:
        raise CorruptShardError(f"{_place(parent, name)}: its values lie in another file")
    # A file of a kilobyte may declare an array of any size that it holds nothing of.
    if size and not stored:
        raise CorruptShardError(f"{_place(parent, name)}: expected {size:,} values, found none stored")
    return found


def count(parent: h5py.Group) -> int:
    """How many groups and datasets lie in a group."""
    try:
        return len(parent)
    except _FAILURES as exc:
        raise _damaged(_place(parent, ""), exc) from exc


def leaves(parent: h5py.Group, name: str) -> list[str]:
    """Paths below a group of all datasets in it, or the name itself where it is a dataset; sorted."""
    found = _member(parent, name)
    if isinstance(found, h5py.Dataset):
        return [name]
    try:
        children = sorted(found)
    except _FAILURES as exc:
        raise _damaged(_place(parent, name), exc) from exc
    return [f"{name}/{leaf}" for child in children for leaf in leaves(found, child)]


def read(source: h5py.Dataset, start: int, stop: int) -> NDArray[Any]:
    """Rows of a dataset, in this machine's byte order.

    Raises:
        CorruptShardError: they cannot be decoded.
    """
    try:
        rows: NDArray[Any] = source[start:stop]
    except _FAILURES as exc:
        raise _damaged(f"{source.file.filename}: {source.name}, rows {start:,} to {stop:,}", exc) from exc
    return rows if rows.dtype.hasobject else rows.astype(rows.dtype.newbyteorder("="), copy=False)


def attribute(parent: h5py.Group, name: str) -> int:
    """A whole number that a group is marked with.

    Raises:
        CorruptShardError: it is not marked so.
    """
    try:
        return int(np.asarray(parent.attrs[name]).item())
    except _FAILURES as exc:
        raise _damaged(f"{_place(parent, name)} (an attribute)", exc) from exc


def _member(parent: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    try:
        link = parent.get(name, getlink=True)
        found = None if isinstance(link, h5py.ExternalLink) else parent[name]
    except _FAILURES as exc:
        raise _damaged(_place(parent, name), exc) from exc
    if found is None:
        raise CorruptShardError(f"{_place(parent, name)}: leads to another file")
    return found


def _place(parent: h5py.Group, name: str) -> str:
    return f"{parent.file.filename}: {str(parent.name).rstrip('/')}/{name}"


def _damaged(place: str, cause: Exception) -> CorruptShardError:
    return CorruptShardError(f"{place} is missing or damaged: {cause.args[0] if cause.args else type(cause).__name__}")
