"""Schema of stored steps: leaves of fixed dtypes and shapes, texts as numbers, and trajectory keys."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDictBase

from rlx.buffer.index.continuity import INDEX, IS_INIT, ORIGIN, Columns, Flags, Leaves, Path
from rlx.buffer.protocol import Rows
from rlx.errors import SamplingError, SchemaMismatchError
from rlx.store.ted import to_leaf, to_rows
from rlx.transform.protocol import as_path

StepSchema = Mapping[Path, tuple[torch.dtype, tuple[int, ...]]]

_OPTIONAL: Mapping[Path, int | bool] = {INDEX: -1, IS_INIT: False, ("next", *IS_INIT): False}


def parted(steps: TensorDictBase, parents: Path = ()) -> tuple[dict[Path, torch.Tensor], dict[Path, Any]]:
    """Return the tensors of steps, and their non-tensor data, by their paths.

    Raises:
        SchemaMismatchError: a value is neither, or parts of a lazy stack have other keys or shapes.
    """
    if isinstance(steps, LazyStackedTensorDict):
        _check_parts(steps)
    tensors: dict[Path, torch.Tensor] = {}
    texts: dict[Path, Any] = {}
    for name, value in steps.items():
        path = (*parents, name)
        # First of all, since it takes a tenth of the time to see that a value is a tensor.
        if isinstance(value, torch.Tensor):
            tensors[path] = value
        elif isinstance(value, NonTensorData | NonTensorStack):
            texts[path] = value
        elif isinstance(value, TensorDictBase):
            below, texts_below = parted(value, path)
            tensors |= below
            texts |= texts_below
        else:
            raise SchemaMismatchError(f"{'/'.join(path)}: expected a tensor or text, found {type(value).__name__}")
    return tensors, texts


def leaves_of(steps: TensorDictBase) -> dict[Path, torch.Tensor]:
    """Return the tensors of steps by their paths; not their texts."""
    return parted(steps)[0]


def accelerator_of(leaves: Columns) -> torch.device | None:
    """Return the device of the first leaf, for what is added to a batch to lie there too; None of the CPU."""
    first = next(iter(leaves.values()), None)
    return None if not isinstance(first, torch.Tensor) or first.is_cpu else first.device


def text_leaves(steps: TensorDictBase) -> dict[Path, Any]:
    """Return the non-tensor data of steps by their paths."""
    return parted(steps)[1]


def leaves(steps: TensorDictBase) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """Return the tensors of steps by their paths."""
    tensors, texts = parted(steps)
    for path, text in texts.items():
        raise SchemaMismatchError(f"{'/'.join(path)}: expected a tensor, found {type(text).__name__}")
    return [(path, leaf.contiguous()) for path, leaf in tensors.items()]


def _check_parts(stack: LazyStackedTensorDict) -> None:
    """Raise SchemaMismatchError unless all parts of a lazy stack have the same keys and shapes: it hides the others."""
    keys, *others = [set(part.keys()) for part in stack.tensordicts]
    try:
        if all(other == keys for other in others):
            list(stack.items())
            return
        reason = f"{sorted(keys)} are not {sorted(next(other for other in others if other != keys))}"
    except RuntimeError as exc:
        reason = str(exc)
    raise SchemaMismatchError(
        f"steps of a lazy stack: expected the same keys and shapes in all of them; {reason}", hint=_RAGGED
    )


def in_torch(leaf: Any) -> torch.Tensor:
    """Return a leaf of numpy's as a tensor, over the same memory where torch can share it; a tensor as it is."""
    if isinstance(leaf, torch.Tensor):
        return leaf
    array = np.asarray(leaf)
    shares = array.flags.writeable and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if shares else array.copy())


def in_numpy(leaf: Any) -> Any:
    """Return a tensor as an array; a leaf of numpy's as it is."""
    return leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else leaf


_BOTH = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_IN_NUMPY: Mapping[torch.dtype, np.dtype[Any]] = {getattr(torch, name): np.dtype(name) for name in _BOTH}
_OF_NUMPY = (np.ndarray, np.generic)
# Numpy's dtypes that torch has too.
ARRAY_DTYPES = frozenset(_IN_NUMPY.values())
_RAGGED = "a LazyStackStorage holds steps of different shapes"
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def signed(leaf: torch.Tensor) -> torch.Tensor:
    """Return a tensor; unsigned integers that torch cannot read or write by rows as signed ones, in place."""
    return leaf.view(_SIGNED[leaf.dtype]) if leaf.dtype in _SIGNED else leaf


