"""Outputs of a policy besides its actions: arrays that must be the same in every step, and which of them are kept."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.space import Arrays
from rlx.collector.policy.protocol import Choice
from rlx.collector.rollout.steps import Steps
from rlx.errors import CollectError
from rlx.schema import RESERVED, TEXT

IS_INIT = "is_init"
_FLAGS = {"reward", "terminated", "truncated"}
_KINDS = "biufO"
_GROUPS = ("step", "next", "state")
_Row = tuple[np.dtype[Any], tuple[int, ...]]


class Written:
    """Learns from a policy's first choice what it writes, holds it to that, and lays it into Steps.

    Args:
        num_envs: n.
        taken: names of observations and actions.
        drop: names of the outputs to drop: ``logits``, ``next/value``, or ``params`` for all below it.
    """

    def __init__(self, num_envs: int, taken: Collection[str], drop: Sequence[str] = ()) -> None:
        self._num_envs = num_envs
        self._taken = set(taken)
        self._drop = list(drop)
        self._rows: dict[str, dict[str, _Row]] | None = None
        self._kept: dict[str, list[str]] = {}
        self._state: Arrays = {}

    @property
    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return zeros [n, ...] like the kept state of the policy, by name; empty before its first choice."""
        return self._state

    def put(self, choice: Choice, steps: Steps, where: tuple[NDArray[np.int64], NDArray[np.int64]]) -> None:
        """Write what a policy wrote in one step, but its action and state, into the rows of that step.

        Raises:
            CollectError: it cannot be kept, or is not what the policy wrote in its first step; or something is to be
                dropped that it does not write.
        """
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
        self._state = {name: np.zeros_like(found["state"][name]) for name in self._kept["state"]}
        return {group: {name: (array.dtype, array.shape) for name, array in found[group].items()} for group in _GROUPS}

    def _check(self, group: str, name: str, array: NDArray[Any]) -> None:
        taken = self._taken | RESERVED | _FLAGS | ({IS_INIT} if group != "next" else set())
        if any(_is_below(name, other) or _is_below(other, name) for other in taken):
            raise CollectError(
                f"policy writes {name!r}, which means something else in a step", hint="write it under another key"
            )
        if array.shape[:1] != (self._num_envs,) or array.dtype.kind not in _KINDS:
            raise CollectError(
                f"policy writes {_shown(array)} as {name!r}, expected numbers or texts [{self._num_envs}, ...]: "
                "one row for each environment"
            )


def column(columns: Arrays, name: str, rows: NDArray[Any], length: int) -> NDArray[Any]:
    """Return the array [n, T, ...] for rows [n, ...], made if it is not there."""
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
