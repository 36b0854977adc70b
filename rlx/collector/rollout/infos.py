"""Entries of ``info`` as columns of steps: of one environment or several, by key or by environment."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.intake import At, Intake
from rlx.collector.environment.lanes import FINAL_OBS, add_info
from rlx.collector.environment.vector import Outcome
from rlx.collector.rollout.steps import Row, Steps, Where, is_below
from rlx.errors import CollectError
from rlx.numbers import array_of
from rlx.schema import name_of

InfoKeys = Collection[str] | Literal["all"]
PREFIX = "info/"
_FINAL = "final_info"
_KINDS, _WHOLE = "biuf", "biu"
# Types of values whose array has a dtype that holds them all; of int, if none is too large.
_ALIKE, _EXACT = ({int}, {float}, {bool}), (np.int64, np.float64, np.bool_)
# The assumed type of a key that has not appeared by the end of the first batch.
_NUMBER: Row = (np.dtype(np.float64), ())
# Columns [n, T] of a batch: whether a step has an entry whose dtype has no NaN.
_HAS = "has "


class _Entry(NamedTuple):
    """An entry of the infos of one step.

    Args:
        keys: from the root to it.
        rows: [n, ...]; None if they cannot be kept.
        mask: [n] bool, the environments that have it.
    """

    keys: tuple[Any, ...]
    rows: NDArray[Any] | None
    mask: NDArray[np.bool_]


class Infos:
    """Writer of the wanted entries of ``info`` into Steps, under ``info/KEY``.

    The parts of a nested key are joined by ``/``. A step without the entry has NaN, or "" if it is a text. So whole
    numbers and flags are float64 if a step of the first batch lacks them, and a wanted entry that has not appeared by
    then is, too.

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
        self._rows: dict[str, Row] = {}
        self._is_first = True
        self.seen: dict[str, bool] = {}

    def put(self, outcome: Outcome, steps: Steps, where: Where, intake: Intake, step: int) -> None:
        """Write the entries of one step.

        Args:
            outcome: of the step.
            steps: the steps to write to.
            where: the environments whose rows are written, and the number of the row.
            intake: takes over what the environment gives.
            step: number of the step, for messages.

        Raises:
            CollectError: an entry cannot be kept, or its column would change it.
        """
        if not self._is_first and not self._rows and self._wanted != "all":
            return
        envs, _ = where
        for name, (_, rows, mask) in self._entries(outcome, intake, step).items():
            if self._is_first:
                self.seen[name] = rows is not None or self.seen.get(name, False)
                if not self._is_wanted(name):
                    continue
            if rows is None:
                if self._wanted == "all" and name not in self._rows:
                    continue
                raise intake.error(
                    f"gave info {name!r}, which cannot be kept: expected a number, an array or a text, under keys that "
                    "are texts",
                    At(step, int(mask.argmax())),
                )
            to = self._column(name, rows, steps)
            to[where] = self._fitting(name, rows, mask, intake, step)[envs]
            if to.dtype.kind in _WHOLE:
                steps.next[_HAS + name][where] = mask[envs]

    def settle(self, steps: Steps, intake: Intake, step: int) -> None:
        """Add the columns that have been written to no step of this batch, and see to steps without an entry; after the
        first batch no key is new.

        Args:
            steps: the steps of the batch.
            intake: takes over what the environment gives.
            step: number of the last step, for messages.

        Raises:
            CollectError: a step lacks an entry whose dtype has no NaN.
        """
        if self._is_first and self._wanted != "all":
            for name in self._wanted:
                if name not in self._rows:
                    self._add(name, _NUMBER)
        for name, (dtype, shape) in self._rows.items():
            key, size = PREFIX + name, (self._num_envs, steps.length)
            column = steps.next.setdefault(key, _filled((*size, *shape), dtype))
            if dtype.kind in _WHOLE:
                has = steps.next.pop(_HAS + name, np.zeros(size, bool))
                lacks = ~has & (np.arange(steps.length) < steps.counts[:, None])
                if lacks.any():
                    env, at = np.argwhere(lacks)[0].tolist()
                    place = At(step - int(steps.counts[env]) + at + 1, env)
                    if not self._is_first:
                        raise intake.error(
                            f"gave no info {name!r}, which all steps of the first batch had, so that it is stored as "
                            f"{dtype}, which has no value for a step without it",
                            place,
                        )
                    self._rows[name] = (_NUMBER[0], shape)
                    numbers = steps.next[key] = intake.cast(f"info {name!r}", column, _NUMBER[0], At(place.step), 2)
                    numbers[~has] = np.nan
        self._is_first = False

    def _is_wanted(self, name: str) -> bool:
        return self._wanted == "all" or name in self._wanted

    def _entries(self, outcome: Outcome, intake: Intake, step: int) -> dict[str, _Entry]:
        """Return the entries by name: all in the first batch, the wanted ones later.

        Of episodes that end, they are those of the last step, also if the environment was reset in it.
        """
        info = _by_key(outcome.info, self._num_envs, intake, step)
        ended, recorded, final = outcome.terminated | outcome.truncated, outcome.recorded, info.get(_FINAL)
        every = np.ones(self._num_envs, bool) if recorded is None else recorded
        found: dict[str, _Entry] = {}
        of_step = {} if final is None else dict.fromkeys(outcome.of_reset, every & ~ended)
        for name, entry in self._flat(info, every, of_step, intake, step):
            found[name] = entry
        if final is not None:
            for name, entry in self._flat(
                _by_key(final, self._num_envs, intake, step), every & ended, {}, intake, step
            ):
                found[name] = _merged(found.get(name), entry)
        return {name: entry for name, entry in found.items() if entry.mask.any()}

    def _flat(
        self,
        info: Mapping[Any, Any],
        mask: NDArray[np.bool_],
        masks: Mapping[Any, NDArray[np.bool_]],
        intake: Intake,
        step: int,
    ) -> Iterator[tuple[str, _Entry]]:
        places: dict[str, tuple[Any, ...]] = {}
        for keys, value, there in _leaves(info, mask):
            name = "/".join(map(str, keys))
            if (is_wanted := self._is_wanted(name)) and places.setdefault(name, keys) is not keys:
                found = " and ".join("".join(f"[{key!r}]" for key in place) for place in (places[name], keys))
                raise intake.error(f"gave info {name!r} twice: at {found}, expected one of them", At(step))
            if self._is_first or is_wanted:
                there = there & masks.get(keys[0], there)
                can_be_kept = all(isinstance(key, str) for key in keys)
                rows, there = self._rows_of(name, value, there, intake, step)
                yield name, _Entry(keys, rows if can_be_kept else None, there)

    def _rows_of(
        self, name: str, value: Any, mask: NDArray[np.bool_], intake: Intake, step: int
    ) -> tuple[NDArray[Any] | None, NDArray[np.bool_]]:
        """Return values as rows [n, ...], None if they cannot be kept; and which environments have one, not None."""
        try:
            rows = array_of(value)
        except (TypeError, ValueError, RuntimeError):
            return None, mask
        if rows.shape[:1] != (self._num_envs,):
            return None, mask
        if rows.dtype.kind != "O":
            return rows.astype(object) if rows.dtype.kind == "U" else rows if rows.dtype.kind in _KINDS else None, mask
        mask = mask & np.array([one is not None for one in rows])
        there = list(rows[mask])
        if all(isinstance(one, str) for one in there):
            return rows, mask
        if len(there) == len(rows) and {*map(type, there)} in _ALIKE and (alike := np.array(there)).dtype in _EXACT:
            return alike, mask
        try:
            arrays = [array_of(one) for one in there]
        except (TypeError, ValueError, RuntimeError):
            return None, mask
        if len({one.shape for one in arrays}) > 1 or not all(one.dtype.kind in _KINDS for one in arrays):
            return None, mask
        stacked = np.zeros((self._num_envs, *arrays[0].shape), np.result_type(*arrays))
        for env, one in zip(mask.nonzero()[0].tolist(), arrays, strict=True):
            is_same = one.dtype == stacked.dtype
            stacked[env] = one if is_same else intake.cast(f"info {name!r}", one, stacked.dtype, At(step, env), 0)
        return stacked, mask

    def _column(self, name: str, rows: NDArray[Any], steps: Steps) -> NDArray[Any]:
        if name not in self._rows:
            if not self._is_first:
                raise CollectError(
                    f"info {name!r} appeared after the first batch, whose keys 'all' stands for",
                    hint=f"name the keys, {name!r} among them",
                )
            self._add(name, (rows.dtype, rows.shape[1:]))
        dtype, shape = self._rows[name]
        key, size = PREFIX + name, (self._num_envs, steps.length)
        if key not in steps.next:
            steps.next[key] = _filled((*size, *shape), dtype)
            if dtype.kind in _WHOLE:
                steps.next[_HAS + name] = np.zeros(size, bool)
        return steps.next[key]

    def _add(self, name: str, row: Row) -> None:
        for other in self._rows:
            upper, lower = sorted((name, other), key=len)
            if is_below(lower, upper):
                raise CollectError(f"info {lower!r} is below info {upper!r}: expected a value or keys, not both")
        self._rows[name] = row

    def _fitting(
        self, name: str, rows: NDArray[Any], mask: NDArray[np.bool_], intake: Intake, step: int
    ) -> NDArray[Any]:
        dtype, shape = self._rows[name]
        is_alike = np.can_cast(rows.dtype, dtype, "same_kind") and (rows.dtype.kind == "O") == (dtype.kind == "O")
        if rows.shape[1:] != shape or not is_alike:
            raise intake.error(
                f"gave info {name!r} of {rows.dtype}{list(rows.shape[1:])} {rows[mask][0]}, "
                f"expected {dtype}{list(shape)} as before",
                At(step, int(mask.argmax())),
            )
        fitting = _filled(rows.shape, dtype)
        if rows.dtype != dtype and dtype.kind != "O":
            at = mask.reshape(-1, *(1 for _ in shape))
            rows = intake.cast(f"info {name!r}", np.where(at, rows, 0).astype(rows.dtype), dtype, At(step))
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


