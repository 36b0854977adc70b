"""A zarr v3 group: ``zarr.open(directory)["next/reward"]``."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from rlx.files.disk import check_case
from rlx.formats.common.exporter import Columns

_CHUNK_BYTES = 2**18


class ZarrExporter:
    """Writer of one array per column, in chunks of about 256 kB, batch by batch; texts are zarr's strings."""

    def write_directory(self, batches: Iterable[Columns], directory: Path) -> None:
        """Write one array a column, in groups as their names say."""
        # zarr writes in threads of its own, which Ctrl-C does not stop: leaving the pool waits for the write.
        with ThreadPoolExecutor(1) as pool:
            group = pool.submit(zarr.create_group, directory).result()
            arrays: dict[str, zarr.Array[Any]] = {}
            for batch in batches:
                if not arrays:
                    check_case(batch, directory / "zarr.json")
                pool.submit(_append, group, arrays, batch).result()


def _append(group: zarr.Group, arrays: dict[str, zarr.Array[Any]], batch: Columns) -> None:
    for name, rows in batch.items():
        if name in arrays:
            arrays[name].append(rows)
        else:
            arrays[name] = _create(group, name, rows)


def _create(group: zarr.Group, name: str, rows: NDArray[np.generic]) -> zarr.Array[Any]:
    row_bytes = max(1, rows.itemsize * int(np.prod(rows.shape[1:])))
    chunk = max(1, min(len(rows), _CHUNK_BYTES // row_bytes))
    chunks = (chunk, *rows.shape[1:])
    if rows.dtype != object:
        return group.create_array(name, data=rows, chunks=chunks)
    texts = group.create_array(name, shape=rows.shape, dtype=str, chunks=chunks)
    texts[:] = rows
    return texts


BATCHES = ZarrExporter()
