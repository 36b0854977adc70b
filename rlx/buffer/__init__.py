"""Replay buffers: storages that keep steps, samplers that choose them, writers that decide where they go."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlx.torchrl_names import no_such_name

if TYPE_CHECKING:
    from rlx.buffer.compressed_storage import CompressedStorage as CompressedStorage
    from rlx.buffer.dataset_storage import DatasetStorage as DatasetStorage
    from rlx.buffer.ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
    from rlx.buffer.given_tensor_storage import TensorStorage as TensorStorage
    from rlx.buffer.hindsight import HERReplayBuffer as HERReplayBuffer
    from rlx.buffer.hindsight import HindsightStrategy as HindsightStrategy
    from rlx.buffer.lazy_stack_storage import LazyStackStorage as LazyStackStorage
    from rlx.buffer.list_storage import ListStorage as ListStorage
    from rlx.buffer.loader import StepDataset as StepDataset
    from rlx.buffer.parameter_schedulers import LambdaScheduler as LambdaScheduler
    from rlx.buffer.parameter_schedulers import LinearScheduler as LinearScheduler
    from rlx.buffer.parameter_schedulers import ParameterScheduler as ParameterScheduler
    from rlx.buffer.parameter_schedulers import SchedulerList as SchedulerList
    from rlx.buffer.parameter_schedulers import StepScheduler as StepScheduler
    from rlx.buffer.part_ensembles import StorageEnsemble as StorageEnsemble
    from rlx.buffer.part_ensembles import WriterEnsemble as WriterEnsemble
    from rlx.buffer.prioritized_replay_buffer import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from rlx.buffer.prioritized_replay_buffer import (
        TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer,
    )
    from rlx.buffer.prioritized_sampler import PrioritizedSampler as PrioritizedSampler
    from rlx.buffer.prioritized_slice_sampler import PrioritizedSliceSampler as PrioritizedSliceSampler
    from rlx.buffer.protocol import Sampler as Sampler
    from rlx.buffer.protocol import Storage as Storage
    from rlx.buffer.protocol import Writer as Writer
    from rlx.buffer.replay_buffer import ReplayBuffer as ReplayBuffer
    from rlx.buffer.sampler import RandomSampler as RandomSampler
    from rlx.buffer.sampler import SamplerWithoutReplacement as SamplerWithoutReplacement
    from rlx.buffer.sampler_ensemble import SamplerEnsemble as SamplerEnsemble
    from rlx.buffer.slice_sampler import SliceSampler as SliceSampler
    from rlx.buffer.slice_sampler import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
    from rlx.buffer.tensor_storage import LazyMemmapStorage as LazyMemmapStorage
    from rlx.buffer.tensor_storage import LazyTensorStorage as LazyTensorStorage
    from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
    from rlx.buffer.trajectory_split import split_trajectories as split_trajectories
    from rlx.buffer.transform import Compose as Compose
    from rlx.buffer.transform import FrameStack as FrameStack
    from rlx.buffer.transform import NStep as NStep
    from rlx.buffer.transform import ReturnToGo as ReturnToGo
    from rlx.buffer.transform import RewardClip as RewardClip
    from rlx.buffer.transform import RewardSign as RewardSign
    from rlx.buffer.transform import ToDevice as ToDevice
    from rlx.buffer.transform import ToDtype as ToDtype
    from rlx.buffer.transform import ToFloat as ToFloat
    from rlx.buffer.writer import ImmutableDatasetWriter as ImmutableDatasetWriter
    from rlx.buffer.writer import RoundRobinWriter as RoundRobinWriter
    from rlx.buffer.writer import TensorDictMaxValueWriter as TensorDictMaxValueWriter
    from rlx.buffer.writer import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter

_NAMES = {
    "compressed_storage": ["CompressedStorage"],
    "dataset_storage": ["DatasetStorage"],
    "ensemble": ["ReplayBufferEnsemble"],
    "given_tensor_storage": ["TensorStorage"],
    "hindsight": ["HERReplayBuffer", "HindsightStrategy"],
    "lazy_stack_storage": ["LazyStackStorage"],
    "list_storage": ["ListStorage"],
    "loader": ["StepDataset"],
    "parameter_schedulers": [
        "LambdaScheduler",
        "LinearScheduler",
        "ParameterScheduler",
        "SchedulerList",
        "StepScheduler",
    ],
    "part_ensembles": ["StorageEnsemble", "WriterEnsemble"],
    "prioritized_replay_buffer": ["PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer"],
    "prioritized_sampler": ["PrioritizedSampler"],
    "prioritized_slice_sampler": ["PrioritizedSliceSampler"],
    "protocol": ["Sampler", "Storage", "Writer"],
    "replay_buffer": ["ReplayBuffer"],
    "sampler": ["RandomSampler", "SamplerWithoutReplacement"],
    "sampler_ensemble": ["SamplerEnsemble"],
    "slice_sampler": ["SliceSampler", "SliceSamplerWithoutReplacement"],
    "tensor_storage": ["LazyMemmapStorage", "LazyTensorStorage"],
    "tensordict_replay_buffer": ["TensorDictReplayBuffer"],
    "trajectory_split": ["split_trajectories"],
    "transform": [
        "Compose",
        "FrameStack",
        "NStep",
        "ReturnToGo",
        "RewardClip",
        "RewardSign",
        "ToDevice",
        "ToDtype",
        "ToFloat",
    ],
    "writer": [
        "ImmutableDatasetWriter",
        "RoundRobinWriter",
        "TensorDictMaxValueWriter",
        "TensorDictRoundRobinWriter",
    ],
}
# Imported when first asked for: torch takes seconds.
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise no_such_name(__name__, name)
    return getattr(import_module(f"rlx.buffer.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
