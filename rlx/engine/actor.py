"""Actors: stateful functions in other processes; their protocol and base class."""

from __future__ import annotations

import pickle
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

import cloudpickle

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class ActorDiedError(RuntimeError):
    """The process of an actor has ended, by itself or because it was closed, before it gave its answer."""


class Actor(Protocol[T_contra, R]):
    """A function in its own process, whose state persists between calls."""

    def call(self, task: T_contra) -> Future[R]:
        """Return the future of the function's answer to this task; never waits.

        Tasks are answered one after the other, in the order of the calls. An exception that the function raises comes
        from the future, with the other process's traceback as a note, and the actor lives on; if the function cannot
        be created, every call raises that error. If the process ends before it answers, the future raises
        ActorDiedError, as do those of all later calls. No future can be cancelled.
        """

    def close(self, *, at_once: bool = False) -> None:
        """End the process and wait until it has ended."""


class Actors(Protocol):
    """Factory of actors that also ends them: when the context is left, or at once, if an exception leaves it.

    Attributes:
        shares_memory: whether every actor can open files of this machine, and so share memory with this process.
    """

    shares_memory: bool

    def start(self, make: Callable[[A], Callable[[T], R]], argument: A) -> Actor[T, R]:
        """Return an actor for the function that ``make(argument)`` returns in its process, without waiting for it.

        Messages in both directions are pickled; functions and classes of ``__main__``, lambdas and closures by value.
        If the function has a method ``close``, it is called before the process ends, unless the process is killed.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ProcessActor(ABC, Generic[T, R]):
    """Base of actors in other processes: tasks are pickled and queued; after the end every call fails."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._death: ActorDiedError | None = None

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Whether its process has ended and everybody who waits for it knows."""

    def call(self, task: T) -> Future[R]:
        """Return the future of the function's answer; never waits."""
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()
        try:
            message = cloudpickle.dumps(task)
        except Exception as exc:  # whatever a stranger's object raises; the caller gets it as if the function had
            future.set_exception(exc)
            return future
        with self._lock:
            if self._death is not None:
                future.set_exception(self._death)
            elif self._is_closed:
                future.set_exception(ActorDiedError("the actor was closed"))
            else:
                self._queue(message, future)
        return future

    def end(self, *, at_once: bool) -> None:
        """Tell the process to end, without waiting."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._queue_end()
        if at_once:
            self._terminate()

    @abstractmethod
    def close(self, *, at_once: bool = False) -> None:
        """End the process and wait until it has ended."""

    @abstractmethod
    def _queue(self, message: bytes, future: Future[R]) -> None:
        """Queue a pickled task, whose answer is to go to the future."""

    @abstractmethod
    def _queue_end(self) -> None:
        """Queue the end, after all tasks."""

    @abstractmethod
    def _terminate(self) -> None:
        """End the process although it has tasks."""


P = TypeVar("P", bound=ProcessActor[Any, Any])


class ProcessActors(Generic[P]):
    """Base of classes that start actors in other processes; stops the remaining ones."""

    def __init__(self) -> None:
        self._actors: list[P] = []

    def _running(self) -> list[P]:
        self._actors = [actor for actor in self._actors if not actor.has_ended]
        return self._actors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self._close(at_once=kind is not None)
        except BaseException:  # Ctrl-C while it waits
            self._close(at_once=True)
            raise

    def _close(self, *, at_once: bool) -> None:
        """End all actors side by side, and wait until they have ended."""
        for actor in self._actors:
            actor.end(at_once=at_once)
        for actor in self._actors:
            actor.close(at_once=at_once)


def unpickled(made_of: bytes) -> Callable[[Any], Any]:
    """Return the function that a pickled pair of factory and argument creates."""
    make, argument = pickle.loads(made_of)
    function: Callable[[Any], Any] = make(argument)
    return function


def made(make: Callable[[], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return the function that the factory creates; if that fails, one that raises the error."""
    try:
        function = make()
    except Exception as exc:  # whatever a stranger's function raises; it is the answer to every task
        error = exc

        def function(task: Any) -> NoReturn:  # noqa: ARG001
            raise error

    return function


def answered(function: Callable[[Any], Any], task: bytes) -> bytes:
    """Return the function's answer to a pickled task, or its exception, pickled; ``opened`` is the reverse."""
    try:
        answer: bytes = cloudpickle.dumps((False, function(pickle.loads(task)), None, None))
    except Exception as exc:  # whatever a stranger's function raises
        return error_answer(exc)
    return answer


def error_answer(error: Exception) -> bytes:
    """Return the answer that raises an error which is being handled."""
    remote = traceback.format_exc()
    # Without tracebacks, whose frames cannot be pickled: they are in the text.
    sent, cause = _rebuildable(error), _rebuildable(error.__cause__)
    answer: bytes = cloudpickle.dumps((True, sent, remote, cause))
    return answer


def _rebuildable(error: BaseException | None) -> BaseException | None:
    """Return an error, or one that says what it is where it cannot be rebuilt from its arguments."""
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:  # whatever a stranger's class raises
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def opened(answer: bytes) -> Any:
    """Return the answer, or raise the error with the other process's traceback as a note."""
    is_error, value, remote, cause = pickle.loads(answer)
    if is_error:
        value.add_note(f"in the other process:\n{remote}")
        raise value from cause
    return value


def settle(future: Future[R], answer: bytes) -> None:
    """Give a future the answer, or the error."""
    try:
        future.set_result(opened(answer))
    except Exception as exc:  # the function's, or that of an object that cannot be unpickled
        future.set_exception(exc)
