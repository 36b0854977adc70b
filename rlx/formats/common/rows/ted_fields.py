"""Steps in rows with arrays by TED path: the paths, the fields that arrays become, and batches to write.

In batches of Arrow's columns the observation after a step is in the next row; only at the end of a trajectory is it in
the row itself, as ``next/observation``, which is null in other rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.exporter import Experience, Piece, small_pieces
from rlx.formats.common.fields import ExtraFields, RowType, check_finite, missing_field, with_flags
from rlx.formats.common.pictures import Arranged, encode
from rlx.formats.common.rows.episodes import RowStream
from rlx.schema import FLAGS, SCALAR_COLUMNS, TEXT, Field, Role, Schema, is_action, is_observation
from rlx.store.foreign_types import arrow_type, from_rows, pyarrow
from rlx.wording import missing as is_missing

# Numbers of rows: of the whole table, or of a trajectory.
INDEX, FRAME = "index", "frame_index"
TRAJECTORY = "collector/traj_ids"
MASK = "collector/mask"
EPISODE = "trajectories/episode"
FROM_RESET = "trajectories/from_reset"
CUT = "trajectories/cut"
INIT = "is_init"
TERMINATED, TRUNCATED, DONE = "next/terminated", "next/truncated", "next/done"
# Fields that a scan reads besides the observations, if present.
SCANNED = (TERMINATED, TRUNCATED, DONE, TRAJECTORY, EPISODE, FROM_RESET, CUT, MASK)
# Keys at the root of TED that follow from others, and keys of trajectories.
DERIVED = frozenset({"index", "done", "terminated", "truncated", *SCANNED})
_SINGLE: RowType = ("bool", ())
_TORN = "does not continue from step to step"
_NUMBER, _FLAG = Field("int64", (), Role.STEP), Field("bool", (), Role.STEP)
# Columns besides the fields: the trajectory and episode of a step, and how that was recorded.
LOCATIONS: Mapping[str, Field] = MappingProxyType(
    {TRAJECTORY: _NUMBER, EPISODE: _NUMBER, FROM_RESET: _FLAG, CUT: _FLAG}
)


def ted_paths(schema: Schema) -> dict[str, str]:
    """Return the TED path of every field; of an observation, that of the one before the step.

    Example:
        >>> ted_paths(Schema.of(observation=("uint8", (84, 84)), action=("int64", ())))["reward"]
        'next/reward'
    """
    return {name: f"next/{name}" if field.role == Role.NEXT else name for name, field in schema.fields.items()}


@dataclass(frozen=True)
class TedFields:
    """The layout of arrays by TED path.

    Args:
        paths: TED path of every field but the flags; of an observation, that of the one before each step.
        after: TED path of the observation after each step, of the observations that have it.
        not_taken: the reason for each of the other arrays.
    """

    schema: Schema
    paths: Mapping[str, str]
    after: Mapping[str, str]
    not_taken: Mapping[str, str]

    @cached_property
    def observations(self) -> list[str]:
        """Names of the observations that a learner sees; other fields may hold anything, NaN included."""
        seen = self.schema.names(Role.OBSERVATION)
        named = [name for name in seen if is_observation(name)]
        return named or [name for name in seen if name.split("/")[0] != "info"]

    @property
    def decides(self) -> list[str]:
        """Names of the observations that determine which step follows which."""
        return [name for name in self.observations if name in self.after]

    @property
    def tells_resets(self) -> bool:
        """Whether a field marks the steps with which episodes begin."""
        init = self.schema.fields.get(INIT)
        return init is not None and init.dtype == "bool" and math.prod(init.shape) == 1

    @property
    def scanned(self) -> tuple[str, ...]:
        """TED paths that a scan for episodes reads besides the observations, if present."""
        return (*SCANNED, INIT) if self.tells_resets else SCANNED

    def check(self, name: str, rows: NDArray[Any], place: str, first: int) -> None:
        """Raise CorruptShardError if rows of an observation, an action or the reward have NaN or infinity in them.

        Args:
            place: their location, for messages.
        """
        if name == "reward" or is_action(name) or name in self.observations:
            check_finite(rows, place, first)

    def torn(self, names: Collection[str]) -> TedFields:
        """Return the fields without the observations ``names``, whose rows do not continue from step to step.

        They become fields of one row per step: an info keeps its value after the step, any other the one before.
        """
        if not names:
            return self
        fields, paths, not_taken = dict(self.schema.fields), dict(self.paths), dict(self.not_taken)
        for name in names:
            is_info = name.split("/")[0] == "info"
            left = self.paths[name] if is_info else self.after[name]
            fields[name] = replace(fields[name], role=Role.NEXT if is_info else Role.STEP)
            paths[name] = self.after[name] if is_info else self.paths[name]
            not_taken[left] = f"{paths[name]} {_TORN}"
        after = {name: path for name, path in self.after.items() if name not in names}
        return TedFields(Schema(fields), paths, after, not_taken)


@dataclass(frozen=True)
class StreamColumns:
    """The rows of an episode that begins at a row of a stream, whose columns are named by TED paths."""

    stream: RowStream
    fields: TedFields
    first: int

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Return [stop - start, ...] rows of a field; see ``Columns``."""
        field, path, first = self.fields.schema[name], self.fields.paths[name], self.first + start
        rows = self.stream.rows(path, first, self.first + stop)
        self.fields.check(name, rows, f"{self.stream.path}: {path}", first)
        return rows.reshape(len(rows), *field.shape)

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        """Return [1, ...] the observation after a row."""
        path, first = self.fields.after[name], self.first + row
        rows = self.stream.peek(path, first, first + 1)
        self.fields.check(name, rows, f"{self.stream.path}: {path}", first)
        return rows


