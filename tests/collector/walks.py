"""Environments of short episodes; without torch, which takes a worker's process seconds to import."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Walk(gymnasium.Env[Any, Any]):
    """A random walk; a lane's episodes last 1 to 9 steps and depend on its number alone, not on seeds."""

    def __init__(self, lane: int = 0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._lane = lane
        self._rng = np.random.default_rng(lane)
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._left = int(self._rng.integers(1, 10))
        self._at = self._rng.normal(size=3).astype(np.float32)
        return self._at.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        self._at += self._rng.normal(size=3).astype(np.float32) + np.float32(action)
        is_cut = self._left == 0 and bool(self._rng.integers(2))
        return self._at.copy(), float(action) / 4, self._left == 0 and not is_cut, is_cut, {}


class Talkative(Walk):
    """A walk that says more than its observation: in every step, in some, and at the end of an episode."""

    def __init__(self, lane: int = 0, scale: float = 0.25) -> None:
        super().__init__(lane)
        self._scale = scale
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        self._t = 0
        return observation, {"t": -1, "vector": np.full(2, -1.0)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, _ = super().step(action)
        self._t += 1
        info: dict[str, Any] = {"t": self._t, "vector": np.full(2, self._t / 2), "who": f"lane {self._lane}"}
        if self._t % 2:
            info["odd"] = {"t": float(self._t)}
        if terminated or truncated:
            info["last"] = self._t
        info["object"] = {"a": object()}.items()
        return observation, self._scale * self._t, terminated, truncated, info


class Talking(Walk):
    """A walk that is told and tells in words."""

    def __init__(self, lane: int = 0) -> None:
        super().__init__(lane)
        self.observation_space = spaces.Dict(
            at=self.observation_space, task=spaces.Text(20, charset="abcdefghijklmnopqrstuvwxyz 0123456789")
        )
        # Not gymnasium's default, which before 1.4 draws other texts in every process for the same seed.
        self.action_space = spaces.Text(8, min_length=1, charset="abcdefghijklmnopqrstuvwxyz")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        at, info = super().reset(seed=seed, options=options)
        return self._seen(at), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert isinstance(action, str)
        at, reward, *rest, info = super().step(len(action))
        return (self._seen(at), reward, *rest, info)  # type: ignore[return-value]

    def _seen(self, at: Any) -> dict[str, Any]:
        return {"at": at, "task": f"lane {self._lane} left {self._left}"}


def lane_of_walks() -> Any:
    return SyncVectorEnv([partial(Walk, lane) for lane in range(3)], autoreset_mode=AutoresetMode.SAME_STEP)


def talkative(scale: float = 0.25) -> Any:
    return SyncVectorEnv([partial(Talkative, lane, scale) for lane in range(3)], autoreset_mode=AutoresetMode.NEXT_STEP)


def talkative_lanes(mode: AutoresetMode) -> Any:
    return SyncVectorEnv([partial(Talkative, lane) for lane in range(2)], autoreset_mode=mode)


def talking(lanes: int = 3) -> Any:
    return SyncVectorEnv([partial(Talking, lane) for lane in range(lanes)], autoreset_mode=AutoresetMode.SAME_STEP)
