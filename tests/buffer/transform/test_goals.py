"""Goals against a loop over the states of each trajectory: which they may be, how often, and what rewards they give."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx.buffer import FrameStack, Goals, HERReplayBuffer, LazyTensorStorage, NStep, RandomSampler, ReplayBuffer
from rlx.errors import SchemaMismatchError, TransformError
from rlx.store.dataset import Dataset
from tests.buffer.sampler.chance import drawn_like
from tests.factories import make_block, write_dataset

LENGTHS = [3, 1, 5, 4]
RECORDED = [True, False, False, True]
GOAL: Any = {"goal": "observation"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    blocks = []
    for first in (0, 2):
        block = make_block(LENGTHS[first : first + 2], first_episode=first)
        seen = block.data["observation"].copy()
        recorded = np.array(RECORDED[first : first + 2])
        seen[(np.cumsum(block.lengths + 1) - 1)[~recorded]] = 0
        blocks.append([replace(block, data={**block.data, "observation": seen}, final_recorded=recorded)])
    return write_dataset(tmp_path_factory.mktemp("goals") / "data", blocks)


def memory(data: Dataset) -> LazyTensorStorage:
    storage = LazyTensorStorage(40)
    ReplayBuffer(storage=storage).extend(data[:])
    return storage


def later(observation: int, recorded: list[bool]) -> int:
    """How many states follow this one in its trajectory."""
    episode, step = divmod(observation, 1000)
    return LENGTHS[episode] - step - (not recorded[episode])


def states() -> list[int]:
    return [1000 * episode + step for episode, length in enumerate(LENGTHS) for step in range(length)]


@given(
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0]), min_size=4, max_size=4).filter(lambda some: sum(some) > 0),
    discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    seed=st.integers(-3, 2**64),
    size=st.integers(1, 40),
)
def test_goals_are_states_that_the_steps_say(
    data: Dataset, shares: list[float], discount: float, seed: int, size: int
) -> None:
    named: Any = dict(
        zip(("current", "geometric", "uniform", "random"), [share / sum(shares) for share in shares], strict=True)
    )
    goals = Goals(GOAL, **named, discount=discount, steps_key="steps", seed=seed)
    for storage, recorded in ((data, RECORDED), (memory(data), [True] * 4)):
        batch = ReplayBuffer(storage=storage, sampler=RandomSampler(seed=seed), transform=goals).sample(size)
        for step in batch:
            now, ahead = int(step["observation"][0]), int(step["steps"])
            goal, last = int(step["goal"][0]), later(now, recorded)
            if ahead < 0:
                assert named["random"]
                assert goal in states()
                continue
            assert ahead <= last
            ends_unrecorded = ahead == LENGTHS[now // 1000] - now % 1000 and not RECORDED[now // 1000]
            assert goal == (0 if ends_unrecorded else now + ahead)
            if ahead == 0:
                assert named["current"] or named["random"] or last == 0
            elif not named["uniform"]:
                assert named["geometric"]
                assert ahead == 1 or discount > 0
                assert ahead == last or discount < 1


@pytest.mark.parametrize("source", ["buffer", "loader", "slices"])
def test_shares_and_distances_are_as_likely_as_they_say(data: Dataset, source: str) -> None:
    goals = Goals(GOAL, current=0.2, geometric=0.3, uniform=0.3, random=0.2, discount=0.6, steps_key="steps", seed=1)
    expected: dict[int, float] = {}
    start = 3000
    last = later(start, RECORDED)
    for ahead in range(1, last + 1):
        waits = 0.6 ** (ahead - 1) * (0.4 if ahead < last else 1)
        expected[ahead] = 0.3 * waits + 0.3 / last
    expected[0] = 0.2 + 0.2 / 13
    expected[-1] = 0.2 * 12 / 13
    if source == "buffer":
        batches = [ReplayBuffer(storage=data, sampler=RandomSampler(seed=0), transform=goals).sample(40_000)]
    else:
        slice_len = 2 if source == "slices" else None
        loader = rlx.loader(data, 4000, slice_len=slice_len, transform=goals, replacement=True, batches=10)
        batches = [batch.reshape(-1) for batch in loader]
    found = torch.cat([batch["steps"][batch["observation"][:, 0] == start].flatten() for batch in batches])
    assert len(found) > 1500
    assert drawn_like(found, expected)
    random = torch.cat([batch["goal"][batch["steps"].flatten() == -1][:, 0] for batch in batches])
    assert set(random.tolist()) == set(states())


@given(keys=st.lists(st.sampled_from(["goal", "other", "steps", "action", "observation"]), min_size=1, unique=True))
def test_goals_do_not_depend_on_the_keys_that_are_asked_for(data: Dataset, keys: list[str]) -> None:
    def make(**options: Any) -> list[Any]:
        mixture: Any = {"current": 0.1, "geometric": 0.4, "uniform": 0.2, "random": 0.3}
        transform = rlx.buffer.Compose(
            FrameStack(2),
            Goals(GOAL, **mixture, steps_key="steps", seed=4),
            Goals({"other": "observation"}, **mixture, seed=5),
        )
        sampler = RandomSampler(seed=3)
        buffer = ReplayBuffer(storage=data, sampler=sampler, transform=transform, batch_size=9, **options)
        return [buffer.sample(), *rlx.loader(data, 13, transform=transform, **options)]

    for batch, some in zip(make(), make(keys=keys), strict=True):
        assert set(some.keys()) == set(keys)
        for key in keys:
            assert torch.equal(batch[key], some[key]), key


def reached(steps: Any) -> torch.Tensor:
    same: torch.Tensor = (steps["next", "observation"] == steps["goal"]).all(-1)
    return same.float() - 1


def test_rewards_are_made_in_one_call_and_stored_goals_stay(data: Dataset) -> None:
    calls = []

    def reward_fn(steps: Any) -> torch.Tensor:
        calls.append(len(steps))
        return reached(steps)

    stored = LazyTensorStorage(40)
    steps = data[:]
    steps["goal"] = torch.full((13, 2), -7.0)
    steps["next", "goal"] = steps["goal"].clone()
    ReplayBuffer(storage=stored).extend(steps)
    goals = Goals(GOAL, uniform=0.5, reward_fn=reward_fn, steps_key="steps", seed=0)
    batch = ReplayBuffer(storage=stored, sampler=RandomSampler(seed=0), transform=goals).sample(200)
    is_new = batch["steps"].flatten() != -2
    assert calls == [int(is_new.sum())]
    assert 70 < calls[0] < 130
    assert (batch["goal"][~is_new] == -7).all()
    assert (batch["next", "goal"] == batch["goal"]).all()
    assert batch["goal"].dtype == torch.float32
    assert (batch["next", "reward"][~is_new] == 1).all()
    assert torch.equal(batch["next", "reward"][is_new, 0], reached(batch)[is_new])
    assert torch.equal(batch["next", "reward"][is_new, 0] == 0, batch["steps"][is_new, 0] == 1)
    assert (stored.get(np.arange(13), ["goal"])["goal"] == -7).all()
    few = ReplayBuffer(
        storage=stored, sampler=RandomSampler(seed=0), transform=goals, keys=["goal", ("next", "reward")]
    ).sample(200)
    assert torch.equal(few["next", "reward"], batch["next", "reward"])
    assert torch.equal(few["goal"], batch["goal"])


def test_several_goals_and_stacks(data: Dataset) -> None:
    transform = rlx.buffer.Compose(
        FrameStack(2),
        Goals({"value_goal": "observation", "same": "observation"}, geometric=1, steps_key="value_steps", seed=0),
        Goals({"actor_goal": "observation"}, uniform=0.5, random=0.5, steps_key="actor_steps", seed=0),
    )
    sampled = ReplayBuffer(storage=data, transform=transform).sample(60)
    for batch in (sampled, *rlx.loader(data, 13, transform=transform)):
        assert torch.equal(batch["value_goal"], batch["same"])
        assert batch["actor_goal"].shape == (len(batch), 2, 2)
        for step in batch:
            for name in ("value", "actor"):
                ahead = int(step[f"{name}_steps"])
                if ahead < 0:
                    continue
                now = int(step["observation"][-1, 0]) + ahead
                before = max(now - 1, now // 1000 * 1000)
                assert step[f"{name}_goal"][:, 0].tolist() == [before, now]
        apart = batch["value_steps"] != batch["actor_steps"]
        assert len(batch) < 60 or apart.any()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_goals_resume_to_the_bit(data: Dataset, prefetch: int, tmp_path: Path) -> None:
    def make(kind: str) -> Any:
        options: Any = {"sampler": RandomSampler(seed=3), "batch_size": 6, "prefetch": prefetch}
        shares: Any = {"current": 0.1, "geometric": 0.4, "uniform": 0.2, "random": 0.3}
        if kind == "transform":
            return ReplayBuffer(storage=data, transform=Goals(GOAL, **shares, seed=4), **options)
        made = HERReplayBuffer(
            reached,
            strategy=shares,
            her_ratio=0.7,
            goal_key=["goal"],
            achieved_goal_key=["observation"],
            seed=4,
            storage=LazyTensorStorage(40),
            **options,
        )
        steps = data[:]
        made.extend(steps.set("goal", torch.zeros(13, 2, dtype=torch.int32)))
        return made

    for kind in ("transform", "hindsight"):
        whole = [made["goal"].tolist() for made in (buffer.sample() for buffer in [make(kind)] for _ in range(6))]
        one, other = make(kind), make(kind)
        assert [one.sample()["goal"].tolist() for _ in range(2)] == whole[:2]
        one.dumps(tmp_path / kind)
        other.loads(tmp_path / kind)
        for buffer in (one, other):
            assert [buffer.sample()["goal"].tolist() for _ in range(4)] == whole[2:]


@pytest.mark.parametrize("slice_len", [None, 2])
def test_goals_of_a_loader_are_the_same_for_any_ranks_and_resume(data: Dataset, slice_len: int | None) -> None:
    def loader(**options: Any) -> Any:
        goals = Goals(GOAL, current=0.1, geometric=0.4, uniform=0.2, random=0.3, seed=4)
        return rlx.loader(data, 4, slice_len=slice_len, transform=goals, **options)

    whole = [batch["goal"] for batch in loader()]
    ranks = [[batch["goal"] for batch in loader(rank=rank, world_size=2)] for rank in range(2)]
    assert [batch.tolist() for batch in whole] == [torch.cat(parts).tolist() for parts in zip(*ranks, strict=True)]
    one, other = loader(), loader(threads=2, prefetch=3)
    batches = iter(one)
    next(batches)
    other.load_state_dict(one.state_dict())
    assert [batch["goal"].tolist() for batch in other] == [batch.tolist() for batch in whole[1:]]


def test_hindsight_of_several_and_of_stacked_goals(data: Dataset) -> None:
    steps = data[:]
    for key in ("goal", "other"):
        steps[key] = torch.full((13, 2), -7, dtype=torch.int32)
    steps["place"] = steps["observation"] + 100
    steps["next", "place"] = steps["next", "observation"] + 100
    for strategy in ("future", {"uniform": 1.0}):
        made = HERReplayBuffer(
            lambda stacks: torch.zeros(len(stacks)),
            strategy=strategy,
            her_ratio=1.0,
            goal_key=["goal", "other"],
            achieved_goal_key=["observation", "place"],
            storage=LazyTensorStorage(40),
            batch_size=50,
            seed=1,
            transform=FrameStack(2, keys=["observation", "goal"]),
        )
        made.extend(steps)
        batch = made.sample()
        assert torch.equal(batch["goal"][:, -1] + 100, batch["other"])
        assert batch["goal"].shape == (50, 2, 2)
        before, now = batch["goal"][:, 0, 0], batch["goal"][:, 1, 0]
        is_recorded = now % 1000 != 0  # zeros of final states were stored as if they were observed
        assert ((now - before)[is_recorded] == 1).all()
        assert (now[is_recorded] > batch["observation"][is_recorded, 1, 0]).all()


def test_what_does_not_fit_is_refused(data: Dataset) -> None:
    shares: Any
    for shares, problem in (
        ({}, "shares sum to 0: expected above 0, and 1 at most"),
        ({"current": 0.7, "random": 0.7}, "shares sum to 1.4"),
        ({"current": -0.1}, "current -0.1: expected 0 to 1"),
        ({"geometric": 1, "discount": 1.5}, "discount 1.5: expected 0 to 1"),
    ):
        with pytest.raises(TransformError, match=problem):
            Goals(GOAL, **shares)
    with pytest.raises(TransformError, match=r"expected \{goal: state\}"):
        Goals("goal", random=1)  # type: ignore[arg-type]
    with pytest.raises(TransformError, match="put FrameStack first"):
        rlx.buffer.Compose(Goals(GOAL, random=1), FrameStack(2))
    with pytest.raises(TransformError, match="Goals after NStep: rewards of other goals would be summed"):
        rlx.buffer.Compose(NStep(2), Goals(GOAL, random=1, reward_fn=reached))
    with pytest.raises(TransformError, match=r"goal is not stored: expected shares with a sum of 1, found 0\.5"):
        ReplayBuffer(storage=data, transform=Goals(GOAL, random=0.5)).sample(50)
    with pytest.raises(TransformError, match="place is not stored: goals are taken from it"):
        ReplayBuffer(storage=data, transform=Goals({"goal": "place"}, random=1)).sample(5)
    with pytest.raises(SchemaMismatchError, match=r"action is \[\], its states are \[2\]: expected one shape"):
        ReplayBuffer(storage=data, transform=Goals({"action": "observation"}, random=1)).sample(5)
    with pytest.raises(SchemaMismatchError, match=r"reward_fn gave \[5, 2\]: expected \[5, 1\]"):
        ReplayBuffer(storage=data, transform=Goals(GOAL, random=1, reward_fn=lambda s: s["goal"])).sample(5)
    with pytest.raises(ValueError, match="'future' in a mixture"):
        HERReplayBuffer(reached, strategy={"future": 1.0})
    with pytest.raises(ValueError, match="expected shares with a sum of 1"):
        HERReplayBuffer(reached, strategy={"uniform": 0.5})
    with pytest.raises(ValueError, match="2 goal_key, 1 achieved_goal_key"):
        HERReplayBuffer(reached, goal_key=["a", "b"])
