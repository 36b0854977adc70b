"""Threads of a buffer: the lock of readers and writers, and batches read ahead in the order of the draws."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rlx.accelerator import as_here
from rlx.buffer.protocol import Rows
from rlx.errors import ForkError, SamplingError
from rlx.fork import on_fork


class ReadWriteLock:
    """Lock that lets readers overlap and gives a writer exclusive access; a waiting writer blocks new readers.

    Neither side may be entered again by the thread that is in it. A fork waits for both sides, so that what they read
    and write is whole in the child, whose lock is free.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._condition = threading.Condition(self._mutex)
        self._readers: set[int] = set()  # threads
        self._waiting_writers = 0
        self._writer: int | None = None
        self._is_forking = False  # the writer is a fork
        self._is_torn = False
        self._reading, self._writing = _Reading(self), _Writing(self)
        on_fork(self, ReadWriteLock._renew, before=ReadWriteLock._hold, in_parent=ReadWriteLock._let_go)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process has no readers or writers yet.
        return type(self), ()

    def read(self) -> AbstractContextManager[None]:
        """Hold the lock together with other readers."""
        return self._reading

    def write(self) -> AbstractContextManager[None]:
        """Hold the lock alone."""
        return self._writing

    def _acquire(self, timeout: float | None) -> bool:
        """Wait until no thread is inside; return whether this thread is the writer then."""
        if self._writer is None and not self._readers:
            self._writer = threading.get_ident()
            return True
        self._waiting_writers += 1
        try:
            is_free = self._condition.wait_for(lambda: self._writer is None and not self._readers, timeout)
        finally:
            self._waiting_writers -= 1
        if is_free:
            self._writer = threading.get_ident()
        else:
            self._condition.notify_all()  # readers that made way
        return is_free

    def _release(self) -> None:
        self._writer = None
        self._condition.notify_all()

    def _check(self) -> None:
        if self._is_torn:
            raise ForkError(
                "a buffer cannot be used in this forked process: a thread was writing to it during the fork",
                hint='fork between two writes; or start processes with multiprocessing.get_context("spawn")',
            )

    def _hold(self, timeout: float) -> None:
        """Keep everybody out during a fork, but for a thread that forks inside."""
        me = threading.get_ident()
        with self._condition:
            if me != self._writer and me not in self._readers and self._acquire(timeout):
                self._is_forking = True

    def _let_go(self) -> None:
        with self._condition:
            if self._is_forking and self._writer == threading.get_ident():
                self._is_forking = False
                self._release()

    def _renew(self) -> None:
        """Release the locks that other threads held in the parent."""
        me = threading.get_ident()
        self._mutex = threading.Lock()
        self._condition = threading.Condition(self._mutex)
        self._is_torn = self._is_torn or not (self._is_forking or self._writer in (None, me))
        self._readers &= {me}
        self._writer = me if self._writer == me and not self._is_forking else None
        self._waiting_writers, self._is_forking = 0, False


