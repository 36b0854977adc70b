"""Dopamine's replay logs, such as the DQN Replay Dataset."""

from rlx.formats.registry import Format

FORMAT = Format("dopamine", __name__, reads="runs", writes=("datasets",))
