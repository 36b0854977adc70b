"""Checks of trajectories: flags, clocks, duplicates, lengths, and episodes joined into one."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.checks.check import MAX_PLACES, Finding, Place, Severity, Tally, Window
from rlx.checks.values import is_picture
from rlx.schema import Role, Schema

# Last words of the names of fields that count up within an episode.
CLOCKS = re.compile(
    r"(timestamps?|time|time_stamp|frame_index|frame_id|step_index|step_id|step_count|time_step|timestep)"
)
_MIN_DUPLICATE_STEPS = 4
_MANY = 10
_MIN_AT_LIMIT, _MIN_LENGTHS, _MIN_LIMIT = 5, 3, 20
_MIN_STARTS = 8
_ENOUGH_STARTS = 64
_MAX_HELD_STEPS = 50_000
_MAX_INSIDE = 0.2  # share of all observations in the region; with more, it is not typical of starts
_MAX_CANDIDATES = 4096
_FACTOR = 1.5
Numbers = NDArray[np.float64]


class Flags:
    """Last steps that are flagged both terminated and truncated, or neither."""

    def __init__(self) -> None:
        self._ends = 0
        self._both, self._neither = Tally(), Tally()

    def see(self, window: Window) -> None:
        """Process the next steps."""
        last = window.last
        terminated, truncated = window["terminated"][last], window["truncated"][last]
        self._ends += len(last)
        for tally, found in ((self._both, terminated & truncated), (self._neither, ~(terminated | truncated))):
            steps = last[found.astype(bool)]
            tally.add(window.trajectory[steps], window.position[steps])

    def findings(self) -> Iterator[Finding]:
        """Yield trajectories that end with both flags, or with none."""
        if self._both.count:
            is_copy = self._both.count == self._ends and self._ends > 1
            yield Finding(
                "both-flags",
                Severity.ERROR if is_copy else Severity.NOTE,
                "the last step is both terminated and truncated"
                + (" in every trajectory: one flag looks like a copy of the other" if is_copy else ""),
                why="a truncated step is bootstrapped and a terminated one is not",
                remedy="correct the flags where the data were recorded; a learner takes terminated first",
                **self._both.of(),
            )
        if self._neither.count:
            is_every = self._neither.count == self._ends
            yield Finding(
                "no-flag",
                Severity.ERROR if is_every else Severity.WARNING,
                "the last step is neither terminated nor truncated" + (" in every trajectory" if is_every else ""),
                why="a learner cannot tell where an episode ended, and may bootstrap from a state that was never seen",
                remedy="if they are pieces of episodes, drop them: rlx preprocess SRC DST --transform filter:whole",
                **self._neither.of(),
            )


class Clocks:
    """Timestamps and counters that do not go up, and resets in the middle of a trajectory."""

    def __init__(self, schema: Schema) -> None:
        self._clocks = [
            name
            for name, field in schema.fields.items()
            if CLOCKS.fullmatch(name.split("/")[-1]) and field.dtype not in ("bool", "string") and field.row_bytes <= 8
        ]
        self._resets = [name for name in schema if name.split("/")[-1] == "is_init" and schema[name].dtype == "bool"]
        self._found = {name: Tally() for name in (*self._clocks, *self._resets)}
        self._last: dict[str, NDArray[Any]] = {}

    def see(self, window: Window) -> None:
        """Process the next steps."""
        for name in self._clocks:
            times = window[name].reshape(-1)
            if not len(times):
                continue
            trajectory, position = window.place(name, np.arange(len(times)))
            back = np.zeros(len(times), bool)
            back[1:] = times[1:] <= times[:-1]
            back[position == 0] = False
            if position[0] > 0 and name in self._last:
                back[0] = times[0] <= self._last[name]
            self._last[name] = times[-1]
            if window.schema[name].role == Role.OBSERVATION:
                back &= window.recorded
            found = np.flatnonzero(back)
            self._found[name].add(trajectory[found], position[found])
        for name in self._resets:
            rows = np.logical_or.reduce(window[name].reshape(len(window[name]), -1), axis=1)
            trajectory, position = window.place(name, np.arange(len(rows)))
            inside = np.flatnonzero(rows & (position > 0))
            self._found[name].add(trajectory[inside], position[inside])

    def findings(self) -> Iterator[Finding]:
        """Yield clocks that go back or stand still, and resets inside a trajectory."""
        for name, tally in self._found.items():
            if not tally.count:
                continue
            if name in self._resets:
                yield _joined(name, "is set in the middle of a trajectory", tally)
            else:
                why = "steps are out of order or repeated, or two episodes are joined"
                yield _out_of_order("clock", f"{name} does not go up", why, name, tally)


class Duplicates:
    """Trajectories that equal another one, bit by bit.

    Args:
        others: digests of other datasets' trajectories, and the name of each dataset; shared trajectories are leaks.
    """

    def __init__(self, schema: Schema, others: Mapping[bytes, str] | None = None) -> None:
        self._names = sorted(schema)
        self._schema = schema
        self._others = others or {}
        # Short episodes of a few discrete states repeat by chance.
        self._is_rich = any(
            is_picture(schema[name]) or schema[name].dtype.startswith("float")
            for name in schema.names(Role.OBSERVATION)
        )
        self._running = self._fresh()
        self._steps = 0
        self.digests: dict[bytes, int] = {}
        self._twice: list[tuple[int, int]] = []
        self._leaked: list[tuple[int, str]] = []

    def see(self, window: Window) -> None:
        """Process the next steps."""
        block = window.block
        data = {name: _bytes_of(block.data[name], is_text=self._schema[name].is_text) for name in self._names}
        step = row = 0
        for number, length in enumerate(block.lengths.tolist()):
            ends = bool(window.closed[number])
            for name, rows in data.items():
                # One digest per field, so that the blocks' boundaries do not matter.
                is_observation = self._schema[name].role == Role.OBSERVATION
                here = rows[row : row + length + ends] if is_observation else rows[step : step + length]
                self._running[name].update(here)
            self._steps += length
            step, row = step + length, row + length + ends
            if ends:
                self._close(window.first + number)

    def _fresh(self) -> dict[str, Any]:
        return {name: blake2b(digest_size=16) for name in self._names}

    def _close(self, trajectory: int) -> None:
        digest = blake2b(b"".join(part.digest() for part in self._running.values()), digest_size=16).digest()
        steps, self._steps, self._running = self._steps, 0, self._fresh()
        if steps < _MIN_DUPLICATE_STEPS:
            return
        if digest in self._others:
            self._leaked.append((trajectory, self._others[digest]))
        if digest in self.digests:
            self._twice.append((trajectory, self.digests[digest]))
        else:
            self.digests[digest] = trajectory

    def findings(self) -> Iterator[Finding]:
        """Yield trajectories that occur twice, here or in another dataset."""
        if self._twice:
            first, original = self._twice[0]
            yield Finding(
                "duplicate",
                Severity.ERROR if self._is_rich else Severity.NOTE,
                f"trajectories are stored twice, such as {first}, a copy of {original}",
                count=len(self._twice),
                why="they are sampled twice as often, and split apart they leak from training into evaluation",
                remedy="keep one of each: `fix` does" if self._is_rich else "keep one of each, if they are copies",
                places=tuple(Place(number) for number, _ in self._twice[:MAX_PLACES]),
                trajectories=np.array([number for number, _ in self._twice if self._is_rich], np.int64),
            )
        if self._leaked:
            yield Finding(
                "leak",
                Severity.ERROR,
                f"trajectories are in {self._leaked[0][1]} too",
                count=len(self._leaked),
                why="a learner would be evaluated on its training data",
                remedy="keep them in one of the datasets: `fix` leaves them out of this one",
                places=tuple(Place(number) for number, _ in self._leaked[:MAX_PLACES]),
                trajectories=np.array([number for number, _ in self._leaked], np.int64),
            )


class Lengths:
    """Trajectories of one step that are pieces, and lengths that contradict the time limit or the flags.

    Args:
        limit: ``max_episode_steps`` of the environment, if it is known.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._ends = 0
        self._single, self._long, self._early = Tally(), Tally(), Tally()
        # By length, those that were not truncated; and the number of lengths seen.
        self._untruncated: dict[int, Tally] = {}
        self._lengths: set[int] = set()
        self._truncates = False

    def see(self, window: Window) -> None:
        """Process the next steps."""
        last = window.last
        trajectory, length = window.trajectory[last], window.position[last] + 1
        segment = trajectory - window.first
        piece = window.block.cut[segment] | ~window.block.from_reset[segment] & (window.offset == 0)
        self._ends += len(last)
        single = (length == 1) & piece
        self._single.add(trajectory[single], length[single] - 1)
        if self._limit is not None:
            too_long = length > self._limit
            self._long.add(trajectory[too_long], length[too_long] - 1)
            early = window["truncated"][last] & (length < self._limit) & ~piece
            self._early.add(trajectory[early], length[early] - 1)
        self._truncates |= bool(window["truncated"][last].any())
        self._lengths.update(length.tolist())
        # Only the limit, or the longest so far, can be a limit.
        longest = np.flatnonzero((length == (self._limit or max(self._lengths, default=0))) & ~piece)
        for at in longest[~window["truncated"][last][longest]]:
            tally = self._untruncated.setdefault(int(length[at]), Tally())
            tally.add(trajectory[at : at + 1], length[at : at + 1] - 1)

    def findings(self) -> Iterator[Finding]:
        """Yield findings of many pieces of one step, of episodes beyond the limit, and of flags that contradict it."""
        yield from self._unflagged()
        if self._early.count:
            yield Finding(
                "early-truncation",
                Severity.NOTE,
                f"whole trajectories are truncated before the environment's limit of {self._limit:,}",
                why="another limit ended them, or the flags are not those of these steps",
                remedy="check how the ends of episodes were recorded",
                **self._early.of(),
            )
        if self._single.count > max(_MANY, self._ends / 2):
            yield Finding(
                "broken",
                Severity.WARNING,
                f"{self._single.count:,} of {self._ends:,} trajectories are single steps cut out of an episode",
                why="the next observations did not match the following steps, or each step became a trajectory; "
                "they give no slices, stacks or returns",
                remedy="check how next observations and episode ends were recorded",
                **self._single.of(),
            )
        if self._long.count:
            yield Finding(
                "too-long",
                Severity.ERROR,
                f"trajectories have more steps than the environment's limit of {self._limit:,}",
                why="episodes are joined, or the time limit that truncated them is not the one noted",
                remedy="check how the ends of episodes were recorded",
                trajectories=self._long.numbers(),
                **self._long.of(),
            )

    def _unflagged(self) -> Iterator[Finding]:
        limit = self._limit or max(self._lengths, default=0)
        tally = self._untruncated.get(limit, Tally())
        # Without a noted limit, several of the longest length among others suggest one.
        is_guess = self._limit is None
        if is_guess and (self._truncates or len(self._lengths) < _MIN_LENGTHS or limit < _MIN_LIMIT):
            return
        if tally.count >= (_MIN_AT_LIMIT if is_guess else 2):
            yield Finding(
                "unflagged-limit",
                Severity.WARNING,
                f"trajectories have exactly {limit:,} steps, "
                + ("the most of all" if is_guess else "the environment's limit")
                + ", and are not truncated",
                why="a time limit seems to have ended them: a learner that takes that for a terminal state learns "
                "that it is worth nothing",
                remedy="flag these last steps as truncated where the data were recorded",
                **tally.of(),
            )


