"""Policies that remember and say more than their action."""

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule


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


with torch.random.fork_rng():  # importing this draws nothing from a test's generator
    agent = recurrent()
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
