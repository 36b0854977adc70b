"""A buffer at rest: a directory that changes from one whole checkpoint to the next in one step.

<path>/buffer.json    format version, leaves, blocks; names the directory of the files below, and has their checksums
<path>/<hex>/0.zst    a leaf's blocks of steps, each one zstd frame with a checksum
<path>/<hex>/state.pt where storage, sampler and writer stand
"""

import io
import json
import logging
import math
import os
import pickle
import re
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
import zstandard
from tensordict import TensorDict, TensorDictBase

from rlx.buffer.storage.step_schema import leaves, nested
from rlx.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    SchemaMismatchError,
)
from rlx.files.beneath import remove, try_remove
from rlx.files.disk import disk_errors, opened_file, reading
from rlx.files.durable import make_directories, sync, sync_tree
from rlx.files.sealed import CHECKED, check_files, checksums, read_sealed, sealed
from rlx.files.urls import check_path
from rlx.store.chunk_codec import decompressed

logger = logging.getLogger(__name__)
Hook = Callable[[TensorDictBase], TensorDictBase]
FORMAT = "rlx.buffer"
_MANIFEST = "buffer.json"
_STATE = "state.pt"
# Errors of torch for damaged bytes.
DAMAGES = (
    *(RuntimeError, EOFError, LookupError, TypeError, ValueError, AttributeError, AssertionError),
    *(ArithmeticError, struct.error, pickle.UnpicklingError),
)
HEX_NAME = re.compile(r"[0-9a-f]{32}")  # of a directory of files


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of every step."""

    key: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]


def save(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    steps: Iterable[TensorDictBase] = (),
    hooks: Sequence[Hook] = (),
    *,
    write_beside: Callable[[Path], None] | None = None,
) -> None:
    """Write a checkpoint, replacing an existing one; parent directories are created.

    Args:
        state: numbers, lists and tensors.
        write_beside: writes further files into the directory of the checkpoint's files, which ``load`` returns.

    Raises:
        OptionError: path is neither a text nor a path.
        DatasetExistsError: the directory holds something else.
        DiskFullError: no space is left; an existing checkpoint stays.
    """
    path = Path(check_path("path", path, "a directory"))
    if path.exists() and not (path / _MANIFEST).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise DatasetExistsError(f"{path} exists and is not a checkpoint of a buffer", hint="choose another path")
    with disk_errors(path):
        _replace(path, state, (_hooked(block, hooks) for block in steps), write_beside)


def _replace(
    path: Path,
    state: Mapping[str, Any],
    steps: Iterable[TensorDictBase],
    write_beside: Callable[[Path], None] | None,
) -> None:
    directory = path / uuid.uuid4().hex
    make_directories(path)
    directory.mkdir()
    try:
        manifest = write_blocks(directory, steps)
        if write_beside is not None:
            write_beside(directory)
        data = io.BytesIO()  # torch reports a full disk only as an offset in the file
        torch.save(dict(state), data)
        (directory / _STATE).write_bytes(data.getbuffer())
        described = {"format": FORMAT, "version": CHECKED, "files": directory.name, **manifest}
        partial = directory / _MANIFEST
        partial.write_bytes(sealed(json.dumps({**described, "checksums": checksums(directory)}, indent=1)))
        sync_tree(directory)
        sync(path)  # the directory, before its manifest takes the place of another's
    except BaseException:
        try_remove(directory)
        raise
    partial.replace(path / _MANIFEST)
    sync(path)  # before the files of the last checkpoint go
    for other in path.iterdir():
        if HEX_NAME.fullmatch(other.name) and other != directory:
            remove(other)


def _hooked(block: TensorDictBase, hooks: Sequence[Hook]) -> TensorDictBase:
    for hook in hooks:
        block = hook(block)
    return block


def write_blocks(directory: Path, steps: Iterable[TensorDictBase]) -> dict[str, Any]:
    """Append blocks of steps to the files of a directory, one of each leaf; return their ``leaves`` and ``blocks``."""
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    described: list[dict[str, Any]] = []
    written: list[dict[str, Any]] = []
    with ExitStack() as stack:
        files: list[BinaryIO] = []
        for block in steps:
            tensors = leaves(block.cpu())
            if not described:
                described = [_leaf_json(key, tensor) for key, tensor in tensors]
                files = [stack.enter_context((directory / f"{i}.zst").open("ab")) for i in range(len(tensors))]
            frames = [compressor.compress(tensor.reshape(-1).view(torch.uint8).numpy().data) for _, tensor in tensors]
            for file, frame in zip(files, frames, strict=True):
                file.write(frame)
            written.append({"steps": block.batch_size[0], "bytes": [len(frame) for frame in frames]})
    return {"leaves": described, "blocks": written}


def _leaf_json(key: tuple[str, ...], tensor: torch.Tensor) -> dict[str, Any]:
    return {"key": list(key), "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape[1:])}


def load(
    path: str | os.PathLike[str], part: str = "a buffer", hooks: Sequence[Hook] = ()
) -> tuple[dict[str, Any], Iterator[TensorDictBase], Path]:
    """Return the state, the blocks of steps and the directory of the files of a checkpoint.

    Blocks are read when they are asked for.

    Args:
        part: what the checkpoint must be one of, as its state says.
    """
    path = Path(check_path("path", path, "a directory"))
    if not (path / _MANIFEST).exists():
        raise DatasetNotFoundError(f"{path} holds no checkpoint of a buffer")
    manifest, is_checked = read_sealed(path / _MANIFEST, FORMAT)
    name = str(manifest.get("files"))
    if not HEX_NAME.fullmatch(name):
        raise CorruptDatasetError(f"{path / _MANIFEST} is damaged: files {name!r}")
    if is_checked:
        check_files(path / name, manifest.get("checksums"))
    else:
        warn_unchecked(path)
    steps = read_blocks(path / name, manifest)
    state = _state(path / name / _STATE)
    if (found := state.get("part", "a buffer")) != part:
        raise SchemaMismatchError(f"{path} is a checkpoint of {found}, expected one of {part}")
    return state, (_hooked(block, hooks) for block in steps), path / name


def read_blocks(directory: Path, manifest: Mapping[str, Any], only: str | None = None) -> Iterator[TensorDictBase]:
    """Return the blocks of steps that ``write_blocks`` wrote; they are read when they are asked for.

    Args:
        manifest: with what ``write_blocks`` returned.
        only: the key of the one leaf to read; all by default.
    """
    try:
        described = [_leaf(leaf) for leaf in manifest["leaves"]]
        sizes = [(int(block["steps"]), [int(size) for size in block["bytes"]]) for block in manifest["blocks"]]
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CorruptDatasetError(f"{directory}: its manifest is damaged: {exc!r}") from exc
    return _read_steps(directory, described, sizes, only)


def warn_unchecked(path: Path) -> None:
    """Log that a checkpoint of an earlier rlx is loaded without a check."""
    logger.warning("%s was not checked: it has no checksums; save it again to add them", path)


def _leaf(described: Mapping[str, Any]) -> Leaf:
    dtype = getattr(torch, described["dtype"], None)
    key = tuple(described["key"])
    shape = tuple(int(size) for size in described["shape"])
    if not isinstance(dtype, torch.dtype) or not key or min(shape, default=0) < 0:
        raise ValueError(f"leaf {described}")
    if not all(isinstance(part, str) and part for part in key):
        raise ValueError(f"leaf {described}")
    return Leaf(key, dtype, shape)


def _state(path: Path) -> dict[str, Any]:
    try:
        with reading(path), opened_file(path) as file:
            state: dict[str, Any] = torch.load(file, weights_only=True)
            _ = state.keys()
    except DAMAGES as exc:
        raise CorruptDatasetError(f"{path} is damaged: {exc}") from exc
    return state


def _read_steps(
    directory: Path, described: list[Leaf], sizes: list[tuple[int, list[int]]], only: str | None
) -> Iterator[TensorDictBase]:
    chosen = [i for i, leaf in enumerate(described) if only is None or leaf.key == (only,)]
    with reading(directory), ExitStack() as stack:
        files = [stack.enter_context(opened_file(directory / f"{i}.zst")) for i in chosen]
        for steps, lengths in sizes:
            if len(lengths) != len(described) or steps < 1:
                raise CorruptDatasetError(f"{directory}: a block of {steps} steps has {len(lengths)} leaves")
            named = {
                described[i].key: _read_leaf(file, described[i], steps, lengths[i])
                for file, i in zip(files, chosen, strict=True)
            }
            yield TensorDict(nested(named), [steps])


def _read_leaf(file: BinaryIO, leaf: Leaf, steps: int, length: int) -> torch.Tensor:
    expected = math.prod((steps, *leaf.shape)) * leaf.dtype.itemsize
    left = os.fstat(file.fileno()).st_size - file.tell()
    if not 0 <= length <= left:
        raise CorruptDatasetError(f"{file.name}: a block of {length:,} bytes, of which {left:,} are left")
    with reading(file.name):
        compressed = file.read(length)
    try:
        raw = decompressed(compressed, expected)
    except ValueError as exc:
        raise CorruptDatasetError(f"{file.name} is damaged: {exc}") from exc
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    return flat.view(leaf.dtype).reshape(steps, *leaf.shape)
