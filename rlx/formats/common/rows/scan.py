"""Episodes in rows of TED steps: which rows follow each other, and which begin at a reset.

A row follows the row before it if that row did not end the episode, is of the same trajectory, and led to the
observation that this row begins with. Rows that follow each other are a piece of an episode. Collectors that take turns
in one buffer, and rings that wrap, leave separated pieces of one episode; they have the same trajectory id, and one
begins with the observation that the other led to.

Rows of a table may also be numbered. Numbers put the rows in order, and a number that is missing, or there twice, ends
a piece. A table without next observations joins the pieces of a trajectory id, as those of environments in turn.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.fields import flags_of
from rlx.formats.common.rows.episodes import GAPS, OUT_OF_ORDER, REPEATED, Batch, EpisodeTable
from rlx.formats.common.rows.ted_fields import (
    CUT,
    DONE,
    EPISODE,
    FROM_RESET,
    INDEX,
    INIT,
    MASK,
    TERMINATED,
    TRAJECTORY,
    TRUNCATED,
)

Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]
_LOCATED = "located"
_OF_START = (TRAJECTORY, EPISODE, FROM_RESET, INIT, MASK, _LOCATED)
_FLAGS = (TERMINATED, TRUNCATED, DONE, CUT, FROM_RESET, INIT, MASK)
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class RowPieces:
    """Pieces [p] of rows, in the order of time.

    Args:
        start, count: first row, and number of rows.
        number: of the episode, if known.
        terminated, truncated, recorded, cut: how the last row ends.
        first: whether it begins a lane.
        after_end: whether the row before it ended an episode.
        valid: whether its rows are steps.
        from_reset: whether it begins at a reset, if known.
        begins, led_to: digests of the first row's observation and of the last row's next one, by names of fields.
        located: number of the first row in the file, if its rows are numbered.
        is_init: whether the first row is marked as the first of an episode, if that is recorded.
    """

    start: Indices
    count: Indices
    number: NDArray[Any] | None
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
    located: Indices | None = None
    is_init: Flags | None = None

    @property
    def ended(self) -> Flags:
        """[p] whether the last row ended an episode."""
        return self.terminated | self.truncated

    def taken(self, order: Indices) -> "RowPieces":
        """Return the pieces in another order."""
        columns: dict[str, Any] = {}
        for one in fields(self):
            column = getattr(self, one.name)
            if isinstance(column, Mapping):
                columns[one.name] = {name: part[order] for name, part in column.items()}
            else:
                columns[one.name] = None if column is None else column[order]
        return RowPieces(**columns)


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


@dataclass(frozen=True, slots=True, eq=False)
class RowRuns:
    """Rows in some order, as runs in which each row is ``stride`` rows after the one before.

    Args:
        first: [k] first row of each run.
        count: [k] rows of each run.
        stride: of all of them.

    Example:
        >>> runs = RowRuns(np.array([4, 1]), np.array([2, 3]), stride=2)
        >>> list(runs.spans(1, 4))
        [(6, 1), (1, 2)]
        >>> list(runs.picked(RowRuns(np.array([3, 0]), np.array([2, 1]), 1)).spans(0, 3))
        [(3, 2), (4, 1)]
    """

    first: Indices
    count: Indices
    stride: int
    _ends: Indices = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", np.cumsum(self.count))

    @property
    def rows(self) -> int:
        """Total rows."""
        return int(self.count.sum())

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield first row and number of rows of each part of a run within [start, stop) of this order."""
        run = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            inside = start - int(self._ends[run] - self.count[run])
            count = min(stop - start, int(self.count[run]) - inside)
            yield int(self.first[run]) + inside * self.stride, count
            start, run = start + count, run + 1

    def picked(self, pieces: "RowRuns") -> "RowRuns":
        """Return the rows of pieces, whose first rows are places in this order."""
        pairs = zip(pieces.first.tolist(), pieces.count.tolist(), strict=True)
        spans = [span for start, count in pairs for span in self.spans(start, start + count)]
        first, count = np.array(spans, np.int64).reshape(-1, 2).T
        return RowRuns(first, count, self.stride)


