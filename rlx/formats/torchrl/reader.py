"""A directory of TED steps as ``TensorDict.memmap`` writes it: TorchRL's datasets, storages and what rlx writes so."""

import math
from collections.abc import Sequence
from pathlib import Path

from rlx.errors import CorruptShardError, SourceError
from rlx.files.json_file import read_object
from rlx.formats.common.checks import expecting
from rlx.formats.common.extra_fields import NOT_OF_STEPS
from rlx.formats.common.provenance import told_beside
from rlx.formats.common.rows.runs import lanes
from rlx.formats.common.rows.scan import Recording
from rlx.formats.common.rows.ted_fields import ted_fields
from rlx.formats.common.rows.ted_run import Place, TedRun, make_run, scanned
from rlx.formats.torchrl.leaves import METADATA, MemmapLeaves, described
from rlx.formats.torchrl.time_dimension import time_dimension

# The layout of ReplayBuffer.dumps: the storage in a directory, and beside it the state of the buffer's parts.
_BUFFER = "buffer_metadata.json"
_STORAGE = "storage"
_STORAGE_METADATA = "storage_metadata.json"
_WRITER = "writer/metadata.json"
_OF_BUFFER = frozenset({_BUFFER, _STORAGE, "writer", "prefetch.pkl"})
_LAYOUT = (
    "expected what TensorDict.memmap writes: meta.json, observation.memmap, action.memmap, next/reward.memmap, "
    "next/terminated.memmap, next/truncated.memmap, as many rows in each as meta.json says"
)


def recognises(path: Path) -> bool:
    """Return whether a directory is a TensorDict of steps, or a replay buffer that TorchRL dumped."""
    return (path / _BUFFER).is_file() or ((path / METADATA).is_file() and (path / "next/reward.memmap").is_file())


@expecting(_LAYOUT)
def open_torchrl(path: Path, *, time_dim: int | None = None) -> TedRun:
    """Return the steps in a directory of memory maps, of one batch dimension or of several, or in a dumped replay
    buffer.

    Args:
        path: the directory.
        time_dim: which dimension of the batch is time; found out from the steps where not given.

    Raises:
        SourceNotFoundError: the directory does not exist, or a file of it is missing.
        CorruptShardError: a leaf is missing, or is not what the metadata say.
        SourceError: it has no step; or nothing in it tells which dimension is time.
    """
    path = path.absolute()
    root = path / _STORAGE if (path / _BUFFER).is_file() else path
    _check_storage(path, root)
    batch, found = described(root)
    fields = ted_fields(found, str(root))
    kinds = {name: kind for name, kind in found.items() if kind is not None}
    if not (filled := _filled(root, batch)):
        raise SourceError(f"{path} has no step")
    recording, oldest = _recording(root, batch[0], filled)
    shape, leaves = (filled, *batch[1:]), MemmapLeaves(root, math.prod(batch), len(batch))
    with leaves.opened(scanned(fields, kinds)) as files:
        time = time_dimension(path, shape, fields, files, time_dim)
        return make_run(
            Place(path, root, leaves, kinds, _LAYOUT),
            fields,
            files,
            lanes(batch, time, filled=filled, oldest=oldest),
            lane=shape[time],
            recording=recording,
            notes={
                **told_beside(root),
                "format": "TorchRL's memmap",
                **({"time_dimension": time} if len(batch) > 1 else {}),
            },
            not_taken=_state_of_buffer(path, root),
        )


def _check_storage(path: Path, root: Path) -> None:
    """Raise SourceError where a buffer's storage is no TensorDict of steps, and say what it is."""
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
    """Return how many of the first dimension hold steps."""
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
    """Return the state of a dumped buffer besides its steps, such as priorities."""
    if path == root:
        return {}
    return dict.fromkeys(sorted(entry.name for entry in path.iterdir() if entry.name not in _OF_BUFFER), NOT_OF_STEPS)
