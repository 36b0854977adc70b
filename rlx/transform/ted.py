"""Blocks as TED TensorDicts for user functions, and their results as arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import MissingExtraError, SchemaMismatchError, TransformError
from rlx.schema import SCALAR_COLUMNS, Field, Role, Schema, name_of
from rlx.store.array import Rows
from rlx.store.ted import FLAGS, make_ted, to_rows
from rlx.transform.transitions import Transitions

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
