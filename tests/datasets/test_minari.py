from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlx
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.slices import SliceSampler
from rlx.datasets.minari import MinariExperienceReplay
from rlx.errors import DatasetLockedError, DatasetNotFoundError, SourceNotFoundError
from rlx.files import lock
from rlx.store.dataset import Dataset
from tests.minari_files import DICT, IMAGE, TUPLE, read_dataset, record_cart_pole, write_dataset


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Minari's directory of local datasets."""
    path = tmp_path / "minari"
    path.mkdir()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path))
    return path


def assert_same(found: torch.Tensor, expected: list[Any]) -> None:
    values = np.concatenate([np.asarray(one) for one in expected])
    assert found.numpy().dtype == values.dtype
    np.testing.assert_array_equal(found.numpy().reshape(values.shape), values)


def test_cart_pole_is_not_zeros(cache: Path) -> None:
    """TorchRL 0.14.1 returns zeros for every field of every dataset."""
    episodes = record_cart_pole(cache, "cartpole/random-v0")
    data = MinariExperienceReplay("cartpole/random-v0", batch_size=32)
    steps = data[:]
    assert_same(steps["observation"], [episode.observations[:-1] for episode in episodes])
    assert_same(steps["next", "observation"], [episode.observations[1:] for episode in episodes])
    assert_same(steps["action"], [episode.actions for episode in episodes])
    assert_same(steps["next", "reward"], [episode.rewards for episode in episodes])
    assert_same(steps["next", "terminated"], [episode.terminations for episode in episodes])
    assert_same(steps["next", "truncated"], [episode.truncations for episode in episodes])
    assert_same(steps["episode"], [np.full(len(episode), episode.id) for episode in episodes])
    done = steps["next", "terminated"] | steps["next", "truncated"]
    assert torch.equal(steps["next", "done"], done)
    assert int(done.sum()) == len(episodes)
    assert steps["next", "reward"].shape == (len(data), 1)
    assert data.sample().batch_size == (32,)


@pytest.mark.parametrize("jpeg", [False, True])
def test_pictures_and_infos(cache: Path, jpeg: bool) -> None:
    write_dataset(cache, "pictures-v0", observation=spaces.Dict({"camera": IMAGE, "rest": DICT}), jpeg=jpeg)
    episodes = read_dataset(cache, "pictures-v0")
    steps = MinariExperienceReplay("pictures-v0", 4)[:]
    assert_same(steps["observation", "camera"], [one.observations["camera"][:-1] for one in episodes])
    goals = [one.observations["rest"]["achieved_goal"][1:] for one in episodes]
    assert_same(steps["next", "observation", "rest", "achieved_goal"], goals)
    assert_same(steps["info", "score"], [one.infos["score"][:-1] for one in episodes])
    assert_same(steps["next", "info", "score"], [one.infos["score"][1:] for one in episodes])
    assert_same(steps["next", "info", "deep", "count"], [one.infos["deep"]["count"][1:] for one in episodes])


def test_texts_are_what_minari_reads(cache: Path) -> None:
    space = spaces.Dict({"mission": spaces.Text(5), "place": spaces.Box(-1, 1, (2,), np.float64)})
    write_dataset(cache, "texts-v0", observation=space, action=spaces.Text(3))
    episodes = read_dataset(cache, "texts-v0")
    data = MinariExperienceReplay("texts-v0", 4, seed=0)
    steps = data[:]
    assert list(steps["observation", "mission"]) == [
        text for one in episodes for text in one.observations["mission"][:-1]
    ]
    assert list(steps["next", "observation", "mission"]) == [
        text for one in episodes for text in one.observations["mission"][1:]
    ]
    assert list(steps["action"]) == [text for one in episodes for text in one.actions]
    said = [text.decode() for one in episodes for text in one.infos["deep"]["name"][:-1]]
    assert list(steps["info", "deep", "name"]) == said
    batch = data.sample()
    assert list(batch["action"]) == [list(steps["action"])[row] for row in batch["index"].tolist()]
    split = MinariExperienceReplay("texts-v0", 3, split_trajs=True)[:]
    for number, one in enumerate(episodes):
        padding = [""] * (7 - len(one.actions))
        assert list(split["action"][number]) == [*one.actions, *padding]
        assert list(split["next", "observation", "mission"][number]) == [*one.observations["mission"][1:], *padding]


def test_tuples(cache: Path) -> None:
    write_dataset(cache, "tuples-v0", observation=TUPLE)
    episodes = read_dataset(cache, "tuples-v0")
    steps = MinariExperienceReplay("tuples-v0", 4)[:]
    assert_same(steps["observation", "_index_1"], [one.observations[1][:-1] for one in episodes])


def test_slices_by_episode(cache: Path) -> None:
    write_dataset(cache, "x-v0", lengths=[5, 8, 6])
    data = MinariExperienceReplay("x-v0", 20, sampler=SliceSampler(slice_len=5, traj_key="episode", seed=0))
    batch = data.sample().reshape(4, 5)
    assert (batch["episode"] == batch["episode"][:, :1]).all()
    assert (batch["index"].diff(dim=1) == 1).all()


def test_split_trajectories(cache: Path, home: Path) -> None:
    write_dataset(cache, "x-v0", lengths=[5, 8, 6])
    for _ in range(2):
        data = MinariExperienceReplay("x-v0", 3, split_trajs=True, load_from_local_minari=True)
        whole = data[:]
        assert whole["observation"].shape == (3, 8, 3)
        assert whole["collector", "mask"].sum(1).tolist() == [5, 8, 6]
        flat = MinariExperienceReplay("x-v0", 3)[:]
        assert torch.equal(whole["observation"][whole["collector", "mask"]], flat["observation"])
        assert not whole["observation"][~whole["collector", "mask"]].any()
        assert data.data_path == home / "minari/x-v0_split"
    data.delete()
    assert not list((home / "minari").iterdir())
    assert (cache / "x-v0").is_dir()


