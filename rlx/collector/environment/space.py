"""Spaces of an environment as named arrays, and actions drawn at random from a space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlx.errors import CollectError
from rlx.schema import FLAGS, TEXT, Field, Role, Schema

Arrays = dict[str, NDArray[Any]]
Space = spaces.Space[Any]
_MAX_BOUNDS = 64  # Bounds of an image, one per pixel, would fill the manifest.
_DRAWN_AHEAD = 1024


class Fields(spaces.Dict):
    """A ``Dict`` whose keys become separate fields, not parts of ``observation``.

    Example:
        >>> list(leaves(Fields(pixels=spaces.Box(0, 1, (2,)), step_count=spaces.Discrete(9)), "observation"))
        ['pixels', 'step_count']
    """


def leaves(space: Space, name: str) -> dict[str, Space]:
    """Return the leaf spaces of a space, by the names of their fields.

    Example:
        >>> pair = spaces.Dict(goal=spaces.Box(0, 1, (3,)), door=spaces.Discrete(2))
        >>> list(leaves(pair, "observation"))
        ['observation/goal', 'observation/door']
    """
    return dict(_leaves(space, name))


def _leaves(space: Space, name: str) -> Iterator[tuple[str, Space]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, part_name(space, name, key))
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _leaves(part, f"{name}/{number}")
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Text):
        yield name, space
    else:
        raise CollectError(
            f"{name} is of space {space}: expected Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict or Tuple"
        )


def dtype_of(leaf: Space) -> np.dtype[Any]:
    """Return dtype of the arrays of a space without parts: text is an array of objects, each a ``str``."""
    return np.dtype(object if isinstance(leaf, spaces.Text) else leaf.dtype)


def flatten(space: Space, name: str, value: Any) -> Arrays:
    """Return the arrays of a value, or of a batch of values, by the names of their fields.

    Example:
        >>> flatten(spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), "action", (np.array([1]), np.array([2])))
        {'action/0': array([1]), 'action/1': array([2])}
    """
    return dict(_flattened(space, name, value))


def _flattened(space: Space, name: str, value: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _flattened(part, part_name(space, name, key), value[key])
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _flattened(part, f"{name}/{number}", value[number])
    elif isinstance(space, spaces.Text):
        yield name, np.asarray(value).astype(object)
    else:
        yield name, np.asarray(value)


def part_name(space: spaces.Dict, name: str, key: str) -> str:
    """Return the name of the field of a part."""
    return key if isinstance(space, Fields) else f"{name}/{key}"


def schema_of(observation: Space, action: Space) -> Schema:
    """Return the schema of the steps of an environment; rewards are float32, as TED wants them."""
    fields = {name: _field(leaf, Role.OBSERVATION) for name, leaf in leaves(observation, "observation").items()}
    fields |= {name: _field(leaf, Role.STEP) for name, leaf in leaves(action, "action").items()}
    fields["reward"] = Field("float32", (), Role.NEXT)
    return Schema({**fields, **FLAGS})


def _field(leaf: Space, role: Role) -> Field:
    dtype = TEXT if isinstance(leaf, spaces.Text) else dtype_of(leaf).name
    return Field(dtype, tuple(leaf.shape or ()), role, _described(leaf))


def _described(leaf: Space) -> Mapping[str, Any]:
    described: dict[str, Any] = {"type": type(leaf).__name__}
    if isinstance(leaf, spaces.Box):
        described |= {key: bound for key in ("low", "high") if (bound := _bound(getattr(leaf, key))) is not None}
    elif isinstance(leaf, spaces.Discrete):
        described |= {"n": int(leaf.n)} | ({"start": int(leaf.start)} if leaf.start else {})
    elif isinstance(leaf, spaces.MultiDiscrete):
        described["nvec"] = leaf.nvec.tolist()
    elif isinstance(leaf, spaces.Text):
        described |= {"min_length": leaf.min_length, "max_length": leaf.max_length, "charset": leaf.characters}
    return described


def _bound(values: NDArray[Any]) -> Any:
    if not values.size or not np.isfinite(values).all():
        return None
    if (values == values.flat[0]).all():
        return values.flat[0].item()
    return values.tolist() if values.size <= _MAX_BOUNDS else None


class RandomPolicy:
    """A function that draws actions from the space, with a generator per environment.

    So the actions of an environment do not depend on the number of other environments.

    Example:
        >>> policy = RandomPolicy(spaces.Discrete(6), seeds=[1, 2])
        >>> policy(None).shape
        (2,)
    """

    def __init__(self, action_space: Space, seeds: Sequence[int]) -> None:
        self._spaces = [_seeded(action_space, seed) for seed in seeds]
        self._generators = [np.random.default_rng(seed) for seed in seeds]
        self.discrete = action_space if isinstance(action_space, spaces.Discrete) else None
        self._ahead: NDArray[Any] = np.zeros((0, len(seeds)), np.int64)
        self._next = 0

    def __call__(self, observation: Any) -> Any:  # noqa: ARG002  (that is what random means)
        """Return [n, ...] actions."""
        if self.discrete is None:
            return _stacked([space.sample() for space in self._spaces])
        if self._next == len(self._ahead):
            low, n = int(self.discrete.start), int(self.discrete.n)
            drawn = [rng.integers(low, low + n, _DRAWN_AHEAD) for rng in self._generators]
            self._ahead, self._next = np.stack(drawn, 1).astype(self.discrete.dtype), 0
        self._next += 1
        return self._ahead[self._next - 1]


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
