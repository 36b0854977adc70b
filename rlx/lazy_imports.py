"""Names of rlx's packages: imported when first asked for, with advice for names of TorchRL that rlx does not have."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_CHECKPOINTS = "use `ReplayBuffer.dumps`: every storage is written in one compressed format"
_SPECIFIC_TO_TORCHRL = "use `ReplayBuffer.dumps`, which needs no hooks: steps are compressed as they are"
_UNITS = "use `SliceSampler(slice_len=...)`: burn-in, n-step targets and bootstrap states are parts of one slice"
_WEIGHTS = "use `collector.update_policy_weights_(policy)`: every collector sends weights by itself"
_LANGUAGE_MODELS = "no alternative: rlx has no parts for language models"
_CONVERT = "use `rlx convert` and `ReplayBuffer(storage=DatasetStorage(rlx.open(path)))`"
_ARRAYS = "no reader of its files: write their arrays as `npz` or `parquet`, and use `rlx convert`"
_SPACES = "use `gymnasium.spaces`: environments of rlx have spaces, and it reads the specs of TorchRL's"
_MAPS = "no alternative: rlx has no maps from observations to data"
_TOKENS = "no alternative: rlx has no tokenizers of actions"
_VIDEOS = "use `rlx convert`, which decodes the videos of LeRobot's datasets"
_TRAJECTORIES = "use `rlx.open(path).trajectories`, or `split_trajectories(steps)` of a batch"

_BUFFER = {
    "CompressedListStorageCheckpointer": _CHECKPOINTS,
    "ConditionalUpdateResult": "use `buffer[rows] = steps`; rlx has no conditional updates",
    "DEFAULT_DONE_KEYS": 'use `("done", "truncated", "terminated")`',
    "Flat2TED": _SPECIFIC_TO_TORCHRL,
    "FlatStorageCheckpointer": _CHECKPOINTS,
    "H5Combine": _SPECIFIC_TO_TORCHRL,
    "H5Split": _SPECIFIC_TO_TORCHRL,
    "H5StorageCheckpointer": _CHECKPOINTS,
    "ListStorageCheckpointer": _CHECKPOINTS,
    "Nested2TED": _SPECIFIC_TO_TORCHRL,
    "NestedStorageCheckpointer": _CHECKPOINTS,
    "PromptGroupSampler": _LANGUAGE_MODELS,
    "RemoteTensorDictReplayBuffer": "use `RayReplayBuffer(replay_buffer_cls=TensorDictReplayBuffer)`",
    "SampleUnit": _UNITS,
    "Sequence": _UNITS,
    "StalenessAwareSampler": "use `PrioritizedSampler`, with priorities computed from `policy_version`",
    "StorageCheckpointerBase": _CHECKPOINTS,
    "StorageEnsembleCheckpointer": _CHECKPOINTS,
    "StoreStorage": "use `LazyMemmapStorage`: no storage needs a server",
    "StreamingSliceSampler": "use `SliceSampler`: it finds slices of any window without a scan of the storage",
    "TED2Flat": _SPECIFIC_TO_TORCHRL,
    "TED2Nested": _SPECIFIC_TO_TORCHRL,
    "TensorStorageCheckpointer": _CHECKPOINTS,
    "Trajectory": _TRAJECTORIES,
    "TrajectoryPredicate": "use `rlx preprocess --transform filter:EXPRESSION` on a dataset",
    "Transition": "use `RandomSampler`: every sampler except those of slices draws single steps",
    "filter_trajectories": "use `rlx preprocess --transform filter:EXPRESSION` on a dataset",
    "find_start_stop_traj": "use `buffer.storage.index().trajectories()`",
    "iter_trajectories": _TRAJECTORIES,
    "prefill_replay_buffer": "use `buffer.extend(dataset[:n])`",
    "traj": "use `rlx preprocess --transform filter:EXPRESSION` on a dataset",
    # Of torchrl.data, but not about experience.
    "ActionTokenizerBase": _TOKENS,
    "AdaptiveKLController": _LANGUAGE_MODELS,
    "Binary": _SPACES,
    "BinaryToDecimal": _MAPS,
    "Bounded": _SPACES,
    "BoundedContinuous": _SPACES,
    "Categorical": _SPACES,
    "Choice": _SPACES,
    "Composite": _SPACES,
    "ConstantKLController": _LANGUAGE_MODELS,
    "ContentBase": _LANGUAGE_MODELS,
    "DEVICE_TYPING": "use `str` or `torch.device`",
    "HashToInt": _MAPS,
    "History": _LANGUAGE_MODELS,
    "MCTSForest": _MAPS,
    "MultiCategorical": _SPACES,
    "MultiOneHot": _SPACES,
    "NonTensor": _SPACES,
    "OneHot": _SPACES,
    "PairwiseDataset": _LANGUAGE_MODELS,
    "PromptData": _LANGUAGE_MODELS,
    "PromptTensorDictTokenizer": _LANGUAGE_MODELS,
    "QueryModule": _MAPS,
    "RandomProjectionHash": _MAPS,
    "RewardData": _LANGUAGE_MODELS,
    "RobotDatasetMetadata": _VIDEOS,
    "RolloutFromModel": _LANGUAGE_MODELS,
    "SipHash": _MAPS,
    "Stacked": _SPACES,
    "StackedComposite": _SPACES,
    "TensorDictMap": _MAPS,
    "TensorDictTokenizer": _LANGUAGE_MODELS,
    "TensorMap": _MAPS,
    "TensorSpec": _SPACES,
    "TokenizedDatasetLoader": _LANGUAGE_MODELS,
    "TopKRewardSelector": _LANGUAGE_MODELS,
    "Tree": _MAPS,
    "Unbounded": _SPACES,
    "UnboundedContinuous": _SPACES,
    "UnboundedDiscrete": _SPACES,
    "UniformActionTokenizer": _TOKENS,
    "VideoClipRef": _VIDEOS,
    "VocabTailActionTokenizer": _TOKENS,
    "check_no_exclusive_keys": _SPACES,
    "clear_video_decoder_cache": _VIDEOS,
    "consolidate_spec": _SPACES,
    "contains_lazy_spec": _SPACES,
    "create_infinite_iterator": "use `for batch in buffer`, which is endless with replacement",
    "get_dataloader": _LANGUAGE_MODELS,
    "set_video_decoder_cache_size": _VIDEOS,
    "validate_vla_tensordict": "use `rlx verify`, which checks a dataset",
    # Under other names.
    "CatFrames": "use `FrameStack`",
    "CompressedListStorage": "use `CompressedStorage`",
    "DTypeCastTransform": "use `ToDtype`",
    "DensifyReward": "use `ReturnToGo`",
    "DeviceCastTransform": "use `ToDevice`",
    "MultiStep": "use `NStep`",
    "MultiStepTransform": "use `NStep`",
    "Reward2GoTransform": "use `ReturnToGo`",
    "RewardClipping": "use `RewardClip`",
    "SignTransform": "use `RewardSign`",
    "ToTensorImage": "use `ToFloat`",
}

_COLLECTOR = {
    "AsyncBatchedCollector": "use `MultiCollector(sync=False)`, or `Collector` of a vectorized environment",
    "AsyncCollector": "use `MultiCollector([env], sync=False)`",
    "DEFAULT_SLURM_CONF": "use `DistributedCollector` on a Ray cluster; rlx submits no Slurm jobs",
    "DistributedSyncCollector": "use `DistributedCollector(sync=True)`",
    "DistributedWeightUpdater": _WEIGHTS,
    "Evaluator": 'use `Collector(trajs_per_batch=n, exploration_type="deterministic")`, and sum the rewards',
    "MultiProcessedWeightUpdater": _WEIGHTS,
    "ProfileConfig": "use a profiler of Python such as py-spy, which sees the worker processes too",
    "RPCWeightUpdater": _WEIGHTS,
    "RandomPolicy": "use `policy=None`",
    "RayEvalWorker": "use `DistributedCollector` with a policy that does not explore",
    "RayWeightUpdater": _WEIGHTS,
    "RemoteModuleWeightUpdater": _WEIGHTS,
    "VanillaWeightUpdater": _WEIGHTS,
    "WeightUpdaterBase": _WEIGHTS,
    "split_trajectories": "use `rlx.buffer.split_trajectories`",
    "submitit_delayed_launcher": "use `DistributedCollector` on a Ray cluster; rlx submits no Slurm jobs",
}

_DATASETS = {
    "BaseDatasetExperienceReplay": _CONVERT,
    "D4RLExperienceReplay": f"{_CONVERT}; the format is `d4rl`",
    "GenDGRLExperienceReplay": _ARRAYS,
    "LeRobotExperienceReplay": f"{_CONVERT}; the format is `lerobot`",
    "OpenMLExperienceReplay": _ARRAYS,
    "OpenXExperienceReplay": f"{_CONVERT}; the format is `rlds`",
    "RobosetExperienceReplay": _ARRAYS,
    "VD4RLExperienceReplay": _ARRAYS,
    "lerobot_columns_to_tensordict": f"{_CONVERT}; the format is `lerobot`",
    "load_dataset": "use `rlx.open(path)`, or the class of the dataset",
    "register_dataset": "use `rlx.open(path)`, or the class of the dataset",
}

INSTEAD = {"rlx.buffer": _BUFFER, "rlx.collector": _COLLECTOR, "rlx.datasets": _DATASETS}
"""Advice by the package of rlx that is asked for a name, and by the name."""


def no_such_name(package: str, name: str, *, in_import: bool = False) -> Exception:
    """Return what a package raises that is asked for a name it does not have.

    Args:
        in_import: whether ``from package import name`` asks. It replaces an AttributeError by its own ImportError,
            without the advice.

    Example:
        >>> no_such_name("rlx.buffer", "CatFrames", in_import=True)
        ImportError('rlx.buffer has no CatFrames: use `FrameStack`')
        >>> no_such_name("rlx.buffer", "CatFrames")
        AttributeError("module 'rlx.buffer' has no attribute 'CatFrames': use `FrameStack`")
    """
    advice = INSTEAD.get(package, {}).get(name)
    if advice and in_import:
        return ImportError(f"{package} has no {name}: {advice}", name=package)
    return AttributeError(f"module {package!r} has no attribute {name!r}" + (f": {advice}" if advice else ""))


def lazily(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package that imports its names when they are asked for.

    The names are those that it imports for type checkers only, ``from MODULE import X as X``: torch takes seconds. They
    are read from its source, so that they are listed once.
    """
    module: Any = sys.modules[package]
    source = module.__loader__.get_data(module.__file__).decode()
    homes = {name: home for home, name in re.findall(r"^    from (\S+) import \(?\s*(\w+) as \2\b", source, re.M)}

    def attribute(name: str) -> Any:
        if name not in homes:
            # importlib asks by `hasattr`, as others do, but only there is an ImportError passed on.
            raise no_such_name(package, name, in_import=sys._getframe(1).f_code.co_name == "_handle_fromlist")
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(homes[name]), name)

    return sorted(homes), attribute, lambda: sorted(homes)
