"""Claims of migrating.md about buffers, storages, samplers, writers and transforms."""

import gc
import signal
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlx import buffer as ours
from rlx.errors import RlxError, SamplingError, SchemaMismatchError, SliceTooLongError
from tests.docs.claims import ELSEWHERE, claim, filled, numbered, theirs
from tests.factories import make_block, write_dataset

# ---- batches and buffers


@claim("missing or extra key", "LazyTensorStorage", "ReplayBuffer")
def _() -> None:
    buffer = filled()
    for wrong in (numbered(2).exclude("observation"), numbered(2).set("extra", torch.zeros(2))):
        with pytest.raises(SchemaMismatchError):
            buffer.extend(wrong)
    assert len(buffer) == 10
    buffer[2:4]["observation"][:] = 99
    assert buffer[[2, 3]]["observation"].tolist() == [[2], [3]]
    assert (buffer[2]["observation"].item(), buffer.sample()["index"].dtype) == (2, torch.int64)
    lanes = ours.ReplayBuffer(storage=ours.LazyTensorStorage(20, ndim=2))
    lanes.extend(numbered(2, 5))
    assert lanes[1, 3]["observation"].item() == 8


@claim("views")
def _() -> None:
    buffer = filled()
    for read in (buffer[2:4], cast("Any", buffer.storage)[2:4], buffer.sample()):
        read["observation"][:] = 99
    assert buffer[:]["observation"].max() == 9


@claim("errors")
def _() -> None:
    with pytest.raises(SamplingError, match="cannot draw 4 steps: the storage is empty"):
        ours.ReplayBuffer(batch_size=4).sample()
    with pytest.raises(SliceTooLongError, match="slices of 12 steps asked for, the longest of 1 trajectories has 10"):
        filled(sampler=ours.SliceSampler(slice_len=12), batch_size=12).sample()
    assert issubclass(SliceTooLongError, RlxError)


@claim("slices of interleaved or asynchronous workers", "fragmented", "ends")
def _() -> None:
    mixed = torch.stack([numbered(6, episode=torch.zeros(6)), numbered(6, start=100, episode=torch.ones(6))], 1)
    for storage in (ours.LazyTensorStorage, ours.ListStorage, ours.CompressedStorage):
        buffer = filled(0, storage=storage(20), sampler=ours.SliceSampler(slice_len=4), batch_size=40)
        buffer.extend(mixed.reshape(-1))
        slices = buffer.sample()["observation"].reshape(10, 4)
        assert (slices.diff(dim=1) == 1).all()


@claim("two collectors or datasets with equal trajectory ids")
def _() -> None:
    buffer = filled(0, sampler=ours.SliceSampler(slice_len=4), batch_size=80)
    for start in (0, 100):
        buffer.extend(numbered(6, start=start, episode=torch.zeros(6, dtype=torch.int64)))
    assert (buffer.sample()["observation"].reshape(20, 4).diff(dim=1) == 1).all()


@claim("index and is_init in some writes only")
def _() -> None:
    buffer = ours.ReplayBuffer(storage=ours.LazyTensorStorage(20))
    first = torch.tensor([True, False, False])[:, None]
    buffer.extend(numbered(3, index=torch.arange(3), is_init=first, episode=torch.zeros(3)))
    buffer.sample(1)
    buffer.extend(numbered(3, start=50, episode=torch.ones(3)))
    assert buffer[:]["index"].tolist() == [0, 1, 2, -1, -1, -1]
    assert buffer[:]["is_init"].flatten().tolist() == [True, False, False] * 2
    plain = filled(3)
    plain.extend(numbered(3, start=50, index=torch.arange(3)))
    assert "index" not in plain[:].keys()  # noqa: SIM118


@claim("batch of [B, T] into a storage of one dimension")
def _() -> None:
    for library in (ours, theirs.data) if theirs else (ours,):
        rows = library.ReplayBuffer(storage=library.LazyTensorStorage(20), batch_size=3)
        rows.extend(numbered(2, 5))
        assert len(rows) == 2
        assert rows.sample().shape == (3, 5)
    buffer = filled(0, storage=ours.LazyTensorStorage(20, ndim=2), sampler=ours.SliceSampler(slice_len=3), batch_size=6)
    buffer.extend(numbered(2, 5))
    assert (buffer.sample()["observation"].reshape(2, 3).diff(dim=1) == 1).all()


@claim("text (non-tensor data)")
def _(tmp_path: Path) -> None:
    buffer = filled(0)
    buffer.extend(numbered(4, task=["pick", "place", "pick", "pick"]))
    assert set(buffer.sample()["task"]) <= {"pick", "place"}
    assert sorted(buffer[:]["task"]) == ["pick", "pick", "pick", "place"]
    buffer.dumps(tmp_path / "saved")
    again = filled(0)
    again.loads(tmp_path / "saved")
    assert again[1]["task"] == "place"


