from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rlx.buffer.batch import split_trajectories
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.prioritized import PrioritizedSampler
from rlx.buffer.sampler.slices import SliceSampler
from rlx.buffer.sampler.steps import RandomSampler, SamplerWithoutReplacement
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer
from rlx.buffer.writer import TensorDictRoundRobinWriter
from rlx.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    DiskFullError,
    FormatVersionError,
    RlxError,
    SchemaMismatchError,
)
from tests.buffer import producers
from tests.buffer.transform.stored import PRODUCERS
from tests.damage import rewrite
from tests.factories import make_block, write_dataset

SAMPLERS: dict[str, Any] = {
    "random": lambda seed: RandomSampler(seed=seed),
    "without replacement": lambda seed: SamplerWithoutReplacement(seed=seed),
    "prioritized": lambda seed: PrioritizedSampler(96, 0.7, 0.9, seed=seed),
    "slices": lambda seed: SliceSampler(slice_len=2, seed=seed),
}


def buffer(sampler: Any, *, ndim: int = 1, capacity: int = 96, prefetch: int = 0) -> ReplayBuffer:
    return ReplayBuffer(
        storage=LazyTensorStorage(capacity, ndim=ndim), sampler=sampler, batch_size=6, prefetch=prefetch
    )


def filled(sampler: Any, batches: int = 20, *, prefetch: int = 0) -> ReplayBuffer:
    made = buffer(sampler, prefetch=prefetch)
    for batch in producers.asynchronous(batches, 7):
        rows = made.extend(batch)
        made.update_priority(rows, torch.rand(7, generator=torch.Generator().manual_seed(int(rows[0]))))
    return made


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("batches", [5, 20])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_next_batches_are_those_that_would_have_come(
    sampler: str, batches: int, prefetch: int, tmp_path: Path
) -> None:
    made = filled(SAMPLERS[sampler](0), batches, prefetch=prefetch)
    for _ in range(3):
        made.sample()
    made.dumps(tmp_path / "new" / "checkpoint")
    state = made.state_dict()
    torch.save(state, tmp_path / "state.pt")
    loaded, other = buffer(SAMPLERS[sampler](1)), buffer(SAMPLERS[sampler](2), prefetch=2)
    loaded.loads(tmp_path / "new" / "checkpoint")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert len(loaded) == len(other) == len(made)
    assert loaded.write_count == made.write_count
    for _ in range(20):
        expected = made.sample()
        assert (loaded.sample() == expected).all()
        assert (other.sample() == expected).all()
    late = next(producers.single(1, 9))
    assert made.extend(late).tolist() == loaded.extend(late).tolist() == other.extend(late).tolist()
    assert (made[:] == loaded[:]).all()
    made.shutdown()
    other.shutdown()


