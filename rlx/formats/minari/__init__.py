"""Minari's datasets.

``reader.open_minari`` opens one, ``writer.MinariExporter`` writes it.
"""

from rlx.formats.common.signs import Sign
from rlx.formats.minari.layout import LAYOUT, MAIN_DATA, MAX_DEPTH, METADATA
from rlx.formats.registry import Format

# The episodes in one file, or each in its own; in a dataset, or in one of a directory of them.
_DATA = (MAIN_DATA, "0/part-0.arrow", "0/part-0.parquet")
_ROOTS = ("", *(f"{'*/' * depth}data/" for depth in range(MAX_DEPTH + 1)))

FORMAT = Format(
    "minari",
    __name__,
    reads="runs",
    marks=(f"data/{METADATA}", f"data/{MAIN_DATA}", MAIN_DATA),
    is_hdf5=True,
    writes=("datasets",),
    layout=LAYOUT,
    signs=tuple(Sign(files=(root + METADATA, root + data)) for root in _ROOTS for data in _DATA),
)
