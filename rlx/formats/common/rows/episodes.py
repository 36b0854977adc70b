"""Episodes of formats that keep as many observations as actions: T rows, each with the observation before its action.

The observation after the last action is known only if the format stores it apart. Otherwise, zeros, marked as not
recorded, follow a last step whose end the file states: its reward and its flag are facts. A last step that nothing
ended has an unknown outcome. It is left out, and the observation before it is the final one.

The last step of every episode is done. An episode whose rows stop although nothing ended it is cut: its last step is
truncated, and so is the last one kept of an episode whose last row is left out.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlx.block import Block, single
from rlx.errors import CorruptShardError
from rlx.formats.common.source import block_steps
from rlx.schema import FLAGS, Role, Schema

STEPS_PER_SHARD = 100_000
PADDING = "padding"
STEPS_WITHOUT_OUTCOME = "steps_without_outcome"
UNSEEN_TRUNCATIONS = "truncations_without_final_observation"
WITHOUT_OUTCOME = "step_whose_outcome_is_not_recorded"
EPISODES_WITHOUT_STEP = "episodes_without_step"
WITHOUT_STEP = "episode_without_step"
# Notes on rows that are numbered: how often the next one was out of order, missing or a repetition.
OUT_OF_ORDER, GAPS, REPEATED = "rows_out_of_order", "gaps", "repeated_rows"
# Note on flags of an end that are set before an episode's last row: how often, by the name of the flag.
EARLY_FLAGS = "flags_before_the_end"
# What convert says of each of these notes.
COUNTED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        STEPS_WITHOUT_OUTCOME: ("left out: the last steps of {}, whose next observations were not recorded", "episode"),
        UNSEEN_TRUNCATIONS: ("{} without a recorded final observation: it is zeros", "truncated episode"),
        EPISODES_WITHOUT_STEP: ("left out: {} without a step", "episode"),
        OUT_OF_ORDER: ("rows were not in the order of their numbers, in {}: they are put in order", "place"),
        GAPS: ("rows are missing in {}: trajectories end there", "place"),
        REPEATED: ("rows are repeated in {}: trajectories end there", "place"),
    }
)
# 21 bytes an episode: a file of short ones has millions.
_COLUMNS = np.dtype(
    [
        ("number", "i8"),
        ("rows", "i8"),
        ("terminated", "?"),
        ("truncated", "?"),
        ("final_recorded", "?"),
        ("from_reset", "?"),
        ("cut", "?"),
    ]
)
_BATCH = 4096
Batch = Mapping[str, NDArray[Any]]


class Columns(Protocol):
    """The rows of one episode."""

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Return [stop - start, ...] rows of a field, as in the schema; of observations, those before each step."""

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        """Return [1, ...] the observation after a row; called only if the episode records it."""


