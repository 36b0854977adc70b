"""Segments as plain tensors, for a checkpoint, and back."""

from collections.abc import Mapping

import numpy as np
import torch

from rlx.buffer.index.continuity import UNKNOWN
from rlx.buffer.index.ring import Ring
from rlx.buffer.index.segments import Segments, empty_segments
from rlx.buffer.protocol import Rows
from rlx.errors import SchemaMismatchError

_COLUMNS = {"segments": 8, "trajectories": 3, "waiting": 5}
# Columns that older checkpoints lack: evidence of the order of segments.
_DIGESTS = {"segments": 2, "trajectories": 0, "waiting": 1}


def save_segments(segments: Segments) -> dict[str, torch.Tensor]:
    """Return the stored part of every trajectory.

    Returns:
        ``segments`` [n, 8], in the order of their writing: lane, stored steps, trajectory, steps lost before,
        detached, sealed, begins, expects. ``trajectories`` [N, 3]: id, born, open. ``waiting`` [w, 5]: id, lane,
        length, born, expects of those that are open and of which nothing is stored. ``serial`` [1]. All int64.
    """
    number = segments.in_order()
    table = segments.table[number]
    begin = np.maximum(table["time"], segments.ring.head[table["lane"]])
    owner, trajectory = np.unique(table["trajectory"], return_inverse=True)
    owners = segments.trajectories[owner]
    is_head = owners["head"][trajectory] == number
    lost = np.where(is_head, table["before"] + begin - table["time"], 0)
    length = table["time"] + table["length"] - begin
    columns = (
        table["lane"],
        length,
        trajectory,
        lost,
        *(table[name] for name in ("detached", "sealed", "begins", "expects")),
    )
    waiting = segments.trajectories[segments.waiting]
    remembered = [waiting[name] for name in ("id", "lane", "length", "born", "expects")]
    return {
        "segments": torch.from_numpy(np.stack(columns, axis=1).astype(np.int64)),
        "trajectories": torch.from_numpy(np.stack([owners["id"], owners["born"], owners["is_open"]], axis=1)),
        "waiting": torch.from_numpy(np.stack(remembered, axis=1)),
        "serial": torch.tensor([segments.serial]),
    }


def load_segments(ring: Ring, state: Mapping[str, torch.Tensor]) -> Segments:
    """Restore the segments that ``save_segments`` wrote, over lanes in the same state.

    Raises:
        SchemaMismatchError: it does not fit the lanes.
    """
    table = {name: _table(state[name], name) for name in _COLUMNS}
    lane, length, trajectory, lost, detached, sealed, begins, expects = table["segments"].T
    ids, born, is_open = table["trajectories"].T
    inside = ((lane >= 0) & (lane < ring.lanes) & (length > 0) & (length <= ring.size) & (lost >= 0)).all()
    if not inside or (ring.tail - ring.head != np.bincount(lane, length, ring.lanes)).any():
        raise SchemaMismatchError(f"checkpoint: index of {int(length.sum()):,} steps, expected {len(ring):,}")
    if not np.array_equal(np.unique(trajectory), np.arange(len(ids))):
        raise SchemaMismatchError(f"checkpoint: index names other trajectories than the {len(ids):,} it has")
    waiting = table["waiting"]
    if ((waiting[:, 1] < 0) | (waiting[:, 1] >= ring.lanes) | (waiting[:, 2] < 0)).any():
        raise SchemaMismatchError("checkpoint: index has open trajectories in lanes that are none")
    ends = np.zeros(len(lane), bool)
    last = np.zeros(len(ids), np.int64)
    last[trajectory] = np.arange(len(lane))
    ends[last] = is_open == 0
    segments = empty_segments(ring.size, ring.head)
    if len(lane):
        segments.append(lane, length, trajectory, ends, lost=lost, wandering=set(trajectory.tolist()))
    segments.mark(detached.astype(bool), sealed.astype(bool), begins, expects)
    segments.rename(ids, born, waiting, int(state["serial"][0]))
    return segments


def _table(saved: torch.Tensor, name: str) -> Rows:
    columns, digests = _COLUMNS[name], _DIGESTS[name]
    if saved.dtype != torch.int64 or saved.ndim != 2 or saved.shape[1] not in (columns, columns - digests):
        raise SchemaMismatchError(f"checkpoint: index has {list(saved.shape)} {name}, expected [n, {columns}]")
    missing = columns - saved.shape[1]
    return np.pad(saved.numpy(), ((0, 0), (0, missing)), constant_values=UNKNOWN)