def with_rows(leaf: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor, with other rows [n, ...] at places [n], cast to its dtype."""
    return signed(leaf).index_copy(0, at, signed(rows.to(leaf.dtype))).view(leaf.dtype)


def padded(leaf: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return [N, T, ...] the rows of a leaf where the mask [N, T] is set, and zeros elsewhere."""
    rows = leaf.new_zeros((*mask.shape, *leaf.shape[1:]))
    signed(rows)[mask.to(leaf.device)] = signed(leaf)
    return rows


def schema_of(leaves: Leaves, dims: int) -> StepSchema:
    """Return dtype and shape of one step's leaves, of steps with ``dims`` leading dimensions."""
    if not leaves:
        raise SchemaMismatchError("steps: expected at least one tensor, found none")
    for path, leaf in leaves.items():
        _check_dense(path, leaf)
    return {path: (leaf.dtype, tuple(leaf.shape[dims:])) for path, leaf in leaves.items()}


def fitted(given: Columns, schema: StepSchema, shape: tuple[int, ...]) -> dict[Path, Any]:
    """Return the leaves of steps [*shape] to store: keys that name a step's origin may be missing.

    ``index`` and ``is_init`` are left out if the first steps had none. If they had, steps without them get an index of
    -1 and an ``is_init`` of False, for the storage to set.

    Raises:
        SchemaMismatchError: a key is missing or extra, or of another dtype or shape.
    """
    leaves: dict[Path, Any] = {}
    missing = 0
    for path, (dtype, rest) in schema.items():
        leaf = given.get(path)
        if isinstance(leaf, _OF_NUMPY):
            if leaf.dtype != _IN_NUMPY.get(dtype) or leaf.shape != (shape + rest if shape else rest):
                raise _other(path, in_torch(leaf), dtype, rest, shape)
        elif leaf is None:
            if path not in _OPTIONAL:
                raise SchemaMismatchError(f"key {'/'.join(path)!r} is missing: expected {_names(schema)}")
            missing += 1
            leaf = torch.full((*shape, *rest), _OPTIONAL[path], dtype=dtype)
        elif (
            leaf.layout is not torch.strided
            or leaf.is_nested
            or leaf.is_meta
            or leaf.dtype != dtype
            or leaf.shape != (shape + rest if shape else rest)
        ):
            raise _other(path, leaf, dtype, rest, shape)
        leaves[path] = leaf
    if len(given) + missing > len(schema):
        for path in given:
            if path not in schema and path not in _OPTIONAL and path != ORIGIN:
                raise SchemaMismatchError(f"key {'/'.join(path)!r} is not one of: expected {_names(schema)}")
    return leaves


def _other(
    path: Path, leaf: torch.Tensor, dtype: torch.dtype, rest: tuple[int, ...], shape: tuple[int, ...]
) -> SchemaMismatchError:
    """Return what to raise of a leaf that is not steps [*shape] of this dtype and shape."""
    _check_dense(path, leaf)
    steps, dims = tuple(leaf.shape[: len(shape)]), len(shape)
    found, expected = _described(leaf.dtype, tuple(leaf.shape[dims:])), _described(dtype, rest)
    if steps != shape:
        found, expected = f"{list(steps)} steps", f"{list(shape)}"
    return SchemaMismatchError(f"key {'/'.join(path)!r}: expected {expected}, found {found}")


def _names(schema: StepSchema) -> str:
    return ", ".join(sorted("/".join(key) for key in schema))


def _check_dense(path: Path, leaf: torch.Tensor) -> None:
    """Raise SchemaMismatchError unless a tensor has a number for each element, of one shape in all steps."""
    if leaf.is_nested:
        raise SchemaMismatchError(f"key {'/'.join(path)!r}: expected one shape, found a nested tensor", hint=_RAGGED)
    if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_meta:
        kind = "a quantized tensor" if leaf.is_quantized else f"{leaf.layout} on {leaf.device}"
        raise SchemaMismatchError(f"key {'/'.join(path)!r}: expected a dense tensor, found {kind}")


def _described(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def nested(leaves: Mapping[Path, Any]) -> dict[str, Any]:
    """Return the leaves as dictionaries in dictionaries."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        branch = tree
        for name in path[:-1]:
            branch = branch.setdefault(name, {})
        branch[path[-1]] = leaf
    return tree


_SPARE = 1024  # texts that may be kept though no step refers to them


class Texts:
    """The distinct texts of a storage.

    Example:
        >>> from tensordict import TensorDict
        >>> texts = Texts()
        >>> texts.leaves(TensorDict({"task": ["pick", "place", "pick"]}, [3]), settled=False)["task",].tolist()
        [0, 1, 0]
        >>> len(texts)
        2
    """

    def __init__(self) -> None:
        self.paths: frozenset[Path] = frozenset()
        self._codes: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._free: list[int] = []
        self._used = 0  # codes that were in use when last counted

    def __len__(self) -> int:
        return len(self._texts)

    def leaves(self, steps: TensorDictBase, *, settled: bool) -> dict[Path, torch.Tensor]:
        """Return the leaves of steps, texts as numbers.

        Args:
            settled: whether it is known which leaves are text.
        """
        found, given = parted(steps)
        if settled:
            for path in given.keys() ^ self.paths:
                if path in found:
                    raise SchemaMismatchError(f"key {'/'.join(path)!r}: expected text, found {found[path].dtype}")
                if path in given:
                    raise SchemaMismatchError(f"key {'/'.join(path)!r}: expected no text here, found some")
        rows = {path: _rows(path, leaf) for path, leaf in given.items()}
        if not settled:
            self.paths = frozenset(given)
        return found | {path: torch.from_numpy(self._encoded(texts)) for path, texts in rows.items()}

    def _encoded(self, texts: NDArray[Any]) -> NDArray[np.int32]:
        codes = [self._code(text) for text in texts.reshape(-1).tolist()]
        return np.array(codes, np.int32).reshape(texts.shape)

    def _code(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._free.pop() if self._free else len(self._texts)
            self._codes[text], self._texts[code] = code, text
        return code

    def decoded(self, leaves: Leaves) -> dict[Path, Any]:
        """Return leaves with the texts that numbers stand for."""
        return {path: self._decoded(leaf) if path in self.paths else leaf for path, leaf in leaves.items()}

    def _decoded(self, codes: torch.Tensor) -> Any:
        if not codes.numel():
            return NonTensorData("", batch_size=codes.shape)
        texts = np.empty(codes.numel(), object)
        texts[:] = [self._texts[code] for code in codes.reshape(-1).tolist()]
        return to_leaf(texts.reshape(tuple(codes.shape)))

    @property
    def is_full(self) -> bool:
        """Whether enough texts were added to check which are still used."""
        return len(self._texts) > 2 * self._used + _SPARE

    def keep(self, codes: Sequence[torch.Tensor]) -> None:
        """Keep only the texts of these numbers."""
        used = set(np.unique(np.concatenate([leaf.numpy(force=True).reshape(-1) for leaf in codes])).tolist())
        for code in [code for code in self._texts if code not in used]:
            del self._codes[self._texts.pop(code)]
            self._free.append(code)
        self._used = len(used)

    def state_dict(self) -> dict[str, Any]:
        """Return the leaves that are text, and the texts with their numbers."""
        return {"paths": [list(path) for path in sorted(self.paths)], "texts": list(self._texts.items())}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Texts":
        """Return the texts whose ``state_dict`` this is."""
        texts = cls()
        texts.paths = frozenset(tuple(path) for path in state["paths"])
        texts._texts = {int(code): str(text) for code, text in state["texts"]}
        texts._codes = {text: code for code, text in texts._texts.items()}
        texts._free = sorted(set(range(max(texts._texts, default=-1) + 1)) - texts._texts.keys(), reverse=True)
        return texts


def _rows(path: Path, leaf: Any) -> NDArray[Any]:
    try:
        return to_rows(leaf)
    except SchemaMismatchError as exc:
        raise SchemaMismatchError(f"{'/'.join(path)}: {exc}") from exc


_IDS: tuple[Path, ...] = (("collector", "traj_ids"), ("episode",))
_DONE: Path = ("next", "done")
_FLAGS: tuple[Path, ...] = (("next", "terminated"), ("next", "truncated"))


@dataclass(frozen=True, slots=True)
class TrajectoryKeys:
    """The leaves to go by.

    Args:
        ids: the trajectory's id; None to go by flags alone.
        is_named: whether the user named them: then they decide alone.
    """

    ids: Path | None
    ends: tuple[Path, ...]
    is_named: bool = False

    @classmethod
    def find(cls, stored: Collection[Path], traj_key: Any = None, end_key: Any = None) -> "TrajectoryKeys":
        """Return the leaves of keys; by default the stored ones of the usual keys.

        Args:
            traj_key: the id; without flags besides, ("next", "done") or what it is made of ends trajectories too.
            end_key: the flag, or a list of flags; without an id besides, no ids are used.
        """
        ids = None if traj_key is None else as_path(traj_key)
        ends = () if end_key is None else _paths(end_key)
        if missing := [key for key in (ids, *ends) if key is not None and key not in stored]:
            found = ", ".join(sorted("/".join(key) for key in stored))
            raise SamplingError(f"key {'/'.join(missing[0])!r} is not stored, found {found}")
        if end_key is None:
            ends = (_DONE,) if _DONE in stored else tuple(key for key in _FLAGS if key in stored)
        if traj_key is None and end_key is None:
            ids = next((key for key in _IDS if key in stored), None)
        if ids is None and not ends:
            raise SamplingError(
                "steps have no trajectories: expected ('collector', 'traj_ids'), 'episode' or ('next', 'done')",
                hint="name the key by traj_key or end_key",
            )
        return cls(ids, ends, traj_key is not None or end_key is not None)

    @property
    def leaves(self) -> Sequence[Path]:
        """All of them."""
        return self.ends if self.ids is None else (self.ids, *self.ends)

    def read(self, leaves: Mapping[Path, torch.Tensor], count: int) -> tuple[Rows | None, Flags]:
        """Return ids [count] (or None) and ends [count] of steps whose leaves are given, in any number of
        dimensions."""
        ids = None if self.ids is None else _flat(leaves[self.ids], count)[:, 0].astype(np.int64)
        done = np.zeros(count, bool)
        for key in self.ends:
            done |= _flat(leaves[key], count).any(axis=1)
        return ids, done


def _paths(key: Any) -> tuple[Path, ...]:
    return tuple(as_path(one) for one in key) if isinstance(key, list) else (as_path(key),)


def _flat(leaf: torch.Tensor, count: int) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = leaf.numpy(force=True)
    return array.reshape(count, leaf.numel() // count if count else 1)
