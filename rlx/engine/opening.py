"""Engines by name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rlx.engine.local import LocalEngine
from rlx.engine.protocol import Engine
from rlx.engine.ray_cluster import ray_cluster
from rlx.engine.ray_engine import RayEngine
from rlx.errors import EngineError
from rlx.progress import Progress

ENGINES = ("local", "ray")


def open_engine(
    engine: str, jobs: int | None, progress: Progress, address: str | None = None, *, tasks: int | None = None
) -> Engine:
    """Return the engine of a name, to be entered.

    Args:
        engine: ``local`` or ``ray``.
        jobs: how many tasks run at once; one a core, of this machine or of the cluster, where not given.
        progress: is advanced by the tasks.
        address: of the Ray cluster; see ``ray_cluster``.
        tasks: how many there are to be, where that is known: more processes are of no use.

    Raises:
        EngineError: the engine is unknown, or no cluster answers.
        MissingExtraError: Ray is not installed.
    """
    if engine == "ray":
        return RayEngine(jobs, progress, address)
    if engine != "local":
        raise EngineError(f"engine {engine!r} is unknown: expected one of {', '.join(ENGINES)}")
    jobs = jobs or cores()
    return LocalEngine(jobs if tasks is None else max(1, min(jobs, tasks)), progress)


@contextmanager
def job_count(engine: str, jobs: int | None, address: str | None = None) -> Iterator[int]:
    """Return how many tasks an engine runs at once, before it is opened.

    The Ray cluster that has to be asked stays connected until the context is left.
    """
    if engine != "ray":
        yield jobs or cores()
        return
    with ray_cluster(address, cpus=jobs) as ray:
        yield jobs or int(ray.cluster_resources().get("CPU", 1))


def cores() -> int:
    """Return how many this process may use, where the system tells, or else how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
