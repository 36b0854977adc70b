"""Forks of this process: what waits for them, what the child recreates, and what it refuses by name.

A fork copies all memory but only one thread: in the child, locks of the other threads stay locked, thread pools have no
threads, and pipes are shared with the parent. Objects that hold such things register here; the registry does not keep
them alive.
"""

import itertools
import os
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rlx.errors import ForkError

# Long for a write to a buffer; short for a user who waits for a write that never ends.
PATIENCE_S = 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry:
    owner: "weakref.ref[Any]"
    in_child: Callable[[Any], None]
    before: Callable[[Any, float], None] | None
    in_parent: Callable[[Any], None] | None


_entries: dict[int, _Entry] = {}
_numbers = itertools.count()


def on_fork(
    owner: T,
    in_child: Callable[[T], None],
    *,
    before: Callable[[T, float], None] | None = None,
    in_parent: Callable[[T], None] | None = None,
) -> None:
    """Call functions with an object, for as long as it lives, whenever this process is forked.

    Args:
        in_child: called in the child, which has one thread only.
        before: called before the fork, with the seconds that it may wait at most.
    """
    number = next(_numbers)
    reference = weakref.ref(owner, lambda _: _entries.pop(number, None))
    _entries[number] = _Entry(reference, in_child, before, in_parent)


@contextmanager
def released_here(release: Callable[[], object]) -> Iterator[None]:
    """Call a function at the end of a ``with``, but not in a fork of the process that began it.

    What a process claims (a lock, a directory, a place in a bucket) is released by that process alone: a fork that
    drops its copy of a generator, or leaves the ``with`` by an exception, still has a parent that holds the claim.
    """
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:
            release()


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Make a directory for a ``with``, which a fork that ends in it does not remove, as that of ``tempfile`` would."""
    made = Path(tempfile.mkdtemp(prefix="rlx-"))
    with released_here(partial(shutil.rmtree, made, ignore_errors=True)):
        yield made


class ThisProcessOnly:
    """Guard of an object that was used before a fork and does not work in the child.

    Args:
        message: of the error: what cannot be done in the child.
        hint: what to do instead.
    """

    def __init__(self, message: str, hint: str) -> None:
        self._message, self._hint = message, hint
        self._is_used = self._is_refused = False
        on_fork(self, ThisProcessOnly._copied)

    def check(self) -> None:
        """Raise ForkError if this was called before in a process that this one was forked from."""
        if self._is_refused:
            raise ForkError(self._message, hint=self._hint)
        self._is_used = True

    def _copied(self) -> None:
        self._is_refused = self._is_used


def _before() -> None:
    deadline = time.monotonic() + PATIENCE_S
    for entry in list(_entries.values()):
        if entry.before is not None and (owner := entry.owner()) is not None:
            entry.before(owner, max(0.0, deadline - time.monotonic()))


def _in_parent() -> None:
    for entry in list(_entries.values()):
        if entry.in_parent is not None and (owner := entry.owner()) is not None:
            entry.in_parent(owner)


def _in_child() -> None:
    entries = list(_entries.values())
    for entry in entries:
        if (owner := entry.owner()) is not None:
            entry.in_child(owner)
    if entries and (torch := sys.modules.get("torch")) is not None:
        # Its thread pool has no threads either, and would wait for them; workers of a DataLoader do the same.
        torch.set_num_threads(1)


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
