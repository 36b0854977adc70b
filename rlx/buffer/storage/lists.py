"""Storages of each step by itself: of one shape, or of shapes of their own."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_leaf_nontensor

from rlx.buffer.index.continuity import Columns, Leaves, Path
from rlx.buffer.protocol import Keys, Rows, Steps
from rlx.buffer.storage.ring import RingStorage
from rlx.errors import SchemaMismatchError
from rlx.transform.protocol import as_path

# Keys that identify trajectories: of one dtype in all steps, and kept where the trajectory index reads them.
_FLAGS = ("done", "terminated", "truncated", "is_init", "traj_ids")
_PRESENT = "_present"


class ListStorage(RingStorage):
    """Storage of separate steps: memory grows with the number of steps; slower than tensors.

    Args:
        max_size: maximum number of steps, over all lanes.
        ndim: dimensions of the written steps: those of the lanes, then time.

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.buffer.ListStorage(100), batch_size=8)
        >>> _ = buffer.extend(rlx.open("cartpole")[:100])
        >>> len(buffer)
        100
    """

    def __init__(self, max_size: int = 1_000, *, ndim: int = 1) -> None:
        super().__init__(max_size, ndim=ndim)
        self._items: dict[int, dict[Path, torch.Tensor]] = {}

    def _allocate(self) -> None:
        self._items = {}

    def _write(self, rows: Rows, leaves: Leaves) -> None:
        columns = [leaf.detach().to("cpu", copy=True).unbind() for leaf in leaves.values()]
        for row, step in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
            # A step of its own keeps no other step of the same write alive.
            self._items[row] = {path: value.clone() for path, value in zip(leaves, step, strict=True)}

    def _read(self, rows: Rows, paths: Sequence[Path], *, may_be_arrays: bool = False) -> Columns:  # noqa: ARG002
        items = [self._items[row] for row in rows.tolist()]
        if not items:
            return {path: torch.empty(0, *self._schema[path][1], dtype=self._schema[path][0]) for path in paths}
        return {path: torch.stack([item[path] for item in items]) for path in paths}

    def empty(self) -> None:
        """Remove all steps; keep the schema."""
        super().empty()
        self._items.clear()


class LazyStackStorage(ListStorage):
    """Storage of separate steps, whose tensors may differ in shape; batches are ``LazyStackedTensorDict``.

    Flags, and integers and bools with one value per step, must have the same shape in all steps, because they separate
    trajectories. All other leaves may differ from step to step: shapes, keys, texts. Steps of different shapes cannot
    be saved.

    Args:
        max_size: maximum number of steps.

    Example:
        >>> from rlx.buffer import ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyStackStorage(10))
        >>> rows = buffer.extend([TensorDict({"tokens": torch.arange(n)}) for n in (2, 3, 1)])
        >>> [step["tokens"].tolist() for step in buffer[:]]
        [[0, 1], [0, 1, 2], [0]]
    """

    steps_may_differ = True
    takes_leaves = False

    def __init__(self, max_size: int = 1_000) -> None:
        super().__init__(max_size)
        self._rest: dict[int, TensorDictBase] = {}
        self._having = Counter[Path]()  # steps of `_rest` that have a leaf

    def has(self, key: Any) -> bool:
        """Return whether every step has this leaf; false before the first write."""
        return super().has(key) or 0 < len(self._rest) == self._having[as_path(key)]

    def has_below(self, key: Any) -> bool:
        """Return whether some steps have this leaf, or one below it."""
        path = as_path(key)
        return super().has_below(key) or any(leaf[: len(path)] == path for leaf, steps in self._having.items() if steps)

    def get(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows, in the order asked for; a copy.

        Raises:
            IndexError: a row is empty or out of range.
            KeyError: a key that not all of these steps have.
        """
        chosen = None if keys is None else [as_path(key) for key in keys]
        alike = super().get(rows).exclude(_PRESENT)
        if not len(rows):
            return alike if chosen is None else alike.select(*chosen, strict=False)
        steps = [_joined(self._rest[row], alike[i], chosen) for i, row in enumerate(rows.tolist())]
        stacked: TensorDictBase = LazyStackedTensorDict.lazy_stack(steps, 0)
        return stacked

    def append(self, steps: Steps, *, is_step: bool = False) -> Rows:  # noqa: ARG002 (it takes no leaves)
        """Append steps [n]; return their rows."""
        assert isinstance(steps, TensorDictBase), "it takes no leaves"
        alike, rest = _parted(steps)
        rows = super().append(alike)
        self._keep(rows, rest)
        return rows

    def set(self, rows: Rows, steps: TensorDictBase) -> None:
        """Write new steps [n] at rows: appended where they continue their lanes; elsewhere each step follows no
        other."""
        alike, rest = _parted(steps)
        super().set(rows, alike)
        self._keep(rows, rest)

    def replace(self, rows: Rows, steps: TensorDictBase) -> None:
        """Replace stored steps by other steps [n], which neither continue nor precede any other step."""
        alike, rest = _parted(steps)
        super().replace(rows, alike)
        self._keep(rows, rest)

    def update(self, rows: Rows, steps: TensorDictBase) -> None:
        """Change the stored steps [n] at rows; their order in time is unchanged."""
        alike, rest = _parted(steps)
        super().update(rows, alike)
        self._keep(rows, rest)

    def empty(self) -> None:
        """Forget all steps."""
        super().empty()
        self._rest.clear()
        self._having.clear()

    def state_dict(self) -> NoReturn:
        """Raise SchemaMismatchError: steps of different shapes cannot be saved."""
        raise SchemaMismatchError(
            f"{self!r} cannot be saved: its steps may have different shapes", hint="use a ListStorage to save a buffer"
        )

    def _keep(self, rows: Rows, rest: Sequence[TensorDictBase]) -> None:
        for row, step in zip(rows.tolist(), rest, strict=True):
            if row in self._rest:
                self._having.subtract(_leaves(self._rest[row]).keys())
            self._having.update(_leaves(step).keys())
            self._rest[row] = step


