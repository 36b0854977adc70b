"""Checkpoints of rlx's replay buffer."""

from rlx.formats.registry import Format

FORMAT = Format("buffer", __name__, reads="dataset")