@dataclass(frozen=True, slots=True)
class RowEpisode:
    """One episode.

    Args:
        rows: T.
        terminated: whether the last row ended the MDP.
        truncated: whether a limit cut the episode.
        final_recorded: whether the observation after the last row is known.
        from_reset: whether the first row is the first step of the episode.
        cut: whether the recording stopped although the environment did not end the episode, whatever the flags say.
    """

    number: int
    rows: int
    terminated: bool
    truncated: bool
    final_recorded: bool
    from_reset: bool = True
    cut: bool = False

    @property
    def name(self) -> str:
        """Its name for users."""
        return f"episode {self.number}"

    @property
    def steps(self) -> int:
        """Steps in the rows: all, or all but the last."""
        is_known = self.final_recorded or self.terminated or self.truncated
        return self.rows if is_known or not self.rows else self.rows - 1

    @property
    def is_unseen(self) -> bool:
        """Whether it was truncated and the observation after its last step, from which to bootstrap, is not known."""
        return bool(self.rows) and self.truncated and not (self.terminated or self.final_recorded)

    def blocks(self, schema: Schema, columns: Columns, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the episode in blocks; counts a row that gives no step, or an episode without rows, in ``dropped``."""
        if not self.rows:
            dropped[WITHOUT_STEP] += 1
        if self.rows > self.steps:
            dropped[WITHOUT_OUTCOME] += self.rows - self.steps

        def read(name: str, start: int, stop: int) -> NDArray[Any]:
            if name in FLAGS:
                return last_flag(start, stop, self.steps, is_set=getattr(self, name))
            if stop <= self.rows:
                return columns.rows(name, start, stop)
            final = columns.after(name, stop - 2) if self.final_recorded else schema[name].zeros(1)
            return np.concatenate([columns.rows(name, start, stop - 1), final.astype(schema[name].numpy_dtype)])

        yield from episode_blocks(
            schema,
            read,
            steps=self.steps,
            number=self.number,
            from_reset=self.from_reset,
            final_recorded=self.final_recorded or self.rows > self.steps,
            cut=self.cut or self.rows > self.steps,
        )


def last_flag(start: int, stop: int, steps: int, *, is_set: bool) -> NDArray[np.bool_]:
    """Return [stop - start] a flag that only the last step of an episode can have."""
    flags = np.zeros(stop - start, bool)
    flags[-1] = is_set and stop == steps
    return flags


def episode_blocks(
    schema: Schema,
    read: Callable[[str, int, int], NDArray[Any]],
    *,
    steps: int,
    number: int,
    from_reset: bool = True,
    final_recorded: bool = True,
    cut: bool = False,
    is_open: bool = False,
) -> Iterator[Block]:
    """Yield an episode in blocks. Its last step is flagged truncated if it is not terminated.

    Args:
        read: returns the rows [start, stop) of a field as a new array; of observations, row ``steps`` is the final one.
        cut: whether the recording stopped although the environment did not end the episode.
        is_open: whether the episode continues after these steps; its last step is then not flagged.
    """
    size = block_steps(schema)
    for start in range(0, steps, size):
        stop = min(start + size, steps)
        is_last = stop == steps and not is_open
        data = {
            name: read(name, start, stop + (is_last and field.role == Role.OBSERVATION))
            for name, field in schema.fields.items()
        }
        is_cut = is_last and not data["terminated"][-1] and (cut or not data["truncated"][-1])
        data["truncated"][-1] |= is_cut
        yield single(
            data,
            episode=number,
            from_reset=from_reset,
            final_recorded=final_recorded,
            is_open=not is_last,
            cut=bool(is_cut),
        )


def ending_notes(episodes: Iterable[RowEpisode]) -> dict[str, int]:
    """Return the notes of rows that give no step, of truncations after which nothing was seen, and of empty episodes.

    Example:
        >>> cut = RowEpisode(0, 100, terminated=False, truncated=False, final_recorded=False)
        >>> truncated = RowEpisode(1, 9, terminated=False, truncated=True, final_recorded=False)
        >>> ending_notes([cut, cut, truncated])
        {'steps_without_outcome': 2, 'truncations_without_final_observation': 1}
    """
    counts = dict.fromkeys((STEPS_WITHOUT_OUTCOME, UNSEEN_TRUNCATIONS, EPISODES_WITHOUT_STEP), 0)
    for episode in episodes:
        counts[STEPS_WITHOUT_OUTCOME] += episode.rows - episode.steps
        counts[UNSEEN_TRUNCATIONS] += episode.is_unseen
        counts[EPISODES_WITHOUT_STEP] += not episode.rows
    return {note: count for note, count in counts.items() if count}


def shard_bounds(rows: Iterable[int]) -> tuple[int, ...]:
    """Return the index of the first episode of every shard of about 100,000 steps, and the number of episodes.

    Example:
        >>> shard_bounds([60_000, 60_000, 10])
        (0, 2, 3)
    """
    bounds, steps, count = [0], 0, 0
    for count, length in enumerate(rows, 1):
        if steps >= STEPS_PER_SHARD:
            bounds.append(count - 1)
            steps = 0
        steps += length
    return (*bounds, count)


class EpisodeTable(Sequence[RowEpisode]):
    """Episodes, each constructed when it is indexed.

    Args:
        rows: [n] rows of each.
        number: [n], or one for all; the other arguments too, see ``RowEpisode``.

    Example:
        >>> table = EpisodeTable([3, 5], number=[0, 1], terminated=True, truncated=False, final_recorded=False)
        >>> table[1].rows, table[1].number, table[1].terminated
        (5, 1, True)
    """

    def __init__(
        self,
        rows: ArrayLike,
        *,
        number: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        final_recorded: ArrayLike,
        from_reset: ArrayLike = True,
        cut: ArrayLike = False,
    ) -> None:
        found = np.asarray(rows, np.int64)
        columns = (number, found, terminated, truncated, final_recorded, from_reset, cut)
        self._table = np.empty(len(found), _COLUMNS)
        for name, column in zip(_COLUMNS.names or (), columns, strict=True):
            self._table[name] = column

    @property
    def rows(self) -> NDArray[np.int64]:
        """[n] rows of each."""
        column: NDArray[np.int64] = self._table["rows"]
        return column

    def but(self, **columns: ArrayLike) -> "EpisodeTable":
        """Return the same episodes, with some columns replaced."""
        kept = {name: self._table[name] for name in _COLUMNS.names or () if name != "rows"}
        return EpisodeTable(self.rows, **{**kept, **columns})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpisodeTable) and np.array_equal(self._table, other._table)

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, place: int, /) -> RowEpisode: ...
    @overload
    def __getitem__(self, place: slice, /) -> list[RowEpisode]: ...
    def __getitem__(self, place: int | slice, /) -> RowEpisode | list[RowEpisode]:
        if isinstance(place, slice):
            return [RowEpisode(*row) for row in self._table[place].tolist()]
        return RowEpisode(*self._table[place].tolist())

    def __iter__(self) -> Iterator[RowEpisode]:
        for start in range(0, len(self), _BATCH):
            yield from self[start : start + _BATCH]


class RowStream:
    """Reader of rows in ascending order, also across calls. Damage of the file is raised by every later call, too.

    Args:
        batches: columns by name, all of the same length.
        first: number of the first row in them.
    """

    def __init__(self, path: Path, batches: Generator[Batch, None, None], first: int = 0) -> None:
        self.path = path
        self._batches = batches
        self._batches_held: list[Batch] = []
        self._start = self._stop = first
        self._damage: CorruptShardError | None = None

    @property
    def held(self) -> int:
        """Rows in memory."""
        return self._stop - self._start

    def skip_to(self, row: int) -> None:
        """Skip the rows before one, also those not read yet."""
        self._forget(row)
        while self._stop <= row and self._take():
            self._forget(row)

    def rows(self, column: str, start: int, stop: int) -> NDArray[Any]:
        """Return rows [stop - start, ...] of a column, and drop those before; raises CorruptShardError past the end."""
        self.skip_to(start)
        return self.peek(column, start, stop)

    def peek(self, column: str, start: int, stop: int) -> NDArray[Any]:
        """Read like ``rows``, but keep earlier rows: they may be read from other columns."""
        while self._stop < stop:
            if not self._take():
                raise CorruptShardError(f"{self.path}: expected {stop:,} rows, found {self._stop:,}")
        pieces, at = [], self._start
        for batch in self._batches_held:
            pieces.append(batch[column][max(0, start - at) : max(0, stop - at)])
            at += _length(batch)
        return np.concatenate(pieces)

    def _take(self) -> bool:
        """Take the next batch; returns whether there was one."""
        if self._damage is not None:
            raise self._damage
        try:
            batch = next(self._batches, None)
        except CorruptShardError as exc:
            self._damage = exc
            raise
        if batch is not None:
            self._batches_held.append(batch)
            self._stop += _length(batch)
        return batch is not None

    def _forget(self, row: int) -> None:
        while self._batches_held and self._start + _length(self._batches_held[0]) <= row:
            self._start += _length(self._batches_held.pop(0))

    def close(self) -> None:
        """Close the file that the batches are read from."""
        self._batches.close()

    def finish(self) -> None:
        """Read the rest to verify it."""
        while self._take():
            self._forget(self._stop)


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values())))
