"""TorchRL's memory maps."""

from rlx.formats.registry import Format
from rlx.formats.torchrl.layout import METADATA, SUFFIX

FORMAT = Format(
    "torchrl",
    __name__,
    reads="dataset",
    options={"time_dim": int},
    marks=(METADATA, f"next/{METADATA}", f"next/reward{SUFFIX}"),
    writes=("datasets",),
)
