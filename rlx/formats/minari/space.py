"""The spaces that a Minari dataset declares, as far as rlx needs them: which leaf is a picture, and its values."""

import math
from collections.abc import Mapping
from typing import Any

_MIN_IMAGE_SIDE = 32
_MAX_CHARSET = 1000  # characters
_MAX_BOUNDS = 64  # A picture's bounds, one a pixel, would fill the manifest.

Space = Mapping[str, Any]


def leaf_space(space: Space | None, path: str) -> Space | None:
    """Return the space of one leaf: ``path`` leads to it through Dict and Tuple spaces; None if unknown.

    Example:
        >>> pair = {"type": "Tuple", "subspaces": [{"type": "Discrete", "n": 2}, {"type": "Discrete", "n": 3}]}
        >>> leaf_space({"type": "Dict", "subspaces": {"a": pair}}, "a/_index_1")
        {'type': 'Discrete', 'n': 3}
    """
    if space is None or not path:
        return space
    subspaces = space.get("subspaces", {})
    if isinstance(subspaces, list):
        subspaces = {f"_index_{number}": subspace for number, subspace in enumerate(subspaces)}
    first, _, rest = path.partition("/")
    return leaf_space(subspaces.get(first), rest)


def is_image(space: Space | None) -> bool:
    """Return whether Minari takes the space for that of pictures, which it then keeps as JPEG.

    Example:
        >>> picture = {"type": "Box", "dtype": "uint8", "shape": [32, 32], "low": [[0]], "high": [[255]]}
        >>> is_image(picture), is_image({"type": "Discrete", "n": 2})
        (True, False)
    """
    if space is None or space.get("type") != "Box" or space.get("dtype") != "uint8":
        return False
    shape = space.get("shape", [])
    if len(shape) not in (2, 3) or min(shape[:2]) < _MIN_IMAGE_SIDE:
        return False
    return _constant(space.get("low")) == 0 and _constant(space.get("high")) == 255


def describe(space: Space | None) -> Space | None:
    """Return the space in a few words, for the manifest: bounds that are many or infinite are left out, and long
    charsets.

    Example:
        >>> describe({"type": "Box", "dtype": "float32", "shape": [2], "low": [-1, -1], "high": [2, math.inf]})
        {'type': 'Box', 'low': -1}
    """
    if space is None:
        return None
    kept: dict[str, Any] = {"type": space.get("type")}
    for key in ("n", "start", "nvec", "low", "high"):
        value = _constant(space.get(key)) if key in ("low", "high") else space.get(key)
        value = space.get(key) if value is None else value
        numbers = _numbers(value)
        if numbers and len(numbers) <= _MAX_BOUNDS and all(math.isfinite(number) for number in numbers):
            kept[key] = value
    if kept["type"] == "Text":
        kept |= {key: space[key] for key in ("min_length", "max_length") if type(space.get(key)) is int}
        if isinstance(charset := space.get("charset"), str) and len(charset) <= _MAX_CHARSET:
            kept["charset"] = charset
    return kept


def _constant(values: Any) -> float | None:
    """Return the one number that all values are."""
    numbers = set(_numbers(values))
    return numbers.pop() if len(numbers) == 1 else None


def _numbers(values: Any) -> list[float]:
    if isinstance(values, list):
        return [number for value in values for number in _numbers(value)]
    return [values] if isinstance(values, int | float) and not isinstance(values, bool) else []
