import pickle
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from rlx.buffer.protocol import Rows, Sampler, Storage
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.prioritized import PrioritizedSampler
from rlx.buffer.sampler.slices import SliceSampler, SliceSamplerWithoutReplacement
from rlx.buffer.sampler.steps import ConsumingSampler, RandomSampler, SamplerWithoutReplacement
from rlx.buffer.storage.compressed import CompressedStorage
from rlx.buffer.storage.lists import ListStorage
from rlx.buffer.storage.tensors import LazyMemmapStorage, LazyTensorStorage
from rlx.buffer.tensordict_replay_buffer import PrioritizedReplayBuffer, TensorDictReplayBuffer
from rlx.buffer.transform import NStep
from rlx.buffer.writer import RoundRobinWriter
from rlx.errors import OptionError, SamplingError, SchemaMismatchError
from rlx.transform.protocol import as_path
from tests.buffer import producers


def numbers(start: int, stop: int) -> Any:
    return TensorDict({"a": torch.arange(start, stop)}, [stop - start])


def buffer(capacity: int = 10, **arguments: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(capacity), **arguments)


def test_extend_and_add_say_where_steps_went() -> None:
    made = buffer(4)
    assert made.extend(numbers(0, 3)).tolist() == [0, 1, 2]
    assert made.add(numbers(3, 4)[0]) == 3
    assert made.extend([numbers(4, 5)[0], numbers(5, 6)[0]]).tolist() == [0, 1]
    assert made[:]["a"].tolist() == [4, 5, 2, 3]
    assert len(made) == 4
    assert made.write_count == 6


def test_lanes() -> None:
    made = ReplayBuffer(storage=LazyTensorStorage(8, ndim=2))
    steps = numbers(0, 6).reshape(2, 3)
    assert made.extend(steps).tolist() == [[0, 1, 2], [4, 5, 6]]
    added = made.add(steps[:, 0])
    assert isinstance(added, torch.Tensor)
    assert added.tolist() == [3, 7]
    assert made[:]["a"].tolist() == [[0, 1, 2, 0], [3, 4, 5, 3]]
    assert made[:2].batch_size == torch.Size([2, 2])
    assert made[[6, 0]]["a"].tolist() == [5, 0]


def test_time_may_be_another_dimension() -> None:
    made = ReplayBuffer(storage=LazyTensorStorage(8, ndim=2), dim_extend=0)
    made.extend(numbers(0, 6).reshape(3, 2))
    assert made[:]["a"].tolist() == [[0, 2, 4], [1, 3, 5]]


