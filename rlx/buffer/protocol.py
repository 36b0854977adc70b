"""Protocols of the parts of a replay buffer: storage, sampler, writer, trajectory index.

A *row* is the index of one step in a storage: 0 to ``max_size``. A storage of ``ndim`` 1 has one lane; of more
dimensions, one lane for every element of the leading dimensions of the written steps (``[B, T]``: B lanes). Every lane
is a ring of ``max_size // lanes`` rows; the rows of lane b are ``[b * size, (b + 1) * size)``.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDictBase

from rlx.store.step_reader import Stack
from rlx.transform.protocol import Neighbours
from rlx.wording import first_of

Rows = NDArray[np.int64]
Keys = Sequence[NestedKey]
# Steps [*lane_shape, n]: a TensorDict, or the leaves of one by path.
Steps = TensorDictBase | Mapping[tuple[str, ...], torch.Tensor]
_MAX_MISSING = 3  # members that a message names


class TrajectoryIndex(Neighbours, Protocol):
    """Order of the stored rows in time, whatever the order of writing.

    It is brought up to date when somebody asks, in time proportional to the steps that were written since.
    """

    @property
    def generation(self) -> int:
        """Changes with every write, and differs between indices, so that caches can be checked."""

    def __len__(self) -> int:
        """Return the number of stored rows."""

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] the rows that hold the 0th, 1st, ... stored step, lane by lane, oldest first."""

    def elapsed(self, rows: Rows) -> Rows:
        """Return [n] stored steps of the trajectory before each row."""

    def at_reset(self, rows: Rows) -> NDArray[np.bool_]:
        """Return [n] whether each row is the first step of its episode, not the oldest left of an overwritten one."""

    def trajectories(self) -> tuple[Rows, Rows]:
        """Return [N] the first row, and [N] the stored steps, of every trajectory, in the order of their first
        write."""


