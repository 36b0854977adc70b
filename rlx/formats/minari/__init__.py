"""Minari's datasets.

``reader.open_minari`` opens one, ``writer.MinariExporter`` writes it.
"""

from rlx.formats.minari.layout import LAYOUT, MAIN_DATA, METADATA
from rlx.formats.registry import Format

FORMAT = Format(
    "minari",
    __name__,
    reads="runs",
    marks=(f"data/{METADATA}", f"data/{MAIN_DATA}", MAIN_DATA),
    is_hdf5=True,
    writes=("datasets",),
    layout=LAYOUT,
)
