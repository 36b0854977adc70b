"""numpy's archives of steps.

``reader.open_npz`` opens one; ``writer.NpzDatasetExporter`` writes datasets and ``writer.NpzExporter`` batches.
"""

from collections.abc import Mapping

from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format

SUFFIX = ".npy"
GROUP = "trajectories/"
FINAL = f"{GROUP}final/"
# Columns of the table of trajectories, each with the kinds of dtypes it may have.
TABLE: Mapping[str, str] = {"length": "iu", "episode": "iu", "from_reset": "b", "final_recorded": "b", "cut": "b"}
LAYOUT = (
    "expected arrays of one row per step: observation [S, ...], action [S, ...], next/reward [S], next/terminated [S], "
    f"next/truncated [S]; and perhaps of one row per trajectory: trajectories/{', trajectories/'.join(TABLE)}"
)

FORMAT = Format(
    "npz", __name__, reads="dataset", writes=("datasets", "batches"), signs=(Sign(archived=("next/reward.npy",)),)
)
