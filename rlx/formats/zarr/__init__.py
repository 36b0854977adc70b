"""Zarr groups of batches."""

from rlx.formats.registry import Format

FORMAT = Format("zarr", __name__, writes=("batches",))
