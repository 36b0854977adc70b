"""Transforms of fields: select, exclude, rename, cast and concatenate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import SchemaMismatchError, TransformError
from rlx.schema import DTYPES, REQUIRED, Field, Role, Schema
from rlx.transform.protocol import PerBlock


class _OfKeys(PerBlock):
    """A transform that renames or drops fields, and changes no values."""

    def names(self, schema: Schema) -> Mapping[str, str]:
        """Return the new name of every field that is kept."""
        raise NotImplementedError

    def schema(self, schema: Schema) -> Schema:
        """Return the schema of the kept fields.

        Raises:
            TransformError: a required field is missing, or a name is invalid.
        """
        return valid({new: schema[old] for old, new in self.names(schema).items()})

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block with the kept fields."""
        return replace(block, data={new: block.data[old] for old, new in self.names(schema).items()})


@dataclass(frozen=True)
class Select(_OfKeys):
    """Transform that keeps some fields; reward and flags always stay.

    Args:
        keys: names of the fields to keep, or of groups of fields.
    """

    keys: tuple[str, ...]

    def names(self, schema: Schema) -> Mapping[str, str]:
        """Return the kept fields, in the schema's order."""
        kept = {*_matching(schema, self.keys), *REQUIRED}
        return {name: name for name in schema if name in kept}


@dataclass(frozen=True)
class Exclude(_OfKeys):
    """Transform that drops some fields.

    Args:
        keys: names of the fields to drop, or of groups of fields; not reward or flags.
    """

    keys: tuple[str, ...]

    def names(self, schema: Schema) -> Mapping[str, str]:
        """Return the kept fields, in the schema's order."""
        gone = _matching(schema, self.keys)
        return {name: name for name in schema if name not in gone}


@dataclass(frozen=True)
class Rename(_OfKeys):
    """Transform that renames fields: ``rename:observation/camera=observation``.

    Args:
        text: pairs ``OLD=NEW``, separated by commas.
    """

    text: str

    def __post_init__(self) -> None:
        _pairs(self.text, "OLD=NEW")

    def names(self, schema: Schema) -> Mapping[str, str]:
        """Return all fields, under their new names."""
        given = _pairs(self.text, "OLD=NEW")
        _matching(schema, list(given))
        names = {name: given.get(name, name) for name in schema}
        if len(set(names.values())) < len(names):
            raise TransformError(f"two fields would have one name: {self.text}")
        return names


@dataclass(frozen=True)
class Cast(PerBlock):
    """Transform that changes dtypes, and no value: ``cast:action=int64``.

    Args:
        text: pairs ``KEY=DTYPE``, separated by commas.
    """

    text: str

    def __post_init__(self) -> None:
        _pairs(self.text, "KEY=DTYPE")

    def schema(self, schema: Schema) -> Schema:
        """Return the schema with the dtypes.

        Raises:
            TransformError: a field does not exist or is text, a dtype is unknown, or a flag would be a number.
        """
        given = _pairs(self.text, "KEY=DTYPE")
        numeric_fields(schema, list(given))
        if unknown := [dtype for dtype in given.values() if dtype not in DTYPES]:
            raise TransformError(f"dtype {unknown[0]!r} is unknown: expected one of {', '.join(sorted(DTYPES))}")
        return valid(
            {name: replace(field, dtype=given.get(name, field.dtype)) for name, field in schema.fields.items()}
        )

    def apply(self, block: Block, schema: Schema) -> Block:  # noqa: ARG002  (the block has the fields)
        """Return the block with the dtypes; raises TransformError if a value would change."""
        changed = {name: _cast(block.data[name], dtype, name) for name, dtype in _pairs(self.text, "KEY=DTYPE").items()}
        return replace(block, data={**block.data, **changed})


