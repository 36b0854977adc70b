"""Suite of everything that records steps: it keeps values as they were given, whoever writes into them later.

A subclass records ``Reusing`` environments with the actions of ``Reuser``, and returns the steps as arrays. The
expected steps are the same for all, so that recorders that pass agree with each other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

STEPS = 4  # of an episode
INFO = ("next/info/t", "next/info/at", "next/info/deep/t")
OUTPUTS = ("past/seen", "next/past/seen", "value")
Columns = Mapping[str, Any]


class Reusing(gymnasium.Env[Any, Any]):
    """Counts its steps; writes into its observation, its info, and the action that it is given, again and again.

    Args:
        parts: whether the observation and the action are dicts.
    """

    shared = np.zeros(1, np.float32)  # by all environments of a process

    def __init__(self, *, parts: bool = False) -> None:
        self._parts = parts
        seen, done = spaces.Box(0, 9, (1,), np.float32), spaces.Box(-1, 99, (1,), np.float32)
        self.observation_space: Any = spaces.Dict(at=seen) if parts else seen
        self.action_space: Any = spaces.Dict(by=done) if parts else done
        self._info: dict[str, Any] = {"t": 0, "at": np.zeros(1), "deep": {"t": 0}}
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._t = 0
        return self._told()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        number = action["by"] if self._parts else action
        np.clip(number, -1, 1, out=number)
        observation, info = self._told()
        return observation, float(number[0]), self._t == STEPS, False, info

    def _told(self) -> tuple[Any, dict[str, Any]]:
        self.shared[:] = self._info["at"][:] = self._info["t"] = self._info["deep"]["t"] = self._t
        return {"at": self.shared} if self._parts else self.shared, self._info


def reusing_parts() -> Reusing:
    return Reusing(parts=True)


class Reuser:
    """A policy of TensorDicts with a history of two observations, that writes into all that it is given, and gives the
    same tensors again and again. Its actions are 3 more than the observation, which the environment clips to 1.
    """

    in_keys = ("observation", ("past", "seen"))
    out_keys = ("action", ("next", "past", "seen"), "value")
    initial_state: Mapping[Any, Any] = {("past", "seen"): torch.zeros(2)}

    def __init__(self) -> None:
        self._own: dict[str, torch.Tensor] = {}

    def __call__(self, td: Any) -> Any:
        seen, past = td["observation"], td["past", "seen"]
        # Out of the history, and into it, in place.
        past.copy_(torch.cat([past[:, 1:], seen + 1], 1))
        td["action"] = self._again("action", seen + 3)
        td["next", "past", "seen"] = self._again("seen", past)
        td["value"] = self._again("value", seen * 2)
        seen.sub_(100)
        if (starts := td.get("is_init", None)) is not None:
            starts.fill_(True)
        return td

    def _again(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return self._own.setdefault(name, torch.zeros_like(values)).copy_(values)


def expected(steps: int) -> dict[str, Any]:
    """The steps of whole episodes, of one environment after the other."""
    t = np.arange(steps) % STEPS
    return {
        "observation": t,
        "next/observation": t + 1,
        "action": t + 3,
        "next/reward": np.ones(steps),
        "next/done": t == STEPS - 1,
        "past/seen": np.stack([np.maximum(t - 1, 0), t], 1),
        "next/past/seen": np.stack([t, t + 1], 1),
        "value": t * 2,
        "next/info/t": t + 1,
        "next/info/at": t + 1,
        "next/info/deep/t": t + 1,
    }


class RecorderContract(ABC):
    """What every recorder keeps. Subclasses implement ``record``.

    Attributes:
        lacks: keys that it does not record.
    """

    lacks: Collection[str] = ()

    @abstractmethod
    def record(self, make: Callable[[], Reusing], policy: Any, steps: int) -> Columns:
        """Return whole episodes by keys like those of ``expected``; [S, ...] or [..., S, ...]."""

    @pytest.fixture
    def recorded(self) -> Columns:
        return self.record(Reusing, Reuser(), 2 * STEPS)

    def test_values_are_those_of_their_steps(self, recorded: Columns) -> None:
        for key in expected(0).keys() - set(self.lacks):
            size = 2 if key.endswith("seen") else 1
            rows = np.asarray(recorded[key], np.float64).reshape(-1, size)
            wanted = np.asarray(expected(len(rows))[key], np.float64).reshape(-1, size)
            np.testing.assert_array_equal(rows, wanted, key)