def test_dimensions_that_the_storage_lacks_belong_to_a_row() -> None:
    made = buffer()
    assert made.extend(numbers(0, 6).reshape(2, 3)).tolist() == [0, 1]
    assert made.sample(4).batch_size == (4, 3)
    assert made[1]["a"].tolist() == [3, 4, 5]
    assert made[:]["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(SchemaMismatchError, match=r"rows of shape \[\]: expected \[3\]"):
        made.extend(numbers(0, 6))
    with pytest.raises(SchemaMismatchError, match=r"rows of shape \[2\]: expected \[3\]"):
        made.extend(numbers(0, 6).reshape(3, 2))
    with pytest.raises(SamplingError, match=r"rows of shape \[3\]: expected single steps"):
        made.storage.index()
    copy = buffer()
    copy.load_state_dict(made.state_dict())
    assert copy.sample(4).batch_size == (4, 3)
    wider = ReplayBuffer(storage=LazyTensorStorage(99), batch_size=2)
    wider.load_state_dict(made.state_dict())
    assert wider[:]["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(SchemaMismatchError, match="expected 2 dimensions, found 1"):
        ReplayBuffer(storage=LazyTensorStorage(8, ndim=2)).extend(numbers(0, 3))


def test_indexing_reads_and_changes_rows() -> None:
    made = buffer()
    made.extend(numbers(0, 5))
    assert made[1]["a"].item() == 1
    assert made[-1]["a"].item() == 4
    assert made[torch.tensor([3, 0])]["a"].tolist() == [3, 0]
    assert made[np.array([True, False, False, False, True])]["a"].tolist() == [0, 4]
    assert made[3:1:-1]["a"].tolist() == [3, 2]
    made[[0, 1]] = numbers(50, 52)
    made[2] = numbers(60, 61)[0]
    assert made[:]["a"].tolist() == [50, 51, 60, 3, 4]
    for wrong in (5, [-6], 1.5, [[0]]):
        with pytest.raises((IndexError, ValueError)):
            made[wrong]


def test_what_is_read_is_a_copy() -> None:
    made = buffer()
    made.extend(numbers(0, 3))
    made[:]["a"].fill_(9)
    made.sample(3)["a"].fill_(9)
    assert made[:]["a"].tolist() == [0, 1, 2]


def test_batch_sizes_that_do_not_go_together() -> None:
    made = buffer(batch_size=2)
    made.extend(numbers(0, 3))
    # As in TorchRL, the size that is asked for prevails.
    assert len(made.sample()) == len(made.sample(2)) == 2
    assert len(made.sample(3)) == 3
    with pytest.raises(ValueError, match="no batch size"):
        buffer().sample()
    with pytest.raises(ValueError, match="no batch size"):
        next(iter(buffer()))
    with pytest.raises(ValueError, match="batch_size 0: expected at least 1"):
        buffer().sample(0)
    with pytest.raises(ValueError, match="batch_size 0: expected at least 1"):
        buffer(batch_size=0)
    with pytest.raises(ValueError, match="prefetch requires batch_size"):
        buffer(prefetch=2)


def test_an_empty_buffer_has_nothing_to_sample() -> None:
    made = buffer()
    with pytest.raises(SamplingError):
        made.sample(1)
    made.extend(numbers(0, 3))
    made.empty()
    assert len(made) == made.write_count == 0
    with pytest.raises(SamplingError):
        made.sample(1)


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_a_frozen_buffer_has_a_copy_unless_its_steps_are_in_files(storage: Any) -> None:
    made = ReplayBuffer(storage=storage(3))
    made.extend(numbers(0, 3))
    frozen = made.frozen()
    made.extend(numbers(3, 5))
    assert frozen is made if storage is LazyMemmapStorage else frozen[:]["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("renew", ["empty", "set_storage"])
@pytest.mark.parametrize("kind", [SliceSampler, SliceSamplerWithoutReplacement])
@pytest.mark.parametrize("options", [{"slice_len": 4}, {"num_slices": 2, "whole_trajectories": True}])
def test_slices_are_of_the_steps_that_are_there(kind: Any, options: dict[str, Any], renew: str) -> None:
    """Also where as many writes came after the storage was emptied as before."""
    made = buffer(40, sampler=kind(seed=0, **options))
    for lengths in ([10, 10, 10], [4, 6, 20]):
        if renew == "empty":
            made.empty()
        else:
            made.set_storage(LazyTensorStorage(40))
        step = torch.cat([torch.arange(length) for length in lengths])
        trajectory = torch.arange(3).repeat_interleave(torch.tensor(lengths))
        done = (trajectory.diff(append=torch.tensor([9])) != 0)[:, None]
        made.extend(TensorDict({"a": 100 * trajectory + step, "next": {"done": done}}, [30]))
        for _ in range(6):
            drawn = made.sample(8)["a"].numpy()
            for piece in np.split(drawn, np.flatnonzero(np.diff(drawn) != 1) + 1):
                assert len(piece) == lengths[piece[0] // 100] if "num_slices" in options else len(piece) % 4 == 0


def test_what_a_sampler_says_comes_with_the_batch() -> None:
    made = buffer(sampler=PrioritizedSampler(10, 0.7, 0.5, seed=0))
    rows = made.extend(numbers(0, 3))
    made.update_priority(rows, torch.tensor([[1.0], [5.0], [1.0]]))
    made.update_priority(int(rows[0]), 2.0)
    batch, info = made.sample(8, return_info=True)
    assert (batch["priority_weight"] == info["priority_weight"]).all()
    assert (batch["a"] == info["index"]).all()
    assert (batch["index"] == info["index"]).all()


def test_a_tensordict_buffer_takes_priorities_by_index() -> None:
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=PrioritizedSampler(10, 1.0, 1.0, seed=0))
    made.extend(numbers(0, 3))
    batch = made.sample(16)
    assert (batch["index"] == batch["a"]).all()
    batch["td_error"] = torch.where(batch["a"] == 1, 1e6, 1e-6)[:, None]
    made.update_tensordict_priority(batch)
    assert set(made.sample(16)["a"].tolist()) == {1}


def test_iteration_ends_with_the_epoch_of_a_sampler_that_has_one() -> None:
    made = buffer(sampler=SamplerWithoutReplacement(seed=0), batch_size=2)
    made.extend(numbers(0, 5))
    for _ in range(2):
        assert sorted(number for batch in made for number in batch["a"].tolist()) == [0, 1, 2, 3, 4]
    endless = iter(buffer_with(numbers(0, 2)))
    assert [len(next(endless)) for _ in range(5)] == [3] * 5


def buffer_with(steps: Any) -> ReplayBuffer:
    made = buffer(batch_size=3)
    made.extend(steps)
    return made


def test_collate_and_transforms_see_the_marks() -> None:
    seen: list[bool] = []

    def collate(batch: TensorDictBase) -> TensorDictBase:
        seen.append(("collector", "slice_end") in batch.keys(include_nested=True))
        return batch.select("observation")

    made = buffer(
        100, sampler=SliceSampler(slice_len=2, seed=0), collate_fn=collate, transform=lambda b: b.reshape(-1, 2)
    )
    made.extend(next(producers.single(1, 30)))
    batch = made.sample(8)
    assert seen == [True]
    assert batch.batch_size == torch.Size([4, 2])
    assert list(batch.keys()) == ["observation"]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_are_pinned_where_there_is_an_accelerator(prefetch: int) -> None:
    made = buffer(batch_size=2, pin_memory=True, prefetch=prefetch)
    made.extend(numbers(0, 10))
    assert made.sample()["a"].is_pinned() == torch.accelerator.is_available()


def test_parts_can_be_exchanged() -> None:
    made = buffer_with(numbers(0, 3))
    before = made.sampler
    weighted = PrioritizedSampler(10, 1.0, 1.0, seed=0)
    assert made.set_sampler(weighted) is before
    assert "priority_weight" in made.sample().keys()  # noqa: SIM118
    other = LazyTensorStorage(10)
    other.append(numbers(7, 9))
    assert len(made.set_storage(other)) == 3
    assert set(made.sample()["a"].tolist()) <= {7, 8}
    writer = made.writer
    assert made.set_writer(RoundRobinWriter()) is writer
    assert repr(made).endswith("batch_size=3)")


def test_it_can_be_sent_to_another_process() -> None:
    made = buffer(sampler=SamplerWithoutReplacement(seed=0), batch_size=2, prefetch=2)
    made.extend(numbers(0, 8))
    made.sample()
    copy = pickle.loads(pickle.dumps(made))
    assert [copy.sample()["a"].tolist() for _ in range(6)] == [made.sample()["a"].tolist() for _ in range(6)]
    copy.shutdown()
    made.shutdown()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_threads_write_and_sample_at_once(prefetch: int) -> None:
    made = buffer(16, batch_size=8, prefetch=prefetch, sampler=RandomSampler(seed=0))
    made.extend(numbered(0))
    stop, wrong = threading.Event(), list[Any]()
    oldest = [0]  # of the writes that had certainly been overwritten before a sample began

    def write() -> None:
        for number in range(1, 400):
            made.extend(numbered(number))
            oldest[0] = max(oldest[0], number - 4)  # the ring holds the last four
        stop.set()

    def sample() -> None:
        while not stop.is_set():
            least = oldest[0]
            batch = made.sample()
            if (batch["a"] != batch["next", "a"]).any() or (batch["a"] != batch["wide"].amax((1, 2))).any():
                wrong.append(("torn", batch["a"].tolist()))
            if (batch["a"] < least).any():
                wrong.append(("stale", least, batch["a"].tolist()))

    def change() -> None:
        while not stop.is_set():
            made.update_priority(torch.tensor([0, 1]), 1.0)

    threads = [threading.Thread(target=target) for target in (write, sample, sample, change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.shutdown()
    assert not wrong


def numbered(number: int) -> Any:
    """Four steps that say in every key which write they are of."""
    value = torch.full((4,), number)
    return TensorDict(
        {"a": value, "next": {"a": value.clone()}, "wide": value.reshape(4, 1, 1).expand(4, 64, 64).clone()}, [4]
    )


def test_a_generator_seeds_the_sampler_that_is_given() -> None:
    def drawn(seed: int) -> list[int]:
        made = buffer(sampler=RandomSampler(), generator=torch.Generator().manual_seed(seed))
        made.extend(numbers(0, 100))
        found: list[int] = made.sample(20)["a"].tolist()
        return found

    assert drawn(1) == drawn(1) != drawn(2)
    with pytest.raises(TypeError, match="give the generator to the sampler"):
        buffer(sampler=Oldest(), generator=torch.Generator())


class Oldest(Sampler):
    """Draws the oldest steps: a sampler that only says what is its own."""

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, Any]]:
        return storage.row_at(np.arange(batch_size)), {}

    def shard(self, index: int, count: int) -> Self:  # noqa: ARG002
        return self

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def test_a_sampler_of_ones_own_has_the_defaults_of_the_protocol() -> None:
    made = buffer(sampler=Oldest(), transform=NStep(2, 1.0))
    after = TensorDict({"reward": torch.ones(4, 1), "done": torch.zeros(4, 1, dtype=torch.bool)}, [4])
    made.extend(numbers(0, 4).set("next", after))
    made.update_priority(0, 1.0)
    batch = made.sample(3)
    assert batch["a"].tolist() == [0, 1, 2]
    assert batch["next", "reward"].flatten().tolist() == [2.0, 2.0, 2.0]
    made.empty()
    assert not len(made)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": object()}, "sampler: expected a rlx.buffer.Sampler, found object without draws_slices, emptied"),
        ({"sampler": RandomSampler}, "found the class RandomSampler itself: give RandomSampler"),
        ({"sampler": LazyTensorStorage(3)}, "sampler: expected a rlx.buffer.Sampler, found LazyTensorStorage without"),
        (
            {"storage": object()},
            "storage: expected a rlx.buffer.Storage, found object without append, contradictions, cursor",
        ),
        ({"storage": "cartpole"}, "expected a rlx.buffer.Storage or a dataset, found 'cartpole': use rlx.open"),
        ({"writer": object()}, "writer: expected a rlx.buffer.Writer, found object without cursor, empty, extend"),
    ],
)
@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_a_part_that_is_none_is_refused_at_once(kind: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        kind(**arguments)
    (name, part), *_ = arguments.items()
    made = kind()
    with pytest.raises(TypeError, match=message):
        getattr(made, f"set_{name}")(part)
    made.extend(numbers(0, 4))
    assert len(made.sample(2)) == 2


def test_priorities_in_new_steps_are_theirs() -> None:
    made = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8), sampler=PrioritizedSampler(8, 1.0, 1.0), priority_key="td_error", batch_size=16
    )
    made.extend(numbers(0, 4).set("td_error", torch.tensor([0.0, 0.0, 5.0, 0.0])))
    assert set(made.sample()["a"].tolist()) == {2}
    rows = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, batch_size=16)
    rows.extend(numbers(0, 4).set("td_error", torch.tensor([0.0, 0.0, 5.0, 0.0])))
    assert set(rows.sample(256)["a"].tolist()) == {0, 1, 2, 3}  # it has no key for priorities


