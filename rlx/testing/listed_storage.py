"""A storage and an index as slow and plain as can be, for samplers to be held against."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDict, TensorDictBase

from rlx.buffer.index.trajectory_index import RingTrajectoryIndex
from rlx.buffer.protocol import Keys, Rows, Storage


class ListedStorage(Storage):
    """Steps in a list; ``trajectories`` are put together anew, from all that was ever written, with every write."""

    def __init__(self, max_size: int, lanes: int = 1, extra: Sequence[str] = ()) -> None:
        self.max_size, self._lanes, self.ndim = max_size, lanes, 1 if lanes == 1 else 2
        self.generation = 0
        self.extra = extra
        self.log: list[tuple[int, int, bool]] = []  # row, trajectory id, done
        self.steps: dict[int, dict[Any, Any]] = {}
        self.heads = [0] * lanes
        self.paths: list[list[int]] = []  # the stored rows of every trajectory
        self.from_reset: list[bool] = []
        self.place: dict[int, tuple[int, int]] = {}  # row -> path, place in it

    def write(self, *steps: tuple[int, str], lane: int = 0) -> Rows:
        """Appends steps: (trajectory id, "" or "terminated" or "truncated")."""
        size, rows = self.max_size // self.lanes, []
        for ident, end in steps:
            row = lane * size + self.heads[lane] % size
            self.heads[lane] += 1
            self.log.append((row, ident, end != ""))
            self.steps[row] = {"number": len(self.log) - 1, "end": end}
            rows.append(row)
        self._index()
        return np.array(rows, np.int64)

    def _index(self) -> None:
        self.generation += 1
        newest = {row: number for number, (row, _, _) in enumerate(self.log)}
        paths: list[list[int]] = []
        open_paths: dict[int, int] = {}
        for number, (_, ident, done) in enumerate(self.log):
            if ident not in open_paths:
                open_paths[ident] = len(paths)
                paths.append([])
            paths[open_paths[ident]].append(number)
            if done:
                del open_paths[ident]
        self.paths, self.from_reset = [], []
        for path in paths:
            kept = [self.log[n][0] for n in path if newest[self.log[n][0]] == n]
            if kept:
                self.paths.append(kept)
                self.from_reset.append(newest[self.log[path[0]][0]] == path[0])
        self.place = {row: (p, i) for p, path in enumerate(self.paths) for i, row in enumerate(path)}

    def starts(self, slice_len: int, *, strict: bool = True) -> list[int]:
        """Every valid start."""
        return sorted(
            row
            for path in self.paths
            for i, row in enumerate(path)
            if len(path) - i >= slice_len or (not strict and i == 0)
        )

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def lanes(self) -> int:
        return self._lanes

    @property
    def lane_shape(self) -> tuple[int, ...]:
        return (self.lanes,) if self.ndim > 1 else ()

    def row_at(self, ordinals: Rows) -> Rows:
        return np.array(sorted(self.steps), np.int64)[ordinals]

    def has(self, key: NestedKey) -> bool:
        return key in (("next", "done"), ("next", "truncated"), ("next", "terminated"), *self.extra)

    def get(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        ends = [self.steps[row]["end"] for row in rows.tolist()]
        flags: dict[Any, list[bool]] = {
            ("next", "done"): [end != "" for end in ends],
            ("next", "truncated"): [end == "truncated" for end in ends],
            ("next", "terminated"): [end == "terminated" for end in ends],
            "is_init": [self.place[row][1] == 0 for row in rows.tolist()],
        }
        chosen = flags if keys is None else {key: flags[key] for key in keys}
        batch = TensorDict({}, [len(rows)])
        for key, values in chosen.items():
            batch.set(key, torch.tensor(values).reshape(-1, 1))
        return batch

    def append(self, steps: TensorDictBase) -> Rows:
        raise NotImplementedError

    def set(self, rows: Rows, steps: TensorDictBase) -> None:
        raise NotImplementedError

    def replace(self, rows: Rows, steps: TensorDictBase) -> None:
        raise NotImplementedError

    def update(self, rows: Rows, steps: TensorDictBase) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any], steps: Any) -> None:
        raise NotImplementedError

    def empty(self) -> None:
        self.log, self.steps, self.heads = [], {}, [0] * self.lanes
        self._index()

    def index(self, traj_key: Any = None, end_key: Any = None) -> "ListedIndex":
        return ListedIndex(self, traj_key, end_key)


class RingedStorage(ListedStorage):
    """The same with the index that real storages have; what the samplers are held against stays the slow one's."""

    def index(self, traj_key: Any = None, end_key: Any = None) -> Any:  # noqa: ARG002
        if self.known != self.generation:
            self.ring, self.known = RingTrajectoryIndex(self.max_size // self.lanes, self.lanes), self.generation
            for row, ident, done in self.log:
                self.ring.write(np.array([row]), np.array([ident]), np.array([done]))
            self.ring._generation = self.generation
        return self.ring

    known = -1
    ring: RingTrajectoryIndex


class ListedIndex:
    """The index of a ListedStorage, and the keys it was asked for by."""

    def __init__(self, storage: ListedStorage, traj_key: Any, end_key: Any) -> None:
        self.storage, self.keys = storage, (traj_key, end_key)

    @property
    def generation(self) -> int:
        return self.storage.generation

    def __len__(self) -> int:
        return len(self.storage)

    def row_at(self, ordinals: Rows) -> Rows:
        return self.storage.row_at(ordinals)

    def remaining(self, rows: Rows) -> Rows:
        places = [self.storage.place[row] for row in rows.tolist()]
        return np.array([len(self.storage.paths[p]) - i for p, i in places], np.int64)

    def elapsed(self, rows: Rows) -> Rows:
        return np.array([self.storage.place[row][1] for row in rows.tolist()], np.int64)

    def at_reset(self, rows: Rows) -> NDArray[np.bool_]:
        places = [self.storage.place[row] for row in rows.tolist()]
        return np.array([i == 0 and self.storage.from_reset[p] for p, i in places], bool)

    def follow(self, rows: Rows, steps: int) -> Rows:
        table = [[self._at(row, k) for k in range(steps)] for row in rows.tolist()]
        return np.array(table, np.int64).reshape(len(rows), steps)

    def after(self, rows: Rows, steps: Rows) -> Rows:
        return np.array([self._at(row, k) for row, k in zip(rows.tolist(), steps.tolist(), strict=True)], np.int64)

    def precede(self, rows: Rows, steps: int) -> Rows:
        table = [[self._at(row, k) for k in range(1 - steps, 1)] for row in rows.tolist()]
        return np.array(table, np.int64).reshape(len(rows), steps)

    def trajectories(self) -> tuple[Rows, Rows]:
        paths = self.storage.paths
        return np.array([p[0] for p in paths], np.int64), np.array([len(p) for p in paths], np.int64)

    def _at(self, row: int, steps: int) -> int:
        path, place = self.storage.place[row]
        rows = self.storage.paths[path]
        return rows[place + steps] if 0 <= place + steps < len(rows) else -1


def episodes(storage: ListedStorage, *lengths: int, end: str = "terminated") -> ListedStorage:
    """Writes whole episodes of these lengths, one after the other; ids go on from 0."""
    for ident, length in enumerate(lengths):
        storage.write(*[(ident, "")] * (length - 1), (ident, end))
    return storage
