"""A dataset as the read-only storage of a replay buffer; step i is row i."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDictBase

from rlx.buffer.index.trajectory_index import first_generation
from rlx.buffer.protocol import Keys, Rows, Storage, TrajectoryIndex, check_kind
from rlx.buffer.storage.step_schema import TrajectoryKeys
from rlx.errors import SchemaMismatchError
from rlx.schema import Role
from rlx.store.dataset import Dataset
from rlx.store.step_reader import Stack
from rlx.store.ted import FLAGS, PlannedBatches, paths_of_all, read_ted
from rlx.store.trajectories import Trajectories
from rlx.transform.protocol import as_path

Column = np.ndarray[Any, Any]

_ENDS = {("next", flag) for flag in FLAGS}


class DatasetStorage(Storage):
    """Storage of the steps of a dataset, read-only: writing raises ``TypeError``.

    Args:
        dataset: a dataset, or its path, id or URL.

    Attributes:
        dataset: the dataset of the steps.

    Example:
        >>> storage = rlx.buffer.DatasetStorage("cartpole")
        >>> buffer = rlx.ReplayBuffer(storage=storage, batch_size=32)
        >>> buffer.sample()["next", "observation"].shape, len(buffer)
        (torch.Size([32, 4]), 1000)
    """

    is_read_only = True
    is_in_files = True

    def __init__(self, dataset: Dataset | str | os.PathLike[str]) -> None:
        dataset = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        self.dataset = dataset
        self.max_size = len(dataset)
        self.ndim = 1
        self._leaves = paths_of_all(dataset.schema)
        self._index: TrajectoryIndex | None = None

    def __len__(self) -> int:
        return self.max_size

    def __repr__(self) -> str:
        return f"DatasetStorage({self.dataset!r})"

    @property
    def lane_shape(self) -> tuple[int, ...]:
        """No lanes."""
        return ()

    @property
    def lanes(self) -> int:
        """One."""
        return 1

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] the rows of the 0th, 1st, ... step: the same numbers."""
        return ordinals

    def has(self, key: Any) -> bool:
        """Return whether every step has this TED leaf."""
        return as_path(key) in self._leaves

    def has_below(self, key: Any) -> bool:
        """Return whether every step has this TED leaf, or one below it."""
        path = as_path(key)
        return any(leaf[: len(path)] == path for leaf in self._leaves)

    def get(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows as TED, in the order asked for.

        Raises:
            IndexError: no such row.
            KeyError: a key that is not stored.
        """
        _check(rows, self.max_size)
        paths = None if keys is None else [as_path(key) for key in keys]
        return read_ted(self.dataset.steps, self.dataset.schema, rows, keys=paths)

    def get_stacked(self, rows: Rows, keys: Keys, stack: Stack, only: Keys | None = None) -> TensorDictBase | None:
        """Return the steps [n] at these rows with stacks [n, k, ...] of observations, now and next.

        None if a key is not an observation.

        Raises:
            IndexError: no such row.
            KeyError: a key that is not stored.
        """
        _check(rows, self.max_size)
        names = ["/".join(as_path(key)) for key in keys]
        if not {*names} <= {*self.dataset.schema.names(Role.OBSERVATION)}:
            return None
        paths = None if only is None else [as_path(key) for key in only]
        return read_ted(self.dataset.steps, self.dataset.schema, rows, dict.fromkeys(names, stack), paths)

    def plan(
        self,
        rows: Rows,
        keys: Keys = (),
        stack: Stack | None = None,
        marks: Mapping[Any, Column] | None = None,
        only: Keys | None = None,
        more: Mapping[Any, Callable[[int], list[Column]]] | None = None,
        after: Sequence[Callable[[Any], object]] = (),
    ) -> PlannedBatches | None:
        """Return batches of the steps at these rows [batches, *shape], located at once; observations may be stacked.

        None if this would not help (remote steps, or texts), or a key is not an observation.

        Args:
            rows: [batches, *shape] rows.
            keys: the observations to be stacked.
            stack: how to stack them.
            marks: values to add, by TED key, as ``write_info`` does; each [steps, ...].
            only: TED keys to read, each a leaf or a group; all by default.
            more: leaves to add, as ``PlannedBatches`` takes them.
            after: functions that change each batch once it is read.

        Raises:
            IndexError: no such row.
            KeyError: a key that is not stored.
        """
        schema = self.dataset.schema
        if self.dataset.steps.is_remote or any(field.is_text for field in schema.fields.values()):
            return None
        names = ["/".join(as_path(key)) for key in keys] if keys else []
        if names and not {*names} <= {*schema.names(Role.OBSERVATION)}:
            return None
        _check(rows.reshape(-1), self.max_size)
        added = {as_path(key): values for key, values in marks.items()} if marks else {}
        stacks = {} if stack is None else dict.fromkeys(names, stack)
        paths = None if only is None else [as_path(key) for key in only]
        return PlannedBatches(self.dataset.steps, schema, rows, stacks, added, paths, more, after)

    def get_flags(self, rows: Rows, keys: Keys) -> dict[NestedKey, NDArray[np.bool_]]:
        """Return [n, 1] those of these flags that every step has, by key; "done" and its parts come from the table."""
        paths = {key: as_path(key) for key in keys if self.has(key)}
        if not {*paths.values()} <= _ENDS:
            return super().get_flags(rows, [*paths])
        _check(rows, self.max_size)
        ends = self.dataset.steps.ends(rows)
        return {key: ends[path[-1]][:, None] for key, path in paths.items()}

    def index(self, traj_key: Any = None, end_key: Any = None) -> TrajectoryIndex:
        """Return the index of the dataset's trajectories, which these keys cannot change.

        Raises:
            SamplingError: a key is not stored.
        """
        if traj_key is not None or end_key is not None:
            TrajectoryKeys.find({path for path in self._leaves if self.has(path)} | {("episode",)}, traj_key, end_key)
        if self._index is None:
            self._index = DatasetTrajectoryIndex(self.dataset.trajectories)
        return self._index

    def append(self, steps: TensorDictBase) -> Rows:
        """Raise TypeError."""
        self._refuse(f"{list(steps.batch_size)} steps cannot be appended")

    def set(self, rows: Rows, steps: TensorDictBase) -> None:  # noqa: ARG002
        """Raise TypeError."""
        self._refuse(f"{len(rows)} steps cannot be written")

    def replace(self, rows: Rows, steps: TensorDictBase) -> None:  # noqa: ARG002
        """Raise TypeError."""
        self._refuse(f"{len(rows)} steps cannot be replaced")

    def update(self, rows: Rows, steps: TensorDictBase) -> None:  # noqa: ARG002
        """Raise TypeError."""
        self._refuse(f"{len(rows)} steps cannot be changed")

    def empty(self) -> None:
        """Raise TypeError."""
        self._refuse("it cannot be emptied")

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(f"dataset {self.dataset.manifest.id} is read-only: {what}")

    def state_dict(self) -> dict[str, Any]:
        """Return the identity of the dataset."""
        return {"dataset": self.dataset.manifest.id, "steps": len(self)}

    def restore(self, state: Mapping[str, Any], steps: Iterable[tuple[Rows, TensorDictBase]]) -> None:  # noqa: ARG002
        """Do nothing if the state is this dataset's.

        Raises:
            SchemaMismatchError: the state is of another dataset.
        """
        if state != self.state_dict():
            raise SchemaMismatchError(f"checkpoint of {dict(state)}, expected {self.state_dict()}")


class DatasetTrajectoryIndex:
    """Which steps of a dataset follow each other; a row is a step.

    Attributes:
        table: the dataset's trajectories.
    """

    def __init__(self, trajectories: Trajectories) -> None:
        self.generation, self.table = first_generation(), trajectories
        self._start, self._length = trajectories.start, trajectories.length
        self._from_reset = trajectories.from_reset
        self._steps = int(self._length.sum())

    def __len__(self) -> int:
        return self._steps

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] the 0th, 1st, ... step: the same numbers."""
        return ordinals

    def locate(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return [n] the trajectory of each row and its place in it."""
        _check(rows, self._steps)
        trajectory = self._start.searchsorted(rows, side="right") - 1
        return trajectory, rows - self._start[trajectory]

    def remaining(self, rows: Rows) -> Rows:
        """Return [n] steps from each row to the end of its trajectory, itself included."""
        trajectory, elapsed = self.locate(rows)
        return self._length[trajectory] - elapsed

    def elapsed(self, rows: Rows) -> Rows:
        """Return [n] steps of the trajectory before each row."""
        return self.locate(rows)[1]

    def at_reset(self, rows: Rows) -> NDArray[np.bool_]:
        """Return [n] whether each row is the first step of its episode."""
        trajectory, elapsed = self.locate(rows)
        first: NDArray[np.bool_] = self._from_reset[trajectory] & (elapsed == 0)
        return first

    def follow(self, rows: Rows, steps: int) -> Rows:
        """Return [n, steps] each row and those that follow it; -1 after the end of the trajectory."""
        column = np.arange(steps)
        return np.where(column < self.remaining(rows)[:, None], rows[:, None] + column, -1)

    def after(self, rows: Rows, steps: Rows) -> Rows:
        """Return [n] the row ``steps`` after each row; -1 after the end of the trajectory."""
        return np.where(steps < self.remaining(rows), rows + steps, -1)

    def precede(self, rows: Rows, steps: int) -> Rows:
        """Return [n, steps] those that precede each row, oldest first, and itself last; -1 before the trajectory."""
        back = np.arange(steps)[::-1]
        return np.where(back <= self.elapsed(rows)[:, None], rows[:, None] - back, -1)

    def trajectories(self) -> tuple[Rows, Rows]:
        """Return [N] the first row, and [N] the steps, of every trajectory."""
        return self._start.copy(), self._length.copy()


def as_storage(steps: Storage | Dataset) -> Storage:
    """Return a storage of steps: the storage itself, or that of a dataset."""
    if isinstance(steps, Dataset):
        return DatasetStorage(steps)
    if isinstance(steps, str | os.PathLike):
        raise TypeError(
            f"storage: expected a rlx.buffer.Storage or a dataset, found {steps!r}: use rlx.open({steps!r})"
        )
    check_kind("storage", steps, Storage)
    return steps


def _check(rows: Rows, count: int) -> None:
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        bad = rows[(rows < 0) | (rows >= count)][0]
        raise IndexError(f"row {bad} is out of range for {count:,} steps")
