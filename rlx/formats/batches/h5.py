"""HDF5: ``h5py.File(file)["next/reward"]``."""

import io
import shutil
from collections.abc import Iterable
from typing import BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.exporter import Columns, with_values, without_nul
from rlx.formats.common.hdf5.output import Disk

_CHUNK_BYTES = 2**18


class H5Exporter:
    """Writer of one dataset per column, gzipped in chunks of about 256 kB, batch by batch. Texts are variable-length
    UTF-8."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write one dataset a column, in groups as their names say."""
        if file.seekable():
            _write(batches, file)
            return
        # HDF5 goes back and forth in its file, which a pipe cannot.
        memory = io.BytesIO()
        _write(batches, memory)
        memory.seek(0)
        shutil.copyfileobj(memory, file)


def _write(batches: Iterable[Columns], file: BinaryIO) -> None:
    disk = Disk(file)
    try:
        with h5py.File(disk, "w") as root:
            for batch in batches:
                for name, rows in batch.items():
                    with_values(name, rows, "h5")
                    if rows.dtype == object:
                        without_nul(name, rows, "h5")
                    if name in root:
                        _append(root[name], rows)
                    else:
                        _create(root, name, rows)
                disk.check()
    finally:
        disk.check()


def _create(file: h5py.File, name: str, rows: NDArray[np.generic]) -> None:
    shape = rows.shape[1:]
    row_bytes = max(1, rows.itemsize * int(np.prod(shape)))
    chunk = max(1, min(len(rows), _CHUNK_BYTES // row_bytes))
    dtype = h5py.string_dtype() if rows.dtype == object else rows.dtype
    limits = {"maxshape": (None, *shape), "chunks": (chunk, *shape)}
    file.create_dataset(name, data=rows, dtype=dtype, compression="gzip", **limits)


def _append(dataset: h5py.Dataset, rows: NDArray[np.generic]) -> None:
    before = len(dataset)
    dataset.resize(before + len(rows), axis=0)
    dataset[before:] = rows


BATCHES = H5Exporter()
