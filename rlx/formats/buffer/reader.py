"""Checkpoints of rlx's ``ReplayBuffer.dumps``: ``buffer.json``, and a file of compressed blocks for every leaf."""

import logging
import math
import os
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError, CorruptShardError, FormatVersionError, SourceError, SourceNotFoundError
from rlx.files.disk import check_readable, opened_file
from rlx.files.sealed import check_files, read_sealed
from rlx.formats.common.fields import RowType, expecting
from rlx.formats.common.rows.scan import Recording, RowRuns
from rlx.formats.common.rows.ted_fields import ted_fields
from rlx.formats.common.rows.ted_run import NUMBERS, LeafRows, TedPlace, TedRun, make_run, scanned
from rlx.store.chunk_codec import decompressed

logger = logging.getLogger(__name__)
_MANIFEST = "buffer.json"
_STATE = "state.pt"
_FORMAT = "rlx.buffer"
_KEPT_BLOCKS = 2
_NAME = re.compile(r"[0-9a-f]{32}")
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Errors of torch for damaged bytes.
_DAMAGES = (
    *(OSError, RuntimeError, EOFError, LookupError, TypeError, ValueError, AttributeError, AssertionError),
    *(ArithmeticError, struct.error, pickle.UnpicklingError),
)
_LAYOUT = "expected what rlx's ReplayBuffer.dumps writes: buffer.json and a directory of blocks that it names"


@dataclass(frozen=True, slots=True)
class BufferLeaves:
    """The leaves of a dumped buffer.

    Args:
        numbers: number of the file of every leaf, by TED path.
        steps: [b] steps in each block.
        sizes: [b, leaves] compressed bytes of each leaf in each block.
    """

    root: Path
    folder: str
    numbers: Mapping[str, int]
    steps: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def files(self, kinds: Mapping[str, RowType]) -> Sequence[str]:
        """Return one file per leaf."""
        return [f"{self.folder}/{self.numbers[path]}.zst" for path in kinds]

    @contextmanager
    def opened(self, kinds: Mapping[str, RowType]) -> Iterator[Mapping[str, LeafRows]]:
        """Yield the open leaves; raises as ``Leaves`` does."""
        with ExitStack() as stack:
            leaves: dict[str, LeafRows] = {}
            for path, kind in kinds.items():
                name = self.root / self.folder / f"{self.numbers[path]}.zst"
                try:
                    file = stack.enter_context(opened_file(name))
                except FileNotFoundError as exc:
                    raise SourceNotFoundError(f"{name} is missing") from exc
                leaves[path] = _BlockLeaf(
                    f"{self.root}: {path}", file, kind, self.steps, self.sizes[:, self.numbers[path]]
                )
            yield leaves