def ted_fields(columns: Mapping[str, RowType | None], place: str, seen: Collection[str] = ()) -> TedFields:
    """Return the fields of arrays by TED path.

    Args:
        columns: dtype and shape of the rows of each; None if they are neither numbers nor text.
        seen: names known to be observations, even without an array in ``next``.

    Raises:
        CorruptShardError: rewards, flags, an observation or an action are missing or of the wrong type.

    Example:
        >>> columns = {"observation": ("float32", (3,)), "action": ("int64", ()), "next/reward": ("float32", (1,))}
        >>> fields = ted_fields({**columns, "next/done": ("bool", (1,)), "note": None}, "file")
        >>> list(fields.schema), fields.not_taken
        (['observation', 'action', 'reward', 'terminated', 'truncated'], {'note': 'neither numbers nor text'})
    """
    for needed in ("next/reward", DONE if DONE in columns else TERMINATED):
        if needed not in columns:
            raise CorruptShardError(is_missing(f"{place}: {needed}", columns))
    for path in ("next/reward", *SCANNED):
        _check_single(path, columns.get(path, _SINGLE), place)
    extras = ExtraFields(FLAGS)
    after: dict[str, str] = {}
    for path, kind in columns.items():
        name = path.removeprefix("next/")
        if path in DERIVED:
            continue
        if path == "reward":
            extras.leave(path, "the reward of a step is next/reward")
        elif path != name and name in columns and name != "reward":
            after[name] = path
        else:
            is_seen = name in seen or f"next/{name}" in columns
            extras.add(path, name, _row_type(name, kind), _role(path, name, is_seen=is_seen))
    fields = extras.fields
    for name, path in after.items():
        if name not in fields:
            extras.leave(path, extras.not_taken[name])
        elif columns[path] != columns[name]:
            raise CorruptShardError(f"{place}: {path}: expected {columns[name]} as {name}, found {columns[path]}")
    _check_after(fields, {*after, *seen}, place)
    if (missing := missing_field(fields)) is not None:
        reason = extras.not_taken.get(missing)
        where = f"{place}: {missing}"
        raise CorruptShardError(f"{where}: {reason}" if reason else is_missing(where, columns))
    schema = with_flags(fields, place)
    return TedFields(
        schema, extras.keys, {name: path for name, path in after.items() if name in fields}, extras.not_taken
    )


def locator_of(columns: Mapping[str, RowType | None]) -> str | None:
    """Return the column that numbers the rows, if any.

    Example:
        >>> locator_of({"frame_index": ("int64", ()), "action": ("int64", ())})
        'frame_index'
    """
    kinds = {name: columns.get(name) or ("", ()) for name in (INDEX, FRAME)}
    return next((name for name, (dtype, shape) in kinds.items() if "int" in dtype and shape in ((), (1,))), None)


def scanned_columns(fields: TedFields, columns: Mapping[str, RowType | None]) -> tuple[list[str], str | None]:
    """Return the columns that a scan for episodes reads besides the observations, and the one that numbers the rows."""
    locator = locator_of(columns)
    return [name for name in (*fields.scanned, locator) if name is not None and columns.get(name)], locator


