"""Batches for training: the same global batches for any number of ranks and workers."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, lru_cache, partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from tensordict import TensorDictBase
from torch.utils.data import IterableDataset, get_worker_info

from rlx.buffer.epoch_order import EpochOrder, Shuffle, SliceElements
from rlx.buffer.prefetch import Task
from rlx.buffer.protocol import Rows, Storage
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.dataset import DatasetStorage, as_storage
from rlx.buffer.storage.step_schema import leaves_of
from rlx.buffer.transform.compose import Compose, Transform, pick_steps, reader, split
from rlx.errors import OptionError, SamplingError, SchemaMismatchError
from rlx.store.dataset import Dataset

Source: TypeAlias = Dataset | ReplayBuffer | Storage | str | os.PathLike[str]
_PLANNED = 16  # batches whose elements are chosen at once
_READ_STEPS = 2048  # steps of a window that are read at once


class Loader(IterableDataset[TensorDictBase]):
    """Iterable of batches for training, in one process or many: ``rlx.loader``.

    Each iteration is an epoch, in another order. The order is a function of the seed and the epoch: any number of ranks
    and workers gets the same global batches, of which each rank receives its part. Give it to a ``DataLoader`` with
    ``batch_size=None, collate_fn=rlx.buffer.unchanged``, or use it alone, with threads that read ahead.

    Do not write to a ``ReplayBuffer`` during an epoch.

    Args:
        data: a dataset, its path, id or URL, a ``ReplayBuffer`` (its transforms are applied, its sampler is not used),
            or a list of them. Batches of several have ``("collector", "dataset")``, the number of each step's source.
        batch_size: steps per batch, over all ranks.
        slice_len: steps per slice; batches are then [slices, slice_len]. Every epoch cuts each trajectory into slices
            from another offset; trajectories shorter than a slice are left out, and counted in ``left_out``.
        transform: a callable, or one of ``rlx.buffer.transform``, such as ``FrameStack(4)``, ``NStep(3)`` or
            ``Compose``.
        weights: share of each source in the samples; in proportion to their sizes by default. Without replacement, a
            source starts over when it is exhausted.
        replacement: whether samples are drawn independently of each other. Slices may then start at any step.
        shuffle: whether in random order. "blocks" reads a dataset far away with few requests: it shuffles blocks of
            consecutive steps, and single steps only within windows of several blocks.
        drop_last: leave out the last batch of an epoch if it is smaller.
        batches: batches per epoch; by default as many as the data give.
        seed: random seed.
        rank: number of this process; by default of ``torch.distributed``, or of the environment that ``torchrun`` sets.
        world_size: number of processes.
        prefetch: batches to read ahead; 0 reads in the thread that iterates.
        threads: threads that read ahead.
        device: copies batches there, ahead of their use on a GPU.
        block: steps per block.
        window: steps that are in memory at once, twice, with ``shuffle="blocks"``.

    Raises:
        OptionError: arguments are out of range or do not go together.
        SamplingError: there are too few steps; SliceTooLongError, all trajectories are shorter than a slice.

    Example:
        >>> loader = rlx.loader("cartpole", batch_size=100, seed=1)
        >>> len(loader), sum(len(batch) for batch in loader)
        (10, 1000)

    Attributes:
        epoch: number of the epoch.
        batch: number of batches of the epoch that were handed out.
        waited: seconds that the consumer has waited for batches, in all.
        left_out: trajectories that are shorter than a slice.
    """

    def __init__(
        self,
        data: Source | Sequence[Source],
        batch_size: int,
        *,
        slice_len: int | None = None,
        transform: Transform | None = None,
        weights: Sequence[float] | None = None,
        replacement: bool = False,
        shuffle: Shuffle = True,
        drop_last: bool = True,
        batches: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        prefetch: int = 2,
        threads: int = 1,
        device: torch.device | str | None = None,
        block: int = 256,
        window: int = 16_384,
    ) -> None:
        self.rank, self.world_size = _place(rank, world_size)
        self._slice_len = slice_len
        length = slice_len or 1
        _check(batch_size, length, self.world_size, prefetch, threads)
        if shuffle == "blocks" and (weights is not None or replacement):
            raise OptionError("shuffle='blocks' goes with neither weights nor replacement")
        if shuffle not in (True, False, "blocks"):
            raise OptionError(f"shuffle {shuffle!r}: expected True, False or 'blocks'")
        transforms = [] if transform is None else Compose(transform).transforms
        around, self._transforms = split(transforms)
        sources = cast("list[Source]", list(data) if isinstance(data, list | tuple) else [data])
        self._parts = [
            _Part(source, around, slice_len, seed, replacement=replacement, shuffle=bool(shuffle)) for source in sources
        ]
        counts = tuple(part.count for part in self._parts)
        self._check_counts(counts, weights)
        self._elements = batch_size // length
        window_elements = max(window // batch_size, 1) * self._elements
        self._order = EpochOrder(
            counts,
            seed,
            shuffle,
            replacement,
            None if weights is None else tuple(map(float, weights)),
            max(block // length, 1),
            window_elements,
        )
        self._batches = self._count_batches(batches, drop_last=drop_last)
        self._prefetch, self._threads = prefetch, threads
        self._device = None if device is None else torch.device(device)
        self.waited = 0.0
        # Shared, because workers of a DataLoader have copies of everything else, some from before the epoch began.
        self._position = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._is_resumed = True

    def _check_counts(self, counts: tuple[int, ...], weights: Sequence[float] | None) -> None:
        if not sum(counts):
            raise SamplingError("cannot draw batches: there are no steps")
        if weights is None:
            return
        found = np.asarray(weights, np.float64)
        if len(found) != len(counts) or not np.isfinite(found).all() or (found < 0).any() or not found.any():
            raise OptionError(f"weights {list(weights)}: expected {len(counts)} numbers of at least 0, not all 0")
        if empty := [number for number, count in enumerate(counts) if found[number] and not count]:
            raise SamplingError(f"dataset {empty[0]} has no steps to draw from: expected a weight of 0")

    def _count_batches(self, batches: int | None, *, drop_last: bool) -> int:
        whole, rest = divmod(self._order.total, self._elements)
        limited = not self._order.replacement and self._order.weights is None
        most = whole + (rest > 0 and not drop_last and limited)
        if rest and limited and not drop_last and rest < self.world_size:
            raise OptionError(
                f"the last batch has {rest} elements, fewer than the {self.world_size} ranks", hint="use drop_last=True"
            )
        if batches is None:
            found = most or (0 if limited else 1)
        elif batches < 1 or (limited and batches > most):
            raise OptionError(f"batches {batches}: expected 1 to {most}, those of an epoch without replacement")
        else:
            found = batches
        if not found:
            raise SamplingError(
                f"{self._order.total} elements are less than a batch of {self._elements}", hint="use drop_last=False"
            )
        return found

    def __len__(self) -> int:
        """Return batches per epoch."""
        return self._batches

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return int(self._position[0])

    @property
    def batch(self) -> int:
        """Batches of the epoch that were handed out."""
        return int(self._position[1])

    @cached_property
    def left_out(self) -> int:
        """Trajectories that are shorter than a slice."""
        return sum(part.left_out for part in self._parts)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch, from its start; without it, each iteration is the next epoch.

        With the workers of a ``DataLoader``, call it before every epoch: they cannot count.
        """
        self._position[0], self._position[1] = epoch, 0
        self._is_resumed = True

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position; ``load_state_dict`` of a loader of the same data and batches resumes there.

        Args:
            batches: number of batches of the epoch that were used; those handed out by default. A ``DataLoader`` with
                workers reads ahead, so that only its user can count them.
        """
        return {
            "epoch": self.epoch,
            "batch": self.batch if batches is None else batches,
            "seed": self._order.seed,
            "elements": list(self._order.counts),
            "elements_per_batch": self._elements,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue from a state, also of another number of ranks or workers.

        Raises:
            SamplingError: the state is of other data, another batch size or another seed.
        """
        mine = self.state_dict()
        for key in ("seed", "elements", "elements_per_batch"):
            if state[key] != mine[key]:
                raise SamplingError(f"state of {key} {state[key]}, the loader has {mine[key]}")
        self._position[0], self._position[1] = state["epoch"], state["batch"]
        self._is_resumed = True

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Yield this rank's part of every batch of the epoch that remains."""
        worker = get_worker_info()
        if worker is not None:
            # The DataLoader takes a batch of each worker in turn.
            epoch, first = self.epoch, self.batch
            yield from self._read_all(epoch, range(first + worker.id, self._batches, worker.num_workers))
            return
        epoch, first = self._begin()
        numbers = range(first, self._batches)
        for number, batch in zip(numbers, self._timed(self._moved(epoch, numbers)), strict=True):
            self._position[1] = number + 1
            yield batch

    def _begin(self) -> tuple[int, int]:
        if not self._is_resumed or self.batch >= self._batches:
            self._position[0], self._position[1] = self.epoch + 1, 0
        self._is_resumed = False
        return self.epoch, self.batch

    def _timed(self, batches: Iterator[TensorDictBase]) -> Iterator[TensorDictBase]:
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    def _moved(self, epoch: int, numbers: range) -> Iterator[TensorDictBase]:
        """Yield batches on the device, read ahead."""
        copies = None if self._device is None else _Copies(self._device)
        read = self._reading(epoch, numbers)

        def make(number: int) -> Any:
            batch = read(number)
            return batch if copies is None else copies.start(batch)

        for made in _ahead(make, numbers, self._prefetch, self._threads):
            yield made if copies is None else copies.finish(made)

    def _read_all(self, epoch: int, numbers: range) -> Iterator[TensorDictBase]:
        read = self._reading(epoch, numbers)
        for number in numbers:
            yield read(number)

    def _reading(self, epoch: int, numbers: range) -> Callable[[int], TensorDictBase]:
        """Return a function that reads a batch by its number."""
        if self._order.shuffle == "blocks":
            windows = _Windows(self, epoch, numbers)
            return lambda number: self._finished(windows.batch(number))
        return lambda number: self._finished(self._steps(self._mine(epoch, number), epoch))

    def _mine(self, epoch: int, number: int) -> Rows:
        """Return this rank's elements of a batch."""
        first = number // _PLANNED * _PLANNED
        begin, end = (min(n * self._elements, self._limit) for n in (first, min(first + _PLANNED, self._batches)))
        planned = _planned(self._order, epoch, begin, end)
        start = number * self._elements
        size = min(self._elements, self._limit - start)
        low, high = (size * r // self.world_size for r in (self.rank, self.rank + 1))
        return planned[start - begin + low : start - begin + high]

    @property
    def _limit(self) -> int:
        """How many samples an epoch has."""
        endless = self._order.replacement or self._order.weights is not None
        return self._batches * self._elements if endless else self._order.total

    def _steps(self, elements: Rows, epoch: int) -> TensorDictBase:
        """Return the steps of elements, [n] or [n, slice_len]."""
        if len(self._parts) == 1:
            return self._parts[0].read(elements, epoch)
        part, element = self._order.located(elements)
        numbers: list[int] = np.unique(part).tolist()
        if len(numbers) == 1:
            steps = self._parts[numbers[0]].read(element, epoch)
        else:
            at = [np.flatnonzero(part == number) for number in numbers]
            read = [self._parts[number].read(element[rows], epoch) for number, rows in zip(numbers, at, strict=True)]
            steps = _joined(read, np.argsort(np.concatenate(at)))
        column, shape = torch.from_numpy(part), steps.batch_size
        steps.set(("collector", "dataset"), column.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).contiguous())
        return steps

    def _finished(self, batch: Any) -> TensorDictBase:
        for transform in self._transforms:
            batch = transform(batch)
        return cast("TensorDictBase", batch)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_is_resumed": True}