def test_priorities_of_rows_that_are_trajectories() -> None:
    made = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8), sampler=PrioritizedSampler(8, 1.0, 1.0, seed=1), batch_size=16
    )
    made.extend(numbers(0, 6).reshape(3, 2))
    batch = made.sample()
    assert batch["index"].shape == batch["priority_weight"].shape == (16, 2)
    made.update_tensordict_priority(batch.set("td_error", (batch["a"] == 3).float()))
    assert set(made.sample()["index"].flatten().tolist()) == {1}


def test_a_trajectory_key_that_is_not_stored_gives_way_to_the_end_key() -> None:
    made = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SliceSampler(slice_len=2, traj_key="missing", seed=0))
    made.extend(numbers(0, 4).set(("next", "done"), torch.tensor([False, True, False, True])[:, None]))
    assert {tuple(pair) for pair in made.sample(16)["a"].reshape(-1, 2).tolist()} == {(0, 1), (2, 3)}
    other = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SliceSampler(slice_len=2, end_key="missing", seed=0))
    other.extend(numbers(0, 4).set("episode", torch.tensor([0, 0, 1, 1])))
    assert {tuple(pair) for pair in other.sample(16)["a"].reshape(-1, 2).tolist()} == {(0, 1), (2, 3)}
    neither = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SliceSampler(slice_len=2, traj_key="missing", seed=0))
    neither.extend(numbers(0, 4))
    with pytest.raises(SamplingError, match="'missing' is not stored"):
        neither.sample(16)


