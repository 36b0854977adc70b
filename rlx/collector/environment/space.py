"""Spaces of an environment as named arrays: the fields that observations and actions become in a dataset."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlx.errors import CollectError
from rlx.schema import TEXT, Field, Role, Schema

Arrays = dict[str, NDArray[Any]]
Space = spaces.Space[Any]
_MAX_BOUNDS = 64  # Bounds of a picture, one a pixel, would fill the manifest.


class Fields(spaces.Dict):
    """A ``Dict`` whose keys are fields of their own, where those of another are parts of ``observation``.

    Example:
        >>> list(leaves(Fields(pixels=spaces.Box(0, 1, (2,)), step_count=spaces.Discrete(9)), "observation"))
        ['pixels', 'step_count']
    """


def leaves(space: Space, name: str) -> dict[str, Space]:
    """Return the spaces without parts that a space is made of, by the names of their fields.

    Raises:
        CollectError: one of them holds no arrays of one shape.

    Example:
        >>> pair = spaces.Dict(goal=spaces.Box(0, 1, (3,)), door=spaces.Discrete(2))
        >>> list(leaves(pair, "observation"))
        ['observation/goal', 'observation/door']
    """
    return dict(_leaves(space, name))


def _leaves(space: Space, name: str) -> Iterator[tuple[str, Space]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, _part_name(space, name, key))
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
            yield from _flattened(part, _part_name(space, name, key), value[key])
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _flattened(part, f"{name}/{number}", value[number])
    elif isinstance(space, spaces.Text):
        yield name, np.asarray(value).astype(object)
    else:
        yield name, np.asarray(value)


def _part_name(space: spaces.Dict, name: str, key: str) -> str:
    return key if isinstance(space, Fields) else f"{name}/{key}"


def schema_of(observation: Space, action: Space) -> Schema:
    """Return the schema of the steps of an environment; rewards are float32, as TED wants them.

    Raises:
        CollectError: a space holds no arrays of one shape.
        SchemaMismatchError: a name that a dataset could not hold.
    """
    fields = {name: _field(leaf, Role.OBSERVATION) for name, leaf in leaves(observation, "observation").items()}
    fields |= {name: _field(leaf, Role.STEP) for name, leaf in leaves(action, "action").items()}
    fields["reward"] = Field("float32", (), Role.NEXT)
    fields |= {name: Field("bool", (), Role.NEXT) for name in ("terminated", "truncated")}
    return Schema(fields)


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
    """Return a bound as JSON: one number if all are the same; none if they are infinite or many."""
    if not values.size or not np.isfinite(values).all():
        return None
    if (values == values.flat[0]).all():
        return values.flat[0].item()
    return values.tolist() if values.size <= _MAX_BOUNDS else None
