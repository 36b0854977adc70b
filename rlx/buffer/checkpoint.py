"""A buffer at rest: a directory that changes from one whole checkpoint to the next in one step.

<path>/buffer.json    format version, leaves, blocks; names the directory of the files below
<path>/<hex>/0.zst    a leaf's blocks of steps, each one zstd frame with a checksum
<path>/<hex>/state.pt where storage, sampler and writer stand
"""

import json
import os
import pickle
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
import zstandard
from tensordict import TensorDictBase

from rlx.buffer.snapshot import blocks, describe_storage, in_lanes, keeps_rows, rows_and_steps
from rlx.buffer.storage.step_schema import leaves, tree
from rlx.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    FormatVersionError,
    SchemaMismatchError,
)
from rlx.files.atomic import sync, sync_tree

Hook = Callable[[TensorDictBase], TensorDictBase]
FORMAT = "rlx.buffer"
VERSION = 1
_MANIFEST = "buffer.json"
_STATE = "state.pt"
_MAX_RATIO = 1 << 16
_NAME = re.compile(r"[0-9a-f]{32}")
_PATH_PART = re.compile(r"[^/]{1,200}")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of every step.

    Args:
        key: its path.
        dtype: torch's name of its dtype.
        shape: of one step's.
    """

    key: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def step_bytes(self) -> int:
        """Bytes of one step's."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def save(
    path: Path,
    state: Mapping[str, Any],
    steps: Iterable[TensorDictBase] = (),
    hooks: Sequence[Hook] = (),
    *,
    write_beside: Callable[[Path], None] | None = None,
) -> None:
    """Write a checkpoint in place of the one that is there, if any; parents are made.

    Args:
        path: the directory.
        state: numbers, lists and tensors.
        steps: blocks of steps.
        hooks: applied to each block.
        write_beside: writes further files into the directory of the checkpoint's files, which ``files_of`` returns.

    Raises:
        DatasetExistsError: there is something else.
    """
    if path.exists() and not (path / _MANIFEST).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise DatasetExistsError(f"{path} exists and is not a checkpoint of a buffer", hint="choose another path")
    directory = path / uuid.uuid4().hex
    directory.mkdir(parents=True)
    try:
        manifest = _write_steps(directory, (_hooked(block, hooks) for block in steps))
        if write_beside is not None:
            write_beside(directory)
        torch.save(dict(state), directory / _STATE)
        partial = directory / _MANIFEST
        partial.write_text(json.dumps({"format": FORMAT, "version": VERSION, "files": directory.name, **manifest}))
        sync_tree(directory)
    except BaseException:
        shutil.rmtree(directory)
        raise
    partial.replace(path / _MANIFEST)
    sync(path)  # before the files of the last checkpoint go
    for other in path.iterdir():
        if _NAME.fullmatch(other.name) and other != directory:
            shutil.rmtree(other)


def _hooked(block: TensorDictBase, hooks: Sequence[Hook]) -> TensorDictBase:
    for hook in hooks:
        block = hook(block)
    return block


def _write_steps(directory: Path, steps: Iterable[TensorDictBase]) -> dict[str, Any]:
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    described: list[dict[str, Any]] = []
    written: list[dict[str, Any]] = []
    with ExitStack() as stack:
        files: list[BinaryIO] = []
        for block in steps:
            tensors = leaves(block.cpu())
            if not described:
                described = [_leaf_json(key, tensor) for key, tensor in tensors]
                files = [stack.enter_context((directory / f"{i}.zst").open("wb")) for i in range(len(tensors))]
            frames = [compressor.compress(tensor.reshape(-1).view(torch.uint8).numpy().data) for _, tensor in tensors]
            for file, frame in zip(files, frames, strict=True):
                file.write(frame)
            written.append({"steps": block.batch_size[0], "bytes": [len(frame) for frame in frames]})
    return {"leaves": described, "blocks": written}


