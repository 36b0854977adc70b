"""Segments as plain tensors, for a checkpoint, and back."""

from collections.abc import Mapping

import numpy as np
import torch

from rlx.buffer.ring import Ring
from rlx.buffer.segments import Segments, empty_segments
from rlx.errors import SchemaMismatchError

_COLUMNS = {"segments": 6, "trajectories": 3, "waiting": 4}


def save_segments(segments: Segments) -> dict[str, torch.Tensor]:
    """What is stored of every trajectory.

    Returns:
        ``segments`` [n, 6], in the order of their writing: lane, stored steps, trajectory, steps lost before,
        detached, sealed. ``trajectories`` [N, 3]: id, born, open. ``waiting`` [w, 4]: id, lane, length, born of
        those that may go on and of which nothing is stored. ``serial`` [1]. All int64.
    """
    number = segments.log.all()
    number = number[np.argsort(segments.table["serial"][number], kind="stable")]
    table = segments.table[number]
    begin = np.maximum(table["time"], segments.ring.head[table["lane"]])
    owner, trajectory = np.unique(table["trajectory"], return_inverse=True)
    owners = segments.trajectories[owner]
    is_head = owners["head"][trajectory] == number
    lost = np.where(is_head, table["before"] + begin - table["time"], 0)
    length = table["time"] + table["length"] - begin
    columns = table["lane"], length, trajectory, lost, table["detached"], table["sealed"]
    waiting = segments.trajectories[segments.waiting]
    return {
        "segments": torch.from_numpy(np.stack(columns, axis=1).astype(np.int64)),
        "trajectories": torch.from_numpy(np.stack([owners["id"], owners["born"], owners["is_open"]], axis=1)),
        "waiting": torch.from_numpy(np.stack([waiting[name] for name in ("id", "lane", "length", "born")], axis=1)),
        "serial": torch.tensor([segments.serial]),
    }


def load_segments(ring: Ring, state: Mapping[str, torch.Tensor]) -> Segments:
    """What ``save_segments`` wrote down, over lanes that stand where they stood.

    Raises:
        SchemaMismatchError: it does not fit the lanes.
    """
    for name, columns in _COLUMNS.items():
        if state[name].dtype != torch.int64 or state[name].ndim != 2 or state[name].shape[1] != columns:
            raise SchemaMismatchError(
                f"checkpoint: index has {list(state[name].shape)} {name}, expected [n, {columns}]"
            )
    lane, length, trajectory, lost, detached, sealed = state["segments"].numpy().T
    ids, born, is_open = state["trajectories"].numpy().T
    inside = ((lane >= 0) & (lane < ring.lanes) & (length > 0) & (length <= ring.size) & (lost >= 0)).all()
    if not inside or (ring.tail - ring.head != np.bincount(lane, length, ring.lanes)).any():
        raise SchemaMismatchError(f"checkpoint: index of {int(length.sum()):,} steps, expected {len(ring):,}")
    if not np.array_equal(np.unique(trajectory), np.arange(len(ids))):
        raise SchemaMismatchError(f"checkpoint: index names other trajectories than the {len(ids):,} it has")
    waiting = state["waiting"].numpy()
    if ((waiting[:, 1] < 0) | (waiting[:, 1] >= ring.lanes) | (waiting[:, 2] < 0)).any():
        raise SchemaMismatchError("checkpoint: index has open trajectories in lanes that are none")
    ends = np.zeros(len(lane), bool)
    last = np.zeros(len(ids), np.int64)
    last[trajectory] = np.arange(len(lane))
    ends[last] = is_open == 0
    segments = empty_segments(ring.size, ring.head)
    if len(lane):
        segments.append(lane, length, trajectory, ends, lost=lost, wandering=set(trajectory.tolist()))
    segments.mark(detached.astype(bool), sealed.astype(bool))
    segments.rename(ids, born, waiting, int(state["serial"][0]))
    return segments
