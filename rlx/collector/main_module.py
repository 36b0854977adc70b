"""The user's script, which processes that multiprocessing starts would run once more."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_LOCK = threading.Lock()  # of two that hide it, the second would put back what the first one laid out


@contextmanager
def hidden() -> Iterator[None]:
    """Has processes that are started meanwhile not import ``__main__``: what they need of it is sent by value.

    Without this, a script that starts some outside of ``if __name__ == "__main__"`` starts them in every one of them.
    """
    with _LOCK:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
