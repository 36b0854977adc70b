"""Goals of hindsight lie where the strategy says, in the step's own episode, and rewards belong to them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

import rlx
from rlx.buffer import (
    DatasetStorage,
    FrameStack,
    HERReplayBuffer,
    HindsightStrategy,
    LazyTensorStorage,
    NStep,
    RandomSampler,
    ReturnToGo,
    SamplerWithoutReplacement,
    SliceSampler,
)
from rlx.errors import SamplingError, SchemaMismatchError
from tests.factories import make_block, write_dataset


def walk(episode: int, length: int, *, with_next: bool = True) -> TensorDict:
    """An episode in which 100 * episode + t is achieved at time t, and the goal is -1."""
    achieved = 100.0 * episode + torch.arange(length + 1)[:, None]
    next_ = {"reward": torch.zeros(length, 1), "done": (torch.arange(length) == length - 1)[:, None]}
    if with_next:
        next_ |= {"achieved_goal": achieved[1:], "desired_goal": torch.full((length, 1), -1.0)}
    named = {"achieved_goal": achieved[:-1], "desired_goal": torch.full((length, 1), -1.0), "next": next_}
    return TensorDict(named, [length])


def rewards(steps: Any) -> torch.Tensor:
    """What makes visible which goal a reward was computed with."""
    found: torch.Tensor = steps["desired_goal"] * 2 + steps["achieved_goal"]
    return found


def buffer(size: int = 64, **options: Any) -> HERReplayBuffer:
    return HERReplayBuffer(rewards, storage=LazyTensorStorage(size), **options)


def allowed(strategy: str, achieved: float, stored: set[float]) -> set[float]:
    """The goals that a step may get, by the obvious loop; achieved under ``next``."""
    episode, time = divmod(int(achieved), 100)
    led_to = {goal for goal in stored if int(goal - 1) // 100 == episode}
    if strategy == "future":
        return {goal for goal in led_to if goal > 100 * episode + time}
    if strategy == "final":
        return {max(led_to)}
    return led_to if strategy == "episode" else stored


@settings(max_examples=40)
@given(
    strategy=st.sampled_from(list(HindsightStrategy)),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    size=st.integers(4, 30),
    ratio=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_goals_are_of_the_steps_own_episode(strategy: str, lengths: list[int], size: int, ratio: float) -> None:
    made = buffer(size, strategy=strategy, her_ratio=ratio, batch_size=20, sampler=RandomSampler(seed=0), seed=1)
    for episode, length in enumerate(lengths):
        made.extend(walk(episode, length))
    stored = set(made[:]["next", "achieved_goal"].flatten().tolist())
    batch = made.sample()
    is_new = (batch["desired_goal"] != -1).flatten()
    assert is_new.sum() == int(20 * ratio)
    assert (batch["desired_goal"] == batch["next", "desired_goal"]).all()
    assert (batch["next", "reward"][~is_new] == 0).all()
    assert (batch["next", "reward"][is_new] == rewards(batch)[is_new]).all()
    for step in batch[is_new]:
        goal = step["desired_goal"].item()
        assert goal in allowed(strategy, step["achieved_goal"].item(), stored)


@pytest.mark.parametrize("strategy", HindsightStrategy)
def test_every_candidate_comes_up_equally_often(strategy: HindsightStrategy) -> None:
    made = buffer(strategy=strategy, her_ratio=1.0, batch_size=100, sampler=RandomSampler(seed=0), seed=1)
    for episode in (0, 1):
        made.extend(walk(episode, 4))
    goals: list[float] = []
    for _ in range(100):
        batch = made.sample()
        goals += batch["desired_goal"][batch["achieved_goal"] == 101].tolist()
    expected = {"future": 3, "final": 1, "episode": 4, "random": 8}[strategy]
    counts = torch.tensor([goals.count(goal) for goal in sorted(set(goals))])
    assert len(counts) == expected
    assert (counts / len(goals) - 1 / expected).abs().max() < 0.05


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("strategy", HindsightStrategy)
def test_torchrl_gives_the_same_goals_where_next_has_none(strategy: HindsightStrategy) -> None:
    peers = pytest.importorskip("torchrl.data", reason="torchrl is not installed")
    options: dict[str, Any] = {"strategy": str(strategy), "her_ratio": 1.0, "batch_size": 200}
    theirs = peers.HERReplayBuffer(rewards, storage=peers.LazyTensorStorage(64), **options)
    ours = HERReplayBuffer(rewards, storage=LazyTensorStorage(64), **options)
    pairs: list[set[tuple[float, float, float]]] = [set(), set()]
    for each, found in zip((theirs, ours), pairs, strict=True):
        for episode, length in enumerate((3, 1, 5)):
            each.extend(walk(episode, length, with_next=False))
        for _ in range(30):
            batch = each.sample()
            named = (batch["achieved_goal"], batch["desired_goal"], batch["next", "reward"])
            found.update(zip(*(column.flatten().tolist() for column in named), strict=True))
    assert pairs[0] == pairs[1]


@pytest.mark.parametrize("strategy", HindsightStrategy)
def test_goals_stay_in_their_lane_across_the_wrap(strategy: HindsightStrategy) -> None:
    storage = LazyTensorStorage(2 * 8, ndim=2)
    made = HERReplayBuffer(rewards, storage=storage, strategy=strategy, her_ratio=1.0, batch_size=100)
    for episode in range(4):
        made.extend(torch.stack([walk(10 * lane + episode, 5) for lane in (0, 1)]))
    stored = set(made[:]["next", "achieved_goal"].flatten().tolist())
    assert len(stored) == 16
    for step in made.sample():
        assert step["desired_goal"].item() in allowed(strategy, step["achieved_goal"].item(), stored)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_goals_of_numbers_without_a_sign(dtype: torch.dtype) -> None:
    made = HERReplayBuffer(
        lambda steps: steps["reward"].float(), storage=LazyTensorStorage(64), strategy="final", her_ratio=1.0
    )
    steps = walk(0, 5)
    for key in ("achieved_goal", "desired_goal"):
        steps[key], steps["next", key] = steps[key].abs().to(dtype), steps["next", key].abs().to(dtype)
    made.extend(steps.set("reward", torch.zeros(5, 1)))
    assert made.sample(20)["desired_goal"].tolist() == [[5]] * 20


def test_a_dataset_at_rest_gets_goals(tmp_path: Path) -> None:
    write_dataset(tmp_path / "made", [[make_block(lengths=[4, 6])]])
    made = HERReplayBuffer(
        lambda steps: steps["observation"].reshape(len(steps), -1)[:, :1].float(),
        storage=DatasetStorage(rlx.open(tmp_path / "made")),
        goal_key="observation",  # what is sought is what is seen, so as to need no dataset of goals
        achieved_goal_key="observation",
        strategy="final",
        her_ratio=1.0,
        batch_size=40,
    )
    last = made[:]["next", "observation"][[3, 9]]
    found = made.sample()["observation"]
    assert all((each == last[0]).all() or (each == last[1]).all() for each in found)


def test_keys_may_be_nested_and_rewards_flat() -> None:
    steps = walk(0, 4)
    nested = TensorDict(
        {
            "observation": {"at": steps["achieved_goal"], "to": steps["desired_goal"]},
            "next": {"observation": {"at": steps["next", "achieved_goal"]}, "reward": torch.zeros(4)},
            "episode": torch.zeros(4, dtype=torch.int64),
        },
        [4],
    )
    made = HERReplayBuffer(
        lambda steps: steps["observation", "to"] * 10,
        her_ratio=1.0,
        strategy="final",
        goal_key=("observation", "to"),
        achieved_goal_key=("observation", "at"),
        batch_size=6,
    )
    made.extend(nested)
    batch = made.sample()
    assert (batch["observation", "to"] == 4).all()
    assert batch["next", "reward"].tolist() == [40.0] * 6


def test_an_end_key_tells_episodes_apart_where_ids_do_not() -> None:
    # Without next observations, which would tell them apart by themselves.
    both: Any = torch.cat([walk(episode, 3, with_next=False) for episode in (0, 1)])
    steps = both.set("episode", torch.zeros(6, dtype=torch.int64)).rename_key_(("next", "done"), ("next", "over"))
    for end_key, goals in ((("next", "over"), {2.0, 102.0}), (None, {102.0})):
        made = buffer(strategy="final", her_ratio=1.0, end_key=end_key, batch_size=50)
        made.extend(steps)
        assert set(made.sample()["desired_goal"].flatten().tolist()) == goals


@pytest.mark.parametrize("prefetch", [0, 3])
def test_the_same_seed_gives_the_same_goals_and_continues(prefetch: int, tmp_path: Path) -> None:
    def make(seed: int) -> HERReplayBuffer:
        options: dict[str, Any] = {"sampler": SamplerWithoutReplacement(seed=seed), "prefetch": prefetch}
        made = buffer(batch_size=8, seed=seed, **options)
        for episode in range(5):
            made.extend(walk(episode, 6))
        return made

    first, second, third, fourth = make(1), make(1), make(2), make(3)
    for _ in range(4):
        assert (first.sample() == second.sample()).all()
    first.dumps(tmp_path / "saved")
    third.loads(tmp_path / "saved")
    for saved, loaded in ((1, first), (0, fourth)):
        with rlx.Checkpoint(tmp_path / "run", buffer=loaded) as checkpoint:
            checkpoint.save(1) if saved else checkpoint.restore()
    for _ in range(4):
        batch = first.sample()
        assert (batch == third.sample()).all()
        assert (batch == fourth.sample()).all()
    for each in (first, second, third, fourth):
        each.shutdown()


def test_transforms_come_after_and_frames_are_stacked() -> None:
    def negate(steps: Any) -> Any:
        return steps.set("desired_goal", -steps["desired_goal"])

    stack = FrameStack(2, keys=["achieved_goal"])
    made = buffer(strategy="final", her_ratio=1.0, batch_size=10, transform=stack, sampler=RandomSampler(seed=0))
    made.reward_fn = lambda steps: steps["desired_goal"]
    made.append_transform(negate)
    made.extend(walk(0, 5))
    batch = made.sample()
    assert (batch["desired_goal"] == -5).all()
    assert (batch["next", "reward"] == 5).all()
    assert batch["achieved_goal"].shape == (10, 2, 1)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match=r"her_ratio 1.5: expected 0 to 1"):
        buffer(her_ratio=1.5)
    with pytest.raises(ValueError, match="'past' is not a valid HindsightStrategy"):
        buffer(strategy="past")
    with pytest.raises(ValueError, match="NStep would sum rewards of the stored goals"):
        buffer(transform=NStep(3))
    with pytest.raises(ValueError, match="ReturnToGo would sum rewards"):
        buffer().append_transform(ReturnToGo())
    with pytest.raises(ValueError, match="FrameStack: expected it before the other transforms"):
        buffer(transform=FrameStack(2)).insert_transform(0, lambda steps: steps)
    made = buffer(batch_size=4, sampler=SliceSampler(slice_len=2))
    made.extend(walk(0, 4))
    with pytest.raises(SamplingError, match="expected a sampler of steps"):
        made.sample()
    other = buffer(batch_size=4, goal_key="goal")
    other.extend(walk(0, 4))
    with pytest.raises(SamplingError, match="'goal' is not stored"):
        other.sample()
    wrong = buffer(batch_size=4, her_ratio=1.0)
    wrong.reward_fn = lambda steps: torch.zeros(len(steps), 3)
    wrong.extend(walk(0, 4))
    with pytest.raises(SchemaMismatchError, match=r"reward_fn gave \[4, 3\]: expected \[4, 1\]"):
        wrong.sample()
    shapes = buffer(batch_size=4, her_ratio=1.0)
    shapes.extend(walk(0, 4).exclude(("next", "achieved_goal")).set("achieved_goal", torch.zeros(4, 2)))
    with pytest.raises(SchemaMismatchError, match=r"goals are \[1\], achieved goals are \[2\]"):
        shapes.sample()
