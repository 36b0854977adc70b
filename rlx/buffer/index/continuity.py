"""Evidence that a step continues the previous one: its observation is that step's next observation.

Ids do not identify sources: every collector and every dataset numbers its trajectories from 0. So a step continues a
trajectory only if its id is the trajectory's and nothing speaks against it:

- its observation is, bit by bit or as a number (NaN equals NaN), the ``next`` one of the step before;
- it was read from the row after that step's (``index``, where steps come from a dataset or another buffer);
- it is not the first step of an episode (``is_init``).

Steps without ``next`` observations say nothing of the first kind; then the id is trusted.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.index.ring import run_starts
from rlx.buffer.protocol import Rows
from rlx.errors import SchemaMismatchError

Flags = NDArray[np.bool_]
Path = tuple[str, ...]
Leaves = Mapping[Path, torch.Tensor]
Words = NDArray[np.uint64]
Column = NDArray[Any]

INDEX: Path = ("index",)
ORIGIN: Path = ("_origin",)
IS_INIT: Path = ("is_init",)
UNKNOWN = 0  # the digest of a step that has no evidence

# Fields that a step may hold both now and next, and that may differ between consecutive steps.
_FLAGS = ("done", "terminated", "truncated", "is_init")
_VALUES = ("state_value", "action_value", "chosen_action_value")
_AT_ONCE = 256  # steps whose observations are read at a time
_NOT_OBSERVED = frozenset((*_FLAGS, *_VALUES, "reward", "action", "index"))
_MIX = np.uint64(0x9E3779B97F4A7C15)
_29, _31, _32 = np.uint64(29), np.uint64(31), np.uint64(32)


def observed(keys: Collection[Path]) -> list[Path]:
    """Return the leaves that a step has now and under ``next``, whose equality says that two steps follow each other.

    Example:
        >>> observed([("pixels",), ("next", "pixels"), ("next", "reward"), ("done",), ("next", "done")])
        [('pixels',)]
    """
    return [key for key in keys if key[0] != "next" and ("next", *key) in keys and key[-1] not in _NOT_OBSERVED]


class Links:
    """Return how steps [n] continue the steps before and after them.

    Args:
        pairs: leaves [n, ...], now and next, of every observation.
        lane: [n] the lane of each step; steps of a lane come in order of time.
        origin: [n] the row that each was read from; -1 without.
        is_init: [n] whether an episode starts with it; None if not recorded.

    Attributes:
        lane: [n] the lane of each step.
        fresh: [n] whether a step continues nothing.
        origin: [n] the row that each was read from; -1 without.
        following: [n] the row that a step that follows each was read from; -1 without.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
        lane: Rows,
        origin: Rows | None = None,
        is_init: Flags | None = None,
    ) -> None:
        self._pairs = pairs
        self._known = tuple(np.full(len(lane), UNKNOWN, np.int64) for _ in range(2))
        self.lane = lane
        self.origin: Rows = np.full(len(lane), -1, np.int64) if origin is None else origin
        self.following: Rows = np.where(self.origin >= 0, self.origin + 1, -1)
        self.resets_known = is_init is not None
        self.fresh: Flags = np.zeros(len(lane), bool) if is_init is None else is_init

    @classmethod
    def of(cls, leaves: Leaves, lane: Rows) -> "Links":
        """Return the links of leaves [n, ...] of steps in these lanes."""
        pairs = [(leaves[key], leaves["next", *key]) for key in observed(leaves)]
        alike = [(now, after) for now, after in pairs if (now.dtype, now.shape) == (after.dtype, after.shape)]
        origin = leaves.get(ORIGIN, leaves.get(INDEX))
        if origin is not None and (origin.is_floating_point() or origin.numel() != len(lane)):
            origin = None
        is_init = leaves.get(IS_INIT)
        if is_init is not None and (is_init.dtype != torch.bool or is_init.numel() != len(lane)):
            is_init = None
        return cls(
            alike,
            lane,
            None if origin is None else origin.reshape(-1).numpy(force=True).astype(np.int64),
            None if is_init is None else is_init.reshape(-1).numpy(force=True),
        )

    @cached_property
    def first(self) -> Rows:
        """[lanes] the first step of each lane."""
        return run_starts(self.lane)

    @cached_property
    def last(self) -> Rows:
        """[lanes] the last step of each lane."""
        return np.append(self.first[1:], len(self.lane)) - 1

    @cached_property
    def jumps(self) -> Flags:
        """[n] whether a step was not read from the row after the previous step's of its lane."""
        return self._unlike(self.origin[1:] != self.following[:-1])

    @cached_property
    def breaks(self) -> Flags:
        """[n] whether a step does not continue the step before it in its lane; False of the first of a lane."""
        breaks = self.jumps | self._unlike(self.fresh[1:])
        if len(breaks) > 1:
            for now, after in self._pairs:
                breaks |= self._unlike(_differ(now[1:], after[:-1]))
        return breaks

    def _unlike(self, differ: Flags) -> Flags:
        """Return [n] of [n - 1] answers on steps and the ones before: those where both are in one lane."""
        result = np.zeros(len(self.lane), bool)
        result[1:] = differ & (self.lane[1:] == self.lane[:-1])
        return result

    def begins(self, at: Rows) -> Rows:
        """Return [m] digests of the observations that these steps start from."""
        return self._digests(at, 0, self.origin)

    def expects(self, at: Rows) -> Rows:
        """Return [m] digests of the observations that the following steps must start from."""
        return self._digests(at, 1, self.following)

    def settle(self, begins: Rows, expects: Rows) -> None:
        """Compute ``begins`` [m] and ``expects`` [k] of these steps together, in half of the time."""
        if not self._pairs or any(now.device.type != "cpu" for now, _ in self._pairs):
            return
        both = [np.concatenate([_picked(now, begins), _picked(after, expects)]) for now, after in self._pairs]
        found = digests(both, np.concatenate([self.origin[begins], self.following[expects]]))
        self._known[0][begins], self._known[1][expects] = found[: len(begins)], found[len(begins) :]

    def _digests(self, at: Rows, side: int, origin: Rows) -> Rows:
        known = self._known[side]  # several indices ask for the same ones
        new = at[known[at] == UNKNOWN]
        if len(new):
            known[new] = digests([_picked(pair[side], new) for pair in self._pairs], origin[new])
        return known[at]


