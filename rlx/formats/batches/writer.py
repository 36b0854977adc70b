"""Writers of HDF5, JSON lines, torch's ``.pt`` and Zarr groups."""

import io
import json
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.files.disk import check_case
from rlx.formats.common.batches import Columns, gathered, tree, with_values, without_nul
from rlx.formats.common.hdf5.output import Disk

if TYPE_CHECKING:
    import zarr

_CHUNK_BYTES = 2**18


def _chunk(rows: NDArray[np.generic]) -> tuple[int, ...]:
    row_bytes = max(1, rows[:1].nbytes)
    return max(1, min(len(rows), _CHUNK_BYTES // row_bytes)), *rows.shape[1:]


class H5Exporter:
    """Writer of one dataset per column, gzipped in chunks of about 256 kB, batch by batch. Texts are variable-length
    UTF-8."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write one dataset per column, in groups by their names."""
        if file.seekable():
            _write_h5(batches, file)
            return
        # HDF5 seeks in its file, which a pipe cannot.
        memory = io.BytesIO()
        _write_h5(batches, memory)
        memory.seek(0)
        shutil.copyfileobj(memory, file)


def _write_h5(batches: Iterable[Columns], file: BinaryIO) -> None:
    disk = Disk(file)
    try:
        with h5py.File(disk, "w") as root:
            for batch in batches:
                for name, rows in batch.items():
                    with_values(name, rows, "h5")
                    if rows.dtype == object:
                        without_nul(name, rows, "h5")
                    if name in root:
                        _append_h5(root[name], rows)
                    else:
                        _create_h5(root, name, rows)
                disk.check()
    finally:
        disk.check()


def _create_h5(file: h5py.File, name: str, rows: NDArray[np.generic]) -> None:
    dtype = h5py.string_dtype() if rows.dtype == object else rows.dtype
    limits = {"maxshape": (None, *rows.shape[1:]), "chunks": _chunk(rows)}
    file.create_dataset(name, data=rows, dtype=dtype, compression="gzip", **limits)


def _append_h5(dataset: h5py.Dataset, rows: NDArray[np.generic]) -> None:
    before = len(dataset)
    dataset.resize(before + len(rows), axis=0)
    dataset[before:] = rows


class JsonlExporter:
    """Writer of one line per step, nested as in TED.

    Numbers that JSON lacks are written as ``NaN`` and ``Infinity``, which Python's ``json`` reads, but strict parsers,
    such as ``JSON.parse`` of JavaScript, refuse.
    """

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write one line per step."""
        for batch in batches:
            names = list(batch)
            for step in zip(*batch.values(), strict=True):
                values = {
                    name: value if isinstance(value, str) else value.tolist()
                    for name, value in zip(names, step, strict=True)
                }
                file.write(json.dumps(tree(values), separators=(",", ":")).encode() + b"\n")


class PtExporter:
    """Writer of nested dicts of tensors, and of lists of texts; holds all rows in memory.

    ``torch.load(file)["next"]["reward"]`` needs no pickled code (``weights_only=True``).
    """

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write one tensor per column."""
        import torch  # takes seconds; other formats do not need it

        tensors = {
            name: rows.tolist() if rows.dtype == object else torch.from_numpy(rows)
            for name, rows in gathered(batches).items()
        }
        disk = Disk(file)  # torch reports a full disk or a closed pipe only as an offset in the file
        torch.save(tree(tensors), cast("IO[bytes]", disk))
        disk.check()


class ZarrExporter:
    """Writer of one array per column, in chunks of about 256 kB, batch by batch; texts are zarr's strings."""

    def write_directory(self, batches: Iterable[Columns], directory: Path) -> None:
        """Write one array per column, in groups by their names."""
        import zarr  # takes a second; other formats do not need it

        disk = _zarr_disk(directory)
        # zarr writes in threads of its own, which Ctrl-C does not stop: leaving the pool waits for the write.
        with ThreadPoolExecutor(1) as pool:
            try:
                group = pool.submit(zarr.create_group, disk).result()
                arrays: dict[str, zarr.Array[Any]] = {}
                for batch in batches:
                    if not arrays:
                        check_case(batch, directory / "zarr.json")
                    pool.submit(_append_zarr, group, arrays, batch).result()
                    disk.check()
            finally:
                disk.check()


def _zarr_disk(directory: Path) -> Any:
    """Return a directory that hides failed writes from zarr, which returns from the first while others are under way.

    Its ``check`` raises the error of the first failed write, if any.
    """
    from zarr.storage import LocalStore

    class ZarrDisk(LocalStore):
        failure: OSError | None = None

        def check(self) -> None:
            if self.failure is not None:
                raise self.failure

        async def set(self, key: str, value: Any) -> None:
            if self.failure is None:
                try:
                    await super().set(key, value)
                except OSError as exc:
                    self.failure = self.failure or exc

    return ZarrDisk(directory)


def _append_zarr(group: "zarr.Group", arrays: "dict[str, zarr.Array[Any]]", batch: Columns) -> None:
    for name, rows in batch.items():
        if name in arrays:
            arrays[name].append(rows)
        else:
            arrays[name] = _create_zarr(group, name, rows)


def _create_zarr(group: "zarr.Group", name: str, rows: NDArray[np.generic]) -> "zarr.Array[Any]":
    chunks = _chunk(rows)
    if rows.dtype != object:
        return group.create_array(name, data=rows, chunks=chunks)
    texts = group.create_array(name, shape=rows.shape, dtype=str, chunks=chunks)
    texts[:] = rows
    return texts


H5 = H5Exporter()
JSONL = JsonlExporter()
PT = PtExporter()
ZARR = ZarrExporter()