@claim("input that cannot be stored (a tuple, numbers, an array)")
def _() -> None:
    for wrong in ((torch.zeros(3), torch.zeros(3)), [1, 2], 3, np.zeros(3)):
        with pytest.raises(SchemaMismatchError):
            ours.ReplayBuffer().extend(wrong)


@claim("dumps", "checkpointer", "use `ReplayBuffer.dumps`: every storage is written in one compressed format")
def _(tmp_path: Path) -> None:
    buffer = filled(10, storage=ours.LazyTensorStorage(1_000_000))
    buffer.dumps(tmp_path / "saved")
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 100_000
    for storage in (ours.LazyTensorStorage(1_000), ours.ListStorage(2_000), ours.CompressedStorage(3_000)):
        again = filled(0, storage=storage)
        again.loads(tmp_path / "saved")
        assert (again[:] == buffer[:]).all()


@claim("use `ReplayBuffer.dumps`, which needs no hooks: steps are compressed as they are")
def _(tmp_path: Path) -> None:
    filled().dumps(tmp_path / "saved")


@claim("prefetched batches")
def _() -> None:
    buffer = filled(20, prefetch=3)
    buffer.sample()
    buffer.extend(numbered(20, start=1000))
    assert buffer.sample()["observation"].min() >= 1000
    buffer.shutdown()


@claim("permutation of SamplerWithoutReplacement", "SamplerWithoutReplacement")
def _() -> None:
    sampler = ours.SamplerWithoutReplacement(seed=0)
    buffer = filled(10, sampler=sampler)
    buffer.sample()
    assert all(isinstance(value, int | bool | dict) for value in sampler.state_dict().values())
    again = filled(10, sampler=ours.SamplerWithoutReplacement())
    again.sampler.load_state_dict(sampler.state_dict())
    assert [batch["index"].tolist() for batch in again] == [batch["index"].tolist() for batch in buffer]


# ---- storages


@claim("CompressedListStorage")
def _() -> None:
    buffer = filled(0, storage=ours.CompressedStorage(20, level=5))
    buffer.extend(numbered(6))
    assert (buffer[:] == numbered(6)).all()


@claim("LazyMemmapStorage", "auto_cleanup")
def _(tmp_path: Path) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    kept = ours.LazyMemmapStorage(20, scratch_dir=tmp_path / "kept")
    temporary = ours.LazyMemmapStorage(20)
    for storage in (kept, temporary):
        assert filled(storage=storage).sample()["observation"].is_cpu
    directory = cast("Path", temporary.scratch_dir)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    del temporary, kept, storage
    gc.collect()
    assert not directory.exists()
    assert list((tmp_path / "kept").iterdir())


@claim("LazyStackStorage")
def _(tmp_path: Path) -> None:
    storage = ours.LazyStackStorage()
    assert storage.max_size == 1_000
    buffer = ours.ReplayBuffer(storage=storage, batch_size=2)
    buffer.extend([TensorDict({"tokens": torch.arange(n)}) for n in (2, 3)])
    assert buffer.sample().stack_dim == 0
    with pytest.raises(SchemaMismatchError, match="cannot be saved"):
        buffer.dumps(tmp_path / "saved")
    assert theirs is None or theirs.data.LazyStackStorage().max_size > 10**9


@claim("ListStorage")
def _() -> None:
    assert ours.ListStorage().max_size == 1_000
    assert theirs is None or theirs.data.ListStorage().max_size > 10**9
    buffer = filled(storage=ours.ListStorage())
    with pytest.raises(SchemaMismatchError):
        buffer.extend(TensorDict({"observation": torch.zeros(2, 5)}, [2]))
    assert buffer.sample()["observation"].is_cpu


@claim("TensorStorage")
def _() -> None:
    with pytest.raises(SchemaMismatchError):
        ours.TensorStorage(torch.arange(3))  # type: ignore[arg-type]
    storage = ours.TensorStorage(numbered(2, 5), ndim=2)
    assert len(storage) == 10
    assert ours.ReplayBuffer(storage=storage)[:].shape == (2, 5)


