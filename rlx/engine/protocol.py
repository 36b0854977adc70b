"""The seam for what runs one function over many tasks, wherever the processes are."""

from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Protocol, Self, TypeVar

from rlx.progress import Progress

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
            concurrent.futures.BrokenExecutor: a worker has died, as its future tells too.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
