"""Steps in rows, their arrays named by TED paths: which fields they make, and where their episodes begin and end."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SchemaMismatchError
from rlx.schema import SCALAR_COLUMNS, TEXT, Field, Role, Schema
from rlx.source.episode_table import EpisodeTable
from rlx.source.extra_fields import ExtraFields, RowType
from rlx.source.needed_fields import missing_field

TRAJECTORY = "collector/traj_ids"
EPISODE = "trajectories/episode"
FROM_RESET = "trajectories/from_reset"
TERMINATED, TRUNCATED, DONE = "next/terminated", "next/truncated", "next/done"
CUT = "trajectories/cut"
_FLAGS = ("terminated", "truncated")
_OF_STARTS = frozenset({TRAJECTORY, EPISODE, FROM_RESET})
# What follows from these at the root of TED, and what says where the steps belong.
_TOLD = frozenset(
    {"index", "done", "terminated", "truncated", TERMINATED, TRUNCATED, DONE, TRAJECTORY, EPISODE, FROM_RESET, CUT}
)
_SINGLE: RowType = ("bool", ())
Rows = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class TedFields:
    """What arrays by TED path hold.

    Args:
        schema: what one step holds.
        paths: TED path of every field but the flags; of an observation, that of what was seen before.
        after: TED path of what was seen after each step, of the observations that have it.
        not_taken: why each of the other arrays is no field.
    """

    schema: Schema
    paths: Mapping[str, str]
    after: Mapping[str, str]
    not_taken: Mapping[str, str]


def ted_fields(columns: Mapping[str, RowType | None], place: str, seen: Collection[str] = ()) -> TedFields:
    """Return the fields of arrays by TED path.

    Args:
        columns: dtype and shape of the rows of each; None where they are neither numbers nor text.
        place: where they lie, for messages.
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
    for path in ("next/reward", TERMINATED, TRUNCATED, DONE, TRAJECTORY, EPISODE, FROM_RESET, CUT):
        _check_single(path, columns.get(path, _SINGLE), place)
    extras = ExtraFields(_FLAGS)
    after: dict[str, str] = {}
    for path, kind in columns.items():
        name = path.removeprefix("next/")
        if path in _TOLD:
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


def _check_after(fields: Mapping[str, Field], told: Collection[str], place: str) -> None:
    """Raises CorruptShardError where it is told of some observations what was seen next, and of others not."""
    lacking = [name for name, field in fields.items() if field.role == Role.OBSERVATION and name not in told]
    if told and lacking:
        raise CorruptShardError(f"{place}: next/{lacking[0]} is missing, of other observations it is there")


def _check_single(path: str, kind: RowType | None, place: str) -> None:
    """Raises CorruptShardError unless the rows of a column are one flag or number each."""
    if kind is None or kind[0] == TEXT or kind[1] not in ((), (1,)):
        found = "no numbers" if kind is None or kind[0] == TEXT else f"{kind[0]}{list(kind[1])}"
        what = "flag" if path in (TERMINATED, TRUNCATED, DONE) else "number"
        raise CorruptShardError(f"{place}: {path}: expected one {what} a step, found {found}")


def _row_type(name: str, kind: RowType | None) -> RowType | None:
    return (kind[0], ()) if kind is not None and name in SCALAR_COLUMNS and kind[1] == (1,) else kind


def _role(path: str, name: str, *, is_seen: bool) -> Role:
    if path != name:
        return Role.NEXT
    return Role.OBSERVATION if is_seen or name.split("/")[0] == "observation" else Role.STEP


