"""Reading batches ahead of their use, in threads, in the order in which they would be read without."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rlx.buffer.protocol import Rows
from rlx.buffer.read_write_lock import ReadWriteLock
from rlx.errors import SamplingError
from rlx.fork import on_fork


@dataclass(frozen=True, slots=True)
class Draw:
    """The choice of a sampler.

    Args:
        rows: [n] rows.
        info: what it says of them, by TED key, each [n, ...].
        ends_epoch: whether it was the last draw of an epoch.
        describes_steps: whether it means the steps that were stored there, as slices do, and not the rows alone.
    """

    rows: Rows
    info: Mapping[Any, NDArray[Any]]
    ends_epoch: bool = False
    describes_steps: bool = False


@dataclass(slots=True, eq=False)
class _Ticket:
    draw: Draw
    future: Future[TensorDictBase] | None  # None in a fork, until its own threads read it
    is_stale: bool = field(default=False)  # its rows hold something else now
    is_void: bool = field(default=False)  # its rows hold nothing any more, or are another sampler's


class Prefetcher:
    """Read-ahead that keeps ``depth`` batches drawn and being read while another is in use.

    Draws are made by the thread that takes a batch, so their order is that of the sampler; only reading, collating and
    transforming is done by the pool. Every write to the storage is to be reported by ``written``. A batch that it
    touches is not handed out as it was read: its rows are read again, or, where the draw was of the steps that were
    there (slices), another is drawn in its place. So a batch holds what its rows held when it was taken.

    Args:
        depth: threads, and batches ahead.
        lock: held by who writes the storage; taken before the prefetcher's own.
        draw: makes the next draw; called with ``lock`` held for reading.
        gather: reads the steps of a draw; called with ``lock`` held for reading.
        finish: does the rest, without it.
    """

    def __init__(
        self,
        depth: int,
        lock: ReadWriteLock,
        draw: Callable[[], Draw],
        gather: Callable[[Draw], TensorDictBase],
        finish: Callable[[TensorDictBase], TensorDictBase],
    ) -> None:
        self._depth = depth
        self._storage_lock = lock
        self._draw, self._gather, self._finish = draw, gather, finish
        self._own_lock = threading.Lock()
        self._ahead: deque[_Ticket] = deque()
        self._taken: list[_Ticket] = []
        self._pool: ThreadPoolExecutor | None = None
        on_fork(self, Prefetcher._renew)

    def take(self) -> tuple[Draw, TensorDictBase]:
        """Return the next batch, and the draw it comes from.

        Raises:
            SamplingError: nothing can be drawn.
        """
        with self._storage_lock.read(), self._own_lock:
            ticket = self._next()
        try:
            return self._checked(ticket)
        finally:
            with self._own_lock:
                self._taken.remove(ticket)

    def _next(self) -> _Ticket:
        for ticket in self._ahead:
            ticket.future = ticket.future or self._start(ticket.draw)
        try:
            while len(self._ahead) <= self._depth:
                draw = self._draw()
                self._ahead.append(_Ticket(draw, self._start(draw)))
        except SamplingError:
            if not self._ahead:
                raise
        ticket = self._ahead.popleft()
        self._taken.append(ticket)
        return ticket

    def _start(self, draw: Draw) -> Future[TensorDictBase]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._depth, thread_name_prefix="rlx prefetch")
        return self._pool.submit(self._read, draw)

    def _renew(self) -> None:
        """Start over in a fork, which has no threads: batches that were read ahead are read again."""
        self._own_lock, self._pool = threading.Lock(), None
        self._taken.clear()
        for ticket in self._ahead:
            ticket.future = None

    def _read(self, draw: Draw) -> TensorDictBase:
        with self._storage_lock.read():
            batch = self._gather(draw)
        return self._finish(batch)

    def _checked(self, ticket: _Ticket) -> tuple[Draw, TensorDictBase]:
        assert ticket.future is not None
        wait([ticket.future])
        with self._storage_lock.read():
            if not (ticket.is_stale or ticket.is_void):
                return ticket.draw, ticket.future.result()
            draw = ticket.draw
            if ticket.is_void or draw.describes_steps:
                with self._own_lock:
                    draw = replace(self._draw(), ends_epoch=draw.ends_epoch)
            batch = self._gather(draw)
        return draw, self._finish(batch)

    def written(self, rows: Rows) -> None:
        """Take note, with the storage's lock held for writing, that rows changed."""
        with self._own_lock:
            for ticket in [*self._ahead, *self._taken]:
                ticket.is_stale = ticket.is_stale or bool(np.isin(ticket.draw.rows, rows).any())

    def pending(self) -> list[Draw]:
        """Return the draws that were made and not taken yet, in order."""
        return [ticket.draw for ticket in self._ahead]

    def discard(self) -> None:
        """Take note, with the storage's lock held for writing, that all draws are void."""
        with self._own_lock:
            for ticket in self._taken:
                ticket.is_void = True
            for ticket in self._ahead:
                if ticket.future is not None:
                    ticket.future.cancel()
            self._ahead.clear()

    def shutdown(self) -> None:
        """Wait for the threads to end; draws that were not taken stay drawn."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=False)
            self._pool = None