class _Part:
    """One source of steps, and its elements: steps, or slices."""

    def __init__(
        self,
        source: Source,
        around: Sequence[Any],
        slice_len: int | None,
        seed: int,
        *,
        replacement: bool,
        shuffle: bool,
    ) -> None:
        self._buffer = source if isinstance(source, ReplayBuffer) else None
        self._around = around
        if isinstance(source, ReplayBuffer):
            if around:
                raise OptionError("transform: one that needs neighbours belongs to the buffer, not to its loader")
            self.storage: Storage = source.storage
        elif isinstance(source, str | os.PathLike) and not isinstance(source, Dataset):
            self.storage = DatasetStorage(source)
        else:
            self.storage = as_storage(cast("Any", source))
        self.slices = (
            None
            if slice_len is None
            else SliceElements(self.storage.index(), slice_len, seed, replacement=replacement, shuffle=shuffle)
        )
        self.count = len(self.storage) if self.slices is None else self.slices.count
        self.left_out = 0 if self.slices is None else self.slices.left_out

    def read(self, elements: Rows, epoch: int) -> TensorDictBase:
        """Return steps [n], or slices [n, slice_len]."""
        rows = self.storage.row_at(elements) if self.slices is None else self.slices.rows(elements, epoch)
        if self._buffer is not None:
            steps: TensorDictBase = self._buffer[rows.reshape(-1)]
        elif self._around:
            steps = reader(self.storage, self._around, self.storage.index).read(rows.reshape(-1))
        else:
            steps = self.storage.get(rows.reshape(-1))
        return steps if rows.ndim == 1 else steps.reshape(*rows.shape)


