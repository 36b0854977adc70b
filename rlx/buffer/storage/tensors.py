"""Steps in tensors: in memory, or in files that are mapped into it."""

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rlx.accelerator import device_named, present
from rlx.buffer.index.continuity import Columns, Leaves, Path, taken
from rlx.buffer.protocol import Rows
from rlx.buffer.storage.ring import RingStorage
from rlx.buffer.storage.step_schema import in_torch, leaves_of, schema_of, signed, text_leaves
from rlx.errors import DatasetExistsError, DiskFullError, SamplingError, SchemaMismatchError
from rlx.files.disk import disk_errors, file_error

_SMALL = 4096  # bytes of a row up to which numpy picks rows faster than torch
_SYSTEM_ERROR = re.compile(r"\((\d+)\)$")  # how torch ends what the operating system said
_WRITES = "%writes.memmap"  # the number of steps ever written, by all processes; no key has this file


class LazyTensorStorage(RingStorage):
    """Storage in memory: one tensor per key, allocated by the first write.

    Args:
        max_size: maximum number of steps, over all lanes.
        ndim: dimensions of the written steps: those of the lanes, then time.
        device: device of the tensors, and of batches.

    Example:
        >>> from tensordict import TensorDict
        >>> storage = LazyTensorStorage(4)
        >>> storage.append(TensorDict({"action": torch.arange(6)}, [6]))
        array([0, 1, 2, 3, 0, 1])
        >>> storage.get(storage.row_at(np.arange(4)))["action"]
        tensor([2, 3, 4, 5])
    """

    def __init__(self, max_size: int, *, ndim: int = 1, device: torch.device | str = "cpu") -> None:
        super().__init__(max_size, ndim=ndim)
        self.device = device_named(device)
        self._hold({})

    def _allocate(self) -> None:
        self.device = present(self.device)
        # Memory that was never written is never read either: rows that hold nothing are refused.
        self._hold(
            {
                path: torch.empty(self.max_size, *shape, dtype=dtype, device=self.device)
                for path, (dtype, shape) in self._schema.items()
            }
        )

    def _hold(self, tensors: dict[Path, torch.Tensor]) -> None:
        """Keep steps in these tensors."""
        self._tensors = tensors
        # Where numpy knows the dtype, it copies a few small rows in a quarter of torch's time.
        numpy = {path: leaf for path, leaf in tensors.items() if leaf.is_cpu and leaf.dtype != torch.bfloat16}
        self._arrays = {path: leaf.detach().numpy() for path, leaf in numpy.items()}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_arrays": {}}  # a copy of an array would be no view of the tensor's copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hold(self._tensors)

    def _write(self, rows: Rows, leaves: Leaves) -> None:
        at = torch.from_numpy(rows).to(self.device)
        for path, leaf in leaves.items():
            signed(self._tensors[path]).index_copy_(0, at, signed(leaf.to(self.device)))

    def _append(self, rows: Rows, leaves: Columns) -> None:
        lanes, size, count = self._ring.lanes, self._ring.size, rows.shape[1]
        begin = int(rows[0, 0])
        if lanes > 1 and (rows[:, 0] != begin + np.arange(lanes) * size).any():
            super()._append(rows, leaves)
            return
        before_wrap = min(count, size - begin)
        arrays, end = self._arrays if self.ndim == 1 else {}, begin + count
        for path, leaf in leaves.items():
            if path in arrays:
                array, new = arrays[path], leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else leaf
                if end <= size:
                    array[begin:end] = new  # a single step, without a dimension of time, is repeated once
                else:
                    array[begin:], array[: end - size] = new[:before_wrap], new[before_wrap:]
                continue
            tensor = self._tensors[path]
            rings = tensor[: lanes * size].view(lanes, size, *tensor.shape[1:])
            steps = in_torch(leaf).reshape(lanes, count, *rings.shape[2:])
            rings[:, begin : begin + before_wrap] = steps[:, :before_wrap]
            rings[:, : count - before_wrap] = steps[:, before_wrap:]

    def _read(self, rows: Rows, paths: Sequence[Path], *, may_be_arrays: bool = False) -> Columns:
        found: dict[Path, Any] = {}
        at: torch.Tensor | None = None
        for path in paths:
            array = self._arrays.get(path)
            if array is not None and array.strides[0] <= _SMALL:
                taken_rows = array.take(rows, axis=0)
                found[path] = taken_rows if may_be_arrays else torch.from_numpy(taken_rows)
                continue
            at = torch.from_numpy(rows).to(self.device) if at is None else at
            leaf = self._tensors[path]
            found[path] = signed(leaf).index_select(0, at).view(leaf.dtype)
        return found

    def _observations(self, paths: Sequence[Path], rows: Rows, after: bool) -> Sequence[torch.Tensor]:
        return [taken(self._tensors[("next", *path) if after else path], rows) for path in paths]


