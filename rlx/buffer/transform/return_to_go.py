"""Return-to-go: the return of an episode from each step on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDictBase

from rlx.buffer.protocol import Keys, Rows
from rlx.buffer.transform.n_step import NStep
from rlx.buffer.transform.neighbourhood import Reader, wanted
from rlx.errors import TransformError
from rlx.returns import returns_to_go

_REWARD = ("next", "reward")


@dataclass(frozen=True, slots=True)
class ReturnToGo:
    """Transform that adds the discounted sum of the rewards from each step to the end of its trajectory as far as it is
    stored.

    Each reward is read once, also when many steps of the batch lie in one trajectory.

    Args:
        gamma: discount of a step.
        key: where it is put: float32 [n, 1].

    Example:
        >>> transform = rlx.buffer.ReturnToGo(gamma=0.9)
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), transform=transform, batch_size=16)
        >>> buffer.sample()["return_to_go"].shape
        torch.Size([16, 1])
    """

    gamma: float = 1.0
    key: NestedKey = "return_to_go"

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma {self.gamma}: expected 0 to 1")

    def check_earlier(self, earlier: Sequence[Any]) -> None:
        """Raise TransformError if NStep is among the transforms before this one."""
        if any(isinstance(transform, NStep) for transform in earlier):
            raise TransformError("ReturnToGo after NStep would add up rewards several times; put ReturnToGo first")

    def around(self, rows: Rows, keys: Keys | None, below: Reader) -> TensorDictBase:
        """Return the steps at these rows, with their returns to go."""
        batch = below.read(rows, keys)
        if "steps_to_next_obs" in batch.keys():  # noqa: SIM118  (a TensorDict iterates over its batch)
            raise TransformError("ReturnToGo would add up rewards of transitions over n steps several times")
        if wanted(self.key, keys) and len(rows):
            returns = torch.from_numpy(self._returns(rows, below).astype(np.float32)[:, None])
            batch.set(self.key, returns.to(batch.device))
        return batch

    def _returns(self, rows: Rows, below: Reader) -> NDArray[np.float64]:
        """Return [n] the returns to go of rows."""
        remaining = below.index.remaining(rows)
        # Steps of one trajectory have their last step in common; its first one in the batch stands for all of them.
        _, trajectory = np.unique(below.index.after(rows, remaining - 1), return_inverse=True)
        longest = np.zeros(trajectory.max() + 1, np.int64)
        np.maximum.at(longest, trajectory, remaining)
        first = np.zeros(len(longest), np.int64)
        is_first = remaining == longest[trajectory]
        first[trajectory[is_first]] = rows[is_first]
        ahead = below.index.follow(first, int(longest.max()))
        rewards = below.read(ahead[ahead >= 0], [_REWARD]).get(_REWARD).reshape(-1).cpu().numpy()
        returns = returns_to_go(rewards, longest, self.gamma)
        found: NDArray[np.float64] = returns[np.cumsum(longest)[trajectory] - remaining]
        return found
