"""Plan of a Dopamine run: the position of every episode in its files, from the small arrays alone.

Dopamine logs a ring of C rows each time it is almost full. Rows are counted from the start of the run: the file with
add_count A holds the rows [A - C, A), row a in slot a mod C, and rows that the file before it does not hold are *new*
in it. A regular file has A mod C = C - 1, so slot C - 1 holds its oldest row, the successor of the last row of the file
before; in the first file nothing was ever written there.

Three rows of zeros precede every episode (one less than the stack of frames that the agent saw). Terminal rows mark
where episodes end. The plan cuts the run into spans: an episode and the zero rows after it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceNotFoundError
from rlx.formats.common.npy import read_npy
from rlx.formats.common.skipping import skippable
from rlx.formats.dopamine import (
    ADD_COUNT,
    EPISODE_ENDS,
    INVALID_RANGE,
    OBSERVATION,
    REWARD,
    SMALL_ARRAYS,
    SMALL_DTYPES,
    TERMINAL,
    file_name,
)

_SUFFIXED = re.compile(r"(.+)_ckpt\.(\d{1,9})\.gz")
_MAX_ADD_COUNT = 1 << 48


@dataclass(frozen=True, slots=True)
class RingFile:
    """The small arrays of one suffix; [C] each."""

    suffix: int
    add_count: int
    padding: int
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    terminal: NDArray[np.uint8]

    @property
    def capacity(self) -> int:
        """Rows of the ring."""
        return len(self.terminal)

    def slots(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the slots of the rows [start, stop) of the run."""
        return np.arange(start, stop) % self.capacity


def find_suffixes(folder: Path) -> list[int]:
    """Return the suffixes of the arrays in a folder, ascending; raises SourceNotFoundError if it has no array."""
    suffixes = {suffix for array, suffix in _arrays(folder) if array in (*SMALL_ARRAYS, OBSERVATION)}
    if not suffixes:
        raise SourceNotFoundError(f"{folder} has no file named like {file_name(ADD_COUNT, 0)}")
    return sorted(suffixes)


def find_arrays(folder: Path, suffix: int) -> list[str]:
    """Return the names of all arrays of a suffix in a folder, sorted."""
    return sorted(array for array, found in _arrays(folder) if found == suffix)


def _arrays(folder: Path) -> Iterator[tuple[str, int]]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _SUFFIXED.fullmatch(path.name):
            yield match[1], int(match[2])


def load_ring_file(folder: Path, suffix: int) -> RingFile:
    """Return the small arrays of one suffix; raises CorruptShardError if they contradict each other."""
    paths = {name: folder / file_name(name, suffix) for name in SMALL_ARRAYS}
    arrays = {name: read_npy(path) for name, path in paths.items()}
    rows = len(arrays[TERMINAL]) if arrays[TERMINAL].ndim else 0
    # The terminals come first: they determine the expected number of rows.
    for name, dtype in reversed([*SMALL_DTYPES.items()]):
        array = arrays[name]
        if array.dtype != dtype or array.shape != (rows,) or not rows:
            raise CorruptShardError(
                f"{paths[name]}: expected {dtype}[{rows or 'C'}], found {array.dtype}{list(array.shape)}"
            )
    add_count = _add_count(paths[ADD_COUNT], arrays[ADD_COUNT])
    padding = _padding(paths[INVALID_RANGE], arrays[INVALID_RANGE], add_count, rows)
    action, reward, terminal = (arrays[name] for name in SMALL_DTYPES)
    return RingFile(suffix, add_count, padding, action, reward, terminal)


def _add_count(path: Path, array: NDArray[Any]) -> int:
    if array.shape != () or array.dtype.kind not in "iu" or not 0 <= int(array) < _MAX_ADD_COUNT:
        raise CorruptShardError(
            f"{path}: expected one number of rows, found {array.dtype}{list(array.shape)} {array!r:.40}"
        )
    return int(array)


def _padding(path: Path, array: NDArray[Any], add_count: int, capacity: int) -> int:
    """Return the zero rows before an episode: the range is from a horizon before the cursor to a stack after it."""
    if array.ndim == 1 and array.dtype.kind in "iu" and 2 <= len(array) <= 1000:
        horizon = (add_count - int(array[0])) % capacity
        if np.array_equal(array, (add_count - horizon + np.arange(len(array))) % capacity) and horizon < len(array):
            return len(array) - horizon - 1
    raise CorruptShardError(f"{path}: expected consecutive slots around {add_count % capacity}, found {array!r:.80}")


@dataclass(frozen=True, slots=True)
class Span:
    """An episode as the small arrays describe it, and the zero rows after it: rows [start, end) of the run.

    Args:
        number: of the episode; the numbers up to the next span's are reserved for further episodes found in it.
        start: first row. At the very start of the run and after a gap, zero rows may come first.
        stop: one past the last row of the episode.
        end: one past the zero rows after it.
        is_terminal: whether the last row ended the episode; if not, the files end there, or have a gap.
        after_gap: whether the files lack the rows before ``start``.
    """

    number: int
    start: int
    stop: int
    end: int
    is_terminal: bool
    after_gap: bool


