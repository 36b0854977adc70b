"""Transforms of batches: callables from TensorDict to TensorDict, and transforms that need neighbouring steps.

``compose.Compose`` applies several; ``batches`` has those that read other steps, and those that only batches have.
Others, which datasets have too, are in ``rlx.transform``, with the protocols of both kinds.
"""

from rlx.buffer.transform.batches import FrameStack, NStep, ReturnToGo, ToDevice, ToDtype
from rlx.buffer.transform.compose import Compose, Inverted
from rlx.buffer.transform.goals import Goals
from rlx.buffer.transform.images import ChannelOrder, RandomShift
from rlx.buffer.transform.normalize import Normalize
from rlx.buffer.transform.trajectories import NextAction, Timestep, TrajectoryColumns
from rlx.transform.scaling import RewardClip, RewardSign, ToFloat

__all__ = [
    "ChannelOrder",
    "Compose",
    "FrameStack",
    "Goals",
    "Inverted",
    "NStep",
    "NextAction",
    "Normalize",
    "RandomShift",
    "ReturnToGo",
    "RewardClip",
    "RewardSign",
    "Timestep",
    "ToDevice",
    "ToDtype",
    "ToFloat",
    "TrajectoryColumns",
]
