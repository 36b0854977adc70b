"""Timesteps, columns of trajectories, next actions, and n-step transitions beside single steps, against loops."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase

import rlx
from rlx.buffer import (
    FrameStack,
    LazyTensorStorage,
    NextAction,
    NStep,
    ReplayBuffer,
    ReturnToGo,
    RewardClip,
    SliceSampler,
    Timestep,
    TrajectoryColumns,
)
from rlx.errors import OptionError, TransformError
from rlx.store.dataset import Dataset
from tests.buffer.transform.stored import back, buffers, onward, stored
from tests.factories import make_block, write_dataset

LENGTHS = [3, 1, 5, 4]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    blocks = [[make_block(LENGTHS[:2], first_episode=10)], [make_block(LENGTHS[2:], first_episode=12)]]
    return write_dataset(tmp_path_factory.mktemp("columns") / "data", blocks)


def act_as_observed(steps: TensorDictBase) -> TensorDictBase:
    return steps.set("action", steps["observation"].clone())


@given(buffer=buffers(), n=st.integers(1, 4), gamma=st.sampled_from([0.0, 0.5, 1.0]))
def test_they_agree_with_going_step_by_step(buffer: ReplayBuffer, n: int, gamma: float) -> None:
    known = stored(buffer)
    act = act_as_observed
    for part in (act, Timestep(), NextAction(mask="has_next"), NStep(n, gamma, key=("more", "n"))):
        buffer.append_transform(part)
    batch = buffer.sample(16)
    assert batch["timestep"].dtype == torch.int64
    assert batch["timestep"].shape == (16, 1)
    for step in batch:
        now = int(step["observation"])
        ahead = onward(now, known)
        assert int(step["timestep"]) == len(back(now, known)) - 1
        assert bool(step["has_next"]) == (len(ahead) > 1)
        assert int(step["next", "action"]) == (ahead[1] if len(ahead) > 1 else 0)
        spanned = ahead[:n]
        assert int(step["more", "n", "steps_to_next_obs"]) == len(spanned)
        assert float(step["more", "n", "gamma"]) == pytest.approx(gamma ** len(spanned))
        assert float(step["next", "reward"]) == now % 1000
        total = sum(o % 1000 * gamma**i for i, o in enumerate(spanned))
        assert float(step["more", "n", "reward"]) == pytest.approx(total)


@given(buffer=buffers(), n=st.integers(1, 4))
def test_n_steps_beside_single_ones_are_those_that_replace_them(buffer: ReplayBuffer, n: int) -> None:
    rows = torch.arange(len(buffer)) if buffer.storage.ndim == 1 else torch.from_numpy(_rows(buffer))
    plain = buffer[rows]
    buffer.append_transform(NStep(n, 0.5, key="n_step"))
    buffer.append_transform(ReturnToGo())  # of single rewards
    beside = buffer[rows]
    alone = ReplayBuffer(storage=buffer.storage, transform=NStep(n, 0.5))[rows]
    for key in plain.keys(True, True):
        assert torch.equal(beside[key], plain[key]), key
    for key in alone["next"].keys(True, True):
        assert torch.equal(beside["n_step"][key], alone["next"][key]), key
    for key in ("gamma", "steps_to_next_obs"):
        assert torch.equal(beside["n_step", key], alone[key])


def _rows(buffer: ReplayBuffer) -> Any:
    return buffer.storage.row_at(torch.arange(len(buffer)).numpy())


def test_columns_are_those_of_the_table(data: Dataset) -> None:
    table, columns = data.trajectories, TrajectoryColumns("return", "length", "episode", "whole")
    buffer = ReplayBuffer(
        storage=data,
        sampler=SliceSampler(slice_len=3, seed=0),
        transform=rlx.buffer.Compose(columns, FrameStack(2)),
        batch_size=12,
    )
    for batch in (buffer.sample(), *rlx.loader(data, 13, transform=columns)):
        for step in batch:
            number = int(step["collector", "traj_ids"])
            assert step["trajectory", "return"].tolist() == [table.returns[number]]
            assert step["trajectory", "length"].tolist() == [LENGTHS[number]]
            assert step["trajectory", "episode"].tolist() == [10 + number]
            assert step["trajectory", "whole"].tolist() == [True]
    dtypes = [batch["trajectory", name].dtype for name in ("return", "length", "episode", "whole")]
    assert dtypes == [torch.float64, torch.int64, torch.int64, torch.bool]


def test_columns_that_nobody_knows(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="column 'size' is unknown: expected one of length"):
        ReplayBuffer(storage=data, transform=TrajectoryColumns("size")).sample(3)
    live = ReplayBuffer(storage=LazyTensorStorage(20), transform=TrajectoryColumns("length"))
    live.extend(data[:])
    with pytest.raises(TransformError, match="expected steps of a dataset"):
        live.sample(3)
    with pytest.raises(TransformError, match="no columns given"):
        TrajectoryColumns()
    with pytest.raises(TransformError, match="a dataset has n-step transitions or single steps"):
        rlx.preprocess(data, tmp_path / "made", transform=NStep(2, key="n"), num_workers=1)


def test_in_a_loader_and_with_a_batch(data: Dataset) -> None:
    for slice_len in (None, 3):
        loader = rlx.loader(data, 3, slice_len=slice_len, transform=_chain(), drop_last=True)
        for batch in loader:
            flat = batch.reshape(-1)
            for step in flat:
                place = int(step["observation"][0]) % 1000
                length = LENGTHS[int(step["collector", "traj_ids"])]
                assert int(step["timestep"]) == place
                assert bool(step["next", "has_action"]) == (place + 1 < length)
                assert int(step["next", "action"]) == (place + 1 if place + 1 < length else 0)
                assert int(step["n_step", "observation"][0]) % 1000 == min(place + 2, length)
    ended = data[4:9]  # the whole trajectory of five
    made = NextAction()(Timestep()(ended))
    assert made["timestep"].flatten().tolist() == [0, 1, 2, 3, 4]
    assert made["next", "action"].tolist() == [1, 2, 3, 4, 0]
    padded = data[4:9].reshape(1, 5)
    padded["collector", "mask"] = torch.tensor([[True, True, True, False, False]])
    assert Timestep()(padded)["timestep"].flatten().tolist() == [0, 1, 2, 0, 0]
    assert NextAction()(padded)["next", "has_action"].flatten().tolist() == [True, True, False, False, False]


def _chain() -> Any:
    return rlx.buffer.Compose(RewardClip(), Timestep(), NextAction(), NStep(2, key="n_step"))


def test_what_does_not_fit_is_refused(data: Dataset) -> None:
    buffer = ReplayBuffer(storage=data, transform=NStep(2))
    with pytest.raises(TransformError, match="put NextAction first"):
        buffer.append_transform(NextAction())
    stored_twice = ReplayBuffer(storage=data, transform=rlx.buffer.Compose(NextAction(), NextAction()))
    with pytest.raises(TransformError, match="next/action exists already"):
        stored_twice.sample(2)
    with pytest.raises(TransformError, match="policy is not stored"):
        ReplayBuffer(storage=data, transform=NextAction("policy")).sample(2)
    assert "next" in repr(NextAction())
    assert repr(Timestep()) == "Timestep(key='timestep')"
    assert repr(TrajectoryColumns("return")) == "TrajectoryColumns('return')"
    empty = TensorDict({"observation": torch.zeros(0, 2)}, [0])
    assert len(Timestep()(empty)) == 0