def test_a_storage_without_room() -> None:
    with pytest.raises(ValueError, match="max_size 0: expected at least 1"):
        LazyTensorStorage(0)


def test_lanes_may_change_while_nothing_is_stored() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    buffer.extend(TensorDict({"a": torch.arange(6).reshape(2, 3)}, [2, 3]))
    with pytest.raises(SchemaMismatchError, match=r"lanes of shape \[3\]: expected \[2\]"):
        buffer.extend(TensorDict({"a": torch.arange(6).reshape(3, 2)}, [3, 2]))
    buffer.empty()
    buffer.extend(TensorDict({"a": torch.arange(6).reshape(3, 2)}, [3, 2]))
    assert buffer[:]["a"].tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(SchemaMismatchError, match="the first write to a storage with lanes: expected append"):
        LazyTensorStorage(12, ndim=2).set(np.arange(2), TensorDict({"a": torch.zeros(2)}, [2]))


@pytest.mark.parametrize("size", [0, -1, 2.5, 4.0, "4"])
def test_a_batch_size_that_is_no_number_of_steps(size: Any) -> None:
    expected = "at least 1" if isinstance(size, int) else "a whole number"
    with pytest.raises(ValueError, match=f"batch_size {size!r}: expected {expected}"):
        ReplayBuffer(storage=LazyTensorStorage(10), batch_size=size)
    with pytest.raises(ValueError, match=f"batch_size {size!r}: expected {expected}"):
        ReplayBuffer(storage=LazyTensorStorage(10)).sample(size)


