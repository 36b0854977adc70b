"""Running functions on a Ray cluster: the same tasks, results and errors as in processes of this machine."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, NoReturn, Self, TypeVar

import cloudpickle

from rlx.engine.actor import (
    ActorDiedError,
    ProcessActor,
    ProcessActors,
    answered,
    error_answer,
    made,
    opened,
    settle,
    unpickled,
)
from rlx.engine.ray_cluster import head_answers, ray_cluster, result, settle_in
from rlx.errors import EngineError
from rlx.progress import Progress

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
logger = logging.getLogger(__name__)
_ONE_CPU = {"num_cpus": 1}
_RETRIES = 3
_REPORT_S = 0.5
_PATIENCE_S = 2.0


class RayActor(ProcessActor[T, R]):
    """One of Ray's actors; see ``Actor``.

    Args:
        made_of: the pickle of a function that makes its function, and of the argument of that.
    """

    def __init__(self, ray: ModuleType, made_of: bytes, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.options = options
        self._ray = ray
        remote = ray.remote(**(_ONE_CPU | dict(options)), max_restarts=0, max_task_retries=0)(_Host)
        self._host = remote.remote(made_of, os.getcwd(), sys.path)
        self._calls: SimpleQueue[tuple[bytes, Future[R]] | None] = SimpleQueue()
        self._caller = threading.Thread(target=self._serve, name="actor's caller", daemon=True)
        self._caller.start()

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended and everybody who waits for it knows."""
        return not self._caller.is_alive()

    def close(self, *, at_once: bool = False) -> None:
        """End the process and wait until it has ended."""
        self.end(at_once=at_once)
        self._caller.join()

    def _queue(self, message: bytes, future: Future[R]) -> None:
        self._calls.put((message, future))

    def _queue_end(self) -> None:
        self._calls.put(None)

    def _serve(self) -> None:
        """Run tasks one after the other: of several, Ray would lose the results before a fatal one."""
        future: Future[R] | None = None
        try:
            while (call := self._calls.get()) is not None:
                task, future = call
                settle(future, result(self._ray, self._host.answer.remote(task)))
            result(self._ray, self._host.close.remote())
            death = ActorDiedError("the actor was closed")
        except Exception as exc:  # it was lost or killed, or Ray itself was shut down
            death = ActorDiedError(f"an actor on the Ray cluster was lost: {str(exc).partition(chr(10))[0]}")
            death.__cause__ = exc
        with self._lock:
            self._death = death
        if future is not None and not future.done():
            future.set_exception(death)
        with suppress(Empty):
            while True:
                if (call := self._calls.get_nowait()) is not None:
                    call[1].set_exception(death)
        self._terminate()

    def _terminate(self) -> None:
        if self._ray.is_initialized():
            self._ray.kill(self._host)


class RayActors(ProcessActors[RayActor[Any, Any]]):
    """Actors on the machines of a Ray cluster, which see the same files as this one; see ``Actors``.

    They end when this process ends, for whatever reason. An actor that is ended at once is killed, without closing its
    function. A lost actor is not restarted: only its caller knows its state.

    Args:
        cpus: of a cluster that is started here; by default those of this machine.
        config: further arguments for ``ray.init``.
        options: for each of the actors that run at the same time, its resources as arguments of ``ray.remote``:
            ``num_cpus`` (1 by default), ``num_gpus`` or ``resources``. Further actors take these in turn.
    """

    shares_memory = False

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: int | None = None,
        config: Mapping[str, Any] | None = None,
        options: Sequence[Mapping[str, Any]] = ({},),
    ) -> None:
        super().__init__()
        self._cluster = ray_cluster(address, cpus=cpus, config=config)
        self._options = options
        self._stack = ExitStack()
        self._ray: ModuleType | None = None

    def start(self, make: Callable[[A], Callable[[T], R]], argument: A) -> RayActor[T, R]:
        """Return an actor for the function that ``make(argument)`` returns in its process, without waiting for it."""
        if self._ray is None:
            raise RuntimeError("the context of the actors has not been entered")
        while not head_answers(self._ray):  # without it, asking for its CPUs would not return
            time.sleep(1)
        made_of = cloudpickle.dumps((make, argument))
        running = self._running()
        free = [one for one in self._options if not any(one is actor.options for actor in running)]
        options = free[0] if free else self._options[len(running) % len(self._options)]
        actor: RayActor[T, R] = RayActor(self._ray, made_of, options)
        running.append(actor)
        needed = sum(float(one.options.get("num_cpus", 1)) for one in running)
        if needed > (there := self._ray.cluster_resources().get("CPU", 0.0)):
            logger.warning("actors need %g CPUs, the Ray cluster has %g: some wait until it has more", needed, there)
        return actor

    def __enter__(self) -> Self:
        self._ray = self._stack.enter_context(self._cluster)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._stack:
            super().__exit__(kind)


class _Host:
    def __init__(self, made_of: bytes, directory: str, path: Sequence[str]) -> None:
        def make() -> Callable[[Any], Any]:
            settle_in(directory, path)
            return unpickled(made_of)

        self._function = made(make)

    def answer(self, task: bytes) -> bytes:
        """Return the function's answer."""
        return answered(self._function, task)

    def close(self) -> None:
        """Call the function's ``close``, if it has one."""
        if callable(close := getattr(self._function, "close", None)):
            close()


