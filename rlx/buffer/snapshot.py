"""All that a buffer is, as numbers and blocks of steps; and a buffer as a snapshot says."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rlx.buffer.index.continuity import ORIGIN
from rlx.buffer.prefetch import Draw
from rlx.buffer.protocol import Rows, Sampler, Storage, Writer
from rlx.buffer.storage.step_schema import Texts, leaves, tree
from rlx.errors import SchemaMismatchError

BLOCK_BYTES = 8 << 20


def describe(storage: Storage, sampler: Sampler, writer: Writer, pending: list[Draw]) -> dict[str, Any]:
    """Return all but the steps: numbers, strings, lists and tensors."""
    return describe_storage(storage) | {
        "sampler": sampler.state_dict(),
        "writer": writer.state_dict(),
        "pending": [_draw_state(draw) for draw in pending],
    }


def describe_storage(storage: Storage) -> dict[str, Any]:
    """Return all of a storage but the steps: numbers, strings, lists and tensors."""
    return {
        "capacity": storage.max_size,
        "ndim": storage.ndim,
        "length": len(storage),
        "lane_shape": list(storage.lane_shape),
        "rows": torch.from_numpy(ordered_rows(storage)),
        "storage": storage.state_dict(),
    }


def ordered_rows(storage: Storage) -> Rows:
    """Return [lanes, n] the rows of every lane, oldest first; none of a dataset, which is at rest already."""
    if storage.is_read_only:
        return np.empty((1, 0), np.int64)
    lanes = storage.lanes if len(storage) else 1
    return storage.row_at(np.arange(len(storage))).reshape(lanes, -1)


def blocks(storage: Storage) -> Iterator[TensorDictBase]:
    """Yield the stored steps in time order: blocks [lanes * n] of n steps of every lane."""
    rows = ordered_rows(storage)
    if not rows.size:
        return
    row_bytes = sum(leaf.nbytes for _, leaf in leaves(storage.get_encoded(rows[0, :1])))
    at_once = max(1, BLOCK_BYTES // max(1, row_bytes * len(rows)))
    for start in range(0, rows.shape[1], at_once):
        yield storage.get_encoded(rows[:, start : start + at_once].reshape(-1))


def restore(
    state: Mapping[str, Any], steps: Iterable[TensorDictBase], storage: Storage, sampler: Sampler, writer: Writer
) -> list[Draw]:
    """Make these parts what ``describe`` and ``blocks`` said; return the draws that were pending.

    Into a storage of another capacity the steps are rewritten, oldest first: their rows may differ, so the sampler
    starts afresh and no draws are pending.

    Raises:
        SchemaMismatchError: the storage is too small, or of other dimensions.
    """
    if keeps_rows(state, storage):
        storage.restore(state["storage"], rows_and_steps(state, steps))
        sampler.load_state_dict(state["sampler"])
        writer.load_state_dict(state["writer"])
        return [_draw_of(pending) for pending in state["pending"]]
    storage.empty()
    sampler.emptied()
    writer.empty()
    for block in in_lanes(state, steps):
        rows = writer.extend(storage, block)
        sampler.extended(storage, rows.reshape(-1))
    return []


def keeps_rows(state: Mapping[str, Any], storage: Storage) -> bool:
    """Return whether the steps of a state keep their rows in a storage; in one of another capacity they do not.

    Raises:
        SchemaMismatchError: the storage is too small, or of other dimensions.
    """
    if storage.is_read_only != ("dataset" in state["storage"]):
        raise SchemaMismatchError(f"checkpoint of {_kind(state)}, the storage is {storage!r}")
    lanes = int(np.prod(state["lane_shape"], dtype=np.int64))
    if state["ndim"] != storage.ndim:
        raise SchemaMismatchError(f"checkpoint has {state['ndim']} dimensions, the storage {storage.ndim}")
    if state["length"] > storage.max_size // lanes * lanes:
        raise SchemaMismatchError(
            f"checkpoint has {state['length']:,} steps, the storage has room for {storage.max_size:,}",
            hint="give the storage a max_size of at least that many",
        )
    return state["capacity"] == storage.max_size or storage.is_read_only


def _kind(state: Mapping[str, Any]) -> str:
    return f"dataset {state['storage']['dataset']}" if "dataset" in state["storage"] else "steps"


def rows_and_steps(state: Mapping[str, Any], steps: Iterable[TensorDictBase]) -> Iterator[tuple[Rows, TensorDictBase]]:
    """Yield the blocks of a state's steps, each with the rows [n] that they had."""
    rows, done = state["rows"].numpy(), 0
    for block in steps:
        count = block.batch_size[0] // len(rows)
        yield rows[:, done : done + count].reshape(-1), block
        done += count


def in_lanes(state: Mapping[str, Any], steps: Iterable[TensorDictBase]) -> Iterator[TensorDictBase]:
    """Yield the blocks of a state's steps as they are appended to a storage: [*lanes, n]."""
    row_shape = state["storage"].get("row_shape", [])
    texts = Texts.restored(state["storage"].get("texts", Texts().state_dict()))
    for block in steps:
        if row_shape:
            block.batch_size = torch.Size([*block.batch_size, *row_shape])
        else:
            block.set(ORIGIN, torch.full(block.batch_size, -1))  # rows of another storage say nothing
        shaped = block.reshape(*state["lane_shape"], -1, *row_shape)
        for path, leaf in texts.decoded({path: shaped[path] for path in texts.paths}).items():
            shaped.set(path, leaf)
        yield shaped


def steps_state(storage: Storage) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """Return the stored steps in the order of ``ordered_rows``, by key."""
    rows = ordered_rows(storage)
    return leaves(storage.get_encoded(rows.reshape(-1))) if rows.size else []


def steps_of(state: list[tuple[tuple[str, ...], torch.Tensor]]) -> Iterator[TensorDictBase]:
    """Yield the steps [n] of ``steps_state``, as one block; none if it was empty."""
    if state:
        yield tree(dict(state), len(state[0][1]))


def _draw_state(draw: Draw) -> dict[str, Any]:
    info = [(key, torch.from_numpy(np.ascontiguousarray(value))) for key, value in draw.info.items()]
    return {"rows": torch.from_numpy(draw.rows), "info": info, "flags": [draw.ends_epoch, draw.describes_steps]}


def _draw_of(state: Mapping[str, Any]) -> Draw:
    return Draw(state["rows"].numpy(), {key: value.numpy() for key, value in state["info"]}, *state["flags"])
