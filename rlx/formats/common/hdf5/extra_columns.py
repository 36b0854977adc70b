"""Fields beside those that a format of HDF5 names, kept where ``rlx.formats.common.hdf5.extras`` finds them again."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from rlx.formats.common.exporter import extra_fields
from rlx.formats.common.pieces import Piece
from rlx.schema import Role, Schema


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
        is_info = name.startswith("info/")
        path = f"infos/{name.removeprefix('info/')}" if is_info else name
        if schema[name].role == Role.NEXT and not is_info:
            path = f"next/{name}"
        if name.split("/")[0] in {*taken, "infos"}:
            continue
        columns.append(ExtraColumn(path, name))
        if schema[name].role == Role.OBSERVATION:
            columns.append(ExtraColumn(f"next/{path}", name, is_after=True))
    return columns


def without_room(schema: Schema, columns: Collection[ExtraColumn]) -> list[str]:
    """Return names of the extra fields that have no column."""
    held = {column.name for column in columns}
    return [name for name in extra_fields(schema) if name not in held]