def _leaf_json(key: tuple[str, ...], tensor: torch.Tensor) -> dict[str, Any]:
    return {"key": list(key), "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape[1:])}


def load(path: Path, hooks: Sequence[Hook] = ()) -> tuple[dict[str, Any], Iterator[TensorDictBase]]:
    """Return the state and the blocks of steps of a checkpoint; blocks are read when they are asked for.

    Raises:
        DatasetNotFoundError: the directory holds no checkpoint.
        FormatVersionError: another format version wrote it.
        CorruptDatasetError: it is damaged.
    """
    manifest = _manifest(path)
    try:
        blocks = list(manifest["blocks"])
        described = [_leaf(leaf) for leaf in manifest["leaves"]]
        sizes = [(int(block["steps"]), [int(size) for size in block["bytes"]]) for block in blocks]
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CorruptDatasetError(f"{path / _MANIFEST} is damaged: {exc!r}") from exc
    directory = _files(path, manifest)
    return _state(directory / _STATE), _read_steps(directory, described, sizes, hooks)


def files_of(path: Path) -> Path:
    """Return the directory of a checkpoint's files.

    Raises:
        DatasetNotFoundError, FormatVersionError, CorruptDatasetError: as ``load`` does.
    """
    return _files(path, _manifest(path))


def _files(path: Path, manifest: Mapping[str, Any]) -> Path:
    name = str(manifest.get("files"))
    if not _NAME.fullmatch(name):
        raise CorruptDatasetError(f"{path / _MANIFEST} is damaged: files {name!r}")
    return path / name


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise DatasetNotFoundError(f"{path} holds no checkpoint of a buffer") from exc
    except ValueError as exc:
        raise CorruptDatasetError(f"{path / _MANIFEST} is damaged: {exc}") from exc
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CorruptDatasetError(f"{path / _MANIFEST}: expected format {FORMAT!r}")
    if manifest.get("version") != VERSION:
        raise FormatVersionError(
            f"{path} is of format version {manifest.get('version')!r}, expected {VERSION}",
            hint="load it with the rlx that wrote it",
        )
    return manifest


def _leaf(described: Mapping[str, Any]) -> Leaf:
    dtype = getattr(torch, described["dtype"], None)
    key = tuple(described["key"])
    shape = tuple(int(size) for size in described["shape"])
    if not isinstance(dtype, torch.dtype) or not key or min(shape, default=0) < 0:
        raise ValueError(f"leaf {described}")
    if not all(isinstance(part, str) and _PATH_PART.fullmatch(part) for part in key):
        raise ValueError(f"leaf {described}")
    return Leaf(key, dtype, shape)


def _state(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as exc:
        raise CorruptDatasetError(f"{path} is damaged: {exc}") from exc
    return state


def _read_steps(
    directory: Path, described: list[Leaf], sizes: list[tuple[int, list[int]]], hooks: Sequence[Hook]
) -> Iterator[TensorDictBase]:
    with ExitStack() as stack:
        try:
            files = [stack.enter_context((directory / f"{i}.zst").open("rb")) for i in range(len(described))]
        except OSError as exc:
            raise CorruptDatasetError(f"{directory}: a file is missing: {exc}") from exc
        for steps, lengths in sizes:
            if len(lengths) != len(described) or steps < 1:
                raise CorruptDatasetError(f"{directory}: a block of {steps} steps has {len(lengths)} leaves")
            named = {
                leaf.key: _read_leaf(file, leaf, steps, length)
                for file, leaf, length in zip(files, described, lengths, strict=True)
            }
            yield _hooked(tree(named, steps), hooks)


def _read_leaf(file: BinaryIO, leaf: Leaf, steps: int, length: int) -> torch.Tensor:
    expected = steps * leaf.step_bytes
    left = os.fstat(file.fileno()).st_size - file.tell()
    # No frame is so much larger than what it is compressed to; a damaged size must not fill the memory.
    if not 0 <= length <= left or expected > length * _MAX_RATIO:
        raise CorruptDatasetError(
            f"{file.name}: a block of {expected:,} bytes in {length:,}, of which {left:,} are left"
        )
    frame = file.read(length)
    try:
        found = zstandard.frame_content_size(frame)
        if found != expected:
            raise CorruptDatasetError(f"{file.name}: a block of {found:,} bytes, expected {expected:,}")
        raw = zstandard.ZstdDecompressor().decompress(frame, max_output_size=max(1, expected))
    except zstandard.ZstdError as exc:
        raise CorruptDatasetError(f"{file.name} is damaged: {exc}") from exc
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    return flat.view(leaf.dtype).reshape(steps, *leaf.shape)


class SavedState(ABC):
    """A part that writes its ``state_dict`` to a directory: a sampler, or a writer.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from rlx.buffer import RandomSampler
        >>> sampler, other = RandomSampler(seed=7), RandomSampler()
        >>> with TemporaryDirectory() as directory:
        ...     sampler.dumps(directory)
        ...     other.loads(directory)
        >>> other.seed
        7
    """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return numbers, lists and tensors."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from such a state."""

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a directory, in place of the checkpoint that may be there.

        Raises:
            DatasetExistsError: the directory holds something else.
        """
        save(Path(path), {"part": _kind(self), "state": self.state_dict()})

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint that ``dumps`` wrote.

        Raises:
            DatasetNotFoundError: the directory holds no checkpoint.
            FormatVersionError: another format version wrote it.
            CorruptDatasetError: the checkpoint is damaged.
            SchemaMismatchError: another kind of part wrote it.
        """
        written, _ = load(Path(path))
        check_part(written, path, _kind(self))
        self.load_state_dict(written["state"])


class SavedSteps:
    """A storage that writes its steps to a directory, compressed.

    Example:
        >>> import torch
        >>> from tempfile import TemporaryDirectory
        >>> from tensordict import TensorDict
        >>> from rlx.buffer import LazyTensorStorage, ListStorage
        >>> storage, other = ListStorage(10), LazyTensorStorage(100)
        >>> rows = storage.append(TensorDict({"action": torch.arange(3)}, [3]))
        >>> with TemporaryDirectory() as directory:
        ...     storage.dumps(directory)
        ...     other.loads(directory)
        >>> other[:]["action"]
        tensor([0, 1, 2])
    """

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the steps to a directory, in place of the checkpoint that may be there.

        Raises:
            DatasetExistsError: the directory holds something else.
        """
        storage: Any = self
        save(Path(path), {"part": "a storage", "state": describe_storage(storage)}, blocks(storage))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Hold the steps of a checkpoint that ``dumps`` of any storage wrote, and no others.

        In a storage of the same ``max_size`` they have the rows that they had; in a larger one the oldest come first.

        Raises:
            DatasetNotFoundError: the directory holds no checkpoint.
            FormatVersionError: another format version wrote it.
            CorruptDatasetError: the checkpoint is damaged; the storage may be left empty.
            SchemaMismatchError: another kind of part wrote it, it has other dimensions, or more steps than fit.
        """
        storage: Any = self
        written, steps = load(Path(path))
        check_part(written, path, "a storage")
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


class Saved(Protocol):
    """Whatever can be written to a directory."""

    def dumps(self, path: str | os.PathLike[str], /) -> None:
        """Write it."""

    def loads(self, path: str | os.PathLike[str], /) -> None:
        """Restore the written state."""


class SavedTogether(ABC):
    """Several parts that are written to one directory: all of them, or none."""

    @abstractmethod
    def _saved_parts(self) -> Sequence[Saved]:
        """Return the parts."""

    def _own_state(self) -> dict[str, Any]:
        """Return what else there is to keep."""
        return {}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (most have none)
        """Continue from what else was kept."""

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write all parts to a directory, in place of the checkpoint that may be there.

        Raises:
            DatasetExistsError: the directory holds something else.
        """
        parts = self._saved_parts()

        def write(directory: Path) -> None:
            for number, part in enumerate(parts):
                part.dumps(directory / str(number))

        state = {"part": _kind(self), "count": len(parts), "state": self._own_state()}
        save(Path(path), state, write_beside=write)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Become what ``dumps`` wrote, part by part.

        Raises:
            DatasetNotFoundError: the directory holds no checkpoint.
            FormatVersionError: another format version wrote it.
            CorruptDatasetError: the checkpoint is damaged.
            SchemaMismatchError: it is one of another number of parts, or of parts of another kind.
        """
        written, _ = load(Path(path))
        check_part(written, path, _kind(self))
        parts = self._saved_parts()
        if written["count"] != len(parts):
            raise SchemaMismatchError(
                f"{os.fspath(path)} is a checkpoint of {written['count']} parts, not {len(parts)}"
            )
        directory = files_of(Path(path))
        for number, part in enumerate(parts):
            part.loads(directory / str(number))
        self._load_own_state(written["state"])

    dump = dumps
    load = loads
    save = dumps


def _kind(part: object) -> str:
    return type(part).__name__


def check_part(state: Mapping[str, Any], path: str | os.PathLike[str], expected: str) -> None:
    """Raise SchemaMismatchError unless the state of a checkpoint is of this part, or of "a buffer"."""
    found = state.get("part", "a buffer")
    if found != expected:
        raise SchemaMismatchError(f"{os.fspath(path)} is a checkpoint of {found}, expected one of {expected}")
