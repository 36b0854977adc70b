"""Transforms of batches: callables from TensorDict to TensorDict, and transforms that need neighbouring steps.

``compose.Compose`` applies several; ``batches`` has those that read other steps, and those that only batches have.
Others, which datasets have too, are in ``rlx.transform``, with the protocols of both kinds.
"""

from rlx.buffer.transform.batches import FrameStack, NStep, ReturnToGo, ToDevice, ToDtype
from rlx.buffer.transform.compose import Compose, Inverted
from rlx.buffer.transform.normalize import Normalize
from rlx.transform.scaling import RewardClip, RewardSign, ToFloat

__all__ = [
    "Compose",
    "FrameStack",
    "Inverted",
    "NStep",
    "Normalize",
    "ReturnToGo",
    "RewardClip",
    "RewardSign",
    "ToDevice",
    "ToDtype",
    "ToFloat",
]
