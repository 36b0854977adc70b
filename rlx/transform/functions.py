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
from rlx.errors import MissingExtraError, SchemaMismatchError, TransformError
from rlx.numbers import check_whole
from rlx.schema import SCALAR_COLUMNS, Field, Role, Schema, name_of
from rlx.seeding import seeded
from rlx.store.array import Rows
from rlx.store.ted import FLAGS, make_ted, to_rows
from rlx.transform.code import Code
from rlx.transform.protocol import Seen, Transform
from rlx.transform.transitions import Stitching, Transitions, split, transitions_of, whole

try:
    from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor, is_tensor_collection
except ModuleNotFoundError as exc:
    raise MissingExtraError.of("functions of TensorDicts need tensordict", "torch", "tensordict") from exc


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """The result of a function for some steps.

    Args:
        places: [m] positions of the kept steps, ascending.
        data: [m, ...] rows of every field; of observations, those before the steps.
        next: [m, ...] rows of every observation, those after the steps.
    """

    places: NDArray[np.int64]
    data: Mapping[str, Rows]
    next: Mapping[str, Rows]
    roles: Mapping[str, Role]

    def schema(self) -> Schema:
        """Return the schema of a step."""
        try:
            return Schema({name: Field.of(rows, self.roles[name]) for name, rows in self.data.items()})
        except SchemaMismatchError as exc:
            raise TransformError(str(exc)) from exc

    def schema_with_spaces(self, given: Transitions, before: Schema) -> Schema:
        """Return the schema; fields that the function left unchanged keep their spaces."""
        after = self.schema()
        kept = {
            name: replace(field, space=before[name].space)
            for name, field in after.fields.items()
            if name in before.fields
            and replace(before[name], space=None) == field
            and np.array_equal(
                self.data[name], given.data[name][self.places], equal_nan=field.dtype.startswith("float")
            )
        }
        return Schema({**after.fields, **kept})

    def check(self, after: Schema) -> None:
        """Raise TransformError if the result does not fit a schema, or holds NaN where numbers are expected."""
        found = self.schema()
        if differing := [name for name in sorted({*found, *after}) if _kind(found, name) != _kind(after, name)]:
            name = differing[0]
            raise TransformError(
                f"it returns {name} {_kind(found, name)}, expected {_kind(after, name)} as for the first steps"
            )
        for name, field in after.fields.items():
            if field.dtype.startswith("float") and (name == "reward" or field.space is not None):
                rows = [self.data[name], *([self.next[name]] if name in self.next else [])]
                if any(np.isnan(values).any() for values in rows):
                    raise TransformError(f"it returns NaN in {name}: expected numbers")


def ted(before: Transitions, schema: Schema) -> TensorDict:
    """Return steps as ``dataset[i:j]`` does, in memory of their own."""
    root: dict[str, Rows] = {}
    after: dict[str, Rows] = {}
    for name, field in schema.fields.items():
        rows = before.data[name].copy()
        if field.role == Role.OBSERVATION:
            root[name], after[name] = rows, before.next[name].copy()
        else:
            (root if field.role == Role.STEP else after)[name] = rows
    root["index"] = before.index.copy()
    return make_ted(root, after, before.trajectory.copy())


def read_result(result: Any, before: Transitions) -> FunctionResult:
    """Return the arrays of a function's result; raise TransformError if it is invalid."""
    if result is None:
        raise TransformError("it returns nothing: expected a TensorDict")
    if not is_tensor_collection(result):
        raise TransformError(f"it returns a value of type {type(result).__name__}: expected a TensorDict")
    if len(result.batch_size) != 1:
        raise TransformError(f"it returns a batch of {list(result.batch_size)}: expected one dimension")
    places = _places(result, before)
    root, after = _leaves(result.exclude("next")), _leaves(result.get("next", TensorDict({}, result.batch_size)))
    _check_derived(root, after)
    data: dict[str, Rows] = {}
    then: dict[str, Rows] = {}
    roles: dict[str, Role] = {}
    for name, rows in root.items():
        roles[name] = Role.OBSERVATION if name in after else Role.STEP
        data[name] = rows
        if name in after:
            then[name] = after[name]
            if (then[name].dtype, then[name].shape) != (rows.dtype, rows.shape):
                raise TransformError(f"it returns {name} and next {name} with different dtypes or shapes")
        elif name.split("/")[0] == "observation":
            raise TransformError(f"it returns {name} and no next {name}")
    for name, rows in after.items():
        if name not in root:
            roles[name] = Role.NEXT
            data[name] = rows
    return FunctionResult(places, data, then, roles)


def no_steps(schema: Schema) -> FunctionResult:
    """Return the result of a function that keeps no steps, whatever the empty TensorDict holds."""
    data = {name: field.zeros(0) for name, field in schema.fields.items()}
    after = {name: data[name] for name in schema.names(Role.OBSERVATION)}
    return FunctionResult(np.arange(0), data, after, {name: field.role for name, field in schema.fields.items()})


def stacked(results: list[Any]) -> TensorDictBase:
    """Return n TensorDicts [] as one [n]."""
    for result in results:
        if not is_tensor_collection(result) or result.batch_size:
            found = "nothing" if result is None else type(result).__name__
            raise TransformError(f"it returns {found}: expected a TensorDict of one step")
    try:
        steps: TensorDictBase = TensorDict.stack(results)
    except (RuntimeError, KeyError, ValueError) as exc:
        raise TransformError(f"its results for two steps differ in keys, dtypes or shapes: {exc}") from exc
    return steps


def _places(result: TensorDictBase, before: Transitions) -> NDArray[np.int64]:
    count = result.batch_size[0]
    index = result.get("index", None)
    if index is None:
        if count != before.steps:
            raise TransformError(
                f"it returns {count} of {before.steps} steps without index: expected index to identify them"
            )
        return np.arange(count)
    given = index.reshape(-1).numpy()
    places: NDArray[np.int64] = np.searchsorted(before.index, given)
    known = np.append(before.index, -1)[places] == given
    if not known.all() or (np.diff(places) < 1).any():
        raise TransformError("it changes index: expected the values of the kept steps, in order")
    return places


def _leaves(tree: TensorDictBase) -> dict[str, Rows]:
    leaves: dict[str, Rows] = {}
    for key, leaf in tree.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        name = name_of(key)
        if name in ("index", "collector/traj_ids"):
            continue
        try:
            rows = to_rows(leaf)
        except SchemaMismatchError as exc:
            raise TransformError(f"it returns {name}: {exc}") from exc
        leaves[name] = rows.reshape(len(rows)) if name in SCALAR_COLUMNS and rows.shape[1:] == (1,) else rows
    return leaves


def _check_derived(root: dict[str, Rows], after: dict[str, Rows]) -> None:
    for name in FLAGS:
        flags = root.pop(name, None)
        if flags is not None and flags.any():
            raise TransformError(f"it sets {name} at the root, the state before the step: expected it under next")
    done = after.pop("done", None)
    if done is not None and {"terminated", "truncated"} <= set(after):
        derived = after["terminated"].astype(bool) | after["truncated"].astype(bool)
        if not np.array_equal(done.reshape(-1), derived):
            raise TransformError("it returns next done that is not next terminated or truncated")


def _kind(schema: Schema, name: str) -> str:
    field = schema.fields.get(name)
    return "nothing" if field is None else f"{field.role} {field.dtype}{list(field.shape)}"


if TYPE_CHECKING:
    from rlx.transform.functions import FunctionResult

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
        from rlx.transform.functions import read_result, stacked, ted  # torch takes seconds to import

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
        from rlx.transform.functions import no_steps  # torch takes seconds to import

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
