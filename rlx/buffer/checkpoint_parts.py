"""Parts of a checkpoint on disk: states that load without running code, and the steps of buffers.

<directory>/<hex>/segment.json   leaves and blocks of the rows that one save wrote, and checksums of the files below
<directory>/<hex>/0.zst          a leaf's blocks, each one zstd frame with a checksum

Every save writes the steps that changed. The last segment with a row has its step. A segment whose rows have all been
rewritten is left out of the next list of segments, and deleted once that list is on disk.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rlx.buffer.checkpoint import read_blocks, write_blocks
from rlx.buffer.protocol import Rows
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.snapshot import blocks_at, ordered_rows
from rlx.buffer.storage.ring import RingStorage
from rlx.buffer.storage.step_schema import leaves
from rlx.errors import CorruptDatasetError, SchemaMismatchError
from rlx.files.beneath import try_remove
from rlx.files.disk import opened_file, reading
from rlx.files.durable import sync_tree
from rlx.files.sealed import CHECKED, check_files, checksums, read_sealed, sealed

_ROW = "_row"
_MANIFEST, _FORMAT = "segment.json", "rlx.segment"
_HELD_BYTES = 256 << 20
_MAX_SPREAD = 2  # all segments have at most this many times the stored rows


class SavedRows:
    """Writer and reader of a buffer's steps."""

    def __init__(self, buffer: ReplayBuffer, directory: Path) -> None:
        self._buffer = buffer
        self._directory = directory
        self._segments: dict[int, str] = {}
        self._sizes: dict[int, int] = {}  # rows written to a segment
        self._live = Counter[int]()  # rows whose newest steps it has
        self._next = 0
        self._follow()

    def _follow(self) -> None:
        """Track changes of the buffer's present storage."""
        self._storage = storage = self._buffer.storage
        self._tracked = storage if isinstance(storage, RingStorage) else None
        self._changes = None if self._tracked is None else self._tracked.track_changes()
        # The number of the segment that has the newest step of each row; -1 of a row that was never written.
        self._owner = np.full(0 if storage.is_read_only else storage.max_size, -1, np.int64)
        self._is_first = True

    def close(self) -> None:
        """Stop tracking changes."""
        if self._tracked is not None and self._changes is not None:
            self._tracked.untrack_changes(self._changes)

    def begin_anew(self) -> None:
        """Make the next ``begin`` write all steps, because the last one's are not on disk."""
        self._is_first = True

    def begin(self) -> tuple[dict[str, Any], Callable[[], list[str]]]:
        """Return the state of the buffer but for its steps, and a function that writes those which changed.

        Training may continue before the function is called: it has copies, or has written what exceeds 256 MiB of them.
        It returns the names of all segments that the steps are in now.
        """
        buffer = self._buffer
        with buffer.reading() as state:
            if buffer.storage is not self._storage:
                self.close()
                self._follow()
            rows = self._changed_rows()
            written, held, size = _Segment(self._directory), list[TensorDictBase](), 0
            for at, block in blocks_at(buffer.storage, rows[None]):
                block = block.cpu()  # the thread that writes knows nothing of this one's stream
                block.set(_ROW, torch.from_numpy(at.copy()))
                nbytes = sum(leaf.nbytes for _, leaf in leaves(block))
                if size + nbytes > _HELD_BYTES:
                    written.add(block)
                else:
                    held.append(block)
                    size += nbytes
        names = self._listed(rows, written.name)

        def finish() -> list[str]:
            while held:
                written.add(held.pop())
            written.close()
            return names

        return state, finish

    def _listed(self, rows: Rows, name: str) -> list[str]:
        if rows.size:
            self._segments[self._next] = name
            self._sizes[self._next] = len(rows)
            self._own(rows, self._next)
            self._next += 1
        self._segments = {number: name for number, name in self._segments.items() if self._live[number]}
        return list(self._segments.values())

    def _own(self, rows: Rows, number: int) -> None:
        """Record that a segment has the newest steps of these distinct rows; -1 for none."""
        owners, counts = np.unique(self._owner[rows], return_counts=True)
        self._live.subtract(dict(zip(owners.tolist(), counts.tolist(), strict=True)))
        self._live[number] += len(rows)
        self._owner[rows] = number

    def _disown(self) -> None:
        self._owner.fill(-1)
        self._live.clear()

    def _changed_rows(self) -> Rows:
        """Return the rows to write: changed ones, and those of segments that are mostly outdated."""
        storage = self._buffer.storage
        if storage.is_read_only:
            return np.empty(0, np.int64)
        if self._tracked is None or self._changes is None or self._is_first:
            self._disown()
            rows = ordered_rows(storage).reshape(-1)
            if self._changes is not None:
                self._changes.take()
            self._is_first = False
            return rows
        if self._changes.is_reset:
            self._disown()
        changed = self._changes.take()
        self._own(changed, -1)
        rows = self._tracked.stored(changed)
        return np.union1d(rows, self._scattered(len(storage)))

    def _scattered(self, stored: int) -> Rows:
        """Return the rows of segments to rewrite, so that all segments have at most twice the stored rows."""
        live = {number: self._live[number] for number in self._segments if self._live[number]}
        again: list[int] = []
        total = sum(self._sizes[number] for number in live)
        for number in sorted(live, key=lambda number: live[number] / self._sizes[number]):
            if total <= _MAX_SPREAD * max(stored, 1):
                break
            again.append(number)
            total -= self._sizes[number] - live[number]
        return np.flatnonzero(np.isin(self._owner, again)) if again else np.empty(0, np.int64)

    def check(self, names: Sequence[str]) -> None:
        """Raise CorruptDatasetError unless the files of segments are what they were."""
        for name in names:
            check_files(self._directory / name, _manifest(self._directory / name, is_checked=True).get("checksums"))

    def load(self, state: Mapping[str, Any], names: Sequence[str], *, is_checked: bool) -> None:
        """Restore the buffer from a state of ``begin`` and its segments.

        Args:
            is_checked: whether ``check`` has checked them; the next ``begin`` writes the steps of others anew.
        """
        storage = self._buffer.storage
        if storage is not self._storage:
            self.close()
            self._follow()
        if not storage.is_read_only and state["capacity"] != storage.max_size:
            raise SchemaMismatchError(
                f"checkpoint of a storage with max_size {state['capacity']:,}, found {storage.max_size:,}"
            )
        self._segments, self._next = dict(enumerate(names)), len(names)
        self._disown()
        for number, name in self._segments.items():
            self._sizes[number] = 0
            for block in self._read(name, is_checked, only=_ROW):
                self._own(self._checked(block[_ROW].numpy()), number)
                self._sizes[number] += len(block)
        self._buffer.restore_rows(state, self._newest(is_checked))
        if self._changes is not None:
            self._changes.take()
        self._is_first = not is_checked

    def _checked(self, rows: NDArray[np.int64]) -> Rows:
        if rows.dtype != np.int64 or (rows.size and not 0 <= rows.min() <= rows.max() < len(self._owner)):
            raise CorruptDatasetError(f"{self._directory}: a segment has rows that the storage lacks")
        return rows

    def _read(self, name: str, is_checked: bool, only: str | None = None) -> Iterator[TensorDictBase]:
        path = self._directory / name
        return read_blocks(path, _manifest(path, is_checked=is_checked), only=only)

    def _newest(self, is_checked: bool) -> Iterator[tuple[Rows, TensorDictBase]]:
        for number, name in self._segments.items():
            for block in self._read(name, is_checked):
                rows = block[_ROW].numpy()
                keep = np.flatnonzero(self._owner[rows] == number)
                if len(keep):
                    steps = block.exclude(_ROW)
                    yield rows[keep], steps if len(keep) == len(rows) else steps[torch.from_numpy(keep)]


