"""How the fields of a step become features of RLDS: pictures as PNG, numbers as ``tf.train.Example`` has them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.batches import tree
from rlx.formats.common.pictures import Arranged, as_it_is, as_pictures, encode
from rlx.formats.common.tf_example import BYTES_LIST, FLOAT_LIST, INT64_LIST, ExampleSpool
from rlx.schema import Field, Role, Schema

STEPS = "steps"
EPISODE_ID = "episode_id"
# Fields that RLDS defines for a step.
_FLAGS = ("is_first", "is_last", "is_terminal")
DISCOUNT = "discount"
_DISCOUNT = Field("float32", (), Role.NEXT)
RESERVED = frozenset({*_FLAGS, DISCOUNT})
# Of an episode: whether its recording was cut.
CUT = "cut"
# An example knows these types and no others; the rest is kept as its bytes.
_EXACT = frozenset({"bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "int64", "float32"})
_MAX_LISTED_BYTES = 1024
_MODULE = "tensorflow_datasets.core.features"


@dataclass(frozen=True, slots=True)
class Feature:
    """One array of a step.

    Args:
        field: dtype of its numbers; its shape is that of the field it is filled from.
        arranged: rows of it as they are written.
        encoding: ``image``, ``text``, ``none`` for numbers one by one, ``bytes`` for those of a step together.
    """

    field: Field
    arranged: Arranged
    encoding: str

    @property
    def kind(self) -> int:
        """Of list that its values make."""
        if self.encoding != "none":
            return BYTES_LIST
        return FLOAT_LIST if self.field.dtype == "float32" else INT64_LIST

    def add(self, spool: ExampleSpool, name: str, rows: NDArray[Any]) -> None:
        """Add rows [n, ...] of the field to an example."""
        rows = self.arranged.arrange(rows)
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
        shape = {"dimensions": [str(size) for size in self.arranged.shape]} if self.arranged.shape else {}
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
            "tensor": {"shape": shape, "dtype": self.field.dtype, "encoding": encoding},
        }


def features_of(schema: Schema) -> dict[str, Feature]:
    """Return the feature of every field that there is a place for, by its name among those of a step."""
    names = [name for name in schema if name not in ("terminated", "truncated") and name.split("/")[0] not in RESERVED]
    if schema.fields.get(DISCOUNT) == _DISCOUNT:
        names.append(DISCOUNT)
    return {name: _feature(schema[name]) for name in names}


def flags() -> dict[str, Feature]:
    """Return the features that RLDS defines for a step."""
    found = {name: _feature(Field("bool", (), Role.STEP)) for name in _FLAGS}
    return {**found, DISCOUNT: _feature(_DISCOUNT)}


def _feature(field: Field) -> Feature:
    pictures = as_pictures(field)
    if pictures is not None:
        return Feature(field, pictures, "image")
    if field.is_text:
        return Feature(field, as_it_is(field), "text")
    is_listed = field.dtype in _EXACT and field.row_bytes < _MAX_LISTED_BYTES
    return Feature(field, as_it_is(field), "none" if is_listed else "bytes")


def described(features: Mapping[str, Feature], *, tells_cuts: bool) -> dict[str, Any]:
    """Return ``features.json`` of episodes whose steps have these features, and which perhaps say whether they were
    cut.
    """
    steps = _nested(tree(features), lambda feature: feature.described())
    episode = _feature(Field("int64", (), Role.STEP)).described()
    dataset = {
        "pythonClassName": f"{_MODULE}.dataset_feature.Dataset",
        "sequence": {"feature": steps, "length": "-1"},
    }
    cut = {CUT: _feature(Field("bool", (), Role.STEP)).described()} if tells_cuts else {}
    return _dict({EPISODE_ID: episode, **cut, STEPS: dataset})


def _nested(node: Mapping[str, Any], leaf: Callable[[Feature], dict[str, Any]]) -> dict[str, Any]:
    return _dict({name: leaf(one) if isinstance(one, Feature) else _nested(one, leaf) for name, one in node.items()})


def _dict(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_MODULE}.features_dict.FeaturesDict", "featuresDict": {"features": features}}