class LazyMemmapStorage(LazyTensorStorage):
    """Storage in memory-mapped files, one per key, sparse until written.

    Args:
        max_size: maximum number of steps, over all lanes.
        scratch_dir: directory of the files, which are kept; by default a new temporary directory, which is removed with
            the storage.
        existsok: whether existing files of another storage may be overwritten.
        ndim: dimensions of the written steps.

    Raises:
        DatasetExistsError: (at the first write) scratch_dir has files of another storage.
        DiskFullError: (at the first write) the disk has no space for ``max_size`` steps.

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.buffer.LazyMemmapStorage(1000, scratch_dir="scratch"), batch_size=8)
        >>> _ = buffer.extend(rlx.open("cartpole")[:100])
        >>> buffer.sample()["action"].shape
        torch.Size([8])
    """

    is_in_files = True

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | os.PathLike[str] | None = None,
        existsok: bool = False,
        ndim: int = 1,
    ) -> None:
        super().__init__(max_size, ndim=ndim)
        self._directory = None if scratch_dir is None else FilePath(scratch_dir)
        self._exists_ok = existsok
        self._written = 0

    @property
    def scratch_dir(self) -> FilePath | None:
        """Directory of the files; None before the first write if none was given."""
        return self._directory

    def _allocate(self) -> None:
        if self._directory is None:
            self._directory = FilePath(tempfile.mkdtemp(prefix="rlx-"))
            weakref.finalize(self, _remove, self._directory, os.getpid())
        with disk_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            if not self._exists_ok and (found := sorted(self._directory.glob("*.memmap"))):
                raise DatasetExistsError(f"{found[0]} exists", hint="give another scratch_dir, or existsok=True")
            for file in [*map(self._file, self._schema), self._directory / _WRITES]:
                file.unlink(missing_ok=True)
        needed, free = self._bytes(), shutil.disk_usage(self._directory).free
        if needed > free:
            raise DiskFullError(f"{self._directory} has {free:,} bytes left, expected {needed:,} for {self!r}")
        self._map()

    def _bytes(self) -> int:
        steps = (torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in self._schema.values())
        return self.max_size * sum(step.nbytes for step in steps)

    def _file(self, path: Path) -> FilePath:
        names = "-".join("".join(c if c.isalnum() or c == "_" else f"%{ord(c):x}" for c in name) for name in path)
        assert self._directory is not None
        return self._directory / f"{names}.memmap"

    def _announce(self, new: int) -> None:
        # Other processes learn of it before their steps are overwritten.
        if int(self._writes[0]) != self._written:
            raise SamplingError(f"another process wrote steps to {self._directory}: expected one writer")
        self._written += new
        self._writes[0] = self._written

    def _read(self, rows: Rows, paths: Sequence[Path], *, may_be_arrays: bool = False) -> Columns:
        leaves = super()._read(rows, paths, may_be_arrays=may_be_arrays)
        if new := int(self._writes[0]) - self._written:
            lanes, times = self._ring.locate(rows)
            if (times < self._ring.tail[lanes] + new - self._ring.size).any():
                raise SamplingError(
                    f"another process has overwritten steps of {self!r} with {new:,} new ones",
                    hint="sample in the process that writes, or use a RayReplayBuffer",
                )
        return leaves

    def _map(self) -> None:
        assert self._directory is not None
        self._writes = _mapped(self._directory / _WRITES, 1, torch.int64)
        tensors = {}
        for path, (dtype, shape) in self._schema.items():
            count = self.max_size * int(np.prod(shape, dtype=np.int64))
            tensors[path] = _mapped(self._file(path), count, dtype).reshape(self.max_size, *shape)
        self._hold(tensors)

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the same files; a copy of them would be as large as the room that was given.
        return super().__getstate__() | {"_tensors": {}, "_writes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._schema:
            self._map()


def _mapped(file: FilePath, count: int, dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.from_file(str(file), shared=True, size=count, dtype=dtype)
    except RuntimeError as exc:
        if (code := _SYSTEM_ERROR.search(str(exc))) is None:
            raise
        raise file_error(OSError(int(code[1]), os.strerror(int(code[1]))), file, "opened") from exc


def _remove(directory: FilePath, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


class TensorStorage(LazyTensorStorage):
    """Storage over the tensors of a TensorDict, without a copy: full from the start, and changed by writes.

    Args:
        storage: steps [n], or [*lanes, n] of ``ndim`` dimensions; the first of a lane is its oldest.
        max_size: the number of steps; any other number is an error.
        device: moves the tensors there, which makes a copy; by default they stay where they are.
        ndim: dimensions of the steps. Of more than one, tensors that are not contiguous are copied.

    Raises:
        SchemaMismatchError: ``storage`` is not a TensorDict with ``ndim`` dimensions, or holds a non-tensor.
        ValueError: ``max_size`` is another number.

    Example:
        >>> from tensordict import TensorDict
        >>> steps = TensorDict({"action": torch.arange(3)}, [3])
        >>> storage = TensorStorage(steps)
        >>> storage.append(TensorDict({"action": torch.tensor([9])}, [1]))
        array([0])
        >>> steps["action"]
        tensor([9, 1, 2])
    """

    def __init__(
        self,
        storage: TensorDictBase,
        max_size: int | None = None,
        *,
        device: torch.device | str | None = None,
        ndim: int = 1,
    ) -> None:
        if not isinstance(storage, TensorDictBase) or storage.batch_dims < ndim:
            found = list(storage.batch_size) if isinstance(storage, TensorDictBase) else type(storage).__name__
            raise SchemaMismatchError(f"storage: expected a TensorDict of {ndim} dimensions, found {found}")
        shape = storage.batch_size[:ndim]
        if max_size not in (None, shape.numel()):
            raise ValueError(f"max_size {max_size}: expected {shape.numel()}, the steps of the TensorDict")
        tensors = flat_leaves(storage, ndim)
        first = next(iter(tensors.values()), torch.empty(0))
        super().__init__(shape.numel(), ndim=ndim, device=first.device if device is None else device)
        self._schema = schema_of(tensors, 1)
        self._hold({path: leaf.to(self.device) for path, leaf in tensors.items()})
        self._lay_out(tuple(shape[:-1]))
        self._ring.push(slice(None), shape[-1])


def flat_leaves(steps: TensorDictBase, ndim: int) -> dict[Path, torch.Tensor]:
    """Return plain tensors [n, ...] over the memory of steps, by path, with the first ``ndim`` dimensions joined."""
    for path in text_leaves(steps):
        raise SchemaMismatchError(f"{'/'.join(path)}: expected a tensor, found text", hint="use LazyTensorStorage")
    plain: dict[Path, Any] = {path: leaf.detach() for path, leaf in leaves_of(steps).items()}
    return {path: leaf.as_subclass(torch.Tensor).flatten(0, ndim - 1) for path, leaf in plain.items()}


class MappedStorage(TensorStorage):
    """Steps in the files that ``TensorDict.load_memmap`` opens; full from the start, and changed when written."""

    is_in_files = True

    def __init__(self, path: FilePath) -> None:
        self._path = path
        super().__init__(TensorDict.load_memmap(path))

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_tensors": {}}  # another process maps the same files

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._hold(flat_leaves(TensorDict.load_memmap(self._path), 1))
