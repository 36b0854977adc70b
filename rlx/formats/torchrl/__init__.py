"""TorchRL's memory maps.

``reader.open_torchrl`` opens a directory of them, ``writer.TorchRLExporter`` writes it.
"""

from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format
from rlx.formats.torchrl.leaves import METADATA, SUFFIX

FORMAT = Format(
    "torchrl",
    __name__,
    reads="dataset",
    options={"time_dim": int},
    marks=(METADATA, f"next/{METADATA}", f"next/reward{SUFFIX}"),
    writes=("datasets",),
    signs=(Sign(files=("buffer_metadata.json",)), Sign(files=(METADATA, f"next/reward{SUFFIX}"))),
)