def test_one_process_at_a_time_splits_trajectories(cache: Path, home: Path) -> None:
    write_dataset(cache, "x-v0", lengths=[5, 8])
    target = home / "minari/x-v0_split"
    with lock.held(target.with_name(".x-v0_split.partial") / lock.FILE_NAME, target):
        with pytest.raises(DatasetLockedError, match=f"{target} is being written by this process, pid"):
            MinariExperienceReplay("x-v0", 3, split_trajs=True)
        assert not target.exists()
    assert len(MinariExperienceReplay("x-v0", 3, split_trajs=True)[:]) == 2


def test_it_is_converted_once(cache: Path, tmp_path: Path) -> None:
    write_dataset(cache, "x-v0")
    MinariExperienceReplay("x-v0", 3, root=tmp_path / "root")
    (cache / "x-v0/data/main_data.hdf5").unlink()
    assert len(MinariExperienceReplay("x-v0", 3, root=tmp_path / "root", download=False)) == 12
    with pytest.raises(SourceNotFoundError, match=r"main_data\.hdf5 is missing"):
        MinariExperienceReplay("x-v0", 3, root=tmp_path / "root", download="force")


def test_no_such_dataset(cache: Path) -> None:
    write_dataset(cache, "some/other-v0")
    with pytest.raises(SourceNotFoundError, match="Minari has no dataset x-v0") as caught:
        MinariExperienceReplay("x-v0", 3)
    assert caught.value.hint == "minari download x-v0; here are some/other-v0"
    with pytest.raises(DatasetNotFoundError, match="download=False"):
        MinariExperienceReplay("some/other-v0", 3, download=False)


def test_a_name_does_not_lead_elsewhere(cache: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "elsewhere", "x-v0")
    with pytest.raises(SourceNotFoundError, match="expected a name such as"):
        MinariExperienceReplay("../elsewhere/x-v0", 3)
    assert cache.is_dir()


GOALS = ("achieved_goal", "desired_goal", "observation")
GOAL_SPACE = spaces.Dict(
    {name: spaces.Box(-1, 1, (size,), np.float64) for name, size in zip(GOALS, (2, 2, 3), strict=True)}
)


def cat_tensors(steps: Any, in_keys: list[Any], out_key: Any) -> Any:
    """TorchRL's ``CatTensors``, which sorts its keys and leaves them out."""
    joined = torch.cat([steps[key] for key in sorted(in_keys)], -1)
    return steps.exclude(*in_keys).set(out_key, joined)


def concatenated(steps: Any) -> Any:
    """The function of TorchRL's example."""
    steps = steps.select(
        "action",
        "episode",
        ("next", "done"),
        ("next", "observation"),
        ("next", "reward"),
        ("next", "terminated"),
        ("next", "truncated"),
        "observation",
    )
    steps = cat_tensors(steps, [("observation", name) for name in GOALS], "obs")
    return cat_tensors(steps, [("next", "observation", name) for name in GOALS], ("next", "obs"))


def goals(episodes: list[Any], start: int, stop: int | None) -> list[Any]:
    return [np.concatenate([one.observations[name][start:stop] for name in GOALS], -1) for one in episodes]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_example_of_torchrls_page(cache: Path, tmp_path: Path) -> None:
    """``CatTensors`` of three keys, for observations and next observations, by four workers: TorchRL gives zeros."""
    write_dataset(cache, "goals-v0", observation=GOAL_SPACE, lengths=(4, 1, 7, 30))
    episodes = read_dataset(cache, "goals-v0")
    data = MinariExperienceReplay("goals-v0", batch_size=32)
    storage = data.preprocess(
        concatenated, num_workers=4, chunksize=5, pbar=False, mp_start_method="fork", dest=tmp_path / "made"
    )
    buffer = ReplayBuffer(storage=storage, batch_size=32)
    steps = buffer[:]
    assert_same(steps["obs"], goals(episodes, 0, -1))
    assert_same(steps["next", "obs"], goals(episodes, 1, None))
    assert_same(steps["episode"], [np.full(len(episode), episode.id) for episode in episodes])
    assert_same(steps["action"], [episode.actions for episode in episodes])
    assert_same(steps["next", "reward"], [episode.rewards for episode in episodes])
    assert_same(steps["next", "terminated"], [episode.terminations for episode in episodes])
    assert buffer.sample()["obs"].shape == (32, 7)


def test_the_example_of_torchrls_page_as_a_dataset(cache: Path, tmp_path: Path) -> None:
    write_dataset(cache, "goals-v0", observation=GOAL_SPACE, lengths=(4, 1, 7, 30))
    episodes = read_dataset(cache, "goals-v0")
    data = MinariExperienceReplay("goals-v0", batch_size=32)
    keys = "+".join(f"observation/{name}" for name in GOALS)
    transforms = ["select:keys=action+observation", f"cat_tensors:in_keys={keys},out_key=obs"]
    rlx.preprocess(data.data_path, tmp_path / "made", transform=transforms, num_workers=4)
    made = Dataset(tmp_path / "made")
    steps = made[:]
    assert list(made.schema) == ["action", "reward", "terminated", "truncated", "obs"]
    assert_same(steps["obs"], goals(episodes, 0, -1))
    assert_same(steps["next", "obs"], goals(episodes, 1, None))
    assert_same(steps["next", "reward"], [episode.rewards for episode in episodes])
