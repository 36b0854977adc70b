"""Formats of batches only: a module each, with its writer.

``h5.H5Exporter`` writes HDF5, ``jsonl.JsonlExporter`` JSON lines, ``pt.PtExporter`` torch's files, and
``zarr.ZarrExporter`` Zarr groups.
"""

from rlx.formats.registry import Format

FORMATS = (
    Format("h5", __name__, writes=("batches",), suffixes=("hdf5",), writer="h5"),
    Format("jsonl", __name__, writes=("batches",), suffixes=("ndjson",), writer="jsonl"),
    Format("pt", __name__, writes=("batches",), suffixes=("pth",), writer="pt"),
    Format("zarr", __name__, writes=("batches",), writer="zarr"),
)
