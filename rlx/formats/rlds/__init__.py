"""RLDS datasets as TensorFlow Datasets writes them.

``reader.open_rlds`` opens one, ``writer.RLDSExporter`` writes it.
"""

from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format
from rlx.formats.rlds.layout import FEATURES, INFO

FORMAT = Format(
    "rlds",
    __name__,
    reads="dataset",
    options={"split": str, "files": str, "last": str},
    marks=(FEATURES, INFO),
    writes=("datasets",),
    signs=(Sign(files=(INFO, FEATURES)),),
)
