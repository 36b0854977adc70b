"""A function in a fork of this process that is killed, or interrupted, before its n-th change of files."""

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def changes(work: Callable[[], object]) -> int:
    """Run to the end; return how many changes of files there were."""
    reader, writer = os.pipe()
    seen = [0]

    def report() -> None:
        work()
        os.write(writer, b"%d" % seen[0])

    assert _forked(report, lambda: seen.__setitem__(0, seen[0] + 1)) == 0
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        return int(file.read())


def killed_before(work: Callable[[], object], change: int, number: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal before a change; return the exit status: negative for a signal, 3 for a KeyboardInterrupt."""
    left = [change]

    def count() -> None:
        left[0] -= 1
        if left[0] == -1:
            os.kill(os.getpid(), number)

    return _forked(work, count)


def _forked(work: Callable[[], object], on_change: Callable[[], object]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sys.addaudithook(lambda event, arguments: on_change() if _is_change(event, arguments) else None)
            work()
            code = 0
        except KeyboardInterrupt:
            code = 3
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _is_change(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "open":
        return isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)
    return event in _CHANGES
