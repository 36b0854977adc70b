"""Actors on a Ray cluster: each an actor of Ray."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, Self, TypeVar

import cloudpickle

from rlx.engine.actor import ActorDiedError, ProcessActor, ProcessActors, answered, made, settle, unpickled
from rlx.engine.ray_cluster import head_answers, ray_cluster, result, settle_in

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
logger = logging.getLogger(__name__)
_ONE_CPU = {"num_cpus": 1}


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

    def _queue(self, message: bytes, future: "Future[R]") -> None:
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