class _Reading(AbstractContextManager[None]):
    """The side of the readers; a generator would take three times as long."""

    __slots__ = ("_lock",)

    def __init__(self, lock: ReadWriteLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        lock = self._lock
        with lock._mutex:  # not through the condition, which takes longer
            lock._check()
            while lock._writer is not None or lock._waiting_writers:
                lock._condition.wait()
            lock._readers.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        lock = self._lock
        with lock._mutex:
            lock._readers.discard(threading.get_ident())
            if lock._waiting_writers and not lock._readers:
                lock._condition.notify_all()


class _Writing(AbstractContextManager[None]):
    """The side of the writer."""

    __slots__ = ("_lock",)

    def __init__(self, lock: ReadWriteLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        with self._lock._mutex:
            self._lock._check()
            self._lock._acquire(None)

    def __exit__(self, *_: object) -> None:
        with self._lock._mutex:
            self._lock._release()


@dataclass(slots=True, eq=False)
class Draw:
    """The choice of a sampler.

    Args:
        rows: [n] rows.
        info: entries of the sampler for them, by TED key, each [n, ...].
        describes_steps: whether it means the steps that were stored there, as slices do, and not the rows alone.
        read: reads the batch, where it was planned together with others.
        generation: [n] those of the steps that were read last, if they are tracked.
        number: of the batch's random numbers, if a transform draws any.
        told: rows and entries as tensors, once they were asked for.
    """

    rows: Rows
    info: Mapping[Any, NDArray[Any]]
    ends_epoch: bool = False
    describes_steps: bool = False
    read: Callable[[], TensorDictBase] | None = None
    generation: Rows | None = None
    number: int | None = None
    told: dict[Any, torch.Tensor] | None = None


class Task:
    """A function that a pool runs, unless whoever needs a result runs it first."""

    def __init__(self, run: Callable[[], Any], pool: ThreadPoolExecutor) -> None:
        self._run = as_here(run)
        self._is_begun = threading.Lock()  # never released
        self._future: Future[Any] = Future()
        pool.submit(self._begin)

    def cancel(self) -> None:
        """Do not run it, unless it has begun."""
        if self._is_begun.acquire(blocking=False):
            self._future.cancel()

    def _begin(self) -> None:
        if not self._is_begun.acquire(blocking=False):
            return
        try:
            self._future.set_result(self._run())
        except BaseException as exc:
            self._future.set_exception(exc)
            if not isinstance(exc, Exception):
                raise

    def wait(self, others: Iterable["Task"] = ()) -> None:
        """Wait for the end; meanwhile, run this draw or the first unstarted one."""
        for task in (self, *others):
            if self._future.done():
                return
            task._begin()
        self._future.exception()  # waits, at a third of the cost of `wait`

    def result(self, others: Iterable["Task"] = ()) -> Any:
        """Return the result; wait for it as ``wait`` does."""
        self.wait(others)
        return self._future.result()


@dataclass(slots=True, eq=False)
class _Ticket:
    draw: Draw
    task: Task | None  # None in a fork, until its own threads read it
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
        finish: Callable[[TensorDictBase, Draw], TensorDictBase],
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
        """Return the next batch, and the draw it comes from."""
        with self._storage_lock.read(), self._own_lock:
            ticket = self._next()
        try:
            return self._checked(ticket)
        finally:
            with self._own_lock:
                self._taken.remove(ticket)

    def _next(self) -> _Ticket:
        for ticket in self._ahead:
            ticket.task = ticket.task or self._start(ticket.draw)
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

    def _start(self, draw: Draw) -> Task:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._depth, thread_name_prefix="rlx prefetch")
        return Task(partial(self._read, draw), self._pool)

    def _renew(self) -> None:
        """Start over in a fork, which has no threads: batches that were read ahead are read again."""
        self._own_lock, self._pool = threading.Lock(), None
        self._taken.clear()
        for ticket in self._ahead:
            ticket.task = None

    def _read(self, draw: Draw) -> TensorDictBase:
        with self._storage_lock.read():
            batch = self._gather(draw)
        return self._finish(batch, draw)

    def _checked(self, ticket: _Ticket) -> tuple[Draw, TensorDictBase]:
        assert ticket.task is not None
        ticket.task.wait()
        with self._storage_lock.read():
            if not (ticket.is_stale or ticket.is_void):
                return ticket.draw, ticket.task.result()
            draw = ticket.draw
            if ticket.is_void or draw.describes_steps:
                with self._own_lock:
                    draw = replace(self._draw(), ends_epoch=draw.ends_epoch)
            batch = self._gather(draw)
        return draw, self._finish(batch, draw)

    def written(self, rows: Rows, *, all_batches: bool = False) -> None:
        """Invalidate draws of rows, or all draws, after a write; the storage's lock must be held."""
        with self._own_lock:
            for ticket in [*self._ahead, *self._taken]:
                ticket.is_stale = ticket.is_stale or all_batches or bool(np.isin(ticket.draw.rows, rows).any())

    def pending(self) -> list[Draw]:
        """Return the pending draws, in order, without those that would be drawn again."""
        tickets = list(self._ahead)  # at once: another thread may take one
        return [ticket.draw for ticket in tickets if not (ticket.is_stale and ticket.draw.describes_steps)]

    def discard(self) -> None:
        """Invalidate all draws; the storage's lock must be held."""
        with self._own_lock:
            for ticket in self._taken:
                ticket.is_void = True
            for ticket in self._ahead:
                if ticket.task is not None:
                    ticket.task.cancel()
            self._ahead.clear()

    def shutdown(self) -> None:
        """Wait for the threads to end; draws that were not taken stay drawn."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=False)
            self._pool = None