class _Segment:
    """Unfinished segment; the first block creates its directory."""

    def __init__(self, directory: Path) -> None:
        self.name = uuid.uuid4().hex
        self._path = directory / self.name
        self._manifest: dict[str, Any] = {"leaves": [], "blocks": []}

    def add(self, block: TensorDictBase) -> None:
        self._path.mkdir(exist_ok=True)
        try:
            written = write_blocks(self._path, [block])
        except BaseException:
            try_remove(self._path)
            raise
        self._manifest["leaves"] = written["leaves"]
        self._manifest["blocks"] += written["blocks"]

    def close(self) -> None:
        if self._manifest["blocks"]:
            described = {"format": _FORMAT, "version": CHECKED, **self._manifest, "checksums": checksums(self._path)}
            (self._path / _MANIFEST).write_bytes(sealed(json.dumps(described, indent=1)))
            sync_tree(self._path)


def _manifest(path: Path, *, is_checked: bool) -> dict[str, Any]:
    if is_checked:
        return read_sealed(path / _MANIFEST, _FORMAT)[0]
    try:
        with reading(path / _MANIFEST), opened_file(path / _MANIFEST) as file:
            found: dict[str, Any] = json.load(file)
        found["blocks"], found["leaves"] = list(found["blocks"]), list(found["leaves"])
    except (ValueError, KeyError, TypeError) as exc:
        raise CorruptDatasetError(f"{path / _MANIFEST} is damaged: {exc!r}") from exc
    return found


