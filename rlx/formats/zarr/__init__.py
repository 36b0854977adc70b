"""Zarr groups of batches.

``writer.ZarrExporter`` writes them.
"""

from rlx.formats.registry import Format

FORMAT = Format("zarr", __name__, writes=("batches",))
