"""Base of writable storages: lanes, schema and trajectories; subclasses define how steps are kept."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rlx.buffer.batch import steps_at
from rlx.buffer.index.continuity import (
    INDEX,
    IS_INIT,
    ORIGIN,
    Columns,
    Evidence,
    Facts,
    Flags,
    Leaves,
    Path,
    Provenance,
    observed,
)
from rlx.buffer.index.ring import Changes, Ring
from rlx.buffer.index.trajectory_index import RingTrajectoryIndex
from rlx.buffer.protocol import Keys, Rows, Steps, Storage, TrajectoryIndex
from rlx.buffer.snapshot import SavedSteps
from rlx.buffer.storage.step_schema import (
    StepSchema,
    Texts,
    TrajectoryKeys,
    accelerator_of,
    fitted,
    in_numpy,
    in_torch,
    leaves_of,
    nested,
    schema_of,
)
from rlx.errors import SamplingError, SchemaMismatchError
from rlx.numbers import array_of, check_whole
from rlx.transform.protocol import as_path

# Keys that say where a step comes from.
_TOLD: frozenset[Path] = frozenset({ORIGIN, INDEX, IS_INIT})


class RingStorage(SavedSteps, Storage, ABC):
    """Base of storages that keep steps in rings of rows.

    Args:
        max_size: maximum number of steps, over all lanes.
        ndim: dimensions of the written steps: those of the lanes, then time.
    """

    takes_leaves = True

    def __init__(self, max_size: int, *, ndim: int = 1) -> None:
        # 1e6 is a size too, as in TorchRL.
        check_whole("max_size", int(max_size) if isinstance(max_size, float) and max_size % 1 == 0 else max_size)
        check_whole("ndim", ndim)
        self.max_size = int(max_size)
        self.ndim = ndim
        self._schema: StepSchema = {}
        self._lane_shape: tuple[int, ...] = ()
        self._row_shape: tuple[int, ...] = ()
        self._ring = Ring(self.max_size)
        self._provenance = Provenance(self.max_size)
        self._texts = Texts()
        self._indices: dict[TrajectoryKeys, RingTrajectoryIndex] = {}
        self._changes: list[Changes] = []
        self._is_dropping = False  # whether steps were dropped that no new ones overwrote
        self._first_generation = 0  # of steps since the storage was emptied
        self._replaced: NDArray[np.int32] | None = None  # how often steps were replaced out of turn, by row

    def track_changes(self) -> Changes:
        """Return the set of rows that are written from now on; ``untrack_changes`` ends it."""
        self._changes.append(Changes(self.max_size))
        return self._changes[-1]

    def untrack_changes(self, changes: Changes) -> None:
        """Stop adding to a set of ``track_changes``."""
        self._changes.remove(changes)

    def stored(self, rows: Rows) -> Rows:
        """Return the rows among these that hold a step."""
        return rows[self._ring.holds(rows)]

    @property
    def has_gaps(self) -> bool:
        """Whether other rows than the first ones of every lane are stored: steps were dropped before new ones came."""
        return self._is_dropping and self._ring.has_gaps

    def drop_cut(self, traj_key: Any = None, end_key: Any = None) -> Rows:
        """Drop the steps of trajectories whose first steps were overwritten; return [n] their rows.

        Args:
            traj_key, end_key: as for ``index``.

        Raises:
            SamplingError: trajectories are interleaved in a lane, one is longer than its lane, or none is known.
        """
        index = self.index(traj_key, end_key)
        assert isinstance(index, RingTrajectoryIndex)
        heads = index.whole_from()
        if (heads <= self._ring.head).all():
            return np.empty(0, np.int64)
        for known in self._indices.values():
            known.before_overwriting(heads)
        self._is_dropping = True
        rows = self._ring.drop(heads)
        for changes in self._changes:
            changes.note(rows)
        return rows

    @abstractmethod
    def _allocate(self) -> None:
        """Make room for steps of the schema."""

    def _announce(self, new: int) -> None:
        """Prepare for a write that adds at most ``new`` steps to a lane, or changes stored ones."""

    @abstractmethod
    def _write(self, rows: Rows, leaves: Leaves) -> None:
        """Write leaves [n, ...] at rows [n], each once."""

    @abstractmethod
    def _read(self, rows: Rows, paths: Sequence[Path], *, may_be_arrays: bool = False) -> Columns:
        """Return copies of these leaves at rows [n] that hold something: tensors, or else arrays too."""

    def _append(self, rows: Rows, leaves: Columns) -> None:
        """Write leaves [*lane_shape, n, ...] at rows [lanes, n], which follow each other in the rings of all lanes.

        Of a single step the leaves may lack the dimension of time.
        """
        flat = {path: in_torch(leaf).reshape(rows.size, *self._schema[path][1]) for path, leaf in leaves.items()}
        self._write(rows.reshape(-1), flat)

    def __len__(self) -> int:
        return len(self._ring)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_size={self.max_size:,}, ndim={self.ndim}, steps={len(self):,})"

    @property
    def lane_shape(self) -> tuple[int, ...]:
        """The leading dimensions of written steps; one lane per element."""
        return self._lane_shape

    @property
    def lanes(self) -> int:
        """Number of rings that the rows are split into."""
        return self._ring.lanes

    @property
    def cursor(self) -> int:
        """The row of the first lane that is written next."""
        return int(self._ring.tail[0]) % self._ring.size

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] the rows of the 0th, 1st, ... stored step, lane by lane, oldest first."""
        return self._ring.row_at(ordinals)

    def generations_of(self, rows: Rows) -> Rows:
        """Return [n] a number for the step at each row: how often the row was written before, also before the storage
        was emptied or restored; -1 of empty rows."""
        found = self._ring.generation(rows)
        if self._replaced is not None:
            found += self._replaced[rows]
        if self.has_gaps:
            found = np.where(self._ring.holds(rows), found, -1)
        return np.where(found < 0, -1, found + self._first_generation) if self._first_generation else found

    def skip_generations(self, count: int) -> None:
        """Leave out generations, which steps of another process may have had."""
        self._first_generation += count

    def has(self, key: Any) -> bool:
        """Return whether every step has this leaf; false before the first write."""
        return as_path(key) in self._schema

    def has_below(self, key: Any) -> bool:
        """Return whether every step has this leaf, or one below it; false before the first write."""
        path = as_path(key)
        return any(stored[: len(path)] == path for stored in self._schema)

    def get(self, rows: Any, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows, in the order asked for; a copy.

        Args:
            rows: [n] rows; or what ``buffer[...]`` takes, a list, a slice or a row, and the steps have that shape.
            keys: TED keys to read, each a leaf or a group (``"next"``); all by default.

        Raises:
            IndexError: a row is empty or out of range.
            KeyError: a key that is not stored.
        """
        if not isinstance(rows, np.ndarray):
            return steps_at(rows, self, keys)
        leaves = self.get_leaves(rows, keys)
        return TensorDict(nested(leaves), [len(rows), *self._row_shape], device=accelerator_of(leaves))

    def get_leaves(self, rows: Rows, keys: Keys | None = None, *, may_be_arrays: bool = False) -> Mapping[Path, Any]:
        """Return the leaves [n, ...] of the steps at these rows, by path; as ``get``.

        Args:
            may_be_arrays: whether they may be arrays of numpy, where that is how they are kept.
        """
        self._ring.check(rows)
        paths = list(self._schema) if keys is None else self._chosen(keys)
        leaves = self._read(rows, paths, may_be_arrays=may_be_arrays)
        return self._texts.decoded(leaves) if self._texts.paths else leaves

    def get_encoded(self, rows: Rows) -> TensorDictBase:
        """Return the steps [n] at these rows, texts as the numbers of ``state_dict()["texts"]``."""
        return TensorDict(nested(self._read(rows, list(self._schema))), [len(rows)])

    def _leaves(self, steps: Steps) -> Columns:
        if not isinstance(steps, TensorDictBase):
            return steps
        if self._texts.is_full and len(self):
            rows = self._ring.row_at(np.arange(len(self)))
            self._texts.keep(list(self._read(rows, sorted(self._texts.paths)).values()))
        return self._texts.leaves(steps, settled=bool(self._schema))

    def __getitem__(self, index: Any) -> TensorDictBase:
        """Return the steps at rows, which a buffer's own index names the same way; a copy.

        Raises:
            IndexError: a row is empty or out of range.
        """
        return steps_at(index, self)

    def _chosen(self, keys: Keys) -> list[Path]:
        chosen: dict[Path, None] = {}
        for key in keys:
            path = as_path(key)
            below = [stored for stored in self._schema if stored[: len(path)] == path]
            if not below:
                raise KeyError(f"{'/'.join(path)!r} is not stored")
            chosen |= dict.fromkeys(below)
        return list(chosen)

    def append(self, steps: Steps, *, is_step: bool = False) -> Rows:
        """Append steps [*lane_shape, n] to their lanes; return their rows, of the same shape.

        Further dimensions belong to a row: [B, T] into a storage of one dimension are B rows of T steps each.

        Args:
            steps: the steps, or their leaves [*lane_shape, n, ...] by path.
            is_step: whether they are leaves [*lane_shape, ...] of one step.

        Raises:
            SchemaMismatchError: keys, dtypes, shapes or lanes other than the first write's; nothing is written.
        """
        given = self._leaves(steps)
        if isinstance(steps, TensorDictBase):
            shape, row_shape = tuple(steps.batch_size[: self.ndim]), tuple(steps.batch_size[self.ndim :])
        else:
            shape, row_shape = tuple(next(iter(given.values())).shape[: self.ndim - is_step]) + (1,) * is_step, ()
        if len(shape) != self.ndim:
            raise SchemaMismatchError(f"steps of shape {list(shape)}: expected {self.ndim} dimensions")
        leaves = self._admit(given, shape, row_shape, is_step=is_step)
        ring, count = self._ring, shape[-1]
        if self._indices and count:
            for index in self._indices.values():
                index.before_overwriting(ring.tail + count - ring.size)
            if count > ring.size:  # steps that are overwritten at once are indexed, too
                parts = slice(count - ring.size), slice(count - ring.size, None)
                return np.concatenate([self.append(_between(given, self.ndim - 1, part)) for part in parts], axis=-1)
        rows = ring.next_rows(count)
        if kept := min(count, ring.size):
            written = rows
            if kept < count:
                written = rows[:, count - kept :]
                leaves = _between(leaves, self.ndim - 1, slice(count - kept, None))
            self._announce(count)
            self._append(written, leaves)
            self._note(written, given)
            ring.push(slice(None), count)
            self._wrote(written, given)
        return rows if self.ndim == 2 else rows.reshape(shape)

    def _note(self, rows: Rows, given: Columns) -> None:
        """Take note of where the steps [lanes, n] of a write come from; of more steps, the last of each lane count."""
        lanes, count = rows.shape
        told: dict[Path, NDArray[Any]] = {}
        for path in () if _TOLD.isdisjoint(given) else _TOLD & given.keys():
            leaf = in_numpy(given[path])
            one_each = math.prod(leaf.shape[self.ndim :]) == 1 and leaf.size >= rows.size
            if one_each and leaf.dtype.kind == ("b" if path == IS_INIT else "i"):
                told[path] = leaf.reshape(lanes, -1)[:, -count:]
        self._provenance.note(rows, told.get(ORIGIN, told.get(INDEX)), told.get(IS_INIT))

    def _wrote(self, rows: Rows, given: Columns) -> None:
        for changes in self._changes:
            changes.note(rows)
        if IS_INIT in self._schema and IS_INIT not in given:
            with suppress(SamplingError):  # no trajectories in these steps
                first = rows[self.index().at_reset(rows.reshape(-1)).reshape(rows.shape)]
                steps = dict(self._read(first, list(self._schema)))
                self._write(first, steps | {IS_INIT: torch.ones_like(steps[IS_INIT])})

    def _admit(
        self, given: Columns, shape: tuple[int, ...], row_shape: tuple[int, ...] = (), *, is_step: bool = False
    ) -> Columns:
        """Return the leaves to be stored of steps [*lane_shape, n], or of one step [*lane_shape]; the first settle the
        schema and the lanes."""
        lane_shape = shape[:-1]
        leading = lane_shape if is_step else shape
        if not self._schema:
            schema = schema_of({path: in_torch(leaf) for path, leaf in given.items() if path != ORIGIN}, len(leading))
            self._lay_out(lane_shape)
            self._schema, self._row_shape = schema, row_shape
            self._allocate()
        if row_shape != self._row_shape:
            raise SchemaMismatchError(
                f"rows of shape {list(row_shape)}: expected {list(self._row_shape)}, the shape of the first",
                hint=None if self._row_shape else "reshape(-1) makes single steps of trajectories",
            )
        leaves = fitted(given, self._schema, leading)
        if lane_shape != self._lane_shape:
            if len(self):
                raise SchemaMismatchError(f"lanes of shape {list(lane_shape)}: expected {list(self._lane_shape)}")
            self._lay_out(lane_shape)
        return leaves

    def _lay_out(self, lane_shape: tuple[int, ...]) -> None:
        lanes = int(np.prod(lane_shape, dtype=np.int64))
        if not 1 <= lanes <= self.max_size:
            raise SchemaMismatchError(f"{lanes} lanes: expected 1 to {self.max_size:,}, the storage's max_size")
        self._first_generation, self._replaced = self._next_generation(), None
        self._is_dropping = False
        self._lane_shape, self._ring = lane_shape, Ring(self.max_size // lanes, lanes)
        self._provenance = Provenance(self._ring.size * lanes)
        self._indices.clear()
        for changes in self._changes:
            changes.reset()

    def _next_generation(self) -> int:
        """Return a generation that is above all others."""
        replaced = 0 if self._replaced is None else int(self._replaced.max())
        return self._first_generation + replaced + int(self._ring.tail.max() - 1) // self._ring.size + 1

    def set(self, rows: Any, steps: TensorDictBase) -> None:
        """Write new steps [n] at rows: appended where they continue their lanes; elsewhere each step follows no other.

        Args:
            rows: [n] rows; or a list, a tensor or a slice of them, or one row for one step.

        Raises:
            IndexError: a row is empty and does not continue its lane.
            SchemaMismatchError: as for ``append``.
        """
        if not isinstance(rows, np.ndarray):
            named = range(*rows.indices(self.max_size)) if isinstance(rows, slice) else rows
            rows = array_of(named, np.int64)
            steps = steps if rows.ndim else steps.unsqueeze(0)
            rows = rows.reshape(-1)
        given = self._leaves(steps)
        if self.ndim == 1 or not len(self):
            self._settle_first(given, len(rows))
        leaves = fitted(given, self._schema, rows.shape)
        if not self._ring.continues(rows):
            self.replace(rows, steps)
            return
        if self.lanes == 1:
            self.append(steps)
            return
        # Steps of all lanes are indexed call by call, which keeps the order of writing across lanes.
        for index in self._indices.values():
            index.catch_up()
        lanes, first, count = np.unique(rows // self._ring.size, return_index=True, return_counts=True)
        self._announce(int(count.max(initial=0)))
        self._write_last(rows, leaves)
        self._ring.push(lanes, count)
        for start, stop in zip(first.tolist(), (first + count).tolist(), strict=True):
            kept = slice(max(start, stop - self._ring.size), stop)
            self._note(rows[None, kept], {path: leaf[kept] for path, leaf in given.items() if path in _TOLD})
        self._wrote(rows, given)
        for index in self._indices.values():
            index.catch_up()

    def _settle_first(self, given: Columns, count: int) -> None:
        if not self._schema:
            if self.ndim > 1:
                raise SchemaMismatchError(
                    "the first write to a storage with lanes: expected append, which sets the lanes"
                )
            self._admit(given, (count,))

    def replace(self, rows: Rows, steps: TensorDictBase) -> None:
        """Replace stored steps by other steps [n], which neither continue nor precede any other step."""
        given = self._leaves(steps)
        blank = fitted(given, self._schema, rows.shape)
        if IS_INIT in blank and IS_INIT not in given:
            blank[IS_INIT] = torch.ones_like(blank[IS_INIT])
        self._overwrite(rows, blank)
        if self._replaced is None:
            self._replaced = np.zeros(self.max_size, np.int32)
        np.add.at(self._replaced, rows, 1)
        self._provenance.replace(rows)
        for index in self._indices.values():
            index.changed(rows)

    def update(self, rows: Rows, steps: TensorDictBase) -> None:
        """Change the stored steps [n] at rows; their order in time is unchanged.

        Raises:
            IndexError: a row is empty or out of range.
            SchemaMismatchError: as for ``append``.
        """
        before = {keys: self._said(keys, rows) for keys in self._indices} if len(rows) else {}
        given = self._leaves(steps)
        kept = [path for path in (INDEX, IS_INIT) if path in self._schema and path not in given]
        self._ring.check(rows)
        self._overwrite(rows, {**fitted(given, self._schema, rows.shape), **self._read(rows, kept)})
        for keys, old in before.items():
            ids, done = self._said(keys, rows)
            if (done != old[1]).any() or (ids is not None and (ids != old[0]).any()):
                self._indices[keys].changed(np.empty(0, np.int64))

    def _overwrite(self, rows: Rows, leaves: Leaves) -> None:
        self._ring.check(rows)
        self._announce(0)
        self._write_last(rows, leaves)
        for changes in self._changes:
            changes.note(rows)

    def _write_last(self, rows: Rows, leaves: Leaves) -> None:
        """Write leaves [n, ...] at rows [n], of which the last of equal ones stays."""
        last = _last_of(rows)
        self._write(rows[last], {path: leaf[torch.from_numpy(last)] for path, leaf in leaves.items()})

    def index(self, traj_key: Any = None, end_key: Any = None) -> TrajectoryIndex:
        """Return the index by these keys; by default ("collector", "traj_ids"), "episode" or ("next", "done").

        Raises:
            SamplingError: the keys are not stored, or no key that identifies trajectories is.
        """
        if not self._schema:
            return RingTrajectoryIndex(self._ring.size)
        if self._row_shape:
            raise SamplingError(
                f"rows of shape {list(self._row_shape)}: expected single steps, to be cut into slices",
                hint=f"give the storage ndim={self.ndim + len(self._row_shape)}, or extend with steps.reshape(-1)",
            )
        keys = TrajectoryKeys.find(self._schema, traj_key, end_key)
        if keys not in self._indices:
            columns = partial(self._facts, keys)
            self._indices[keys] = RingTrajectoryIndex(self._ring.size, self.lanes, ring=self._ring, columns=columns)
        return self._indices[keys]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Dimensions of written steps that belong to a row."""
        return self._row_shape

    @property
    def contradictions(self) -> int:
        """Number of steps whose observations contradict their ids, as far as trajectories were asked for."""
        return sum(index.contradictions for index in self._indices.values())

    def _said(self, keys: TrajectoryKeys, rows: Rows) -> tuple[Rows | None, Flags]:
        """Return ids (or None) and ends of the steps at rows."""
        self._ring.check(rows)
        return keys.read(self._read(rows, keys.leaves), len(rows))

    def _facts(self, keys: TrajectoryKeys, rows: Rows) -> Facts:
        """Return what is declared of the steps at rows."""
        told, ring = self._provenance, self._ring
        ids, ends = self._said(keys, rows)
        lane, time = ring.locate(rows)
        cut = told.replaced(rows) | (told.replaced(ring.row(lane, time - 1)) & (time > ring.head[lane]))
        if keys.is_named:
            return Facts(rows, ids, ends, cut, cut, told.begins(rows), None)
        starts = told.starts(rows)
        late = told.continues(rows) | (cut & ~starts)
        return Facts(rows, ids, ends, cut | starts, late, told.begins(rows), self._evidence())

    def _evidence(self) -> Evidence | None:
        """Return what tells sources apart that bring the same id."""
        schema = self._schema
        paths = [path for path in observed(schema, self.observation_keys) if schema[path] == schema["next", *path]]
        if not paths and self._provenance.origin is None:
            return None
        return Evidence(
            partial(self._observations, paths),
            self._provenance.origin,
            has_observations=bool(paths),
            shared=self._shared(paths),
        )

    def _shared(self, paths: Sequence[Path]) -> Callable[[Rows, Rows], Flags] | None:  # noqa: ARG002
        """Return what knows without reading them that next observations and observations are the same, if anything."""
        return None

    def _observations(self, paths: Sequence[Path], rows: Rows, after: bool) -> Sequence[torch.Tensor]:
        """Return these observations of the steps at rows, now or (True) next."""
        chosen = [("next", *path) if after else path for path in paths]
        leaves = self._read(rows, chosen)
        return [leaves[path] for path in chosen]

    def empty(self) -> None:
        """Remove all steps; keep the schema."""
        self._lay_out(self._lane_shape)

    def state_dict(self) -> dict[str, Any]:
        """Return where its lanes stand and which rows follow each other, without the steps."""
        return {
            "lane_shape": list(self._lane_shape),
            "row_shape": list(self._row_shape),
            "texts": self._texts.state_dict(),
            "head": torch.from_numpy(self._ring.head.copy()),
            "tail": torch.from_numpy(self._ring.tail.copy()),
            "provenance": self._provenance.state_dict(self._ring.row_at(np.arange(len(self)))),
            "first_generation": self._first_generation,
            "replaced": None if self._replaced is None else torch.from_numpy(self._replaced.copy()),
            "indices": [
                {
                    "ids": None if keys.ids is None else list(keys.ids),
                    "ends": [list(path) for path in keys.ends],
                    "named": keys.is_named,
                }
                | index.state_dict()
                for keys, index in self._indices.items()
            ],
        }

    def restore(self, state: Mapping[str, Any], steps: Iterable[tuple[Rows, TensorDictBase]]) -> None:
        """Restore the state of a storage of the same ``max_size`` and ``ndim``.

        Args:
            state: the other's ``state_dict``.
            steps: blocks of all its steps: rows [n] and the steps [n] at them.

        Raises:
            SchemaMismatchError: the state does not fit, or steps are not of the schema.
        """
        ring = _restored_ring(state, self.max_size, self.ndim)
        self._lay_out(tuple(state["lane_shape"]))
        self.empty()
        self._texts = Texts.restored(state.get("texts", Texts().state_dict()))
        missing = len(ring)
        for given_rows, given_block in steps:
            rows, block = given_rows, given_block
            if not (held := ring.holds(rows)).all():  # steps that were dropped
                rows, block = rows[held], block[torch.from_numpy(held)]
            missing -= len(rows)
            given = leaves_of(block)
            if not self._schema:
                self._schema = schema_of(given, 1)
                self._allocate()
            self._announce(len(rows))
            self._write(rows, fitted(given, self._schema, rows.shape))
            for changes in self._changes:
                changes.note(rows)
        if missing:
            raise SchemaMismatchError(f"checkpoint: {len(ring) - missing:,} steps, expected {len(ring):,}")
        self._ring, self._row_shape = ring, tuple(state.get("row_shape", ()))
        self._is_dropping = ring.has_gaps
        if told := state.get("provenance", state.get("seams")):
            self._provenance.load_state_dict(told, ring.row_at(np.arange(len(ring))))
        # Higher than all generations of this storage: steps drawn from it before are not the restored ones.
        self._first_generation = max(self._first_generation, state.get("first_generation", 0))
        self._replaced = None if (replaced := state.get("replaced")) is None else replaced.numpy().copy()
        for saved in state["indices"]:
            ids = None if saved["ids"] is None else tuple(saved["ids"])
            keys = TrajectoryKeys(ids, tuple(tuple(path) for path in saved["ends"]))
            # Older states do not say so; indices by default keys are those of no name.
            if saved.get("named", keys not in _default_keys(self._schema)):
                keys = replace(keys, is_named=True)
            self._indices[keys] = RingTrajectoryIndex.restored(ring, partial(self._facts, keys), saved)


def _default_keys(schema: StepSchema) -> list[TrajectoryKeys]:
    """Return the keys that identify trajectories by default; an empty result without such keys."""
    try:
        return [TrajectoryKeys.find(schema)]
    except SamplingError:
        return []


def _between(leaves: Columns, dim: int, steps: slice) -> Columns:
    """Return the leaves of some steps along a dimension."""
    chosen = (*[slice(None)] * dim, steps)
    return {path: leaf[chosen] for path, leaf in leaves.items()}


def _restored_ring(state: Mapping[str, Any], max_size: int, ndim: int) -> Ring:
    shape, head, tail = tuple(state["lane_shape"]), state["head"].numpy(), state["tail"].numpy()
    lanes = int(np.prod(shape, dtype=np.int64))
    if (
        len(shape) not in (0, ndim - 1)
        or not 1 <= lanes <= max_size
        or head.shape != (lanes,)
        or tail.shape != (lanes,)
    ):
        raise SchemaMismatchError(f"checkpoint: lanes of shape {list(shape)}, expected {ndim - 1} dimensions")
    ring = Ring(max_size // lanes, lanes)
    if ((head < 0) | (tail < head) | (tail - head > ring.size)).any():
        raise SchemaMismatchError(f"checkpoint: lanes longer than the {ring.size:,} rows they have")
    ring.head, ring.tail = head.astype(np.int64), tail.astype(np.int64)
    return ring


def _last_of(rows: Rows) -> Rows:
    """Return [m] where each row comes up for the last time, ascending."""
    _, first = np.unique(rows[::-1], return_index=True)
    return np.sort(len(rows) - 1 - first)