@claim("Storage", "Sampler", "Writer")
def _() -> None:
    for kind in (ours.Storage, ours.Sampler, ours.Writer):
        assert issubclass(kind, Protocol)
        assert not {"dumps", "loads"} & set(dir(kind))
    for part in (ours.RandomSampler, ours.RoundRobinWriter):
        assert {"dumps", "loads"} <= set(dir(part))
    assert {"dumps", "dump", "save", "loads", "load"} <= set(dir(ours.LazyTensorStorage))
    sampler = ours.SamplerWithoutReplacement()
    assert [(len(batch), sampler.ran_out) for batch in filled(6, sampler=sampler)] == [(4, False), (2, True)]

    class Oldest(ours.Sampler):
        def sample(self, storage: ours.Storage, batch_size: int) -> Any:
            return storage.row_at(np.arange(batch_size)), {}

        def shard(self, index: int, count: int) -> Any: ...
        def state_dict(self) -> Any: ...
        def load_state_dict(self, state: Any) -> None: ...

    assert filled(sampler=Oldest()).sample()["index"].tolist() == [0, 1, 2, 3]


@claim("StorageEnsemble", "WriterEnsemble", "SamplerEnsemble", "ReplayBufferEnsemble")
def _() -> None:
    buffers = [filled(), filled(5, sampler=ours.PrioritizedSampler(20, 1, 1))]
    for buffer in buffers:
        buffer.append_transform(ours.RewardClip(0, 0.5))
    both = ours.ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=4, seed=0)
    assert (len(both), both.num_buffers) == (15, 2)
    assert both[0, 3]["next", "reward"] == 0.5
    both.sampler.samplers[1].update_priority(np.array([2]), np.array([9.0]))
    assert both.storage.storages[1].get(np.array([2]))["observation"].item() == 2
    writers, storage = both.writer, ours.LazyTensorStorage(5)
    assert writers.writers[0].extend(storage, numbered(3)).tolist() != []
    assert ours.SamplerEnsemble(ours.RandomSampler(), p=[1.0], seed=3).num_buffer_sampled == 1


# ---- samplers and writers


@claim("ConsumingSampler", "consume_after_n_samples")
def _() -> None:
    buffer = filled(3, storage=ours.LazyTensorStorage(5), sampler=ours.ConsumingSampler(1, seed=0), batch_size=2)
    buffer.sample()
    assert (len(buffer), cast("Any", buffer.sampler).available(buffer.storage)) == (3, 1)
    assert buffer.extend(numbered(3, start=10)).tolist() == [3, 4, 0]
    if theirs:
        other = theirs.data.ReplayBuffer(
            storage=theirs.data.LazyTensorStorage(5), sampler=theirs.data.ConsumingSampler(1), batch_size=2
        )
        other.extend(numbered(3))
        other.sample()
        assert len(other) == 1
    lanes = filled(0, storage=ours.LazyTensorStorage(20, ndim=2), sampler=ours.ConsumingSampler())
    lanes.extend(numbered(2, 5))
    assert sorted(row for batch in lanes for row in batch["index"].tolist()) == [*range(5), *range(10, 15)]


@claim("PrioritizedSampler", "PrioritizedSliceSampler", "PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer")
def _() -> None:
    sampler = ours.PrioritizedSampler(max_capacity=20, alpha=1, beta=1)
    buffer = filled(sampler=sampler)
    buffer.update_priority(torch.arange(10), 1e-30)
    assert sampler.state_dict()["priorities"].dtype == torch.float32
    assert sampler.state_dict()["priorities"].is_cpu
    slices = ours.PrioritizedSliceSampler(20, 1, 1, slice_len=4)
    assert (filled(sampler=slices).sample()["observation"].diff(dim=0) == 1).all()
    for kind in (ours.PrioritizedReplayBuffer, ours.TensorDictPrioritizedReplayBuffer):
        made = kind(alpha=1, beta=1, batch_size=3)
        made.update_priority(made.extend(numbered(5)), torch.tensor([0.0, 0, 0, 0, 1]))
        assert made.sample()["observation"].tolist() == [[4]] * 3


@claim("generations_of")
def _() -> None:
    writer = ours.RoundRobinWriter(track_generations=True)
    buffer = filled(0, storage=ours.LazyTensorStorage(5), writer=writer, batch_size=3)
    rows = buffer.extend(numbered(5))
    before = buffer.storage.generations_of(rows.numpy())
    buffer.extend(numbered(2))
    assert (buffer.storage.generations_of(rows.numpy()) > before).tolist() == [True, True, False, False, False]
    assert "index_generation" in buffer.sample().keys()  # noqa: SIM118 (a TensorDict is no mapping of its keys)


@claim("RandomSampler")
def _() -> None:
    for library in (ours, theirs.data) if theirs else (ours,):
        made = library.RandomSampler(replacement=False, drop_last=True)
        assert type(made) is library.SamplerWithoutReplacement
    rows = [filled(sampler=ours.RandomSampler(seed=3)).sample()["index"].tolist() for _ in range(2)]
    assert rows[0] == rows[1]


