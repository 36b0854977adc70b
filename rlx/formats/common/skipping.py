"""Episodes that cannot be read: one stops the reading, or is left out, with its name and the reason.

Readers mark what they read of one episode, by ``skippable`` and ``whole``. Who calls them decides what an episode that
cannot be read does: within ``skipping()`` it is left out, and otherwise its error is raised. As with numpy's
``errstate``, that holds for everything that is called or iterated there.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self, TypeVar

from rlx.block import Block
from rlx.errors import CorruptShardError, RlxError, SourceNotFoundError
from rlx.wording import first_of, plural

# The note on episodes that are left out.
NOTE = "episodes_left_out"
# Reasons of what is left out, in the counts of a shard: of episodes, and of the steps of a shard that is damaged.
DAMAGED, DAMAGED_SHARD = "damaged_episode", "damaged_shard"
_MAX_NAMED, _MAX_SAID = 100, 20
_MAX_COMPARED = 3
HINT = "`on_error` skip leaves out what cannot be read, names it, and takes the other episodes"
DAMAGES = (CorruptShardError, SourceNotFoundError)
T = TypeVar("T")
V = TypeVar("V")
# The reasons by name; False if an error stops, and None if so without an option to change it.
_left: ContextVar[dict[str, str] | bool | None] = ContextVar("left", default=None)


@contextmanager
def skipping(is_on: bool | None = True) -> Iterator[Mapping[str, str]]:
    """Leave out the episodes that cannot be read within the block; yields the reason for each, by its name.

    Args:
        is_on: whether to do so; otherwise, their errors are raised, with a hint at the option, or without (None).

    Example:
        >>> with skipping() as left:
        ...     for number in range(3):
        ...         with skippable(f"demo_{number}"):
        ...             if number == 1:
        ...                 raise CorruptShardError("a.hdf5: /data/demo_1/actions is missing")
        >>> left
        {'demo_1': 'a.hdf5: /data/demo_1/actions is missing'}
    """
    left: dict[str, str] = {}
    token = _left.set(left if is_on else is_on)
    try:
        yield left
    finally:
        _left.reset(token)


def is_skipping() -> bool:
    """Return whether episodes that cannot be read are left out."""
    return isinstance(_left.get(), dict)


@contextmanager
def skippable(name: str) -> Iterator[None]:
    """Read what belongs to one episode: within ``skipping()``, damage ends the block and is noted.

    Args:
        name: of the episode, as a user finds it in the files.

    Raises:
        CorruptShardError, SourceNotFoundError: it cannot be read, outside of ``skipping()``.
    """
    try:
        yield
    except DAMAGES as exc:
        if not isinstance(left := _left.get(), dict):
            add_hint(exc)
            raise
        left.setdefault(name, str(exc))


def add_hint(error: RlxError) -> None:
    """Name the option that would leave out what cannot be read, if there is one and the error has no hint."""
    if _left.get() is False:
        error.hint = error.hint or HINT


def whole(name: str, blocks: Iterable[Block], dropped: Counter[str]) -> Generator[Block, None, bool]:
    """Yield the blocks of one episode, and return whether it could be read.

    Within ``skipping()``, they are held until all of them are read; those of an episode that is damaged in its last
    step are not yielded.

    Args:
        dropped: what the blocks count; of an episode that is left out, only that.
    """
    if not is_skipping():
        with skippable(name):
            yield from blocks
        return True
    held, before = None, dropped.copy()
    with skippable(name):
        held = list(blocks)
    if held is None:
        dropped.clear()
        dropped.update(before)
        dropped[DAMAGED] += 1
        return False
    yield from held
    return True


def typical(episodes: dict[int, V], name: str, read: Callable[[int], T]) -> T:
    """Return what is read of the first episode; within ``skipping()``, what most of the first three agree on.

    Args:
        episodes: by number; those that cannot be read are removed.
        name: of an episode, with ``{}`` for its number.

    Raises:
        CorruptShardError: none can be read.

    Example:
        >>> with skipping():
        ...     typical(dict.fromkeys(range(4)), "demo_{}", {0: "x", 1: "y", 2: "y", 3: "x"}.__getitem__)
        'y'
    """
    found: list[T] = []
    for number in list(episodes):
        with skippable(name.format(number)):
            found.append(read(number))
            if len(found) == (_MAX_COMPARED if is_skipping() else 1):
                break
            continue
        del episodes[number]
    if not found:
        left = _left.get()
        what = LeftOut.of(left) if isinstance(left, dict) else "none"
        raise CorruptShardError(f"expected an episode that can be read, found {what}")
    return max(found, key=found.count)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Episodes that could not be read.

    Args:
        count: how many.
        reasons: why, for each of the first 100, by name.

    Example:
        >>> one = LeftOut.of({"demo_1": "/data/demo_1/actions is missing"})
        >>> two = one + LeftOut(1, {"demo_4": "/data/demo_4 is damaged"})
        >>> str(two)
        '2 episodes that cannot be read: demo_1 (/data/demo_1/actions is missing), demo_4 (/data/demo_4 is damaged)'
        >>> LeftOut.noted(two.note()) == two, LeftOut().note()
        (True, {})
    """

    count: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, left: Mapping[str, str]) -> Self:
        """Return those that ``skipping`` yields."""
        return cls(len(left), dict(islice(left.items(), _MAX_NAMED)))

    @classmethod
    def noted(cls, notes: Mapping[str, Any]) -> Self:
        """Return those that the notes of a dataset or a file list."""
        match notes.get(NOTE):
            case {"count": int(count), "reasons": dict(reasons)}:
                return cls(count, {str(name): str(reason) for name, reason in reasons.items()})
        return cls()

    def note(self) -> dict[str, Any]:
        """Return the note that lists them; an empty dict without any."""
        return {NOTE: self.to_json()} if self.count else {}

    def to_json(self) -> dict[str, Any]:
        """Return the number and the reasons."""
        return {"count": self.count, "reasons": dict(self.reasons)}

    def __add__(self, other: "LeftOut") -> "LeftOut":
        reasons = {**self.reasons, **other.reasons}
        return LeftOut(self.count + other.count, dict(islice(reasons.items(), _MAX_NAMED)))

    def __str__(self) -> str:
        named = first_of([f"{name} ({reason})" for name, reason in self.reasons.items()], _MAX_SAID)
        return f"{plural(self.count, 'episode')} that cannot be read: {named}"
