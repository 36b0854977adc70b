"""Dopamine's replay logs, such as the DQN Replay Dataset.

``reader.find_runs`` finds the runs below a directory, ``writer.DopamineExporter`` writes one.
"""

from rlx.formats.registry import Format

FORMAT = Format("dopamine", __name__, reads="runs", writes=("datasets",))
