"""Policies that remember and say more than their action, and an environment whose episodes are short."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule


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


class Remembering(torch.nn.Module):
    """A cell that must never be given nothing."""

    def __init__(self, hidden: int = 5) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(3, hidden)

    def forward(self, observation: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        assert h is not None
        state: torch.Tensor = self.cell(observation, h)
        return state


class Head(torch.nn.Module):
    """Logits of four actions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(features)
        return logits


def actor() -> ProbabilisticTensorDictSequential:
    """Writes logits, action and action_log_prob."""
    return ProbabilisticTensorDictSequential(
        TensorDictModule(Head(3), in_keys=["observation"], out_keys=["logits"]), _drawn()
    )


def recurrent(hidden: int = 5) -> ProbabilisticTensorDictSequential:
    """The same from a memory: reads h, writes ("next", "h")."""
    return ProbabilisticTensorDictSequential(
        TensorDictModule(Remembering(hidden), in_keys=["observation", "h"], out_keys=[("next", "h")]),
        TensorDictModule(Head(hidden), in_keys=[("next", "h")], out_keys=["logits"]),
        _drawn(),
    )


def _drawn() -> ProbabilisticTensorDictModule:
    return ProbabilisticTensorDictModule(
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )


agent = recurrent()
with torch.random.fork_rng():
    torch.manual_seed(0)
    fixed_agent = recurrent()  # the same in every process


def counting(td: TensorDictBase) -> TensorDictBase:
    """A function that counts the steps of an episode, and says so in nested keys."""
    count = td["clock"]
    td["action"] = torch.zeros(td.shape, dtype=torch.int64)
    td["said", "count"] = count.clone()
    td["next", "clock"] = count + 1
    td["next", "double"] = 2 * count
    return td


counting.initial_state = {"clock": torch.tensor(10)}  # type: ignore[attr-defined]


def arrays(observation: Any) -> Any:
    """A function of arrays that gives more than its action."""
    action = np.arange(len(observation)) % 4
    return action, {"value": observation.sum(1), "params": {"scale": np.full((len(observation), 2), 3, np.int16)}}


def says_text(observation: Any) -> Any:
    """A function that gives a text beside the action."""
    n = len(observation)
    return np.zeros(n, np.int64), {"plan": [f"go {lane}" for lane in range(n)]}


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
        self.action_space = spaces.Text(8, min_length=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        at, info = super().reset(seed=seed, options=options)
        return self._seen(at), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert isinstance(action, str)
        at, reward, *rest, info = super().step(len(action))
        return (self._seen(at), reward, *rest, info)  # type: ignore[return-value]

    def _seen(self, at: Any) -> dict[str, Any]:
        return {"at": at, "task": f"lane {self._lane} left {self._left}"}