@lru_cache(maxsize=64)
def _planned(order: EpochOrder, epoch: int, start: int, stop: int) -> Rows:
    """Return the elements of several batches, chosen at once."""
    return order.elements(epoch, start, stop)


def _joined(parts: Sequence[TensorDictBase], places: Rows) -> TensorDictBase:
    """Return steps of several datasets as one, in another order.

    Raises:
        SchemaMismatchError: they differ in keys, dtypes or shapes.
    """
    kinds = [{key: (leaf.dtype, leaf.shape[1:]) for key, leaf in leaves_of(part).items()} for part in parts]
    for kind in kinds[1:]:
        if differing := sorted("/".join(key) for key in kind.keys() | kinds[0] if kind.get(key) != kinds[0].get(key)):
            raise SchemaMismatchError(
                f"{differing[0]} differs between datasets: expected the same keys, dtypes and shapes",
                hint="rlx preprocess makes them alike",
            )
    steps = concatenated(parts)
    return pick_steps(steps, places) if steps.batch_dims == 1 else steps[torch.from_numpy(places)]


def concatenated(parts: Sequence[TensorDictBase]) -> TensorDictBase:
    """Return steps one part after the other."""
    cat: Any = torch.cat  # whose types know tensors only
    return cast("TensorDictBase", cat(list(parts)))


