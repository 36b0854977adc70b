"""The features that a dataset of RLDS says its steps have, and the values of one feature in an example."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.pictures import MalformedPictureError, decode_picture
from rlx.formats.common.tf_example import Feature as Values
from rlx.schema import TEXT

# Of an episode that rlx wrote: whether its recording was cut.
CUT = "cut"
_MAX_DEPTH = 16
_MAX_SIZE = 2**32
_KINDS = "biuf"
_MAX_ITEM_BYTES = 8


class MalformedFeatureError(ValueError):
    """An example has not the values that its features say."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One array of a step.

    Args:
        dtype: of its numbers.
        shape: of one row.
        encoding: ``image``, ``text``, ``none`` for numbers one by one, ``bytes`` for those of a step together.
    """

    dtype: str
    shape: tuple[int, ...]
    encoding: str

    def count(self, values: Values) -> int:
        """Return how many rows an example has of it."""
        if self.encoding in ("none", "text"):
            return len(values) // max(1, math.prod(self.shape))
        return len(values)

    def rows(self, values: Values, start: int, stop: int) -> NDArray[Any]:
        """Return rows [stop - start, ...] of an example.

        Raises:
            MalformedFeatureError: they are of another kind, or there are fewer.
        """
        size = math.prod(self.shape)
        if self.encoding == "none":
            if not isinstance(values, np.ndarray) or len(values) % max(1, size):
                raise MalformedFeatureError(f"expected {self.dtype}{list(self.shape)} per step, found {_found(values)}")
            rows = values[start * size : stop * size].astype(self.dtype, casting="unsafe")
            return rows.reshape(stop - start, *self.shape)
        if not isinstance(values, list):
            raise MalformedFeatureError(f"expected a text per step, found {_found(values)}")
        if self.encoding == "text":
            return self._texts(values, start, stop)
        made = np.empty((stop - start, *self.shape), self.dtype)
        for row, value in enumerate(values[start:stop]):
            made[row] = self._picture(value, start + row) if self.encoding == "image" else self._numbers(value)
        return made

    def _texts(self, values: list[memoryview], start: int, stop: int) -> NDArray[Any]:
        size = math.prod(self.shape)
        if len(values) % max(1, size):
            raise MalformedFeatureError(f"expected {size:,} texts per step, found {_found(values)}")
        made = np.empty((stop - start) * size, object)
        try:
            made[:] = [str(value, "utf-8") for value in values[start * size : stop * size]]
        except UnicodeDecodeError as exc:
            raise MalformedFeatureError(f"expected UTF-8 text, found {bytes(exc.object[:40])!r}") from exc
        return made.reshape(stop - start, *self.shape)

    def _picture(self, value: memoryview, row: int) -> NDArray[Any]:
        try:
            return decode_picture(value, self.shape)
        except MalformedPictureError as exc:
            raise MalformedFeatureError(f"step {row:,}: {exc}") from exc

    def _numbers(self, value: memoryview) -> NDArray[Any]:
        expected = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        if len(value) != expected:
            raise MalformedFeatureError(f"expected {expected:,} bytes per step, found {len(value):,}")
        return np.frombuffer(value, self.dtype).reshape(self.shape)


def steps_features(described: Any, place: str) -> dict[str, Feature | None]:
    """Return the features of a step by name, parts joined by ``/``; none where they are no numbers or text of a known
    shape.

    Args:
        described: what ``features.json`` holds.
        place: where that lies, for messages.

    Raises:
        CorruptShardError: it does not describe episodes of steps.
    """
    try:
        feature = described["featuresDict"]["features"]["steps"]["sequence"]["feature"]
        return dict(_leaves(feature, "", 0))
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CorruptShardError(
            f"{place}: expected a FeaturesDict with steps, a Dataset of FeaturesDict, found none: "
            f"{type(exc).__name__} {exc}"
        ) from exc


def episode_features(described: Mapping[str, Any]) -> list[str]:
    """Return names of what an episode has beside its steps."""
    features = described["featuresDict"]["features"]
    return [path for name, node in features.items() if name != "steps" for path, _ in _leaves(node, name, 0)]


def _leaves(node: Mapping[str, Any], name: str, depth: int) -> Iterator[tuple[str, Feature | None]]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"features more than {_MAX_DEPTH} deep")
    if "featuresDict" in node:
        for child, feature in node["featuresDict"]["features"].items():
            yield from _leaves(feature, f"{name}/{child}" if name else child, depth + 1)
    else:
        yield name, _leaf(node)


def _leaf(node: Mapping[str, Any]) -> Feature | None:
    if "classLabel" in node:
        return Feature("int64", (), "none")
    if "text" in node:
        return Feature(TEXT, (), "text")
    kind = "image" if "image" in node else "tensor"
    if kind not in node:
        return None
    dtype = node[kind].get("dtype") or "uint8"
    shape = tuple(int(size) for size in node[kind].get("shape", {}).get("dimensions", []))
    if dtype == TEXT:
        return Feature(TEXT, shape, "text") if all(0 <= size < _MAX_SIZE for size in shape) else None
    encoding = "image" if kind == "image" else node[kind].get("encoding") or "none"
    is_known = encoding in ("image", "none", "bytes") and all(0 <= size < _MAX_SIZE for size in shape)
    if not is_known or not _is_number(dtype) or (kind == "image" and (len(shape) != 3 or dtype != "uint8")):
        return None
    return Feature(dtype, shape, encoding)


def _is_number(dtype: str) -> bool:
    try:
        named = np.dtype(dtype)
    except TypeError:
        return False
    return named.kind in _KINDS and named.name == dtype and named.itemsize <= _MAX_ITEM_BYTES


def _found(values: Values) -> str:
    return f"{len(values):,} texts" if isinstance(values, list) else f"{len(values):,} numbers"
