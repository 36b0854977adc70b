"""Episodes in rows of TED steps: which rows follow each other, and which begin at a reset.

A row follows the row before it if that row did not end the episode, is of the same trajectory, and led to the
observation that this row begins with. Rows that follow each other are a piece of an episode. Collectors that take turns
in one buffer, and rings that wrap, leave separated pieces of one episode; they have the same trajectory id, and one
begins with the observation that the other led to.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import SourceError
from rlx.formats.common.rows.episodes import Batch, EpisodeTable
from rlx.formats.common.rows.ted_fields import (
    CUT,
    DONE,
    EPISODE,
    FROM_RESET,
    INIT,
    MASK,
    TERMINATED,
    TRAJECTORY,
    TRUNCATED,
)

Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]
_OF_START = (TRAJECTORY, EPISODE, FROM_RESET, INIT, MASK)
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class RowPieces:
    """Pieces [p] of rows, in the order of time.

    Args:
        start, count: first row, and number of rows.
        number: of the episode.
        terminated, truncated, recorded, cut: how the last row ends.
        first: whether it begins a lane.
        after_end: whether the row before it ended an episode.
        valid: whether its rows are steps.
        from_reset: whether it begins at a reset, if known.
        begins, led_to: digests of the first row's observation and of the last row's next one, by names of fields.
    """

    start: Indices
    count: Indices
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
class PieceLinks:
    """Links between pieces of an episode.

    Args:
        joins: [p] the piece that each one follows; -1 where none is known.
        continues: [p] whether the episode continues in a later piece although this one ends with a flag.
        resumes: [p] whether a piece continues an earlier one.
        is_known: [p] whether an earlier piece of the same trajectory id is unfinished.
    """

    joins: Indices
    continues: Flags
    resumes: Flags
    is_known: Flags


def link(pieces: RowPieces, decides: tuple[str, ...], *, cyclic: bool) -> PieceLinks:
    """Return the links; of several pieces that lead to one, the latest continues there.

    Args:
        decides: the fields that determine whether a piece follows another.
        cyclic: whether the first piece of a lane may follow its last.
    """
    count = len(pieces.start)
    links = PieceLinks(np.full(count, -1), *(np.zeros(count, bool) for _ in range(3)))
    if pieces.trajectory is None:
        return links
    _, ids, sharing = np.unique(pieces.trajectory, return_inverse=True, return_counts=True)
    shared = np.flatnonzero((sharing[ids] > 1) & pieces.valid)
    never = np.arange(count)  # equal to no other, if no observation determines the order
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


def _connect(pieces: RowPieces, links: PieceLinks, other: int, piece: int) -> None:
    links.resumes[piece] = True
    if pieces.truncated[other]:
        links.continues[other] = True
    else:
        links.joins[piece] = other


def _head(joins: Indices, piece: int) -> int:
    while joins[piece] >= 0:
        piece = int(joins[piece])
    return piece


def chained(kept: Indices, joins: Indices) -> tuple[Indices, Indices]:
    """Return [k] the pieces, episode by episode, and [n] the index in them at which each episode begins."""
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


class Recording(Enum):
    """The state of the steps before the stored ones."""

    COMPLETE = "nothing was recorded before"
    WRAPPED = "older steps were overwritten"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class FoundEpisodes:
    """The episodes of rows that were scanned.

    Args:
        pieces: [p, 2] first row and number of rows of their pieces, episode by episode; None if every episode is one
            piece and none is left out.
        torn: names of fields that do not continue from row to row as the observations do.
        padding: rows that are masked, and so in no episode.
    """

    table: EpisodeTable
    pieces: Indices | None
    torn: frozenset[str]
    padding: int


class EpisodeScan:
    """Scan of rows piece by piece, in the order of time.

    Args:
        after: TED path of the next observation, by the name of the observation.
        decides: which of these determine whether a row follows another.
    """

    def __init__(self, after: Mapping[str, str] | None = None, decides: Collection[str] = ()) -> None:
        self.rows = 0
        self._after = dict(after or {})
        self._decides = [name for name in self._after if name in decides]
        self._torn: set[str] = set()
        self._starts: list[Indices] = []
        self._columns: dict[str, list[NDArray[Any]]] = {}
        self._last: Batch = {}

    def add(self, rows: Batch, recorded: Flags | None = None, lane_starts: Flags | None = None) -> None:
        """Take the next n rows.

        Args:
            rows: flags [n] or [n, 1], the numbers of trajectories and the like that exist, and the fields that
                ``after`` names.
            recorded: [n] whether the observation after each row is recorded; by default, all are if ``decides`` names
                any.
            lane_starts: [n] which rows begin a lane, the rows of one environment.
        """
        now = _columns(rows, recorded, self._decides)
        if INIT in self._after:  # an observation of this name, which says nothing of resets
            now.pop(INIT, None)
        count = len(now["terminated"])
        before = {name: _shifted(column, self._last.get(name)) for name, column in now.items()}
        first = np.zeros(count, bool) if lane_starts is None else lane_starts.copy()
        first[:1] |= self.rows == 0
        ended = before["terminated"] | before["truncated"]
        differs = {
            name: different(_shifted(rows[path], self._last.get(path)), rows[name])
            for name, path in self._after.items()
        }
        jumps = np.logical_or.reduce([differs[name] for name in self._decides] or [np.zeros(count, bool)])
        starting = first | ended | jumps | now.get(INIT, np.zeros(count, bool))
        for name in (TRAJECTORY, MASK):
            if name in now:
                starting |= now[name] != before[name]
        valid = now.get(MASK, np.ones(count, bool))
        self._torn |= {
            name for name, differ in differs.items() if name not in self._decides and (differ & ~starting & valid).any()
        }
        starts = np.flatnonzero(starting)
        self._starts.append(starts + self.rows)
        self._keep("first", first[starts])
        for name, column in now.items():
            self._keep(name, (column if name in _OF_START else before[name])[starts])
        if TRAJECTORY in now:
            for group in self._compared():
                self._keep(f"begins {group}", _digests([rows[name][starts] for name in group]))
                paths = [self._after[name] for name in group]
                self._keep(
                    f"led to {group}", _digests([_shifted(rows[path], self._last.get(path))[starts] for path in paths])
                )
        after = {path: rows[path][-1:] for path in self._after.values()}
        self._last = {**{name: column[-1:] for name, column in now.items()}, **after}
        self.rows += count

    def _compared(self) -> list[tuple[str, ...]]:
        """Return the fields that decide, together, and each of the others."""
        deciding = [tuple(self._decides)] if self._decides else []
        return deciding + [(name,) for name in self._after if name not in self._decides]

    def _keep(self, name: str, column: NDArray[Any]) -> None:
        self._columns.setdefault(name, []).append(column)

    def found(
        self, recording: Recording = Recording.UNKNOWN, *, stitch: bool = False, cyclic: bool = False
    ) -> FoundEpisodes:
        """Return the episodes of all rows.

        Args:
            stitch: whether to join separated pieces of an episode, and leave out masked rows.
            cyclic: whether the first row of a lane may follow its last.

        Raises:
            SourceError: rows are masked, and ``stitch`` is not set.
        """
        if not self.rows:
            nothing = EpisodeTable([], number=0, terminated=False, truncated=False, final_recorded=False)
            return FoundEpisodes(nothing, None, frozenset(), 0)
        pieces = self._pieces()
        links = link(pieces, tuple(self._decides), cyclic=cyclic)
        resets = _resets(pieces, links, recording)
        joined = np.flatnonzero(links.joins >= 0) if stitch else np.empty(0, np.int64)
        for group in self._compared()[bool(self._decides) :] if len(joined) else []:
            if (pieces.led_to[group][links.joins[joined]] != pieces.begins[group][joined]).any():
                self._torn.add(group[0])
        kept = np.flatnonzero(pieces.valid)
        padding = int(pieces.count[~pieces.valid].sum())
        if padding and not stitch:
            raise SourceError(f"{MASK}: expected no padding, found {padding:,} rows that are masked")
        order, heads = chained(kept, links.joins) if len(joined) else (kept, np.arange(len(kept)))
        lasts = np.append(heads[1:], len(order)) - 1
        head, last = order[heads], order[lasts]
        table = EpisodeTable(
            np.add.reduceat(pieces.count[order], heads) if len(heads) else [],
            number=pieces.number[head],
            terminated=pieces.terminated[last],
            truncated=pieces.truncated[last],
            final_recorded=pieces.recorded[last],
            from_reset=resets[head],
            cut=pieces.cut[last] | links.continues[last],
        )
        as_scanned = len(order) == len(pieces.start) and bool((np.diff(order) == 1).all())
        places = None if as_scanned else np.stack([pieces.start[order], pieces.count[order]], axis=1)
        return FoundEpisodes(table, places, frozenset(self._torn), padding)

    def _pieces(self) -> RowPieces:
        start = np.concatenate(self._starts)
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        # How a piece ends was noted where the next one begins.
        ends = {
            name: np.append(columns[name][1:], self._last[name])
            for name in ("terminated", "truncated", "recorded", "cut")
        }
        begins, led_to = {}, {}
        for group in self._compared() if TRAJECTORY in columns else []:
            begins[group] = columns[f"begins {group}"]
            last = _digests([self._last[self._after[name]] for name in group])
            led_to[group] = np.concatenate([columns[f"led to {group}"][1:], last])
        every = np.ones(len(start), bool)
        return RowPieces(
            start,
            np.diff(start, append=self.rows),
            columns.get(EPISODE, columns.get(TRAJECTORY, np.arange(len(start)))),
            columns.get(TRAJECTORY),
            ends["terminated"],
            ends["truncated"],
            ends["recorded"],
            ends["cut"],
            columns["first"],
            columns["terminated"] | columns["truncated"],
            columns.get(MASK, every),
            columns.get(FROM_RESET, columns.get(INIT)),
            begins,
            led_to,
        )


def _resets(pieces: RowPieces, links: PieceLinks, recording: Recording) -> Flags:
    if pieces.from_reset is not None:
        return pieces.from_reset
    of_lane = pieces.first & (recording != Recording.WRAPPED)
    of_new_id = pieces.trajectory is not None and recording == Recording.COMPLETE
    return ~links.resumes & (~links.is_known & (of_lane | of_new_id) | (pieces.after_end & ~pieces.first))


def scan_following(
    batches: Iterable[Batch], after: Mapping[str, str], decides: Collection[str], recorded: Any
) -> FoundEpisodes:
    """Return the episodes of rows that can only be read in order, unstitched.

    Args:
        batches: the rows, ``batch_rows`` each, with flags and the fields that ``after`` names.
        recorded: returns, for a batch, [n] whether the observation after each row is recorded.
    """
    scan = EpisodeScan(after, decides)
    for batch in batches:
        scan.add(batch, recorded(batch))
    return scan.found()


def different(one: NDArray[Any], other: NDArray[Any]) -> Flags:
    """Return [n] which rows differ in value; NaN equals NaN, and -0.0 equals 0.0.

    Example:
        >>> different(np.array([np.nan, 0.0, 1.0]), np.array([np.nan, -0.0, 2.0])).tolist()
        [False, False, True]
    """
    differs = np.asarray(one != other, bool)
    if one.dtype.kind == "f" and other.dtype.kind == "f":
        differs &= ~(np.isnan(one) & np.isnan(other))
    found: Flags = np.asarray(differs.any(axis=tuple(range(1, differs.ndim))))
    return found


def _digests(columns: list[NDArray[Any]]) -> NDArray[Any]:
    """Return [n] digests of rows, equal for equal values in all columns."""
    alike = [_alike(column) for column in columns]
    joined = [b"".join(row) for row in zip(*alike, strict=True)]
    found = np.empty(len(joined), object)
    found[:] = [
        row if len(row) <= _DIGEST_BYTES else blake2b(row, digest_size=_DIGEST_BYTES).digest() for row in joined
    ]
    return found


def _alike(column: NDArray[Any]) -> list[bytes]:
    """Return bytes of every row, the same for the same values."""
    if column.dtype.hasobject:
        return [repr(row).encode() for row in column.tolist()]
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), np.nan, column + 0.0).astype(column.dtype)
    return [row.tobytes() for row in column]


def _shifted(column: NDArray[Any], last: NDArray[Any] | None) -> NDArray[Any]:
    return np.concatenate([column[:1] if last is None else last, column[:-1]])


def _columns(rows: Batch, recorded: Flags | None, decides: Collection[str]) -> dict[str, NDArray[Any]]:
    flags = {path: rows[path].reshape(-1) != 0 for path in (TERMINATED, TRUNCATED, DONE) if path in rows}
    count = len(next(iter(flags.values())))
    truncated = flags.get(TRUNCATED, np.zeros(count, bool))
    terminated = flags.get(TERMINATED, flags.get(DONE, np.zeros(count, bool)) & ~truncated)
    if DONE in flags and TERMINATED in flags:
        truncated = truncated | (flags[DONE] & ~terminated)
    known = np.full(count, bool(decides)) if recorded is None else recorded
    cut = rows[CUT].reshape(-1) != 0 if CUT in rows else np.zeros(count, bool)
    columns = {"terminated": terminated, "truncated": truncated, "recorded": known, "cut": cut}
    columns |= {name: rows[name].reshape(-1) for name in (TRAJECTORY, EPISODE) if name in rows}
    return columns | {name: rows[name].reshape(-1) != 0 for name in (FROM_RESET, INIT, MASK) if name in rows}
