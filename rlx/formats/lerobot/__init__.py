"""LeRobot's datasets."""

from rlx.formats.lerobot.layout import EPISODES, INFO
from rlx.formats.registry import Format

FORMAT = Format("lerobot", __name__, reads="dataset", marks=(INFO, EPISODES), writes=("datasets",))
