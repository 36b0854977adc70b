"""Names in RLDS's files, and the features of a step: their descriptions, and their values in an example."""

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.batches import tree
from rlx.formats.common.pictures import (
    Arranged,
    as_it_is,
    as_pictures,
    decode_picture,
    encode,
)
from rlx.formats.common.source import MalformedError
from rlx.formats.common.tf_example import BYTES_LIST, FLOAT_LIST, INT64_LIST, ExampleSpool
from rlx.formats.common.tf_example import Feature as Values
from rlx.schema import DTYPES, TEXT, Field, Role, Schema

INFO, FEATURES, METADATA = "dataset_info.json", "features.json", "metadata.json"
FILE_FORMAT, ARRAY_RECORD = "tfrecord", "array_record"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
EPISODE_ID, STEPS = "episode_id", "steps"
# Feature of episodes that rlx adds: whether the recording was cut.
CUT = "cut"
# Features that RLDS defines for a step.
FIRST, LAST, TERMINAL, DISCOUNT = "is_first", "is_last", "is_terminal", "discount"
FLAGS = (FIRST, LAST, TERMINAL)
LAYOUT = (
    "expected a version of a dataset of TensorFlow Datasets: dataset_info.json, features.json, *.tfrecord-* of one "
    "example per episode: steps/observation, action, reward, is_first, is_last, is_terminal, T + 1 rows of each"
)


