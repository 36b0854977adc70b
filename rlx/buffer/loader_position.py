"""Position of a loader in its epochs, which the workers of a ``DataLoader`` share."""

import os
import threading
from typing import Any, Self

import torch

from rlx.fork import on_fork

_EPOCH, _BATCH, _BY_WORKERS = range(3)


class LoaderPosition:
    """Number of the epoch, and of its batches that were yielded.

    They are in shared memory: workers have copies of everything else, some from before the epoch began.
    """

    def __init__(self) -> None:
        self._numbers = torch.zeros(3, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._values = self._numbers.numpy()  # the same memory; a batch is counted in a tenth of the time
        self._process = os.getpid()
        self._is_resumed = True  # by the next iteration, which begins the next epoch otherwise
        self._iteration: object = object()  # the one that moves the position: the last that began
        self._renew_lock()
        on_fork(self, LoaderPosition._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return int(self._values[_EPOCH])

    @property
    def batch(self) -> int:
        """Batches of the epoch that were yielded, but for those of workers."""
        return int(self._values[_BATCH])

    @property
    def is_read_by_workers(self) -> bool:
        """Whether the workers of a ``DataLoader`` read the epoch, of whose batches they cannot know which were used."""
        return bool(self._values[_BY_WORKERS])

    @is_read_by_workers.setter
    def is_read_by_workers(self, value: bool) -> None:
        self._values[_BY_WORKERS] = value

    def move_to(self, epoch: int, batch: int) -> None:
        """Make the next iteration start here; iterations that run no longer move the position."""
        with self._lock:
            self._move_to(epoch, batch)

    def _move_to(self, epoch: int, batch: int) -> None:
        self._own()
        for place, value in ((_EPOCH, epoch), (_BATCH, batch), (_BY_WORKERS, 0)):
            self._values[place] = value
        self._is_resumed, self._iteration = True, object()

    def forget_remainder(self) -> None:
        """Make the next iteration begin the next epoch, if this one has begun: it had other steps."""
        self._is_resumed = self._is_resumed and not self.batch

    def resumed(self, batches: int) -> tuple[int, int]:
        """Return the epoch, of ``batches``, and the batch to continue from: the next epoch if this one has ended."""
        return (self.epoch, self.batch) if self.batch < batches else (self.epoch + 1, 0)

    def begin(self, batches: int) -> tuple[int, int, object]:
        """Begin an iteration over an epoch of ``batches``; return the epoch, its first batch, and the iteration."""
        with self._lock:
            epoch, batch = self.resumed(batches) if self._is_resumed else (self.epoch + 1, 0)
            self._move_to(epoch, batch)
            self._is_resumed = False
            return epoch, batch, self._iteration

    def advance(self, iteration: object, batch: int) -> None:
        """Count the batches that an iteration has yielded, unless another began after it."""
        with self._lock:
            if self._iteration is iteration:
                self._values[_BATCH] = batch

    def _own(self) -> None:
        """Count apart from the process that this one was forked from."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._numbers = self._numbers.clone().share_memory_()
            self._values = self._numbers.numpy()

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__setstate__(self.__getstate__() | {"_numbers": self._numbers.clone()})
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_is_resumed": True, "_iteration": None, "_lock": None, "_values": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._numbers.is_shared():  # a copy, not a worker's
            self._numbers.share_memory_()
        self._values = self._numbers.numpy()
        self._renew_lock()
        on_fork(self, LoaderPosition._renew_lock)