def _cast(rows: NDArray[Any], dtype: str, name: str) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        cast = rows.astype(dtype)
        # Cast back, as a comparison converts both sides: 2**53 + 1 equals its own float64.
        back = cast.astype(rows.dtype)
    same = (back == rows) | ((rows != rows) & (back != back))
    # A number too large for the dtype may come back by wrapping round twice.
    same &= (cast < 0) == (rows < 0)
    if not same.all():
        row = np.argwhere(~same)[0]
        raise TransformError(f"{name} holds {rows[tuple(row)]}, which {dtype} would change to {cast[tuple(row)]}")
    return cast


def _pairs(text: str, expected: str) -> dict[str, str]:
    pairs = [pair.split("=") for pair in text.split(",")]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise TransformError(f"{text!r}: expected {expected},...")
    return dict(pairs)


@dataclass(frozen=True)
class CatTensors(PerBlock):
    """Transform that concatenates fields along their last dimension; a scalar counts as one of length 1.

    Args:
        in_keys: names of the fields, in order.
        out_key: name of the new field.
        del_keys: whether to drop the fields themselves.
    """

    in_keys: tuple[str, ...]
    out_key: str
    del_keys: bool = True

    def schema(self, schema: Schema) -> Schema:
        """Return the schema with the joined field.

        Raises:
            TransformError: a field does not exist or is text, roles or shapes differ, or out_key is taken.
        """
        numeric_fields(schema, self.in_keys)  # raises for any other
        fields = [schema[key] for key in self.in_keys]
        shapes = [field.shape or (1,) for field in fields]
        if len({field.role for field in fields}) > 1 or len({shape[:-1] for shape in shapes}) > 1:
            described = [f"{key} {schema[key].role}{list(schema[key].shape)}" for key in self.in_keys]
            raise TransformError(f"{', '.join(described)}: expected one role, and one shape up to the last dimension")
        dtype = np.result_type(*(field.dtype for field in fields)).name
        joined = Field(dtype, (*shapes[0][:-1], sum(shape[-1] for shape in shapes)), fields[0].role)
        gone = set(self.in_keys) if self.del_keys else set()
        if self.out_key in schema.fields and self.out_key not in gone:
            raise TransformError(f"field {self.out_key!r} already exists")
        return valid({**{name: schema[name] for name in schema if name not in gone}, self.out_key: joined})

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block with the joined field."""
        after = self.schema(schema)
        rows = [block.data[key].reshape(-1, *(schema[key].shape or (1,))) for key in self.in_keys]
        joined = np.concatenate(rows, axis=-1, dtype=after[self.out_key].dtype)
        return replace(block, data={name: joined if name == self.out_key else block.data[name] for name in after})


def numeric_fields(schema: Schema, keys: Sequence[str]) -> list[str]:
    """Return the given names of numeric fields; by default those of all numeric observations.

    Raises:
        TransformError: a field does not exist, or is text.
    """
    _matching(schema, keys, groups=False)
    if texts := [key for key in keys if schema[key].is_text]:
        raise TransformError(f"{texts[0]} is text: expected a numeric field")
    return list(keys) or [name for name in schema.names(Role.OBSERVATION) if not schema[name].is_text]


def valid(fields: Mapping[str, Field]) -> Schema:
    """Return the schema of these fields; raise TransformError if it is invalid."""
    if missing := [name for name in REQUIRED if name not in fields]:
        raise TransformError(f"{missing[0]} cannot be dropped: expected {', '.join(REQUIRED)} in every step")
    try:
        return Schema(fields)
    except SchemaMismatchError as exc:
        raise TransformError(str(exc)) from exc


def _matching(schema: Schema, keys: Sequence[str], *, groups: bool = True) -> set[str]:
    found = {key: {name for name in schema if name == key or (groups and name.startswith(key + "/"))} for key in keys}
    if missing := [key for key in keys if not found[key]]:
        raise TransformError(f"unknown field {missing[0]!r}: expected one of {', '.join(schema)}")
    return set().union(*found.values())
