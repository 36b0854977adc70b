"""Names in Minari's files, and spaces as its metadata describe them: pictures, and possible values."""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rlx.manifest_values import check_space
from rlx.schema import Field

METADATA = "metadata.json"
MAIN_DATA = "main_data.hdf5"
MAX_DEPTH = 5  # of a dataset below the directory of all
NAMED = "episode_{}"  # an episode's name for users, and in HDF5 its group
ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")
LAYOUT = (
    "expected Minari's layout: data/metadata.json with total_episodes, total_steps and minari_version, and in "
    "data/main_data.hdf5 for every episode i a group episode_<i> with the attribute total_steps, "
    "observations [T + 1, ...], actions [T, ...], rewards [T], terminations [T], truncations [T]; or such columns of "
    "T + 1 rows in data/<i>/part-0.arrow or .parquet"
)
# Fields, or groups of fields, by the groups of an episode.
GROUPS = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "terminations": "terminated",
    "truncations": "truncated",
}
INFOS = "infos"
# Of an episode: its number, its steps, and whether it was cut, which rlx adds.
NUMBER, STEPS, CUT = "id", "total_steps", "cut"
ATTRIBUTES = frozenset({NUMBER, STEPS, CUT})


_MIN_IMAGE_SIDE = 32
_MAX_DEPTH = 32
_BOUNDS = ("n", "start", "nvec", "low", "high")
_MAX_CHARSET = 1000  # characters
_MAX_BOUNDS = 64  # A picture's bounds, one per pixel, would fill the manifest.

Space = Mapping[str, Any]


def leaf_space(space: Space | None, path: str) -> Space | None:
    """Return the space at ``path``, which leads through Dict and Tuple spaces; None if unknown."""
    if space is None or not path:
        return space
    subspaces = space.get("subspaces", {})
    if isinstance(subspaces, list):
        subspaces = {f"_index_{number}": subspace for number, subspace in enumerate(subspaces)}
    first, _, rest = path.partition("/")
    return leaf_space(subspaces.get(first), rest)


def check(space: Any, depth: int = 0) -> None:
    """Raise ValueError unless this is a space: objects with a type and bounds, nested at most 32 deep."""
    if depth > _MAX_DEPTH or not isinstance(space, dict) or not isinstance(space.get("type"), str):
        raise ValueError(f"expected a space, found {type(space).__name__} {depth} deep")
    if not all(type(size) is int for size in _flat(space.get("shape") or [])):
        raise ValueError("shape: expected whole numbers")
    for key in _BOUNDS:
        _flat(space.get(key))
    subspaces = space.get("subspaces", {})
    for subspace in subspaces.values() if isinstance(subspaces, dict) else _flat(subspaces):
        check(subspace, depth + 1)


def is_image(space: Space | None) -> bool:
    """Return whether Minari treats the space as one of pictures, which it keeps as JPEG.

    Example:
        >>> picture = {"type": "Box", "dtype": "uint8", "shape": [32, 32], "low": [[0]], "high": [[255]]}
        >>> is_image(picture), is_image({"type": "Discrete", "n": 2})
        (True, False)
    """
    if space is None or space.get("type") != "Box" or space.get("dtype") != "uint8":
        return False
    shape = _flat(space.get("shape") or [])
    if len(shape) not in (2, 3) or min(shape[:2]) < _MIN_IMAGE_SIDE:
        return False
    return _constant(space.get("low")) == 0 and _constant(space.get("high")) == 255


def describe(space: Space | None) -> Space | None:
    """Return a short description of the space for the manifest, without infinite or many bounds, and long charsets.

    Example:
        >>> describe({"type": "Box", "dtype": "float32", "shape": [2], "low": [-1, -1], "high": [2, math.inf]})
        {'type': 'Box', 'low': -1}
    """
    if space is None:
        return None
    kept: dict[str, Any] = {"type": space.get("type")}
    for key in _BOUNDS:
        value = _constant(space.get(key)) if key in ("low", "high") else space.get(key)
        value = space.get(key) if value is None else value
        numbers = _numbers(value)
        if numbers and len(numbers) <= _MAX_BOUNDS and all(map(_can_be_noted, numbers)):
            kept[key] = value
    if kept["type"] == "Text":
        kept |= {key: space[key] for key in ("min_length", "max_length") if type(space.get(key)) is int}
        if isinstance(charset := space.get("charset"), str) and len(charset) <= _MAX_CHARSET:
            kept["charset"] = charset
    try:
        check_space(kept)
    except ValueError:  # such as no action at all
        return None
    return kept


