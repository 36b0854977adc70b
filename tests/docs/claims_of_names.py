"""Claims of migrating.md about transforms, arguments, and what to use in place of names that are not here."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict

import rlx
from rlx import buffer as ours
from rlx.collector import Collector, GymEnv
from tests.docs.claims import claim, filled, numbered, theirs
from tests.factories import make_block, write_dataset

# ---- transforms and trajectories


@claim("MultiStep", "MultiStepTransform", "DensifyReward", "Reward2GoTransform")
def _() -> None:
    batch = numbered(2, 4)
    batch["next", "done"][0, 3] = True
    made = ours.NStep(3, 0.5)(batch)
    assert made["steps_to_next_obs"].squeeze(-1).tolist() == [[3, 3, 2, 1]] * 2
    assert made["gamma"].shape == (2, 4, 1)
    assert made["next", "done"][0].flatten().tolist() == [False, True, True, True]
    assert ours.NStep(n=3).n == 3
    if theirs:
        other = theirs.data.MultiStep(0.5, 3)(batch)
        assert torch.equal(other["nonterminal"], (made["steps_to_next_obs"] > 1).squeeze(-1))
        assert other["next", "done"][0].flatten().tolist() == [False, False, False, True]
        dense = theirs.data.DensifyReward(discount=0.5)
        densified = dense(batch.clone())["next", "reward"][0]
        assert torch.allclose(densified, ours.ReturnToGo(gamma=0.5, key="sum")(batch)["sum"][0])
    returns = ours.ReturnToGo(0.5)(batch)
    assert returns["return_to_go"][0].flatten().tolist() == [1.875, 1.75, 1.5, 1.0]
    assert (returns["next", "reward"] == 1).all()
    buffer = filled(4, transform=ours.Compose(ours.ReturnToGo(0.5), ours.NStep(3, 0.5)))
    assert buffer[0]["return_to_go"] == 1.875
    assert buffer[0]["next", "reward"] == 1.75
    assert buffer.storage.get(np.array([0]))["next", "reward"] == 1, "what is written stays"


@claim("CatFrames")
def _() -> None:
    steps = numbered(4)
    steps["next", "done"][1] = True
    buffer = filled(0, transform=ours.FrameStack(k=2))
    buffer.extend(steps)
    assert buffer[:]["observation"].squeeze(-1).tolist() == [[0, 0], [0, 1], [2, 2], [2, 3]]


@claim("Compose")
def _() -> None:
    one = filled(transform=ours.Compose(ours.FrameStack(2), ours.NStep(2)))
    other = filled().append_transform(ours.FrameStack(2)).append_transform(ours.NStep(2))
    assert (one[:] == other[:]).all()


@claim("DeviceCastTransform", "DTypeCastTransform", "RewardClipping", "SignTransform", "ToTensorImage")
def _() -> None:
    batch = numbered(3)
    batch["next", "reward"] *= torch.tensor([-3.0, 0.5, 2.0])[:, None]
    assert ours.ToDevice("cpu")(batch.clone())["next", "observation"].is_cpu
    cast_ = ours.ToDtype(torch.float16, ["observation"])(batch.clone())
    assert cast_["observation"].dtype == cast_["next", "observation"].dtype == torch.float16
    assert ours.RewardClip(low=-1, high=1)(batch.clone())["next", "reward"].flatten().tolist() == [-1, 0.5, 1]
    assert ours.RewardSign()(batch.clone())["next", "reward"].flatten().tolist() == [-1, 1, 1]
    pixels = TensorDict({"observation": torch.full((2, 4, 5, 3), 255, dtype=torch.uint8)}, [2])
    assert ours.ToFloat()(pixels)["observation"].shape == (2, 4, 5, 3)


@claim("split_trajectories")
def _() -> None:
    steps = numbered(6, episode=torch.tensor([0, 1, 0, 1, 0, 1]))
    steps["observation"] = torch.tensor([0, 10, 1, 11, 2, 12])[:, None]
    steps["next", "observation"] = steps["observation"] + 1
    rows = ours.split_trajectories(steps, trajectory_key="episode")
    assert rows["observation"].squeeze(-1).tolist() == [[0, 1, 2], [10, 11, 12]]
    assert rows["collector", "mask"].all()
    assert "traj_ids" not in rows.keys(True)
    assert ours.split_trajectories(steps, prefix="mine")["mine", "mask"].all()
    nested = ours.split_trajectories(steps, as_nested=True)
    assert (nested["observation"].layout, nested.shape) == (torch.jagged, (2,))
    if theirs:
        cut = numbered(6, episode=torch.arange(6) // 4)
        split: Any = theirs.collectors.utils.split_trajectories
        assert "mask" in split(cut, trajectory_key="episode").keys()  # noqa: SIM118
        assert "traj_ids" in split(cut).keys()  # noqa: SIM118
        assert split(cut, trajectory_key="episode", as_nested=True)["observation"].layout is torch.strided


# ---- arguments and methods


@claim("compilable", "delayed_init", "sample_unit", "next", "stats", "sample(include_info)", "empty(empty_write_count)")
def _() -> None:
    buffer = filled(dim_extend=None, transform=ours.NStep(2), sampler=ours.RandomSampler(seed=0))
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(info["index"], batch["index"])
    buffer.append_transform(ours.RewardSign())
    assert (len(buffer), buffer.write_count) == (10, 10)
    buffer.empty()
    assert (len(buffer), buffer.write_count) == (0, 0)
    generator = torch.Generator().manual_seed(0)
    assert ours.RandomSampler(generator=generator).seed


@claim("set_", "use `buffer[rows] = steps`; rlx has no conditional updates")
def _() -> None:
    buffer = filled()
    buffer[[3, 5]] = numbered(2, start=50)
    assert buffer[[3, 4, 5]]["observation"].tolist() == [[50], [4], [51]]


@claim("extend(update_priority)", "set_storage(collate_fn)")
def _() -> None:
    buffer = filled(0, sampler=ours.PrioritizedSampler(20, 1, 1), collate_fn=lambda batch: batch.select("observation"))
    buffer.update_priority(buffer.extend(numbered(3)), torch.tensor([0.0, 0.0, 1.0]))
    assert buffer.sample()["observation"].tolist() == [[2]] * 4


@claim("query", "attach", "load_state_dict", "ndim", "can_sample", "register_storage")
def _(tmp_path: Path) -> None:
    buffer = filled(25)
    assert buffer[:]["observation"].flatten().tolist() == [*range(20, 25), *range(5, 20)]
    oldest_first = buffer[buffer.storage.row_at(np.arange(len(buffer)))]
    assert oldest_first["observation"].flatten().tolist() == [*range(5, 25)]
    storage: Any = buffer.storage
    assert storage[[0, 1]]["observation"].flatten().tolist() == [20, 21]
    assert (storage.lane_shape, len(storage)) == ((), 20)
    storage.dumps(tmp_path / "saved")
    other = ours.LazyTensorStorage(20)
    other.loads(tmp_path / "saved")
    assert len(other) == 20
    buffer.register_save_hook(lambda block: block)
    rows = ours.RoundRobinWriter().extend(other, numbered(2))
    buffer.sampler.extended(other, rows)


@claim("service_backend")
def _() -> None:
    buffer = filled(0)
    with Collector("CartPole-v1", frames_per_batch=5, total_frames=10, replay_buffer=buffer) as collector:
        assert list(collector) == [None, None]
    assert len(buffer) == 10


@claim("use_gpu")
def _() -> None:
    read: list[int] = []

    class Counting(ours.LazyTensorStorage):
        def get(self, rows: Any, keys: Any = None) -> Any:
            read.append(len(rows))
            return super().get(rows, keys)

    buffer = filled(0, storage=Counting(10_000), sampler=ours.SliceSampler(slice_len=2))
    buffer.extend(numbered(10_000))
    buffer.sample()
    assert sum(read) < 100


# ---- advice for names that are not here


@claim('use `("done", "truncated", "terminated")`')
def _() -> None:
    assert theirs is None or set(theirs.data.DEFAULT_DONE_KEYS) == {"done", "truncated", "terminated"}


@claim("use `SliceSampler(slice_len=...)`: burn-in, n-step targets and bootstrap states are parts of one slice")
@claim("use `SliceSampler`: it finds slices of any window without a scan of the storage")
def _() -> None:
    batch = filled(sampler=ours.SliceSampler(slice_len=4), batch_size=8).sample().reshape(2, 4)
    assert (batch["observation"].diff(dim=1) == 1).all()


@claim("use `PrioritizedSampler`, with priorities computed from `policy_version`")
def _() -> None:
    buffer = filled(0, sampler=ours.PrioritizedSampler(20, 1, 1))
    rows = buffer.extend(numbered(4, policy_version=torch.arange(4)))
    buffer.update_priority(rows, 1 / (4 - buffer[:]["policy_version"].float()))
    assert buffer.sample().shape == (4,)


@claim("use `LazyMemmapStorage`: no storage needs a server")
def _(tmp_path: Path) -> None:
    assert filled(storage=ours.LazyMemmapStorage(20, scratch_dir=tmp_path)).sample().shape == (4,)


@claim("use `rlx.open(path).trajectories`, or `split_trajectories(steps)` of a batch")
@claim("use `rlx.open(path)`, or the class of the dataset")
@claim("use `rlx verify`, which checks a dataset")
@claim("use `rlx preprocess --transform filter:EXPRESSION` on a dataset")
def _(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [[make_block([5, 4])]])
    assert len(rlx.open(tmp_path / "data").trajectories) == 2
    assert ours.split_trajectories(rlx.open(tmp_path / "data")[:]).shape == (2, 5)
    assert rlx.verify(tmp_path / "data").ok
    rlx.preprocess(tmp_path / "data", tmp_path / "long", transform="filter:length > 4")
    assert len(rlx.open(tmp_path / "long")) == 5


@claim("use `RandomSampler`: every sampler except those of slices draws single steps")
def _() -> None:
    assert filled(sampler=ours.RandomSampler()).sample().shape == (4,)


@claim("use `buffer.storage.index().trajectories()`")
def _() -> None:
    first, lengths = filled().storage.index().trajectories()
    assert (first.tolist(), lengths.tolist()) == ([0], [10])


@claim("use `buffer.extend(dataset[:n])`")
@claim("use `rlx convert` and `ReplayBuffer(storage=DatasetStorage(rlx.open(path)))`")
def _(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [[make_block([5, 4])]])
    buffer = filled(0)
    buffer.extend(dataset[:6])
    assert len(buffer) == 6
    assert len(ours.ReplayBuffer(storage=ours.DatasetStorage(rlx.open(tmp_path / "data")))) == 9


@claim(
    *(
        "use `rlx convert` and `ReplayBuffer(storage=DatasetStorage(rlx.open(path)))`; the format is `" + name + "`"
        for name in ("d4rl", "lerobot", "rlds")
    )
)
@claim("use `rlx convert`, which decodes the videos of LeRobot's datasets")
def _() -> None:
    for name in ("d4rl", "lerobot", "rlds"):
        assert find_spec(f"rlx.formats.{name}.reader")


@claim("use `gymnasium.spaces`: environments of rlx have spaces, and it reads the specs of TorchRL's")
def _() -> None:
    assert isinstance(GymEnv("CartPole-v1").action_space, gymnasium.spaces.Discrete)
    if theirs:
        with Collector(lambda: theirs.envs.GymEnv("CartPole-v1"), frames_per_batch=3, total_frames=3) as collector:
            assert collector.next()["action"].shape == (3, 2), "one-hot, as its spec says"


@claim("use `str` or `torch.device`")
def _() -> None:
    for device in ("cpu", torch.device("cpu")):
        assert filled(storage=ours.LazyTensorStorage(20, device=device)).sample()["observation"].is_cpu


@claim("use `for batch in buffer`, which is endless with replacement")
def _() -> None:
    for number, batch in enumerate(filled()):
        assert batch.shape == (4,)
        if number == 10:
            break
