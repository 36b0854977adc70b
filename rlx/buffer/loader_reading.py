"""Reading for a loader: elements of one source, prefetched windows of steps, and copies to a device."""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, TypeAlias, cast
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rlx.accelerator import available, present
from rlx.buffer.batch import pinned, write_info
from rlx.buffer.batched_draws import is_planned, planned
from rlx.buffer.epoch_order import Elements, EpochOrder, SliceElements
from rlx.buffer.prefetch import Task
from rlx.buffer.protocol import Keys, Rows, Storage
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.trajectory_weights import TrajectoryDraws, TrajectoryWeights, weights_of
from rlx.buffer.storage.dataset import DatasetStorage, as_storage
from rlx.buffer.storage.step_schema import leaves_of
from rlx.buffer.transform.compose import applied, chosen_marks, for_batch, pick_steps, read_steps
from rlx.errors import OptionError, SchemaMismatchError, TransformError
from rlx.fork import on_fork
from rlx.store.dataset import Dataset, cast_hint
from rlx.store.read_ahead import Held, ReadAhead
from rlx.store.ted import PlannedBatches
from rlx.transform.protocol import is_random

LoaderSource: TypeAlias = Dataset | ReplayBuffer | Storage | str | os.PathLike[str]
_AHEAD = 2  # windows that are fetched ahead of the one in use
_WINDOW_STEPS, _WINDOW_BYTES = 65_536, 256 * 2**20  # most that a window of blocks has by default


