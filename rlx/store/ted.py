"""Steps as TorchRL Episode Data, one batch or several at once: a TensorDict with ``next``, flags of [*B, 1]."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlx.errors import MissingExtraError, SchemaMismatchError
from rlx.schema import SCALAR_COLUMNS, Role, Schema
from rlx.store.array import Rows
from rlx.store.codec import MIN_ROW_BYTES
from rlx.store.step_reader import Places, Stack, StepReader

try:
    import torch
except ModuleNotFoundError as exc:
    raise MissingExtraError.of("TensorDicts need torch", "torch", "torch") from exc

if TYPE_CHECKING:
    from tensordict import NonTensorStack, TensorDict


Leaf: TypeAlias = "torch.Tensor | NonTensorStack"


def to_leaf(rows: Rows) -> Leaf:
    """Return rows [n, ...] as a leaf of a TensorDict of batch size [n]; numbers share the rows' memory."""
    if rows.dtype != object:
        return torch.from_numpy(rows)
    from tensordict import NonTensorStack  # takes seconds, and numbers do not need it

    if rows.ndim == 1:
        return NonTensorStack(*rows.tolist())
    stack: NonTensorStack = NonTensorStack.from_list(rows.tolist())
    return stack


def to_rows(leaf: Any) -> Rows:
    """Return rows of a leaf: numbers as numpy has them, texts as an array of objects, each a ``str``.

    Args:
        leaf: a tensor, or non-tensor data whose every value is a text; its shape is that of the rows.
    """
    if isinstance(leaf, torch.Tensor):
        try:
            rows: Rows = leaf.detach().cpu().numpy()
        except TypeError as exc:
            raise SchemaMismatchError(f"{leaf.dtype}, expected a type that numpy has") from exc
        return rows
    from tensordict import NonTensorData, NonTensorStack  # takes seconds, and numbers do not need it

    if not isinstance(leaf, NonTensorData | NonTensorStack):
        raise SchemaMismatchError(f"{type(leaf).__name__}, expected a tensor or text")
    shape = tuple(leaf.batch_size)
    texts = np.empty(shape, object)
    if isinstance(leaf, NonTensorData):
        texts[...] = leaf.data if isinstance(leaf.data, str) else _refuse(leaf.data)
        return texts
    for place, text in zip(np.ndindex(shape), _flat(leaf.tolist(), len(shape)), strict=True):
        texts[place] = text if isinstance(text, str) else _refuse(text)
    return texts


def _flat(values: list[Any], depth: int) -> list[Any]:
    for _ in range(depth - 1):
        values = [value for inner in values for value in inner]
    return values


def _refuse(value: Any) -> str:
    raise SchemaMismatchError(f"{type(value).__name__}, expected numbers or text (str)")


Tree = dict[str, Any]
Path = tuple[str, ...]
FLAGS = ("done", "terminated", "truncated")
_DONE = ("next", "done")


def read_ted(
    reader: StepReader,
    schema: Schema,
    steps: NDArray[np.int64],
    stacks: Mapping[str, Stack] | None = None,
    keys: Sequence[Path] | None = None,
    *,
    shared: bool = False,
) -> TensorDict:
    """Return the steps [n] as TED, in the order asked for; every field of the schema and

    ``("collector", "traj_ids")`` (int64 [n], the trajectory), ``index`` (int64 [n], the step), ``done`` (bool [n, 1],
    terminated or truncated). The flags at the root are those of the state before the action: False. Texts are
    non-tensor data. Observations named in ``stacks`` are stacks [n, k, ...], as ``StepReader.read_stacks`` gives them.
    Every leaf has memory of its own, unless observations and next ones are ``shared``.

    Args:
        keys: paths of the leaves, or of groups of leaves, that are read; all by default.

    Raises:
        KeyError: a key that is not stored.
    """
    if keys is not None:
        return _read_some(reader, schema, steps, stacks, paths_below(schema, keys), shared=shared)
    places = reader.locate(steps)
    root: dict[str, Rows] = {}
    after: dict[str, Rows] = {}
    for name, (rows, then) in reader.read_all(places, stacks, shared=shared).items():
        if then is not None:
            root[name], after[name] = rows, then
        else:
            (root if schema[name].role == Role.STEP else after)[name] = rows
    root["index"] = steps.copy()  # the caller may keep the order of an epoch in it
    return make_ted(root, after, places.trajectory)


def _read_some(
    reader: StepReader,
    schema: Schema,
    steps: NDArray[np.int64],
    stacks: Mapping[str, Stack] | None,
    paths: Collection[Path],
    *,
    shared: bool,
) -> TensorDict:
    from tensordict import TensorDict  # takes seconds, and blocks do not need it

    names, sides = _fields_of(schema, paths)
    places = reader.locate(steps)
    found = _small(schema, places, reader.read_all(places, stacks, names, sides, shared=shared), {}, paths)
    tree: Tree = {}
    for path in paths:
        put(tree, path, to_leaf(found[path].copy() if path == ("index",) else found[path]))
    return TensorDict(tree, [len(steps)])


