"""Steps in rows, their arrays named by TED paths: the paths, and which fields the arrays make."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SchemaMismatchError
from rlx.formats.common.fields import ExtraFields, RowType, check_finite, missing_field
from rlx.formats.common.rows.episodes import RowStream
from rlx.schema import SCALAR_COLUMNS, TEXT, Field, Role, Schema, is_action, is_observation

INDEX = "index"
TRAJECTORY = "collector/traj_ids"
MASK = "collector/mask"
EPISODE = "trajectories/episode"
FROM_RESET = "trajectories/from_reset"
CUT = "trajectories/cut"
INIT = "is_init"
TERMINATED, TRUNCATED, DONE = "next/terminated", "next/truncated", "next/done"
# Fields that a scan reads besides the observations, if present.
SCANNED = (TERMINATED, TRUNCATED, DONE, TRAJECTORY, EPISODE, FROM_RESET, CUT, MASK)
_FLAGS = ("terminated", "truncated")
# Keys derived from these at the root of TED, and keys of trajectories.
_DERIVED = frozenset({"index", "done", "terminated", "truncated", *SCANNED})
_SINGLE: RowType = ("bool", ())
_TORN = "does not continue from step to step"


def ted_paths(schema: Schema) -> dict[str, str]:
    """Return TED path of every field; of an observation, that of the observation before the step.

    Example:
        >>> ted_paths(Schema.of(observation=("uint8", (84, 84)), action=("int64", ())))["reward"]
        'next/reward'
    """
    return {name: f"next/{name}" if field.role == Role.NEXT else name for name, field in schema.fields.items()}


@dataclass(frozen=True)
class TedFields:
    """The layout of arrays by TED path.

    Args:
        schema: what one step holds.
        paths: TED path of every field but the flags; of an observation, that of the one before each step.
        after: TED path of the observation after each step, of the observations that have it.
        not_taken: why each of the other arrays is no field.
    """

    schema: Schema
    paths: Mapping[str, str]
    after: Mapping[str, str]
    not_taken: Mapping[str, str]

    @cached_property
    def observations(self) -> list[str]:
        """Names of what a learner sees; any other field may hold anything, NaN included."""
        seen = self.schema.names(Role.OBSERVATION)
        named = [name for name in seen if is_observation(name)]
        return named or [name for name in seen if name.split("/")[0] != "info"]

    @property
    def decides(self) -> list[str]:
        """Names of the observations that tell which step follows which."""
        return [name for name in self.observations if name in self.after]

    @property
    def tells_resets(self) -> bool:
        """Whether a field says of every step whether its episode begins with it."""
        init = self.schema.fields.get(INIT)
        return init is not None and init.dtype == "bool" and math.prod(init.shape) == 1

    @property
    def scanned(self) -> tuple[str, ...]:
        """TED paths that a scan for episodes reads besides the observations, as far as they are there."""
        return (*SCANNED, INIT) if self.tells_resets else SCANNED

    def check(self, name: str, rows: NDArray[Any], place: str, first: int) -> None:
        """Raise CorruptShardError if rows of an observation, an action or the reward have NaN or infinity in them.

        Args:
            name: of the field.
            rows: [n, ...].
            place: their location, for messages.
            first: number of the first row.
        """
        if name == "reward" or is_action(name) or name in self.observations:
            check_finite(rows, place, first)

    def torn(self, names: Collection[str]) -> "TedFields":
        """Return the fields, with ``names`` no longer observations, as their next values are other data.

        Of an info what the environment said after a step is kept, of any other field what stands at the root.
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


class StreamColumns:
    """The rows of an episode that begins at a row of a stream, whose columns are named by TED paths."""

    def __init__(self, stream: RowStream, fields: TedFields, first: int) -> None:
        self._stream = stream
        self._fields = fields
        self._first = first

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Return [stop - start, ...] rows of a field; see ``Columns``."""
        field, path, first = self._fields.schema[name], self._fields.paths[name], self._first + start
        rows = self._stream.rows(path, first, self._first + stop)
        self._fields.check(name, rows, f"{self._stream.path}: {path}", first)
        return rows.reshape(len(rows), *field.shape)

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        """Return [1, ...] the observation after a row."""
        path, first = self._fields.after[name], self._first + row
        rows = self._stream.peek(path, first, first + 1)
        self._fields.check(name, rows, f"{self._stream.path}: {path}", first)
        return rows


def ted_fields(columns: Mapping[str, RowType | None], place: str, seen: Collection[str] = ()) -> TedFields:
    """Return the fields of arrays by TED path.

    Args:
        columns: dtype and shape of the rows of each; None where they are neither numbers nor text.
        place: their location, for messages.
        seen: names of observations, as far as that is known otherwise than by ``next``.

    Raises:
        CorruptShardError: one is missing, or is not what it should be.

    Example:
        >>> columns = {"observation": ("float32", (3,)), "action": ("int64", ()), "next/reward": ("float32", (1,))}
        >>> fields = ted_fields({**columns, "next/done": ("bool", (1,)), "note": None}, "file")
        >>> list(fields.schema), fields.not_taken
        (['observation', 'action', 'reward', 'terminated', 'truncated'], {'note': 'neither numbers nor text'})
    """
    for needed in ("next/reward", DONE if DONE in columns else TERMINATED):
        if needed not in columns:
            raise CorruptShardError(f"{place}: {needed} is missing")
    for path in ("next/reward", *SCANNED):
        _check_single(path, columns.get(path, _SINGLE), place)
    extras = ExtraFields(_FLAGS)
    after: dict[str, str] = {}
    for path, kind in columns.items():
        name = path.removeprefix("next/")
        if path in _DERIVED:
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
        raise CorruptShardError(f"{place}: {missing}{f': {reason}' if reason else ' is missing'}")
    flags = {name: Field("bool", (), Role.NEXT) for name in _FLAGS}
    try:
        schema = Schema(fields | flags)
    except SchemaMismatchError as exc:
        raise CorruptShardError(f"{place}: {exc}") from exc
    return TedFields(
        schema, extras.keys, {name: path for name, path in after.items() if name in fields}, extras.not_taken
    )


def _check_after(fields: Mapping[str, Field], recorded: Collection[str], place: str) -> None:
    """Raise CorruptShardError where next observations are recorded of some observations but not of others."""
    lacking = [name for name, field in fields.items() if field.role == Role.OBSERVATION and name not in recorded]
    if recorded and lacking:
        raise CorruptShardError(f"{place}: next/{lacking[0]} is missing, of other observations it is there")


def _check_single(path: str, kind: RowType | None, place: str) -> None:
    """Raise CorruptShardError unless the rows of a column are one flag or number each."""
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
