"""The environments that a rollout drives: several copies of one, stepped together, without steps that only reset."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.space import Space


class Outcome(NamedTuple):
    """The outcome of one step of n environments.

    Args:
        observation: [n, ...] arrays, or a tree of them, as the observation space is: what the next action is chosen
            from; of a new episode where one has ended, but with its reset still to come where ``recorded`` is used.
        reward: [n].
        terminated: [n] bool.
        truncated: [n] bool.
        final_observation: the real last observation of every episode that ended, by number of the environment; a tree.
        recorded: [n] bool, False where the environment was only reset; none where all made a step.
        info: what else was said, as vector environments of gymnasium do: arrays [n, ...] by key, ``_KEY`` [n] bool
            where only some lanes have the key, ``final_info`` of episodes that ended and were reset in the same step.
    """

    observation: Any
    reward: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_observation: Mapping[int, Any]
    recorded: NDArray[np.bool_] | None = None
    info: Mapping[str, Any] = {}


class Environment(Protocol):
    """n copies of an environment.

    Attributes:
        name: for messages and manifests: ``ALE/Pong-v5``.
        num_envs: n.
        is_batched: False for one environment that its user knows without a dimension of n.
        observation_space: of one copy.
        action_space: of one copy.
        settings: what else decides the data, for the manifest.
        spec: what gymnasium made it of, if it did, for the manifest.
    """

    name: str
    num_envs: int
    is_batched: bool
    observation_space: Space
    action_space: Space
    settings: Mapping[str, Any]
    spec: Mapping[str, Any]

    def reset(self, seeds: Sequence[int]) -> Any:
        """Return [n, ...] first observations of new episodes; each environment starts from its seed.

        Raises:
            CollectError: an environment raised something.
        """

    def reset_some(self, which: NDArray[np.bool_]) -> Any:
        """Return [n, ...] observations after new episodes were begun in some environments [n], whatever their state.

        Raises:
            CollectError: an environment raised something, or cannot be reset but together with the others.
        """

    def step(self, actions: Any) -> Outcome:
        """Take a step in every environment; begin a new episode where one ends.

        Raises:
            CollectError: an environment raised something.
        """

    def close(self) -> None:
        """End its processes and threads."""
