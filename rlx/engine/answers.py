"""Answers and exceptions of a function in another process, as bytes that cross the boundary."""

import pickle
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

import cloudpickle

R = TypeVar("R")


def unpickled(made_of: bytes) -> Callable[[Any], Any]:
    """Return the function that is made of a pickled pair: what makes it, and the argument for that."""
    make, argument = pickle.loads(made_of)
    function: Callable[[Any], Any] = make(argument)
    return function


def made(make: Callable[[], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return the function that is made so; if that fails, one that raises the error."""
    try:
        function = make()
    except Exception as exc:  # whatever a stranger's function raises; it is the answer to every task
        error = exc

        def function(task: Any) -> NoReturn:  # noqa: ARG001
            raise error

    return function


def answered(function: Callable[[Any], Any], task: bytes) -> bytes:
    """Return the function's answer to a pickled task, or its exception, pickled; ``settle`` opens it."""
    try:
        answer: bytes = cloudpickle.dumps((False, function(pickle.loads(task)), None))
    except Exception as exc:  # whatever a stranger's function raises
        return error_answer(exc)
    return answer


def error_answer(error: Exception) -> bytes:
    """Return the answer that raises an error which is being handled."""
    remote = traceback.format_exc()
    # Without what hangs on it: frames cannot be pickled, and a cause is in the text.
    try:
        answer: bytes = cloudpickle.dumps((True, error, remote))
        pickle.loads(answer)
    except Exception:  # some exceptions cannot be made again of their arguments
        answer = cloudpickle.dumps((True, RuntimeError(f"{type(error).__name__}: {error}"), remote))
    return answer


def settle(future: "Future[R]", answer: bytes) -> None:
    """Give a future the answer, or the error with the other process's traceback as a note."""
    try:
        is_error, value, remote = pickle.loads(answer)
    except Exception as exc:  # whatever a stranger's object raises; it could be sent, but not be made again
        future.set_exception(exc)
        return
    if is_error:
        value.add_note(f"in the other process:\n{remote}")
        future.set_exception(value)
    else:
        future.set_result(value)
