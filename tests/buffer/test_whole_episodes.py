"""Buffers that drop whole episodes, the oldest first, held against a list of episodes."""

import io
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

import rlx
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.prioritized import PrioritizedSampler
from rlx.buffer.sampler.slices import PrioritizedSliceSampler, SliceSampler, SliceSamplerWithoutReplacement
from rlx.buffer.sampler.steps import ConsumingSampler, RandomSampler, SamplerWithoutReplacement
from rlx.buffer.sampler.streams import StreamSampler
from rlx.buffer.storage.compressed import CompressedStorage
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.buffer.storage.lists import ListStorage
from rlx.buffer.storage.ring import RingStorage
from rlx.buffer.storage.tensors import LazyMemmapStorage, LazyTensorStorage
from rlx.buffer.writer import WholeEpisodeWriter
from rlx.errors import SamplingError, SchemaMismatchError

SIZE = 12


class Episodes:
    """The slow way: for every lane, whole episodes of numbered steps, the last of them open or not."""

    def __init__(self, lanes: int) -> None:
        self.lanes: list[deque[list[int]]] = [deque([[]]) for _ in range(lanes)]
        self.next = 0

    def write(self, done: list[list[bool]]) -> list[list[int]]:
        """Write a step of every lane for each column; return the numbers of the steps."""
        numbers = [[1_000 * lane + self.next + t for t in range(len(flags))] for lane, flags in enumerate(done)]
        self.next += len(done[0])
        for lane, flags in enumerate(done):
            episodes = self.lanes[lane]
            for number, ends in zip(numbers[lane], flags, strict=True):
                episodes[-1].append(number)
                while sum(map(len, episodes)) > SIZE:
                    episodes.popleft()
                if ends:
                    episodes.append([])
        return numbers

    @property
    def stored(self) -> list[int]:
        return [number for episodes in self.lanes for episode in episodes for number in episode]


def steps_of(numbers: list[list[int]], done: list[list[bool]], ids: list[list[int]] | None) -> TensorDict:
    number, flags = torch.tensor(numbers), torch.tensor(done)[..., None]
    columns: dict[str, Any] = {
        "observation": number[..., None].float(),
        "next": {"observation": number[..., None].float() + 1, "done": flags, "terminated": flags},
    }
    steps = TensorDict(columns, number.shape)
    if ids is not None:
        steps["collector", "traj_ids"] = torch.tensor(ids)
    return steps


def storages(kind: str, lanes: int, path: Path) -> RingStorage:
    made: dict[str, Any] = {
        "tensors": lambda: LazyTensorStorage(SIZE * lanes, ndim=1 + (lanes > 1)),
        "memmap": lambda: LazyMemmapStorage(SIZE * lanes, scratch_dir=path, existsok=True, ndim=1 + (lanes > 1)),
        "compressed": lambda: CompressedStorage(SIZE * lanes, ndim=1 + (lanes > 1)),
        "lists": lambda: ListStorage(SIZE * lanes, ndim=1 + (lanes > 1)),
    }
    storage: RingStorage = made[kind]()
    return storage


def numbers_of(buffer: ReplayBuffer) -> list[int]:
    storage = buffer.storage
    rows = storage.row_at(np.arange(len(storage)))
    return [int(number) for number in storage.get(rows)["observation"].flatten()]


# Writes: for every lane, the same number of steps, each of which ends its episode or not.
def writes(lanes: int) -> st.SearchStrategy[list[list[list[bool]]]]:
    def write(steps: int) -> st.SearchStrategy[list[list[bool]]]:
        return st.lists(st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=lanes, max_size=lanes)

    return st.lists(st.integers(1, 2 * SIZE + 3).flatmap(write), max_size=6)


def shortened(done: list[list[bool]], since: list[int]) -> list[list[bool]]:
    """End every episode that would be longer than a lane."""
    for lane, flags in enumerate(done):
        for place, ends in enumerate(flags):
            since[lane] += 1
            flags[place] = ends or since[lane] == SIZE
            since[lane] = 0 if flags[place] else since[lane]
    return done


