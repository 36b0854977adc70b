"""Batches for training: the same global batches for any number of ranks and workers."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Self, cast, get_args

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from torch.utils.data import IterableDataset, get_worker_info

from rlx.accelerator import device_named
from rlx.buffer.batched_draws import batches_at_once
from rlx.buffer.epoch_order import Elements, EpochOrder, Shuffle, SliceElements, StreamElements, derived
from rlx.buffer.loader_position import LoaderPosition
from rlx.buffer.loader_reading import Copies, LoaderSource, Part, Windows, joined, made_ahead, made_alike
from rlx.buffer.protocol import Rows
from rlx.buffer.sampler.slice_starts import Pad, Weighting
from rlx.buffer.sampler.trajectory_weights import TrajectoryDraws, TrajectoryWeights
from rlx.buffer.transform.compose import Compose, Transform, applied, checked_keys, for_batch
from rlx.errors import OptionError, SamplingError
from rlx.fork import ThisProcessOnly
from rlx.numbers import check_real, check_whole
from rlx.store.ted import PlannedBatches

logger = logging.getLogger(__name__)


class Loader(IterableDataset[TensorDictBase]):
    """Iterable of batches for training, in one process or several.

    Each iteration is an epoch, in another order. The order is a function of the seed and the epoch: any number of ranks
    and workers gets the same global batches, of which each rank receives its part. Give it to a ``DataLoader`` with
    ``batch_size=None, collate_fn=rlx.buffer.unchanged``, or use it alone, with threads that read ahead.

    An epoch has the steps that a ``ReplayBuffer`` holds when it begins; do not write to the buffer during an epoch.

    Args:
        data: a dataset, its path, id or URL, a ``ReplayBuffer`` (its transforms are applied, its sampler is not used),
            or a list of them. Batches of several have ``("collector", "dataset")``, the number of each step's source.
            If their keys, dtypes or shapes differ, transforms are applied to the steps of each source until they agree.
        batch_size: steps per batch, over all ranks.
        slice_len: steps per slice; batches are then [slices, slice_len]. Every epoch cuts each trajectory into slices
            from another offset; trajectories shorter than a slice are left out, and counted in ``left_out``.
        pad: "right": any step may be the first of a slice, which is padded with its trajectory's last step. "left": any
            step may be the last, and a slice is padded with its trajectory's first step. ``("collector", "mask")``
            (bool [slices, slice_len]) marks the real steps. An epoch has one slice of every step.
        weighting: "step": an epoch has one slice of every step where one may start. "trajectory": it has one slice of
            every trajectory, in every epoch another.
        stream: whether slices run on into another trajectory: an epoch is all trajectories one after the other, in
            random order, cut into slices. ``is_init`` (bool [slices, slice_len, 1]) is True at the first step of a
            slice, and wherever another trajectory begins. Where the step before it is neither truncated nor done, it is
            flagged as both, and ``("collector", "slice_end")`` is True there.
        carry: whether the slices of a batch continue those of the batch before, in the same order, so that a recurrent
            state may be carried over; ``is_init`` is then True only where another trajectory begins, and in the first
            batch of an epoch. Batches that are left over are dropped.
        transform: a callable, or one of ``rlx.buffer.transform``, such as ``FrameStack(4)``, ``NStep(3)`` or
            ``Compose``.
        keys: keys of batches, each a leaf or a group such as ``"next"``, among the stored ones and those that
            transforms which need neighbours add; all by default. Others are not read, decoded, copied or stacked. The
            other transforms see these keys only.
        weights: share of each source in the samples; in proportion to their sizes by default. Sources are mixed at
            random; without replacement, a source starts over when it is exhausted.
        trajectory_weights: a column of the trajectory tables, such as ``length``, or [N] weights; of several sources a
            column, or a list with those of each, or None. With ``replacement``: trajectories of a source are drawn in
            proportion to them, and all steps, or starts of slices, of one are equally likely.
        replacement: whether samples are drawn independently of each other. Slices may then start at any step.
        shuffle: whether each source is in random order. "blocks" reads a dataset at a URL with few requests: it
            shuffles blocks of consecutive steps, and single steps only within windows of several blocks.
        drop_last: leave out the last batch of an epoch if it is smaller.
        batches: batches per epoch; by default as many as the data give.
        seed: random seed.
        rank: number of this process; by default of ``torch.distributed``, or of the environment that ``torchrun`` sets.
        world_size: number of processes; defaults as for ``rank``.
        prefetch: batches to read ahead; 0 reads in the thread that iterates.
        threads: threads that read ahead.
        device: device to which batches are copied ahead of their use; not with the workers of a ``DataLoader``.
        block: steps per block, with ``shuffle="blocks"``.
        window: steps per window, at least a batch. By default 65,536, or as many as have 256 MB in the dataset's
            files. Of a dataset at a URL, the files' bytes of up to four windows are in memory, and of more if windows
            have fewer batches than are read ahead.

    Raises:
        OptionError: arguments are out of range or conflict.
        SamplingError: there are too few steps; SliceTooLongError, all trajectories are shorter than a slice.

    Example:
        >>> loader = rlx.loader("cartpole", batch_size=100, seed=1)
        >>> len(loader), sum(len(batch) for batch in loader)
        (10, 1000)

    Attributes:
        epoch: number of the epoch.
        batch: number of batches of the epoch that were yielded.
        waited: seconds that the consumer has waited for batches, in all; 0 with the workers of a ``DataLoader``.
        left_out: trajectories that are shorter than a slice.
    """

    def __init__(
        self,
        data: LoaderSource | Sequence[LoaderSource],
        batch_size: int,
        *,
        slice_len: int | None = None,
        pad: Pad | None = None,
        weighting: Weighting | None = None,
        stream: bool = False,
        carry: bool = False,
        transform: Transform | None = None,
        keys: Sequence[NestedKey] | None = None,
        weights: Sequence[float] | None = None,
        trajectory_weights: TrajectoryWeights | Sequence[TrajectoryWeights | None] | None = None,
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
        block: int = 1024,
        window: int | None = None,
    ) -> None:
        self.rank, self.world_size = _place(rank, world_size)
        batch_size, threads = check_whole("batch_size", batch_size), check_whole("threads", threads)
        slice_len = None if slice_len is None else check_whole("slice_len", slice_len)
        length = slice_len or 1
        batches = None if batches is None else check_whole("batches", batches)
        block = check_whole("block", block)
        window = None if window is None else check_whole("window", window)
        prefetch, seed = check_whole("prefetch", prefetch, 0), check_whole("seed", seed, None)
        if batch_size % (length * self.world_size):
            raise OptionError(
                f"batch_size {batch_size}: expected a multiple of {length * self.world_size}, "
                f"slice_len ({length}) times ranks ({self.world_size}): it counts the steps of all ranks"
            )
        if shuffle == "blocks" and (weights is not None or replacement):
            raise OptionError("shuffle='blocks' excludes weights and replacement")
        if replacement and not shuffle:
            raise OptionError("shuffle=False excludes replacement, which draws at random")
        if shuffle not in (True, False, "blocks"):
            raise OptionError(f"shuffle {shuffle!r}: expected True, False or 'blocks'")
        _check_cutting(slice_len, pad, weighting, replacement=replacement, stream=stream, carry=carry)
        if carry and (replacement or weights is not None or shuffle == "blocks" or not drop_last):
            raise OptionError("carry excludes replacement, weights, shuffle='blocks' and drop_last=False")
        composed = Compose() if transform is None else Compose(transform)
        around, self._transforms = composed.around, composed.rest
        self._is_random, self._around = composed.is_random, len(around)
        sources = cast("list[LoaderSource]", list(data) if isinstance(data, list | tuple) else [data])
        if not sources:
            raise OptionError("data: expected at least one dataset or buffer")
        if trajectory_weights is not None and not replacement:
            raise OptionError("trajectory_weights: expected replacement=True, as an epoch has every step once")
        if trajectory_weights is not None and (stream or weighting is not None):
            raise OptionError("trajectory_weights: expected neither stream nor weighting beside it")
        by_trajectory: Any = [trajectory_weights] * len(sources)
        if len(sources) > 1 and trajectory_weights is not None and not isinstance(trajectory_weights, str):
            by_trajectory = trajectory_weights
        if len(by_trajectory) != len(sources):
            raise OptionError(f"trajectory_weights of {len(by_trajectory)} sources: expected those of {len(sources)}")
        slices_of: Callable[..., Elements] | None = None
        if stream:  # blocks are of consecutive steps only where trajectories are in order
            slices_of = partial(StreamElements, shuffle=shuffle is True, carry=carry)
        elif slice_len is not None or trajectory_weights is not None:  # then steps are slices of one
            slices_of = partial(SliceElements, shuffle=bool(shuffle), pad=pad, weighting=weighting)
        if slices_of is not None:
            slices_of = partial(slices_of, steps=length, seed=seed, replacement=replacement)
        make = partial(Part, around=around, slices_of=slices_of, keys=checked_keys(keys), slice_len=slice_len)
        self._parts = [
            make(source, trajectory_weights=mine) for source, mine in zip(sources, by_trajectory, strict=True)
        ]
        self._cutting = {"pad": pad, "weighting": weighting, "stream": stream, "carry": carry}
        self._slice_len, self._elements = slice_len, batch_size // length
        steps = min(part.window for part in self._parts) if window is None else window
        window_elements = max(steps // batch_size, 1) * self._elements
        self._order = EpochOrder(
            tuple(part.count for part in self._parts),
            seed,
            shuffle,
            replacement,
            None if weights is None else _checked_weights(weights),
            max(block // length, 1),
            window_elements,
            self._elements if carry else 0,
            self._drawn_by_trajectory(),
        )
        self._at_once = batches_at_once(batch_size)
        self._drop_last, self._asked = drop_last, batches
        self._batches = self._order.batches(self._elements, batches, self.world_size, drop_last=drop_last)
        self._prefetch, self._threads = prefetch, threads
        self._device = None if device is None else device_named(device)
        self.waited = 0.0
        self._position = LoaderPosition()

    def __len__(self) -> int:
        """Return batches per epoch."""
        if not 0 < self.batch < self._batches:  # the order of a running epoch stays
            self._renew()
        return self._batches

    def _renew(self) -> None:
        """Update for writes to buffers since the last epoch."""
        for part in self._parts:
            part.renew()
        counts = tuple(part.count for part in self._parts)
        drawn = self._drawn_by_trajectory()
        if (counts, _checksums(drawn)) != (self._order.counts, _checksums(self._order.by_trajectory)):
            self._position.forget_remainder()
            self._order = replace(self._order, counts=counts, by_trajectory=drawn)
            self._batches = self._order.batches(self._elements, self._asked, self.world_size, drop_last=self._drop_last)

    def _drawn_by_trajectory(self) -> tuple[TrajectoryDraws | None, ...] | None:
        found = tuple(part.by_trajectory for part in self._parts)
        return found if any(found) else None

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._position.epoch

    @property
    def batch(self) -> int:
        """Batches of the epoch that were yielded."""
        return self._position.batch

    @property
    def left_out(self) -> int:
        """Trajectories that are shorter than a slice."""
        return sum(part.left_out for part in self._parts)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch, from its start; without it, each iteration is the next epoch.

        With the workers of a ``DataLoader``, call it before every epoch: they cannot count, and log a warning when they
        read an epoch again.

        Raises:
            OptionError: it is not a whole number of at least 0.
        """
        self._position.move_to(check_whole("epoch", epoch, 0), 0)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position; ``load_state_dict`` of a loader of the same data and batches resumes there.

        Args:
            batches: number of batches of the epoch that were used; those yielded by default. A ``DataLoader`` with
                workers reads ahead, so that only its user can count them.

        Raises:
            SamplingError: workers of a ``DataLoader`` read the epoch, and ``batches`` is not given.
        """
        if batches is None and self._position.is_read_by_workers:
            raise SamplingError(
                "the position is unknown: workers of a DataLoader read this epoch",
                hint="state_dict(batches=N), with the number of batches that were used",
            )
        batch = self.batch if batches is None else check_whole("batches", batches, 0)
        return {"epoch": self.epoch, "batch": batch, **self._described()}

    def _described(self) -> dict[str, Any]:
        """Return what determines the batches, but for the position."""
        order = self._order
        return {
            "seed": order.seed,
            "elements": list(order.counts),
            "checksums": [part.checksum for part in self._parts],
            "elements_per_batch": self._elements,
            "slice_len": self._slice_len,
            **self._cutting,
            "shuffle": order.shuffle,
            "replacement": order.replacement,
            "weights": None if order.weights is None else list(order.weights),
            "trajectory_weights": _checksums(order.by_trajectory),
            **({"block": order.block, "window": order.window} if order.shuffle == "blocks" else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue from a state, also of another number of ranks or workers.

        Raises:
            SamplingError: the state is of other data, of options that give other batches, or incomplete.
        """
        if missing := sorted({"epoch", "batch", "seed", "elements", "elements_per_batch"} - {*state}):
            raise SamplingError(f"state without {', '.join(missing)}: expected that of a loader")
        self._renew()
        for key, mine in self._described().items():
            # States of older versions lack some.
            if (found := state.get(key, mine)) != mine:
                raise SamplingError(f"state of {key} {found}, the loader has {mine}")
        epoch, batch = (
            check_whole(f"state of {key}", state[key], 0, error=SamplingError) for key in ("epoch", "batch")
        )
        self._position.move_to(epoch, batch)

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Yield this rank's part of every batch of the epoch that remains."""
        self._renew()
        worker = get_worker_info()
        if worker is not None:
            if self._device is not None:
                raise OptionError(
                    f"device {self._device}: workers of a DataLoader give batches on the CPU",
                    hint="give the DataLoader num_workers=0; the loader's own threads read ahead",
                )
            epoch, first = self._position.resumed(self._batches)
            if worker.id == 0:  # whose batch is the first
                if self._position.is_read_by_workers and (self._order.shuffle or self._order.replacement):
                    logger.warning("epoch %d is read again, in the same order: call set_epoch before each", epoch)
                self._position.is_read_by_workers = True
            # The DataLoader takes a batch of each worker in turn.
            numbers = range(first + worker.id, self._batches, worker.num_workers)
            with self._reading(epoch, numbers) as read:
                yield from map(read, numbers)
            return
        guard = ThisProcessOnly(
            "an iteration of a loader cannot continue in a forked process: its threads are in the parent",
            hint="iterate over the loader from the start in the forked process",
        )
        guard.check()
        epoch, first, iteration = self._position.begin(self._batches)
        numbers = range(first, self._batches)
        for number, batch in zip(numbers, self._timed(self._moved(epoch, numbers)), strict=True):
            self._position.advance(iteration, number + 1)
            yield batch
            guard.check()

    def _timed(self, batches: Iterator[TensorDictBase]) -> Iterator[TensorDictBase]:
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    def _moved(self, epoch: int, numbers: range) -> Iterator[TensorDictBase]:
        copies = None if self._device is None else Copies(self._device)
        with self._reading(epoch, numbers) as read:

            def make(number: int) -> Any:
                batch = read(number)
                return batch if copies is None else copies.start(batch)

            for made in made_ahead(make, numbers, self._prefetch, self._threads):
                yield made if copies is None else copies.finish(made)

    @contextmanager
    def _reading(self, epoch: int, numbers: range) -> Iterator[Callable[[int], TensorDictBase]]:
        def read(number: int) -> TensorDictBase:
            group = self._group(number, numbers)
            planned = plan(group)
            if planned:
                steps, done = planned.read(group.index(number)), 0
            else:
                steps, done = self._steps(self._mine(epoch, number), epoch, number)
            if self._order.lanes and not number:
                steps.get("is_init")[:, 0] = True  # nothing continues the last slices of the epoch before
            return self._finished(steps, epoch, number, done)

        plan = lru_cache(maxsize=self._threads + 1)(partial(self._plan, epoch))
        windows = None
        if self._order.shuffle == "blocks" and any([part.is_read_ahead() for part in self._parts]):  # noqa: C419
            windows = Windows(self._parts, self._order, epoch, numbers, self._per_window, partial(self._mine, epoch))
        if windows is None:
            yield read
            return

        def read_held(number: int) -> TensorDictBase:
            with windows.reading(number):
                return read(number)

        try:
            yield read_held
        finally:
            windows.close()

    @property
    def _per_window(self) -> int:
        return self._order.window // self._elements

    def _group(self, number: int, numbers: range) -> range:
        """Return the batches that are planned with this one, all of one window."""
        place, size, offset = numbers.index(number), self._at_once * numbers.step, number % self._per_window
        first, stop = offset % size, number - offset + self._per_window
        rest = min(size - first, stop - number)
        return numbers[max(place - first // numbers.step, 0) : place - -rest // numbers.step]

    def _plan(self, epoch: int, chosen: range) -> PlannedBatches | None:
        """Return the batches of a group; None where they are read one by one."""
        size = self._elements
        first, stop = chosen[0] * size, (chosen[-1] + 1) * size
        if len(self._parts) > 1 or stop > self._limit:  # the last batch is smaller
            return None
        mine = np.s_[:: chosen.step, self._share(size)]
        return self._parts[0].plan(
            lambda: self._order.elements(epoch, first, stop).reshape(-1, size)[mine],
            epoch,
            lambda elements: [self._chance(epoch, number, elements) for number in chosen] if self._is_random else [],
        )

    def _mine(self, epoch: int, number: int) -> Rows:
        first = number - number % self._at_once
        begin, end = (min(n * self._elements, self._limit) for n in (first, min(first + self._at_once, self._batches)))
        planned = _planned(self._order, epoch, begin, end)
        start = number * self._elements
        size = min(self._elements, self._limit - start)
        return planned[start - begin :][self._share(size)]

    def _share(self, size: int) -> slice:
        """Return which elements of a batch are this rank's."""
        return slice(*(size * rank // self.world_size for rank in (self.rank, self.rank + 1)))

    @property
    def _limit(self) -> int:
        return self._batches * self._elements if self._order.is_endless else self._order.total

    def _steps(self, elements: Rows, epoch: int, number: int) -> tuple[TensorDictBase, int]:
        """Return the steps of elements, [n] or [n, slice_len], and how many transforms were applied to them already."""
        chance = self._chance(epoch, number, len(elements)) if self._is_random else (None, np.arange(0))
        if len(self._parts) == 1:
            return self._parts[0].read(elements, epoch, *chance), 0
        part, element = self._order.located(elements)
        numbers: list[int] = np.unique(part).tolist()
        at = [np.flatnonzero(part == number) for number in numbers]
        drawn, places = chance
        read = []
        for source, rows in zip(numbers, at, strict=True):
            steps = self._parts[source].read(element[rows], epoch, drawn, places[rows] if self._is_random else places)
            steps.set(("collector", "dataset"), torch.full(steps.batch_size, source))
            read.append(steps)
        if len(read) == 1:
            return read[0], 0
        alike, done = made_alike(read, self._transforms)
        return joined(alike, np.argsort(np.concatenate(at)), [self._parts[source].storage for source in numbers]), done

    def _chance(self, epoch: int, number: int, elements: int) -> tuple[int, Rows]:
        """Return the number of a batch's random numbers, and [elements, length] the places of its steps.

        All ranks together draw what one would: their parts are those of one batch.
        """
        length = self._slice_len or 1
        size = min(self._elements, self._limit - number * self._elements)
        first = self._share(size).start * length
        places = np.arange(first, first + elements * length).reshape(elements, length)
        return derived(self._order.seed, 6, epoch, number), places

    def _finished(self, batch: Any, epoch: int, number: int, done: int = 0) -> TensorDictBase:
        """Return the batch after the transforms, of which the first ``done`` were applied already."""
        transforms = self._transforms[done:]
        if self._is_random:
            drawn, places = self._chance(epoch, number, len(batch))
            transforms = for_batch(transforms, drawn, places.reshape(-1), first=self._around + done)
        return cast("TensorDictBase", applied(transforms, batch))

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__ | {"_position": copy(self._position)})
        return copied


@lru_cache(maxsize=64)
def _planned(order: EpochOrder, epoch: int, start: int, stop: int) -> Rows:
    return order.elements(epoch, start, stop)


def _checksums(draws: Sequence[TrajectoryDraws | None] | None) -> list[int | None]:
    return [None if each is None else each.checksum for each in draws or ()]


loader = Loader


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return this process's rank and the number of ranks: given, of ``torch.distributed``, or of ``torchrun``."""
    if rank is None and world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        found = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE") if name in os.environ}
        if not found:
            return 0, 1
        rank, world_size = found.get("RANK"), found.get("WORLD_SIZE")
    rank, world_size = (
        None if value is None else check_whole(name, value, None)
        for name, value in (("rank", rank), ("world_size", world_size))
    )
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise OptionError(f"rank {rank} of {world_size}: expected both, and 0 <= rank < world_size")
    return rank, world_size


def _check_cutting(
    slice_len: int | None, pad: Any, weighting: Any, *, replacement: bool, stream: bool, carry: bool
) -> None:
    """Raise OptionError for values and conflicts of the arguments about slices."""
    for name, value, known in (("pad", pad, get_args(Pad)), ("weighting", weighting, get_args(Weighting))):
        if value not in (None, *known):
            raise OptionError(f"{name} {value!r}: expected {' or '.join(map(repr, known))}")
    if slice_len is None and (pad or weighting or stream):
        raise OptionError("pad, weighting and stream require slice_len")
    if stream and (pad or weighting):
        raise OptionError("stream excludes pad and weighting")
    if carry and not stream:
        raise OptionError("carry requires stream=True")
    if replacement and weighting == "trajectory":
        raise OptionError("weighting='trajectory' excludes replacement", hint="SliceSampler of a ReplayBuffer has both")


def _checked_weights(weights: Any) -> tuple[float, ...]:
    if not isinstance(weights, Iterable) or isinstance(weights, str):
        raise OptionError(f"weights {weights!r}: expected a list of numbers")
    return tuple(check_real("weights", weight) for weight in weights)


def unchanged(batch: Any) -> Any:
    """Return the batch unchanged: a ``collate_fn`` for ``DataLoader``.

    Example:
        >>> loader = rlx.loader("cartpole", batch_size=100)
        >>> batches = torch.utils.data.DataLoader(loader, batch_size=None, collate_fn=rlx.buffer.unchanged)
        >>> next(iter(batches)).batch_size
        torch.Size([100])
    """
    return batch
