"""What says that a step continues the previous one: declared facts, and observations where these leave it open.

Ids, flags, ``is_init``, lanes and the order of writing decide. They leave one thing open: every collector and every
dataset numbers its trajectories from 0, so a write that brings the id of an open trajectory may be of another source,
as may any step without an id. There the observations decide: a step continues a trajectory if it starts from the next
observation of its last step, and was read from the row after it (``index``, of steps of a dataset).

Keys that the user names decide alone. Where an observation contradicts an id, the id decides, and it is counted.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows
from rlx.errors import SchemaMismatchError

Flags = NDArray[np.bool_]
Path = tuple[str, ...]
Leaves = Mapping[Path, torch.Tensor]
# Leaves of which some may be numpy's, as they came or are to go: it takes longer to make a tensor than to copy a row.
Columns = Mapping[Path, Any]

INDEX: Path = ("index",)
ORIGIN: Path = ("_origin",)
IS_INIT: Path = ("is_init",)
# What TorchRL's environments and rlx's call their observations, with all keys below.
OBSERVATIONS: Collection[Path] = (("observation",), ("pixels",))
_AT_ONCE = 1024  # steps whose observations are read at a time


def observed(keys: Collection[Path], named: Collection[Path] = ()) -> list[Path]:
    """Return the observations among leaves, which a step has now and under ``next``.

    Args:
        named: other observations than those of ``OBSERVATIONS``, or groups of them.

    Example:
        >>> observed([("pixels",), ("next", "pixels"), ("value",), ("next", "value"), ("next", "reward")])
        [('pixels',)]
    """
    known = (*OBSERVATIONS, *named)
    return [key for key in keys if ("next", *key) in keys and any(key[: len(name)] == name for name in known)]


Read = Callable[[Rows, bool], Sequence[torch.Tensor]]


class Evidence:
    """Observations of steps at rows, and the rows that these were read from.

    Args:
        read: returns the observations [n, ...] of the steps at rows [n], now or (True) next.
        origin: [rows] the row of a dataset, or of another buffer, that each step was read from; -1 without.
        has_observations: whether ``read`` returns any.
        shared: returns [n] whether steps at rows [n] are known to start where those before [n] led to, unread.
    """

    def __init__(
        self,
        read: Read,
        origin: Rows | None = None,
        *,
        has_observations: bool = True,
        shared: Callable[[Rows, Rows], Flags] | None = None,
    ) -> None:
        self._read = read
        self._origin = origin
        self.has_observations = has_observations
        self._shared = shared

    def alike(self, before: Rows, rows: Rows) -> Flags:
        """Return [n] whether each step at ``rows`` starts from the next observation of the one at ``before``."""
        alike = np.zeros(len(rows), bool) if self._shared is None else self._shared(before, rows)
        unread = np.flatnonzero(~alike)
        alike[unread] = True
        for first in range(0, len(unread), _AT_ONCE):
            at = unread[first : first + _AT_ONCE]
            for now, after in zip(self._read(rows[at], False), self._read(before[at], True), strict=True):
                alike[at] &= ~_differ(now, after)
        return alike

    def jumps(self, before: Rows, rows: Rows) -> Flags:
        """Return [n] whether each step at ``rows`` was read from another row than the one after that of ``before``."""
        if self._origin is None:
            return np.zeros(len(rows), bool)
        jumps: Flags = self._origin[rows] != _following(self._origin[before])
        return jumps

    def wraps(self, before: Rows, rows: Rows) -> Flags:
        """Return [n] whether each step at ``rows`` is the lowest row that was read, and ``before`` the highest.

        A slice of another buffer jumps so where its ring begins anew.
        """
        if self._origin is None or not len(rows):
            return np.zeros(len(rows), bool)
        read, last = self._origin[rows], self._origin[before]
        wraps: Flags = (read == min(read.min(), last.min())) & (last == max(read.max(), last.max())) & (read >= 0)
        return wraps

    def starts(self, rows: Rows) -> list[bytes]:
        """Return [n] digests of what each step starts from; equal to those of ``ends`` of the step it continues."""
        return self._digests(rows, None if self._origin is None else self._origin[rows], after=False)

    def ends(self, rows: Rows) -> list[bytes]:
        """Return [n] digests of where each step led to."""
        return self._digests(rows, None if self._origin is None else _following(self._origin[rows]), after=True)

    def _digests(self, rows: Rows, origin: Rows | None, *, after: bool) -> list[bytes]:
        digests: list[bytes] = []
        for first in range(0, len(rows), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            columns = [bytes_of(_canonical(leaf)) for leaf in self._read(rows[part], after)]
            if origin is not None:
                columns.append(np.ascontiguousarray(origin[part, None]).view(np.uint8))
            for step in zip(*columns, strict=True):
                digest = hashlib.blake2b(digest_size=16)
                for value in step:
                    digest.update(value)
                digests.append(digest.digest())
        return digests


def taken(column: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return [n, ...] rows of a column, without a copy where they follow each other."""
    count = len(rows)
    if count and rows[-1] - rows[0] == count - 1 and (count < 3 or (np.diff(rows) == 1).all()):
        return column[int(rows[0]) : int(rows[0]) + count]
    return column[torch.from_numpy(rows).to(column.device)]


