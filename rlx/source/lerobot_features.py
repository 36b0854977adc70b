"""The features that a dataset of LeRobot says it has, and which fields of a step they make."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SchemaMismatchError
from rlx.schema import TEXT, Field, Role
from rlx.source.picture_file import MalformedPictureError, decode_picture
from rlx.store.arrow import to_rows

DONE, TRUNCATED = "next.done", "next.truncated"
_DEFAULTS = frozenset({"timestamp", "frame_index", "episode_index", "index", "task_index"})
_FLAGS = frozenset({DONE, TRUNCATED})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MAX_SIZE = 2**32
Told = Any


@dataclass(frozen=True, slots=True)
class Feature:
    """One column.

    Args:
        name: of it.
        dtype: of its numbers.
        shape: of a row; ``(1,)`` for a number.
        is_image: whether it holds files of pictures.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_image: bool

    def rows(self, column: Any, path: Path) -> NDArray[Any]:
        """An Arrow array as rows [n, *shape], numbers as rows [n].

        Raises:
            CorruptShardError: it holds something else; names the file and the column.
        """
        try:
            return self._pictures(column) if self.is_image else self._numbers(column)
        except ValueError as exc:
            raise CorruptShardError(f"{path}: {self.name}: {exc}") from exc

    def _numbers(self, column: Any) -> NDArray[Any]:
        # An array of several dimensions is of a type of its own where the library datasets is loaded.
        rows = to_rows(getattr(column, "storage", column), () if self.shape == (1,) else self.shape)
        if rows.dtype != self.dtype:
            raise ValueError(f"expected {self.dtype}, found {rows.dtype}")
        return rows

    def _pictures(self, column: Any) -> NDArray[Any]:
        pictures = np.empty((len(column), *self.shape), np.uint8)
        for row, value in enumerate(column):
            content = picture_file(value)
            if content is None:
                raise MalformedPictureError(f"expected a picture's file in every row, found {value.as_py()!r:.80}")
            pictures[row] = decode_picture(content, self.shape)
        return pictures


def picture_file(value: Any) -> bytes | None:
    """The file in a cell of a column of pictures; none where there is none."""
    content = value.as_py()
    content = content.get("bytes") if isinstance(content, dict) else content
    return content if isinstance(content, bytes) else None


def read_features(info: Mapping[str, Any], place: Path) -> tuple[dict[str, Feature], list[str]]:
    """The columns that hold numbers or pictures, by name, and the names of the others.

    Raises:
        CorruptShardError: what is said of them is no description of features.
    """
    found: dict[str, Feature] = {}
    left_out: list[str] = []
    try:
        for name, described in info["features"].items():
            feature = _feature(name, described)
            if feature is not None and _NAME.fullmatch(name):
                found[name] = feature
            elif name not in _DEFAULTS:
                left_out.append(name)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CorruptShardError(f"{place}: features: expected dtype and shape of each, found {exc!r:.200}") from exc
    return found, left_out


def fields_of(features: Mapping[str, Feature], told: Told) -> tuple[dict[str, Field], dict[str, Feature]]:
    """The fields that the columns make but for the flags, and the column of each, both by the field's name.

    Args:
        features: of the dataset.
        told: what rlx said of them, if it wrote them: what the fields were called, and which shapes they had.
    """
    seen = [name for name in features if name.startswith("observation.")]
    fields: dict[str, Field] = {}
    columns: dict[str, Feature] = {}
    for name, feature in features.items():
        if name in _DEFAULTS or name in _FLAGS:
            continue
        field_name = _told_name(told, name) or _field_name(name, is_single=len(seen) == 1)
        field = _told_field(told, field_name, feature)
        if field is None:
            shape = () if feature.shape == (1,) else feature.shape
            field = Field(feature.dtype, shape, _role(name, field_name))
        fields[field_name], columns[field_name] = field, feature
    return fields, columns


def _feature(name: str, described: Mapping[str, Any]) -> Feature | None:
    dtype, shape = described["dtype"], tuple(described["shape"])
    if not all(type(size) is int and 0 <= size < _MAX_SIZE for size in shape):
        raise ValueError(f"{name}: shape {described['shape']!r:.80}")
    if dtype == "image":
        if len(shape) != 3:
            raise ValueError(f"{name}: shape {list(shape)} of an image")
        try:
            Field("uint8", shape, Role.OBSERVATION)
        except SchemaMismatchError as exc:
            raise ValueError(f"{name}: {exc}") from exc
        return Feature(name, "uint8", shape, is_image=True)
    if dtype == TEXT:
        return None
    try:
        Field(dtype, shape, Role.STEP)
    except (SchemaMismatchError, TypeError):
        return None
    return Feature(name, dtype, shape, is_image=False)


def _field_name(name: str, *, is_single: bool) -> str:
    """What a field is called that LeRobot calls so.

    Example:
        >>> _field_name("observation.images.top", is_single=False), _field_name("next.reward", is_single=True)
        ('observation/images/top', 'reward')
    """
    if name.startswith("observation.") and is_single:
        return "observation"
    return name.removeprefix("next.").replace(".", "/")


def _role(name: str, field_name: str) -> Role:
    if field_name.split("/")[0] == "observation":
        return Role.OBSERVATION
    return Role.NEXT if name.startswith("next.") else Role.STEP


def _told_name(told: Told, name: str) -> str | None:
    try:
        found = told["features"][name]
    except (TypeError, KeyError):
        return None
    return found if isinstance(found, str) else None


def _told_field(told: Told, name: str, feature: Feature) -> Field | None:
    """The field as it was, if what is in the column can be it: a number and a vector of one look alike."""
    try:
        field = Field.from_json(told["schema"][name])
    except (TypeError, KeyError, ValueError, AttributeError, SchemaMismatchError):
        return None
    is_alike = field.dtype == feature.dtype and (field.shape or (1,)) == feature.shape
    return field if is_alike else None