@dataclass(frozen=True, slots=True)
class FoundEpisodes:
    """The episodes of rows that were scanned.

    Args:
        runs: their rows, episode by episode; None if that is the order of the rows and none is left out.
        torn: names of fields that do not continue from row to row as the observations do.
        padding: rows that are masked, and so in no episode.
        notes: counts of what was done about the order of rows.
    """

    table: EpisodeTable
    runs: RowRuns | None
    torn: frozenset[str]
    padding: int
    notes: Mapping[str, int] = field(default_factory=dict)


class EpisodeScan:
    """Scan of rows piece by piece, in the order of time.

    Args:
        place: location of the rows, for messages.
        after: TED path of the next observation, by the name of the observation.
        decides: which of these determine whether a row follows another.
        locator: name of the column that numbers the rows, if any: ``INDEX``, or ``FRAME`` within a trajectory.
    """

    def __init__(
        self,
        place: str,
        after: Mapping[str, str] | None = None,
        decides: Collection[str] = (),
        locator: str | None = None,
    ) -> None:
        self.rows = 0
        self._place = place
        self._locator = locator
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
                ``after`` names. Flags other than 0 and 1 raise CorruptShardError.
            recorded: [n] whether the observation after each row is recorded; by default, all are if ``decides`` names
                any.
            lane_starts: [n] which rows begin a lane, the rows of one environment.
        """
        flags = {
            path: flags_of(rows[path].reshape(-1), f"{self._place}: {path}", self.rows)
            for path in _FLAGS
            if path in rows and path not in self._after
        }
        now = _columns({**rows, **flags}, recorded, self._decides)
        if self._locator is not None:
            now[_LOCATED] = rows[self._locator].reshape(-1).astype(np.int64)
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
        if self._locator is not None:
            starting |= now[_LOCATED] != before[_LOCATED] + 1
        valid = now.get(MASK, np.ones(count, bool))
        self._torn |= {
            name for name, differ in differs.items() if name not in self._decides and (differ & ~starting & valid).any()
        }
        starts = np.flatnonzero(starting)
        self._starts.append(starts + self.rows)
        self._keep("first", first[starts])
        for name, column in now.items():
            self._keep(name, (column if name in _OF_START else before[name])[starts])
        if TRAJECTORY in now or self._locator is not None:
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

    def found(self, recording: Recording = Recording.UNKNOWN, *, cyclic: bool = False) -> FoundEpisodes:
        """Return the episodes of all rows but those that are masked.

        Args:
            cyclic: whether the first row of a lane may follow its last.
        """
        if not self.rows:
            nothing = EpisodeTable([], number=0, terminated=False, truncated=False, final_recorded=False)
            return FoundEpisodes(nothing, None, frozenset(), 0)
        pieces, decides, notes = self._pieces(), tuple(self._decides), Counter[str]()
        if self._locator is not None:
            pieces = _numbered(pieces, decides, notes, by_trajectory=self._locator != INDEX)
        elif pieces.trajectory is not None and not (decides or cyclic) and pieces.first.sum() == 1:
            nowhere = np.zeros(len(pieces.start), np.int64)
            pieces = _placed(pieces, decides, nowhere, nowhere)
        links = link(pieces, decides, cyclic=cyclic)
        resets = _resets(pieces, links, recording)
        joined = np.flatnonzero(links.joins >= 0)
        for group in self._compared()[bool(self._decides) :] if len(joined) else []:
            if (pieces.led_to[group][links.joins[joined]] != pieces.begins[group][joined]).any():
                self._torn.add(group[0])
        kept = np.flatnonzero(pieces.valid)
        padding = int(pieces.count[~pieces.valid].sum())
        order, heads = chained(kept, links.joins) if len(joined) else (kept, np.arange(len(kept)))
        lasts = np.append(heads[1:], len(order)) - 1
        head, last = order[heads], order[lasts]
        table = EpisodeTable(
            np.add.reduceat(pieces.count[order], heads) if len(heads) else [],
            number=np.arange(len(heads)) if pieces.number is None else pieces.number[head],
            terminated=pieces.terminated[last],
            truncated=pieces.truncated[last],
            final_recorded=pieces.recorded[last],
            from_reset=resets[head],
            cut=pieces.cut[last] | links.continues[last],
        )
        start, count = pieces.start[order], pieces.count[order]
        as_scanned = count.sum() == self.rows and bool((start == np.cumsum(count) - count).all())
        runs = None if as_scanned else RowRuns(start, count, 1)
        return FoundEpisodes(table, runs, frozenset(self._torn), padding, +notes)

    def _pieces(self) -> RowPieces:
        start = np.concatenate(self._starts)
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        # How a piece ends was noted where the next one begins.
        ends = {
            name: np.append(columns[name][1:], self._last[name])
            for name in ("terminated", "truncated", "recorded", "cut")
        }
        begins, led_to = {}, {}
        for group in self._compared() if {TRAJECTORY, _LOCATED} & columns.keys() else []:
            begins[group] = columns[f"begins {group}"]
            last = _digests([self._last[self._after[name]] for name in group])
            led_to[group] = np.concatenate([columns[f"led to {group}"][1:], last])
        every = np.ones(len(start), bool)
        return RowPieces(
            start,
            np.diff(start, append=self.rows),
            columns.get(EPISODE, columns.get(TRAJECTORY)),
            columns.get(TRAJECTORY),
            ends["terminated"],
            ends["truncated"],
            ends["recorded"],
            ends["cut"],
            columns["first"],
            _after_end(ends["terminated"] | ends["truncated"], columns.get(TRAJECTORY)),
            columns.get(MASK, every),
            columns.get(FROM_RESET, columns.get(INIT)),
            begins,
            led_to,
            columns.get(_LOCATED),
            columns.get(INIT),
        )


def _after_end(ended: Flags, trajectory: NDArray[Any] | None) -> Flags:
    """Return [p] whether the piece before each one, or the one before it in its trajectory, ended an episode."""
    after = np.append(False, ended[:-1])
    if trajectory is not None:
        order = np.argsort(trajectory, kind="stable")
        is_same = trajectory[order][1:] == trajectory[order][:-1]
        after[order[1:]] |= is_same & ended[order[:-1]]
    return after


def _numbered(pieces: RowPieces, decides: tuple[str, ...], notes: Counter[str], *, by_trajectory: bool) -> RowPieces:
    """Return pieces in the order of the numbers of their rows; those between which a number is missing do not follow.

    If a number is there twice, a row follows another only if it has the next number.

    Args:
        notes: receives how often rows are out of order, missing or repeated.
        by_trajectory: whether the rows of every trajectory are numbered from 0 on.
    """
    ids, never = np.zeros(len(pieces.start), np.int64), np.zeros(0, np.int64)
    if pieces.trajectory is not None:
        _, first, ids = np.unique(pieces.trajectory, return_index=True, return_inverse=True)
        ids = np.argsort(np.argsort(first))[ids]
    located = never if pieces.located is None else pieces.located
    last, group = located + pieces.count - 1, ids if by_trajectory else np.zeros_like(ids)
    order, as_filed = np.lexsort((located, group)), np.argsort(group, kind="stable")
    is_same = np.diff(group[order]) == 0
    is_repeated = bool((is_same & (located[order][1:] <= last[order][:-1])).any())
    if is_repeated and by_trajectory:
        order = np.arange(len(order))  # several episodes have the same id
    else:
        notes[OUT_OF_ORDER] += int(((np.diff(group[as_filed]) == 0) & (np.diff(located[as_filed]) < 0)).sum())
    pieces, located, last, ids = pieces.taken(order), located[order], last[order], ids[order]
    holes = np.cumsum(np.append(0, (located[1:] != last[:-1] + 1) | (np.diff(group[order]) != 0)))
    begins, led_to = (located, last + 1) if is_repeated else (holes, holes)
    first = np.arange(len(order)) == 0
    after_end = _after_end(pieces.ended, pieces.trajectory)
    after_end[1:] &= begins[1:] == led_to[:-1]
    from_reset = located == 0 if by_trajectory and pieces.from_reset is None else pieces.from_reset
    by_id = np.argsort(ids, kind="stable")
    before, now = by_id[:-1], by_id[1:]
    breaks = (ids[before] == ids[now]) & ~pieces.ended[before] & (begins[now] != led_to[before])
    notes[GAPS] += int((breaks & (located[now] > last[before])).sum())
    notes[REPEATED] += int((breaks & (located[now] <= last[before]) & ~(by_trajectory & (located[now] == 0))).sum())
    numbered = replace(pieces, first=first, after_end=after_end, from_reset=from_reset)
    return _placed(numbered, decides, begins, led_to)


def _placed(pieces: RowPieces, decides: tuple[str, ...], begins: Indices, led_to: Indices) -> RowPieces:
    """Return pieces that follow each other only if the places agree, too.

    A truncated one is followed by none, unless an observation shows that the episode continues.

    Args:
        begins, led_to: [p] the places of the first row and of the row after the last.
    """
    ids = np.zeros(len(begins), np.int64) if pieces.trajectory is None else pieces.trajectory
    never = -1 - np.arange(len(begins))
    shows = bool(decides) and pieces.trajectory is not None
    columns = [(begins, led_to if shows else np.where(pieces.truncated, never, led_to))]
    if pieces.is_init is not None:
        by_id, resets = np.argsort(ids, kind="stable"), np.zeros(len(begins), np.int64)
        resets[by_id] = np.cumsum(pieces.is_init[by_id])
        columns.append((resets, resets))
    if decides:
        columns.append((pieces.begins[decides], pieces.led_to[decides]))
    first, after = (_paired(side) for side in zip(*columns, strict=True))
    return replace(
        pieces,
        trajectory=ids,
        begins={**pieces.begins, decides: first},
        led_to={**pieces.led_to, decides: after},
    )


def _paired(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    rows = np.empty(len(columns[0]), object)
    rows[:] = list(zip(*(column.tolist() for column in columns), strict=True))
    return rows


def _resets(pieces: RowPieces, links: PieceLinks, recording: Recording) -> Flags:
    if pieces.from_reset is not None:
        return pieces.from_reset
    of_lane = pieces.first & (recording != Recording.WRAPPED)
    of_new_id = pieces.trajectory is not None and recording == Recording.COMPLETE
    return ~links.resumes & (~links.is_known & (of_lane | of_new_id) | (pieces.after_end & ~pieces.first))


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
    flags = {path: rows[path] for path in (TERMINATED, TRUNCATED, DONE) if path in rows}
    count = len(next(iter(flags.values())))
    truncated = flags.get(TRUNCATED, np.zeros(count, bool))
    terminated = flags.get(TERMINATED, flags.get(DONE, np.zeros(count, bool)) & ~truncated)
    if DONE in flags and TERMINATED in flags:
        truncated = truncated | (flags[DONE] & ~terminated)
    known = np.full(count, bool(decides)) if recorded is None else recorded
    cut = rows.get(CUT, np.zeros(count, bool))
    columns = {"terminated": terminated, "truncated": truncated, "recorded": known, "cut": cut}
    columns |= {name: rows[name].reshape(-1) for name in (TRAJECTORY, EPISODE) if name in rows}
    return columns | {name: rows[name] for name in (FROM_RESET, INIT, MASK) if name in rows}
