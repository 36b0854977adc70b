"""Selections of trajectories: in any order, and the best of them, against loops over whole trajectories."""

import math
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx.buffer import FrameStack, ReplayBuffer, SliceSampler
from rlx.buffer.loader_reading import concatenated
from rlx.errors import DatasetError, OptionError, TransformError
from rlx.store.trajectories import Trajectories
from rlx.transform.selections import Numbered, largest, numbered
from tests.factories import make_block, write_dataset

LENGTHS = [[3, 1, 5], [4, 2], [6, 3]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> rlx.Dataset:
    blocks, first = [], 0
    for lengths in LENGTHS:
        blocks.append([make_block(lengths, first_episode=first)])
        first += len(lengths)
    path = tmp_path_factory.mktemp("selection") / "data"
    write_dataset(path, blocks)
    return rlx.open(path)


@given(ids=st.lists(st.integers(-7, 6), max_size=10), stack=st.integers(1, 3))
def test_steps_are_those_of_the_trajectories_in_the_order_given(data: rlx.Dataset, ids: list[int], stack: int) -> None:
    some = data.select(ids)
    assert [trajectory["observation"].tolist() for trajectory in some] == [
        data.trajectory(number)["observation"].tolist() for number in ids
    ]
    assert some.trajectories.episode.tolist() == [number % 7 for number in ids]
    expected = [data.trajectory(number) for number in ids]
    if not expected:
        assert len(some) == 0
        return
    steps: Any = concatenated(expected)
    for key in ("observation", ("next", "observation"), "action", ("next", "terminated")):
        assert torch.equal(some[:][key], steps[key]), key
    assert some[:]["collector", "traj_ids"].tolist() == [
        place for place, trajectory in enumerate(expected) for _ in range(len(trajectory))
    ]
    blocks = list(some.blocks(4))
    assert np.concatenate([block.data["action"] for block in blocks]).tolist() == steps["action"].tolist()
    buffer = ReplayBuffer(storage=some, transform=FrameStack(stack))
    for place, step in enumerate(buffer[:]["observation"]):
        trajectory = int(some[place]["collector", "traj_ids"])
        begin = int(some.trajectories.start[trajectory])
        rows = [max(begin, place - back) for back in range(stack - 1, -1, -1)]
        assert torch.equal(step, some[rows]["observation"])


@given(ids=st.lists(st.integers(0, 6), min_size=1, max_size=7), again=st.lists(st.integers(0, 6), max_size=5))
def test_selections_of_selections(data: rlx.Dataset, ids: list[int], again: list[int]) -> None:
    some = data.select(ids)
    again = [number % len(ids) for number in again]
    assert some.select(again).trajectories.episode.tolist() == [ids[number] for number in again]
    kept = some.filter("length > 2 and shard != 1 and id != 0")
    assert kept.trajectories.episode.tolist() == [
        number
        for place, number in enumerate(ids)
        if data.trajectories.length[number] > 2 and number not in (3, 4) and place
    ]
    moved = pickle.loads(pickle.dumps(kept))
    assert moved.trajectories.episode.tolist() == kept.trajectories.episode.tolist()


def test_masks_slices_and_what_is_no_trajectory(data: rlx.Dataset) -> None:
    assert data.select(data.trajectories.length > 3).trajectories.length.tolist() == [5, 4, 6]
    assert data.select(slice(None, None, -3)).trajectories.episode.tolist() == [6, 3, 0]
    assert data.select(torch.tensor([2])).trajectories.length.tolist() == [5]
    with pytest.raises(IndexError, match="trajectory 7 is out of range: the dataset has 7 trajectories"):
        data.select([0, 7])
    with pytest.raises(IndexError, match="boolean mask of 2 trajectories: expected 7"):
        data.select([True, False])


def test_a_selection_is_written_in_storage_order(data: rlx.Dataset, tmp_path: Path) -> None:
    some = data.select([5, 0, 1])
    made = some.preprocess(tmp_path / "made", num_workers=1)
    assert made.trajectories.episode.tolist() == [0, 1, 5]
    assert made.manifest.lineage[-1]["recipe"]["transforms"] == ["trajectories:0-1,5"]
    assert some.filter("length > 1").preprocess(tmp_path / "other", num_workers=1).trajectories.length.tolist() == [
        3,
        6,
    ]
    with pytest.raises(TransformError, match="trajectory 5 is selected several times"):
        data.select([5, 5]).preprocess(tmp_path / "twice")
    with pytest.raises(DatasetError, match="is not on disk"):
        some.export(tmp_path / "some.npz", "npz")


def test_slices_of_a_selection_stay_in_its_trajectories(data: rlx.Dataset) -> None:
    some = data.select([5, 2, 2])
    buffer = ReplayBuffer(storage=some, sampler=SliceSampler(slice_len=3, seed=0), batch_size=60)
    first = buffer.sample()["observation"][:, 0].reshape(-1, 3)
    assert torch.equal(first - first[:, :1], torch.arange(3).expand(20, 3).int())
    assert {*(first // 1000).flatten().tolist()} == {2, 5}


values = st.lists(st.sampled_from([-1.5, 0.0, -0.0, 2.0, 2.5, math.inf, -math.inf, math.nan]), min_size=1, max_size=9)


@given(returns=values, part=st.data())
def test_the_largest_are_exact(data: rlx.Dataset, returns: list[float], part: st.DataObject) -> None:
    table = data.trajectories.pick(np.arange(len(returns)) % 7)
    amount = part.draw(st.integers(1, len(returns)) | st.floats(0.01, 1))
    count = max(1, math.floor(Fraction(repr(amount)) * len(returns))) if isinstance(amount, float) else amount

    def is_before(one: int) -> tuple[Any, ...]:
        value = returns[one]
        return (True, 0, one) if math.isnan(value) else (False, -value, one)

    assert largest(table, amount, np.array(returns)).tolist() == sorted(range(len(returns)), key=is_before)[:count]


def test_the_top_of_a_dataset(data: rlx.Dataset) -> None:
    assert data.top(3).trajectories.episode.tolist() == [5, 2, 3]  # every reward is 1
    assert data.top(5, by="length").trajectories.episode.tolist() == [5, 2, 3, 0, 6]  # two of three steps
    assert data.top(1.0, by=-data.trajectories.length).trajectories.length.tolist() == [1, 2, 3, 3, 4, 5, 6]
    assert len(data.top(0.01).trajectories) == 1
    assert data.filter("length < 5").top(2).trajectories.episode.tolist() == [3, 0]
    assert largest(data.trajectories, 2, np.array([2**62, 2**62 + 1, 0, 0, 0, 0, 0])).tolist() == [1, 0]
    for amount, by, problem in (
        (0, "return", "amount 0: expected at least 1"),
        (8, "return", "expected at most 7"),
        (1.5, "return", "expected 0 to 1"),
        (0.0, "return", "expected more than 0"),
        (1, "size", "column 'size' is unknown: expected one of length, return"),
        (1, [1.0, 2.0], r"float64\[2\]: expected a column, or a number for each of 7"),
    ):
        with pytest.raises(OptionError, match=problem):
            data.top(amount, by=by)


@given(numbers=st.sets(st.integers(0, 40)))
def test_numbers_as_text(numbers: set[int]) -> None:
    table = Trajectories(*(np.zeros(41, kind) for kind in ("i8", "f8", "i8", *["?"] * 5)))
    text = numbered(np.array(sorted(numbers)[::-1], np.int64))
    assert np.flatnonzero(Numbered(text).keeps(table, np.zeros(41, np.int64))).tolist() == sorted(numbers)


@pytest.mark.parametrize("text", ["3-1", "2,2", "1-3,3", "a", "1,", "-1", "1" * 30])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(TransformError, match=r"trajectories .*: expected"):
        Numbered(text)