def _check_after(fields: Mapping[str, Field], recorded: Collection[str], place: str) -> None:
    """Raise CorruptShardError if only some observations have next observations."""
    lacking = [name for name, field in fields.items() if field.role == Role.OBSERVATION and name not in recorded]
    if recorded and lacking:
        raise CorruptShardError(f"{place}: next/{lacking[0]} is missing, but other observations have theirs")


def _check_single(path: str, kind: RowType | None, place: str) -> None:
    if kind is None or kind[0] == TEXT or kind[1] not in ((), (1,)):
        found = "no numbers" if kind is None or kind[0] == TEXT else f"{kind[0]}{list(kind[1])}"
        what = "flag" if path in (TERMINATED, TRUNCATED, DONE) else "number"
        raise CorruptShardError(f"{place}: {path}: expected one {what} per step, found {found}")


def _row_type(name: str, kind: RowType | None) -> RowType | None:
    return (kind[0], ()) if kind is not None and name in SCALAR_COLUMNS and kind[1] == (1,) else kind


def _role(path: str, name: str, *, is_seen: bool) -> Role:
    if path != name:
        return Role.NEXT
    return Role.OBSERVATION if is_seen or name.split("/")[0] == "observation" else Role.STEP


def locations(experience: Experience, piece: Piece) -> dict[str, NDArray[Any]]:
    """Return the columns ``LOCATIONS`` [n] of the steps of a piece."""
    cut = bool(experience.trajectories.cut[piece.trajectory])
    values = (piece.trajectory, piece.episode, piece.from_reset, cut)
    return {path: np.full(piece.steps, value) for path, value in zip(LOCATIONS, values, strict=True)}


def step_batches(experience: Experience, pictures: Mapping[str, Arranged] | None = None) -> Iterator[tuple[Any, Piece]]:
    """Yield a record batch of each piece of a trajectory, of at most a MiB of steps, and the piece.

    Args:
        pictures: the observations that become PNG files, in a struct of ``bytes`` and ``path``, by name.
    """
    index = 0
    for piece in small_pieces(experience.blocks(), experience.schema):
        yield _batch(experience, piece, index, pictures or {}), piece
        index += piece.steps


def picture_type() -> Any:
    """Return the Arrow type of a column of pictures."""
    arrow, _ = pyarrow()
    return arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])


def picture_array(pictures: NDArray[np.generic]) -> Any:
    """Return pictures [n, H, W, C] as an Arrow array of PNG files."""
    arrow, _ = pyarrow()
    files = arrow.array(list(encode(pictures)), arrow.binary())
    return arrow.StructArray.from_arrays(
        [files, arrow.nulls(len(pictures), arrow.string())], fields=list(picture_type())
    )


def feature_of(kind: Any) -> dict[str, Any]:
    """Return how the library ``datasets`` describes a column of an Arrow type."""
    arrow, _ = pyarrow()
    if arrow.types.is_struct(kind):
        return {"_type": "Image"}
    if arrow.types.is_fixed_size_list(kind):
        return {"feature": feature_of(kind.value_type), "length": kind.list_size, "_type": "List"}
    if arrow.types.is_list(kind):
        return {"feature": feature_of(kind.value_type), "length": -1, "_type": "List"}
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return {"dtype": names.get(str(kind), str(kind)), "_type": "Value"}


def _batch(experience: Experience, piece: Piece, index: int, pictures: Mapping[str, Arranged]) -> Any:
    arrow, _ = pyarrow()
    schema, count = experience.schema, piece.steps
    columns = {path: _column(piece.rows(name), pictures.get(name)) for name, path in ted_paths(schema).items()}
    for name in schema.names(Role.OBSERVATION):
        recorded = piece.next(name)[count - 1 :] if piece.is_last and piece.final_recorded else piece.data[name][:0]
        field = schema[name]
        kind = picture_type() if name in pictures else arrow_type(field.dtype, field.shape, is_nullable=True)
        nulls = arrow.nulls(count - len(recorded), kind)
        columns[f"next/{name}"] = arrow.concat_arrays([nulls, _column(recorded, pictures.get(name)).cast(kind)])
    columns[INDEX] = from_rows(np.arange(index, index + count))
    columns |= {path: from_rows(rows) for path, rows in locations(experience, piece).items()}
    return arrow.RecordBatch.from_pydict(columns)


def _column(rows: NDArray[np.generic], arranged: Arranged | None) -> Any:
    return from_rows(rows) if arranged is None else picture_array(arranged.arrange(rows))