def _following(origin: Rows) -> Rows:
    return np.where(origin < 0, -1, origin + 1)


def _canonical(rows: torch.Tensor) -> torch.Tensor:
    """Return numbers of which equal ones have equal bits: both zeros, and all NaNs."""
    if rows.is_complex():
        rows = torch.view_as_real(rows)
    return torch.where(rows.isnan(), torch.nan, rows + 0) if rows.is_floating_point() else rows


def bytes_of(rows: torch.Tensor) -> NDArray[np.uint8]:
    """Return [m, bytes] the bytes of rows."""
    flat = rows.detach().cpu().contiguous().reshape(len(rows), math.prod(rows.shape[1:]))
    raw: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return raw


def _differ(now: torch.Tensor, after: torch.Tensor) -> Flags:
    """Return [n] whether rows [n, ...] differ as numbers, NaN equal to NaN."""
    if now.device.type != "cpu":
        return _values_differ(now, after)
    one, other = bytes_of(now), bytes_of(after)
    width = next(width for width in (8, 4, 2, 1) if one.shape[1] % width == 0)
    wide = np.dtype(f"u{width}")
    differ: Flags = (one.view(wide) != other.view(wide)).any(axis=1) if one.size else np.zeros(len(one), bool)
    if differ.any() and (now.is_floating_point() or now.is_complex()):
        at = torch.from_numpy(np.flatnonzero(differ))
        differ[differ] = _values_differ(now[at], after[at])
    return differ


def _values_differ(now: torch.Tensor, after: torch.Tensor) -> Flags:
    differ = (now != after) & ~((now != now) & (after != after))
    result: Flags = differ.reshape(len(now), math.prod(now.shape[1:])).any(dim=1).numpy(force=True)
    return result


@dataclass(frozen=True, slots=True)
class Facts:
    """Declared facts of steps [n], lane by lane in the order of writing.

    Attributes:
        rows: [n] where they are.
        ids: [n] the trajectory of each; None without ids.
        ends: [n] whether nothing follows a step in its trajectory.
        fresh: [n] whether it continues nothing: an episode starts with it, or it replaced another step.
        late: [n] whether it is known not to be the first step of its episode.
        begins: [n] whether a write to its lane begins with it.
        evidence: what decides where the facts leave it open; None if nothing does.
    """

    rows: Rows
    ids: Rows | None
    ends: Flags
    fresh: Flags
    late: Flags
    begins: Flags
    evidence: Evidence | None


_BEGINS, _REPLACED, _STARTS, _CONTINUES = (np.uint8(1 << bit) for bit in range(4))