def test_a_replaced_step_begins_an_episode() -> None:
    storage = LazyTensorStorage(4)
    storage.append(TensorDict({"a": torch.arange(4), "is_init": torch.zeros(4, 1, dtype=torch.bool)}, [4]))
    storage.set(np.array([2]), TensorDict({"a": torch.tensor([9])}, [1]))
    assert storage[:]["a"].tolist() == [0, 1, 9, 3]
    assert storage[:]["is_init"].flatten().tolist() == [False, False, True, False]


def test_the_seed_of_a_sampler_repeats_its_draws() -> None:
    sampler = RandomSampler()
    buffer, other = (
        ReplayBuffer(storage=LazyTensorStorage(9), sampler=one, batch_size=4)
        for one in (sampler, RandomSampler(seed=sampler.seed))
    )
    for each in (buffer, other):
        each.extend(numbers(0, 9))
    assert (buffer.sample() == other.sample()).all()


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of a prototype
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_cannot_be_stored(layout: torch.layout) -> None:
    with pytest.raises(SchemaMismatchError, match="expected one shape, found a nested tensor"):
        ReplayBuffer().extend(torch.nested.nested_tensor([torch.zeros(3), torch.zeros(5)], layout=layout))


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage, CompressedStorage])
def test_a_consuming_buffer_continues_from_a_checkpoint(storage: Any, tmp_path: Path) -> None:
    buffer, again = (
        TensorDictReplayBuffer(storage=storage(20), sampler=ConsumingSampler(2, seed=seed), batch_size=6)
        for seed in (1, 2)
    )
    buffer.extend(TensorDict({"a": torch.arange(15)}, [15]))
    buffer.sample()
    buffer.dumps(tmp_path / "saved")
    again.loads(tmp_path / "saved")
    for made in (buffer, again):
        made.extend(TensorDict({"a": torch.arange(15, 40)}, [25]))  # wraps
    batches = [[batch["index"].tolist() for batch in made] for made in (buffer, again)]
    assert batches[0] == batches[1]
    assert sorted(row for batch in batches[0] for row in batch) == sorted([*range(20)] * 2)


def test_a_consuming_sampler_cannot_be_read_ahead() -> None:
    with pytest.raises(OptionError, match="prefetch 2: expected 0 with a ConsumingSampler"):
        ReplayBuffer(sampler=ConsumingSampler(), batch_size=2, prefetch=2)
    with pytest.raises(OptionError, match="prefetch 2: expected 0 with a ConsumingSampler"):
        ReplayBuffer(batch_size=2, prefetch=2).set_sampler(ConsumingSampler())


def walk(steps: int, *, ids: bool = True) -> TensorDict:
    """One episode in which each observation is the next one of the step before."""
    observation = torch.arange(steps + 1.0)[:, None]
    after = {
        "observation": observation[1:].clone(),
        "reward": torch.ones(steps, 1),
        "done": torch.zeros(steps, 1).bool(),
    }
    made = TensorDict({"observation": observation[:-1], "next": after}, [steps])
    return made.set(("collector", "traj_ids"), torch.zeros(steps, dtype=torch.int64)) if ids else made