@pytest.mark.parametrize("has_ids", [False, True])
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("kind", ["tensors", "memmap", "compressed", "lists"])
@given(data=st.data())
def test_whole_episodes_are_dropped_the_oldest_first(
    tmp_path_factory: pytest.TempPathFactory, kind: str, lanes: int, has_ids: bool, data: st.DataObject
) -> None:
    storage = storages(kind, lanes, tmp_path_factory.getbasetemp() / f"whole-{kind}")
    samplers = [RandomSampler(seed=0), PrioritizedSampler(SIZE * lanes, 1.0, 1.0, seed=0), ConsumingSampler(seed=0)]
    sampler: Any = data.draw(st.sampled_from(samplers))
    buffer = ReplayBuffer(storage=storage, sampler=sampler, writer=WholeEpisodeWriter())
    oracle, since, episode = Episodes(lanes), [0] * lanes, [lanes * lane for lane in range(lanes)]
    for drawn in data.draw(writes(lanes)):
        done = shortened(drawn, since)
        ids = []
        for lane, flags in enumerate(done):
            before = np.concatenate([[0], np.cumsum(flags)])
            ids.append([episode[lane] + int(ended) * lanes * lanes for ended in before[:-1]])
            episode[lane] += int(before[-1]) * lanes * lanes
        steps = steps_of(oracle.write(done), done, ids if has_ids else None)
        buffer.extend(steps if lanes > 1 else steps[0])
        assert numbers_of(buffer) == oracle.stored
        index = storage.index()
        first, length = index.trajectories()
        assert sorted(length.tolist()) == sorted(
            len(one) for episodes in oracle.lanes for one in episodes if len(one) > 0
        )
        assert index.at_reset(first).all()
        if not oracle.stored:
            continue
        seen = {int(number) for number in buffer.sample(200)["observation"].flatten()}
        assert seen <= set(oracle.stored)
        if len(oracle.stored) < 15 and not isinstance(sampler, PrioritizedSampler):
            assert seen == set(oracle.stored) or isinstance(sampler, ConsumingSampler)


def filled(sampler: Any = None, writes: int = 8, seed: int = 0, storage: Any = None) -> tuple[ReplayBuffer, Episodes]:
    storage = LazyTensorStorage(SIZE) if storage is None else storage
    buffer = ReplayBuffer(storage=storage, sampler=sampler, writer=WholeEpisodeWriter())
    oracle, rng, since = Episodes(1), np.random.default_rng(seed), [0]
    for _ in range(writes):
        done = shortened([(rng.random(5) < 0.3).tolist()], since)
        buffer.extend(steps_of(oracle.write(done), done, None)[0])
        if len(oracle.stored) < SIZE and oracle.next > SIZE and _ > writes - 3:
            break
    assert buffer.storage.has_gaps
    return buffer, oracle


