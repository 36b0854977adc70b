"""The steps of a rollout as arrays by the names of their fields, with entries of ``info`` and outputs of a policy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.space import Arrays
from rlx.collector.policy.protocol import Choice
from rlx.errors import CollectError
from rlx.numbers import array_of
from rlx.schema import RESERVED, TEXT, name_of

NO_TRAJECTORY = -1
# Environments, and the step of each: arrays, or a slice of all and the number of a step that all make.
Where = tuple[NDArray[np.int64], NDArray[np.int64]] | tuple[slice, int]
InfoKeys = Collection[str] | Literal["all"]
PREFIX = "info/"
_FINAL = ("final_obs", "final_observation", "final_info")
_KINDS = "biuf"
_Row = tuple[np.dtype[Any], tuple[int, ...]]
# The assumed type of a key that has not appeared by the end of the first batch.
_NUMBER: _Row = (np.dtype(np.float64), ())
IS_INIT = "is_init"
_FLAGS = {"reward", "terminated", "truncated"}
_OUTPUT_KINDS = "biufO"
_GROUPS = ("step", "next", "state")


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of n environments: at most T each.

    Args:
        observation: [n, T + 1, ...]: observations and the policy's state, before each step and after the last one.
        step: [n, T, ...]: the action, ``is_init`` (whether an episode starts with the step), and what the policy wrote
            beside them.
        next: [n, T, ...]: ``reward``, ``terminated``, ``truncated``, and what the policy wrote under ``next``.
        final: of every episode that ended, by environment and step, its last observation and state.
        counts: [n] steps of each environment; the rows after them mean nothing.
        version: [n, T] int64, number of the policy that chose the action, if versions are counted.
    """

    observation: Arrays
    step: Arrays
    next: Arrays
    final: dict[tuple[int, int], Arrays]
    counts: NDArray[np.int64]
    version: NDArray[np.int64]

    @property
    def length(self) -> int:
        """Number of steps T."""
        return int(self.version.shape[1])


