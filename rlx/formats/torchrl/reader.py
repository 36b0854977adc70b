"""A directory of TED steps as ``TensorDict.memmap`` writes it: TorchRL's datasets and storages, and rlx's exports."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceError
from rlx.files.disk import read_object
from rlx.formats.common.fields import NOT_OF_STEPS, RowType, expecting, flags_of
from rlx.formats.common.provenance import read_notes_beside
from rlx.formats.common.rows.scan import Recording, different
from rlx.formats.common.rows.ted_fields import DONE, MASK, TERMINATED, TRAJECTORY, TRUNCATED, TedFields, ted_fields
from rlx.formats.common.rows.ted_run import LeafRows, TedPlace, TedRun, lanes, make_run, scanned
from rlx.formats.torchrl.leaves import METADATA, MemmapLeaves, described

# The layout of ReplayBuffer.dumps: a directory of the storage, and the state of other parts of the buffer.
_BUFFER = "buffer_metadata.json"
_STORAGE = "storage"
_STORAGE_METADATA = "storage_metadata.json"
_WRITER = "writer/metadata.json"
_OF_BUFFER = frozenset({_BUFFER, _STORAGE, "writer", "prefetch.pkl"})
# Rows that are compared with their neighbours in every dimension.
_SAMPLE = 1000
_MOST = 0.5  # minimum share of rows, except ends of episodes, that the next row in time follows
_FEW = 0.1  # maximum share that a neighbour in any other dimension follows
_LAYOUT = (
    "expected what TensorDict.memmap writes: meta.json, observation.memmap, action.memmap, next/reward.memmap, "
    "next/terminated.memmap, next/truncated.memmap, each with the rows that meta.json states"
)


@expecting(_LAYOUT)
def open_torchrl(path: Path, *, time_dim: int | None = None) -> TedRun:
    """Return the steps in a directory of memory maps, of one batch dimension or of several, or in a dumped replay
    buffer.

    Args:
        time_dim: which dimension of the batch is time; by default determined from the steps.
    """
    path = path.absolute()
    root = path / _STORAGE if (path / _BUFFER).is_file() else path
    _check_storage(path, root)
    batch, found = described(root)
    kinds = {name: kind for name, kind in found.items() if kind is not None}
    leaves = MemmapLeaves(root, math.prod(batch), len(batch))
    aliases = _aliases(batch, kinds, leaves)
    fields = ted_fields({name: kind for name, kind in found.items() if name not in aliases.values()}, str(root))
    if not (filled := _filled(root, batch)):
        raise SourceError(f"{path} has no step")
    recording, oldest = _recording(root, batch[0], filled)
    shape = (filled, *batch[1:])
    with leaves.opened(scanned(fields, kinds) | {path: kinds[path] for path in aliases.values()}) as files:
        files = {**files, **{name: files[path] for name, path in aliases.items()}}
        time = time_dimension(path, shape, fields, files, time_dim)
        return make_run(
            TedPlace(path, root, leaves, kinds, _LAYOUT),
            fields,
            files,
            lanes(batch, time, filled=filled, oldest=oldest),
            lane=shape[time],
            recording=recording,
            notes={
                **read_notes_beside(root),
                "format": "TorchRL's memmap",
                **({"time_dimension": time} if len(batch) > 1 else {}),
            },
            not_taken=_state_of_buffer(path, root),
        )


def _aliases(batch: Sequence[int], kinds: Mapping[str, RowType], leaves: MemmapLeaves) -> dict[str, str]:
    """Return where ``split_trajectories`` put the mask of its padding, and the ids of trajectories, if not as usual.

    Both are below its prefix, or beside the key of trajectories. A leaf called ``mask`` is that of a padding if some
    steps at the ends of lanes, and no others, are masked.
    """
    if MASK in kinds or len(batch) < 2 or 0 in batch:
        return {}
    for path, kind in kinds.items():
        prefix, _, name = path.rpartition("mask")
        if name or kind != ("bool", ()) or prefix[-1:] not in ("", "/"):
            continue
        with leaves.opened({path: kind}) as files:
            mask = flags_of(files[path].read(0, math.prod(batch)), files[path].place).reshape(-1, batch[-1])
        if not mask.all() and (mask[:, :-1] >= mask[:, 1:]).all():
            ids = {TRAJECTORY: f"{prefix}traj_ids"} if TRAJECTORY not in kinds else {}
            return {MASK: path} | {name: there for name, there in ids.items() if kinds.get(there) == ("int64", ())}
    return {}


def _check_storage(path: Path, root: Path) -> None:
    """Raise SourceError, which names the kind of storage, if a buffer's storage is not a TensorDict of steps."""
    if (root / METADATA).is_file():
        return
    parts = sorted(part.name for part in root.iterdir() if part.name.isdecimal()) if root.is_dir() else []
    if parts:
        raise SourceError(
            f"{path} holds {len(parts)} storages, {', '.join(parts)}; expected one",
            hint=f"rlx convert {root / parts[0]} DST, and each of the others; rlx merge joins them",
        )
    if (root / _STORAGE_METADATA).is_file() and read_object(root / _STORAGE_METADATA).get("is_pytree"):
        raise SourceError(f"{path} holds a tree of tensors; expected a TensorDict of steps")