class _BlockLeaf:
    """Rows of numbers in blocks that are compressed one by one; the last blocks read are cached."""

    def __init__(
        self, place: str, file: BinaryIO, kind: RowType, steps: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> None:
        self.place = place
        self._file = file
        self._dtype, self._shape = np.dtype(kind[0]), kind[1]
        self._ends = np.cumsum(steps)
        self._steps = steps
        self._sizes = sizes
        self._places = np.cumsum(sizes) - sizes
        self._kept: OrderedDict[int, NDArray[Any]] = OrderedDict()
        expected, found = int(sizes.sum()), os.fstat(file.fileno()).st_size
        if found != expected:
            raise CorruptShardError(f"{file.name}: expected {expected:,} bytes, found {found:,}")

    def read(self, first: int, count: int, stride: int = 1) -> NDArray[Any]:
        parts, row, stop = [], first, first + (count - 1) * stride + 1
        while row < stop:
            block = int(np.searchsorted(self._ends, row, side="right"))
            start = int(self._ends[block] - self._steps[block])
            rows = self._block(block)[row - start : stop - start : stride]
            parts.append(rows)
            row += len(rows) * stride
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _block(self, block: int) -> NDArray[Any]:
        if block not in self._kept:
            if len(self._kept) >= _KEPT_BLOCKS:
                self._kept.popitem(last=False)
            self._kept[block] = self._decoded(block)
        self._kept.move_to_end(block)
        return self._kept[block]

    def _decoded(self, block: int) -> NDArray[Any]:
        size, steps = int(self._sizes[block]), int(self._steps[block])
        expected = steps * math.prod(self._shape) * self._dtype.itemsize
        self._file.seek(int(self._places[block]))
        try:
            raw = decompressed(self._file.read(size), expected)
        except ValueError as exc:
            raise CorruptShardError(f"{self.place}: block {block} is damaged: {exc}") from exc
        return np.frombuffer(raw, self._dtype).reshape(steps, *self._shape)


@expecting(_LAYOUT)
def open_buffer(path: Path) -> TedRun:
    """Return the steps of a dumped buffer, lane by lane, oldest first; needs torch."""
    path = path.absolute()
    check_readable(path / _MANIFEST)
    try:
        manifest, is_checked = read_sealed(path / _MANIFEST, _FORMAT)
        kinds, leaves = _described(path, manifest)
        if is_checked:
            check_files(path / leaves.folder, manifest.get("checksums"))
        else:
            logger.warning("%s was not checked: it has no checksums", path)
    except (CorruptDatasetError, FormatVersionError) as exc:
        raise CorruptShardError(str(exc), hint=exc.hint) from exc
    lanes, is_complete = _state(path / leaves.folder / _STATE)
    if not len(leaves.steps):
        raise SourceError(f"{path} has no step")
    if lanes < 1 or (leaves.steps % lanes).any():
        raise CorruptShardError(f"{path / _MANIFEST}: blocks: expected multiples of {lanes:,} steps")
    fields = ted_fields(kinds, str(path))
    known = {name: kind for name, kind in kinds.items() if kind is not None}
    place = TedPlace(path, path, leaves, known, _LAYOUT)
    recording = Recording.COMPLETE if is_complete else Recording.WRAPPED
    with leaves.opened(scanned(fields, known)) as files:
        each = int(leaves.steps.sum()) // lanes
        notes = {"format": "rlx's replay buffer"}
        return make_run(place, fields, files, _runs(leaves.steps, lanes), lane=each, recording=recording, notes=notes)


def _runs(steps: NDArray[np.int64], lanes: int) -> RowRuns:
    """Return the rows of every lane; a block has some of each, one lane after the other."""
    counts = steps // lanes
    starts = np.cumsum(steps) - steps
    first = (starts + np.arange(lanes)[:, None] * counts).reshape(-1)
    return RowRuns(first, np.tile(counts, lanes), 1)


def _described(path: Path, manifest: Mapping[str, Any]) -> tuple[dict[str, RowType | None], BufferLeaves]:
    try:
        folder = str(manifest["files"])
        kinds: dict[str, RowType | None] = {}
        for leaf in manifest["leaves"]:
            parts, shape = list(leaf["key"]), tuple(int(size) for size in leaf["shape"])
            is_known = leaf["dtype"] in NUMBERS and all(_KEY.fullmatch(part) for part in parts)
            kinds["/".join(parts)] = (str(leaf["dtype"]), shape) if is_known and min(shape, default=0) >= 0 else None
        steps = np.array([block["steps"] for block in manifest["blocks"]], np.int64)
        sizes = np.array([block["bytes"] for block in manifest["blocks"]], np.int64).reshape(len(steps), len(kinds))
    except (KeyError, TypeError, ValueError, OverflowError) as exc:
        raise CorruptShardError(f"{path / _MANIFEST} is damaged: {exc!r}") from exc
    if not _NAME.fullmatch(folder) or (steps < 1).any() or (sizes < 0).any():
        raise CorruptShardError(f"{path / _MANIFEST} is damaged: files {folder!r:.80}, or a block without steps")
    return kinds, BufferLeaves(path, folder, {name: number for number, name in enumerate(kinds)}, steps, sizes)


def _state(path: Path) -> tuple[int, bool]:
    """Return how many lanes a buffer has, and whether it still has every step ever written."""
    import torch  # workers get the result, and do not need it

    check_readable(path)
    try:
        state = torch.load(path, weights_only=True, mmap=True)
        if isinstance(state["storage"], Mapping) and "dataset" in state["storage"]:
            raise SourceError(f"{path.parent.parent} is a buffer over a dataset, which has the steps")
        lanes, length = math.prod(state["lane_shape"]), int(state["length"])
        return lanes, int(state["write_count"]) <= length
    except _DAMAGES as exc:
        raise CorruptShardError(f"{path} is damaged: {exc}") from exc
