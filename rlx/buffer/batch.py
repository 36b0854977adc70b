"""Batches of steps: the forms they come in, their dimensions, rows of an index, marks, and their trajectories."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import LazyStackedTensorDict, NestedKey, TensorDict, TensorDictBase, is_tensorclass
from tensordict.utils import expand_as_right

from rlx.buffer.index.continuity import INDEX, Columns, Evidence, Path, observed, taken
from rlx.buffer.index.trajectory_index import RingTrajectoryIndex
from rlx.buffer.protocol import Keys, Rows, Storage
from rlx.buffer.storage.step_schema import (
    ARRAY_DTYPES,
    accelerator_of,
    in_numpy,
    in_torch,
    leaves,
    leaves_of,
    nested,
    padded,
    parted,
    text_leaves,
)
from rlx.errors import SchemaMismatchError
from rlx.numbers import array_of
from rlx.store.dataset import normalize
from rlx.store.ted import to_leaf, to_rows
from rlx.transform.protocol import as_path

ITEM = "_item"
GENERATION = "index_generation"


def with_generation(index: torch.Tensor, generation: Rows | torch.Tensor | None) -> torch.Tensor:
    """Return rows [n] of a batch, with the generations of their steps as an attribute.

    So ``update_priority`` leaves out rows that hold other steps by then, also where it is given these rows alone.
    """
    if generation is not None:
        index.generation = torch.as_tensor(generation)  # type: ignore[attr-defined]
    return index


def as_steps(steps: TensorDictBase, ndim: int, time_dim: int | None = None) -> TensorDictBase:
    """Return steps [*lanes, n, ...], ``ndim`` dimensions before those that belong to a row.

    Args:
        time_dim: which of them is time; the last by default.
    """
    found = steps.batch_dims
    if found < ndim:
        raise SchemaMismatchError(f"steps of shape {list(steps.batch_size)}: expected {ndim} dimensions, found {found}")
    if time_dim is None or time_dim % ndim == ndim - 1:
        return steps
    order = [dim for dim in range(ndim) if dim != time_dim % ndim]
    moved: TensorDictBase = steps.permute(*order, time_dim % ndim, *range(ndim, found))
    return moved


def rows_of(index: Any, storage: Storage) -> Rows:
    """Return the rows that an index means: [] of an integer, [n] of a 1-d list or array, [*lanes, n] of a slice.

    Args:
        index: rows, or a slice of the rows of every lane; negative ones count from the end. A tuple indexes the
            [*lanes, n] rows that ``:`` means, as numpy does: ``(lane, slice(t, u))``. In a storage with gaps, a slice
            selects from the stored rows in ascending order, and a tuple is an IndexError.
    """
    size, lanes = storage.max_size // storage.lanes, storage.lanes
    has_gaps = storage.has_gaps
    filled = len(storage) // lanes
    if isinstance(index, slice) and has_gaps:
        return np.sort(storage.row_at(np.arange(len(storage))))[index]
    if isinstance(index, tuple) and has_gaps:
        raise IndexError(f"rows {index}: expected a slice or rows, as the lanes have different numbers of steps")
    if isinstance(index, slice):
        rows = np.arange(lanes)[:, None] * size + np.arange(*index.indices(filled))
        return rows.reshape(*storage.lane_shape, rows.shape[-1])
    if isinstance(index, tuple):
        shape = (*storage.lane_shape, filled)
        first = np.arange(lanes).reshape(*storage.lane_shape, 1) * size
        # Indexing views that repeat the few distinct numbers makes no array of all rows.
        return np.asarray(np.broadcast_to(first, shape)[index] + np.broadcast_to(np.arange(filled), shape)[index])
    length = filled if lanes == 1 and not has_gaps else size * lanes
    if hasattr(index, "__index__") and not getattr(index, "ndim", 0) and not isinstance(index, bool):
        return normalize([operator.index(index)], length).reshape(())
    return normalize(index, length)


def steps_at(index: Any, storage: Storage, keys: Keys | None = None) -> TensorDictBase:
    """Return the steps at the rows that an index means, in its shape, or these keys of them; a copy."""
    rows = rows_of(index, storage)
    steps = storage.get(rows.reshape(-1), keys)
    return steps.reshape(*rows.shape, *steps.batch_size[1:])


def write_info(batch: TensorDictBase, info: Mapping[Any, Any]) -> None:
    """Write the values of a sampler into a batch, by TED key."""
    for path, tensor in marks(info, batch.device, lambda path: batch.get(path, None)):
        # A value of a row applies to all steps of a row that is a trajectory.
        batch.set(path, expand_as_right(tensor, batch) if tensor.ndim < batch.batch_dims else tensor)


def marks(
    info: Mapping[Any, Any], device: torch.device | None, stored: Callable[[Path], Any]
) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield the values of a sampler on a device, by path, to be written into a batch.

    A flag under ``next`` stays set where it was set: a slice's end must not hide a truncation, nor an n-step transition
    that ends an episode be undone by the flags of its first step.

    Args:
        stored: returns the batch's own value of a path, None if it has none.
    """
    for key, value in info.items():
        path, tensor = as_path(key), tensor_of(value)
        if device is not None:
            tensor = with_generation(tensor.to(device), getattr(tensor, "generation", None))
        if path[0] == "next" and tensor.dtype == torch.bool and (flags := stored(path)) is not None:
            tensor = in_torch(flags) | tensor.reshape(flags.shape)
        yield path, tensor