def make_ted(
    root: Mapping[str, Rows],
    after: Mapping[str, Rows],
    trajectory: NDArray[np.int64],
    names: Any = None,
) -> TensorDict:
    """Return steps as TED; numbers share the memory of the rows.

    Args:
        root: rows [*B, ...] of the fields at the root; the parts of a nested key are joined by ``/``.
        after: the same of the fields under ``next``, ``terminated`` and ``truncated`` among them.
        trajectory: [*B] of each step.
        names: of the dimensions, or None where one has none; tensordict does not type those.
    """
    tree: Tree = {}
    for name, rows in root.items():
        put(tree, name.split("/"), to_leaf(rows))
    then: Tree = {}
    for name, rows in after.items():
        put(then, name.split("/"), to_leaf(rows[..., None] if name in SCALAR_COLUMNS else rows))
    then["done"] = torch.from_numpy(np.logical_or(after["terminated"], after["truncated"])[..., None])
    for name, flags in zip(FLAGS, np.zeros((len(FLAGS), *trajectory.shape, 1), bool), strict=True):
        tree[name] = torch.from_numpy(flags)
    put(tree, ("collector", "traj_ids"), to_leaf(trajectory))
    tree["next"] = then
    shape = torch.Size(trajectory.shape)
    if names is None and all(rows.dtype != object for rows in (*root.values(), *after.values())):
        made: TensorDict = _maker()(tree, shape)
        return made
    from tensordict import TensorDict  # takes seconds, and the rows of workers do not need it

    return TensorDict(tree, shape, names=names)


def put(tree: Tree, path: Sequence[str], leaf: Leaf | int) -> None:
    """Put a leaf into a tree, with the parents that it lacks."""
    for parent in path[:-1]:
        tree = tree.setdefault(parent, {})
    tree[path[-1]] = leaf


def _maker() -> Any:
    """Return what makes a TensorDict of tensors without checking their shapes, in half of the time."""
    from tensordict import TensorDict  # takes seconds, and the rows of workers do not need it

    return getattr(TensorDict, "_new_unsafe", TensorDict)  # not public: other versions may lack it


class PlannedBatches:
    """Batches of TED, all of one shape; ``read_ted`` gives the same, one batch at a time.

    Large rows are decoded when a batch is asked for. Batches share no memory. Threads may read at once.

    Args:
        schema: of a step; without texts.
        steps: [batches, *shape] the steps.
        marks: values to add, or to join with flags under ``next``, by path, each [steps, ...].
        keys: paths of the leaves, or of groups of leaves, that are read; all by default.
        more: leaves to add, by path: each a function that ``StepReader.planned`` returned.
        after: functions that change each batch once it is read.
    """

    def __init__(
        self,
        reader: StepReader,
        schema: Schema,
        steps: NDArray[np.int64],
        stacks: Mapping[str, Stack] | None = None,
        marks: Mapping[Path, Rows] | None = None,
        keys: Sequence[Path] | None = None,
        more: Mapping[Path, Callable[[int], list[Rows]]] | None = None,
        after: Sequence[Callable[[TensorDict], object]] = (),
    ) -> None:
        self._after = after
        self._check_lengths = reader.check_lengths
        self._shape = torch.Size(steps.shape[1:])
        places = reader.locate(steps.reshape(-1))
        stacked = stacks or {}
        paths = None if keys is None else paths_below(schema, keys)
        names, sides = (list(schema.fields), dict[str, int]()) if paths is None else _fields_of(schema, paths)
        large = [name for name in names if schema[name].row_bytes >= MIN_ROW_BYTES or name in stacked]
        self._read = [reader.planned(name, places, steps.shape, stacked.get(name), sides.get(name)) for name in large]
        self._read += (more or {}).values()
        rows = reader.read_all(places, names=[name for name in names if name not in large], sides=sides)
        small = _small(schema, places, rows, marks or {}, paths)
        alike: dict[Any, list[Path]] = {}
        for path, leaf in small.items():
            alike.setdefault((leaf.dtype, leaf.shape[1:]), []).append(path)
        # Tensors are made when a batch is read: hundreds at once would keep the garbage collector busy.
        self._small = [
            np.stack([small[path].reshape(*steps.shape, *tail) for path in paths], axis=1)
            for (_, tail), paths in alike.items()
        ]
        read = [path for paths in alike.values() for path in paths]
        read += [path for name in large for path in paths_of(schema, name) if paths is None or path in paths]
        read += more or {}
        numbers = {path: i for i, path in enumerate(read)}
        tree: Tree = {}
        for path in [
            *(paths_of_all(schema) if paths is None else paths),
            *(path for path in small if path in (marks or {})),
            *(more or {}),
        ]:
            put(tree, path, numbers[path])
        self._nodes = _nodes(tree, len(numbers))
        self._make = _maker()

    def read(self, number: int) -> TensorDict:
        """Return a batch."""
        self._check_lengths()
        values: list[Any] = [torch.from_numpy(leaf) for leaves in self._small for leaf in leaves[number].copy()]
        values += [torch.from_numpy(rows) for read in self._read for rows in read(number)]
        for keys, numbers in self._nodes:
            children = dict(zip(keys, [values[i] for i in numbers], strict=True))
            values.append(self._make(children, self._shape))
        batch: TensorDict = values[-1]
        for change in self._after:
            change(batch)
        return batch


