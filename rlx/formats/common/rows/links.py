"""Which pieces of episodes follow each other, where the pieces lie apart.

Pieces of one episode have the same trajectory id, and one begins with the observation that another led to.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces [p] in the order of time.

    Args:
        start, count: rows.
        number: of the episode.
        trajectory: id, if there are such.
        terminated, truncated, recorded, cut: how the last row ends.
        first: whether it begins a lane.
        after_end: whether the row before it ended an episode.
        valid: whether its rows are steps.
        from_reset: whether it begins at a reset, if known.
        begins, led_to: digests of what its first row begins with and of what its last row led to, by names of fields.
    """

    start: Places
    count: Places
    number: NDArray[Any]
    trajectory: NDArray[Any] | None
    terminated: Flags
    truncated: Flags
    recorded: Flags
    cut: Flags
    first: Flags
    after_end: Flags
    valid: Flags
    from_reset: Flags | None
    begins: Mapping[tuple[str, ...], NDArray[Any]]
    led_to: Mapping[tuple[str, ...], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Links:
    """Which pieces go on in which.

    Args:
        joins: [p] the piece that each one follows; -1 where none is known.
        goes_on: [p] whether the episode continues in a later piece although a flag is set at the end of this one.
        resumes: [p] whether a piece continues an earlier one.
        is_known: [p] whether an earlier piece of the same trajectory id has not ended.
    """

    joins: Places
    goes_on: Flags
    resumes: Flags
    is_known: Flags


def link(pieces: Pieces, decides: tuple[str, ...], *, cyclic: bool) -> Links:
    """Return which pieces go on in which; of several that lead to one, the latest does.

    Args:
        pieces: in the order of time.
        decides: the fields that say whether a piece follows another.
        cyclic: whether the first piece of a lane may follow its last.
    """
    count = len(pieces.start)
    links = Links(np.full(count, -1), *(np.zeros(count, bool) for _ in range(3)))
    if pieces.trajectory is None:
        return links
    _, ids, sharing = np.unique(pieces.trajectory, return_inverse=True, return_counts=True)
    shared = np.flatnonzero((sharing[ids] > 1) & pieces.valid)
    never = np.arange(count)  # equal to nothing, where no observation tells what follows what
    begins, led_to = pieces.begins.get(decides, never), pieces.led_to.get(decides, never + count)
    ongoing: dict[tuple[int, Any], list[int]] = defaultdict(list)  # by id and what they led to
    unended: Counter[int] = Counter()  # ongoing pieces without a flag at their end, by id

    def take(piece: int) -> int:
        """Return the latest ongoing piece that leads to this one, or -1."""
        others = ongoing.get((int(ids[piece]), begins[piece]), [])
        if not others or others == [piece]:
            return -1
        other = others.pop(-2 if others[-1] == piece else -1)
        unended[int(ids[other])] -= not pieces.truncated[other]
        return other

    for piece in shared.tolist():
        id = int(ids[piece])
        links.is_known[piece] = unended[id] > 0
        if (other := take(piece)) >= 0:
            _connect(pieces, links, other, piece)
        if not pieces.terminated[piece]:
            ongoing[id, led_to[piece]].append(piece)
            unended[id] += not pieces.truncated[piece]
    for piece in shared[pieces.first[shared] & cyclic].tolist():
        if links.joins[piece] < 0 and (other := take(piece)) >= 0 and _head(links.joins, other) != piece:
            _connect(pieces, links, other, piece)
    return links


def _connect(pieces: Pieces, links: Links, other: int, piece: int) -> None:
    links.resumes[piece] = True
    if pieces.truncated[other]:
        links.goes_on[other] = True
    else:
        links.joins[piece] = other


def _head(joins: Places, piece: int) -> int:
    while joins[piece] >= 0:
        piece = int(joins[piece])
    return piece


def chained(kept: Places, joins: Places) -> tuple[Places, Places]:
    """Return [k] the pieces, those of an episode one after the other, and [n] where in that order each episode
    begins."""
    follower = np.full(len(joins), -1)
    follower[joins[joins >= 0]] = np.flatnonzero(joins >= 0)
    order: list[int] = []
    heads: list[int] = []
    for head in kept[joins[kept] < 0].tolist():
        heads.append(len(order))
        piece = head
        while piece >= 0:
            order.append(piece)
            piece = int(follower[piece])
    return np.array(order, np.int64), np.array(heads, np.int64)
