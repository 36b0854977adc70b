"""Rewards, actions and other things of steps as a function of the user's sees them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import SchemaMismatchError, TransformError
from rlx.schema import Field, Role, Schema
from rlx.seeding import seeded
from rlx.transform.code import Code
from rlx.transform.protocol import Seen, Transform
from rlx.transform.segments import join, split, whole

_FLAGS = frozenset({"terminated", "truncated"})


@dataclass(frozen=True)
class Relabel:
    """Transform that replaces the rewards or actions of each trajectory: ``relabel:module:name``.

    The function gets a whole trajectory of L steps as numpy arrays by the names of the fields, [L, ...], observations
    [L + 1, ...], and returns those that are to change: ``{"reward": ...}``. Observations and flags stay. Randomness of
    torch, numpy and Python within it is seeded by the trajectory's number.

    Args:
        text: ``module:name`` or ``file.py:name``.
    """

    text: str

    def __post_init__(self) -> None:
        Code.named(self.text)

    @property
    def code(self) -> Code:
        """The function."""
        return Code.named(self.text)

    def learned(self, seen: Seen) -> Transform:
        """Return the function with the types that it gives to the first trajectory.

        Raises:
            TransformError: it fails on that, or no trajectory exists.
        """
        first = next(_trajectories(seen.blocks(), seen.schema), None)
        if first is None:
            raise TransformError(f"{self.text} has no trajectory to be applied to")
        code = self.code
        made = relabelled(code, first, seen.schema)
        fields = {
            name: seen.schema[name] if _fits(rows, seen.schema[name]) else Field.of(rows, seen.schema[name].role)
            for name, rows in made.items()
        }
        try:
            return LearnedRelabel(code, Schema({**seen.schema.fields, **fields}))
        except SchemaMismatchError as exc:
            raise TransformError(f"{self.text}: {exc}") from exc


@dataclass(frozen=True)
class LearnedRelabel:
    """A function of which it is known what types it gives.

    Args:
        code: the function.
        after: what a step holds afterwards.
    """

    code: Code
    after: Schema

    def schema(self, schema: Schema) -> Schema:  # noqa: ARG002  (it is known)
        """Return the schema of the result."""
        return self.after

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the trajectories, relabelled."""
        for block in _trajectories(blocks, schema):
            made = relabelled(self.code, block, schema)
            for name, rows in made.items():
                field = self.after[name]
                if not _fits(rows, field):
                    raise TransformError(
                        f"{self.code.name}: trajectory {block.episodes[0]}: it makes {name} "
                        f"{rows.dtype}{list(rows.shape[1:])}, expected {field.dtype}{list(field.shape)}"
                    )
            yield replace(block, data={**block.data, **made})


def _fits(rows: NDArray[np.generic], field: Field) -> bool:
    return rows.dtype == field.numpy_dtype and rows.shape[1:] == field.shape


def _trajectories(blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
    """Yield a block for each trajectory."""
    for group in whole(blocks):
        rest = join(group)
        while len(rest.lengths):
            one, rest = split(rest, schema, int(rest.lengths[0]))
            yield one


def relabelled(code: Code, block: Block, schema: Schema) -> dict[str, NDArray[np.generic]]:
    """Return the result of the function for one whole trajectory.

    Raises:
        TransformError: it fails, or returns something else than is expected; names the trajectory.
    """
    function = code.load()
    number = int(block.episodes[0])
    where = f"{code.name}: trajectory {number}:"
    try:
        with seeded(number):
            made = function({name: rows.copy() for name, rows in block.data.items()})
    except (Exception, SystemExit) as exc:  # whatever a user's function raises
        raise TransformError(f"{code.name} fails on trajectory {number}: {type(exc).__name__}: {exc}") from exc
    if not isinstance(made, Mapping):
        found = "nothing" if made is None else f"a {type(made).__name__}"
        raise TransformError(f"{where} it returns {found}, expected a dict of arrays")
    allowed = [name for name in schema if schema[name].role != Role.OBSERVATION and name not in _FLAGS]
    if unknown := sorted(set(made) - set(allowed)):
        raise TransformError(f"{where} it returns {unknown[0]!r}, expected some of {', '.join(allowed)}")
    rows = {name: _rows(values) for name, values in made.items()}
    for name, values in rows.items():
        if values.shape[:1] != (block.steps,):
            raise TransformError(f"{where} it returns {name} {list(values.shape)}, expected {block.steps} rows")
        if values.dtype.kind == "f" and np.isnan(values).any() and (name == "reward" or schema[name].space):
            raise TransformError(f"{where} it makes NaN of {name}: expected numbers")
    return rows


def _rows(values: Any) -> NDArray[np.generic]:
    """Return the values of a function as an array: texts, however numpy holds them, as objects."""
    rows = np.asarray(values)
    return rows.astype(object) if rows.dtype.kind == "U" else rows
