"""Replay buffers: storages that keep steps, samplers that choose them, writers that decide where they go.

``replay_buffer.ReplayBuffer`` joins them; ``protocol.Storage``, ``protocol.Sampler`` and ``protocol.Writer`` are what
it expects of each.
"""

from typing import TYPE_CHECKING

from rlx.errors import check_installed
from rlx.lazy_imports import lazily

for _module in ("torch", "tensordict"):
    check_installed(_module, f"sampling needs {_module}", "torch")

if TYPE_CHECKING:
    from rlx.buffer.batch import split_trajectories as split_trajectories
    from rlx.buffer.ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
    from rlx.buffer.ensemble_parts import SamplerEnsemble as SamplerEnsemble
    from rlx.buffer.ensemble_parts import StorageEnsemble as StorageEnsemble
    from rlx.buffer.ensemble_parts import WriterEnsemble as WriterEnsemble
    from rlx.buffer.hindsight import HERReplayBuffer as HERReplayBuffer
    from rlx.buffer.hindsight import HindsightStrategy as HindsightStrategy
    from rlx.buffer.loader import Loader as Loader
    from rlx.buffer.loader import unchanged as unchanged
    from rlx.buffer.offline_to_online import OfflineToOnlineReplayBuffer as OfflineToOnlineReplayBuffer
    from rlx.buffer.protocol import Sampler as Sampler
    from rlx.buffer.protocol import Storage as Storage
    from rlx.buffer.protocol import Writer as Writer
    from rlx.buffer.rate_limiter import MinSize as MinSize
    from rlx.buffer.rate_limiter import RateLimiter as RateLimiter
    from rlx.buffer.rate_limiter import SampleToInsertRatio as SampleToInsertRatio
    from rlx.buffer.ray_buffer import RayReplayBuffer as RayReplayBuffer
    from rlx.buffer.replay_buffer import ReplayBuffer as ReplayBuffer
    from rlx.buffer.sampler.prioritized import PrioritizedSampler as PrioritizedSampler
    from rlx.buffer.sampler.schedulers import LambdaScheduler as LambdaScheduler
    from rlx.buffer.sampler.schedulers import LinearScheduler as LinearScheduler
    from rlx.buffer.sampler.schedulers import ParameterScheduler as ParameterScheduler
    from rlx.buffer.sampler.schedulers import SchedulerList as SchedulerList
    from rlx.buffer.sampler.schedulers import StepScheduler as StepScheduler
    from rlx.buffer.sampler.slices import PrioritizedSliceSampler as PrioritizedSliceSampler
    from rlx.buffer.sampler.slices import SliceSampler as SliceSampler
    from rlx.buffer.sampler.slices import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
    from rlx.buffer.sampler.steps import ConsumingSampler as ConsumingSampler
    from rlx.buffer.sampler.steps import RandomSampler as RandomSampler
    from rlx.buffer.sampler.steps import SamplerWithoutReplacement as SamplerWithoutReplacement
    from rlx.buffer.sampler.streams import StreamSampler as StreamSampler
    from rlx.buffer.storage.compressed import CompressedStorage as CompressedStorage
    from rlx.buffer.storage.dataset import DatasetStorage as DatasetStorage
    from rlx.buffer.storage.lists import LazyStackStorage as LazyStackStorage
    from rlx.buffer.storage.lists import ListStorage as ListStorage
    from rlx.buffer.storage.tensors import LazyMemmapStorage as LazyMemmapStorage
    from rlx.buffer.storage.tensors import LazyTensorStorage as LazyTensorStorage
    from rlx.buffer.storage.tensors import TensorStorage as TensorStorage
    from rlx.buffer.tensordict_replay_buffer import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from rlx.buffer.tensordict_replay_buffer import (
        TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer,
    )
    from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
    from rlx.buffer.transform import ChannelOrder as ChannelOrder
    from rlx.buffer.transform import Compose as Compose
    from rlx.buffer.transform import FrameStack as FrameStack
    from rlx.buffer.transform import Goals as Goals
    from rlx.buffer.transform import NextAction as NextAction
    from rlx.buffer.transform import Normalize as Normalize
    from rlx.buffer.transform import NStep as NStep
    from rlx.buffer.transform import RandomShift as RandomShift
    from rlx.buffer.transform import ReturnToGo as ReturnToGo
    from rlx.buffer.transform import RewardClip as RewardClip
    from rlx.buffer.transform import RewardSign as RewardSign
    from rlx.buffer.transform import Timestep as Timestep
    from rlx.buffer.transform import ToDevice as ToDevice
    from rlx.buffer.transform import ToDtype as ToDtype
    from rlx.buffer.transform import ToFloat as ToFloat
    from rlx.buffer.transform import TrajectoryColumns as TrajectoryColumns
    from rlx.buffer.writer import ImmutableDatasetWriter as ImmutableDatasetWriter
    from rlx.buffer.writer import RoundRobinWriter as RoundRobinWriter
    from rlx.buffer.writer import TensorDictMaxValueWriter as TensorDictMaxValueWriter
    from rlx.buffer.writer import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
    from rlx.buffer.writer import WholeEpisodeWriter as WholeEpisodeWriter

__all__, __getattr__, __dir__ = lazily(__name__)
