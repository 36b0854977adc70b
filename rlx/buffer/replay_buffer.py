"""A replay buffer: a storage, a sampler, a writer and transforms joined, safe to use from several threads."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, cast, overload

import cloudpickle
import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, is_tensorclass

from rlx.buffer.batch import (
    GENERATION,
    TENSORDICT,
    Form,
    as_steps,
    columns_of,
    form_of,
    in_tensordict,
    marks,
    pinned,
    rows_of,
    tensor_of,
    with_generation,
    write_info,
)
from rlx.buffer.batched_draws import DrawsAhead
from rlx.buffer.checkpoint import Hook, load, save
from rlx.buffer.prefetch import Draw, Prefetcher, ReadWriteLock
from rlx.buffer.preprocess import Preprocessing
from rlx.buffer.protocol import Rows, Sampler, Steps, Storage, TrajectoryIndex, Writer, check_kind
from rlx.buffer.sampler.draws import Draws, Worker, worker_here
from rlx.buffer.sampler.prioritized import PRIORITY_WEIGHT, PrioritizedSampler
from rlx.buffer.sampler.steps import RandomSampler, check_sampler
from rlx.buffer.saved_dataset import Saving, save_dataset
from rlx.buffer.snapshot import blocks, describe, restore, restore_parts, rows_state, steps_of, steps_state
from rlx.buffer.storage.dataset import as_storage
from rlx.buffer.storage.lists import ListStorage
from rlx.buffer.storage.ring import RingStorage
from rlx.buffer.storage.step_schema import accelerator_of, in_numpy, nested
from rlx.buffer.transform.batches import ToDevice
from rlx.buffer.transform.compose import (
    Compose,
    Inverted,
    Transform,
    applied,
    checked_keys,
    chosen_marks,
    for_batch,
    read_steps,
)
from rlx.buffer.writer import RoundRobinWriter
from rlx.errors import OptionError, SchemaMismatchError
from rlx.files.urls import check_path
from rlx.fork import on_fork
from rlx.numbers import array_of, check_whole
from rlx.store.codec import Codec, codec_of
from rlx.store.dataset import Dataset
from rlx.store.stores import STORES
from rlx.transform.protocol import as_path

Collate = Callable[[TensorDictBase], TensorDictBase]


class BatchOptions(TypedDict, total=False):
    """Arguments of ``ReplayBuffer`` about batches; see there."""

    transform: Transform | None
    batch_size: int | None
    prefetch: int | None
    pin_memory: bool
    collate_fn: Collate | None
    dim_extend: int | None
    observation_keys: Sequence[NestedKey]
    keys: Sequence[NestedKey] | None


class BufferOptions(BatchOptions, total=False):
    """All arguments of ``ReplayBuffer``; see there."""

    storage: Storage | Dataset | None
    sampler: Sampler | None
    writer: Writer | None
    generator: torch.Generator | None


class ReplayBuffer(Preprocessing):
    """Buffer of steps that are sampled in batches.

    Threads may write, sample and update priorities at once: a batch never holds half a write. Reads run concurrently;
    writes wait for them. A batch is made in this order: read from the storage; transforms up to the last one that needs
    neighbours; keys of the sampler (ends of slices, ``priority_weight``); ``collate_fn``; the other transforms.

    Args:
        storage: stores the steps, or a dataset to read them from; a ``ListStorage`` of 1,000 steps by default.
        sampler: chooses the steps of a batch; uniformly by default.
        writer: chooses the steps to overwrite; the oldest by default.
        transform: a callable, or one of ``rlx.buffer.transform``; its ``inv``, if any, is applied to written steps.
        batch_size: steps in a batch, unless ``sample`` overrides it.
        prefetch: number of batches to read ahead, each in a thread; requires ``batch_size``.
        pin_memory: whether batches are in page-locked memory, if an accelerator is available.
        collate_fn: function from the TensorDict [n] of a batch to the batch that is returned.
        generator: seeds the sampler.
        dim_extend: time dimension of written data; the last of ``storage.ndim`` by default.
        observation_keys: keys of observations, beside ``observation`` and ``pixels``. Where several sources may bring
            one trajectory id, or steps have no ids, observations say which steps follow each other.
        keys: keys of batches, each a leaf or a group such as ``"next"``, among the stored ones and those that
            transforms which need neighbours add; all by default. Others are not read, decoded, copied or stacked. The
            other transforms see these keys only. What a sampler adds comes beside them, but for flags under ``next``.

    Raises:
        TypeError: ``storage``, ``sampler`` or ``writer`` is not one, or ``generator`` cannot seed the sampler.
        ValueError: a batch of less than one step, or ``prefetch`` without ``batch_size``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> buffer = ReplayBuffer(batch_size=2)
        >>> buffer.extend(TensorDict({"observation": torch.arange(3)}, [3]))
        tensor([0, 1, 2])
        >>> buffer.sample().batch_size, len(buffer)
        (torch.Size([2]), 3)
    """

    def __init__(
        self,
        *,
        storage: Storage | Dataset | None = None,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        transform: Transform | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        collate_fn: Collate | None = None,
        generator: torch.Generator | None = None,
        dim_extend: int | None = None,
        observation_keys: Sequence[NestedKey] = (),
        keys: Sequence[NestedKey] | None = None,
    ) -> None:
        if batch_size is not None:
            self._size(batch_size)
        check_whole("prefetch", prefetch or 0, 0)
        if prefetch and batch_size is None:
            raise ValueError("prefetch requires batch_size")
        self._storage: Storage = ListStorage(1_000) if storage is None else as_storage(storage)
        if observation_keys:
            self._storage.observation_keys = tuple(as_path(key) for key in observation_keys)
        self._sampler: Sampler = RandomSampler() if sampler is None else sampler
        check_sampler(self._sampler, prefetch or 0)
        if generator is not None:
            self._sampler.seed_from(generator)
        self._writer: Writer = RoundRobinWriter() if writer is None else writer
        check_kind("writer", self._writer, Writer)
        self._transform = Compose() if transform is None else Compose(transform)
        self._batch_size = batch_size
        self._keys = checked_keys(keys)
        self._collate = collate_fn
        self._pin_memory = pin_memory and torch.accelerator.is_available()
        self._dim_extend = dim_extend
        self._form: Form | None = None
        self._write_count = 0
        self._stale_priorities = 0
        self._numbers = Draws(0)  # of the batches that transforms change at random, by seeds of their own
        self._save_hooks: list[Hook] = []
        self._load_hooks: list[Hook] = []
        self._left: deque[Draw] = deque()  # pending draws of a restored buffer
        # Taken in this order: the storage's, then the sampler's.
        self._lock = ReadWriteLock()
        self._prefetch = prefetch or 0
        self._worker: Worker | None = None
        self._arrive()

    def _arrive(self) -> None:
        self._sampler_lock = threading.RLock()
        self._ahead = DrawsAhead()
        self._prefetcher = self._new_prefetcher()
        on_fork(self, ReplayBuffer._renew_lock)

    def _renew_lock(self) -> None:
        self._sampler_lock = threading.RLock()

    def _new_prefetcher(self) -> Prefetcher | None:
        if not self._prefetch:
            return None
        size = self._size(None)
        return Prefetcher(self._prefetch, self._lock, lambda: self._draw(size), self._gather, self._finish)

    def __len__(self) -> int:
        return len(self._storage)

    def __repr__(self) -> str:
        parts = f"storage={self._storage!r}, sampler={self._sampler!r}, writer={self._writer!r}"
        return f"{type(self).__name__}({parts}, transform={self._transform!r}, batch_size={self._batch_size})"

    @property
    def storage(self) -> Storage:
        """The storage of the steps."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """The sampler."""
        return self._sampler

    @property
    def transform(self) -> Compose:
        """The transforms of batches."""
        return self._transform

    @property
    def writer(self) -> Writer:
        """The writer."""
        return self._writer

    @property
    def batch_size(self) -> int | None:
        """Steps in a batch, unless ``sample`` overrides it."""
        return self._batch_size

    @property
    def observation_keys(self) -> Sequence[NestedKey]:
        """Keys of observations, beside ``observation`` and ``pixels``; they tell sources apart that use one id."""
        return tuple(path if len(path) > 1 else path[0] for path in self._storage.observation_keys)

    @property
    def contradictions(self) -> int:
        """Number of steps whose observations contradict their trajectory ids, among those looked at so far.

        Ids decide. Trajectories are looked at when a sampler of slices, a transform or ``save_dataset`` asks for them.
        """
        return self._storage.contradictions

    @property
    def dim_extend(self) -> int | None:
        """Time dimension of written data, if it is not the last."""
        return self._dim_extend

    @property
    def write_count(self) -> int:
        """Number of steps written since the buffer was created or emptied, including overwritten ones."""
        return self._write_count

    # ---- writing

    def add(self, step: Any) -> int | torch.Tensor:
        """Write one step [*lanes]; return its row, or [*lanes] rows in a storage of more dimensions.

        Args:
            step: one step, of a type that ``extend`` takes.
        """
        columns = columns_of(step, self._storage.ndim - 1, is_step=True) if self._takes_leaves else None
        if columns is None:
            rows = self.extend([step]).squeeze(-1)
            return rows if rows.ndim else int(rows)
        written = self._write(*columns, is_step=True)
        return int(written[0]) if written.ndim == 1 else torch.from_numpy(written[..., 0])

    def extend(self, steps: Any) -> torch.Tensor:
        """Write steps and return their rows, int64.

        Trajectory ids, flags, ``is_init`` and the order of writing say which steps follow each other. Where two
        writes may be of two sources with the same ids, or steps have no ids, a step continues a trajectory only if its
        observation is the next one of the trajectory's last step.

        Args:
            steps: [n], or [*lanes, n] into a storage of more dimensions, in time order; or a list of n steps. A
                TensorDict, or a tensorclass, tensor, or dict of tensors or of numpy's arrays; samples have the same
                type. Dimensions that the storage lacks belong to a row: [B, T] written to a storage of one dimension
                is B rows, each a trajectory, and samples are [n, T].

        Raises:
            SchemaMismatchError: keys, dtypes or shapes differ from the first write's; nothing is written.
        """
        columns = columns_of(steps, self._storage.ndim) if self._takes_leaves else None
        if columns is not None:
            return torch.from_numpy(self._write(*columns))
        form = form_of(steps)
        listed = isinstance(steps, Sequence) and not is_tensorclass(steps)
        may_differ = self._storage.steps_may_differ
        ready = in_tensordict(steps, self._storage.ndim - 1, may_differ=may_differ)
        ready = as_steps(ready, self._storage.ndim, None if listed else self._dim_extend)
        return torch.from_numpy(self._write(form, self._transform.inv(ready)))

    @property
    def _takes_leaves(self) -> bool:
        """Whether leaves are written as they are given, without a TensorDict."""
        return (
            self._storage.takes_leaves
            and type(self._writer) is RoundRobinWriter
            and self._dim_extend is None
            and not self._transform.has_inverse
        )

    def _write(self, form: Form, steps: Steps, *, is_step: bool = False) -> Rows:
        self._check_form(form)
        storage, writer = self._storage, self._writer
        with self._lock.write():
            if isinstance(steps, TensorDictBase):
                rows = writer.extend(storage, steps)
                kept = rows[rows >= 0]  # a writer may drop steps, new ones and stored ones
                kept = np.append(kept, getattr(writer, "dropped", rows[:0]))
            else:
                rows = kept = cast("RingStorage", storage).append(steps, is_step=is_step)
                writer.cursor = storage.cursor or 0
            self._form = form
            with self._sampler_lock:
                self._sampler.extended(storage, kept)
                self._extended(rows, steps)
            self._write_count += rows.size
            self._written(kept)
        return rows

    def _check_form(self, form: Form) -> None:
        if self._form is not form and self._form not in (None, form) and len(self._storage):
            raise SchemaMismatchError(f"{form.name}: expected {self._form.name}, as was written first")

    def _extended(self, rows: Rows, steps: Steps) -> None:
        """Update for steps [*lanes, n] that were just written at rows of the same shape."""

    def __setitem__(self, index: Any, steps: TensorDictBase) -> None:
        """Change stored steps; their order in time is unchanged."""
        with self._lock.write():
            rows = rows_of(index, self._storage)
            given = in_tensordict(steps if rows.ndim else [steps])
            shape, expected = given.batch_size[: max(1, rows.ndim)], rows.shape or (1,)
            if shape != expected and (shape or rows.size != 1):
                raise SchemaMismatchError(f"steps of shape {list(shape)}: expected {list(expected)}, those of the rows")
            ready = self._transform.inv(given.reshape(rows.size, *given.batch_size[len(expected) :]))
            self._storage.update(rows.reshape(-1), ready)
            with self._sampler_lock:
                self._sampler.updated(self._storage)
            self._written(rows, all_batches=self._reads_around)

    @property
    def _reads_around(self) -> bool:
        """Whether a batch depends on steps besides its own."""
        return bool(self._transform.around)

    def _written(self, rows: Rows, *, all_batches: bool = False) -> None:
        if self._left:
            stale = [draw for draw in self._left if draw.describes_steps and np.isin(draw.rows, rows).any()]
            self._left = deque(draw for draw in self._left if draw not in stale)
        if self._prefetcher is not None:
            self._prefetcher.written(rows, all_batches=all_batches)

    def empty(self) -> None:
        """Remove all steps."""
        with self._lock.write(), self._sampler_lock:
            self._storage.empty()
            self._writer.empty()
            self._sampler.emptied()
            self._write_count = 0
            self._discard()

    @property
    def stale_priorities(self) -> int:
        """Number of priorities that were left out because their steps had been overwritten."""
        return self._stale_priorities

    def update_priority(
        self,
        index: Rows | torch.Tensor | int,
        priority: torch.Tensor | float,
        generation: Rows | torch.Tensor | None = None,
    ) -> None:
        """Update the priorities of rows in the sampler.

        Rows that were overwritten since they were drawn hold other steps: their priorities are left out, and counted by
        ``stale_priorities``.

        Args:
            index: [n] rows, as in ``info["index"]``; or one.
            priority: [n], or [n, ...] to be reduced as the sampler does, or one for all.
            generation: [n] ``index_generation`` of a batch, which says what steps are meant; batches have it with
                ``RoundRobinWriter(track_generations=True)``. The tensors ``info["index"]`` and ``batch["index"]`` of a
                prioritized sampler bring it along without that, but copies of them do not. Without it, the present
                steps are meant.

        Raises:
            ValueError: the numbers of priorities, generations and rows differ.
        """
        with self._lock.read(), self._sampler_lock:
            self._set_priority(
                index, priority, getattr(index, "generation", None) if generation is None else generation
            )

    def _set_priority(self, rows: Any, priority: torch.Tensor | float, generation: Any = None) -> None:
        given = array_of(rows, np.int64)
        at = given.reshape(-1)
        values = in_numpy(torch.as_tensor(priority))
        if values.size > 1 and values.size == at.size:
            values = values.reshape(-1)
        elif at.size and values.size > 1 and values.shape[: given.ndim] == given.shape:
            values = values.reshape(at.size, -1)  # rows [*lanes, n] come with priorities [*lanes, n, ...]
        if generation is not None:
            at = self._still_there(at, array_of(generation, np.int64).reshape(-1))
        if isinstance(self._sampler, PrioritizedSampler):  # of a dataset, it knows no rows before the first sample
            self._sampler.catch_up(self._storage)
        self._sampler.update_priority(at, values)

    def _still_there(self, rows: Rows, generation: Rows) -> Rows:
        """Return [n] the rows, but -1 in place of those that hold other steps."""
        if generation.shape != rows.shape:
            raise ValueError(f"expected {len(rows)} generations, found {len(generation)}")
        is_stale = self._storage.generations_of(rows) != generation
        if not (count := np.count_nonzero(is_stale)):
            return rows
        self._stale_priorities += int(count)
        return np.where(is_stale, -1, rows)

    # ---- sampling

    @overload
    def sample(self, batch_size: int | None = None, return_info: Literal[False] = False) -> TensorDictBase: ...
    @overload
    def sample(
        self, batch_size: int | None = None, *, return_info: Literal[True]
    ) -> tuple[TensorDictBase, dict[Any, Any]]: ...
    def sample(
        self, batch_size: int | None = None, return_info: bool = False
    ) -> TensorDictBase | tuple[TensorDictBase, dict[Any, Any]]:
        """Return a batch; with ``return_info`` also a dict of the rows (``index``) and the sampler's keys.

        Args:
            batch_size: steps in the batch; the buffer's ``batch_size`` by default.
            return_info: whether to also return the dict.

        Raises:
            SamplingError: the storage cannot fulfil the request; SliceTooLongError, no trajectory has enough steps.
            ValueError: neither this call nor the buffer has a batch size.
        """
        draw, batch = self._sample(self._size(batch_size))
        return (batch, self._info(draw)) if return_info else batch

    def drawn(self, batch_size: int | None = None) -> tuple[TensorDictBase, dict[Any, Any], bool]:
        """Return a batch, the dict of ``return_info``, and whether the batch ends an epoch."""
        draw, batch = self._sample(self._size(batch_size))
        return batch, self._info(draw), draw.ends_epoch

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Yield batches of the buffer's own size without end; of a sampler without replacement, those of one epoch."""
        size, ends = self._size(None), False
        while not ends:
            draw, batch = self._sample(size)
            ends = draw.ends_epoch
            yield batch

    def _size(self, batch_size: int | None) -> int:
        size = self._batch_size if batch_size is None else batch_size
        if size is None:
            raise ValueError("no batch size: give one to sample or to the buffer")
        check_whole("batch_size", size)
        return size

    def _sample(self, size: int) -> tuple[Draw, TensorDictBase]:
        if (worker := worker_here()) != self._worker:
            with self._lock.write():
                self._discard()  # draws of the parent, which other workers have too
                self._worker = worker
        # Batches read ahead have the buffer's own size.
        if self._prefetcher is not None and size == self._batch_size:
            return self._prefetcher.take()
        with self._lock.read():
            draw = self._draw(size)
            steps = self._gather(draw)
        return draw, self._finish(steps, draw)

    def _draw(self, size: int) -> Draw:
        with self._sampler_lock:
            draw: Draw | None
            if self._left and self._batch_size in (None, size):
                draw = self._left.popleft()
            elif (
                draw := self._ahead.take(self._sampler, self._storage, self._transform.around, size, self._keys)
            ) is None:
                rows, info = self._sampler.sample(self._storage, size)
                says_of_steps = self._sampler.draws_slices or (bool(info) and any(type(key) is tuple for key in info))
                draw = Draw(rows, info, self._sampler.ran_out, says_of_steps)
            if self._transform.is_random and draw.number is None:
                draw = replace(draw, number=int(self._numbers.next().integers(2**62)))
            return draw

    def _gather(self, draw: Draw) -> Any:
        if draw.read is not None:
            return draw.read()
        around, storage = self._transform.around, self._storage
        if self._transform.is_random:
            around = for_batch(around, draw.number)
        if PRIORITY_WEIGHT in draw.info or self._tracks_generations:
            draw.generation, draw.told = storage.generations_of(draw.rows), None
        added = self._marks(draw) if self._keys is None else chosen_marks(self._marks(draw), self._keys)
        if not around and storage.takes_leaves and not (plain := cast("RingStorage", storage)).row_shape:
            form = self._form if self._gives_leaves(self._transform.rest) else None
            may_be_arrays = form is not None and form.is_numpy
            leaves = plain.get_leaves(draw.rows, self._keys, may_be_arrays=may_be_arrays)
            if added:
                leaves = {**leaves, **dict(marks(added, accelerator_of(leaves), leaves.get))}
            if form is not None and form.name == "dict":
                return form.tree(leaves)
            return TensorDict(nested(leaves), [len(draw.rows)], device=accelerator_of(leaves))
        steps = read_steps(storage, around, self._index, draw.rows, self._keys)
        write_info(steps, added)
        return steps

    def _gives_leaves(self, transforms: Sequence[Any]) -> bool:
        """Return whether nothing is done to batches that needs a TensorDict."""
        return not (transforms or self._collate or self._pin_memory)

    def _index(self) -> TrajectoryIndex:
        """Return which steps follow each other: by the keys of the slices, where the sampler draws slices."""
        with self._sampler_lock:
            index = self._chosen_index()
            # An index may put off work until it is asked: not by several threads at once.
            index.remaining(np.empty(0, np.int64))
            return index

    def _chosen_index(self) -> TrajectoryIndex:
        return self._sampler.index(self._storage)

    def _finish(self, steps: Any, draw: Draw) -> Any:
        if type(steps) is dict:  # nothing is done to leaves
            return steps
        batch = steps if self._collate is None else self._collate(steps)
        rest = self._transform.rest
        if self._transform.is_random:
            rest = for_batch(rest, draw.number, first=len(self._transform.around))
        if self._pin_memory:
            # A copy to a device is to begin in page-locked memory.
            moves = next((i for i, transform in enumerate(rest) if isinstance(transform, ToDevice)), len(rest))
            batch, rest = pinned(applied(rest[:moves], batch)), rest[moves:]
        batch = applied(rest, batch)
        return self._form.back(batch) if self._form is not None and isinstance(batch, TensorDictBase) else batch

    def _info(self, draw: Draw) -> dict[Any, Any]:
        """Return the rows and what the sampler says of them, as ``return_info`` gives them."""
        if draw.told is None:
            draw.told = {key: tensor_of(value) for key, value in draw.info.items()}
            if self._tracks_generations and draw.generation is not None:
                draw.told[GENERATION] = tensor_of(draw.generation)
            draw.told["index"] = with_generation(tensor_of(draw.rows), draw.generation)
        return dict(draw.told)

    @property
    def _tracks_generations(self) -> bool:
        return getattr(self._writer, "tracks_generations", False)

    def _marks(self, draw: Draw) -> Mapping[Any, Any]:
        """Return the values that are added to the stored steps of a batch.

        Beside priorities and generations, rows replace the ``index`` that steps of a dataset bring along: it is what
        ``update_priority`` takes.
        """
        return draw.info if draw.generation is None else self._info(draw)

    def __getitem__(self, index: Any) -> Any:
        """Return the steps at rows, transformed; or a key of all steps.

        Args:
            index: an integer, a list or 1-d array of rows; a slice of every lane's rows; a lane and rows in it, as in
                ``buffer[lane, t:u]``; or a TED key.

        Raises:
            IndexError: no such row.
            KeyError: no such key.
        """
        if isinstance(index, str) or (isinstance(index, tuple) and index and isinstance(index[0], str)):
            return self.get(slice(None), [index])[index]
        return self.get(index)

    def get(self, index: Any, keys: Sequence[NestedKey] | None = None) -> Any:
        """Return the steps at rows, transformed, with these keys only.

        Args:
            index: rows, as ``buffer[index]`` takes them.
            keys: keys, as the buffer's; by default those of the buffer.

        Raises:
            IndexError: no such row.
            KeyError: no such key.

        Example:
            >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"))
            >>> sorted(buffer.get([3, 1], ["observation", "action"]).keys())
            ['action', 'observation']
        """
        chosen = self._keys if keys is None else checked_keys(keys)
        with self._lock.read():
            rows = rows_of(index, self._storage)
            steps = read_steps(self._storage, self._transform.around, self._index, rows.reshape(-1), chosen)
        steps = applied(self._transform.rest, steps)
        shaped = steps if rows.ndim == 1 else steps.reshape(*rows.shape, *steps.batch_size[1:])
        return shaped if self._form is None else self._form.back(shaped)

    # ---- parts

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Append a transform; with ``invert`` its two directions are swapped. Return the buffer."""
        return self.insert_transform(len(self._transform), transform, invert=invert)

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """Add a transform before the index-th; with ``invert`` its two directions are swapped. Returns the buffer."""
        with self._lock.write():
            self._transform.insert(index, Inverted(transform) if invert else transform)
            pending = self._pending()
            self._discard()
            self._left.extend(pending)
        return self

    def set_storage(self, storage: Storage | Dataset) -> Storage:
        """Replace the storage; return the previous one. The sampler is notified of the new content."""
        new = as_storage(storage)
        with self._lock.write(), self._sampler_lock:
            before, self._storage = self._storage, new
            self._sampler.emptied()
            if len(new):
                self._sampler.extended(new, new.row_at(np.arange(len(new))))
            self._discard()
        return before

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Replace the sampler; return the previous one. The new one is notified of the stored steps."""
        check_sampler(sampler, self._prefetch)
        with self._lock.write(), self._sampler_lock:
            before, self._sampler = self._sampler, sampler
            if len(self._storage):
                sampler.extended(self._storage, self._storage.row_at(np.arange(len(self._storage))))
            self._discard()
        return before

    def set_writer(self, writer: Writer) -> Writer:
        """Replace the writer; return the previous one."""
        check_kind("writer", writer, Writer)
        with self._lock.write():
            before, self._writer = self._writer, writer
        return before

    def _discard(self) -> None:
        self._left.clear()
        self._ahead.discard()
        if self._prefetcher is not None:
            self._prefetcher.discard()

    def _pending(self) -> list[Draw]:
        ahead = [] if self._prefetcher is None else self._prefetcher.pending()
        return [replace(draw, read=None, told=None) for draw in (*ahead, *self._left)]

    # ---- at rest

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the buffer, including the steps; ``torch.load`` reads it with ``weights_only=True``."""
        with self._lock.read(), self._sampler_lock:
            return {**self._state(), **rows_state(self._storage), "steps": steps_state(self._storage)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``: the next batches are those that the other buffer would have drawn.

        Raises:
            SchemaMismatchError: more steps than this buffer's storage holds, or of other dimensions.
        """
        self._restore(state, steps_of(state["steps"]))

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint to a directory; an existing checkpoint is replaced once the new one is complete.

        Raises:
            DatasetExistsError: the directory holds something else.
            DiskFullError: no space is left.
        """
        with self._lock.read():
            with self._sampler_lock:
                state = self._state() | rows_state(self._storage)
            save(path, state, blocks(self._storage), self._save_hooks)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load a checkpoint that ``dumps`` wrote, as ``load_state_dict`` does.

        If the storage has another capacity, and it is large enough, steps are rewritten and the sampler is reset.

        Raises:
            DatasetNotFoundError: the directory holds no checkpoint.
            FormatVersionError: another format version wrote it.
            CorruptDatasetError: it is damaged; the buffer may be left empty.
            SchemaMismatchError: it has more steps than this buffer's storage holds, or other dimensions.
        """
        state, steps, _ = load(path, hooks=self._load_hooks)
        self._restore(state, steps)

    def save_dataset(
        self,
        path: str | os.PathLike[str],
        *,
        id: str | None = None,
        exclude: str | Sequence[NestedKey] = (),
        store: str = "zarr",
        codec: str | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the stored steps as a dataset that ``rlx.open`` and every command reads.

        Its trajectories are those of ``SliceSampler``, in the order of their first stored steps. A key both at the root
        and under ``next`` is an observation; other keys keep their place. A trajectory that the buffer does not
        hold to its end is flagged truncated and counted as cut. Transforms are not applied.

        Args:
            path: the dataset's directory.
            id: name of the dataset; that of the directory by default.
            exclude: a key or a list of keys to leave out, with all keys below them.
            store: ``zarr`` or ``memmap``.
            codec: such as ``zstd:level=19``; ``zstd-dict`` for zarr and ``none`` for memmap by default.
            overwrite: whether to replace an existing dataset, once the new one is complete.

        Raises:
            SchemaMismatchError: the buffer is empty, reward or flags are missing, or a dataset cannot hold a key.
            SamplingError: the steps have neither trajectory ids nor flags.
            OptionError: the store is unknown.
            CodecError: the codec is unknown, or the store does not support it.
            DatasetExistsError: path holds a dataset, or something else.
            DiskFullError: no space is left.

        Example:
            >>> import rlx
            >>> buffer = rlx.ReplayBuffer()
            >>> _ = buffer.extend(rlx.open("cartpole")[:200])
            >>> buffer.save_dataset("mine")
            >>> len(rlx.open("mine"))
            200
        """
        if store not in STORES:
            raise OptionError(f"`store` {store!r} is unknown: expected {', '.join(STORES)}")
        chosen = codec_of(store, None if codec is None else Codec.parse(codec))
        excluded = [as_path(key) for key in ([exclude] if isinstance(exclude, str) else exclude)]
        path = Path(check_path("path", path, "a directory"))
        saving = Saving(path.absolute().name if id is None else id, excluded, store, chosen, overwrite)
        with self._lock.read():
            save_dataset(self._storage, self._index(), path, saving)

    def frozen(self) -> "ReplayBuffer":
        """Return a buffer to save while this one is written: a copy of the steps, unless they are in files."""
        if self._storage.is_in_files:
            return self
        with self._lock.write(), self._sampler_lock:
            return ReplayBuffer(storage=deepcopy(self._storage), sampler=deepcopy(self._sampler))

    dump = dumps
    load = loads
    save = dumps

    def register_save_hook(self, hook: Hook) -> None:
        """Append a hook that changes each block of steps [n] before ``dumps`` writes it."""
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Hook) -> None:
        """Append a hook that changes each block of steps [n] after ``loads`` has read it."""
        self._load_hooks.append(hook)

    def _state(self) -> dict[str, Any]:
        state = describe(self._storage, self._sampler, self._writer, self._pending())
        form = TENSORDICT if self._form is None else self._form
        numbers = {"numbers": self._numbers.state_dict()} if self._transform.is_random else {}
        return {**state, **numbers, "write_count": self._write_count, "form": form.saved_as}

    @contextmanager
    def reading(self) -> Iterator[dict[str, Any]]:
        """Yield the state of the buffer without its steps; writes wait until the end."""
        with self._lock.read():
            with self._sampler_lock:
                state = self._state()
            yield state

    def restore_rows(self, state: Mapping[str, Any], steps: Iterable[tuple[Rows, TensorDictBase]]) -> None:
        """Continue from a state of ``reading`` of a buffer of the same capacity.

        Args:
            state: the state.
            steps: blocks of all its steps, every row once: rows [n] and the steps [n] at them, in any order.
        """
        self._restored(state, lambda: restore_parts(state, steps, self._storage, self._sampler, self._writer))

    def _restore(self, state: Mapping[str, Any], steps: Iterator[TensorDictBase]) -> None:
        self._restored(state, lambda: restore(state, steps, self._storage, self._sampler, self._writer))

    def _restored(self, state: Mapping[str, Any], parts: Callable[[], list[Draw]]) -> None:
        with self._lock.write(), self._sampler_lock:
            self._discard()
            self._left.extend(parts())
            self._write_count = state["write_count"]
            if "numbers" in state:  # not in the checkpoint of a buffer without transforms that draw
                self._numbers.load_state_dict(state["numbers"])
            if self._form is None or self._form.cls is None:  # a class is not in a checkpoint
                self._form = Form.restored(state.get("form", TENSORDICT.name))

    def shutdown(self) -> None:
        """Stop the prefetch threads; sampling starts them again. Otherwise they stop with the buffer."""
        if self._prefetcher is not None:
            self._prefetcher.shutdown()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock.read(), self._sampler_lock:
            parts = (self._storage, self._sampler, self._writer)
            # A subclass may have attributes of its own for them.
            written = {key: value for key, value in self.__dict__.items() if any(value is part for part in parts)}
            left_out = ("_prefetcher", "_ahead", "_sampler_lock", "_left", *written)
            state = {key: value for key, value in self.__dict__.items() if key not in left_out}
            # As bytes: the pickler that called this would read them after the lock is released, and multiprocessing's
            # would move their tensors to shared memory under a thread that writes.
            return {**state, "written": cloudpickle.dumps((written, self._pending()))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        written, left = cloudpickle.loads(state.pop("written"))
        self.__dict__.update(state, _left=deque(left), **written)
        self._arrive()
