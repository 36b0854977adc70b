"""Actions of n environments: drawn at random from their space, or checked against it."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlx.collector.environment.space import Space, dtype_of, flatten, leaves
from rlx.errors import CollectError

_DRAWN_AHEAD = 1024


class RandomPolicy:
    """A function that draws actions from the space, for each environment by a generator of its own.

    So the actions of an environment do not depend on the number of other environments.

    Example:
        >>> policy = RandomPolicy(spaces.Discrete(6), seeds=[1, 2])
        >>> policy(None).shape
        (2,)
    """

    def __init__(self, action_space: Space, seeds: Sequence[int]) -> None:
        self._spaces = [_seeded(action_space, seed) for seed in seeds]
        self._generators = [np.random.default_rng(seed) for seed in seeds]
        self._discrete = action_space if isinstance(action_space, spaces.Discrete) else None
        self._ahead: NDArray[Any] = np.zeros((0, len(seeds)), np.int64)
        self._next = 0

    def __call__(self, observation: Any) -> Any:  # noqa: ARG002  (that is what random means)
        """Return [n, ...] actions."""
        if self._discrete is None:
            return _stacked([space.sample() for space in self._spaces])
        if self._next == len(self._ahead):
            low, n = int(self._discrete.start), int(self._discrete.n)
            drawn = [rng.integers(low, low + n, _DRAWN_AHEAD) for rng in self._generators]
            self._ahead, self._next = np.stack(drawn, 1).astype(self._discrete.dtype), 0
        self._next += 1
        return self._ahead[self._next - 1]


class ActionCheck:
    """Converter of a policy's outputs to actions that fit the space; raises if they do not."""

    def __init__(self, action_space: Space, num_envs: int) -> None:
        self._space = action_space
        self._leaves = leaves(action_space, "action")
        self._num_envs = num_envs
        self._is_plain = list(self._leaves) == ["action"]

    def __call__(self, actions: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Return the actions as the environments take them, and their arrays by the names of their fields.

        Raises:
            CollectError: a shape or dtype that does not fit, or a number out of range.
        """
        try:
            found = flatten(self._space, "action", actions)
        except (TypeError, KeyError, IndexError, ValueError, RuntimeError) as exc:
            found_type = type(actions).__name__
            raise CollectError(f"policy gave a {found_type}: expected actions of {self._space} ({exc})") from exc
        fitting = {name: self._fit(name, array) for name, array in found.items()}
        return (fitting["action"] if self._is_plain else actions), fitting

    def _fit(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        leaf = self._leaves[name]
        shape, dtype = (self._num_envs, *(leaf.shape or ())), dtype_of(leaf)
        if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise CollectError(
                f"policy gave {name} of {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)} for {leaf}"
            )
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
            below = array - leaf.start
            limit = leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec
            if (below < 0).any() or (below >= limit).any():
                raise CollectError(f"policy gave {name} {array.tolist()}: expected numbers of {leaf}")
        return array if array.dtype == dtype else array.astype(dtype)


def _seeded(space: Space, seed: int) -> Space:
    copy = deepcopy(space)
    copy.seed(seed)
    return copy


def _stacked(samples: Sequence[Any]) -> Any:
    first = samples[0]
    if isinstance(first, dict):
        return {key: _stacked([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked([sample[number] for sample in samples]) for number in range(len(first)))
    return np.stack(samples)
