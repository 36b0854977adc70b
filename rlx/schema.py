"""The schema of a step: fields by name, each with a dtype, a shape and a role.

A field's name is its path in a TED TensorDict, joined by ``/``: ``observation/achieved_goal``. Its role says where the
path starts and how many rows the field has in a shard of S steps and N trajectories:

===============  ==========================================  ======
role             in TED                                      rows
===============  ==========================================  ======
``observation``  ``observation`` and ``("next", ...)``       S + N
``step``         the root (``action``)                       S
``next``         ``("next", ...)`` (``reward``)              S
===============  ==========================================  ======
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlx.errors import SchemaMismatchError
from rlx.manifest_values import check_space

# TED adds a trailing dimension of 1 to these; stores do not keep it.
Key = str | tuple[Any, ...]
SCALAR_COLUMNS = frozenset({"reward", "terminated", "truncated"})
REQUIRED = MappingProxyType({"reward": "next", "terminated": "next", "truncated": "next"})
RESERVED = frozenset({"collector", "done", "index", "next", "trajectories"})
TEXT = "string"
# A text is stored as a number that refers to the shard's table of distinct texts.
TEXT_CODE_BYTES = 4
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# Not numpy's longdouble, which differs between machines.
DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)
_MAX_DIMENSIONS = 16
_MAX_CHANNELS = 4
_MAX_ROW_BYTES = 2**32


class Role(StrEnum):
    """Position of a field in TED, which determines its number of rows."""

    OBSERVATION = "observation"
    STEP = "step"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class Field:
    """One named array of a step.

    Args:
        dtype: numpy's name of a bool, integer or float type: ``uint8``; or ``string`` for text.
        shape: shape of one row: ``(84, 84)``; ``()`` for a number.
        role: its position in TED.
        space: range of values, as JSON (``{"type": "Discrete", "n": 6}``); None if unknown.
    """

    dtype: str
    shape: tuple[int, ...]
    role: Role
    space: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.is_text:
            self._check_dtype()
        if len(self.shape) > _MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in self.shape):
            raise SchemaMismatchError(f"shape {self.shape!r}: expected at most {_MAX_DIMENSIONS} non-negative integers")
        if self.is_text and 0 in self.shape:
            raise SchemaMismatchError(f"shape {self.shape!r}: expected at least one text in a row")
        if math.prod(max(n, 1) for n in self.shape) * self._item_bytes > _MAX_ROW_BYTES:
            raise SchemaMismatchError(f"shape {self.shape!r}: expected rows of at most {_MAX_ROW_BYTES:,} bytes")

    def _check_dtype(self) -> None:
        # Never numpy's parser: it evaluates parts of the name.
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise SchemaMismatchError(
                f"dtype {self.dtype!r:.80}: expected {TEXT!r} or the name of a bool, integer or float type"
            )

    @classmethod
    def of(cls, rows: NDArray[Any], role: Role, space: Mapping[str, Any] | None = None) -> Self:
        """Return the field whose rows [n, ...] these are; an array of objects is text.

        Example:
            >>> Field.of(np.zeros((5, 2), "uint8"), Role.STEP), Field.of(np.array(["go"], object), Role.NEXT).dtype
            (Field(dtype='uint8', shape=(2,), role=<Role.STEP: 'step'>, space=None), 'string')
        """
        return cls(TEXT if rows.dtype == object else rows.dtype.name, rows.shape[1:], role, space)

    @property
    def is_text(self) -> bool:
        """Whether each value is a text."""
        return self.dtype == TEXT

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Dtype of the field's rows in memory: text is an array of objects, each a ``str``.

        Example:
            >>> Field("string", (), Role.STEP).numpy_dtype, Field("uint8", (2,), Role.STEP).numpy_dtype
            (dtype('O'), dtype('uint8'))
        """
        return np.dtype(object) if self.is_text else np.dtype(self.dtype)

    @property
    def _item_bytes(self) -> int:
        return TEXT_CODE_BYTES if self.is_text else np.dtype(self.dtype).itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, uncompressed; of text, those of its codes (see ``TEXT_CODE_BYTES``)."""
        return math.prod(self.shape) * self._item_bytes

    def zeros(self, rows: int) -> NDArray[Any]:
        """Return rows [rows, ...] of zeros, or of empty texts; they stand for unrecorded values.

        Example:
            >>> Field("string", (), Role.STEP).zeros(2), Field("uint8", (2,), Role.STEP).zeros(1)
            (array(['', ''], dtype=object), array([[0, 0]], dtype=uint8))
        """
        shape = (rows, *self.shape)
        return np.full(shape, "", object) if self.is_text else np.zeros(shape, self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the field for the manifest."""
        described = {"dtype": self.dtype, "shape": list(self.shape), "role": str(self.role)}
        return described if self.space is None else {**described, "space": dict(self.space)}

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Self:
        """Return the field that a manifest describes.

        Raises:
            SchemaMismatchError: the dtype or the shape is invalid.
            TypeError: the shape is not a list, or the space not an object.
            ValueError: the role is unknown, or the space has an invalid value.
        """
        shape, space = described["shape"], described.get("space")
        if not isinstance(shape, list):
            raise TypeError(f"shape is {shape!r:.80}")
        check_space(space)
        return cls(described["dtype"], tuple(shape), Role(described["role"]), space)