_ARRAY, _INT = "rlx.array", "rlx.int"  # keys of values in tagged dicts
_PLAIN = frozenset({int, float, str, bool, type(None), torch.dtype, torch.Size})


class PlainState:
    """Copies of states that ``torch.load`` reads with ``weights_only=True``; arrays in tagged dicts.

    Values that several parts share, such as weights of a policy and its collector, are copied once.
    """

    def __init__(self) -> None:
        # With the originals: the memory of one that was made for its state alone would be used again.
        self._copies: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, value: Any, name: str) -> Any:
        """Return a copy."""
        if isinstance(value, torch.Tensor):
            return self._copy(value.detach())
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
            return _array(value)
        if type(value) is int and value.bit_length() > 63:
            return {_INT: hex(value)}
        if type(value) in _PLAIN:  # not a class derived of one, which could not be loaded without trust
            return value
        if isinstance(value, np.str_):
            return str(value)
        if isinstance(value, Mapping):
            made = {_key(key, name): self(part, f"{name}[{key!r}]") for key, part in value.items()}
            return OrderedDict(made) if isinstance(value, OrderedDict) else made
        if type(value) in (list, tuple):
            return type(value)(self(part, f"{name}[{i}]") for i, part in enumerate(value))
        raise SchemaMismatchError(
            f"{name} is a {type(value).__name__}, which cannot be restored without running code",
            hint="keep numbers, texts, tensors, arrays, and lists and dicts of them in state_dict",
        )

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        # To the CPU: a copy on a GPU would take as much of its memory again, and the thread that writes would have to
        # wait for the stream on which it is made.
        if not tensor.numel() or tensor.layout != torch.strided:
            return tensor.to("cpu", copy=True)
        memory = tensor.untyped_storage(), tensor.storage_offset()  # the one object of all tensors in it
        key = *memory, tensor.dtype, tuple(tensor.shape), tensor.stride()
        if key not in self._copies:
            self._copies[key] = tensor, tensor.to("cpu", copy=True)
        return self._copies[key][1]


def _array(value: Any) -> dict[str, Any]:
    array = np.ascontiguousarray(value)
    raw = torch.from_numpy(np.frombuffer(bytearray(array.tobytes()), np.uint8)) if array.nbytes else torch.empty(0)
    shape = list(np.shape(value))
    return {_ARRAY: raw, "dtype": array.dtype.str, "shape": shape, "scalar": isinstance(value, np.generic)}


def _key(key: Any, name: str) -> Any:
    if key in (_ARRAY, _INT):
        raise SchemaMismatchError(
            f"{name} has a key {key!r}: expected another one, as rlx marks its own values with it"
        )
    if type(key) in (str, int) or (type(key) is tuple and all(type(part) is str for part in key)):
        return key
    raise SchemaMismatchError(f"{name} has a key {key!r}: expected a text or a number")


def decoded(value: Any) -> Any:
    """Return the state of a ``PlainState``."""
    if isinstance(value, dict) and _ARRAY in value:
        array = np.frombuffer(bytearray(value[_ARRAY].numpy().tobytes()), np.dtype(value["dtype"]))
        return array[0] if value["scalar"] else array.reshape(value["shape"])
    if isinstance(value, dict) and _INT in value:
        return int(value[_INT], 16)
    if isinstance(value, Mapping):
        made = {key: decoded(part) for key, part in value.items()}
        return OrderedDict(made) if isinstance(value, OrderedDict) else made
    if type(value) in (list, tuple):
        return type(value)(decoded(part) for part in value)
    return value
