"""The steps of a rollout as arrays by the names of their fields, with the outputs of a policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.intake import Intake
from rlx.collector.environment.space import Arrays
from rlx.collector.policy.protocol import Choice
from rlx.errors import CollectError
from rlx.schema import RESERVED, TEXT

NO_TRAJECTORY = -1
# Environments, and the step of each: arrays, or a slice of all and the number of a step that all make.
Where = tuple[NDArray[np.int64], NDArray[np.int64]] | tuple[slice, int]
Row = tuple[np.dtype[Any], tuple[int, ...]]
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
        remarks: number of steps by remark on what the environment gave; see ``Intake``.
    """

    observation: Arrays
    step: Arrays
    next: Arrays
    final: dict[tuple[int, int], Arrays]
    counts: NDArray[np.int64]
    version: NDArray[np.int64]
    remarks: dict[str, int] = field(default_factory=dict)

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


class Written:
    """Checks a policy's outputs against its first ones, and writes them into Steps.

    Args:
        drop: names of the outputs to drop: ``logits``, ``next/value``, or ``params`` for all below it.
        policy: intake of the policy's values, whose errors name it.
    """

    def __init__(
        self, num_envs: int, taken: Collection[str], drop: Sequence[str] = (), policy: Intake | None = None
    ) -> None:
        self._policy = policy or Intake("policy", is_policy=True)
        self._num_envs = num_envs
        self._taken = set(taken)
        self._drop = list(drop)
        self._rows: dict[str, dict[str, Row]] | None = None
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
                raise self._policy.error(f"writes {sorted(arrays)} in {group}, expected {sorted(rows)} as before")
            for name, row in rows.items():
                if name not in arrays or (arrays[name].dtype, arrays[name].shape) != row:
                    raise self._policy.error(f"writes {_shown(arrays.get(name))} as {name!r}, expected {_of(*row)}")
        for group, columns in (("step", steps.step), ("next", steps.next)):
            for name in self._kept[group]:
                column(columns, name, found[group][name], steps.length)[where] = found[group][name]

    def _learned(self, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, dict[str, Row]]:
        for group in _GROUPS:
            for name, array in found[group].items():
                self._check(group, name, array)
        paths = {
            group: {name: (f"next/{name}" if group == "next" else name) for name in found[group]} for group in found
        }
        every = [path for group in _GROUPS for path in paths[group].values()]
        for dropped in self._drop:
            if not any(is_below(path, dropped) for path in every):
                raise CollectError(f"drop {dropped!r}: the policy writes {', '.join(every) or 'actions alone'}")
        self._kept = {
            group: [name for name, path in paths[group].items() if not any(is_below(path, one) for one in self._drop)]
            for group in _GROUPS
        }
        self.state = {name: np.zeros_like(found["state"][name]) for name in self._kept["state"]}
        self._writes = any(found.values())
        return {group: {name: (array.dtype, array.shape) for name, array in found[group].items()} for group in _GROUPS}

    def _check(self, group: str, name: str, array: NDArray[Any]) -> None:
        taken = self._taken | RESERVED | _FLAGS | ({IS_INIT} if group != "next" else set())
        if any(is_below(name, other) or is_below(other, name) for other in taken):
            raise self._policy.error(
                f"writes {name!r}, which means something else in a step", hint="write it under another key"
            )
        if array.shape[:1] != (self._num_envs,) or array.dtype.kind not in _OUTPUT_KINDS:
            raise self._policy.error(
                f"writes {_shown(array)} as {name!r}, expected numbers or texts [{self._num_envs}, ...]: "
                "one row for each environment"
            )


def column(columns: Arrays, name: str, rows: NDArray[Any], length: int) -> NDArray[Any]:
    """Return the array [n, T, ...] for rows [n, ...]; create it if missing."""
    found = columns.get(name)
    if found is None:
        found = columns[name] = np.zeros((len(rows), length, *rows.shape[1:]), rows.dtype)
    return found


def is_below(name: str, group: str) -> bool:
    """Return whether a name is that of a group, or in it."""
    return name == group or name.startswith(group + "/")


def _shown(array: NDArray[Any] | None) -> str:
    return "nothing" if array is None else _of(array.dtype, array.shape)


def _of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    name = TEXT if dtype.kind == "O" else dtype.name
    return f"{name}{list(shape)}"
