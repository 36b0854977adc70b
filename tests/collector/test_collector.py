from itertools import pairwise
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, interaction_type

from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.transform import Compose, NStep, RewardClip
from rlx.collector.collector import Collector, SyncDataCollector
from rlx.collector.environment.gym_env import EnvSource, GymEnv, SerialEnv
from rlx.errors import CollectError
from rlx.transform.multi_step import FrameSkip
from tests.collector.environments import Counter, Structured, one


def batches(source: EnvSource, policy: Any = one, **options: Any) -> list[Any]:
    with Collector(source, policy, **options) as collector:
        return list(collector)


@pytest.mark.parametrize(("total", "expected"), [(20, [7, 7, 6]), (7, [7]), (0, []), (3, [3])])
def test_one_environment_gives_exactly_so_many_steps(total: int, expected: list[int]) -> None:
    found = batches(Counter, frames_per_batch=7, total_frames=total)
    assert [list(batch.shape) for batch in found] == [[steps] for steps in expected]
    if found:
        observation = torch.cat([batch["observation"][:, 0] for batch in found])
        following = torch.cat([batch["next", "observation"][:, 0] for batch in found])
        assert (following == observation + 1).all(), "final observations are real"
        ids = torch.cat([batch["collector", "traj_ids"] for batch in found])
        assert (ids == observation // 100).all()


def test_a_batch_has_a_type_that_needs_no_check() -> None:
    with Collector(Counter, one, frames_per_batch=7, total_frames=14) as collector:
        first = assert_type(collector.next(), TensorDictBase | Any)
        assert first["next", "reward"].shape == (7, 1)
        for batch in collector:
            assert_type(batch, TensorDictBase | Any)
            assert len(batch["action"]) == batch.numel() == 7


def test_several_environments_give_exactly_so_many_steps() -> None:
    found = batches(SerialEnv(3, Counter), frames_per_batch=13, total_frames=32)
    assert [list(batch.shape) for batch in found] == [[3, 4], [3, 4], [3, 2], [2, 1]]


def test_flags_and_rewards() -> None:
    (batch,) = batches(Counter, frames_per_batch=9, total_frames=9)
    assert batch["next", "terminated"][:, 0].nonzero().flatten().tolist() == [2]
    assert batch["next", "truncated"][:, 0].nonzero().flatten().tolist() == [7]
    assert batch["next", "done"][:, 0].nonzero().flatten().tolist() == [2, 7]
    assert batch["next", "reward"].dtype == torch.float32
    assert not batch["done"].any()
    assert batch["done"].shape == (9, 1)


def test_ids_of_environments_that_end_together() -> None:
    """Pendulum's episodes have 200 steps: four batches, then new ids."""
    found = batches(SerialEnv(4, "Pendulum-v1"), None, frames_per_batch=200, total_frames=1000)
    ids = [sorted(set(batch["collector", "traj_ids"].flatten().tolist())) for batch in found]
    assert ids == [[0, 1, 2, 3]] * 4 + [[4, 5, 6, 7]]
    assert found[0]["action"].shape == found[0]["next", "reward"].shape == (4, 50, 1)
    assert found[0].names == [None, "time"]


def test_ids_are_unique_and_increase_in_every_environment() -> None:
    found = batches(SerialEnv(3, Counter), frames_per_batch=30, total_frames=300)
    ids = torch.cat([batch["collector", "traj_ids"] for batch in found], 1)
    assert (ids.diff(dim=1) >= 0).all()
    owners = [set(row.tolist()) for row in ids]
    assert sum(map(len, owners)) == len(set.union(*owners))


def test_long_trajectories_are_truncated() -> None:
    (batch,) = batches(Counter, frames_per_batch=8, total_frames=8, max_frames_per_traj=2)
    assert batch["next", "truncated"][:, 0].tolist() == [False, True] * 4
    assert batch["collector", "traj_ids"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (batch["next", "observation"] == batch["observation"] + 1).all()


def test_new_episodes_in_every_batch() -> None:
    first, second = batches(lambda: Counter((50,)), frames_per_batch=4, total_frames=8, reset_at_each_iter=True)
    assert first["next", "truncated"][:, 0].tolist() == [False, False, False, True]
    assert second["observation"][0, 0] == 100
    assert second["collector", "traj_ids"].tolist() == [1] * 4


def test_set_truncated_ends_no_trajectory() -> None:
    first, second = batches(lambda: Counter((50,)), frames_per_batch=4, total_frames=8, set_truncated=True)
    assert first["next", "done"][:, 0].tolist() == [False, False, False, True]
    assert second["observation"][0, 0] == 4
    assert second["collector", "traj_ids"].tolist() == [0] * 4


def test_random_at_first() -> None:
    first, second = batches(Counter, frames_per_batch=64, total_frames=128, init_random_frames=64)
    assert set(first["action"].tolist()) == {0, 1, 2}
    assert set(second["action"].tolist()) == {1}


def test_split_into_trajectories() -> None:
    (batch,) = batches(Counter, frames_per_batch=9, total_frames=9, split_trajs=True)
    assert batch["collector", "mask"].sum(1).tolist() == [3, 5, 1]


def test_whole_episodes() -> None:
    found = batches(SerialEnv(3, Counter), trajs_per_batch=4, total_frames=60)
    masks = [batch["collector", "mask"].sum(1).tolist() for batch in found]
    assert masks[:2] == [[3, 3, 3, 5], [5, 5, 3, 3]]
    assert sum(map(sum, masks)) == 60
    ids = [batch["collector", "traj_ids"][:, 0].tolist() for batch in found]
    assert ids[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_whole_episodes_one_behind_the_other() -> None:
    options: dict[str, Any] = {"trajs_per_batch": 4, "total_frames": 60}
    padded = batches(SerialEnv(3, Counter), **options, traj_format="padded")
    found = batches(SerialEnv(3, Counter), **options, traj_format="cat")
    assert [list(batch.shape) for batch in found[:2]] == [[14], [16]]
    assert found[0].names == ["time"]
    for batch, other in zip(found, padded, strict=True):
        assert (batch == other[other["collector", "mask"]].exclude(("collector", "mask"))).all()
    with pytest.raises(CollectError, match="traj_format 'flat': expected 'padded' or 'cat'"):
        batches(Counter, **options, traj_format="flat")


def test_frames_per_batch_says_how_long_workers_step_for_whole_episodes() -> None:
    found = batches(SerialEnv(3, Counter), trajs_per_batch=4, frames_per_batch=6, total_frames=60)
    expected = batches(SerialEnv(3, Counter), trajs_per_batch=4, total_frames=60)
    assert all((batch == other).all() for batch, other in zip(found, expected, strict=True))
    with pytest.raises(CollectError, match="batches of 2: expected at least 3"):
        Collector(SerialEnv(3, Counter), trajs_per_batch=4, frames_per_batch=2)


def test_into_a_replay_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
    assert batches(SerialEnv(3, Counter), frames_per_batch=30, total_frames=90, replay_buffer=buffer) == [None] * 3
    assert len(buffer) == 9  # a row is 10 steps of one environment, as in TorchRL
    sample = buffer.sample()
    assert sample.shape == (32, 10)
    assert (sample["next", "observation"] == sample["observation"] + 1).all()


def test_only_real_steps_go_into_a_replay_buffer() -> None:
    for options in ({"frames_per_batch": 30, "split_trajs": True}, {"trajs_per_batch": 4}):
        buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
        assert set(batches(SerialEnv(3, Counter), total_frames=90, replay_buffer=buffer, **options)) == {None}
        assert len(buffer) == 90
        assert (buffer[:]["next", "observation"] == buffer[:]["observation"] + 1).all()


def test_a_replay_buffer_with_lanes_takes_batches_as_they_are() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(90, ndim=2))
    assert batches(SerialEnv(3, Counter), frames_per_batch=30, total_frames=60, replay_buffer=buffer) == [None] * 2
    assert buffer[:].shape == (3, 20)
    assert buffer[:]["observation"][:, :4, 0].tolist() == [[0, 1, 2, 100]] * 3


def test_postproc_and_versions() -> None:
    def double(batch: TensorDictBase) -> TensorDictBase:
        batch["next", "reward"] = batch["next", "reward"] * 2
        return batch

    with Collector(
        Counter, one, frames_per_batch=3, total_frames=6, postproc=double, track_policy_version=True
    ) as collector:
        found = []
        for batch in collector:
            assert batch is not None
            found.append((batch["policy_version"].tolist(), batch["next", "reward"].sum().item()))
            collector.update_policy_weights_()
    assert found == [([0, 0, 0], 12.0), ([1, 1, 1], 12.0)]


@pytest.mark.parametrize("shape", ["flat", "lanes", "cat", "padded", "split"])
def test_postproc_that_looks_at_neighbours(shape: str) -> None:
    """Over three steps, or as many as the trajectory has in the batch, as adding up step by step has it."""
    source: EnvSource = Counter if shape == "flat" else SerialEnv(3, Counter)
    shapes: dict[str, dict[str, Any]] = {
        "flat": {"frames_per_batch": 13},
        "lanes": {"frames_per_batch": 39},
        "cat": {"trajs_per_batch": 4, "traj_format": "cat"},
        "padded": {"trajs_per_batch": 4},
        "split": {"frames_per_batch": 39, "split_trajs": True},
    }
    options = {**shapes[shape], "total_frames": 60}
    plain = batches(source, **options)
    found = batches(source, **options, postproc=Compose(RewardClip(0, 4), NStep(3, 0.5)))
    for batch, before in zip(found, plain, strict=True):
        assert batch.shape == before.shape
        assert batch.names == before.names
        mask = before.get(("collector", "mask"), torch.ones(before.shape, dtype=torch.bool))
        ids = before["collector", "traj_ids"]
        for at in mask.nonzero().tolist():
            last = before.shape[-1] - 1
            path = [at]
            while len(path) < 3 and not before[tuple(path[-1])]["next", "done"]:
                after = [*path[-1][:-1], path[-1][-1] + 1]
                if path[-1][-1] == last or not mask[tuple(after)] or ids[tuple(after)] != ids[tuple(at)]:
                    break
                path.append(after)
            rewards = [min(4.0, float(before[tuple(one)]["next", "reward"])) * 0.5**i for i, one in enumerate(path)]
            step, end = batch[tuple(at)], before[tuple(path[-1])]
            assert step["next", "reward"].item() == sum(rewards)
            assert step["steps_to_next_obs"].item() == len(path)
            for key in ("observation", "done", "terminated", "truncated"):
                assert (step["next", key] == end["next", key]).all()
        assert not batch["next", "reward"][~mask].any()
        assert (batch["collector"] == before["collector"]).all()


def test_postproc_that_is_none() -> None:
    with pytest.raises(CollectError, match=r"postproc FrameSkip\(k=4\): expected a function of a batch"):
        batches(Counter, frames_per_batch=4, postproc=FrameSkip(4))


def test_new_weights_reach_the_policy() -> None:
    module = torch.nn.Linear(3, 1)
    with Collector(GymEnv("Pendulum-v1"), module, frames_per_batch=2, device="cpu") as collector:
        collector.update_policy_weights_({"weight": torch.zeros(1, 3), "bias": torch.full((1,), 0.5)})
        batch = next(iter(collector))
        assert batch is not None
        assert batch["action"].flatten().tolist() == [0.5, 0.5]


def test_the_state_goes_on_with_new_episodes() -> None:
    with Collector("CartPole-v1", frames_per_batch=50, total_frames=200) as collector:
        before = next(iter(collector))
        state = collector.state_dict()
    with Collector("CartPole-v1", frames_per_batch=50, total_frames=200) as collector:
        collector.load_state_dict(state)
        after = list(collector)
    assert before is not None
    assert len(after) == 3
    assert after[0] is not None
    assert after[0]["collector", "traj_ids"].min() > before["collector", "traj_ids"].max()
    assert not torch.equal(after[0]["observation"][0], before["observation"][0])


def test_the_state_counts_what_was_given_out() -> None:
    """Episodes that run, or wait for the next batch, are lost with their collector: others are made for them."""
    options: dict[str, Any] = {"trajs_per_batch": 4, "total_frames": 200}
    with Collector(SerialEnv(3, Counter), one, **options) as collector:
        before = [next(iter(collector)) for _ in range(2)]
        state = collector.state_dict()
    with Collector(SerialEnv(3, Counter), one, **options) as collector:
        collector.load_state_dict(state)
        after: list[Any] = list(collector)
    batches: list[Any] = [*before, *after]
    masks = [batch["collector", "mask"] for batch in batches]
    assert state["frames"] == sum(int(mask.sum()) for mask in masks[:2])
    assert sum(int(mask.sum()) for mask in masks) == 200
    ids = [batch["collector", "traj_ids"][:, 0].tolist() for batch in batches]
    assert all(one[-1] < other[0] for one, other in pairwise(ids))


def test_the_state_decides_what_follows_and_can_be_saved(tmp_path: Path) -> None:
    policy = torch.nn.Linear(3, 1)
    options: dict[str, Any] = {"frames_per_batch": 20, "total_frames": 60, "seed": 4}
    with Collector(GymEnv("Pendulum-v1"), policy, **options) as collector:
        next(iter(collector))
        collector.update_policy_weights_({"weight": torch.zeros(1, 3), "bias": torch.ones(1)})
        torch.save(collector.state_dict(), tmp_path / "state.pt")
    runs: list[list[Any]] = []
    for _ in range(2):
        with Collector(GymEnv("Pendulum-v1"), torch.nn.Linear(3, 1), **options) as collector:
            collector.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            assert collector.policy_version == 1
            runs.append(list(collector))
    assert len(runs[0]) == 2
    assert (runs[0][0]["action"] == 1).all()
    assert all((batch == other).all() for batch, other in zip(*runs, strict=True))


def test_a_state_of_something_else() -> None:
    with Collector(Counter, one, frames_per_batch=2) as collector:
        with pytest.raises(CollectError, match=r"state has no 'sessions': expected a collector's state_dict\(\)"):
            collector.load_state_dict({"frames": 3, "iterations": 1, "next_trajectory": 1, "policy_version": 0})
        batch = next(iter(collector))
        assert batch is not None, "it goes on as it was"
        assert batch["observation"][:, 0].tolist() == [0, 1]


def test_batches_do_not_share_memory() -> None:
    with Collector(SerialEnv(2, Counter), one, frames_per_batch=4, total_frames=8) as collector:
        iterator = iter(collector)
        first = next(iterator)
        assert first is not None
        kept = first.clone()
        second = next(iterator)
        assert second is not None
        second["observation"].zero_()
        assert (first == kept).all()
        assert (second["next", "observation"] > 0).all()


def test_spaces_with_parts() -> None:
    (batch,) = batches(SerialEnv(2, Structured), None, frames_per_batch=20, total_frames=20)
    assert batch["observation", "picture"].shape == (2, 10, 40, 40)
    assert batch["action", "push"].shape == (2, 10, 2)
    np.testing.assert_array_equal(
        batch["next", "observation", "vector"], (batch["observation", "vector"] + 0.25) % 1.25
    )


def test_the_same_seed_gives_the_same_batches() -> None:
    first, again, other = (
        batches(SerialEnv(2, "CartPole-v1"), None, frames_per_batch=40, total_frames=40, seed=seed)[0]
        for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert not (first == other).all()


def test_mistakes() -> None:
    with pytest.raises(CollectError, match="expected frames_per_batch or trajs_per_batch"):
        Collector(Counter)
    with pytest.raises(CollectError, match="batches of 2: expected at least 3"):
        Collector(SerialEnv(3, Counter), frames_per_batch=2)
    shut = SyncDataCollector(Counter, frames_per_batch=2)
    shut.shutdown()
    with pytest.raises(CollectError, match="shut down"):
        next(iter(shut))


@pytest.mark.parametrize("exploration_type", ["deterministic", "Deterministic", InteractionType.MEDIAN, "mean", "MODE"])
def test_exploration_by_name(exploration_type: str | InteractionType) -> None:
    """What a policy does that asks how to explore: 1 where it is not to draw, 2 where it is."""

    def asks(observation: Any) -> Any:
        return np.full(len(observation), 1 + (interaction_type() is InteractionType.RANDOM))

    (batch,) = batches(Counter, asks, frames_per_batch=2, total_frames=2, exploration_type=exploration_type)
    assert batch["action"].tolist() == [1, 1]
    (batch,) = batches(Counter, asks, frames_per_batch=2, total_frames=2, exploration_type="random")
    assert batch["action"].tolist() == [2, 2]


@pytest.mark.parametrize("unknown", ["greedy", "", None, 3])
def test_unknown_exploration(unknown: Any) -> None:
    expected = "expected one of deterministic, mean, median, mode, random"
    with pytest.raises(CollectError, match=f"exploration_type {unknown!r}: {expected}"):
        Collector(Counter, frames_per_batch=2, exploration_type=unknown)


def test_limits_that_are_none() -> None:
    for nothing in (0, -1, None):
        (batch,) = batches(
            Counter, frames_per_batch=20, total_frames=20, max_frames_per_traj=nothing, init_random_frames=nothing
        )
        assert batch["next", "truncated"].sum() == 2


def test_a_policy_without_weights_takes_none() -> None:
    with Collector(Counter, one, frames_per_batch=4) as collector:
        with pytest.raises(CollectError, match="the policy has no weights to update"):
            collector.update_policy_weights_({"weight": torch.zeros(1)})
        collector.update_policy_weights_()
        assert collector.policy_version == 1
