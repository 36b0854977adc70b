"""Snapshots of buffers as numbers and blocks of steps: taken, restored, and saved in directories."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rlx.buffer.checkpoint import load, save
from rlx.buffer.index.continuity import ORIGIN
from rlx.buffer.prefetch import Draw
from rlx.buffer.protocol import Rows, Sampler, Storage, Writer
from rlx.buffer.storage.step_schema import Texts, leaves, nested
from rlx.errors import SchemaMismatchError

_BLOCK_BYTES = 8 << 20


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
        "storage": storage.state_dict(),
    }


def rows_state(storage: Storage) -> dict[str, torch.Tensor]:
    """Return which row each step of ``blocks`` has."""
    return {"rows": torch.from_numpy(ordered_rows(storage))}


def ordered_rows(storage: Storage) -> Rows:
    """Return [lanes, n] the rows of every lane, oldest first; none for a dataset, which never changes.

    Lanes with different numbers of steps, as after episodes were dropped, come one after the other: [1, n].
    """
    if storage.is_read_only:
        return np.empty((1, 0), np.int64)
    lanes = storage.lanes if len(storage) and not storage.has_gaps else 1
    return storage.row_at(np.arange(len(storage))).reshape(lanes, -1)


def blocks(storage: Storage) -> Iterator[TensorDictBase]:
    """Return the stored steps in time order: blocks [lanes * n] of n steps of every lane."""
    return (block for _, block in blocks_at(storage, ordered_rows(storage)))


def blocks_at(storage: Storage, rows: Rows) -> Iterator[tuple[Rows, TensorDictBase]]:
    """Yield the steps at rows [lanes, n]: blocks of the next rows of every lane, and these rows."""
    if not rows.size:
        return
    row_bytes = sum(leaf.nbytes for _, leaf in leaves(storage.get_encoded(rows[0, :1])))
    at_once = max(1, _BLOCK_BYTES // max(1, row_bytes * len(rows)))
    for start in range(0, rows.shape[1], at_once):
        chosen = rows[:, start : start + at_once].reshape(-1)
        yield chosen, storage.get_encoded(chosen)


def restore(
    state: Mapping[str, Any], steps: Iterable[TensorDictBase], storage: Storage, sampler: Sampler, writer: Writer
) -> list[Draw]:
    """Restore these parts from ``describe`` and ``blocks``; return the pending draws.

    Into a storage of another capacity the steps are rewritten, oldest first: their rows may differ, so the sampler
    starts afresh and no draws are pending.
    """
    if keeps_rows(state, storage):
        return restore_parts(state, rows_and_steps(state, steps), storage, sampler, writer)
    storage.empty()
    sampler.emptied()
    writer.empty()
    for block in in_lanes(state, steps):
        rows = writer.extend(storage, block)
        sampler.extended(storage, rows.reshape(-1))
    return []


def restore_parts(
    state: Mapping[str, Any],
    steps: Iterable[tuple[Rows, TensorDictBase]],
    storage: Storage,
    sampler: Sampler,
    writer: Writer,
) -> list[Draw]:
    """Restore these parts, of the same capacity, from ``describe``; return the pending draws."""
    storage.restore(state["storage"], steps)
    sampler.load_state_dict(state["sampler"])
    writer.load_state_dict(state["writer"])
    return [_draw_of(pending) for pending in state["pending"]]


def keeps_rows(state: Mapping[str, Any], storage: Storage) -> bool:
    """Return whether the steps of a state keep their rows in a storage; in one of another capacity they do not."""
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
    if len(state["rows"]) < int(np.prod(state["lane_shape"], dtype=np.int64)):
        raise SchemaMismatchError(
            "checkpoint: the lanes have different numbers of steps, which a storage of another max_size cannot take",
            hint=f"give the storage a max_size of {state['capacity']}",
        )
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
        yield TensorDict(nested(dict(state)), [len(state[0][1])])


def _draw_state(draw: Draw) -> dict[str, Any]:
    info = [(key, torch.from_numpy(np.ascontiguousarray(value))) for key, value in draw.info.items()]
    flags = [draw.ends_epoch, draw.describes_steps]
    return {"rows": torch.from_numpy(draw.rows), "info": info, "flags": flags, "number": draw.number}


def _draw_of(state: Mapping[str, Any]) -> Draw:
    info = {key: value.numpy() for key, value in state["info"]}
    ends_epoch, describes_steps = state["flags"]
    return Draw(state["rows"].numpy(), info, ends_epoch, describes_steps, number=state.get("number"))


class SavedState(ABC):
    """A part that writes its ``state_dict`` to a directory: a sampler, or a writer."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return numbers, lists and tensors."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a directory, replacing an existing checkpoint.

        Raises:
            DatasetExistsError: the directory holds something else.
            DiskFullError: no space is left.
        """
        save(path, {"part": type(self).__name__, "state": self.state_dict()})

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint that ``dumps`` wrote.

        Raises:
            DatasetNotFoundError: the directory holds no checkpoint.
            FormatVersionError: another format version wrote it.
            CorruptDatasetError: the checkpoint is damaged.
            SchemaMismatchError: another kind of part wrote it.
        """
        written, *_ = load(path, type(self).__name__)
        self.load_state_dict(written["state"])


