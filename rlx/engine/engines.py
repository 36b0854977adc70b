"""Engines, which run one function over many tasks in processes: their protocol, and each by its name."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self, TypeVar

from rlx.engine.local_engine import LocalEngine
from rlx.engine.ray_cluster import ray_cluster
from rlx.engine.ray_engine import RayEngine
from rlx.errors import EngineError
from rlx.progress import Progress

ENGINES = ("local", "ray")
R = TypeVar("R")
T = TypeVar("T")


class Engine(Protocol):
    """Runner of functions of the form ``function(task, progress)``, several at once, while its context lasts.

    Leaving the context waits for submitted tasks, or, after an exception, stops them: workers die at once, as they do
    soon after this process is killed, and the next run removes their unfinished work.
    """

    def submit(self, function: Callable[[T, Progress], R], task: T) -> Future[R]:
        """Return the future of ``function(task, progress)``.

        Both are pickled, as is the answer, unless they stay in this process. What the function raises comes from the
        future. So does BrokenExecutor, if a worker has died and its task was not, or not again, given to another.

        Raises:
            concurrent.futures.BrokenExecutor: a worker has died; its future raises the same.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_engine(
    engine: str, jobs: int | None, progress: Progress, address: str | None = None, *, tasks: int | None = None
) -> Engine:
    """Return the engine of a name, to be entered.

    Args:
        jobs: number of tasks that run at once; by default one per core of this machine or of the cluster.
        tasks: number of all tasks, if known: more processes are of no use.
    """
    if engine == "ray":
        return RayEngine(jobs, progress, address)
    if engine != "local":
        raise EngineError(f"engine {engine!r} is unknown: expected one of {', '.join(ENGINES)}")
    jobs = jobs or cores()
    return LocalEngine(jobs if tasks is None else max(1, min(jobs, tasks)), progress)


@contextmanager
def job_count(engine: str, jobs: int | None, address: str | None = None) -> Iterator[int]:
    """Return the number of tasks that an engine will run at once.

    The Ray cluster that has to be asked stays connected until the context is left.
    """
    if engine != "ray":
        yield jobs or cores()
        return
    with ray_cluster(address, cpus=jobs) as ray:
        yield jobs or int(ray.cluster_resources().get("CPU", 1))


def threads_per_task(engine: str, jobs: int | None, tasks: int) -> int:
    """Return the number of threads per task: the cores of this machine, divided among the tasks.

    Example:
        >>> threads_per_task("local", 8, tasks=3), threads_per_task("local", 8, tasks=50)
        (2, 1)
    """
    return max(1, (jobs or cores()) // max(1, tasks)) if engine == "local" else 1


def cores() -> int:
    """Return the number of CPUs that this process may use, or of all CPUs if the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