_SPAN = np.dtype([(name, "?" if name in ("is_terminal", "after_gap") else "i8") for name in Span.__dataclass_fields__])


@dataclass(frozen=True, slots=True)
class Plan:
    """Which rows of the run are new in which file, and the spans of episodes in them.

    Args:
        capacity: rows of the ring, C.
        padding: zero rows before every episode.
        suffixes: [n] of the files, ascending.
        add_counts: [n] rows of the run when each file was written.
        new_from: [n] first row that is new in each file; new are [new_from, add_count).
        is_clipped: whether every reward is in [-1, 1].
        can_truncate: whether an episode may end without a terminal row.
        table: [m] the spans, with the fields of ``Span``.
        zeros: rows inside spans that may be padding by the small arrays; empty unless ``can_truncate``.
    """

    capacity: int
    padding: int
    suffixes: NDArray[np.int64]
    add_counts: NDArray[np.int64]
    new_from: NDArray[np.int64]
    is_clipped: bool
    can_truncate: bool
    table: NDArray[np.void]
    zeros: NDArray[np.int64]

    def file_of(self, row: int) -> int:
        """Return the position in ``suffixes`` of the file in which a row is new."""
        return int(np.searchsorted(self.add_counts, row, side="right"))

    def position(self, suffix: int) -> int:
        """Return the position of a suffix in ``suffixes``; raises SourceNotFoundError for an unknown one."""
        found = np.flatnonzero(self.suffixes == suffix)
        if not len(found):
            raise SourceNotFoundError(f"no shard {suffix}; expected one of {self.suffixes.tolist()}")
        return int(found[0])

    def spans(self, position: int) -> list[Span]:
        """Return the spans whose first row is new in a file."""
        low, high = np.searchsorted(self.table["start"], [self.new_from[position], self.add_counts[position]])
        return [Span(*row) for row in self.table[low:high].tolist()]

    def nothing_new(self, position: int) -> dict[str, int]:
        """Return the number of slots of a file without new rows, by reason."""
        written = int(min(self.add_counts[position], self.capacity))
        new = int(self.add_counts[position] - self.new_from[position])
        return {"uninitialised": self.capacity - written, "stale": written - new}

    def gaps(self) -> list[int]:
        """Return the suffixes of the files before which a lap of the ring is lost: not written, or its file missing."""
        lost: list[int] = self.suffixes[self.new_from > np.r_[0, self.add_counts[:-1]]].tolist()
        return lost

    def missing(self) -> list[int]:
        """Return the suffixes before the last one that have no file."""
        return sorted(set(range(int(self.suffixes[-1]))) - set(self.suffixes.tolist()))


def make_plan(folder: Path) -> Plan:
    """Return the plan of the run in ``folder``; files whose small arrays are skipped count as missing.

    Raises:
        SourceNotFoundError: a small array is missing.
        CorruptShardError: one is damaged or contradicts another.
    """
    suffixes = find_suffixes(folder)
    builder = _Builder(folder, can_truncate=any(folder.glob(file_name(EPISODE_ENDS, "*"))))
    for suffix in suffixes:
        with skippable(f"shard {suffix}"):
            builder.add(load_ring_file(folder, suffix), is_last=suffix == suffixes[-1])
    if builder.is_empty:
        raise CorruptShardError(f"{folder}: expected small arrays that can be read, found none")
    return builder.plan()