# The flags of every dataset.
FLAGS: Mapping[str, Field] = MappingProxyType(dict.fromkeys(("terminated", "truncated"), Field("bool", (), Role.NEXT)))


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a dataset, by name.

    Raises:
        SchemaMismatchError: an observation, the reward or a flag is missing, or a name is invalid.

    Example:
        >>> atari = Schema.of(observation=("uint8", (84, 84)), action=("int64", ()))
        >>> list(atari)
        ['observation', 'action', 'reward', 'terminated', 'truncated']
        >>> atari["observation"].row_bytes
        7056
    """

    fields: Mapping[str, Field]

    def __post_init__(self) -> None:
        for name, field in self.fields.items():
            check_name(name, field)
        for name, role in REQUIRED.items():
            found = self.fields.get(name)
            if found is None or found.role != role or found.shape != () or found.is_text:
                raise SchemaMismatchError(
                    f"schema: {name}: expected one number per step with role {role!r}, found {found}"
                )
            if name in FLAGS and found.dtype != "bool":
                raise SchemaMismatchError(f"schema: {name} is {found.dtype}, expected bool")
        if not any(field.role == Role.OBSERVATION for field in self.fields.values()):
            raise SchemaMismatchError("schema has no field of role 'observation'")
        for name in self.fields:
            if any(other.startswith(name + "/") for other in self.fields):
                raise SchemaMismatchError(f"schema: {name} is both a field and a group of fields")

    @classmethod
    def of(
        cls,
        observation: tuple[str, tuple[int, ...]],
        action: tuple[str, tuple[int, ...]],
        *,
        reward: str = "float32",
        action_space: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the schema of a plain environment: one observation, one action, a reward and the two flags."""
        return cls(
            {
                "observation": Field(*observation, Role.OBSERVATION),
                "action": Field(*action, Role.STEP, action_space),
                "reward": Field(reward, (), Role.NEXT),
                **FLAGS,
            }
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of every field."""
        return sum(field.row_bytes for field in self.fields.values())

    def __getitem__(self, name: str) -> Field:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def names(self, role: Role) -> list[str]:
        """Return names of the fields with this role, in the schema's order."""
        return [name for name, field in self.fields.items() if field.role == role]

    def raw_bytes(self, steps: int, trajectories: int) -> int:
        """Return the uncompressed size of steps, with every observation stored once."""
        rows = {Role.OBSERVATION: steps + trajectories, Role.STEP: steps, Role.NEXT: steps}
        return sum(field.row_bytes * rows[field.role] for field in self.fields.values())

    def difference(self, expected: "Schema") -> str | None:
        """Return the first field that differs from another schema's, in words; None if the schemas are equal.

        Example:
            >>> pong, cartpole = (Schema.of(each, ("int64", ())) for each in [("uint8", (84, 84)), ("float32", (4,))])
            >>> cartpole.difference(pong)
            'field observation is float32[4], expected uint8[84, 84]'
        """
        for name in dict.fromkeys([*expected, *self]):
            pair = [schema.fields.get(name) for schema in (self, expected)]
            if pair[0] != pair[1]:
                words = [f"{field.dtype}{list(field.shape)}" if field else "missing" for field in pair]
                if words[0] == words[1]:  # roles or spaces differ
                    words = [str(field.to_json()) for field in pair if field]
                return f"field {name} is {words[0]}, expected {words[1]}"
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the schema for the manifest."""
        return {name: field.to_json() for name, field in self.fields.items()}

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Self:
        """Return the schema that a manifest describes."""
        return cls({name: Field.from_json(field) for name, field in described.items()})


def channel_axis(shape: Sequence[int]) -> int | None:
    """Return which axis of pictures [H, W, C] or [C, H, W] is that of the channels, 4 at most; None of other shapes.

    Example:
        >>> channel_axis((84, 84, 3)), channel_axis((3, 84, 84)), channel_axis((84, 84))
        (2, 0, None)
    """
    if len(shape) != 3:
        return None
    return next((axis for axis in (2, 0) if shape[axis] <= _MAX_CHANNELS), None)


def as_path(key: Key) -> tuple[str, ...]:
    """Return a TED key, nested in any way, as a tuple of names.

    Example:
        >>> as_path("done"), as_path(("next", ("agents", "done")))
        (('done',), ('next', 'agents', 'done'))
    """
    if isinstance(key, str):
        return (key,)
    try:
        return _path_of(key)
    except TypeError:  # a list
        return _path_of.__wrapped__(key)


@lru_cache(1024)
def _path_of(key: Iterable[Key]) -> tuple[str, ...]:
    return tuple(part for item in key for part in as_path(item))


def name_of(key: Key) -> str:
    """Return the name of the field at a key of a TensorDict.

    Example:
        >>> name_of("logits"), name_of(("next", "value"))
        ('logits', 'next/value')
    """
    return key if isinstance(key, str) else "/".join(map(str, key))


def is_action(name: str) -> bool:
    """Return whether a field of this name is an action, or a part of one.

    Example:
        >>> [name for name in ("action", "agents/action", "action/arm", "reaction") if is_action(name)]
        ['action', 'agents/action', 'action/arm']
    """
    return "action" in name.split("/")


def is_observation(name: str) -> bool:
    """Return whether a field of this name is an observation, or a part of one.

    Example:
        >>> [name for name in ("observation", "agents/observation", "pixels") if is_observation(name)]
        ['observation', 'agents/observation']
    """
    return "observation" in name.split("/")


def check_name(name: str, field: Field) -> None:
    """Raise SchemaMismatchError if a field may not have this name."""
    parts = name.split("/")
    if not all(_PART.fullmatch(part) for part in parts):
        raise SchemaMismatchError(f"field name {name!r}: expected words of letters, digits and _.- joined by /")
    if parts[0] in RESERVED or name in RESERVED:
        raise SchemaMismatchError(f"field name {name!r} is taken: {parts[0]} has a meaning of its own in TED")
    if (parts[0] == "observation") != (field.role == Role.OBSERVATION) and parts[0] == "observation":
        raise SchemaMismatchError(f"field {name!r} has role {field.role}, expected observation")
