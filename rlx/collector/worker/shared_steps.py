"""The memory that a worker of this machine shares with its collector: steps one way, weights the other."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.space import Arrays, Space, dtype_of, leaves
from rlx.collector.rollout.steps import IS_INIT, Steps
from rlx.engine.shared_memory import SharedArrays

_OUTCOME = ("reward", "terminated", "truncated")
# Space for last observations: one per this many steps; of shorter episodes, the overflow is sent by value.
_STEPS_A_FINAL = 8


@dataclass(frozen=True, slots=True)
class Description:
    """Metadata of a worker's environment that a collector needs; see ``VectorEnvironment``."""

    num_envs: int
    is_batched: bool
    observation_space: Space
    action_space: Space


@dataclass(frozen=True, slots=True)
class Weights:
    """The policy's weights: the number of ``update_policy_weights_``, and their bytes; none if they are not sent."""

    version: int
    packed: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Shared-memory layout.

    Args:
        length: steps of every environment, at most.
    """

    description: Description
    length: int
    slots: int
    weights: int


@dataclass(frozen=True, slots=True)
class Remainder:
    """The part of a batch of steps that is sent by value.

    Args:
        counts: [n] steps of each environment.
        finals: last observations that overflow the shared memory, and all those of fields that are not shared.
        more: arrays of the steps that have no room: observations, steps and outcomes.
        remarks: see ``Steps``.
    """

    length: int
    counts: NDArray[np.int64]
    ends: list[tuple[int, int]]
    finals: list[Arrays]
    more: tuple[Arrays, Arrays, Arrays]
    remarks: Mapping[str, int]


class SharedSteps:
    """Slots for steps, weights with their version, and the last round that a worker is to stop.

    Args:
        path: of the file that the other process made; a new one if not given.
    """

    def __init__(self, layout: MemoryLayout, path: Path | None = None) -> None:
        self._layout = layout
        self._observations = list(_shared(layout.description.observation_space, "observation"))
        self._actions = list(_shared(layout.description.action_space, "action"))
        self._arrays = SharedArrays(_arrays(layout), path)
        self.path = self._arrays.path

    def unlink(self) -> None:
        """Remove the file's name, when the other process has opened it."""
        self._arrays.unlink()

    def steps(self, slot: int, length: int) -> Steps:
        """Return empty steps [n, T] in a slot."""
        return Steps(
            {name: self._arrays[f"{slot}/{name}"][:, : length + 1] for name in self._observations},
            {name: self._arrays[f"{slot}/{name}"][:, :length] for name in (*self._actions, IS_INIT)},
            {name: self._arrays[f"{slot}/{name}"][:, :length] for name in _OUTCOME},
            {},
            np.zeros(self._layout.description.num_envs, np.int64),
            self._arrays[f"{slot}/version"][:, :length],
        )

    def put(self, slot: int, steps: Steps) -> Remainder:
        """Copy the last observations next to the steps of a slot; return those that do not fit."""
        finals = list(steps.final.values())
        room = _finals(self._layout)
        for row, final in enumerate(finals[:room]):
            for name in self._observations:
                self._arrays[f"{slot}/final/{name}"][row] = final[name]
        overflow = [_without(final, self._observations) for final in finals[:room]] + finals[room:]
        more = (
            _without(steps.observation, self._observations),
            _without(steps.step, [*self._actions, IS_INIT]),
            _without(steps.next, _OUTCOME),
        )
        return Remainder(steps.length, steps.counts, list(steps.final), overflow, more, steps.remarks)

    def get(self, slot: int, remainder: Remainder) -> Steps:
        """Return the steps in a slot; they are valid until the worker is given the slot again."""
        steps = self.steps(slot, remainder.length)
        steps.counts[:] = remainder.counts
        steps.remarks.update(remainder.remarks)
        for table, more in zip((steps.observation, steps.step, steps.next), remainder.more, strict=True):
            table |= more
        room = _finals(self._layout)
        for row, (end, final) in enumerate(zip(remainder.ends, remainder.finals, strict=True)):
            shared = self._observations if row < room else []
            steps.final[end] = {name: self._arrays[f"{slot}/final/{name}"][row] for name in shared} | final
        return steps

    @property
    def edition(self) -> int:
        """How often weights were laid out."""
        return int(self._arrays["edition"])

    def put_weights(self, weights: Weights) -> None:
        """Lay out new weights."""
        with self._arrays.locked():
            self._arrays["weights"][:] = weights.packed
            self._arrays["version"][...] = weights.version
            self._arrays["edition"][...] = self.edition + 1

    def get_weights(self) -> tuple[int, Weights]:
        """Return the edition of the weights, and a copy of them."""
        with self._arrays.locked():
            return self.edition, Weights(int(self._arrays["version"]), self._arrays["weights"].copy())

    def stop(self, number: int) -> None:
        """Have the worker stop, before its next step, the tasks of rounds up to this one."""
        self._arrays["stopped"][...] = number

    def is_stopped(self, number: int) -> bool:
        """Return whether tasks of this round should end with the steps taken so far."""
        return bool(self._arrays["stopped"] >= number)


def _without(arrays: Arrays, names: Collection[str]) -> Arrays:
    return {name: rows for name, rows in arrays.items() if name not in names}


def _finals(layout: MemoryLayout) -> int:
    return layout.description.num_envs * -(-layout.length // _STEPS_A_FINAL)


def _arrays(layout: MemoryLayout) -> Mapping[str, tuple[tuple[int, ...], str]]:
    arrays: dict[str, tuple[tuple[int, ...], str]] = {
        "edition": ((), "int64"),
        "version": ((), "int64"),
        "stopped": ((), "int64"),
        "weights": ((layout.weights,), "uint8"),
    }
    n, length = layout.description.num_envs, layout.length
    for slot in range(layout.slots):
        for name, leaf in _shared(layout.description.observation_space, "observation").items():
            row, dtype = _row(leaf)
            arrays[f"{slot}/{name}"] = ((n, length + 1, *row), dtype)
            arrays[f"{slot}/final/{name}"] = ((_finals(layout), *row), dtype)
        for name, leaf in _shared(layout.description.action_space, "action").items():
            row, dtype = _row(leaf)
            arrays[f"{slot}/{name}"] = ((n, length, *row), dtype)
        arrays[f"{slot}/reward"] = ((n, length), "float32")
        arrays[f"{slot}/version"] = ((n, length), "int64")
        for name in (IS_INIT, "terminated", "truncated"):
            arrays[f"{slot}/{name}"] = ((n, length), "bool")
    return arrays


def _shared(space: Space, name: str) -> dict[str, Space]:
    return {name: leaf for name, leaf in leaves(space, name).items() if not dtype_of(leaf).hasobject}


def _row(leaf: Any) -> tuple[tuple[int, ...], str]:
    return tuple(leaf.shape or ()), np.dtype(leaf.dtype).str