def _by_key(info: Any, num_envs: int, intake: Intake, step: int) -> Mapping[Any, Any]:
    """Return infos by key, also those of a list that has a dict, or None, for each environment."""
    if isinstance(info, Mapping):
        return info
    if not isinstance(info, Sequence | np.ndarray) or len(info) != num_envs:
        raise intake.error(
            f"gave info of type {type(info).__name__}: expected a dict, or one for each of {num_envs} environments",
            At(step),
        )
    found: dict[str, Any] = {}
    for env, one in enumerate(info):
        add_info(found, one or {}, env, num_envs)
    return found


def _leaves(
    info: Mapping[Any, Any], mask: NDArray[np.bool_], above: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Any, NDArray[np.bool_]]]:
    """Yield keys, value and [n] mask of each entry; an environment that lacks a dict lacks all in it."""
    masks = {f"_{key}": there for key in info if (there := _mask(info.get(f"_{key}"), len(mask))) is not None}
    for key, value in info.items():
        if key in masks or (not above and key in (*FINAL_OBS, _FINAL)):
            continue
        there = mask & masks.get(f"_{key}", mask)
        if isinstance(value, Mapping):
            yield from _leaves(value, there, (*above, key))
        else:
            yield (*above, key), value, there


def _mask(given: Any, num_envs: int) -> NDArray[np.bool_] | None:
    if given is None or isinstance(given, Mapping):
        return None
    mask = np.asarray(array_of(given))
    return mask.astype(bool) if mask.shape == (num_envs,) and mask.dtype.kind in "bO" else None


def _merged(before: _Entry | None, last: _Entry) -> _Entry:
    """Return an entry of running episodes, and of episodes that ended, which is the last step's."""
    if before is None or before.rows is None or not before.mask.any():
        return last
    if last.rows is None or last.rows.shape != before.rows.shape:
        return last if last.mask.any() else before
    at = last.mask.reshape(-1, *(1 for _ in last.rows.shape[1:]))
    return _Entry(last.keys, np.where(at, last.rows, before.rows), before.mask | last.mask)


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
