"""LeRobot's datasets.

``reader.open_lerobot`` opens one, ``writer.LeRobotExporter`` writes it.
"""

from rlx.formats.common.signs import Sign
from rlx.formats.lerobot.layout import EPISODES, INFO
from rlx.formats.registry import Format

FORMAT = Format(
    "lerobot",
    __name__,
    reads="dataset",
    marks=(INFO, EPISODES),
    writes=("datasets",),
    signs=(Sign(files=(INFO,)),),
)
