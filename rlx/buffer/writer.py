"""Writers: the rows that new steps go to."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDictBase
from tensordict.utils import expand_as_right

from rlx.buffer.index.continuity import ORIGIN
from rlx.buffer.protocol import Rows, Storage
from rlx.buffer.sampler.prioritized import REDUCE
from rlx.buffer.snapshot import SavedState
from rlx.buffer.storage.ring import RingStorage
from rlx.errors import SchemaMismatchError

RankReduction = Literal["sum", "max", "min", "median", "mean"]
_REDUCE: Mapping[str, Callable[..., NDArray[np.float64]]] = {"sum": np.sum, **REDUCE}


class RoundRobinWriter(SavedState):
    """Writer that appends, and overwrites the oldest steps once the storage is full.

    Args:
        track_generations: whether batches have ``index`` and ``index_generation``: which row a step was drawn from, and
            how many steps that row had held before. Copies of a batch keep them, so priorities of steps that have been
            overwritten since are left out.

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.buffer.LazyTensorStorage(4), writer=rlx.buffer.RoundRobinWriter())
        >>> buffer.extend(rlx.open("cartpole")[:6])
        tensor([0, 1, 2, 3, 0, 1])
    """

    def __init__(self, *, track_generations: bool = False) -> None:
        self.cursor = 0
        self.tracks_generations = track_generations

    def extend(self, storage: Storage, steps: TensorDictBase) -> Rows:
        """Write steps [*lanes, n]; return their rows, of the same shape."""
        rows = storage.append(steps)
        if rows.size:
            self.cursor = (int(rows[(0,) * (rows.ndim - 1)][-1]) + 1) % (storage.max_size // storage.lanes)
        return rows

    def empty(self) -> None:
        """Start at row 0 again."""
        self.cursor = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state that ``load_state_dict`` takes."""
        return {"cursor": self.cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self.cursor = int(state["cursor"])


class WholeEpisodeWriter(RoundRobinWriter):
    """``RoundRobinWriter`` that keeps no part of an episode: whole ones are dropped, the oldest first, to make room.

    When new steps overwrite the first steps of an episode, the rest of it is dropped too. The episode that is being
    written is never dropped, and its steps can be drawn. Steps of several environments are written as [envs, steps],
    into a storage of ``ndim=2``, in which every environment has a lane. Episodes are what ``storage.index`` finds.

    Args:
        traj_key: key that identifies trajectories; by default ("collector", "traj_ids"), or "episode".
        end_key: key, or list of keys, of the flags that end them; by default ("next", "done").
        track_generations: as in ``RoundRobinWriter``.

    Attributes:
        dropped: [n] the rows that the last ``extend`` dropped and that are empty now.

    Raises:
        SamplingError: (at a write, which is done) the steps of an episode are not in consecutive rows of a lane; or
            an episode has more steps than a lane has rows.

    Example:
        >>> writer = rlx.buffer.WholeEpisodeWriter()
        >>> buffer = rlx.ReplayBuffer(storage=rlx.buffer.LazyTensorStorage(80), writer=writer)
        >>> data = rlx.open("cartpole")
        >>> data.trajectories.length[:6]
        array([ 9, 11, 12, 14, 27, 21])
        >>> for number in range(6):
        ...     _ = buffer.extend(data.trajectory(number))
        >>> len(buffer)  # without the first two
        74
    """

    def __init__(
        self, traj_key: NestedKey | None = None, end_key: Any = None, *, track_generations: bool = False
    ) -> None:
        super().__init__(track_generations=track_generations)
        self.traj_key, self.end_key = traj_key, end_key
        self.dropped: Rows = np.empty(0, np.int64)

    def extend(self, storage: Storage, steps: TensorDictBase) -> Rows:
        """Write steps [*lanes, n]; return their rows, of the same shape."""
        if not isinstance(storage, RingStorage):
            raise TypeError(f"{storage!r}: expected a storage of rlx that can be written to")
        before = (slice(None),) * (storage.ndim - 1)
        *lanes, count = steps.batch_size[: storage.ndim]
        size = max(1, storage.max_size // max(1, math.prod(lanes)))
        rows, dropped = [], []
        # At most as many steps at once as a lane holds: steps that are overwritten before they are indexed may be part
        # of any episode.
        for start in range(0, max(1, count), size):
            rows.append(super().extend(storage, steps[(*before, slice(start, start + size))]))
            if len(storage):
                dropped.append(storage.drop_cut(self.traj_key, self.end_key))
        gone = np.unique(np.concatenate([np.empty(0, np.int64), *dropped]))
        self.dropped = np.setdiff1d(gone, storage.stored(gone), assume_unique=True)
        return np.concatenate(rows, axis=-1)


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """``RoundRobinWriter`` that also stores the row of every step as ``index`` (int64).

    Args:
        track_generations: as in ``RoundRobinWriter``.

    Example:
        >>> writer = rlx.buffer.TensorDictRoundRobinWriter()
        >>> buffer = rlx.buffer.TensorDictReplayBuffer(storage=rlx.buffer.LazyTensorStorage(100), writer=writer)
        >>> _ = buffer.extend(rlx.open("cartpole")[40:43])
        >>> buffer[:]["index"]
        tensor([0, 1, 2])
    """

    def extend(self, storage: Storage, steps: TensorDictBase) -> Rows:
        """Write steps [*lanes, n]; return their rows, of the same shape."""
        shape = steps.batch_size[: storage.ndim]
        lanes, count = shape[:-1].numel(), shape[-1]
        size = storage.max_size // max(1, lanes)
        start = self.cursor if storage.cursor is None else storage.cursor
        rows = np.arange(lanes)[:, None] * size + (start + np.arange(count)) % max(1, size)
        numbered = steps.copy()
        # The rows that steps were read from determine which continue each other; the rows they are written to do not.
        if ORIGIN not in numbered.keys():  # noqa: SIM118 (a TensorDict is no mapping of its keys)
            numbered.set(ORIGIN, numbered.get("index", torch.full(steps.batch_size, -1)))
        numbered.set("index", expand_as_right(torch.from_numpy(rows.reshape(shape)), steps))
        return super().extend(storage, numbered)


class ImmutableDatasetWriter(SavedState):
    """Writer that rejects all writes.

    Example:
        >>> data = rlx.open("cartpole")
        >>> buffer = rlx.ReplayBuffer(storage=data, writer=rlx.buffer.ImmutableDatasetWriter(), batch_size=4)
        >>> buffer.extend(data[:2])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        TypeError: DatasetStorage(...) is read-only: [2] steps cannot be written
    """

    def __init__(self) -> None:
        self.cursor = 0

    def extend(self, storage: Storage, steps: TensorDictBase) -> Rows:
        """Raise TypeError: stored steps are never changed."""
        raise TypeError(f"{storage!r} is read-only: {list(steps.batch_size)} steps cannot be written")

    def empty(self) -> None:
        """Raise TypeError: stored steps are never changed."""
        raise TypeError("a read-only storage cannot be emptied")

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


class TensorDictMaxValueWriter(SavedState):
    """Writer that keeps the highest-ranking steps: once the storage is full, a step replaces a lower one or is dropped.

    Args:
        rank_key: key by which steps are ranked; ("next", "reward") by default.
        reduction: how several numbers of one step are reduced to one.

    Raises:
        ValueError: the reduction is unknown.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> writer = rlx.buffer.TensorDictMaxValueWriter(rank_key="score")
        >>> buffer = rlx.buffer.TensorDictReplayBuffer(storage=rlx.buffer.LazyTensorStorage(3), writer=writer)
        >>> _ = buffer.extend(TensorDict({"score": torch.tensor([5, 1, 9, 7, 3])}, [5]))
        >>> buffer[:]["score"].sort().values
        tensor([5, 7, 9])
    """

    def __init__(self, rank_key: NestedKey | None = None, reduction: RankReduction = "sum") -> None:
        if reduction not in _REDUCE:
            raise ValueError(f"reduction {reduction!r}: expected one of {', '.join(_REDUCE)}")
        self.rank_key: NestedKey = ("next", "reward") if rank_key is None else rank_key
        self.reduction = reduction
        self.cursor = 0
        self._ranks: NDArray[np.float64] = np.empty(0)

    def extend(self, storage: Storage, steps: TensorDictBase) -> Rows:
        """Write the highest of steps [n]; return the row of each, -1 where it was dropped.

        Raises:
            SchemaMismatchError: steps have no rank, or the storage has lanes.
        """
        if storage.is_read_only or storage.ndim != 1:
            raise SchemaMismatchError(f"{storage!r} cannot rank steps: expected a writable storage of 1 dimension")
        found = steps.get(self.rank_key, None)
        if found is None:
            raise SchemaMismatchError(f"key {self.rank_key!r} is missing: expected a key to rank steps by")
        numbers = found.numpy(force=True).reshape(len(steps), -1).astype(np.float64)
        ranks = _REDUCE[self.reduction](numbers, axis=1)
        rows = np.full(len(steps), -1)
        fitting = min(len(steps), storage.max_size - len(storage))
        if fitting:
            rows[:fitting] = storage.append(steps[:fitting])
            self._ranks = np.append(self._ranks, ranks[:fitting])
        self._displace(storage, steps, ranks, rows, fitting)
        self.cursor = len(storage) % storage.max_size
        return rows

    def _displace(
        self, storage: Storage, steps: TensorDictBase, ranks: NDArray[np.float64], rows: Rows, done: int
    ) -> None:
        left = np.arange(done, len(ranks))
        # Of stored and new ones together the highest stay; a stable order lets stored ones stay where ranks are equal.
        order = np.argsort(-np.append(self._ranks, ranks[left]), kind="stable")
        stay = order[: len(self._ranks)]
        new = np.sort(left[stay[stay >= len(self._ranks)] - len(self._ranks)])
        if not len(new):
            return
        out = order[len(self._ranks) :]
        place = np.sort(out[out < len(self._ranks)])
        rows[:done][np.isin(rows[:done], place)] = -1
        storage.replace(place, steps[torch.from_numpy(new)])
        rows[new], self._ranks[place] = place, ranks[new]

    def empty(self) -> None:
        """Forget all ranks."""
        self.cursor, self._ranks = 0, np.empty(0)

    def state_dict(self) -> dict[str, Any]:
        """Return the ranks of the stored steps."""
        return {"cursor": self.cursor, "ranks": torch.from_numpy(self._ranks.copy())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self.cursor, self._ranks = int(state["cursor"]), state["ranks"].numpy().copy()