def _bytes_of(rows: NDArray[Any], *, is_text: bool) -> NDArray[np.uint8]:
    """Return [n, bytes] of the rows of a field; of texts, a digest of each row."""
    if is_text:
        digests = [blake2b(repr(row.tolist() if hasattr(row, "tolist") else row).encode()).digest() for row in rows]
        return np.frombuffer(b"".join(digests), np.uint8).reshape(len(rows), -1)
    contiguous = np.ascontiguousarray(rows)
    if not contiguous.size:
        return np.empty((len(rows), 0), np.uint8)
    return contiguous.reshape(len(rows), -1).view(np.uint8)


@dataclass(slots=True)
class _Region:
    """Starts of the episodes of one field, and statistics of its steps.

    Args:
        bounds: [2, d] least and greatest first observation, once the region is known.
        ordinary: [d] the largest change of a step that does not end in the region.
        candidates: change [d], trajectory and position of each step from outside into the region.
    """

    held: list[tuple[Numbers, NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    starts: list[Numbers] = field(default_factory=list)
    bounds: Numbers | None = None
    inside: int = 0
    seen: int = 0
    ordinary: Numbers | None = None
    candidates: list[tuple[Numbers, int, int]] = field(default_factory=list)

    def add(self, rows: Numbers, trajectory: NDArray[np.int64], position: NDArray[np.int64]) -> None:
        """Hold observations until enough episodes have begun, then check them."""
        self.held.append((rows, trajectory, position))
        if self.bounds is None:
            self.starts += list(rows[position == 0])
            held = sum(len(rows) for rows, _, _ in self.held)
            if len(self.starts) < _ENOUGH_STARTS and held < _MAX_HELD_STEPS:
                return
        self.flush()

    def flush(self) -> None:
        """Check the held observations."""
        if self.bounds is None and self.starts:
            begin = np.stack(self.starts)
            self.bounds = np.stack([begin.min(axis=0), begin.max(axis=0)])
        held, self.held = self.held, []
        if self.bounds is not None:
            for rows, trajectory, position in held:
                self._judge(self.bounds, rows, trajectory, position)

    def _judge(
        self, bounds: Numbers, rows: Numbers, trajectory: NDArray[np.int64], position: NDArray[np.int64]
    ) -> None:
        inside = ((rows >= bounds[0]) & (rows <= bounds[1])).all(axis=1)
        self.inside, self.seen = self.inside + int(inside.sum()), self.seen + len(rows)
        change = np.abs(np.diff(rows, axis=0))
        follows = (position[1:] > 0) & np.isfinite(change).all(axis=1)
        enters = follows & inside[1:] & ~inside[:-1]
        ordinary = change[follows & ~enters]
        if len(ordinary):
            largest = ordinary.max(axis=0)
            self.ordinary = largest if self.ordinary is None else np.maximum(self.ordinary, largest)
        for at in np.flatnonzero(enters)[: _MAX_CANDIDATES - len(self.candidates)].tolist():
            self.candidates.append((change[at], int(trajectory[at + 1]), int(position[at + 1])))


class Joins:
    """Jumps of a vector observation into the region where episodes begin.

    A reset shows as a step that changes some number by more than any other step does, and that ends where first
    observations are. Regions with many of all observations, such as a pendulum's, are ignored.
    """

    def __init__(self, schema: Schema) -> None:
        self._regions = {
            name: _Region()
            for name in schema.names(Role.OBSERVATION)
            if schema[name].dtype.startswith("float") and len(schema[name].shape) == 1 and schema[name].row_bytes
        }

    def see(self, window: Window) -> None:
        """Process the next steps."""
        for name, region in self._regions.items():
            known = np.flatnonzero(window.recorded)
            trajectory, position = window.place(name, known)
            region.add(window[name][known].astype(np.float64), trajectory, position)

    def findings(self) -> Iterator[Finding]:
        """Yield trajectories with a jump to where episodes begin."""
        for name, region in self._regions.items():
            region.flush()
            if len(region.starts) < _MIN_STARTS or region.ordinary is None:
                continue
            if region.inside > _MAX_INSIDE * region.seen:
                continue
            tally = Tally()
            for change, trajectory, position in region.candidates:
                if (change > _FACTOR * region.ordinary).any():
                    tally.add(np.array([trajectory]), np.array([position]))
            if tally.count:
                yield _joined(name, "jumps to where episodes begin in the middle of a trajectory", tally)


def _joined(name: str, what: str, tally: Tally) -> Finding:
    why = "two episodes are joined, so that returns and slices cross from one into the other"
    return _out_of_order("joined", f"{name} {what}", why, name, tally)


def _out_of_order(check: str, what: str, why: str, name: str, tally: Tally) -> Finding:
    remedy = "split the episodes where the data were recorded; `fix` leaves these trajectories out"
    return Finding(
        check,
        Severity.ERROR,
        what,
        why=why,
        remedy=remedy,
        field=name,
        trajectories=tally.numbers(),
        **tally.of(),
    )