class Storage(Protocol):
    """Storage of steps at rows; a storage of your own may subclass it for the defaults below.

    Attributes:
        max_size: maximum number of steps, over all lanes.
        ndim: dimensions of the written steps: those of the lanes, then time.
        is_read_only: whether its steps are those of a dataset on disk, which checkpoints name instead of copying.
        is_in_files: whether a process that unpickles it shares the files instead of copying the steps,
            and a snapshot is written under the buffer's lock instead of from a copy.
        steps_may_differ: whether steps may differ in shapes and keys.
        takes_leaves: whether it takes and gives leaves by path too, as rlx's own storages do.
        observation_keys: keys of observations, beside ``observation`` and ``pixels``.

    Example:
        >>> storage: rlx.buffer.Storage = rlx.buffer.LazyTensorStorage(100)
        >>> storage.append(rlx.open("cartpole")[:3])
        array([0, 1, 2])
    """

    max_size: int
    ndim: int
    is_read_only: bool = False
    is_in_files: bool = False
    steps_may_differ: bool = False
    takes_leaves: bool = False
    observation_keys: Collection[tuple[str, ...]] = ()

    def __len__(self) -> int:
        """Return the number of stored rows."""

    @property
    def lane_shape(self) -> tuple[int, ...]:
        """The leading dimensions of written steps, ``ndim - 1`` of them after the first write; one lane per element."""

    @property
    def lanes(self) -> int:
        """Number of rings that the rows are split into; 1 before the first write."""

    @property
    def cursor(self) -> int | None:
        """The row of the first lane that is written next; None if only the writer counts."""
        return None

    @property
    def has_gaps(self) -> bool:
        """Whether other rows than the first ones of every lane are stored: steps were dropped before new ones came."""
        return False

    def stored(self, rows: Rows) -> Rows:
        """Return the rows among these that hold a step."""
        return rows

    @property
    def contradictions(self) -> int:
        """Number of steps whose observations contradict their trajectory ids, among those looked at so far."""
        return 0

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] the rows of the 0th, 1st, ... stored step, lane by lane, oldest first; needs no trajectories."""

    def generations_of(self, rows: Rows) -> Rows:
        """Return [n] a number for the step at each row, which no other step there has had or will have; -1 of empty
        rows.

        It says whether a row still holds the step that was drawn. By default 0: rows keep their steps.
        """
        return np.zeros(rows.shape, np.int64)

    def has(self, key: NestedKey) -> bool:
        """Return whether every step has this TED leaf; false before the first write."""

    def has_below(self, key: NestedKey) -> bool:
        """Return whether every step has this TED leaf, or one below it."""
        if self.has(key):
            return True
        try:
            self.get(self.row_at(np.zeros(min(len(self), 1), np.int64)), [key])
        except KeyError:
            return False
        return True

    def get(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows, in the order asked for; a copy, never a view. Threads may call it at
        once.

        Args:
            rows: [n] rows.
            keys: TED keys to read, each a leaf or a group (``"next"``); all by default.

        Raises:
            IndexError: a row is empty or out of range.
            KeyError: a key that is not stored.
        """

    def get_encoded(self, rows: Rows) -> TensorDictBase:
        """Return the steps [n] at these rows as a checkpoint keeps them, texts as the numbers of ``state_dict``."""
        return self.get(rows)

    def get_stacked(
        self,
        rows: Rows,  # noqa: ARG002
        keys: Keys,  # noqa: ARG002
        stack: Stack,  # noqa: ARG002
        only: Keys | None = None,  # noqa: ARG002
    ) -> TensorDictBase | None:
        """Return the steps [n] at these rows with stacks [n, k, ...] of observations, now and next.

        None if the storage has no faster way than reading the steps before each. Both have memory of their own.

        Args:
            rows: [n] rows.
            keys: the observations to be stacked.
            stack: observations per stack, and what stands for those before the first of an episode.
            only: TED keys to read, each a leaf or a group; all by default.
        """
        return None

    def get_flags(self, rows: Rows, keys: Keys) -> dict[NestedKey, NDArray[np.bool_]]:
        """Return [n, ...] those of these flags that every step has, by key."""
        present = [key for key in dict.fromkeys(keys) if self.has(key)]
        if not present:
            return {}
        steps = self.get(rows, present)
        return {key: steps.get(key).numpy(force=True).astype(bool) for key in present}

    def append(self, steps: TensorDictBase) -> Rows:
        """Append steps [*lane_shape, n] to their lanes; return their rows, of the same shape.

        The oldest steps are overwritten. If a lane gets more steps than it has rows, the last are kept, and rows
        repeat.

        Raises:
            SchemaMismatchError: a key is missing or extra, or has another dtype or shape than in the first write;
                nothing is written.
        """

    def set(self, rows: Rows, steps: TensorDictBase) -> None:
        """Write new steps [n] at rows, in time order within a lane.

        Rows that continue their lanes are appended; elsewhere each step follows no other.

        Raises:
            SchemaMismatchError: as for ``append``.
        """

    def replace(self, rows: Rows, steps: TensorDictBase) -> None:
        """Replace stored steps by other steps [n], which neither continue nor precede any other step.

        Raises:
            IndexError: a row is empty or out of range.
            SchemaMismatchError: as for ``append``.
        """

    def update(self, rows: Rows, steps: TensorDictBase) -> None:
        """Change the stored steps [n] at rows, as ``rb[rows] = steps`` does; their order in time is unchanged.

        Raises:
            IndexError: a row is empty or out of range.
            SchemaMismatchError: as for ``append``.
        """

    def index(self, traj_key: Any = None, end_key: Any = None) -> TrajectoryIndex:
        """Return the index by these keys; by default ("collector", "traj_ids"), "episode" or ("next", "done").

        ``end_key`` may be a list of keys, any of which ends a trajectory.
        """

    def empty(self) -> None:
        """Remove all steps; keep the schema."""

    def state_dict(self) -> dict[str, Any]:
        """Return the positions of the lanes and the order of rows, without the steps: numbers, lists and tensors."""

    def restore(self, state: Mapping[str, Any], steps: Iterable[tuple[Rows, TensorDictBase]]) -> None:
        """Restore the state of a storage of the same ``max_size`` and ``ndim``; the present content is lost.

        Args:
            state: the other's ``state_dict``.
            steps: blocks of all its steps, every row once: rows [n] and the steps [n] at them, in any order.
        """