class RayEngine:
    """Engine that runs functions of the form ``function(task, progress)`` as tasks of Ray, each on one CPU; see
    ``Engine``.

    All machines of the cluster must see the same files: a task works in the directory in which this process works. A
    task whose worker is lost is retried by another, three times at most; so a function must tolerate leftovers of an
    earlier attempt, which may even keep running for a while on a machine that the cluster has lost contact with.

    Args:
        jobs: how many run at once; as many as the cluster has CPUs by default.
        progress: is advanced by the functions' own progress; what an attempt repeats counts once.
    """

    def __init__(self, jobs: int | None, progress: Progress, address: str | None = None) -> None:
        self._progress = progress
        with ExitStack() as stack:
            self._ray = stack.enter_context(ray_cluster(address, cpus=jobs))
            cpus = int(self._ray.cluster_resources().get("CPU", 1))
            self._threads = ThreadPoolExecutor(jobs or cpus, "ray task")
            self._reports = self._ray.remote(num_cpus=0, max_restarts=-1)(_Reports).remote()
            self._work = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(_work)
            self._stack = stack.pop_all()
        self._lock = threading.Lock()
        self._running: dict[int, Any] = {}
        self._seen: dict[int, Counter[str]] = {}
        self._submitted = 0
        self._ends = threading.Event()
        self._watch = threading.Thread(target=self._watch_progress, name="progress of Ray tasks", daemon=True)
        self._watch.start()

    def submit(self, function: Callable[[T, Progress], R], task: T) -> Future[R]:
        """Return the future of ``function(task, progress)``; see ``Engine``."""
        self._submitted += 1
        return self._threads.submit(self._run, self._submitted, cloudpickle.dumps((function, task)))

    def _run(self, number: int, what: bytes) -> Any:
        with self._lock:
            if self._ends.is_set():
                raise CancelledError
            self._seen[number] = Counter()
            ref = self._work.remote(what, number, self._reports, os.getcwd(), sys.path)
            self._running[number] = ref
        try:
            answer, totals = self._await(ref)
            self._advance(number, totals)
        finally:
            with self._lock:
                del self._running[number], self._seen[number]
        return opened(answer)

    def _await(self, ref: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return result(self._ray, ref)
        except errors.TaskCancelledError as exc:
            raise CancelledError from exc
        except errors.RayTaskError as exc:
            raise EngineError(f"a worker of the Ray cluster cannot run rlx: {exc.cause}") from exc
        except errors.RayError as exc:
            raise BrokenExecutor(f"a worker of the Ray cluster was lost: {exc}") from exc

    def _watch_progress(self) -> None:
        while not self._ends.wait(_REPORT_S):
            # They come late, or never if their machine is lost; then they start again.
            with suppress(self._ray.exceptions.RayError):
                for number, totals in self._ray.get(self._reports.take.remote(), timeout=_PATIENCE_S).items():
                    self._advance(number, totals)

    def _advance(self, number: int, totals: Mapping[str, int]) -> None:
        """Report new progress of a task's totals; a retry begins with smaller totals than are known."""
        with self._lock:
            if (seen := self._seen.get(number)) is None:
                return  # a late report of a task that is done
            for unit, total in totals.items():
                if (more := total - seen[unit]) > 0:
                    seen[unit] = total
                    self._progress.advance(unit, more)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._stack:
            try:
                self._end(at_once=kind is not None)
            except BaseException:  # Ctrl-C while waiting
                self._end(at_once=True)
                raise

    def _end(self, *, at_once: bool) -> None:
        if at_once:
            self._threads.shutdown(wait=False, cancel_futures=True)
            with self._lock:
                self._ends.set()
                for ref in self._running.values():
                    self._ray.cancel(ref, force=True)
        self._threads.shutdown()
        self._ends.set()
        self._watch.join()
        self._ray.kill(self._reports)


class _Reports:
    """Actor with the latest progress of tasks."""

    def __init__(self) -> None:
        self._latest: dict[int, Mapping[str, int]] = {}

    def put(self, task: int, totals: Mapping[str, int]) -> None:
        """Take in the totals of a task."""
        self._latest[task] = totals

    def take(self) -> dict[int, Mapping[str, int]]:
        """Return and clear the latest totals of tasks that have reported any."""
        latest, self._latest = self._latest, {}
        return latest


class _Reported:
    """Progress of one attempt at a task, reported now and then, as totals: lost or repeated reports do not matter."""

    def __init__(self, task: int, reports: Any) -> None:
        self._task = task
        self._reports = reports
        self._lock = threading.Lock()
        self._next = time.monotonic() + _REPORT_S
        self.totals: Counter[str] = Counter()

    def expect(self, unit: str, amount: int) -> NoReturn:
        raise NotImplementedError("the submitter of the tasks knows the queue, not a worker")

    def advance(self, unit: str, amount: int) -> None:
        with self._lock:
            self.totals[unit] += amount
            if time.monotonic() >= self._next:
                self._reports.put.remote(self._task, dict(self.totals))
                self._next = time.monotonic() + _REPORT_S


def _work(
    what: bytes, number: int, reports: Any, directory: str, path: Sequence[str]
) -> tuple[bytes, Mapping[str, int]]:
    """Return the answer to one task, and its progress in all; runs in a worker of Ray."""
    progress = _Reported(number, reports)
    try:
        settle_in(directory, path)
    except EngineError as exc:
        return error_answer(exc), {}

    def function(pair: tuple[Callable[[T, Progress], R], T]) -> R:
        return pair[0](pair[1], progress)

    return answered(function, what), dict(progress.totals)