def _parted(steps: TensorDictBase) -> tuple[TensorDict, list[TensorDictBase]]:
    """Return the leaves that are alike in all steps [n], and the rest of each, copied."""
    if steps.batch_dims != 1:
        raise SchemaMismatchError(f"steps of shape {list(steps.batch_size)}: expected 1 dimension")
    items = [_here(step.clone()) for step in steps.unbind(0)]
    named = [{path: leaf for path, leaf in _leaves(item).items() if _is_alike(path, leaf)} for item in items]
    keys = set().union(*named)
    alike = TensorDict({_PRESENT: torch.ones(len(items), dtype=torch.bool)}, [len(items)])
    for path in sorted(keys):
        missing = [number for number, leaves in enumerate(named) if path not in leaves]
        if missing:
            raise SchemaMismatchError(f"key {'/'.join(path)!r} is missing in step {missing[0]} of {len(items)}")
        alike.set(path, torch.stack([leaves[path] for leaves in named]))
    return alike, [item.exclude(*keys) for item in items]


def _here(step: TensorDictBase) -> TensorDictBase:
    """Return a step on the CPU."""
    leaves: Iterable[Any] = step.values(include_nested=True, leaves_only=True)
    is_here = all(leaf.is_cpu for leaf in leaves if isinstance(leaf, torch.Tensor))
    return step if is_here else step.cpu().clear_device_()


def _is_alike(path: Path, leaf: Any) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.is_floating_point():
        return False
    return not leaf.ndim or (leaf.shape == (1,) and path[-1] in _FLAGS)


def _leaves(step: TensorDictBase) -> dict[Path, Any]:
    leaves = step.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return {as_path(key): value for key, value in leaves}


def _joined(rest: TensorDictBase, alike: TensorDictBase, keys: Sequence[Path] | None) -> TensorDictBase:
    joined = rest.copy().update(alike)
    return (joined if keys is None else joined.select(*keys)).clone()