class Sampler(Protocol):
    """Sampler of rows; a sampler of your own may subclass it for the defaults below.

    Attributes:
        draws_slices: whether its rows are slices of trajectories.

    Example:
        >>> sampler: rlx.buffer.Sampler = rlx.buffer.RandomSampler(seed=0)
        >>> rows, info = sampler.sample(rlx.buffer.DatasetStorage("cartpole"), 3)
        >>> rows.shape, dict(info)
        ((3,), {})
    """

    draws_slices: bool = False

    @property
    def ran_out(self) -> bool:
        """Whether the last batch was the last of an epoch; never, with replacement."""
        return False

    def seed_from(self, generator: torch.Generator) -> None:  # noqa: ARG002
        """Take a new seed from a generator, before the first draw.

        Raises:
            TypeError: the sampler has no seed.
        """
        raise TypeError(f"generator: {self!r} cannot be seeded by a buffer; give the generator to the sampler")

    def index(self, storage: Storage) -> TrajectoryIndex:
        """Return the index of a storage's trajectories by the keys that this sampler uses."""
        return storage.index()

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, and the values to add to the batch, by TED key, each [n] or [n, ...].

        Raises:
            SamplingError: no steps fit the request.
        """

    def extended(self, storage: Storage, rows: Rows) -> None:  # noqa: ARG002
        """Update the sampler after rows were written, or dropped by the writer: those are not ``storage.stored``.

        A write must stay a write, so it does not ask for the index.
        """
        return  # a default, not abstract for type checkers

    def updated(self, storage: Storage) -> None:  # noqa: ARG002
        """Update the sampler after stored steps were changed in place, as by ``rb[rows] = steps``."""
        return

    def update_priority(self, rows: Rows, priority: NDArray[Any]) -> None:  # noqa: ARG002
        """Update the priorities of rows; samplers without priorities ignore them."""
        return  # a default, not abstract for type checkers

    def emptied(self) -> None:
        """Update the sampler after the storage was emptied."""
        return  # a default, not abstract for type checkers

    def shard(self, index: int, count: int) -> Self:
        """Return a copy for one of ``count`` workers; without replacement, no two of them draw the same."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next samples depend on; ``torch.load`` reads it with ``weights_only=True``."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""


class Writer(Protocol):
    """Writer that chooses the rows of new steps.

    Example:
        >>> writer: rlx.buffer.Writer = rlx.buffer.RoundRobinWriter()
        >>> _ = writer.extend(rlx.buffer.LazyTensorStorage(100), rlx.open("cartpole")[:3])
        >>> writer.cursor
        3
    """

    cursor: int

    def extend(self, storage: Storage, steps: TensorDictBase) -> Rows:
        """Write steps [n], or [*lanes, n] into a storage of more dimensions; return their rows [n] or [*lanes, n]."""

    def empty(self) -> None:
        """Start at row 0 again."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that ``load_state_dict`` takes."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""


def check_kind(name: str, part: object, kind: type) -> None:
    """Raise TypeError unless an argument is a storage, a sampler or a writer.

    Example:
        >>> check_kind("sampler", object(), Sampler)
        Traceback (most recent call last):
        TypeError: sampler: expected a rlx.buffer.Sampler, found object without draws_slices, emptied, extended, ...
    """
    expected = f"{name}: expected a rlx.buffer.{kind.__name__}"
    if isinstance(part, type):
        raise TypeError(f"{expected}, found the class {part.__name__} itself: give {part.__name__}(...)")
    members = {member for member in (*vars(kind), *kind.__annotations__) if not member.startswith("_")}
    missing = sorted(member for member in members if not hasattr(part, member))
    if missing:
        raise TypeError(f"{expected}, found {type(part).__name__} without {first_of(missing, _MAX_MISSING)}")


def rows_in_order(storage: Storage, ordinals: Rows, length: int) -> Rows:
    """Return [n] the rows of these ordinals, as if ``length`` steps filled each lane from its first row.

    Between gaps, ordinals count the stored rows in order.
    """
    if storage.has_gaps:
        return np.sort(storage.row_at(np.arange(len(storage))))[ordinals]
    lane, place = np.divmod(ordinals, length // storage.lanes)
    return lane * (storage.max_size // storage.lanes) + place