def _picked(leaf: torch.Tensor, at: Rows) -> Column:
    """Return [m, ...] these of the rows of a leaf."""
    if leaf.device.type != "cpu" or leaf.dtype == torch.bfloat16:  # which numpy does not have: converted
        return _column(leaf.index_select(0, torch.from_numpy(at).to(leaf.device)))
    return _column(leaf)[at]


def digests(observations: Sequence[Column], origin: Rows) -> Rows:
    """Return [m] 64 bits of the observations [m, ...] and origins [m] of steps; ``UNKNOWN`` where there are neither.

    Equal numbers have equal digests, NaN and -0.0 included.
    """
    result = np.zeros(len(origin), np.uint64)
    if (read := origin >= 0).any():
        result[read] = (origin[read].astype(np.uint64) + np.uint64(1)) * _MIX
    for rows in observations:
        result = (result ^ (result >> _31)) * _MIX + _mixed(_words(rows))
    if observations:
        result[result == UNKNOWN] = 1
    found: Rows = result.view(np.int64)
    return found


def _column(leaf: torch.Tensor) -> Column:
    if leaf.is_complex():
        leaf = torch.view_as_real(leaf)
    array: Column = (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy(force=True)
    return array


def _words(rows: Column) -> Words:
    """Return [m, k] the bytes of rows as 64-bit words, zero-padded; all NaNs are equal, and both zeros."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), rows.dtype.type(np.nan), rows + rows.dtype.type(0))
    raw = np.ascontiguousarray(rows).reshape(len(rows), math.prod(rows.shape[1:])).view(np.uint8)
    width = raw.shape[1]
    if width % 8:
        unpadded, raw = raw, np.zeros((len(raw), width + -width % 8), np.uint8)
        raw[:, :width] = unpadded
    return raw.view(np.uint64)


def _mixed(words: Words) -> Words:
    """Return [m] a weighted sum of words [m, k], after what differs in their high bits was spread over the low ones."""
    spread = words ^ (words >> _32)
    spread *= _MIX
    spread ^= spread >> _29
    spread *= _weights(words.shape[1])
    total: Words = spread.sum(axis=1, dtype=np.uint64)
    return total


@lru_cache(maxsize=64)
def _weights(count: int) -> Words:
    """Return [count] odd numbers, always the same: digests are in checkpoints."""
    weights: Words = np.random.PCG64(count).random_raw(count) | np.uint64(1)
    return weights


def _differ(now: torch.Tensor, after: torch.Tensor) -> Flags:
    """Return [n] whether rows [n, ...] differ as numbers, NaN equal to NaN."""
    if now.device.type != "cpu":
        return _values_differ(now, after)
    differ = _bits_differ(now, after)
    if differ.any() and (now.is_floating_point() or now.is_complex()):
        at = torch.from_numpy(np.flatnonzero(differ))
        differ[differ] = _values_differ(now[at], after[at])
    return differ


def _bits_differ(now: torch.Tensor, after: torch.Tensor) -> Flags:
    one, other = bytes_of(now), bytes_of(after)
    width = next(width for width in (8, 4, 2, 1) if one.shape[1] % width == 0)
    wide = np.dtype(f"u{width}")
    differ: Flags = (one.view(wide) != other.view(wide)).any(axis=1) if one.size else np.zeros(len(one), bool)
    return differ


def bytes_of(rows: torch.Tensor) -> NDArray[np.uint8]:
    """Return [m, bytes] the bytes of rows."""
    flat = rows.detach().cpu().contiguous().reshape(len(rows), math.prod(rows.shape[1:]))
    raw: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return raw


def _values_differ(now: torch.Tensor, after: torch.Tensor) -> Flags:
    differ = (now != after) & ~((now != now) & (after != after))
    result: Flags = differ.reshape(len(now), -1).any(dim=1).numpy(force=True)
    return result


class StoredLinks:
    """Return the ``Links`` of steps that are stored already.

    Args:
        read: gives the observations at rows, now or (True) next.
        rows: [n] the steps.
        fresh: [n] whether a step continues nothing.
        breaks: [n] whether it does not continue the step before it in its lane.
    """

    resets_known = False

    def __init__(
        self, read: Callable[[Rows, bool], Sequence[torch.Tensor]], rows: Rows, fresh: Flags, breaks: Flags
    ) -> None:
        self._read = read
        self._rows = rows
        self.fresh = fresh
        self.breaks = breaks

    def begins(self, at: Rows) -> Rows:
        """Return [m] digests of the observations that these steps start from."""
        return self._digests(at, after=False)

    def expects(self, at: Rows) -> Rows:
        """Return [m] digests of the observations that the following steps must start from."""
        return self._digests(at, after=True)

    def _digests(self, at: Rows, *, after: bool) -> Rows:
        found = [np.empty(0, np.int64)]
        for first in range(0, len(at), _AT_ONCE):
            rows = self._rows[at[first : first + _AT_ONCE]]
            observations = [_column(leaf) for leaf in self._read(rows, after)]
            found.append(digests(observations, np.full(len(rows), -1)))
        return np.concatenate(found)


_BREAK, _FRESH = np.uint8(1), np.uint8(2)
_NOWHERE = -2  # a row that no step was read from


class Seams:
    """A byte per row: whether its step continues the row before it in its lane, or (fresh) no step at all."""

    def __init__(self, size: int, lanes: int) -> None:
        self._size = size
        self._lanes = lanes
        # The start that the next step of each lane needs to continue the last one.
        self._expects = np.full(lanes, UNKNOWN, np.int64)
        self._origin = np.full(lanes, -1, np.int64)

    @cached_property
    def _marks(self) -> NDArray[np.uint8]:
        # Pages that nothing was marked in take no memory; a storage that was never written to, none at all.
        return np.zeros(self._size * self._lanes, np.uint8)

    def note(self, rows: Rows, links: Links) -> None:
        """Mark new steps [n] at rows, lane after lane, each lane in order of time."""
        lane = links.lane
        first, last = links.first, links.last
        fresh, breaks = links.fresh | links.jumps, links.breaks.copy()
        breaks[first] |= links.begins(first) != self._expects[lane[first]]
        fresh[first] |= links.origin[first] != self._origin[lane[first]]
        self._marks[rows] = breaks * _BREAK | fresh * _FRESH
        self._expects[lane[last]] = links.expects(last)
        self._origin[lane[last]] = links.following[last]

    def replaced(self, rows: Rows, tail: Rows) -> None:
        """Mark steps that replace others: they neither continue nor precede any other step.

        Args:
            rows: [n] their rows.
            tail: [lanes] time of the next step of each lane.
        """
        lane, place = np.divmod(rows, self._size)
        after = (place + 1) % self._size
        self._marks[rows] = self._marks[lane * self._size + after] = _BREAK | _FRESH
        # The next step of a lane overwrites the mark after its last step.
        self._origin[lane[after == tail[lane] % self._size]] = _NOWHERE

    def links(self, rows: Rows, read: Callable[[Rows, bool], Sequence[torch.Tensor]]) -> StoredLinks:
        """Return how stored steps [n] continue those before and after them; ``read`` gives their observations."""
        marks = self._marks[rows]
        return StoredLinks(read, rows, (marks & _FRESH) > 0, marks > 0)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the marked rows [n, 2] with their marks, and what each lane expects [lanes, 2]; int64."""
        rows = np.flatnonzero(self._marks)
        return {
            "marked": torch.from_numpy(np.stack([rows, self._marks[rows].astype(np.int64)], axis=1)),
            "lanes": torch.from_numpy(np.stack([self._expects, self._origin], axis=1)),
        }

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "_marks"}
        # No tensor: torch sends its memory, which is gone before a process that is spawned opens it.
        return state | {"marked": self.state_dict()["marked"].numpy()} if "_marks" in self.__dict__ else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        marked = state.pop("marked", None)
        self.__dict__.update(state)
        if marked is not None:
            rows, marks = marked.T
            self._marks[rows] = marks

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        marked, lanes = state["marked"].numpy(), state["lanes"].numpy()
        if lanes.shape != (len(self._expects), 2) or marked.ndim != 2 or marked.shape[1:] != (2,):
            raise SchemaMismatchError(f"checkpoint: seams of {len(lanes)} lanes, expected {len(self._expects)}")
        rows, marks = marked.T
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self._marks):
            raise SchemaMismatchError(f"checkpoint: seams at rows up to {rows.max()}, expected {len(self._marks):,}")
        self._marks[rows] = marks
        self._expects, self._origin = lanes.T.copy()
