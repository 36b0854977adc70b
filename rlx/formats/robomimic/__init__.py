"""robomimic's HDF5 files.

``reader.open_robomimic`` opens one, ``writer.RobomimicExporter`` writes it.
"""

from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format

OBS, NEXT, ACTIONS, REWARDS, DONES = "obs", "next_obs", "actions", "rewards", "dones"
KNOWN = frozenset({OBS, NEXT, ACTIONS, REWARDS, DONES})
STEPS = "num_samples"
# Attributes that rlx adds, and robomimic ignores.
RECORDED = ("episode", "truncated", "from_reset", "final_recorded", "cut")
ATTRIBUTES = frozenset({STEPS, *RECORDED})
LAYOUT = "expected robomimic's layout: data/demo_<i> with actions [N, A], rewards [N], dones [N] and obs/<key> [N, ...]"

FORMAT = Format(
    "robomimic",
    __name__,
    reads="dataset",
    marks=("data", "mask"),
    is_hdf5=True,
    writes=("datasets",),
    layout=LAYOUT,
    signs=(Sign(members=("data/demo_[0-9]*",)),),
)
