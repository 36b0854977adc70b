"""Sums of rewards over the steps ahead: n-step transitions, and returns to go."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDictBase

from rlx.buffer.protocol import Keys, Rows
from rlx.buffer.transform.neighbourhood import Reader, pick, pick_steps, wanted
from rlx.errors import TransformError
from rlx.returns import discount, discounted_sum, returns_to_go

_REWARD = ("next", "reward")


@dataclass(frozen=True, slots=True)
class ReturnToGo:
    """Transform that adds the discounted sum of rewards from each step to the end of its stored trajectory.

    Each reward is read once, even if many steps of the batch are in one trajectory.

    Args:
        gamma: discount factor per step.
        key: key of the sum: float32 [n, 1].

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


_REWARD = ("next", "reward")


@dataclass(frozen=True, slots=True)
class NStep:
    """Transform of each step to a transition over n steps, or fewer at the end of its trajectory.

    ``next`` becomes that of the last of these steps (observation, flags and all other keys), and
    ``("next", "reward")`` the discounted sum of their rewards. Adds ``steps_to_next_obs`` (int64 [n, 1], the number
    of steps), ``gamma`` (float32 [n, 1], the discount of the next observation's value: gamma to the power of that
    number) and ``("next", "original_reward")``. Transitions stop at terminations, at truncations, and at the newest
    stored step.

    Args:
        n: steps per transition.
        gamma: discount factor per step.

    Example:
        >>> data = rlx.open("cartpole")
        >>> buffer = rlx.ReplayBuffer(storage=data, transform=rlx.buffer.NStep(3, gamma=0.5), batch_size=8)
        >>> step = buffer[0]
        >>> float(step["next", "reward"]), bool((step["next", "observation"] == data[2]["next", "observation"]).all())
        (1.75, True)
    """

    n: int
    gamma: float = 0.99

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"{self.n} steps: expected 1 or more")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma {self.gamma}: expected 0 to 1")

    def around(self, rows: Rows, keys: Keys | None, below: Reader) -> TensorDictBase:
        """Return the steps at these rows, each made to span n."""
        batch = below.read(rows, keys)
        if not (wanted("gamma", keys) or any(wanted(key, keys) for key in batch.keys(True) if key[0] == "next")):
            return batch
        ahead = below.index.follow(rows, self.n)
        inside = ahead >= 0
        count = inside.sum(1)
        last, position = np.unique(ahead[np.arange(len(rows)), count - 1], return_inverse=True)
        after = below.read(last, ["next"] if wanted("next", keys) else keys)
        device = batch.device
        batch.set("next", pick_steps(after.get("next"), position))
        batch.set("steps_to_next_obs", torch.from_numpy(count[:, None]).to(device))
        batch.set("gamma", torch.from_numpy(discount(count, self.gamma)).to(device))
        if wanted(_REWARD, keys):
            rewards = self._rewards(below, rows, ahead, inside)
            batch.set(("next", "original_reward"), rewards[:, 0])
            batch.set(_REWARD, discounted_sum(rewards.unbind(1), self.gamma))
        return batch

    def _rewards(
        self, below: Reader, rows: Rows, ahead: Rows, inside: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    ) -> torch.Tensor:
        """Return [n, steps, *shape] the rewards of each step and of those after it; 0 after the last."""
        distinct, position = np.unique(np.where(inside, ahead, rows[:, None]), return_inverse=True)
        reward = below.read(distinct, [_REWARD]).get(_REWARD)
        rewards = pick(reward, position.reshape(-1)).reshape(*ahead.shape, *reward.shape[1:])
        if not inside.all():
            rewards[torch.from_numpy(~inside).to(rewards.device)] = 0
        return rewards