@pytest.mark.parametrize(
    "sampler",
    [
        SliceSampler(slice_len=2, strict_length=False, seed=0),
        SliceSamplerWithoutReplacement(slice_len=2, strict_length=False, seed=0),
        PrioritizedSliceSampler(SIZE, 1.0, 1.0, slice_len=2, strict_length=False, seed=0),
        StreamSampler(slice_len=4, seed=0),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_slices_are_of_stored_steps(sampler: Any) -> None:
    buffer, oracle = filled(sampler)
    for number in range(30):
        found = {int(step) for step in buffer.sample(4)["observation"].flatten()}
        assert found <= set(oracle.stored)
        done = [[number % 3 == 0]]
        buffer.extend(steps_of(oracle.write(done), done, None)[0])


def test_a_sampler_of_every_row_refuses() -> None:
    buffer, _ = filled(SamplerWithoutReplacement(seed=0))
    with pytest.raises(SamplingError, match="drops no episodes"):
        buffer.sample(4)


def test_rows_between_gaps() -> None:
    buffer, oracle = filled()
    assert [int(step) for step in buffer[:]["observation"].flatten()] == [
        int(step) for step in buffer.storage.get(np.sort(buffer.storage.row_at(np.arange(len(buffer)))))["observation"]
    ]
    rows = buffer.storage.row_at(np.arange(len(buffer)))
    assert int(buffer[int(rows[0])]["observation"]) == oracle.stored[0]
    (empty,) = np.setdiff1d(np.arange(SIZE), rows)[:1].tolist()
    with pytest.raises(IndexError, match=f"row {empty} is empty"):
        buffer[empty]


def test_a_priority_of_a_dropped_step_is_left_out() -> None:
    buffer, oracle = filled(PrioritizedSampler(SIZE, 1.0, 1.0, seed=0))
    buffer.update_priority(np.arange(SIZE), 1.0)
    for _ in range(20):
        assert {int(step) for step in buffer.sample(8)["observation"].flatten()} <= set(oracle.stored)


def test_a_snapshot_goes_on_as_the_buffer_does() -> None:
    buffer, oracle = filled(RandomSampler(seed=1))
    other, _ = filled(RandomSampler(seed=2), seed=5)
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for number in range(12):
        assert numbers_of(other) == numbers_of(buffer) == oracle.stored
        assert other.sample(5)["observation"].equal(buffer.sample(5)["observation"])
        done = [[number % 4 == 0]]
        steps = steps_of(oracle.write(done), done, None)[0]
        buffer.extend(steps)
        other.extend(steps)


def test_a_directory_of_lanes_with_different_numbers_of_steps(tmp_path: Path) -> None:
    def buffer_of(size: int) -> ReplayBuffer:
        return ReplayBuffer(storage=LazyTensorStorage(size, ndim=2), writer=WholeEpisodeWriter())

    buffer, oracle = buffer_of(2 * SIZE), Episodes(2)
    for ends in range(16):
        done = [[ends % 5 == 0], [ends % 3 == 0]]
        buffer.extend(steps_of(oracle.write(done), done, None))
    assert buffer.storage.has_gaps
    buffer.dumps(tmp_path / "saved")
    again = buffer_of(2 * SIZE)
    again.loads(tmp_path / "saved")
    assert numbers_of(again) == oracle.stored
    with pytest.raises(SchemaMismatchError, match="different numbers of steps"):
        buffer_of(4 * SIZE).loads(tmp_path / "saved")


def test_a_checkpoint_of_a_run_leaves_out_what_was_dropped_since(tmp_path: Path) -> None:
    buffer, oracle = filled(RandomSampler(seed=1))
    with rlx.Checkpoint(tmp_path / "run", memory=buffer) as checkpoint:
        for number in range(12):
            checkpoint.save(number)
            done = [[number % 4 == 0, number % 3 == 0]]
            buffer.extend(steps_of(oracle.write(done), done, None)[0])
        checkpoint.save(12)
    other = ReplayBuffer(storage=LazyTensorStorage(SIZE), sampler=RandomSampler(seed=2), writer=WholeEpisodeWriter())
    with rlx.Checkpoint(tmp_path / "run", memory=other) as checkpoint:
        assert checkpoint.restore() == 12
    assert numbers_of(other) == oracle.stored
    assert other.sample(5)["observation"].equal(buffer.sample(5)["observation"])


def test_a_priority_for_a_step_that_was_dropped_since_is_counted() -> None:
    sampler, writer = PrioritizedSampler(SIZE, 1.0, 1.0, seed=0), WholeEpisodeWriter(track_generations=True)
    buffer = ReplayBuffer(storage=LazyTensorStorage(SIZE), sampler=sampler, writer=writer)
    buffer.extend(steps_of([list(range(SIZE))], [[t in (5, 9) for t in range(SIZE)]], None)[0])
    batch = buffer.sample(100)
    buffer.extend(steps_of([[SIZE]], [[False]], None)[0])  # overwrites one of the first episode, drops its 5 others
    buffer.update_priority(batch["index"], 2.0, batch["index_generation"])
    assert buffer.stale_priorities == int((batch["index"] < 6).sum())
    assert len(buffer) == SIZE - 5


def test_interleaved_episodes_and_too_long_ones_are_refused() -> None:
    def extend(ids: list[int], start: int) -> None:
        none = [[False] * len(ids)]
        buffer.extend(steps_of([list(range(start, start + len(ids)))], none, [ids])[0])

    buffer = ReplayBuffer(storage=LazyTensorStorage(SIZE), writer=WholeEpisodeWriter())
    extend([1, 1, 2, 2], 0)
    with pytest.raises(SamplingError, match="others came between them"):
        extend([1, 1], 2)
    buffer.empty()
    extend([1] * SIZE, 0)
    with pytest.raises(SamplingError, match="more than 12 steps"):
        extend([1], SIZE)


def test_a_dataset_cannot_be_written_to(pong: Path) -> None:
    with pytest.raises(TypeError, match="can be written to"):
        ReplayBuffer(storage=DatasetStorage(pong), writer=WholeEpisodeWriter()).extend(TensorDict({}, [1]))
