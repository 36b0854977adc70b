"""d3rlpy's HDF5 files.

``reader.open_d3rlpy`` opens one, ``writer.D3rlpyExporter`` writes it.
"""

from rlx.formats import d4rl
from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format

VERSION = "2.1"
KEYS = ("version", "num_episodes", "columns")
COLUMNS = ("observations", "actions", "rewards", "terminated")
LAYOUT = (
    "expected d3rlpy's layout: version 2.1, num_episodes, columns, and for every episode i "
    "observations_<i> [T, ...], actions_<i> [T, A], rewards_<i> [T, 1], terminated_<i>"
)

FORMAT = Format(
    "d3rlpy",
    __name__,
    reads="dataset",
    marks=KEYS,
    is_hdf5=True,
    writes=("datasets",),
    layout=LAYOUT,
    # The second is the first version's.
    signs=(Sign(members=KEYS), Sign(members=(*d4rl.KEYS, d4rl.EPISODE_ENDS))),
)