class _Windows:
    """Windows of steps in memory, read in the order of the files, the next one ahead of its use."""

    def __init__(self, loader: Loader, epoch: int, numbers: range) -> None:
        self._loader, self._epoch, self._numbers = loader, epoch, numbers
        self._per_window = loader._order.window // loader._elements
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rlx window")
        self._read: dict[int, Future[tuple[Rows, TensorDictBase]]] = {}

    def batch(self, number: int) -> TensorDictBase:
        """Return this rank's steps of a batch."""
        window = number // self._per_window
        with self._lock:
            for wanted in (window, window + 1):
                if wanted not in self._read and wanted * self._per_window < self._numbers.stop:
                    self._read[wanted] = self._pool.submit(self._window, wanted)
            for old in [known for known in self._read if known < window - 1]:
                del self._read[old]
            read = self._read[window]
        known, steps = read.result()
        places = known.searchsorted(self._loader._mine(self._epoch, number))
        return pick_steps(steps, places) if steps.batch_dims == 1 else steps[torch.from_numpy(places)]

    def _window(self, window: int) -> tuple[Rows, TensorDictBase]:
        """Return the elements that this process needs of a window, ascending, and their steps."""
        first = window * self._per_window
        numbers = [n for n in range(first, first + self._per_window) if n in self._numbers]
        mine = [self._loader._mine(self._epoch, number) for number in numbers]
        elements = np.unique(np.concatenate([np.empty(0, np.int64), *mine]))
        at_once = max(_READ_STEPS // (self._loader._slice_len or 1), 1)
        read = [
            self._loader._steps(elements[start : start + at_once], self._epoch)
            for start in range(0, len(elements), at_once)
        ]
        return elements, read[0] if len(read) == 1 else concatenated(read)


class _Copies:
    """Copies of batches on a device, made ahead on a stream of their own where the device is a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, batch: TensorDictBase) -> tuple[TensorDictBase, Any]:
        """Start a copy; return it, and the event after it."""
        if self._stream is None:
            return batch.to(self._device), None
        pinned = batch.pin_memory()
        with torch.cuda.stream(self._stream):
            copy = pinned.to(self._device, non_blocking=True)
            return copy, self._stream.record_event()

    def finish(self, started: tuple[TensorDictBase, Any]) -> TensorDictBase:
        """Return a copy that the consumer's stream may use."""
        copy, event = started
        if event is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(event)
            for leaf in leaves_of(copy).values():
                leaf.record_stream(stream)
        return copy


def _ahead(make: Callable[[int], Any], numbers: range, depth: int, threads: int) -> Iterator[Any]:
    """Yield the results for numbers in order; up to ``depth`` are made ahead, in threads.

    Whoever asks for a result that is not there yet makes one instead of waiting.
    """
    if not depth:
        yield from map(make, numbers)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="rlx loader") as pool:
        ahead: deque[Task] = deque()
        try:
            for number in numbers:
                ahead.append(Task(partial(make, number), pool))
                if len(ahead) > depth:
                    yield ahead.popleft().result(ahead)
            while ahead:
                yield ahead.popleft().result(ahead)
        finally:
            for task in ahead:
                task.cancel()


