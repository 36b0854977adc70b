"""A restored buffer draws what the uninterrupted one draws: every sampler, over every storage, also after writes."""

import copy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rlx.buffer import (
    CompressedStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StreamSampler,
    TensorDictReplayBuffer,
)
from rlx.errors import SamplingError

STORAGES = [CompressedStorage, LazyMemmapStorage, LazyTensorStorage, ListStorage]
SIZE, SLICE, BATCH = 60, 3, 12
by_priority = {"max_capacity": SIZE, "alpha": 0.7, "beta": 0.4}
SAMPLERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "random": (RandomSampler, {}),
    "random by length": (RandomSampler, {"trajectory_weights": "length"}),
    "without": (SamplerWithoutReplacement, {}),
    "without, dropping": (SamplerWithoutReplacement, {"drop_last": True, "shuffle": False}),
    "slices": (SliceSampler, {"slice_len": SLICE}),
    "any slices": (SliceSampler, {"slice_len": SLICE, "strict_length": False}),
    "slices by trajectory": (SliceSampler, {"num_slices": BATCH // SLICE, "weighting": "trajectory"}),
    "slices by length": (SliceSampler, {"slice_len": SLICE, "trajectory_weights": "length"}),
    "slices that span": (SliceSampler, {"slice_len": SLICE, "span": (1, True)}),
    "contexts": (SliceSampler, {"slice_len": SLICE, "pad": "right"}),
    "contexts by trajectory": (SliceSampler, {"slice_len": SLICE, "pad": "left", "weighting": "trajectory"}),
    "contexts without": (SliceSamplerWithoutReplacement, {"slice_len": SLICE, "pad": "left", "weighting": "step"}),
    "prioritized contexts": (PrioritizedSliceSampler, {**by_priority, "slice_len": SLICE, "pad": "left"}),
    "streams": (StreamSampler, {"slice_len": SLICE}),
    "carried streams": (StreamSampler, {"num_slices": 4, "carry": True}),
    "whole": (SliceSampler, {"num_slices": 2, "whole_trajectories": True}),
    "slices without": (SliceSamplerWithoutReplacement, {"slice_len": SLICE}),
    "any slices without": (SliceSamplerWithoutReplacement, {"slice_len": SLICE, "strict_length": False}),
    "prioritized": (PrioritizedSampler, by_priority),
    "prioritized within": (PrioritizedSampler, {**by_priority, "max_priority_within_buffer": True}),
    "prioritized slices": (PrioritizedSliceSampler, {**by_priority, "slice_len": SLICE}),
    "any prioritized slices": (PrioritizedSliceSampler, {**by_priority, "slice_len": SLICE, "strict_length": False}),
    "prioritized slices that span": (PrioritizedSliceSampler, {**by_priority, "slice_len": SLICE, "span": (False, 2)}),
}


class Stream:
    """Episodes of random lengths in some lanes, which are collected on and on."""

    def __init__(self, seed: int, lanes: int) -> None:
        self.rng, self.lanes = np.random.default_rng(seed), lanes
        self.left = np.zeros(lanes, np.int64)
        self.episode = np.zeros(lanes, np.int64)
        self.time = 0

    def steps(self, count: int) -> TensorDict:
        """The next steps [lanes, count], or [count] of one lane."""
        ids, done = np.empty((2, self.lanes, count), np.int64)
        for lane in range(self.lanes):
            for i in range(count):
                if not self.left[lane]:
                    self.left[lane] = self.rng.integers(1, 10)
                    self.episode[lane] = self.episode.max() + 1
                self.left[lane] -= 1
                ids[lane, i], done[lane, i] = self.episode[lane], not self.left[lane]
        time = torch.arange(self.time, self.time + count).expand(self.lanes, count).float()
        self.time += count
        flags = torch.from_numpy(done).bool()[..., None]
        observation = (time + 1000 * torch.arange(self.lanes)[:, None])[..., None]
        following = {"observation": observation + 1, "reward": observation, "done": flags, "terminated": flags}
        following["truncated"] = torch.zeros_like(flags)
        steps = TensorDict(
            {"observation": observation, "collector": {"traj_ids": torch.from_numpy(ids)}, "next": following},
            [self.lanes, count],
        )
        return steps if self.lanes > 1 else steps[0]


class Run:
    """A buffer, and what happens to it: the same for the same seed."""

    def __init__(self, sampler: str, storage: Any, lanes: int, seed: int) -> None:
        kind, options = SAMPLERS[sampler]
        self.buffer = TensorDictReplayBuffer(
            storage=storage(SIZE, ndim=1 if lanes == 1 else 2), sampler=kind(**options, seed=5), batch_size=BATCH
        )
        self.stream, self.rng = Stream(seed, lanes), np.random.default_rng(seed)

    def drawn(self, events: int) -> list[Any]:
        """Write, change, sample and update priorities at random; return all batches."""
        found: list[Any] = []
        for _ in range(events):
            what = self.rng.choice(["write", "sample", "change"], p=[0.45, 0.45, 0.1])
            if what == "write" or not len(self.buffer):
                self.buffer.extend(self.stream.steps(int(self.rng.integers(1, 12))))
            elif what == "change":
                row = torch.from_numpy(self.buffer.storage.row_at(self.rng.integers(len(self.buffer), size=1)))
                step = self.buffer[row]
                step["next", "terminated"] = step["next", "done"] = ~step["next", "done"]
                self.buffer[row] = step
            else:
                priority = self.rng.random(BATCH)
                try:
                    batch = self.buffer.sample()
                except SamplingError as exc:
                    found.append(str(exc))
                    continue
                found.append(batch.to_dict())
                self.buffer.update_priority(batch["index"], torch.from_numpy(priority[: len(batch)]).float().mean())
        return found


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("sampler", SAMPLERS)
@given(
    storage=st.sampled_from(STORAGES),
    lanes=st.sampled_from([1, 1, 2]),
    seed=st.integers(0, 10_000),
    before=st.integers(1, 20),
    on_disk=st.booleans(),
)
@settings(max_examples=6)
def test_a_restored_buffer_draws_what_the_other_draws(
    sampler: str, storage: Any, lanes: int, seed: int, before: int, on_disk: bool
) -> None:
    run, restored = (Run(sampler, storage, lanes, seed) for _ in range(2))
    run.drawn(before)
    if on_disk:
        with tempfile.TemporaryDirectory() as folder:
            run.buffer.dumps(Path(folder) / "saved")
            restored.buffer.loads(Path(folder) / "saved")
    else:
        restored.buffer.load_state_dict(copy.deepcopy(run.buffer.state_dict()))
    restored.stream, restored.rng = copy.deepcopy((run.stream, run.rng))
    expected, found = run.drawn(20), restored.drawn(20)
    assert len(expected) == len(found)
    assert all(map(same, expected, found))