class Part:
    """One source of steps, and its elements: steps, or slices."""

    def __init__(
        self,
        source: LoaderSource,
        around: Sequence[Any],
        slices_of: Callable[[Storage], Elements] | None,
        keys: Keys | None,
        slice_len: int | None,
        trajectory_weights: TrajectoryWeights | None = None,
    ) -> None:
        self._weights, self._has_slices = trajectory_weights, slice_len is not None
        self._buffer = source if isinstance(source, ReplayBuffer) else None
        self._around, self._keys = around, keys
        if isinstance(source, ReplayBuffer):
            if around:
                raise OptionError("transform: one that needs neighbours belongs to the buffer, not to its loader")
            if source.transform.is_random:
                raise OptionError("data: a transform that draws belongs to the loader, not to its buffer, to resume")
            self.storage: Storage = source.storage
        elif isinstance(source, str | os.PathLike) and not isinstance(source, Dataset):
            self.storage = DatasetStorage(source)
        else:
            self.storage = as_storage(cast("Any", source))
        self._slices_of = slices_of
        self._generation = -1
        self.renew()
        self._ahead: ReadAhead | None = None

    def renew(self) -> None:
        """Count the elements, which writes to a buffer change."""
        if self._buffer is not None:
            self.storage = self._buffer.storage
        generation = len(self.storage) if self._slices_of is None else self.storage.index().generation
        if generation == self._generation:
            return
        self.slices = None if self._slices_of is None else self._slices_of(self.storage)
        self.count = len(self.storage) if self.slices is None else self.slices.count
        self.left_out = 0 if self.slices is None else self.slices.left_out
        self.by_trajectory: TrajectoryDraws | None = None
        if self._weights is not None:
            assert isinstance(self.slices, SliceElements)
            self.by_trajectory = self.slices.by_weights(weights_of(self.storage.index(), self._weights))
        self._generation = generation

    @cached_property
    def checksum(self) -> int | None:
        """CRC-32 of the lengths and returns of a dataset's trajectories; None of a buffer, whose steps change.

        A copy in another codec or in other shards has the same.
        """
        if not isinstance(self.storage, DatasetStorage):
            return None
        table = self.storage.dataset.trajectories
        return crc32(np.ascontiguousarray(table.returns).data, crc32(np.ascontiguousarray(table.length).data))

    @property
    def window(self) -> int:
        """Steps per window by default."""
        dataset = getattr(self.storage, "dataset", None)
        if not isinstance(dataset, Dataset) or not dataset.manifest.bytes:
            return _WINDOW_STEPS
        return min(_WINDOW_STEPS, _WINDOW_BYTES * dataset.manifest.steps // dataset.manifest.bytes)

    def is_read_ahead(self) -> bool:
        """Return whether steps can be held in memory, as those of a dataset at a URL can."""
        if self._ahead is None and self._buffer is None and isinstance(self.storage, DatasetStorage):
            found = self.storage.dataset.reading_ahead()
            if found is not None:
                self.storage = DatasetStorage(found[0])
                self._ahead = found[1]
        return self._ahead is not None

    def hold(self, elements: Rows, epoch: int) -> list[Held]:
        """Fetch the steps of elements; return their holder, or None."""
        return [] if self._ahead is None else [self._ahead.hold(self._cut(elements, epoch)[0].reshape(-1))]

    def _cut(self, elements: Rows, epoch: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return the rows of elements, [n] or [n, slice_len], and values to add to their steps."""
        if self.slices is None:
            return self.storage.row_at(elements), {}
        rows, marks = self.slices.cut(elements, epoch)
        return (rows if self._has_slices else rows[:, 0]), marks  # steps of weighted trajectories are slices of one

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_ahead": None}
        # A buffer pickles its storage while nobody writes it.
        return state if self._buffer is None else state | {"storage": None, "slices": None, "_generation": -1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.renew()

    def plan(
        self, choose: Callable[[], Rows], epoch: int, chances: Callable[[int], Sequence[tuple[int, Rows]]]
    ) -> PlannedBatches | None:
        """Return batches of the elements [batches, n] that ``choose`` returns; None where they are read one by one.

        Args:
            chances: of n, the number of each batch's random numbers, and the places of its steps, as for ``read``.
        """
        if self._buffer is not None or not is_planned(self.storage, self._around):
            return None
        elements = choose()
        rows, marks = self._cut(elements.reshape(-1), epoch)
        shaped = rows.reshape(*elements.shape, *rows.shape[1:])
        drawn = [(number, places.reshape(-1)) for number, places in chances(elements.shape[1])]
        return planned(self.storage, self._around, shaped, marks, self._keys, drawn)

    def read(self, elements: Rows, epoch: int, number: int | None = None, places: Rows | None = None) -> TensorDictBase:
        """Return steps [n], or slices [n, slice_len].

        Args:
            number: of the batch's random numbers, if transforms draw any.
            places: [n, slice_len] where each step is in the batch of all ranks.
        """
        rows, marks = self._cut(elements, epoch)
        if self._buffer is not None:
            steps: TensorDictBase = self._buffer.get(rows.reshape(-1), self._keys)
        else:
            around = for_batch(self._around, number, None if places is None else places.reshape(-1))
            steps = read_steps(self.storage, around, self.storage.index, rows.reshape(-1), self._keys)
        write_info(steps, marks if self._keys is None else chosen_marks(marks, self._keys))
        return steps if rows.ndim == 1 else steps.reshape(*rows.shape)


def _shown(kind: tuple[Any, Any] | None) -> str:
    return "missing" if kind is None else f"{kind[0]}{list(kind[1])}".removeprefix("torch.")


def made_alike(parts: Sequence[TensorDictBase], transforms: Sequence[Any]) -> tuple[Sequence[TensorDictBase], int]:
    """Return steps of several datasets after the transforms that make their keys, dtypes and shapes the same.

    Also how many transforms those are; all that can be applied, if they do not help.

    Raises:
        TransformError: one changes the number of steps.
    """
    for done, transform in enumerate(transforms):
        first, *others = (_kinds(part) for part in parts)
        if is_random(transform) or all(kinds == first for kinds in others):
            return parts, done
        made = [applied([transform], part) for part in parts]
        for before, after in zip(parts, made, strict=True):
            if after.batch_size != before.batch_size:
                raise TransformError(
                    f"{transform!r} returned {list(after.batch_size)} for {list(before.batch_size)} steps of a source; "
                    "expected as many, because sources are joined after it"
                )
        parts = made
    return parts, len(transforms)


def _kinds(part: TensorDictBase) -> dict[Any, tuple[Any, Any]]:
    return {key: (leaf.dtype, leaf.shape[1:]) for key, leaf in leaves_of(part).items()}


def joined(parts: Sequence[TensorDictBase], places: Rows, storages: Sequence[Storage]) -> TensorDictBase:
    """Return steps of several datasets as one, in another order; ``storages`` are theirs, for messages."""
    kinds = [_kinds(part) for part in parts]
    for kind, storage in zip(kinds[1:], storages[1:], strict=True):
        if differing := sorted(key for key in kind.keys() | kinds[0] if kind.get(key) != kinds[0].get(key)):
            key, datasets = differing[0], [one.dataset for one in storages if isinstance(one, DatasetStorage)]
            raise SchemaMismatchError(
                f"{'/'.join(key)} differs between datasets: {_shown(kinds[0].get(key))} in {storages[0]!r}, "
                f"{_shown(kind.get(key))} in {storage!r}; expected the same keys, dtypes and shapes",
                hint=cast_hint(datasets) or "rlx preprocess makes them alike",
            )
    if len(devices := {str(part.device or "cpu") for part in parts}) > 1:
        raise SchemaMismatchError(f"steps of the sources are on {', '.join(sorted(devices))}: expected one device")
    steps = concatenated(parts)
    return pick_steps(steps, places) if steps.batch_dims == 1 else steps[torch.from_numpy(places)]


def concatenated(parts: Sequence[TensorDictBase]) -> TensorDictBase:
    """Return steps one part after the other."""
    cat: Any = torch.cat  # whose types know tensors only
    return cast("TensorDictBase", cat(list(parts)))


class Windows:
    """The windows of an epoch, whose steps are fetched ahead of their use and dropped after it.

    Args:
        numbers: the batches that are read, each once.
        mine: returns the elements of a batch.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        order: EpochOrder,
        epoch: int,
        numbers: range,
        per_window: int,
        mine: Callable[[int], Rows],
    ) -> None:
        self._parts, self._order, self._epoch, self._numbers = parts, order, epoch, numbers
        self._per_window, self._mine = per_window, mine
        self._lock = threading.Lock()
        self._pool = _fetching()
        self._held: dict[int, Future[list[Held]]] = {}
        self._unread: dict[int, int] = {}  # batches of each window that was begun
        self._is_closed = threading.Event()
        on_fork(self, Windows._forget)
        atexit.register(self.close)  # an iteration may end after what closing needs

    def _forget(self) -> None:
        # In a forked process, the threads that fetch are missing.
        self._pool, self._held, self._unread = _fetching(), {}, {}

    @contextmanager
    def reading(self, number: int) -> Iterator[None]:
        """Hold the steps of a batch, once they are here, while it is read."""
        window = number // self._per_window
        with self._lock:
            for wanted in range(window, window + 1 + _AHEAD):
                if wanted not in self._unread:
                    batches = self._batches(wanted)
                    self._unread[wanted] = len(batches)
                    if batches:
                        self._held[wanted] = self._pool.submit(self._fetch, batches)
            held = self._held[window]
        held.result()
        try:
            yield
        finally:
            with self._lock:
                self._unread[window] -= 1
                is_over = not self._unread[window] and self._held.pop(window, None) is not None
            if is_over:
                _let_go(held)

    def close(self) -> None:
        """Drop all steps."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        atexit.unregister(self.close)
        self._pool.shutdown(cancel_futures=True)
        for held in self._held.values():
            _let_go(held)

    def _batches(self, window: int) -> list[int]:
        first = window * self._per_window
        return [number for number in range(first, first + self._per_window) if number in self._numbers]

    def _fetch(self, batches: Sequence[int]) -> list[Held]:
        mine = [self._mine(number) for number in batches]
        part, element = self._order.located(np.concatenate([np.empty(0, np.int64), *mine]))
        found: list[Held] = []
        try:
            for number in np.unique(part).tolist():
                if not self._is_closed.is_set():
                    found += self._parts[number].hold(element[part == number], self._epoch)
        except BaseException:
            for each in found:
                each.release()
            raise
        return found


def _fetching() -> ThreadPoolExecutor:
    # Windows are fetched at once: one takes two round trips, in which the server could send another.
    return ThreadPoolExecutor(_AHEAD, thread_name_prefix="rlx window")


def _let_go(held: Future[list[Held]]) -> None:
    if not held.cancelled() and held.exception() is None:
        for each in held.result():
            each.release()


class Copies:
    """Copies of batches to a device, ahead of use; to an accelerator on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = present(device)
        here = available()
        # That of Apple has one stream for all, and no pinned memory apart from its own.
        has_streams = here is not None and here.type == device.type != "mps"
        self._stream = torch.Stream(self._device) if has_streams else None

    def start(self, batch: TensorDictBase) -> tuple[TensorDictBase, torch.Event | None]:
        """Start a copy; return it, and the event after it."""
        if not isinstance(batch, TensorDictBase | torch.Tensor):
            raise TransformError(f"transform returned a {type(batch).__name__}: device= needs a TensorDict")
        if self._stream is None:
            return batch.to(self._device), None
        source = pinned(batch)
        if any(not tensor.is_cpu for tensor in _tensors(source)):
            # Stored on a device, or moved to one by a transform, on the stream of this thread.
            self._stream.wait_event(torch.accelerator.current_stream(self._device).record_event())
        with self._stream:
            copy = source.to(self._device, non_blocking=True)
            return copy, self._stream.record_event()

    def finish(self, started: tuple[TensorDictBase, torch.Event | None]) -> TensorDictBase:
        """Return a copy that the consumer's stream may use."""
        copy, event = started
        if event is not None:
            stream: Any = torch.accelerator.current_stream(self._device)
            stream.wait_event(event)
            for tensor in _tensors(copy):
                tensor.record_stream(stream)
        return copy


def _tensors(batch: TensorDictBase | torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of a batch; of a lazy stack, those that it has: the stacks of them are others."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    found: list[torch.Tensor] = []
    batch.apply(found.append, filter_empty=True)
    return found


def made_ahead(make: Callable[[int], Any], numbers: range, depth: int, threads: int) -> Iterator[Any]:
    """Yield the results for numbers in order; threads compute up to ``depth`` ahead.

    A thread that asks for a result that is not there yet makes one instead of waiting.
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
