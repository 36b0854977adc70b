"""Running functions in processes of this machine, with progress that comes back and a Ctrl-C that stops them."""

import multiprocessing
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.queues import SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

from rlx.progress import Progress

R = TypeVar("R")
T = TypeVar("T")
_Advance = tuple[str, int]


class LocalEngine:
    """Runs functions of the form ``function(task, progress)``, each task in one of so many processes.

    With one job they run in this process, one after the other. Leaving the context waits for what was submitted, or,
    after an exception, stops it: workers are told to die, and what they had half done is for the next run to sweep.

    Args:
        jobs: how many run at once.
        progress: is advanced by the functions' own progress.

    Example:
        >>> from rlx.progress import Silent
        >>> with LocalEngine(1, Silent()) as engine:
        ...     engine.submit(lambda task, progress: task + 1, 41).result()
        42
    """

    def __init__(self, jobs: int, progress: Progress) -> None:
        self._progress = progress
        self._pool: ProcessPoolExecutor | None = None
        if jobs > 1:
            self._start(jobs)

    def _start(self, jobs: int) -> None:
        # Spawned, not forked: a fork of a process with threads may inherit a held lock.
        context = multiprocessing.get_context("spawn")
        self._others = set(multiprocessing.active_children())
        self._advances: SimpleQueue[_Advance | None] = context.SimpleQueue()
        self._pool = ProcessPoolExecutor(
            jobs, context, initializer=_become_worker, initargs=(self._advances,)
        )
        self._relay = threading.Thread(target=self._relay_progress, name="progress of workers")
        self._relay.start()

    def submit(self, function: Callable[[T, Progress], R], task: T) -> Future[R]:
        """The future of ``function(task, progress)``; both must be importable by another process."""
        if self._pool is not None:
            return self._pool.submit(_work, function, task)
        future: Future[R] = Future()
        try:
            future.set_result(function(task, self._progress))
        except Exception as exc:  # noqa: BLE001  (the caller gets it from the future, as from a worker)
            future.set_exception(exc)
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        if kind is not None:
            for process in set(multiprocessing.active_children()) - self._others:
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        self._advances.put(None)
        self._relay.join()
        self._advances.close()

    def _relay_progress(self) -> None:
        while (advance := self._advances.get()) is not None:
            self._progress.advance(*advance)


class _Relayed:
    """Progress of a worker, sent to the process that shows it."""

    def __init__(self, advances: "SimpleQueue[_Advance | None]") -> None:
        self._advances = advances

    def expect(self, unit: str, amount: int) -> None:
        raise NotImplementedError("what lies ahead is known to whoever submits the tasks, not to a worker")

    def advance(self, unit: str, amount: int) -> None:
        self._advances.put((unit, amount))


_worker_progress: _Relayed | None = None


def _become_worker(advances: "SimpleQueue[_Advance | None]") -> None:
    global _worker_progress  # noqa: PLW0603  (a process pool has no other way to hand something to its workers)
    # Ctrl-C goes to the whole group of processes; the parent stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker_progress = _Relayed(advances)


def _work(function: Callable[[T, Progress], R], task: T) -> R:
    if _worker_progress is None:
        raise RuntimeError("no worker process")
    return function(task, _worker_progress)