class SavedSteps:
    """A storage that writes its steps to a directory, compressed."""

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the steps to a directory, replacing an existing checkpoint.

        Raises:
            DatasetExistsError: the directory holds something else.
            DiskFullError: no space is left.
        """
        storage: Any = self
        save(path, {"part": "a storage", "state": describe_storage(storage) | rows_state(storage)}, blocks(storage))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Replace the steps by those of a checkpoint that ``dumps`` of any storage wrote.

        In a storage of the same ``max_size`` they keep their rows; in a larger one the oldest come first.

        Raises:
            DatasetNotFoundError: the directory holds no checkpoint.
            FormatVersionError: another format version wrote it.
            CorruptDatasetError: the checkpoint is damaged; the storage may be left empty.
            SchemaMismatchError: another kind of part wrote it, it has other dimensions, or more steps than fit.
        """
        storage: Any = self
        written, steps, _ = load(path, "a storage")
        state = written["state"]
        if keeps_rows(state, storage):
            storage.restore(state["storage"], rows_and_steps(state, steps))
            return
        storage.empty()
        for block in in_lanes(state, steps):
            storage.append(block)

    dump = dumps
    load = loads
    save = dumps


class SavedTogether(ABC):
    """Several parts that are written to one directory: all of them, or none."""

    @abstractmethod
    def _saved_parts(self) -> Sequence[Any]:
        """Return the parts, which have ``dumps`` and ``loads`` too."""

    def _own_state(self) -> dict[str, Any]:
        return {}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (most have none)
        """Continue from the rest of the state."""

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write all parts to a directory, replacing an existing checkpoint.

        Raises:
            DatasetExistsError: the directory holds something else.
            DiskFullError: no space is left.
        """
        parts = self._saved_parts()

        def write(directory: Path) -> None:
            for number, part in enumerate(parts):
                part.dumps(directory / str(number))

        state = {"part": type(self).__name__, "count": len(parts), "state": self._own_state()}
        save(path, state, write_beside=write)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load what ``dumps`` wrote, part by part.

        Raises:
            DatasetNotFoundError: the directory holds no checkpoint.
            FormatVersionError: another format version wrote it.
            CorruptDatasetError: the checkpoint is damaged.
            SchemaMismatchError: it has another number of parts, or parts of another kind.
        """
        written, _, directory = load(path, type(self).__name__)
        parts = self._saved_parts()
        if written["count"] != len(parts):
            raise SchemaMismatchError(
                f"{os.fspath(path)} is a checkpoint of {written['count']} parts, not {len(parts)}"
            )
        for number, part in enumerate(parts):
            part.loads(directory / str(number))
        self._load_own_state(written["state"])

    dump = dumps
    load = loads
    save = dumps
