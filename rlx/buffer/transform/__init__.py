"""Transforms of batches: any callable from TensorDict to TensorDict, and those that need the steps around a step.

``compose.Compose`` applies several; ``neighbourhood.NeighbourTransform`` is the protocol of the second kind.
"""

from rlx.buffer.transform.compose import Compose, Inverted
from rlx.buffer.transform.frame_stack import FrameStack
from rlx.buffer.transform.pointwise import RewardClip, RewardSign, ToDevice, ToDtype, ToFloat
from rlx.buffer.transform.returns import NStep, ReturnToGo

__all__ = [
    "Compose",
    "FrameStack",
    "Inverted",
    "NStep",
    "ReturnToGo",
    "RewardClip",
    "RewardSign",
    "ToDevice",
    "ToDtype",
    "ToFloat",
]