_MAX_DEPTH = 16
_MAX_SIZE = 2**32
_BFLOAT16 = "bfloat16"
_DISCOUNT_FIELD = Field("float32", (), Role.NEXT)
_RESERVED = frozenset({*FLAGS, DISCOUNT})
# Types that an example can hold as numbers; others are stored as bytes.
_EXACT = frozenset({"bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "int64", "float32"})
_MAX_LISTED_BYTES = 1024
_MODULE = "tensorflow_datasets.core.features"


@dataclass(frozen=True, slots=True)
class Feature:
    """One array of a step.

    Args:
        encoding: ``image``, ``text``, ``none`` for lists of numbers, ``bytes`` or ``zlib`` for the bytes of each step.
        is_brief: whether numbers are stored as bfloat16, the upper halves of float32.
    """

    dtype: str
    shape: tuple[int, ...]
    encoding: str
    is_brief: bool = False

    @property
    def kind(self) -> int:
        """List type of its values in an example."""
        if self.encoding != "none":
            return BYTES_LIST
        return FLOAT_LIST if self.dtype == "float32" else INT64_LIST

    def holds(self, values: Values, rows: int) -> bool:
        """Return whether it has this many rows in an example; rows without a number are not stored."""
        return 0 in self.shape or self.count(values) == rows

    def count(self, values: Values) -> int:
        """Return its number of rows in an example."""
        if self.encoding in ("none", "text"):
            return len(values) // max(1, math.prod(self.shape))
        return len(values)

    def rows(self, values: Values, start: int, stop: int) -> NDArray[Any]:
        """Return rows [stop - start, ...] of an example; raises MalformedError if they are damaged."""
        size = math.prod(self.shape)
        if not size:
            return np.zeros((stop - start, *self.shape), self.dtype)
        if self.encoding == "none":
            if not isinstance(values, np.ndarray) or len(values) % max(1, size):
                raise MalformedError(f"expected {self.dtype}{list(self.shape)} per step, found {_found(values)}")
            stored = values[start * size : stop * size]
            rows = stored.astype(self.dtype, casting="unsafe")
            if rows.dtype != stored.dtype and (changed := (rows != stored) & (stored == stored)).any():
                raise MalformedError(f"expected {self.dtype}{list(self.shape)}, found {stored[changed][0]}")
            return rows.reshape(stop - start, *self.shape)
        if not isinstance(values, list):
            raise MalformedError(f"expected a text per step, found {_found(values)}")
        if self.encoding == "text":
            return self._texts(values, start, stop)
        made = np.empty((stop - start, *self.shape), self.dtype)
        for row, value in enumerate(values[start:stop]):
            made[row] = self._picture(value, start + row) if self.encoding == "image" else self._numbers(value)
        return made

    def _texts(self, values: list[memoryview], start: int, stop: int) -> NDArray[Any]:
        size = math.prod(self.shape)
        if len(values) % max(1, size):
            raise MalformedError(f"expected {size:,} texts per step, found {_found(values)}")
        made = np.empty((stop - start) * size, object)
        try:
            made[:] = [str(value, "utf-8") for value in values[start * size : stop * size]]
        except UnicodeDecodeError as exc:
            raise MalformedError(f"expected UTF-8 text, found {bytes(exc.object[:40])!r}") from exc
        return made.reshape(stop - start, *self.shape)

    def _picture(self, value: memoryview, row: int) -> NDArray[Any]:
        try:
            if self.dtype == "float32":  # the bytes of each number are four channels
                return decode_picture(value, (*self.shape[:2], 4)).view("<f4")
            return decode_picture(value, self.shape, self.dtype)
        except MalformedError as exc:
            raise MalformedError(f"step {row:,}: {exc}") from exc

    def _numbers(self, value: memoryview) -> NDArray[Any]:
        stored = np.dtype("<u2" if self.is_brief else self.dtype)
        expected = math.prod(self.shape) * stored.itemsize
        content = _inflated(value, expected) if self.encoding == "zlib" else value
        if len(content) != expected:
            raise MalformedError(f"expected {expected:,} bytes per step, found {len(content):,}")
        rows = np.frombuffer(content, stored).reshape(self.shape)
        return (rows.astype("<u4") << 16).view("<f4") if self.is_brief else rows

    def add(self, spool: ExampleSpool, name: str, rows: NDArray[Any]) -> None:
        """Add rows [n, *shape] to an example."""
        if self.encoding == "image":
            spool.add_bytes(name, encode(rows))
        elif self.encoding == "text":
            spool.add_bytes(name, (str(text).encode() for text in rows.flat))
        elif self.encoding == "bytes":
            spool.add_bytes(name, (row.tobytes() for row in np.ascontiguousarray(rows)))
        else:
            spool.add_numbers(name, rows)

    def described(self) -> dict[str, Any]:
        """Return the feature as ``features.json`` has it."""
        shape = {"dimensions": [str(size) for size in self.shape]} if self.shape else {}
        if self.encoding == "image":
            return {
                "pythonClassName": f"{_MODULE}.image_feature.Image",
                "image": {"shape": shape, "dtype": "uint8", "encodingFormat": "png"},
            }
        if self.encoding == "text" and not shape:
            return {"pythonClassName": f"{_MODULE}.text_feature.Text", "text": {}}
        encoding = "none" if self.encoding == "text" else self.encoding
        return {
            "pythonClassName": f"{_MODULE}.tensor_feature.Tensor",
            "tensor": {"shape": shape, "dtype": self.dtype, "encoding": encoding},
        }


def steps_features(described: Any, place: str) -> dict[str, Feature | None]:
    """Return the features of a step by path; None unless they are numbers or text of a known shape."""
    with _understood(place):
        return dict(_leaves(described["featuresDict"]["features"]["steps"]["sequence"]["feature"], "", 0))


@contextmanager
def _understood(place: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise CorruptShardError(
            f"{place}: expected a FeaturesDict with steps, a Dataset of FeaturesDict, found none: "
            f"{type(exc).__name__} {exc}"
        ) from exc


def episode_features(described: Mapping[str, Any], place: str) -> list[str]:
    """Return the names of an episode's fields other than its steps."""
    with _understood(place):
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
    is_known = encoding in ("image", "none", "bytes", "zlib") and all(0 <= size < _MAX_SIZE for size in shape)
    if is_brief := dtype == _BFLOAT16 and kind == "tensor":
        dtype = "float32"
    if not is_known or dtype not in DTYPES or (kind == "image" and not _is_picture(dtype, shape)):
        return None
    return Feature(dtype, shape, encoding, is_brief)


def _is_picture(dtype: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and (dtype in ("uint8", "uint16") or (dtype == "float32" and shape[2] == 1))


def _inflated(value: memoryview, expected: int) -> bytes:
    """Return the content of compressed bytes, of at most one byte more than expected."""
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(value, expected + 1)
    except zlib.error as exc:
        raise MalformedError(f"expected bytes compressed with zlib, found: {exc}") from exc
    if not inflater.eof and len(content) <= expected:
        raise MalformedError(f"expected {expected:,} bytes per step, found {len(content):,} before they end")
    return content


def _found(values: Values) -> str:
    return f"{len(values):,} texts" if isinstance(values, list) else f"{len(values):,} numbers"


def written_fields(schema: Schema) -> dict[str, Arranged]:
    """Return the arrangement of the rows of every field that can be written, by name."""
    names = [name for name in schema if name not in ("terminated", "truncated") and name.split("/")[0] not in _RESERVED]
    if schema.fields.get(DISCOUNT) == _DISCOUNT_FIELD:
        names.append(DISCOUNT)
    return {name: as_pictures(schema[name]) or as_it_is(schema[name]) for name in names}


def features_of(schema: Schema) -> dict[str, Feature]:
    """Return the features of the fields of a schema, and those that RLDS defines for a step."""
    flags = {name: _feature_of(Field("bool", (), Role.STEP)) for name in FLAGS}
    return {
        **flags,
        DISCOUNT: _feature_of(_DISCOUNT_FIELD),
        **{name: _feature_of(schema[name]) for name in written_fields(schema)},
    }


def _feature_of(field: Field) -> Feature:
    pictures = as_pictures(field)
    if pictures is not None:
        return Feature("uint8", pictures.shape, "image")
    if field.is_text:
        return Feature(TEXT, field.shape, "text")
    is_listed = field.dtype in _EXACT and field.row_bytes < _MAX_LISTED_BYTES
    return Feature(field.dtype, field.shape, "none" if is_listed else "bytes")


def described(features: Mapping[str, Feature], *, tells_cuts: bool) -> dict[str, Any]:
    """Return ``features.json`` of episodes whose steps have these features; ``tells_cuts`` adds ``CUT``."""
    steps = _nested(tree(features))
    episode = _feature_of(Field("int64", (), Role.STEP)).described()
    dataset = {
        "pythonClassName": f"{_MODULE}.dataset_feature.Dataset",
        "sequence": {"feature": steps, "length": "-1"},
    }
    cut = {CUT: _feature_of(Field("bool", (), Role.STEP)).described()} if tells_cuts else {}
    return _dict({EPISODE_ID: episode, **cut, STEPS: dataset})


def _nested(node: Mapping[str, Any]) -> dict[str, Any]:
    return _dict({name: one.described() if isinstance(one, Feature) else _nested(one) for name, one in node.items()})


def _dict(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_MODULE}.features_dict.FeaturesDict", "featuresDict": {"features": features}}
