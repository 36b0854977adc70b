"""An actor that is no process: its function is called at once, where the caller is."""

from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rlx.errors import WorkerLostError

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")


class InlineActors:
    """Actors within this process, for one worker: what they are called to do is done when ``call`` returns.

    Example:
        >>> with InlineActors() as actors:
        ...     actors.start(lambda first: lambda task: first + task, 40).call(2).result()
        42
    """

    shares_memory = False  # nothing is sent

    def __init__(self) -> None:
        self._actors: list[InlineActor[Any, Any]] = []

    def start(self, make: Callable[[A], Callable[[T], R]], argument: A) -> "InlineActor[T, R]":
        """Return an actor whose function is ``make(argument)``; what that raises is raised here."""
        actor = InlineActor(make(argument))
        self._actors.append(actor)
        return actor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for actor in self._actors:
            actor.close()


class InlineActor(Generic[T, R]):
    """One function; see ``Actor``."""

    def __init__(self, function: Callable[[T], R]) -> None:
        self._function = function
        self._is_closed = False

    def call(self, task: T) -> Future[R]:
        """Return the future, done, of the function's answer."""
        future: Future[R] = Future()
        try:
            future.set_result(self._function(task))
        except SystemExit as exc:  # elsewhere it ends the worker's process; this process is the user's and stays alive
            future.set_exception(WorkerLostError(f"a worker in this process called sys.exit({exc.code!r})"))
        except Exception as exc:  # the caller gets it from the future, as from another process
            future.set_exception(exc)
        return future

    def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002  (nothing runs)
        """Call the function's ``close``, if it has one."""
        if not self._is_closed and callable(close := getattr(self._function, "close", None)):
            close()
        self._is_closed = True
