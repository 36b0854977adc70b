"""Running functions on a Ray cluster: the same tasks, results and errors as in processes of this machine."""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar
from urllib.parse import urlsplit

import cloudpickle

from rlx.engine.actor import answered, error_answer, settle
from rlx.errors import EngineError, MissingExtraError
from rlx.progress import Progress

if TYPE_CHECKING:
    from types import ModuleType


logger = logging.getLogger(__name__)
_LOOK_S = 5.0
_HEAD_S = 20.0  # after 60 s without it, Ray ends this process without a word to Python
_CLIENT_PORT = 10001  # of ray:// where none is given
_NO_CLUSTER = "start one with ray start --head, or leave the address out"
_NEW_HEAD = "finished shards are kept: restart the cluster, then run the command again (collect: with --resume)"
_NO_TOKEN = "set RAY_AUTH_MODE=token, and copy ~/.ray/auth_token from the first machine"
_lock = threading.Lock()
_users = 0
_is_ours = False
_silent_since: float | None = None  # when the head first did not answer
_next_look = 0.0  # when to look for the head again


@contextmanager
def ray_cluster(
    address: str | None = None, *, cpus: int | None = None, config: Mapping[str, Any] | None = None
) -> Iterator[ModuleType]:
    """Hold a connection to Ray; give the package ``ray``.

    An existing connection of this process is used, and left open. Otherwise the cluster at the address is joined, or
    that of ``$RAY_ADDRESS``. Without an address, a cluster starts on this machine, and ends with its last user, or when
    this process is killed.

    Args:
        address: ``host:port``, ``ray://host:port``, or ``auto`` for one that runs on this machine.
        cpus: how many a cluster that is started has; by default those of the machine.
        config: further arguments for ``ray.init``.
    """
    global _users, _is_ours  # a process has one connection
    ray = _imported()
    with _lock:
        if not ray.is_initialized():
            _connect(ray, address or os.environ.get("RAY_ADDRESS") or None, cpus, dict(config or {}))
            _is_ours = True
        _users += 1
    try:
        yield ray
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _is_ours:
                _is_ours = False
                ray.shutdown()


def _imported() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # noqa: PLC0415  (an extra)
        from ray._private import worker  # noqa: PLC0415  (as above)
    except ImportError as exc:
        raise MissingExtraError("Ray is not installed", hint="pip install 'rlx[ray]'") from exc
    # Ray prints workers' events on stdout, which is for results, and has no argument to prevent it.
    worker.print_to_stdstream = _log
    ray_package: ModuleType = ray
    return ray_package


def _log(data: Mapping[str, Any], ignore_prefix: bool) -> None:  # noqa: ARG001  (Ray passes it)
    for line in data["lines"]:
        logger.info("%s", line)


def _connect(ray: ModuleType, address: str | None, cpus: int | None, config: dict[str, Any]) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    where: dict[str, Any] = {"address": address}
    if address is None:
        where = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    elif address != "auto":
        _look_for(address)
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**(quiet | where | config))
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as exc:  # also other versions of Ray
        hint = _NO_TOKEN if "AuthenticationError" in f"{exc!r} {exc.__cause__}" else _NO_CLUSTER
        raise EngineError(f"the Ray cluster at {address} cannot be joined: {exc}", hint=hint) from exc
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)


def _look_for(address: str) -> None:
    """Raise EngineError if the port is closed; Ray itself would retry for a quarter of an hour."""
    url = urlsplit(address if "://" in address else f"//{address}")
    try:
        port = url.port or _CLIENT_PORT
    except ValueError:  # no number, or too large a one
        port = 0
    if not url.hostname or not port:
        raise EngineError(f"{address!r} is not an address of a Ray cluster", hint="HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((url.hostname, port), _LOOK_S).close()
    except OSError as exc:
        raise EngineError(f"no Ray cluster answers at {address}: {exc}", hint=_NO_CLUSTER) from exc


def result(ray: ModuleType, ref: Any) -> Any:
    """Return ``ray.get(ref)``.

    Raises:
        EngineError: the head of the cluster was lost.
    """
    while True:
        if time.monotonic() > _next_look:
            head_answers(ray)
        with suppress(ray.exceptions.GetTimeoutError):
            return ray.get(ref, timeout=_LOOK_S)


def head_answers(ray: ModuleType) -> bool:
    """Whether the head of the cluster answers now.

    Raises:
        EngineError: it has not answered for 20 seconds.
    """
    global _next_look, _silent_since
    if ray.util.client.ray.is_connected():
        return True  # by ray://, whose server tells
    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _LOOK_S).close()
        _silent_since = None
    except OSError as exc:
        now = time.monotonic()
        if _silent_since is None or now > _next_look + _HEAD_S:  # nobody has looked since
            _silent_since = now
        if now - _silent_since > _HEAD_S:
            raise EngineError(f"the head of the Ray cluster at {address} was lost: {exc}", hint=_NEW_HEAD) from exc
    _next_look = time.monotonic() + _LOOK_S
    return _silent_since is None


def settle_in(directory: str, path: Sequence[str]) -> None:
    """Have a worker's process work in the directory of the process that it works for, with its ``sys.path``."""
    sys.path += [entry for entry in path if entry not in sys.path]
    try:
        os.chdir(directory)
    except OSError as exc:
        raise EngineError(
            f"{platform.node()}, a machine of the Ray cluster, does not have the directory {directory}",
            hint="work in a directory that all machines share",
        ) from exc


R = TypeVar("R")
T = TypeVar("T")
_RETRIES = 3
_REPORT_S = 0.5
_PATIENCE_S = 2.0


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
        future: Future[Any] = Future()
        settle(future, answer)
        return future.result()

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
