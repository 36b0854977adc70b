"""Numbers that are no numbers, or out of range, in every argument that takes one: the error names it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import rlx
from rlx.buffer import (
    CompressedStorage,
    FrameStack,
    HERReplayBuffer,
    LazyTensorStorage,
    LinearScheduler,
    MinSize,
    NStep,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReturnToGo,
    RewardClip,
    SamplerWithoutReplacement,
    SampleToInsertRatio,
    SliceSampler,
    ToFloat,
)
from rlx.buffer.protocol import Sampler
from rlx.collector import DistributedCollector, MultiCollector, SerialEnv
from rlx.engine.local_actors import InlineActors
from rlx.errors import CodecError, CollectError, OptionError, TransformError
from rlx.numbers import check_real, check_whole
from rlx.store.codec import Codec
from rlx.transform.images import Crop
from rlx.transform.multi_step import FrameSkip
from rlx.transform.selections import Subsample

Make = Callable[[Any], object]
WHOLE: dict[str, Make] = {
    "max_size": LazyTensorStorage,
    "level": lambda level: CompressedStorage(8, level=level),
    "ndim": lambda ndim: LazyTensorStorage(8, ndim=ndim),
    "capacity": lambda capacity: PrioritizedSampler(capacity, 1, 1),
    "num_slices": lambda num_slices: SliceSampler(num_slices=num_slices),
    "slice_len": lambda slice_len: SliceSampler(slice_len=slice_len),
    "span": lambda span: SliceSampler(slice_len=2, span=(span, False)),
    "num_steps": lambda number: LinearScheduler(PrioritizedSampler(8, 1, 1), "beta", 1.0, number),
    "batch_size": lambda size: ReplayBuffer(storage=LazyTensorStorage(8), batch_size=size),
    "prefetch": lambda prefetch: ReplayBuffer(storage=LazyTensorStorage(8), batch_size=2, prefetch=prefetch),
    "min_size": MinSize,
    "n": NStep,
    "k": FrameStack,
    "height": lambda height: Crop(height, 8),
    "seed": lambda seed: RandomSampler(seed=seed),
    "every": lambda every: Subsample(every=every),
    "codec zstd: level": lambda level: Codec("zstd", level, 1),
    "codec zstd: chunk": lambda chunk: Codec("zstd", 3, chunk),
    "num_workers": lambda number: SerialEnv(number, "CartPole-v1"),
    "frames_per_batch": lambda frames: rlx.Collector("CartPole-v1", frames_per_batch=frames),
    "trajs_per_batch": lambda number: rlx.Collector("CartPole-v1", trajs_per_batch=number),
    "num_threads": lambda number: MultiCollector(["CartPole-v1"], frames_per_batch=2, num_threads=number),
    "num_collectors": lambda number: DistributedCollector("CartPole-v1", num_collectors=number),
}
# Numbers of which negative ones mean no limit, or none.
OR_NONE: dict[str, Make] = {
    "total_frames": lambda frames: rlx.Collector("CartPole-v1", frames_per_batch=2, total_frames=frames),
    "max_frames_per_traj": lambda frames: rlx.Collector("CartPole-v1", frames_per_batch=2, max_frames_per_traj=frames),
    "init_random_frames": lambda frames: rlx.Collector("CartPole-v1", frames_per_batch=2, init_random_frames=frames),
}
FLAGS: dict[str, Make] = {
    "split_trajs": lambda flag: rlx.Collector("CartPole-v1", frames_per_batch=2, split_trajs=flag),
    "reset_at_each_iter": lambda flag: rlx.Collector("CartPole-v1", frames_per_batch=2, reset_at_each_iter=flag),
    "set_truncated": lambda flag: rlx.Collector("CartPole-v1", frames_per_batch=2, set_truncated=flag),
    "track_policy_version": lambda flag: rlx.Collector("CartPole-v1", frames_per_batch=2, track_policy_version=flag),
    "sync": lambda flag: MultiCollector(["CartPole-v1"], frames_per_batch=2, sync=flag),
}
REAL: dict[str, Make] = {
    "gamma": lambda gamma: NStep(3, gamma),
    "alpha": lambda alpha: PrioritizedSampler(8, alpha, 1),
    "beta": lambda beta: PrioritizedSampler(8, 1, beta),
    "samples_per_insert": lambda number: SampleToInsertRatio(number, 1, 10.0),
    "scale": ToFloat,
    "low": RewardClip,
    "fraction": lambda fraction: Subsample(fraction=fraction),
    "her_ratio": lambda ratio: HERReplayBuffer(lambda *_: torch.zeros(1), her_ratio=ratio),
    "preemptive_threshold": lambda part: MultiCollector(["CartPole-v1"], frames_per_batch=2, preemptive_threshold=part),
}
ERRORS = (OptionError, TransformError, CollectError, CodecError)


@pytest.mark.parametrize("name", [*WHOLE, *OR_NONE])
@pytest.mark.parametrize("value", ["a", 1.5, [3], "3"])
def test_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(ERRORS, match=f"{name} {re.escape(repr(value))}: expected a whole number"):
        (WHOLE | OR_NONE)[name](value)


@pytest.mark.parametrize("name", sorted((WHOLE | OR_NONE).keys() - {"span"}))
def test_a_flag_is_no_number(name: str) -> None:
    with pytest.raises(ERRORS, match=f"{name} True: expected a whole number"):
        (WHOLE | OR_NONE)[name](True)


@pytest.mark.parametrize("name", sorted(WHOLE.keys() - {"seed"}))
def test_a_number_within_limits(name: str) -> None:
    with pytest.raises(ERRORS, match=f"{name} -1: expected (at least )?[01]"):
        WHOLE[name](-1)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("value", ["a", [3], "0.5"])
def test_a_number(name: str, value: Any) -> None:
    with pytest.raises(ERRORS, match=f"{name} {re.escape(repr(value))}: expected a number"):
        REAL[name](value)


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", ["foo", 2, [True]])
def test_a_flag(name: str, value: Any) -> None:
    with pytest.raises(CollectError, match=f"{name} {re.escape(repr(value))}: expected True or False"):
        FLAGS[name](value)


@pytest.mark.parametrize("value", ["a", 1.5, None])
def test_numbers_of_collectors(value: Any) -> None:
    expected = f"{re.escape(repr(value))}: expected a whole number"
    if value is not None:
        with pytest.raises(CollectError, match=f"frames_per_batch {expected}"):
            MultiCollector(["CartPole-v1"] * 2, frames_per_batch=value)
    with pytest.raises(CollectError, match=f"seed {expected}"):
        rlx.Collector("CartPole-v1", frames_per_batch=2, seed=value)
    with rlx.Collector("CartPole-v1", frames_per_batch=2) as collector:
        with pytest.raises(CollectError, match=f"seed {expected}"):
            collector.set_seed(value)
        assert collector.next() is not None
    with pytest.raises(CollectError, match="seed -1: expected at least 0"):
        rlx.Collector("CartPole-v1", frames_per_batch=2, seed=-1)
    with pytest.raises(CollectError, match=f"total_frames {expected}"):
        rlx.Collector("CartPole-v1", frames_per_batch=2, total_frames=value)


def test_numbers_of_numpy_in_collectors() -> None:
    numbers = {"frames_per_batch": 8, "total_frames": 13, "max_frames_per_traj": 3, "init_random_frames": 4, "seed": 5}
    batches: list[Any] = []
    for kind in (int, np.int64):
        options: dict[str, Any] = {name: kind(number) for name, number in numbers.items()}
        options |= {"actors": InlineActors(), "num_threads": kind(1), "set_truncated": np.bool_(True)}
        with MultiCollector([SerialEnv(2, "CartPole-v1")], **options) as collector:
            batches.append(list(collector))
    assert [batch.numel() for batch in batches[0]] == [8, 4, 1]
    assert all((batch == other).all() for batch, other in zip(*batches, strict=True))


@pytest.mark.parametrize("make", [FrameSkip, ReturnToGo, FrameStack])
def test_of_transforms_of_several_rooms(make: Make) -> None:
    with pytest.raises(ERRORS, match="'a': expected a"):
        make("a")


def test_keys_that_are_no_keys() -> None:
    keys: Any = 5
    with pytest.raises(TransformError, match="keys 5: expected a text, or a list of texts"):
        ToFloat(keys=keys)


def test_what_is_a_number() -> None:
    for value in (3, np.int64(3), np.uint8(3), torch.tensor(3)):
        check_whole("n", value)
    for real in (0.5, np.float32(0.5), torch.tensor(0.5), 1, 0):
        check_real("gamma", real, 0, 1)
    check_whole("seed", -3, None)
    with pytest.raises(OptionError, match="gamma nan: expected 0 to 1"):
        check_real("gamma", float("nan"), 0, 1)
    with pytest.raises(OptionError, match="eps nan: expected more than 0"):
        check_real("eps", float("nan"), above=0)
    with pytest.raises(OptionError, match="n 20000: expected 1 to 10,000"):
        check_whole("n", 20_000, 1, 10_000)


def test_seeds_and_amounts_may_be_those_of_numpy(tmp_path: Path) -> None:
    number: Any = np.int64
    for name, steps, seed, envs in (("numpy", number(60), number(3), number(2)), ("plain", 60, 3, 2)):
        rlx.collect("CartPole-v1", steps=steps, seed=seed, envs=envs, output=tmp_path / name)
    numpy, plain = rlx.open(tmp_path / "numpy"), rlx.open(tmp_path / "plain")
    assert numpy.manifest.shards[0].files == plain.manifest.shards[0].files
    assert numpy.manifest.lineage == plain.manifest.lineage
    samplers: list[Make] = [
        lambda seed: RandomSampler(seed=seed),
        lambda seed: SliceSampler(slice_len=2, seed=seed),
        lambda seed: SamplerWithoutReplacement(seed=seed),
        lambda seed: PrioritizedSampler(60, 0.5, 0.5, seed=seed),
    ]
    for sampler in samplers:
        batches = [
            ReplayBuffer(storage=plain, sampler=cast("Sampler", sampler(seed)), batch_size=size).sample()["index"]
            for seed, size in ((number(3), number(4)), (3, 4))
        ]
        assert torch.equal(*batches)


def test_sizes_of_storages_in_scientific_notation() -> None:
    size: Any = 1e3  # as in TorchRL
    assert LazyTensorStorage(size).max_size == 1000