def tensor_of(value: torch.Tensor | NDArray[Any]) -> torch.Tensor:
    """Return a value of a sampler as a tensor."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(value))


@dataclass(frozen=True, slots=True)
class Form:
    """How data came.

    Args:
        name: ``tensordict``, ``tensor``, ``dict`` or ``tensorclass``.
        is_numpy: whether a dict holds arrays of numpy, rather than tensors.
    """

    name: str
    cls: Any = None
    is_numpy: bool = field(default=False, compare=False)

    def back(self, steps: TensorDictBase) -> Any:
        """Return steps in this form, without keys that a tensorclass lacks."""
        if self.name == "tensor":
            return steps[ITEM]
        if self.name == "dict":
            return self.tree(leaves_of(steps)) if self.is_numpy else steps.to_dict()
        if self.cls is not None:
            return self.cls.from_tensordict(steps.select(*(one.name for one in fields(self.cls)), strict=False))
        return steps

    def tree(self, leaves: Columns) -> dict[str, Any]:
        """Return leaves as dictionaries in dictionaries."""
        if self.is_numpy:
            leaves = {path: leaf if type(leaf) is np.ndarray else in_numpy(leaf) for path, leaf in leaves.items()}
        return nested(leaves)

    @property
    def saved_as(self) -> str:
        """What a checkpoint calls it: a tensorclass is a TensorDict there."""
        return "arrays" if self.is_numpy else TENSORDICT.name if self.cls is not None else self.name

    @classmethod
    def restored(cls, saved: str) -> "Form":
        """Return the form that a checkpoint names."""
        return cls("dict", is_numpy=True) if saved == "arrays" else cls(saved)


TENSORDICT = Form("tensordict")
_TENSORS, _ARRAYS = Form("dict"), Form("dict", is_numpy=True)


def form_of(data: Any) -> Form:
    """Return the form of data, or of the elements of a list."""
    if isinstance(data, Sequence) and not isinstance(data, str) and not is_tensorclass(data) and len(data):
        forms = {form_of(element) for element in data}
        if len(forms) == 1 and (forms == {TENSORDICT} or not isinstance(data, tuple)):
            return forms.pop()
        if isinstance(data, tuple):
            raise SchemaMismatchError(
                f"tuple of {len(data)} cannot be stored: expected a list of elements, or a dict of named columns"
            )
        raise SchemaMismatchError(f"list of {', '.join(sorted(form.name for form in forms))}: expected one kind")
    if is_tensorclass(data):
        return Form("tensorclass", type(data))
    if isinstance(data, TensorDictBase):
        return TENSORDICT
    if isinstance(data, torch.Tensor):
        return Form("tensor")
    if isinstance(data, Mapping):
        return Form("dict")
    raise SchemaMismatchError(
        f"{type(data).__name__} cannot be stored: expected a TensorDict, tensorclass, tensor or dict of tensors, "
        "or a list of these",
        hint="torch.as_tensor(...) makes a tensor of numbers",
    )


def columns_of(data: Any, ndim: int, *, is_step: bool = False) -> tuple[Form, Columns] | None:
    """Return the form and the leaves of a TensorDict, or of a dict of tensors or of numpy's arrays.

    None if they are not tensors and arrays alone, or have further dimensions, which ``in_tensordict`` takes or refuses.

    Args:
        ndim: dimensions of the data [*lanes, n], or [*lanes] of a single step.
        is_step: whether it is a single step, of which values may be numbers.
    """
    if isinstance(data, TensorDictBase):
        tensors, texts = parted(data) if data.batch_dims == ndim else ({}, {})
        return (TENSORDICT, tensors) if tensors and not texts else None
    if not isinstance(data, dict):
        return None
    found: dict[Path, Any] = {}
    is_numpy = _add_columns(data, (), found, may_be_numbers=is_step and not ndim)
    return None if is_numpy is None or not found else (_ARRAYS if is_numpy else _TENSORS, found)


# What torch makes of numbers.
_NUMBERS: Mapping[type, Any] = {bool: np.bool_, int: np.int64, float: np.float32}


def _add_columns(
    data: Mapping[Any, Any], parents: Path, found: dict[Path, Any], *, may_be_numbers: bool
) -> bool | None:
    """Add the values of a dict; return whether some are not tensors, None if some are neither tensors nor arrays."""
    is_numpy = False
    for key, value in data.items():
        path = (*parents, key) if isinstance(key, str) else (*parents, *as_path(key))
        if type(value) is np.ndarray or (may_be_numbers and isinstance(value, np.generic)):
            if value.dtype not in ARRAY_DTYPES:
                return None
        elif isinstance(value, torch.Tensor):
            found[path] = value
            continue
        elif isinstance(value, dict):
            below = _add_columns(value, path, found, may_be_numbers=may_be_numbers)
            if below is None:
                return None
            is_numpy |= below
            continue
        elif may_be_numbers and type(value) in _NUMBERS:
            value = _NUMBERS[type(value)](value)
        else:
            return None
        found[path] = value
        is_numpy = True
    return is_numpy


def in_tensordict(data: Any, dim: int = 0, *, may_differ: bool = False) -> TensorDictBase:
    """Return data [n, ...], or a list of n elements, as a TensorDict.

    Args:
        dim: where the elements of a list are stacked.
        may_differ: whether elements may have other shapes and keys than each other.
    """
    if isinstance(data, Sequence) and not is_tensorclass(data):
        if not data:
            raise SchemaMismatchError("steps: expected at least one, found an empty list")
        return _stacked([_element(element) for element in data], dim, may_differ)
    if isinstance(data, Mapping) and not isinstance(data, TensorDictBase):
        return TensorDict(dict(data), [_length(data)])
    if isinstance(data, torch.Tensor):
        return TensorDict({ITEM: data}, [data.size(0)])
    return _element(data)


def _stacked(elements: list[Any], dim: int, may_differ: bool) -> TensorDictBase:
    if may_differ:
        return cast("TensorDictBase", LazyStackedTensorDict.lazy_stack(elements, dim))
    try:
        joined: Any = torch.stack(elements, dim)
    except RuntimeError as exc:
        raise SchemaMismatchError(f"steps of a list: expected the same keys and shapes in all of them; {exc}") from exc
    return cast("TensorDictBase", joined)


def _element(data: Any) -> TensorDictBase:
    if is_tensorclass(data):
        return cast("TensorDictBase", data.to_tensordict(retain_none=False))
    if isinstance(data, TensorDictBase):
        return data
    if isinstance(data, torch.Tensor):
        return TensorDict({ITEM: data}, [])
    return TensorDict(dict(data), [])


def _length(data: Mapping[Any, Any]) -> int:
    lengths = set(_lengths(data))
    if len(lengths) != 1:
        raise SchemaMismatchError(f"dict of tensors of {sorted(lengths)} rows: expected the same number in each")
    return lengths.pop()


def _lengths(data: Mapping[Any, Any]) -> list[int]:
    found = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            found += _lengths(value)
        elif isinstance(value, torch.Tensor) and value.ndim:
            found.append(len(value))
        else:
            raise SchemaMismatchError(f"key {key!r}: expected a tensor of rows, found {type(value).__name__}")
    return found


def pinned(batch: Any) -> Any:
    """Return a batch in page-locked memory, but for what is on a device already, and what is no tensor."""
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory() if batch.is_cpu else batch
    if isinstance(batch, TensorDictBase):
        return batch.apply(pinned)
    return batch.pin_memory() if hasattr(batch, "pin_memory") else batch


_IDS = (("collector", "traj_ids"), "episode", "traj_ids")


def split_trajectories(
    steps: TensorDictBase,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey = "done",
    as_nested: bool = False,
) -> TensorDictBase:
    """Return trajectories [N, T], ordered by first step; shorter ones are padded with zeros or empty texts.

    ``("collector", "mask")`` (bool [N, T]) says where there are steps. A trajectory ends where ``("next", done)`` is
    set. Steps of one id in one row of the batch belong together until then, even if steps of other ids come between, as
    when workers write in turns; after its end, an id denotes a new trajectory. Without ids, the steps of a row follow
    each other until done, or until an observation is not the next one of the step before. Ids decide over observations;
    a contradiction is logged, unless the key of the ids is named.

    Args:
        steps: [*B, T], time last.
        prefix: where ``mask`` goes and ids are looked for, instead of ``collector``.
        trajectory_key: where the ids are; by default ``(prefix, "traj_ids")``, ``episode`` or ``traj_ids``, if any is.
        done_key: name of the flag under ``next``.
        as_nested: whether the entries are jagged nested tensors [N, *], without mask, rather than padded.

    Raises:
        SchemaMismatchError: steps have neither ids nor the flag, or not one per step.

    Example:
        >>> done = torch.tensor([False, True, False])[:, None]
        >>> steps = TensorDict({"observation": torch.arange(3), "next": {"done": done}}, [3])
        >>> split_trajectories(steps)["observation"]
        tensor([[0, 1],
                [2, 0]])
    """
    if not steps.batch_dims:
        raise SchemaMismatchError("steps of shape []: expected at least a dimension of time")
    group = ("collector",) if prefix is None else as_path(prefix)
    flat = steps.reshape(-1)
    ids, evidence = _ids(flat, group, trajectory_key), None if trajectory_key is not None else _evidence(flat)
    order, lengths = _chains(flat, steps.batch_size[-1], ids, _done(flat, done_key), evidence)
    sorted_steps = flat[torch.from_numpy(order)]
    if as_nested:
        return _nested(sorted_steps, lengths)
    return _padded(sorted_steps, lengths, group)


def _ids(flat: TensorDictBase, group: tuple[str, ...], key: NestedKey | None) -> NDArray[np.int64] | None:
    if key is not None:
        if (ids := flat.get(key, None)) is None:
            raise SchemaMismatchError(f"steps have no {key!r}, expected trajectory ids there")
        return _one_a_step(ids, key)
    for found in ((*group, "traj_ids"), *_IDS):
        if (ids := flat.get(found, None)) is not None:
            return _one_a_step(ids, found)
    return None


def _done(flat: TensorDictBase, key: NestedKey) -> NDArray[np.bool_] | None:
    done = flat.get(("next", *as_path(key)), None)
    return None if done is None else _one_a_step(done, key).astype(bool)


def _one_a_step(values: torch.Tensor, key: NestedKey) -> NDArray[Any]:
    if values.numel() != len(values):
        raise SchemaMismatchError(f"{key!r} of shape {list(values.shape)}: expected one per step")
    column: NDArray[Any] = values.reshape(-1).cpu().numpy()
    return column


def _is_init(flat: TensorDictBase) -> NDArray[np.bool_] | None:
    flags = flat.get("is_init", None)
    fits = isinstance(flags, torch.Tensor) and flags.dtype == torch.bool and flags.numel() == len(flat)
    return array_of(flags.reshape(-1)) if fits else None


def _evidence(flat: TensorDictBase) -> Evidence:
    found = leaves_of(flat)
    kinds = {path: (leaf.dtype, leaf.shape) for path, leaf in found.items()}
    paths = [path for path in observed(kinds) if kinds[path] == kinds["next", *path]]
    index = found.get(INDEX)
    origin = None if index is None or index.numel() != len(flat) else array_of(index.reshape(-1), np.int64)

    def read(rows: Rows, after: bool) -> list[torch.Tensor]:
        return [taken(found["next", *path] if after else found[path], rows) for path in paths]

    return Evidence(read, origin, has_observations=bool(paths))


def _chains(
    steps: TensorDictBase,
    width: int,
    ids: NDArray[np.int64] | None,
    done: NDArray[np.bool_] | None,
    evidence: Evidence | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return [S] the steps, trajectory after trajectory, in the order of their first steps; [N] steps of each."""
    if ids is None and done is None:
        raise SchemaMismatchError("steps have neither trajectory ids nor ('next', 'done') to separate trajectories")
    count = len(steps)
    if not count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows = np.arange(count)
    index = RingTrajectoryIndex(width, count // width)
    index.write(
        rows,
        None if ids is None else ids.astype(np.int64),
        np.zeros(count, bool) if done is None else done,
        evidence,
        None if evidence is None else _is_init(steps),
    )
    first, lengths = index.trajectories()
    chains = index.follow(first, int(lengths.max()))
    return chains[chains >= 0], lengths


def _padded(flat: TensorDictBase, lengths: NDArray[np.int64], group: tuple[str, ...]) -> TensorDictBase:
    counts = torch.from_numpy(lengths)
    mask = torch.arange(int(lengths.max(initial=0))) < counts[:, None]
    result: Any = flat.apply(lambda leaf: padded(leaf, mask), batch_size=list(mask.shape))
    for key, texts in text_leaves(flat).items():
        rows = np.full(tuple(mask.shape), "", object)
        rows[mask.numpy()] = to_rows(texts)
        result.set(key, to_leaf(rows))
    result.set((*group, "mask"), mask.to(flat.device or accelerator_of(leaves_of(flat))))
    result.names = [None, "time"]
    return cast("TensorDictBase", result)


def _nested(flat: TensorDictBase, lengths: NDArray[np.int64]) -> TensorDictBase:
    offsets = torch.from_numpy(np.append(0, np.cumsum(lengths)))
    nested = TensorDict({}, [len(lengths)], device=flat.device)
    for key, values in leaves(flat):
        nested.set(key, torch.nested.nested_tensor_from_jagged(values, offsets.to(values.device)))
    return nested