@settings(max_examples=30)
@given(data=st.data())
def test_trajectories_survive(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    produce, ndim = data.draw(st.sampled_from(PRODUCERS))
    made = buffer(SliceSampler(slice_len=3, strict_length=False, seed=0), ndim=ndim)
    batches = list(produce(data.draw(st.integers(1, 20)), data.draw(st.integers(1, 7))))
    cut = data.draw(st.integers(1, len(batches)))
    for batch in batches[:cut]:
        made.extend(batch)
    path = tmp_path_factory.mktemp("checkpoint")
    made.dumps(path)
    loaded = buffer(SliceSampler(slice_len=3, strict_length=False, seed=1), ndim=ndim)
    loaded.loads(path)
    for batch in batches[cut:]:
        made.extend(batch)
        loaded.extend(batch)
    first, second = made.storage.index(), loaded.storage.index()
    rows = first.row_at(torch.arange(len(made)).numpy())
    assert (rows == second.row_at(torch.arange(len(made)).numpy())).all()
    for of in ("remaining", "elapsed", "at_reset"):
        assert (getattr(first, of)(rows) == getattr(second, of)(rows)).all(), of


@pytest.mark.parametrize("capacity", [96, 97, 300])
def test_another_capacity_that_is_large_enough(capacity: int, tmp_path: Path) -> None:
    made = filled(RandomSampler(seed=0))
    made.dumps(tmp_path)
    loaded = buffer(SliceSampler(slice_len=2, seed=0), capacity=capacity)
    if capacity == 96:
        loaded.set_sampler(RandomSampler())
    loaded.loads(tmp_path)
    oldest_first = made.storage.row_at(torch.arange(96).numpy())
    expected, found = made[oldest_first], loaded[loaded.storage.row_at(torch.arange(96).numpy())]
    assert (expected == found).all()
    if capacity > 96:
        producers.check_slices(loaded.sample(), 2)


@pytest.mark.parametrize("capacity", [40, 64])
def test_trajectories_stay_whole_in_a_buffer_of_another_capacity(capacity: int, tmp_path: Path) -> None:
    number = torch.arange(40)
    steps = TensorDict({"number": number, "collector": {"traj_ids": number % 2}}, [40])
    saved = TensorDictReplayBuffer(storage=LazyTensorStorage(40), writer=TensorDictRoundRobinWriter())
    for start in range(0, 40, 10):
        saved.extend(steps[start : start + 10])
    saved.dumps(tmp_path / "saved")
    loaded = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=SliceSampler(slice_len=15, seed=0),
        writer=TensorDictRoundRobinWriter(),
        batch_size=60,
    )
    loaded.loads(tmp_path / "saved")
    assert loaded.storage.index().trajectories()[1].tolist() == [20, 20]
    slices = loaded.sample().reshape(4, 15)
    assert (slices["number"].diff(dim=1) == 2).all()
    assert loaded[:]["index"].tolist() == list(range(40))
    assert split_trajectories(loaded[:].exclude("index")).batch_size == (2, 20)


def test_another_capacity_that_is_not(tmp_path: Path) -> None:
    filled(RandomSampler(seed=0)).dumps(tmp_path)
    with pytest.raises(SchemaMismatchError, match="checkpoint has 96 steps, the storage has room for 95"):
        buffer(RandomSampler(), capacity=95).loads(tmp_path)
    with pytest.raises(SchemaMismatchError, match="checkpoint has 1 dimensions, the storage 2"):
        buffer(RandomSampler(), ndim=2).loads(tmp_path)


def test_the_default_buffer_can_be_saved(tmp_path: Path) -> None:
    made = ReplayBuffer()
    steps = next(producers.single(1, 9))
    made.extend(steps.set("a name/of any kind", torch.arange(9)))
    made.dumps(tmp_path)
    loaded = ReplayBuffer()
    loaded.loads(tmp_path)
    assert (loaded[:] == made[:]).all()


