"""Checks of what follows what: last steps unlike all others, and stretches of steps that are stored twice."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rlx.checks.check import Finding, Severity, Tally, Window
from rlx.checks.values import is_picture
from rlx.schema import Role, Schema

_MIN_ENDS = 5
_MAX_ENDS = 4096
_FACTOR = 1.5
# Steps of a block: shorter ones may repeat by chance.
_BLOCK = 16
_MAX_BLOCKS = 2**22
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
Hashes = NDArray[np.uint64]


class LastSteps:
    """Last steps that change a vector observation more than any other step: the next episode's first observation.

    That is so where the flag of an episode's end is stored a step late. The last step is that with the last observation
    that was recorded: if the final one was not, the one before.
    """

    def __init__(self, schema: Schema) -> None:
        self._largest: dict[str, NDArray[np.float64]] = {
            name: np.zeros(schema[name].shape)
            for name in schema.names(Role.OBSERVATION)
            if schema[name].dtype.startswith("float") and len(schema[name].shape) == 1 and schema[name].row_bytes
        }
        self._ends: dict[str, list[tuple[NDArray[np.float64], int, int]]] = {name: [] for name in self._largest}
        # The last rows of a trajectory that continues: trajectory, position and whether they are recorded; and values.
        self._open = np.empty((3, 0), np.int64)
        self._rows: dict[str, NDArray[np.generic]] = {}

    def see(self, window: Window) -> None:
        """Process the next steps."""
        now = np.stack([window.row_trajectory, window.row_position, window.recorded])
        trajectory, position, recorded = numbered = np.concatenate([self._open, now], axis=1)
        follows = (trajectory[1:] == trajectory[:-1]) & (recorded[1:] > 0)
        # Whether the step after each one does not lead to a recorded row, so that it is the last; unknown at the end.
        is_last = np.append(~follows[1:], not window.block.is_open)[: len(follows)]
        kept = slice(max(0, len(trajectory) - 2), None) if window.block.is_open else slice(0, 0)
        if window.block.is_open:
            follows[-1:] = False
        self._open = numbered[:, kept][:, trajectory[kept] == trajectory[-1:]]
        for name, largest in self._largest.items():
            rows = np.concatenate([self._rows.get(name, window[name][:0]), window[name]])
            self._rows[name] = rows[len(rows) - self._open.shape[1] :].copy()
            change = np.abs(np.diff(rows.astype(np.float64), axis=0))
            valid = follows & np.isfinite(change).all(axis=1)
            if len(inside := change[valid & ~is_last]):
                self._largest[name] = np.maximum(largest, inside.max(axis=0))
            for row in np.flatnonzero(valid & is_last)[: _MAX_ENDS - len(self._ends[name])].tolist():
                self._ends[name].append((change[row], int(trajectory[row]), int(position[row])))

    def findings(self) -> Iterator[Finding]:
        """Yield observations that jump at the end of most trajectories."""
        for name, ends in self._ends.items():
            tally, largest = Tally(), self._largest[name]
            for change, trajectory, position in ends:
                if largest.any() and (change > _FACTOR * largest).any():
                    tally.add(np.array([trajectory]), np.array([position]))
            if tally.count >= max(_MIN_ENDS, len(ends) / 2):
                yield Finding(
                    "late-flag",
                    Severity.ERROR,
                    f"{name} changes more in the last step of {tally.count:,} of {len(ends):,} trajectories "
                    "than in any other step",
                    why="the flag of the end is stored a step late: the last step leads to the next episode's start",
                    remedy="move the flags a step back where the data were recorded",
                    field=name,
                    **tally.of(),
                )


class Repeats:
    """Blocks of 16 different steps that are stored again, at another place of an episode.

    An episode may begin as another one does: environments and policies may be deterministic.
    """

    def __init__(self, schema: Schema) -> None:
        self._names = [name for name, field in schema.fields.items() if not field.is_text and field.row_bytes]
        seen = [schema[name] for name in schema.names(Role.OBSERVATION)]
        self._is_rich = any(is_picture(field) or field.dtype.startswith("float") for field in seen)
        # Of each block that begins at a multiple of its length: its first step in the dataset, and in the trajectory.
        self._known: dict[int, tuple[int, int]] = {}
        self._repeated = Tally()
        self._seen = 0
        # The last steps of the window before: hash, trajectory and position.
        self._before = np.empty((3, 0), np.uint64)

    def see(self, window: Window) -> None:
        """Process the next steps."""
        if not self._is_rich:
            return
        now = np.stack([self._steps(window), window.trajectory.astype(np.uint64), window.position.astype(np.uint64)])
        steps, numbers, positions = held = np.concatenate([self._before, now], axis=1)
        first = self._seen - self._before.shape[1]
        self._seen, self._before = self._seen + window.block.steps, held[:, max(0, held.shape[1] - _BLOCK + 1) :]
        if len(steps) < _BLOCK:
            return
        blocks = np.lib.stride_tricks.sliding_window_view(steps, _BLOCK)
        trajectory, position = (column[: len(blocks)].astype(np.int64) for column in (numbers, positions))
        whole = numbers[: len(blocks)] == numbers[_BLOCK - 1 :]
        whole &= (np.diff(np.sort(blocks, axis=1), axis=1) != 0).all(axis=1)
        hashes: Hashes = (blocks * _MULTIPLIER ** np.arange(_BLOCK, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
        for row in np.flatnonzero(whole & (position % _BLOCK == 0))[: _MAX_BLOCKS - len(self._known)].tolist():
            self._known.setdefault(int(hashes[row]), (first + row, int(position[row])))
        found = np.flatnonzero(whole & np.isin(hashes, np.fromiter(self._known, np.uint64, len(self._known))))
        known = np.array([self._known[value] for value in hashes[found].tolist()], np.int64).reshape(-1, 2)
        again = found[(known[:, 0] < first + found) & (known[:, 1] != position[found])]
        self._repeated.add(trajectory[again], position[again])

    def _steps(self, window: Window) -> Hashes:
        """Return [S] a hash of what each step holds."""
        steps = np.zeros(window.block.steps, np.uint64)
        for name in self._names:
            rows = window[name]
            if window.schema[name].role == Role.OBSERVATION:
                rows = rows[np.arange(window.block.steps) + window.trajectory - window.first]
            raw = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
            padded = np.zeros((len(raw), -(-raw.shape[1] // 8) * 8), np.uint8)
            padded[:, : raw.shape[1]] = raw
            words = padded.view(np.uint64)
            weights = np.random.default_rng(len(name)).integers(1, 2**63, words.shape[1], np.uint64) | np.uint64(1)
            steps = steps * _MULTIPLIER + (words * weights).sum(axis=1, dtype=np.uint64)
        return steps ^ (steps >> np.uint64(29))

    def findings(self) -> Iterator[Finding]:
        """Yield steps that repeat others."""
        if self._repeated.count:
            yield Finding(
                "repeated-steps",
                Severity.ERROR,
                f"blocks of {_BLOCK} steps are stored twice, at different places of episodes",
                why="the data were written twice, or episodes overlap: these steps are sampled more often",
                remedy="remove the copies where the data were recorded; `fix` leaves these trajectories out",
                trajectories=self._repeated.numbers(),
                **self._repeated.of(),
            )
