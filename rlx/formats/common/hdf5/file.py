"""HDF5 files read without trust: every error names the file, and no link is followed.

An HDF5 file may point at other files (links, external storage, virtual datasets), so a stranger's file could read any
file of the user. It may also declare far more than it holds, or contain cycles.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SchemaMismatchError
from rlx.files.disk import check_readable
from rlx.formats.common.fields import flags_of
from rlx.formats.common.hdf5.chunks import check_chunks
from rlx.formats.common.provenance import KEY, read_notes
from rlx.wording import missing as is_missing

_MAX_DEPTH = 16
_MAX_FILLED_BYTES = 2**28
# Exceptions of h5py for a damaged file.
_FAILURES = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError)


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Yield the open file; raises CorruptShardError if it is not HDF5."""
    check_readable(path)
    try:
        file = h5py.File(path, "r")
    except _FAILURES as exc:
        raise _damaged(str(path), exc) from exc
    try:
        yield file
    except SchemaMismatchError as exc:
        raise CorruptShardError(f"{path}: {exc}") from exc
    finally:
        file.close()


def is_hdf5(path: Path) -> bool:
    """Return whether a path is a file that begins like HDF5, even if it is damaged."""
    if not path.is_file():
        return False
    check_readable(path)
    return bool(h5py.is_hdf5(path))


def holds(path: Path, names: Collection[str]) -> bool:
    """Return whether a path is an HDF5 file with members of these names; False for missing and damaged files."""
    if not is_hdf5(path):
        return False
    try:
        with opened(path) as file:
            return all(has(file, name) for name in names)
    except CorruptShardError:
        return False


def group(parent: h5py.Group, name: str) -> h5py.Group:
    """Return the group of this name."""
    found = _member(parent, name)
    if not isinstance(found, h5py.Group):
        raise CorruptShardError(f"{_place(parent, name)}: expected a group, found a dataset")
    return found


def is_group(parent: h5py.Group, name: str) -> bool:
    """Return whether a name is a group of the file's own."""
    with _translated(parent, name):
        return parent.get(name, getclass=True) is h5py.Group and not is_link(parent, name)


def dataset(parent: h5py.Group, name: str) -> h5py.Dataset:
    """Return the dataset of this name; raises CorruptShardError if the file does not hold all its values."""
    found = _member(parent, name)
    if not isinstance(found, h5py.Dataset):
        raise CorruptShardError(f"{_place(parent, name)}: expected a dataset, found a group")
    with _translated(parent, name):
        elsewhere = found.is_virtual or found.external
        size, stored, _ = found.size, found.id.get_storage_size(), found.dtype  # some types cannot be read
        chunks, held = (0, 0) if found.chunks is None else (_chunks(found), found.id.get_num_chunks())
        is_filled = found.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if elsewhere:
        raise CorruptShardError(f"{_place(parent, name)}: its values are in another file")
    # What was never written reads as zeros, unless the file states another value, or zero: then that is meant. Even so,
    # a small file may declare an array of any size without storing it.
    if is_filled and found.nbytes <= _MAX_FILLED_BYTES:
        return found
    if size and not stored:
        raise CorruptShardError(f"{_place(parent, name)}: expected {size:,} values, found none stored")
    if held < chunks:
        raise CorruptShardError(f"{_place(parent, name)}: expected {chunks:,} chunks, found {held:,} stored")
    return found