class TrajectoryIds:
    """Ids of one worker's trajectories: ``first``, ``first + stride``, ...

    Args:
        first: different for every worker.
    """

    def __init__(self, num_envs: int, first: int = 0, stride: int = 1) -> None:
        self._first = first
        self._stride = stride
        self._running = np.zeros(num_envs, np.int64)
        self._count = 0

    @property
    def next(self) -> int:
        """A number larger than all ids so far."""
        return self._count * self._stride

    def skip_to(self, number: int) -> None:
        """Give no id below this number from the next ``begin`` on."""
        self._count = -(-number // self._stride)

    def begin(self) -> None:
        """Begin a trajectory in every environment."""
        n = len(self._running)
        self._running = np.arange(self._count, self._count + n)
        self._count += n

    def of(self, steps: Steps) -> NDArray[np.int64]:
        """Return [n, T] ids of the next steps; ``NO_TRAJECTORY`` for missing steps."""
        ids = np.full(steps.version.shape, NO_TRAJECTORY, np.int64)
        starts = np.zeros(len(ids), np.int64)
        for at, env in sorted((at, env) for env, at in steps.final):
            ids[env, starts[env] : at + 1] = self._number(env)
            starts[env] = at + 1
            self._running[env], self._count = self._count, self._count + 1
        for env, start in enumerate(starts):
            ids[env, start : steps.counts[env]] = self._number(env)
        return ids

    def state_dict(self) -> dict[str, Any]:
        """Return the running trajectories, and the number begun."""
        return {"running": self._running.tolist(), "count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self._running, self._count = np.array(state["running"], np.int64), state["count"]

    def _number(self, env: int) -> int:
        return int(self._running[env]) * self._stride + self._first


class Infos:
    """Writer of the wanted entries of ``info`` into Steps, under ``info/KEY``.

    The parts of a nested key are joined by ``/``. A lane without the entry has NaN in a float column, 0, False or ""
    in others. A wanted entry that has not appeared by the end of the first batch is taken for a float64 number, NaN
    until it appears.

    Args:
        wanted: keys; or "all" that appear in the first batch and can be kept.

    Attributes:
        seen: keys that have appeared in the first batch, and whether they can be kept.
    """

    def __init__(self, num_envs: int, wanted: InfoKeys = ()) -> None:
        if isinstance(wanted, str) and wanted != "all":
            raise CollectError(f"info_keys {wanted!r}: expected a list of keys, or 'all'")
        self._num_envs = num_envs
        self._wanted = wanted
        self._rows: dict[str, _Row] = {}
        self._is_first = True
        self.seen: dict[str, bool] = {}

    def put(
        self,
        info: Mapping[str, Any],
        ended: NDArray[np.bool_],
        steps: Steps,
        where: Where,
    ) -> None:
        """Write the entries of one step.

        Args:
            ended: [n] bool, the episodes that end with this step.
            steps: the steps to write to.
            where: the environments that made a step, and the number of the step.
        """
        if not self._is_first and not self._rows and self._wanted != "all":
            return
        envs, _ = where
        for name, (rows, mask) in self._columns(info, ended).items():
            if self._is_first:
                self.seen[name] = rows is not None or self.seen.get(name, False)
                if not self._is_wanted(name):
                    continue
            if rows is None:
                if self._wanted == "all":
                    continue
                raise CollectError(
                    f"info {name!r} cannot be kept: expected a number, an array or a text, under keys that are texts"
                )
            to = self._column(name, rows, steps)
            to[where] = self._fitting(name, rows, mask)[envs]

    def settle(self, steps: Steps) -> None:
        """Add the columns that have been written to no step of this batch; after the first batch no key is new."""
        if self._is_first and self._wanted != "all":
            for name in self._wanted:
                if name not in self._rows:
                    self._add(name, _NUMBER)
        self._is_first = False
        for name, (dtype, shape) in self._rows.items():
            if PREFIX + name not in steps.next:
                steps.next[PREFIX + name] = _filled((self._num_envs, steps.length, *shape), dtype)

    def _is_wanted(self, name: str) -> bool:
        return self._wanted == "all" or name in self._wanted

    def _columns(
        self, info: Mapping[str, Any], ended: NDArray[np.bool_]
    ) -> dict[str, tuple[NDArray[Any] | None, NDArray[np.bool_]]]:
        """Return [n, ...] rows, and which lanes have them; of episodes that end, the entries before the reset.

        Those of all entries in the first batch, of the wanted ones later.
        """
        found = {name: (rows, mask) for name, rows, mask in self._entries(info)}
        final = info.get("final_info")
        if not isinstance(final, Mapping):
            return found
        for _, mask in found.values():
            mask &= ~ended  # said by the reset
        for name, rows, mask in self._entries(final):
            others, there = found.get(name, (None, np.zeros(self._num_envs, bool)))
            mask &= ended
            if rows is None or others is None or others.shape != rows.shape:
                found[name] = (rows, mask)
            else:
                at = mask.reshape(-1, *(1 for _ in rows.shape[1:]))
                found[name] = (np.where(at, rows, others), mask | there)
        return {name: (rows, mask) for name, (rows, mask) in found.items() if mask.any()}

    def _entries(self, info: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any] | None, NDArray[np.bool_]]]:
        """Yield key, rows [n, ...] (none if they cannot be kept), and which lanes have it."""
        places: dict[str, tuple[Any, ...]] = {}
        for name, keys, value, mask in _entries(info, self._num_envs):
            if (is_wanted := self._is_wanted(name)) and places.setdefault(name, keys) is not keys:
                found = " and ".join("".join(f"[{key!r}]" for key in place) for place in (places[name], keys))
                raise CollectError(f"info {name!r} appears twice: at {found}, expected one of them")
            if self._is_first or is_wanted:
                can_be_kept = all(isinstance(key, str) for key in keys)
                yield name, _rows(value, mask, self._num_envs) if can_be_kept else None, mask

    def _column(self, name: str, rows: NDArray[Any], steps: Steps) -> NDArray[Any]:
        if name not in self._rows:
            if not self._is_first:
                raise CollectError(
                    f"info {name!r} appeared after the first batch, whose keys 'all' stands for",
                    hint=f"name the keys, {name!r} among them",
                )
            self._add(name, (rows.dtype, rows.shape[1:]))
        dtype, shape = self._rows[name]
        key = PREFIX + name
        if key not in steps.next:
            steps.next[key] = _filled((self._num_envs, steps.length, *shape), dtype)
        return steps.next[key]

    def _add(self, name: str, row: _Row) -> None:
        for other in self._rows:
            upper, lower = sorted((name, other), key=len)
            if _is_below(lower, upper):
                raise CollectError(f"info {lower!r} is below info {upper!r}: expected a value or keys, not both")
        self._rows[name] = row

    def _fitting(self, name: str, rows: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
        dtype, shape = self._rows[name]
        if rows.shape[1:] != shape or not np.can_cast(rows.dtype, dtype, "same_kind"):
            raise CollectError(
                f"info {name!r} is {rows.dtype}{list(rows.shape[1:])}, expected {dtype}{list(shape)} as before"
            )
        fitting = _filled(rows.shape, dtype)
        fitting[mask] = rows[mask]
        return fitting


def fill_of(dtype: np.dtype[Any]) -> Any:
    """Return the value for steps that lack an entry."""
    return {"f": np.nan, "O": ""}.get(dtype.kind, 0)


def is_unseen(name: str, rows: NDArray[Any]) -> bool:
    """Return whether a column [n, T] stands for an entry of ``info`` that has not appeared yet; see ``Infos``."""
    if not name.startswith(PREFIX) or (rows.dtype, rows.shape[2:]) != _NUMBER:
        return False
    return bool(np.isnan(rows).all())


def _filled(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.full(shape, fill_of(dtype), dtype)


def _entries(
    info: Mapping[Any, Any], num_envs: int, parents: str = "", above: tuple[Any, ...] = ()
) -> Iterator[tuple[str, tuple[Any, ...], Any, NDArray[np.bool_]]]:
    """Yield name, keys, value and [n] mask of each entry."""
    masks = {f"_{key}" for key in info}
    for key, value in info.items():
        if key in masks or (not parents and key in _FINAL):
            continue
        if isinstance(value, Mapping):
            yield from _entries(value, num_envs, f"{parents}{key}/", (*above, key))
            continue
        there = info.get(f"_{key}")
        mask = np.ones(num_envs, bool) if there is None else np.array(there, bool)
        yield f"{parents}{key}", (*above, key), value, mask


def _rows(value: Any, mask: NDArray[np.bool_], num_envs: int) -> NDArray[Any] | None:
    try:
        rows = array_of(value)
    except ValueError:
        return None
    if rows.shape[:1] != (num_envs,) or mask.shape != (num_envs,):
        return None
    if rows.dtype.kind != "O":
        return rows.astype(object) if rows.dtype.kind == "U" else rows if rows.dtype.kind in _KINDS else None
    there = list(rows[mask])
    if there and all(isinstance(one, str) for one in there):
        return rows
    arrays: list[NDArray[Any]] = [
        np.asarray(one) for one in there if isinstance(one, np.ndarray | np.generic | float | int)
    ]
    if not arrays or len(arrays) < len(there) or len({(one.shape, one.dtype) for one in arrays}) > 1:
        return None
    if arrays[0].dtype.kind not in _KINDS:
        return None
    stacked = np.zeros((num_envs, *arrays[0].shape), arrays[0].dtype)
    stacked[mask] = arrays
    return stacked


def flat_keys(keys: Any) -> InfoKeys:
    """Return keys, strings or tuples, as names.

    Example:
        >>> flat_keys(["lives", ("episode", "r")])
        ['lives', 'episode/r']
    """
    if keys is None:
        return ()
    if keys == "all":
        return "all"
    if isinstance(keys, str):
        raise CollectError(f"info_keys {keys!r}: expected a list of keys, or 'all'")
    return [name_of(key) for key in keys]


class Written:
    """Checks a policy's outputs against its first ones, and writes them into Steps.

    Args:
        drop: names of the outputs to drop: ``logits``, ``next/value``, or ``params`` for all below it.
    """

    def __init__(self, num_envs: int, taken: Collection[str], drop: Sequence[str] = ()) -> None:
        self._num_envs = num_envs
        self._taken = set(taken)
        self._drop = list(drop)
        self._rows: dict[str, dict[str, _Row]] | None = None
        self._kept: dict[str, list[str]] = {}
        # Zeros [n, ...] like the kept state of the policy, by name; empty before its first choice.
        self.state: Arrays = {}
        self._writes = True  # until its first choice shows otherwise

    def put(self, choice: Choice, steps: Steps, where: Where) -> None:
        """Write a policy's outputs of one step, except action and state, into the rows of that step."""
        if not (choice.step or choice.next or choice.state or self._writes):
            return
        found = {"step": choice.step, "next": choice.next, "state": choice.state}
        if self._rows is None:
            self._rows = self._learned(found)
        for group, rows in self._rows.items():
            arrays = found[group]
            if len(arrays) != len(rows):
                raise CollectError(f"policy writes {sorted(arrays)} in {group}, expected {sorted(rows)} as before")
            for name, row in rows.items():
                if name not in arrays or (arrays[name].dtype, arrays[name].shape) != row:
                    raise CollectError(f"policy writes {_shown(arrays.get(name))} as {name!r}, expected {_of(*row)}")
        for group, columns in (("step", steps.step), ("next", steps.next)):
            for name in self._kept[group]:
                column(columns, name, found[group][name], steps.length)[where] = found[group][name]

    def _learned(self, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, dict[str, _Row]]:
        for group in _GROUPS:
            for name, array in found[group].items():
                self._check(group, name, array)
        paths = {
            group: {name: (f"next/{name}" if group == "next" else name) for name in found[group]} for group in found
        }
        every = [path for group in _GROUPS for path in paths[group].values()]
        for dropped in self._drop:
            if not any(_is_below(path, dropped) for path in every):
                raise CollectError(f"drop {dropped!r}: the policy writes {', '.join(every) or 'actions alone'}")
        self._kept = {
            group: [name for name, path in paths[group].items() if not any(_is_below(path, one) for one in self._drop)]
            for group in _GROUPS
        }
        self.state = {name: np.zeros_like(found["state"][name]) for name in self._kept["state"]}
        self._writes = any(found.values())
        return {group: {name: (array.dtype, array.shape) for name, array in found[group].items()} for group in _GROUPS}

    def _check(self, group: str, name: str, array: NDArray[Any]) -> None:
        taken = self._taken | RESERVED | _FLAGS | ({IS_INIT} if group != "next" else set())
        if any(_is_below(name, other) or _is_below(other, name) for other in taken):
            raise CollectError(
                f"policy writes {name!r}, which means something else in a step", hint="write it under another key"
            )
        if array.shape[:1] != (self._num_envs,) or array.dtype.kind not in _OUTPUT_KINDS:
            raise CollectError(
                f"policy writes {_shown(array)} as {name!r}, expected numbers or texts [{self._num_envs}, ...]: "
                "one row for each environment"
            )


def column(columns: Arrays, name: str, rows: NDArray[Any], length: int) -> NDArray[Any]:
    """Return the array [n, T, ...] for rows [n, ...]; create it if missing."""
    found = columns.get(name)
    if found is None:
        found = columns[name] = np.zeros((len(rows), length, *rows.shape[1:]), rows.dtype)
    return found


def _is_below(name: str, group: str) -> bool:
    return name == group or name.startswith(group + "/")


def _shown(array: NDArray[Any] | None) -> str:
    return "nothing" if array is None else _of(array.dtype, array.shape)


def _of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    name = TEXT if dtype.kind == "O" else dtype.name
    return f"{name}{list(shape)}"
