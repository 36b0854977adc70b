"""Formats of batches only.

``writer.H5Exporter`` writes HDF5, ``writer.JsonlExporter`` JSON lines, ``writer.PtExporter`` torch's files, and
``writer.ZarrExporter`` Zarr groups.
"""

from rlx.formats.registry import Format

H5 = Format("h5", __name__, writes=("batches",), suffixes=("hdf5",), exporter="H5")
JSONL = Format("jsonl", __name__, writes=("batches",), suffixes=("ndjson",), exporter="JSONL")
PT = Format("pt", __name__, writes=("batches",), suffixes=("pth",), exporter="PT")
ZARR = Format("zarr", __name__, writes=("batches",), exporter="ZARR")