@pytest.mark.parametrize("key", ["value", "q", "log_prob", ("info", "lives"), "timestamp", "state_value"])
def test_values_that_differ_now_and_next_separate_no_steps(key: Any) -> None:
    steps = walk(6)
    steps[key], steps["next", *as_path(key)] = torch.rand(6, 1), torch.rand(6, 1)
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), transform=NStep(3, gamma=1.0), batch_size=6)
    for part in steps.split(2):
        buffer.extend(part)
    assert buffer[:]["next", "reward"].flatten().tolist() == [3, 3, 3, 3, 2, 1]
    assert buffer.contradictions == 0


def test_ids_decide_within_a_write_and_a_contradiction_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    steps = walk(8)
    steps["observation"][3] += 1e-6
    steps["observation"][5] += 1e-6
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=8, seed=0), batch_size=8)
    buffer.extend(steps)
    for _ in range(2):
        assert buffer.sample()["observation"].flatten().tolist() == steps["observation"].flatten().tolist()
    assert buffer.contradictions == 2
    assert caplog.text.count("2 steps: the observation is not the next one") == 1
    caplog.clear()
    named = ReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=SliceSampler(slice_len=8, traj_key=("collector", "traj_ids"), seed=0),
        batch_size=8,
    )
    for part in steps.split(3):
        named.extend(part)
    assert named.sample()["observation"].flatten().tolist() == steps["observation"].flatten().tolist()
    assert not caplog.text


def test_named_observations_tell_sources_apart() -> None:
    for named, lengths in (((), [6]), (("place",), [3, 3])):
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=1), observation_keys=named, batch_size=1
        )
        for source in range(2):
            steps = walk(3)
            steps["place"], steps["next", "place"] = steps["observation"] + 10 * source, steps["next", "observation"]
            buffer.extend(steps.exclude("observation", ("next", "observation")))
        assert buffer.storage.index().trajectories()[1].tolist() == lengths


def test_dicts_of_arrays_are_written_and_given_back() -> None:
    def step(number: int) -> dict[str, Any]:
        after = {"observation": np.full(4, number + 1.0, np.float32), "reward": np.float32(1), "done": number == 4}
        return {"observation": np.full(4, number, np.float32), "action": number, "next": after}

    buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SliceSampler(slice_len=5, seed=0), batch_size=5)
    assert [buffer.add(step(number)) for number in range(5)] == [0, 1, 2, 3, 4]
    batch: Any = buffer.sample()
    assert isinstance(batch["next"]["observation"], np.ndarray)
    assert batch["observation"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert batch["next"]["done"].tolist() == [False] * 4 + [True]
    many = {"observation": np.zeros((3, 4), np.float32), "action": np.arange(3)}
    after = {"observation": np.ones((3, 4), np.float32), "reward": np.ones(3, np.float32), "done": np.zeros(3, bool)}
    assert buffer.extend({**many, "next": after}).tolist() == [5, 6, 7]
    with pytest.raises(SchemaMismatchError, match=r"key 'action': expected int64\[\], found float32\[\]"):
        buffer.add({**step(0), "action": 1.5})
    with pytest.raises(SchemaMismatchError, match=r"key 'action': expected \[3\], found \[2\] steps"):
        buffer.extend({**many, "action": np.arange(2), "next": after})
    restored = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=2)
    restored.load_state_dict(buffer.state_dict())
    assert isinstance(restored.sample()["observation"], np.ndarray)


@pytest.mark.parametrize("storage", [ListStorage, LazyTensorStorage, CompressedStorage])
def test_steps_without_a_tensor_or_of_different_keys(storage: Callable[[int], Storage]) -> None:
    buffer = ReplayBuffer(storage=storage(10))
    with pytest.raises(SchemaMismatchError, match="expected at least one tensor, found none"):
        buffer.extend(TensorDict({}, [3]))
    both, one = ({key: torch.zeros(2) for key in keys} for keys in ("ab", "a"))
    with pytest.raises(SchemaMismatchError, match="expected the same keys and shapes in all of them"):
        buffer.extend(LazyStackedTensorDict.lazy_stack([TensorDict(both), TensorDict(one)], 0))
    assert len(buffer) == 0