def _filled(root: Path, batch: Sequence[int]) -> int:
    file = root / _STORAGE_METADATA
    if not file.exists():
        return batch[0]
    length, each = read_object(file).get("len"), math.prod(batch[1:])
    if type(length) is not int or not 0 <= length <= batch[0] * each:
        raise CorruptShardError(f"{file}: len: expected at most {batch[0] * each:,}, found {length!r:.80}")
    if each and length % each:
        raise CorruptShardError(f"{file}: len: expected a multiple of {each:,}, found {length:,}")
    return length // each if each else 0


def _recording(root: Path, capacity: int, filled: int) -> tuple[Recording, int]:
    """Return the state of the steps before the stored ones, and the index of the oldest along the first dimension."""
    if not (root / _STORAGE_METADATA).exists():
        return Recording.UNKNOWN, 0
    if filled < capacity:
        return Recording.COMPLETE, 0
    file = root.parent / _WRITER
    if not file.is_file():
        return Recording.WRAPPED, 0
    metadata = read_object(file)
    cursor, count = metadata.get("cursor"), metadata.get("write_count")
    if type(cursor) is not int or not 0 <= cursor <= capacity:
        raise CorruptShardError(f"{file}: cursor: expected at most {capacity:,}, found {cursor!r:.80}")
    is_complete = type(count) is int and count <= capacity and cursor % capacity == 0
    return (Recording.COMPLETE, 0) if is_complete else (Recording.WRAPPED, cursor % capacity)


def _state_of_buffer(path: Path, root: Path) -> dict[str, str]:
    """Return files of the state of a dumped buffer besides its steps, such as priorities, and why they are left out."""
    if path == root:
        return {}
    return dict.fromkeys(sorted(entry.name for entry in path.iterdir() if entry.name not in _OF_BUFFER), NOT_OF_STEPS)


def time_dimension(
    path: Path, shape: Sequence[int], fields: TedFields, leaves: Mapping[str, LeafRows], given: int | None = None
) -> int:
    """Return which dimension of a batch is time.

    The next row in time, except after the end of an episode, has the same trajectory id and begins with the observation
    that the row led to.

    Args:
        shape: of the filled part of the batch.

    Raises:
        SourceError: the steps do not determine it, or ``given`` is not a dimension.
    """
    if given is not None:
        if not 0 <= given < len(shape):
            raise SourceError(
                f"time_dim={given}: expected a dimension of the batch {list(shape)}, 0 to {len(shape) - 1}"
            )
        return given
    candidates = [axis for axis, size in enumerate(shape) if size > 1]
    if len(candidates) < 2:
        return candidates[0] if candidates else len(shape) - 1
    shares = {axis: _followed(axis, shape, fields, leaves) for axis in candidates}
    if all(share is None for share in shares.values()):
        return candidates[0]  # every episode has one step, in whatever order they come
    best = max(candidates, key=lambda axis: shares[axis] or 0.0)
    others = [shares[axis] or 0.0 for axis in candidates if axis != best]
    if (shares[best] or 0.0) < _MOST or max(others) > _FEW:
        choices = " or ".join(str(axis) for axis in candidates)
        raise SourceError(
            f"{path}: the steps do not determine which dimension of the batch {list(shape)} is time: {choices}",
            hint=f"rlx convert {path} DST --from torchrl:time_dim={candidates[0]}",
        )
    return best


def _followed(axis: int, shape: Sequence[int], fields: TedFields, leaves: Mapping[str, LeafRows]) -> float | None:
    """Return the share of sampled rows, except ends of episodes, that their neighbour in a dimension follows."""
    one, other = _neighbours(axis, shape)
    flags = [path for path in (TERMINATED, TRUNCATED, DONE) if path in leaves]
    is_open = ~np.logical_or.reduce([_rows(leaves[path], one).reshape(-1) != 0 for path in flags])
    if MASK in leaves:
        is_open &= (_rows(leaves[MASK], one).reshape(-1) != 0) & (_rows(leaves[MASK], other).reshape(-1) != 0)
    one, other = one[is_open], other[is_open]
    if not len(one):
        return None
    deciding = fields.decides
    if not deciding and TRAJECTORY not in leaves:
        return 0.0
    follows = np.ones(len(one), bool)
    if TRAJECTORY in leaves:
        follows &= ~different(_rows(leaves[TRAJECTORY], one), _rows(leaves[TRAJECTORY], other))
    for name in deciding:
        led_to, begins = _rows(leaves[fields.after[name]], one), _rows(leaves[fields.paths[name]], other)
        follows &= ~different(led_to, begins)
    return float(follows.mean())


def _neighbours(axis: int, shape: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    inner = [size - (place == axis) for place, size in enumerate(shape)]
    total = math.prod(inner)
    chosen = np.arange(total)
    if total > _SAMPLE:
        chosen = np.sort(np.random.default_rng(0).choice(total, _SAMPLE, replace=False, shuffle=False))
    places = list(np.unravel_index(chosen, inner))
    one = np.ravel_multi_index(places, shape)
    places[axis] = places[axis] + 1
    return one, np.ravel_multi_index(places, shape)


def _rows(leaf: LeafRows, rows: NDArray[np.int64]) -> NDArray[np.generic]:
    return np.concatenate([leaf.read(row, 1) for row in rows.tolist()])
