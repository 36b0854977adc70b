"""MDS datasets of steps, as MosaicML's library ``streaming`` reads them.

``reader.open_mds`` opens one; ``writer.MdsExporter`` writes one.
"""

from rlx.formats.common.signs import Sign
from rlx.formats.registry import COLUMN_OPTIONS, Format

FORMAT = Format(
    "mds",
    __name__,
    reads="dataset",
    options=COLUMN_OPTIONS,
    marks=("index.json",),
    writes=("datasets",),
    signs=(Sign(files=("index.json",), text=b'"mds"'),),
)
