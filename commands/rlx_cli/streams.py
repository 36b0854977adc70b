"""Standard streams that may be closed, full, or a broken pipe."""

import io
import os
import sys
from contextlib import suppress


def secure() -> None:
    """Make all three streams usable: what is opened next must not become one of them, and every name can be written.

    A closed stdout refuses what is written to it; a closed stderr swallows it.
    """
    modes = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)
    for descriptor, mode in enumerate(modes):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def abandon(descriptor: int) -> None:
    """Discard further output to a failed stream, which Python would otherwise flush at exit and report."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def abandon_if_failed() -> None:
    """Discard further output to stdout if it fails, as it would fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        abandon(sys.stdout.fileno())