def _chunks(found: h5py.Dataset) -> int:
    """Return how many chunks a complete dataset has."""
    return math.prod(-(-rows // chunk) for rows, chunk in zip(found.shape, found.chunks, strict=True))


def leaves(parent: h5py.Group, name: str, depth: int = 0) -> list[str]:
    """Return the paths of all datasets in a group, or the name itself if it is a dataset; sorted."""
    found = _member(parent, name)
    if depth > _MAX_DEPTH:
        raise CorruptShardError(f"{_place(parent, name)}: expected groups at most {_MAX_DEPTH} deep")
    if isinstance(found, h5py.Dataset):
        return [name]
    with _translated(parent, name):
        children = sorted(found)
    return [f"{name}/{leaf}" for child in children for leaf in leaves(found, child, depth + 1)]


def read(source: h5py.Dataset, start: int, stop: int) -> NDArray[Any]:
    """Return rows of a dataset, in this machine's byte order."""
    try:
        check_chunks(source, start, stop)
        rows: NDArray[Any] = source[start:stop]
    except _FAILURES as exc:
        raise _damaged(f"{place(source)}, rows {start:,} to {stop:,}", exc) from exc
    return rows if rows.dtype.hasobject else rows.astype(rows.dtype.newbyteorder("="), copy=False)


def integer(parent: h5py.Group, name: str) -> int:
    """Return an attribute as an integer; raises CorruptShardError if it is missing or has another value."""
    with _translated(parent, f"{name} (an attribute)"):
        if (found := attribute(parent, name)) is None:
            raise KeyError("no such attribute")
        return int(np.asarray(found).item())


def has(parent: h5py.Group, name: str) -> bool:
    """Return whether a group, a dataset or a link, which is not followed, has this name."""
    with _translated(parent, name):
        return parent.get(name, getlink=True) is not None


def is_link(parent: h5py.Group, name: str) -> bool:
    """Return whether a name is a soft or external link, which leads elsewhere."""
    with _translated(parent, name):
        return not isinstance(parent.get(name, getlink=True), h5py.HardLink)


def names(parent: h5py.Group) -> list[str]:
    """Return the names of all groups and datasets in a group, sorted."""
    with _translated(parent, ""):
        return sorted(parent)


def numbers(parent: h5py.Group, name: str, *, rows: int | None = None) -> h5py.Dataset:
    """Return the dataset of this name; raises CorruptShardError unless it has rows of numbers, and this many."""
    found = dataset(parent, name)
    if not is_numbers(found):
        raise CorruptShardError(
            f"{_place(parent, name)}: expected rows of numbers, found {found.dtype}{list(found.shape)}"
        )
    if rows is not None and len(found) != rows:
        raise CorruptShardError(f"{_place(parent, name)}: expected {rows:,} rows, found {len(found):,}")
    return found


def place(found: h5py.Dataset) -> str:
    """Return the file and path of a dataset, for messages."""
    return f"{found.file.filename}: {found.name}"


def is_numbers(found: h5py.Dataset) -> bool:
    """Return whether a dataset has rows of numbers that a schema can name."""
    return bool(found.dtype.kind in "biuf" and found.dtype.itemsize <= 8 and found.ndim > 0)


def read_flags(source: h5py.Dataset, start: int, stop: int) -> NDArray[np.bool_]:
    """Return rows of flags; raises CorruptShardError unless each is 0 or 1."""
    return flags_of(read(source, start, stop), place(source), start)


def scalar(parent: h5py.Group, name: str) -> Any:
    """Return the value of a dataset of one number or flag."""
    found = dataset(parent, name)
    if found.size != 1 or found.dtype.kind not in "biuf":
        raise CorruptShardError(f"{_place(parent, name)}: expected one number, found {found.dtype}{list(found.shape)}")
    return np.asarray(read_all(found)).item()


def read_all(source: h5py.Dataset) -> Any:
    """Return all values of a small dataset."""
    try:
        check_chunks(source)
        return source[()]
    except _FAILURES as exc:
        raise _damaged(place(source), exc) from exc


def notes(file: h5py.File) -> Mapping[str, Any]:
    """Return the notes that rlx wrote into the file, if any."""
    return read_notes(attribute(file, KEY))


def attributes(parent: h5py.Group) -> list[str]:
    """Return the names of a group's attributes, sorted."""
    with _translated(parent, "(its attributes)"):
        return sorted(parent.attrs)


def attribute(parent: h5py.Group, name: str) -> Any:
    """Return the attribute of a group with this name; None if absent."""
    from rlx.formats.common.hdf5.text import text_attribute  # it imports this module

    with _translated(parent, f"{name} (an attribute)"):
        if name not in parent.attrs:
            return None
        kind = parent.attrs.get_id(name).dtype
        if kind.hasobject:  # of variable length: damage makes HDF5 loop, or ends the process
            if h5py.check_string_dtype(kind) is None:
                raise ValueError(f"expected numbers or text, found {kind}")
            if (found := text_attribute(parent, name)) is not None:
                return found
        return parent.attrs[name]


def _member(parent: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return the member at a path of hard links: any other link may lead out of the file."""
    found: Any = parent
    with _translated(parent, name):
        for part in name.split("/"):
            link = found.get(part, getlink=True)
            if link is None:
                raise CorruptShardError(is_missing(_place(parent, name), found))
            if not isinstance(link, h5py.HardLink):
                raise CorruptShardError(f"{_place(parent, name)}: leads to another file, or another place in this one")
            found = found[part]
    return found


def _place(parent: h5py.Group, name: str) -> str:
    return f"{parent.file.filename}: {str(parent.name).rstrip('/')}/{name}"


@contextmanager
def _translated(parent: h5py.Group, name: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as exc:
        raise _damaged(_place(parent, name), exc) from exc


def _damaged(where: str, cause: Exception) -> CorruptShardError:
    return CorruptShardError(f"{where} is missing or damaged: {cause.args[0] if cause.args else type(cause).__name__}")