class _Builder:
    """Plan that grows file by file; only the last file's small arrays stay in memory."""

    def __init__(self, folder: Path, *, can_truncate: bool) -> None:
        self._folder = folder
        self._can_truncate = can_truncate
        self._previous: RingFile | None = None
        self._files: list[tuple[int, int, int]] = []  # suffix, add_count, new_from
        self._terminals: list[NDArray[np.int64]] = []
        self._zeros: list[NDArray[np.int64]] = []
        self._padding_due = np.empty(0, np.int64)
        self._clipped = True

    def add(self, file: RingFile, *, is_last: bool) -> None:
        """Take the next file."""
        previous = self._previous
        if previous is not None:
            self._check_alike(previous, file)
        stop = self._true_add_count(file, is_last=is_last)
        reached = self._files[-1][1] if self._files else 0
        start = max(reached, stop - file.capacity, 0)
        if start > reached:
            self._padding_due = np.empty(0, np.int64)
        self._take_rows(file, start, stop)
        self._files.append((file.suffix, stop, start))
        self._previous = file

    @property
    def is_empty(self) -> bool:
        """Whether no file was taken."""
        return self._previous is None

    def plan(self) -> Plan:
        """Return the plan of all the files taken."""
        assert self._previous is not None
        suffixes, add_counts, new_from = np.array(self._files, np.int64).T
        terminals = np.concatenate(self._terminals)
        zeros = np.concatenate(self._zeros)
        begins = np.r_[True, new_from[1:] > add_counts[:-1]]
        bounds = zip(new_from[begins], add_counts[np.r_[begins[1:], True]], strict=True)
        padding = self._previous.padding
        spans = np.concatenate([_spans(int(start), int(stop), terminals, padding) for start, stop in bounds])
        candidates = np.searchsorted(zeros, spans["stop"]) - np.searchsorted(zeros, spans["start"])
        spans["number"] = np.arange(len(spans)) + np.r_[0, np.cumsum(candidates)[:-1]][: len(spans)]
        return Plan(
            self._previous.capacity,
            padding,
            suffixes,
            add_counts,
            new_from,
            self._clipped,
            self._can_truncate,
            spans,
            zeros,
        )

    def _check_alike(self, previous: RingFile, file: RingFile) -> None:
        if file.capacity != previous.capacity:
            expected = f"expected {previous.capacity:,} rows as in the file before"
            raise self._corrupt(TERMINAL, file, f"{expected}, found {file.capacity:,}")
        if file.padding != previous.padding:
            expected = f"expected a stack of {previous.padding + 1}"
            raise self._corrupt(INVALID_RANGE, file, f"{expected}, found {file.padding + 1}")

    def _true_add_count(self, file: RingFile, *, is_last: bool) -> int:
        """Return the rows written to the run; the buffer logged at the end of training states only its cursor."""
        found = f"found {file.add_count:,}"
        if file.suffix == 0 or file.add_count >= file.capacity:
            reached = self._files[-1][1] if self._files else 0
            if file.add_count <= reached:
                raise self._corrupt(ADD_COUNT, file, f"expected more than {reached:,} rows, {found}")
            return file.add_count
        if not is_last:
            raise self._corrupt(ADD_COUNT, file, f"expected at least {file.capacity:,} rows, {found}")
        if self._previous is None:
            # Alone, it is a full ring in an unknown lap, but not the first.
            return file.add_count + (file.suffix + 1) * file.capacity
        reached = self._files[-1][1]
        stop = reached + (file.add_count - reached) % file.capacity
        # After a lost lap, none of the previous file's rows would remain.
        is_next_lap = self._files[-1][0] == file.suffix - 1 and _same_rows(
            self._previous, file, max(stop - file.capacity, 0), reached
        )
        if is_next_lap:
            return stop
        # The number of lost laps does not matter; that the rows do not follow the previous file's does.
        return stop + file.capacity if stop > reached else stop + 2 * file.capacity

    def _take_rows(self, file: RingFile, start: int, stop: int) -> None:
        slots = file.slots(start, stop)
        action, reward, terminal = file.action[slots], file.reward[slots], file.terminal[slots]
        if len(terminal) and terminal.max() > 1:
            raise self._corrupt(TERMINAL, file, f"expected 0 or 1, found {terminal.max()}")
        if not np.isfinite(reward).all():
            raise self._corrupt(REWARD, file, "expected finite numbers, found others")
        is_zero = (action == 0) & (reward == 0) & (terminal == 0)
        terminals = start + np.flatnonzero(terminal)
        padding = np.arange(1, file.padding + 1)
        lead = np.arange(file.padding if start == 0 else 0)
        due = np.concatenate([lead, self._padding_due, (terminals[:, None] + padding).ravel()])
        here = due[due < stop]
        bad = here[~is_zero[here - start]]
        if len(bad):
            slot = bad[0] % file.capacity
            raise self._corrupt(TERMINAL, file, f"expected zero padding in slot {slot}, found a step")
        is_zero[here - start] = False  # known padding need not be searched
        self._padding_due = due[due >= stop]
        self._terminals.append(terminals)
        self._zeros.append(start + np.flatnonzero(is_zero) if self._can_truncate else np.empty(0, np.int64))
        self._clipped &= bool((np.abs(reward) <= 1).all())

    def _corrupt(self, array: str, file: RingFile, what: str) -> CorruptShardError:
        return CorruptShardError(f"{self._folder / file_name(array, file.suffix)} is corrupt: {what}")


def _same_rows(one: RingFile, other: RingFile, start: int, stop: int) -> bool:
    slots = one.slots(start, stop)
    return all(
        a[slots].tobytes() == b[slots].tobytes()
        for a, b in ((one.action, other.action), (one.reward, other.reward), (one.terminal, other.terminal))
    )


def _spans(start: int, stop: int, terminals: NDArray[np.int64], padding: int) -> NDArray[np.void]:
    """Return the spans in the rows [start, stop), which are all in the files; not yet numbered."""
    last = terminals[(terminals >= start) & (terminals < stop)]
    found = np.zeros(len(last) + 1, _SPAN)
    found["start"] = np.r_[start, np.minimum(last + 1 + padding, stop)]
    found["stop"], found["end"] = np.r_[last + 1, stop], np.r_[found["start"][1:], stop]
    found["is_terminal"][:-1] = True
    found["after_gap"][0] = start > 0
    return found[found["start"] < found["end"]]