def test_only_what_is_stored_is_written(tmp_path: Path) -> None:
    made = ReplayBuffer(storage=LazyTensorStorage(100_000))
    made.extend(TensorDict({"a": torch.rand(10, 100)}, [10]))
    made.dumps(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 20_000


def test_a_checkpoint_replaces_the_one_before(tmp_path: Path) -> None:
    for batches in (1, 2):
        filled(RandomSampler(seed=0), batches).dumps(tmp_path)
        loaded = buffer(RandomSampler())
        loaded.loads(tmp_path)
        assert len(loaded) == 7 * batches
    assert len(list(tmp_path.iterdir())) == 2


def test_a_save_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    made = filled(RandomSampler(seed=0), 1)
    made.dumps(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    def fail(_: Any) -> Any:
        raise ZeroDivisionError

    made.register_save_hook(fail)
    with pytest.raises(ZeroDivisionError):
        made.dumps(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_hooks_change_what_is_written_and_read(tmp_path: Path) -> None:
    made = filled(RandomSampler(seed=0), 2)
    made.register_save_hook(lambda steps: steps.set("action", steps["action"] + 100))
    made.dumps(tmp_path)
    loaded = buffer(RandomSampler())
    loaded.register_load_hook(lambda steps: steps.set("action", steps["action"] + 1000))
    loaded.loads(tmp_path)
    assert (loaded[:]["action"] == made[:]["action"] + 1100).all()


def test_an_empty_buffer(tmp_path: Path) -> None:
    buffer(RandomSampler()).dumps(tmp_path)
    loaded = filled(RandomSampler(seed=0))
    loaded.loads(tmp_path)
    assert len(loaded) == 0


def test_paths_that_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(DatasetExistsError, match="is not a checkpoint"):
        filled(RandomSampler()).dumps(tmp_path)
    with pytest.raises(DatasetExistsError, match="is not a checkpoint"):
        filled(RandomSampler()).dumps(tmp_path / "mine.txt")
    with pytest.raises(DatasetNotFoundError):
        buffer(RandomSampler()).loads(tmp_path)


def test_another_format_version(tmp_path: Path) -> None:
    filled(RandomSampler()).dumps(tmp_path)
    rewrite(tmp_path / "buffer.json", version=3)
    with pytest.raises(FormatVersionError, match="format version 3, expected 2"):
        buffer(RandomSampler()).loads(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {"files": "../elsewhere"},
        {"blocks": [{"steps": 10**12, "bytes": [1] * 8}]},
        {"blocks": [{"steps": 96, "bytes": [10**9] * 8}]},
        {"blocks": [{"steps": 96, "bytes": [1]}]},
        {"blocks": 3},
        {"leaves": [{"key": ["a"], "dtype": "load", "shape": []}]},
        {"leaves": [{"key": ["a"], "dtype": "uint8", "shape": [-1]}]},
        {"leaves": [{"key": ["a", 0], "dtype": "uint8", "shape": []}]},
        {"format": "other"},
        {"checksums": None},
    ],
)
def test_a_manifest_that_lies(values: dict[str, Any], tmp_path: Path) -> None:
    filled(RandomSampler()).dumps(tmp_path)
    rewrite(tmp_path / "buffer.json", **values)
    with pytest.raises(CorruptDatasetError):
        buffer(RandomSampler()).loads(tmp_path)


def test_a_manifest_that_is_cut(tmp_path: Path) -> None:
    filled(RandomSampler()).dumps(tmp_path)
    manifest = tmp_path / "buffer.json"
    manifest.write_bytes(manifest.read_bytes()[:-5])
    with pytest.raises(CorruptDatasetError, match=r"buffer\.json is damaged: "):
        buffer(RandomSampler()).loads(tmp_path)


@settings(max_examples=40)
@given(data=st.data())
def test_damage_is_noticed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("checkpoint")
    made = filled(RandomSampler(), 2)
    made.dumps(path)
    files = sorted(file for file in path.rglob("*.zst") if file.stat().st_size)
    file = data.draw(st.sampled_from(files))
    raw = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(raw)
    loaded = buffer(RandomSampler())
    try:
        loaded.loads(path)
    except RlxError:
        return
    # A frame has a few bits that mean nothing.
    assert (loaded[:] == made[:]).all()


def test_a_state_of_fewer_steps_than_it_says() -> None:
    state = filled(RandomSampler()).state_dict()
    state["steps"] = [(key, leaf[:-1]) for key, leaf in state["steps"]]
    with pytest.raises(SchemaMismatchError, match="95 steps, expected 96"):
        buffer(RandomSampler()).load_state_dict(state)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda stored: stored["provenance"].update(marks=torch.zeros(9, dtype=torch.uint8)), "marks of 9 rows"),
        (lambda stored: stored["provenance"].update(origin=torch.zeros(9)), "origin of 9 rows, expected 96"),
        (lambda stored: _index(stored)["segments"][0, 1].add_(1), "index of 97 steps, expected 96"),
        (lambda stored: _index(stored)["segments"][0, 0].fill_(1), "index of 96 steps, expected 96"),
        (lambda stored: _index(stored)["segments"][0, 2].fill_(10**6), "index names other trajectories than the"),
        (lambda stored: _index(stored).update(waiting=torch.tensor([[0, 1, 1, 0]])), "trajectories in unknown lanes"),
        (lambda stored: _index(stored).update(waiting=torch.zeros(1)), r"has \[1\] waiting, expected \[n, 4\]"),
        (lambda stored: stored.update(lane_shape=[2]), r"lanes of shape \[2\], expected 0 dimensions"),
        (lambda stored: stored["tail"].add_(1), "lanes longer than the 96 rows they have"),
    ],
)
def test_a_state_whose_index_is_damaged(damage: Callable[[Any], object], message: str) -> None:
    made = filled(SliceSampler(slice_len=2, seed=0))
    made.sample()
    state = made.state_dict()
    damage(state["storage"])
    with pytest.raises(SchemaMismatchError, match=message):
        buffer(SliceSampler(slice_len=2)).load_state_dict(state)


