"""Running functions in processes of this machine, with progress that comes back and a Ctrl-C that stops them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from multiprocessing.spawn import get_executable
from types import ModuleType, TracebackType
from typing import Any, ClassVar, Self, TypeVar

import cloudpickle

from rlx.files.disk import file_error
from rlx.progress import Progress

_LOCK = threading.Lock()  # of two that hide it, the second would restore the substitute of the first


@contextmanager
def main_hidden() -> Iterator[None]:
    """Keep processes that start in this context from importing ``__main__``: send them its objects by value."""
    with _LOCK:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def process_context(method: str | None = None) -> BaseContext:
    """Return the context of multiprocessing for a start method, whose processes do not import ``__main__``.

    Args:
        method: ``spawn``, ``forkserver`` or ``fork``, whose processes import nothing; Python's default if not given.

    Example:
        >>> process_context("spawn").get_start_method()
        'spawn'
    """
    found = multiprocessing.get_context(method)
    return {"spawn": _Spawn, "forkserver": _ForkServer}.get(found.get_start_method(), lambda: found)()


class _SpawnedProcess(SpawnProcess):
    def start(self) -> None:
        with main_hidden():
            super().start()


class _Spawn(SpawnContext):
    Process: ClassVar[type[SpawnProcess]] = _SpawnedProcess


class _ServedProcess(ForkServerProcess):
    def start(self) -> None:
        with main_hidden():
            super().start()


class _ForkServer(ForkServerContext):
    Process: ClassVar[type[ForkServerProcess]] = _ServedProcess


R = TypeVar("R")
T = TypeVar("T")
_Advance = tuple[str, int]
_GROUP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


class LocalEngine:
    """Engine that runs functions of the form ``function(task, progress)``, each task in one of ``jobs`` processes; see
    ``Engine``.

    With one job they run in this process, one after the other.

    Example:
        >>> from rlx.progress import Silent
        >>> with LocalEngine(1, Silent()) as engine:
        ...     engine.submit(lambda task, progress: task + 1, 41).result()
        42
    """

    def __init__(self, jobs: int, progress: Progress) -> None:
        self._progress = progress
        self._workers = _Workers(jobs, progress) if jobs > 1 else None

    def submit(self, function: Callable[[T, Progress], R], task: T) -> Future[R]:
        """Return the future of ``function(task, progress)``; both are pickled, by value where ``__main__`` defines
        them.
        """
        if self._workers is not None:
            return self._workers.submit(function, task)
        future: Future[R] = Future()
        try:
            future.set_result(function(task, self._progress))
        except Exception as exc:  # the caller gets it from the future, as from a worker
            future.set_exception(exc)
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._workers is not None:
            self._workers.end(at_once=kind is not None)


class _Workers:
    """A pool of processes, and two pipes to them: one brings their progress, the end of the other ends them."""

    def __init__(self, jobs: int, progress: Progress) -> None:
        interpreter = os.fsdecode(get_executable())
        if not os.access(
            interpreter, os.X_OK
        ):  # which multiprocessing does not notice: its pipes break, or nobody answers
            raise file_error(PermissionError(errno.EACCES, "this interpreter cannot be executed", interpreter))
        # Spawned, not forked: a fork of a process with threads may inherit a held lock.
        context = process_context("spawn")
        self._advances, self._sender = context.Pipe(duplex=False)
        self._child_end, self._parent_end = context.Pipe(duplex=False)
        # A thread that blocks Ctrl-C and other signals that end a group of processes starts the workers, and with them
        # multiprocessing's tracker of semaphores. So no worker is left half started, for which the pool would wait
        # forever, and none is reached by the signal, for they inherit the mask: their parent ends them.
        held = (signal.SIG_BLOCK, _GROUP_SIGNALS)
        self._starter = ThreadPoolExecutor(1, "starter of workers", signal.pthread_sigmask, held)
        workers = partial(ProcessPoolExecutor, initializer=_become_worker, initargs=(self._sender, self._child_end))
        self._pool = self._starter.submit(workers, jobs, context).result()
        self._starter.submit(signal.pthread_sigmask, *held).result()  # starting the tracker unblocks some of them
        self._relay = threading.Thread(target=self._relay_progress, args=(progress,), daemon=True)
        self._relay.start()

    def submit(self, function: Callable[[T, Progress], R], task: T) -> Future[R]:
        """Return the future of a task; it may start a process."""
        # By value where __main__ defines it: workers do not import that.
        return self._starter.submit(self._pool.submit, _work, cloudpickle.dumps((function, task))).result()

    def end(self, *, at_once: bool) -> None:
        """End the processes, when all is done or at once, and wait until they have ended."""
        if at_once:
            self._parent_end.close()
        self._starter.shutdown()
        if at_once and sys.version_info < (3, 11, 5):
            pool: Any = self._pool  # its types lack the queue
            # It would wait until a dead worker takes a task that the pipe has no room for. Later versions close this in
            # a thread: a second close could hit a file that was opened meanwhile.
            pool._call_queue._reader.close()
        self._pool.shutdown(wait=True, cancel_futures=at_once)
        self._sender.send(None)
        self._relay.join()
        for end in (self._advances, self._sender, self._child_end, self._parent_end):
            end.close()

    def _relay_progress(self, progress: Progress) -> None:
        while (advance := self._advances.recv()) is not None:
            progress.advance(*advance)


class _Relayed:
    """Progress of a worker, sent to the process that shows it.

    All workers share one pipe, and no lock, which a worker that is killed would never give back: so short a message is
    written in one piece or not at all.
    """

    def __init__(self, sender: Connection[_Advance, None]) -> None:
        self._sender = sender

    def expect(self, unit: str, amount: int) -> None:
        raise NotImplementedError("the submitter of the tasks knows the queue, not a worker")

    def advance(self, unit: str, amount: int) -> None:
        self._sender.send((unit, amount))


_worker_progress: _Relayed | None = None


def _become_worker(sender: Connection[_Advance, None], pipe: Connection[None, None]) -> None:
    global _worker_progress  # a process pool has no other way to hand something to its workers
    _worker_progress = _Relayed(sender)
    threading.Thread(target=_die_with_parent, args=(pipe,), name="parent watch", daemon=True).start()


def _die_with_parent(pipe: Connection[None, None]) -> None:
    """End this process when the other end of the pipe is closed, by hand or because its process was killed.

    A pool's worker notices only when its task is done, and would continue to write beside the next run.
    """
    with suppress(EOFError, OSError):
        pipe.recv()
    os._exit(1)


def _work(sent: bytes) -> Any:
    if _worker_progress is None:
        raise RuntimeError("no worker process")
    function, task = pickle.loads(sent)
    return function(task, _worker_progress)