@dataclass(slots=True)
class EpisodeScan:
    """Finds the episodes in rows that come piece by piece.

    An episode ends behind a row with a flag, and where the trajectory's number changes.
    """

    rows: int = 0
    _starts: list[NDArray[np.int64]] = field(default_factory=list)
    _columns: dict[str, list[NDArray[np.generic]]] = field(default_factory=dict)
    _last: Rows = field(default_factory=dict)

    def add(self, rows: Rows, recorded: NDArray[np.bool_], begins: NDArray[np.bool_] | None = None) -> None:
        """Takes the next n rows.

        Args:
            rows: the flags [n] or [n, 1], and if there are such, the numbers of trajectories and episodes.
            recorded: [n] whether it is known what was seen after each row, other than by the next one.
            begins: [n] which rows do not go on from the one before, whatever else is told of them.
        """
        now = self._told(rows, recorded)
        count = len(recorded)
        before = {name: np.concatenate([self._last.get(name, column[:1]), column[:-1]]) for name, column in now.items()}
        starting = before["terminated"].astype(bool) | before["truncated"].astype(bool)
        starting[:1] |= self.rows == 0
        if TRAJECTORY in now:
            starting |= now[TRAJECTORY] != before[TRAJECTORY]
        if begins is not None:
            starting |= begins
        starts = np.flatnonzero(starting)
        self._starts.append(starts + self.rows)
        for name, column in now.items():
            self._columns.setdefault(name, []).append((column if name in _OF_STARTS else before[name])[starts])
        self._last = {name: column[-1:] for name, column in now.items()}
        self.rows += count

    def episodes(self) -> EpisodeTable:
        """The episodes of all rows."""
        if not self.rows:
            return EpisodeTable([], number=0, terminated=False, truncated=False, final_recorded=False)
        starts = np.concatenate(self._starts)
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        numbers = columns.get(EPISODE, columns.get(TRAJECTORY, np.arange(len(starts))))
        resets = columns.get(FROM_RESET, np.ones(len(starts), bool))
        # What ends an episode was noted where the next one begins.
        ends = {name: np.append(columns[name][1:], self._last[name]) for name in (*_FLAGS, "recorded", "cut")}
        ends["final_recorded"] = ends.pop("recorded")
        return EpisodeTable(np.diff(starts, append=self.rows), number=numbers, from_reset=resets, **ends)

    @staticmethod
    def _told(rows: Rows, recorded: NDArray[np.bool_]) -> dict[str, NDArray[np.generic]]:
        flags = {path: rows[path].reshape(-1) != 0 for path in (TERMINATED, TRUNCATED, DONE) if path in rows}
        never = np.zeros(len(recorded), bool)
        truncated = flags.get(TRUNCATED, never)
        terminated = flags.get(TERMINATED, flags.get(DONE, never) & ~truncated)
        if DONE in flags and TERMINATED in flags:
            truncated = truncated | (flags[DONE] & ~terminated)
        cut = rows[CUT].reshape(-1) != 0 if CUT in rows else never
        told = {"terminated": terminated, "truncated": truncated, "recorded": recorded, "cut": cut}
        numbers = {name: rows[name].reshape(-1) for name in (TRAJECTORY, EPISODE, FROM_RESET) if name in rows}
        return {**told, **numbers}


def scan_following(
    batches: Iterable[Rows],
    after: Mapping[str, str],
    recorded: Callable[[Rows], NDArray[np.bool_]],
    *,
    lane: int | None = None,
) -> EpisodeTable:
    """The episodes of rows that each hold what was seen next: another begins where the next row does not begin with it.

    Args:
        batches: the rows piece by piece, ``batch_rows`` each, with flags and observations.
        after: TED path of what was seen after each step, by observation.
        recorded: [n] whether it is known what was seen after each of n rows.
        lane: how many rows belong together, where several environments' lie one behind the other.
    """
    scan = EpisodeScan()
    last: Rows = {}
    for batch in batches:
        known = recorded(batch)
        numbers = np.arange(scan.rows, scan.rows + len(known))
        begins = numbers % lane == 0 if lane else np.zeros(len(known), bool)
        for name, path in after.items():
            before = np.concatenate([last.get(path, batch[path][:1]), batch[path][:-1]])
            begins |= (before != batch[name]).reshape(len(begins), -1).any(1)
        last = {path: batch[path][-1:] for path in after.values()}
        scan.add(batch, known, begins)
    return scan.episodes()
