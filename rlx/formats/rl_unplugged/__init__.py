"""RL Unplugged's Atari episodes."""

from rlx.formats.registry import Format

FORMAT = Format("rlu", __name__, reads="runs")