def _index(stored: Any) -> Any:
    return stored["indices"][0]


def test_a_state_that_is_no_state(tmp_path: Path) -> None:
    filled(RandomSampler()).dumps(tmp_path)
    (state,) = tmp_path.rglob("state.pt")
    for damaged in (b"", b"nonsense", state.read_bytes()[:100]):
        state.write_bytes(damaged)
        with pytest.raises(CorruptDatasetError, match="is damaged"):
            buffer(RandomSampler()).loads(tmp_path)


def add_text(steps: Any) -> Any:
    return steps.set_non_tensor("text", "x")


def test_what_is_no_tensor_cannot_be_saved(tmp_path: Path) -> None:
    made = filled(RandomSampler(), 1)
    made.register_save_hook(add_text)
    with pytest.raises(SchemaMismatchError, match="text: expected a tensor"):
        made.dumps(tmp_path)


def test_a_buffer_over_a_dataset_saves_where_it_stands_and_no_steps(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [[make_block((3, 5))], [make_block((4,), first_episode=2)]])
    made, loaded = (
        ReplayBuffer(storage=DatasetStorage(dataset), sampler=SamplerWithoutReplacement(seed=seed), batch_size=3)
        for seed in range(2)
    )
    made.sample()
    made.dumps(tmp_path / "checkpoint")
    assert not list((tmp_path / "checkpoint").rglob("*.zst"))
    loaded.loads(tmp_path / "checkpoint")
    assert all((made.sample() == loaded.sample()).all() for _ in range(6))
    with pytest.raises(SchemaMismatchError, match="checkpoint of dataset Test/1"):
        buffer(RandomSampler()).loads(tmp_path / "checkpoint")
    other = write_dataset(tmp_path / "other", [[make_block((3,))]])
    with pytest.raises(SchemaMismatchError):
        ReplayBuffer(storage=DatasetStorage(other)).loads(tmp_path / "checkpoint")


@pytest.mark.parametrize("part", ["steps", "state"])
def test_a_full_disk_is_named_and_the_last_checkpoint_stays(part: str, small_disk: Path) -> None:
    made = buffer(PrioritizedSampler(200_000, 0.7, 0.9), capacity=200_000)
    made.extend(TensorDict({"observation": torch.zeros(10)}, [10]))
    made.dumps(small_disk / "checkpoint")
    files = sorted(small_disk.rglob("*"))
    noise = torch.rand(190_000)  # which cannot be compressed
    rows = made.extend(TensorDict({"observation": noise if part == "steps" else torch.zeros(190_000)}, [190_000]))
    if part == "state":
        made.update_priority(rows, noise)
    with pytest.raises(DiskFullError, match="no room left on the disk"):
        made.dumps(small_disk / "checkpoint")
    assert sorted(small_disk.rglob("*")) == files
