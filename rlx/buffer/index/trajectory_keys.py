"""Which leaves of a step say what trajectory it belongs to and whether it ends there."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlx.buffer.index.continuity import Flags
from rlx.buffer.protocol import Rows
from rlx.errors import SamplingError

Path = tuple[str, ...]

_IDS: tuple[Path, ...] = (("collector", "traj_ids"), ("episode",))
_DONE: Path = ("next", "done")
_FLAGS: tuple[Path, ...] = (("next", "terminated"), ("next", "truncated"))


@dataclass(frozen=True, slots=True)
class TrajectoryKeys:
    """The leaves to go by.

    Args:
        ids: the trajectory's id; None to go by flags alone.
        ends: flags, any of which ends a trajectory.
    """

    ids: Path | None
    ends: tuple[Path, ...]

    @classmethod
    def find(cls, stored: Collection[Path], traj_key: Any = None, end_key: Any = None) -> "TrajectoryKeys":
        """Return the leaves that keys mean; the usual ones, as far as they are stored, where none is given.

        Args:
            stored: the leaves that there are.
            traj_key: the id; without flags besides, ("next", "done") or what it is made of ends trajectories too.
            end_key: the flag, or a list of flags; without an id besides, no ids are used.

        Raises:
            SamplingError: they are not stored, or nothing that could be used is.
        """
        ids = None if traj_key is None else as_path(traj_key)
        ends = () if end_key is None else _paths(end_key)
        if missing := [key for key in (ids, *ends) if key is not None and key not in stored]:
            found = ", ".join(sorted("/".join(key) for key in stored))
            raise SamplingError(f"key {'/'.join(missing[0])!r} is not stored, found {found}")
        if end_key is None:
            ends = (_DONE,) if _DONE in stored else tuple(key for key in _FLAGS if key in stored)
        if traj_key is None and end_key is None:
            ids = next((key for key in _IDS if key in stored), None)
        if ids is None and not ends:
            raise SamplingError(
                "steps have no trajectories: expected ('collector', 'traj_ids'), 'episode' or ('next', 'done')",
                hint="name the key by traj_key or end_key",
            )
        return cls(ids, ends)

    @property
    def leaves(self) -> Sequence[Path]:
        """All of them."""
        return self.ends if self.ids is None else (self.ids, *self.ends)

    def read(self, leaves: Mapping[Path, torch.Tensor], count: int) -> tuple[Rows | None, Flags]:
        """Return ids [count] (or None) and ends [count] of steps whose leaves are given, in any number of
        dimensions."""
        ids = None if self.ids is None else _flat(leaves[self.ids], count)[:, 0].astype(np.int64)
        done = np.zeros(count, bool)
        for key in self.ends:
            done |= _flat(leaves[key], count).any(axis=1)
        return ids, done


def as_path(key: Any) -> Path:
    """Return a TED key, nested in any way, as a tuple of names.

    Example:
        >>> as_path("done"), as_path(("next", ("agents", "done")))
        (('done',), ('next', 'agents', 'done'))
    """
    return (key,) if isinstance(key, str) else tuple(name for part in key for name in as_path(part))


def _paths(key: Any) -> tuple[Path, ...]:
    return tuple(as_path(one) for one in key) if isinstance(key, list) else (as_path(key),)


def _flat(leaf: torch.Tensor, count: int) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = leaf.numpy(force=True)
    return array.reshape(count, leaf.numel() // max(count, 1))
