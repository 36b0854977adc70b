"""User functions as transforms: of TED steps, and of whole trajectories as numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block, join
from rlx.errors import SchemaMismatchError, TransformError
from rlx.numbers import check_whole
from rlx.schema import Field, Role, Schema
from rlx.seeding import seeded
from rlx.transform.code import Code
from rlx.transform.protocol import Seen, Transform
from rlx.transform.transitions import Stitching, Transitions, split, transitions_of, whole

if TYPE_CHECKING:
    from rlx.transform.ted import FunctionResult

_FLAGS = frozenset({"terminated", "truncated"})
CHUNK_STEPS = 1024


@dataclass(frozen=True)
class Relabel:
    """Transform that replaces the rewards or actions of each trajectory: ``relabel:module:name``.

    The function gets a whole trajectory of L steps as a dict of numpy arrays by field, [L, ...] and for observations
    [L + 1, ...], and returns a dict of the arrays to replace: ``{"reward": ...}``. It cannot replace observations and
    flags. Generators of torch, numpy and Python are seeded with the trajectory's number.

    Args:
        text: ``module:name`` or ``file.py:name``.

    Raises:
        TransformError: the function cannot be loaded.
    """

    text: str

    def __post_init__(self) -> None:
        Code.named(self.text)

    @property
    def code(self) -> Code:
        """The function."""
        return Code.named(self.text)

    def learned(self, seen: Seen) -> Transform:
        """Return the function with the schema of its result for the first trajectory.

        Raises:
            TransformError: the function fails on it, or no trajectory exists.
        """
        first = next(_trajectories(seen.blocks(), seen.schema), None)
        if first is None:
            raise TransformError(f"{self.text}: no trajectory is left to apply it to")
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
    """A function of ``Relabel``, with the schema of its results."""

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
                        f"{self.code.name}: trajectory {block.episodes[0]}: it returns {name} "
                        f"{rows.dtype}{list(rows.shape[1:])}, expected {field.dtype}{list(field.shape)}"
                    )
            yield replace(block, data={**block.data, **made})


def _fits(rows: NDArray[np.generic], field: Field) -> bool:
    return rows.dtype == field.numpy_dtype and rows.shape[1:] == field.shape


def _trajectories(blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
    for group in whole(blocks):
        rest = join(group)
        while len(rest.lengths):
            one, rest = split(rest, schema, int(rest.lengths[0]))
            yield one


def relabelled(code: Code, block: Block, schema: Schema) -> dict[str, NDArray[np.generic]]:
    """Return the result of the function for one whole trajectory."""
    function = code.load()
    number = int(block.episodes[0])
    where = f"{code.name}: trajectory {number}:"
    try:
        with seeded(number):
            made = function({name: rows.copy() for name, rows in block.data.items()})
    except (Exception, SystemExit) as exc:  # whatever a user's function raises
        raise TransformError(f"{code.name} fails on trajectory {number}: {type(exc).__name__}: {exc}") from exc
    if not isinstance(made, Mapping):
        found = "nothing" if made is None else f"a value of type {type(made).__name__}"
        raise TransformError(f"{where} it returns {found}, expected a dict of arrays")
    allowed = [name for name in schema if schema[name].role != Role.OBSERVATION and name not in _FLAGS]
    if unknown := sorted(set(made) - set(allowed)):
        raise TransformError(f"{where} it returns {unknown[0]!r}, expected some of {', '.join(allowed)}")
    rows = {name: _rows(values) for name, values in made.items()}
    for name, values in rows.items():
        if values.shape[:1] != (block.steps,):
            raise TransformError(f"{where} it returns {name} {list(values.shape)}, expected {block.steps} rows")
        if values.dtype.kind == "f" and np.isnan(values).any() and (name == "reward" or schema[name].space):
            raise TransformError(f"{where} it returns NaN in {name}: expected numbers")
    return rows


def _rows(values: Any) -> NDArray[np.generic]:
    """Return the values of a function as an array; text as objects."""
    rows = np.asarray(values)
    return rows.astype(object) if rows.dtype.kind == "U" else rows


class Per(StrEnum):
    """The unit that a function is called with."""

    BLOCK = "block"
    TRAJECTORY = "trajectory"
    STEP = "step"


@dataclass(frozen=True)
class Function:
    """A user's function of steps: gets a TensorDict such as ``dataset[i:j]``, and returns one.

    It may change values, shapes and dtypes, and add or drop fields. It may drop steps if it keeps ``index``, which
    identifies the others; a trajectory ends before dropped steps, and another one of the same episode begins after
    them. A field at the root and under ``next`` is an observation and stored once, so ``next`` of a step must equal the
    root of the following step. Generators of torch, numpy and Python are seeded with the index of the first step.

    Args:
        code: the function.
        per: unit of a call: a block of steps [n], one whole trajectory [n], or one step [].
        chunk_steps: maximum number of steps per block.
    """

    code: Code
    per: Per = Per.BLOCK
    chunk_steps: int = CHUNK_STEPS

    def __post_init__(self) -> None:
        check_whole("chunk_steps", self.chunk_steps, error=TransformError)

    def __str__(self) -> str:
        size = f",chunk={self.chunk_steps}" if self.per == Per.BLOCK else ""
        return f"fn:{self.code.name},per={self.per}{size}"

    def learned(self, seen: Seen) -> Transform:
        """Return the function with the schema of its first result that has steps."""
        first: tuple[FunctionResult, Transitions] | None = None
        for given in self.transitions(seen.blocks(), seen.schema, seen.start):
            first = self.result_of(given, seen.schema), given
            if len(first[0].places):  # an empty result does not show the schema
                break
        if first is None:
            raise TransformError(f"{self.code.name}: no step is left to apply it to")
        with self.at(first[1]):
            return LearnedFunction(self, seen.start, first[0].schema_with_spaces(first[1], seen.schema))

    def transitions(self, blocks: Iterator[Block], schema: Schema, start: NDArray[np.int64]) -> Iterator[Transitions]:
        """Yield the steps of each call; for ``step``, of a thousand calls at a time."""
        if self.per == Per.TRAJECTORY:
            blocks = (join(group) for group in whole(blocks))
        for given in transitions_of(blocks, schema, start):
            if self.per == Per.TRAJECTORY:
                stops = np.flatnonzero(given.is_last) + 1
            else:
                size = self.chunk_steps if self.per == Per.BLOCK else CHUNK_STEPS
                stops = np.append(np.arange(size, given.steps, size), given.steps)
            for first, stop in pairwise([0, *stops.tolist()]):
                yield given.part(first, stop)

    def result_of(self, given: Transitions, schema: Schema) -> FunctionResult:
        """Return the result of the function for some steps."""
        from rlx.transform.ted import read_result, stacked, ted  # torch takes seconds to import

        steps = ted(given, schema)
        if self.per != Per.STEP:
            result = self._called(steps, given, 0, given.steps)
        else:
            results = [self._called(step, given, place, place + 1) for place, step in enumerate(steps.unbind(0))]
            with self.at(given):
                result = stacked(results)
        with self.at(given):
            return read_result(result, given)

    def _called(self, steps: Any, given: Transitions, start: int, stop: int) -> Any:
        function = self.code.load()
        try:
            with seeded(int(given.index[start])):
                return function(steps)
        except (Exception, SystemExit) as exc:  # whatever a user's function raises
            where = given.part(start, stop)
            raise TransformError(f"{self.code.name} fails on {where}: {type(exc).__name__}: {exc}") from exc

    @contextmanager
    def at(self, given: Transitions) -> Iterator[None]:
        """Name the function and the trajectories in errors within this context."""
        try:
            yield
        except TransformError as exc:
            raise TransformError(f"{self.code.name}: {given}: {exc}") from exc


@dataclass(frozen=True)
class LearnedFunction:
    """A function with the schema of its results.

    Args:
        start: [N] number of the first step of every trajectory.
    """

    function: Function
    start: NDArray[np.int64]
    after: Schema

    def schema(self, schema: Schema) -> Schema:  # noqa: ARG002  (it is known)
        """Return the schema of the result."""
        return self.after

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the results of the function."""
        from rlx.transform.ted import no_steps  # torch takes seconds to import

        stitching = Stitching(self.after)
        for given in self.function.transitions(blocks, schema, self.start):
            result = self.function.result_of(given, schema)
            if not len(result.places):
                result = no_steps(self.after)
            with self.function.at(given):
                result.check(self.after)
            block = stitching.block(given, result.places, result.data, result.next)
            if len(block.lengths):
                yield block
