"""Fields beside those that a format of HDF5 names: where they are kept, and found again."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.exporter import Piece, extra_fields
from rlx.formats.common.extra_fields import NOT_A_ROW_PER_STEP, NOT_NUMBERS_OR_TEXT, ExtraFields, RowType
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.text import is_text
from rlx.formats.common.provenance import SCHEMA
from rlx.schema import TEXT, Role, Schema

_NEXT = "next/"
_INFOS = "infos/"
_INFO = "info/"  # where a field keeps them


def field_name(path: str) -> str:
    """Return name of the field that a file keeps at a path.

    Example:
        >>> field_name("infos/qpos"), field_name("next/lives"), field_name("params/loc")
        ('info/qpos', 'lives', 'params/loc')
    """
    name = path.removeprefix(_NEXT)
    return _INFO + name.removeprefix(_INFOS) if name.startswith(_INFOS) else name


def find_extras(
    group: h5py.Group,
    paths: Iterable[str],
    rows: int,
    known: Iterable[str],
    notes: Mapping[str, Any],
    place: Callable[[str], str] = str,
) -> tuple[ExtraFields, dict[str, str]]:
    """Return the fields of extra arrays, and where it is kept what those that have it were after each step.

    Args:
        group: that the arrays lie in.
        paths: of the arrays.
        rows: that an array has if it has one per step.
        known: names of the fields that the format itself has.
        notes: what rlx noted when it wrote the file; tells the fields' roles.
        place: where in the group an array of such a path lies.
    """
    extras, after = ExtraFields(known), {}
    told = notes.get(SCHEMA, {})
    found: dict[str, h5py.Dataset] = {}
    for path in paths:
        try:
            found[path] = hdf5_file.dataset(group, place(path))
        except CorruptShardError as exc:
            extras.leave(path, str(exc))
    for path, array in found.items():
        name = field_name(path)
        role = _role(told, name)
        if path.startswith(_NEXT) and path.removeprefix(_NEXT) in found and role == Role.OBSERVATION:
            continue
        if not array.ndim or len(array) != rows:
            extras.leave(path, NOT_A_ROW_PER_STEP)
        elif (kind := row_kind(array)) is None:
            extras.leave(path, NOT_NUMBERS_OR_TEXT)
        elif path.startswith(_NEXT):
            extras.add(path, name, kind, Role.NEXT)
        elif role != Role.OBSERVATION:
            extras.add(path, name, kind, role or Role.STEP)
        elif _NEXT + path in found and row_kind(found[_NEXT + path]) == kind and len(found[_NEXT + path]) == rows:
            if extras.add(path, name, kind, role):
                after[name] = _NEXT + path
        else:
            extras.add(path, name, kind, Role.STEP)
    return extras, after


def leaves_of(group: h5py.Group, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return the paths of all arrays of these names or below them, and the reasons for names without any."""
    leaves: list[str] = []
    left: dict[str, str] = {}
    for name in names:
        if hdf5_file.is_link(group, name):
            left[name] = "leads to another file, or another place in this one"
        else:
            leaves += hdf5_file.leaves(group, name)
    return leaves, left


def rows_in(group: h5py.Group, path: str) -> int:
    """Return rows of an array; -1 where it has none that can be read."""
    try:
        array = hdf5_file.dataset(group, path)
    except CorruptShardError:
        return -1
    return len(array) if array.ndim else -1


def row_kind(array: h5py.Dataset) -> RowType | None:
    """Return dtype and shape of the rows of an array; None where they are neither numbers nor text."""
    if is_text(array):
        return TEXT, array.shape[1:]
    return (array.dtype.name, array.shape[1:]) if hdf5_file.is_numbers(array) else None


def _role(told: Mapping[str, Any], name: str) -> Role | None:
    """Return role that the schema noted in the file gives a field, which may be anything."""
    described = told.get(name)
    try:
        return Role(described["role"]) if isinstance(described, dict) else None
    except (KeyError, ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class ExtraColumn:
    """A dataset of a row per step.

    Args:
        path: where it is kept.
        name: of the field.
        is_after: whether it holds what the field was after each step, of one that has it before each step too.
    """

    path: str
    name: str
    is_after: bool = False

    def rows(self, piece: Piece) -> NDArray[Any]:
        """Return [n] what a piece adds to it."""
        return piece.next(self.name) if self.is_after else piece.rows(self.name)


def extra_columns(schema: Schema, taken: Collection[str]) -> list[ExtraColumn]:
    """Return the columns of the extra fields that a format has room for.

    Args:
        schema: of the steps.
        taken: names at the root that mean something else in the format.

    Example:
        >>> from rlx.schema import Field
        >>> fields = Schema.of(observation=("float32", (3,)), action=("int64", ())).fields
        >>> more = {"info/lives": Field("int64", (), Role.NEXT), "h": Field("float32", (2,), Role.OBSERVATION)}
        >>> [column.path for column in extra_columns(Schema({**fields, **more}), ["actions"])]
        ['infos/lives', 'h', 'next/h']
    """
    columns = []
    for name in extra_fields(schema):
        if name.split("/")[0] in {*taken, "infos"}:
            continue
        is_info = name.startswith(_INFO)
        path = _INFOS + name.removeprefix(_INFO) if is_info else name
        if schema[name].role == Role.NEXT and not is_info:
            path = _NEXT + name
        columns.append(ExtraColumn(path, name))
        if schema[name].role == Role.OBSERVATION:
            columns.append(ExtraColumn(_NEXT + path, name, is_after=True))
    return columns


def without_room(schema: Schema, columns: Collection[ExtraColumn]) -> list[str]:
    """Return names of the extra fields that have no column."""
    held = {column.name for column in columns}
    return [name for name in extra_fields(schema) if name not in held]