def _can_be_noted(number: float) -> bool:
    return abs(number) < 2**64 if isinstance(number, int) else math.isfinite(number)


def _constant(values: Any) -> float | None:
    numbers = set(_numbers(values))
    return numbers.pop() if len(numbers) == 1 else None


def _numbers(values: Any) -> list[float]:
    return [value for value in _flat(values) if isinstance(value, int | float) and not isinstance(value, bool)]


def _flat(values: Any, depth: int = 0) -> list[Any]:
    """Return the entries of lists in lists.

    Raises:
        ValueError: they are nested more than 32 deep.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"expected lists at most {_MAX_DEPTH} deep")
    if isinstance(values, list):
        return [entry for value in values for entry in _flat(value, depth + 1)]
    return [values]


def space_of(field: Field, shape: tuple[int, ...]) -> Space:
    """Return the space of a field whose rows are written with this shape.

    Without a space in the schema, it is a Box of all values of the dtype: the number of actions is never guessed.
    """
    said = field.space or {}
    kind = said.get("type")
    if kind == "Discrete" and shape == () and isinstance(said.get("n"), int):
        return {"type": "Discrete", "dtype": "int64", "start": said.get("start", 0), "n": said["n"]}
    if kind == "MultiDiscrete" and np.shape(said.get("nvec", 0)) == shape:
        start = said.get("start", np.zeros(shape, int).tolist())
        return {"type": "MultiDiscrete", "dtype": field.dtype, "nvec": said["nvec"], "start": start}
    if field.is_text:
        return {"type": "Text"} | {key: said[key] for key in ("min_length", "max_length", "charset") if key in said}
    if field.dtype == "bool" or (kind == "MultiBinary" and shape):
        if not shape:
            return {"type": "Discrete", "dtype": "int64", "start": 0, "n": 2}
        return {"type": "MultiBinary", "n": _counts(said.get("n"), shape)}
    low, high = (_bound(field, said.get(key), key, shape) for key in ("low", "high"))
    return {"type": "Box", "dtype": field.dtype, "shape": list(shape), "low": low, "high": high}


def text_space(space: Space, longest: int, characters: Collection[str]) -> Space:
    """Return a space of texts, completed from the texts themselves."""
    seen = {"min_length": 0, "max_length": max(1, longest), "charset": "".join(sorted(characters))}
    return {"type": "Text", **{key: space.get(key, said) for key, said in seen.items()}}


def nested(leaves: Mapping[str, Space]) -> Space:
    """Return the space of leaves by path: that of the only leaf, or a Dict or a Tuple."""
    if "" in leaves:
        return leaves[""]
    children: dict[str, dict[str, Space]] = {}
    for path, space in leaves.items():
        first, _, rest = path.partition("/")
        children.setdefault(first, {})[rest] = space
    subspaces = {name: nested(below) for name, below in children.items()}
    indices = [f"_index_{number}" for number in range(len(subspaces))]
    if set(subspaces) == set(indices):
        return {"type": "Tuple", "subspaces": [subspaces[index] for index in indices]}
    return {"type": "Dict", "subspaces": subspaces}


def _counts(said: Any, shape: tuple[int, ...]) -> Any:
    """Return n of a MultiBinary as in the schema; by default, the length of a vector, or the shape."""
    if said is not None and np.atleast_1d(said).tolist() == list(shape):
        return said
    return shape[0] if len(shape) == 1 else list(shape)


def _bound(field: Field, said: Any, which: str, shape: tuple[int, ...]) -> Any:
    if said is None or np.shape(said) not in ((), shape):
        said = _limit(np.dtype(field.dtype), which)
    if np.shape(said) == shape:
        return said
    return np.full(shape, said, dtype=object).tolist()


def _limit(dtype: np.dtype[Any], which: str) -> float:
    if dtype.kind == "f":
        return math.inf if which == "high" else -math.inf
    limits = np.iinfo(dtype)
    return int(limits.max if which == "high" else limits.min)
