"""Gymnasium spaces of the fields of a schema."""

import string
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.errors import MissingExtraError, SchemaMismatchError
from rlx.schema import Field

if TYPE_CHECKING:
    from gymnasium.spaces import Space

_MAX_TEXT = 2**31 - 1


def space_of(fields: Mapping[str, Field], group: str) -> "Space[Any]":
    """Return the space of a field, or of the group of fields below a name: a ``Dict``, or a ``Tuple`` of 0, 1, ...

    If the source did not declare the space of a field, it is the range of its dtype.

    Args:
        fields: the fields, by name.
        group: name of a field, or of a group of fields.

    Raises:
        KeyError: no field has the name, or lies below it.
        MissingExtraError: gymnasium is not installed.

    Example:
        >>> from rlx.schema import Role
        >>> action = {"action": Field("int64", (), Role.STEP, {"type": "Discrete", "n": 6})}
        >>> space_of(action, "action")
        Discrete(6)
    """
    try:
        from gymnasium import spaces  # noqa: PLC0415  (an extra)
    except ImportError as exc:
        raise MissingExtraError("spaces need gymnasium, which is not installed", hint="pip install 'rlx[gym]'") from exc
    if group in fields:
        return _leaf(group, fields[group])
    below = {name.removeprefix(f"{group}/"): field for name, field in fields.items() if name.startswith(f"{group}/")}
    if not below:
        raise KeyError(f"no field is named {group!r}: expected one of {', '.join(fields)}")
    parts = {name: space_of(below, name) for name in dict.fromkeys(name.split("/")[0] for name in below)}
    if list(parts) == [str(number) for number in range(len(parts))]:
        return spaces.Tuple(list(parts.values()))
    return spaces.Dict(parts)


def _leaf(name: str, field: Field) -> "Space[Any]":
    from gymnasium import spaces  # noqa: PLC0415

    declared = field.space or {}
    try:
        match declared.get("type"):
            case "Discrete":
                return spaces.Discrete(int(declared["n"]), start=int(declared.get("start", 0)), dtype=_integer(field))
            case "MultiDiscrete":
                return spaces.MultiDiscrete(np.array(declared["nvec"]), dtype=_integer(field))
            case "MultiBinary":
                return spaces.MultiBinary(field.shape[0] if len(field.shape) == 1 else field.shape)
        if field.is_text:
            text = spaces.Text(
                declared.get("max_length", _MAX_TEXT),
                min_length=declared.get("min_length", 0),
                charset=declared.get("charset", string.printable),
            )
            return text if not field.shape else _repeated(text, field.shape)
        low, high = _bounds(field, declared)
        return spaces.Box(low, high, field.shape, np.dtype(field.dtype).type)
    except (KeyError, TypeError, ValueError, AssertionError) as exc:
        raise SchemaMismatchError(f"{name}: gymnasium has no space {dict(declared)!r:.200}: {exc}") from exc


def _integer(field: Field) -> Any:
    dtype = np.dtype(field.dtype)
    return dtype.type if dtype.kind in "iu" else np.int64


def _repeated(space: "Space[Any]", shape: tuple[int, ...]) -> "Space[Any]":
    """Return a space of texts [*shape]."""
    from gymnasium import spaces  # noqa: PLC0415

    inner = space if len(shape) == 1 else _repeated(space, shape[1:])
    return spaces.Tuple([inner] * shape[0])


def _bounds(field: Field, declared: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the bounds of a Box; where they are not declared, those of the dtype."""
    dtype = np.dtype(field.dtype)
    limits: Mapping[str, Any] = {"low": 0, "high": 1}
    if dtype.kind == "f":
        limits = {"low": -np.inf, "high": np.inf}
    elif dtype.kind in "iu":
        limits = {"low": np.iinfo(dtype).min, "high": np.iinfo(dtype).max}
    bounds = [declared.get(key, limit) for key, limit in limits.items()]
    return tuple(np.array(bound, dtype) if isinstance(bound, list) else bound for bound in bounds)