loader = Loader


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return this process's rank and the number of ranks: given, of ``torch.distributed``, or of ``torchrun``."""
    if rank is None and world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise OptionError(f"rank {rank} of {world_size}: expected both, and 0 <= rank < world_size")
    return rank, world_size


def _check(batch_size: int, slice_len: int, world_size: int, prefetch: int, threads: int) -> None:
    if slice_len < 1 or batch_size < 1:
        raise OptionError(f"batch_size {batch_size}, slice_len {slice_len}: expected 1 or more")
    if batch_size % (slice_len * world_size):
        raise OptionError(
            f"batch_size {batch_size}: expected a multiple of {slice_len * world_size}, "
            f"slice_len ({slice_len}) times ranks ({world_size}): it counts the steps of all ranks"
        )
    if prefetch < 0 or threads < 1:
        raise OptionError(f"prefetch {prefetch}, threads {threads}: expected at least 0 and 1")


def unchanged(batch: Any) -> Any:
    """Return the batch; a ``DataLoader`` that converts nothing takes it as ``collate_fn``.

    Example:
        >>> loader = rlx.loader("cartpole", batch_size=100)
        >>> batches = torch.utils.data.DataLoader(loader, batch_size=None, collate_fn=rlx.buffer.unchanged)
        >>> next(iter(batches)).batch_size
        torch.Size([100])
    """
    return batch