class Provenance:
    """Facts that steps bring beside their stored keys: a byte per row, and the row of a dataset that it was read from.

    Args:
        rows: how many rows there are.

    Attributes:
        origin: [rows] the row that each step was read from; -1 without. None if no step says so.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.origin: Rows | None = None

    @cached_property
    def _marks(self) -> NDArray[np.uint8]:
        # Pages that nothing was marked in take no memory; a storage that was never written to, none at all.
        return np.zeros(self._rows, np.uint8)

    def note(self, rows: Rows, origin: Rows | None, is_init: Flags | None) -> None:
        """Take note of a write.

        Args:
            rows: [lanes, n] the rows of its steps.
            origin: [lanes, n] the row that each was read from, -1 if from none; None without.
            is_init: [lanes, n] whether each starts an episode; None if they do not say.
        """
        marks = self._marks
        if rows.size == 1 and is_init is None and self.origin is origin is None:
            marks[rows[0, 0]] = _BEGINS
            return
        marks[rows] = 0 if is_init is None else np.where(is_init, _STARTS, _CONTINUES)
        marks[rows[:, 0]] |= _BEGINS
        if origin is not None and self.origin is None and (origin >= 0).any():
            self.origin = np.full(self._rows, -1, np.int64)
        if self.origin is not None:
            self.origin[rows] = -1 if origin is None else origin

    def replace(self, rows: Rows) -> None:
        """Take note of steps that replace others: they neither continue nor precede any other step."""
        self._marks[rows] = _BEGINS | _REPLACED
        if self.origin is not None:
            self.origin[rows] = -1

    def begins(self, rows: Rows) -> Flags:
        """Return [n] whether each step is the first of a write to its lane."""
        return self._marked(rows, _BEGINS)

    def replaced(self, rows: Rows) -> Flags:
        """Return [n] whether each step replaced another one."""
        return self._marked(rows, _REPLACED)

    def starts(self, rows: Rows) -> Flags:
        """Return [n] whether each step was said to start an episode."""
        return self._marked(rows, _STARTS)

    def continues(self, rows: Rows) -> Flags:
        """Return [n] whether each step was said not to start an episode."""
        return self._marked(rows, _CONTINUES)

    def _marked(self, rows: Rows, mark: np.uint8) -> Flags:
        found: Flags = (self._marks[rows] & mark) > 0
        return found

    def state_dict(self, rows: Rows) -> dict[str, torch.Tensor]:
        """Return the marks [n] of stored rows, and the rows that their steps were read from, if any says so."""
        state = {"marks": torch.from_numpy(self._marks[rows])}
        return state if self.origin is None else state | {"origin": torch.from_numpy(self.origin[rows])}

    def load_state_dict(self, state: Mapping[str, Any], rows: Rows) -> None:
        """Restore a state of ``state_dict``, or of an older version: the marked rows [n, 2] and their marks."""
        if "marks" not in state:
            marked, marks = state["marked"].numpy().reshape(-1, 2).T
            if len(marked) and not 0 <= marked.min() <= marked.max() < self._rows:
                raise SchemaMismatchError(f"checkpoint: marks of rows up to {marked.max()}, expected {self._rows:,}")
            self._marks[marked] = marks
            return
        for name in ("marks", "origin"):
            if name in state and len(state[name]) != len(rows):
                raise SchemaMismatchError(f"checkpoint: {name} of {len(state[name]):,} rows, expected {len(rows):,}")
        self._marks[rows] = state["marks"].numpy()
        if "origin" in state:
            self.origin = np.full(self._rows, -1, np.int64)
            self.origin[rows] = state["origin"].numpy()

    def __getstate__(self) -> dict[str, Any]:
        # No tensor: torch sends its memory, which is gone before a process that is spawned opens it.
        state = {key: value for key, value in self.__dict__.items() if key != "_marks"}
        marked = np.flatnonzero(self._marks) if "_marks" in self.__dict__ else np.empty(0, np.int64)
        return state | {"marked": (marked, self._marks[marked])} if len(marked) else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        marked = state.pop("marked", None)
        self.__dict__.update(state)
        if marked is not None:
            self._marks[marked[0]] = marked[1]
