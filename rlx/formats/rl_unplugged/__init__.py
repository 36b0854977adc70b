"""RL Unplugged's Atari episodes.

``reader.find_runs`` finds the runs below a directory.
"""

from rlx.formats.registry import Format

FORMAT = Format("rlu", __name__, reads="runs")