@claim("SliceSampler")
def _() -> None:
    steps = numbered(20, episode=torch.tensor([0] * 4 + [1] * 16))
    steps["next", "truncated"][3] = True

    def slices(**options: Any) -> Any:
        made = filled(0, sampler=ours.SliceSampler(traj_key="episode", seed=0, **options), batch_size=4_000)
        made.extend(steps)
        return made.sample()

    batch = slices(slice_len=4).reshape(-1, 4)
    first = batch["observation"][:, 0, 0]
    assert (first == 0).float().mean().item() == pytest.approx(1 / 14, abs=0.03)
    assert batch["next", "truncated"][first == 0][:, 3].all()
    assert not batch["collector", "slice_end"][first == 0].any(), "the stored flag ends it already"
    assert batch["collector", "slice_end"][first != 0][:, 3].all()
    by_trajectory = slices(slice_len=4, weighting="trajectory").reshape(-1, 4)
    assert (by_trajectory["episode"][:, 0] == 0).float().mean().item() == pytest.approx(0.5, abs=0.06)
    padded = slices(slice_len=4, pad_output=True)
    assert padded["collector", "mask"].all()
    span = slices(slice_len=4, span=(False, 2))
    lengths = torch.diff(torch.where(span["collector", "slice_end"].flatten())[0])
    assert lengths.min() >= 2
    assert type(ours.SliceSampler(slice_len=2, replacement=False)) is ours.SliceSamplerWithoutReplacement
    if theirs:
        made = theirs.data.SliceSampler(slice_len=2, replacement=False)
        assert type(made) is theirs.data.SliceSamplerWithoutReplacement
        with pytest.raises(ValueError, match="pad_output=True is incompatible with strict_length=True"):
            theirs.data.SliceSampler(slice_len=2, pad_output=True)


@claim("SliceSamplerWithoutReplacement")
def _() -> None:
    buffer = filled(0, sampler=ours.SliceSamplerWithoutReplacement(slice_len=2, seed=0), batch_size=2)
    buffer.extend(numbered(6, episode=torch.arange(6) // 2))
    buffer.sample()
    buffer.extend(numbered(2, start=50, episode=torch.full((2,), 9)))
    ids = [int(batch["episode"][0]) for batch in buffer]
    assert sorted(ids) == [0, 1, 2, 9]


@claim("TensorDictMaxValueWriter")
def _() -> None:
    writer = ours.TensorDictMaxValueWriter(rank_key="rank", reduction="median")
    buffer = filled(0, storage=ours.LazyTensorStorage(1), writer=writer)
    buffer.extend(TensorDict({"rank": torch.tensor([[[0.0], [2.0]], [[0.5], [0.7]]])}, [2]))
    assert buffer[:]["rank"].flatten().tolist() == [0.0, 2.0], "1 is the median of 0 and 2"


@claim("TensorDictReplayBuffer")
def _() -> None:
    for library, shape in ((ours, (4,)), *(((theirs.data, (4, 1)),) if theirs else ())):
        made = library.TensorDictReplayBuffer(
            storage=library.LazyTensorStorage(10), sampler=library.SliceSampler(slice_len=2), batch_size=4
        )
        made.extend(numbered(6))
        assert made.sample()["index"].shape == shape


@claim("ParameterScheduler")
def _() -> None:
    class Halving(ours.ParameterScheduler):
        def value(self, steps: int, current: float) -> float:
            return current / 2 if steps else current

    sampler = ours.PrioritizedSampler(10, alpha=0.8, beta=1)
    scheduler = Halving(sampler, "beta")
    scheduler.step()
    assert sampler.beta == 0.5


@claim("OfflineToOnlineReplayBuffer")
def _(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [[make_block([5, 4])]])
    for offline in (dataset, tmp_path / "data", ours.DatasetStorage(dataset), ours.ReplayBuffer(storage=dataset)):
        made = ours.OfflineToOnlineReplayBuffer(cast("Any", offline), online_capacity=9, batch_size=4, seed=0)
        made.add(dataset[0].set("extra", torch.zeros(())))
        batch = made.sample()
        assert batch["index", "buffer_ids"].tolist() == [0, 0, 1, 1]
        assert "extra" not in batch.keys()  # noqa: SIM118
    made.dumps(tmp_path / "saved")
    made.loads(tmp_path / "saved")


ELSEWHERE["HERReplayBuffer"] = "tests/buffer/test_hindsight.py::test_torchrl_gives_the_same_goals_where_next_has_none"
ELSEWHERE["RayReplayBuffer"] = "tests/buffer/test_ray_buffer.py::test_the_example_of_the_page"
ELSEWHERE["use `RayReplayBuffer(replay_buffer_cls=TensorDictReplayBuffer)`"] = ELSEWHERE["RayReplayBuffer"]