def _small(
    schema: Schema,
    places: Places,
    read: Mapping[str, Sequence[Rows | None]],
    marks: Mapping[Path, Rows],
    paths: Collection[Path] | None = None,
) -> dict[Path, Rows]:
    """Return [steps, ...] the leaves of fields that were read, and those of no field, by path; all, or these."""
    found: dict[Path, Rows] = {}
    for name, rows in read.items():
        mine = paths_of(schema, name)
        if paths is not None and len(mine) > 1:
            mine = [path for path in mine if path in paths]
        for path, values in zip(mine, rows, strict=False):
            assert values is not None
            found[path] = values[:, None] if name in SCALAR_COLUMNS else values
    if paths is None or _DONE in paths:
        found[_DONE] = np.logical_or(found["next", "terminated"], found["next", "truncated"])
    found["index",] = places.steps
    found["collector", "traj_ids"] = places.trajectory
    found |= {(flag,): np.zeros((len(places.steps), 1), bool) for flag in FLAGS}
    if paths is not None:
        found = {path: values for path, values in found.items() if path in paths}
    for path, values in marks.items():
        stored = found.get(path)
        if stored is None or path[0] != "next":
            found[path] = values
        else:
            found[path] = np.bitwise_or(stored, values.reshape(stored.shape))
    return found


def _nodes(tree: Tree, first: int) -> list[tuple[tuple[str, ...], list[int]]]:
    """Return keys and numbers of the values of each TensorDict in a tree of numbers; ``first`` is free."""
    nodes: list[tuple[tuple[str, ...], list[int]]] = []
    numbers = []
    for leaf in tree.values():
        if isinstance(leaf, dict):
            nodes += _nodes(leaf, first + len(nodes))
        numbers.append(first + len(nodes) - 1 if isinstance(leaf, dict) else leaf)
    return [*nodes, (tuple(tree), numbers)]


def paths_of(schema: Schema, name: str) -> list[Path]:
    """Return the paths in TED of a field."""
    path, role = tuple(name.split("/")), schema[name].role
    if role == Role.OBSERVATION:
        return [path, ("next", *path)]
    return [path if role == Role.STEP else ("next", *path)]


def paths_of_all(schema: Schema) -> dict[Path, None]:
    """Return the paths in TED of all leaves, as the keys of a dict, in the order of a batch."""
    paths = [path for name in schema.fields for path in paths_of(schema, name)]
    root, after = ([path for path in paths if (path[0] == "next") == is_after] for is_after in (False, True))
    flags = [(flag,) for flag in FLAGS]
    return dict.fromkeys([*root, ("index",), *flags, ("collector", "traj_ids"), *after, _DONE])


def paths_below(schema: Schema, keys: Iterable[Path]) -> dict[Path, None]:
    """Return the paths in TED of the leaves that keys name, each a leaf or a group of them.

    Raises:
        KeyError: a key that is not stored.
    """
    paths, found = paths_of_all(schema), dict[Path, None]()
    for key in keys:
        below = [key] if key in paths else [path for path in paths if path[: len(key)] == key]
        if not below:
            raise KeyError(f"{'/'.join(key)!r} is not stored")
        found |= dict.fromkeys(below)
    return found


def _fields_of(schema: Schema, paths: Collection[Path]) -> tuple[list[str], dict[str, int]]:
    """Return the fields that leaves are made of, and those of which one side is, with that side."""
    wanted = {name: [path in paths for path in paths_of(schema, name)] for name in schema.fields}
    if _DONE in paths:
        wanted |= {name: [True] for name in ("terminated", "truncated")}
    sides = {name: mine.index(True) for name, mine in wanted.items() if len(mine) > 1 and sum(mine) == 1}
    return [name for name, mine in wanted.items() if any(mine)], sides
