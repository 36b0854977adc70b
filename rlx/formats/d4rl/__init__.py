"""D4RL's HDF5 files.

``reader.open_d4rl`` opens one, ``writer.D4RLExporter`` writes it.
"""

from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format

KEYS = ("observations", "actions", "rewards", "terminals")
NEXT, TIMEOUTS = "next_observations", "timeouts"
# Flags of the ends of episodes, which the first version of d3rlpy adds to this layout.
EPISODE_ENDS = "episode_terminals"
# Including those of d3rlpy's first version.
KNOWN = frozenset({*KEYS, NEXT, TIMEOUTS, EPISODE_ENDS, "discrete_action", "version"})
LAYOUT = "expected D4RL's layout: observations [N, ...], actions [N, ...], rewards [N], terminals [N], timeouts [N]"
METADATA = "metadata/"
# The table of trajectories that rlx writes: D4RL ignores metadata.
TABLE = f"{METADATA}trajectories/"
TABLE_COLUMNS = ("length", "episode", "from_reset", "final_recorded", "cut")

FORMAT = Format(
    "d4rl",
    __name__,
    reads="dataset",
    marks=KEYS,
    is_hdf5=True,
    writes=("datasets",),
    layout=LAYOUT,
    signs=(Sign(members=KEYS, lacks=(EPISODE_ENDS,)),),
)
