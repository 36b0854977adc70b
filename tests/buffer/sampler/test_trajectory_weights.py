"""Weights by trajectory: in samplers and loaders, steps and slices have the probabilities that a loop adds up."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx.buffer import LazyTensorStorage, RandomSampler, ReplayBuffer, SliceSampler
from rlx.buffer.sampler.trajectory_weights import TrajectoryDraws
from rlx.errors import OptionError, SamplingError
from rlx.store.dataset import Dataset
from tests.buffer.sampler.chance import drawn_like
from tests.factories import make_block, write_dataset

LENGTHS = [3, 1, 5, 4, 2]
WEIGHTS = [1.0, 2.5, 0.0, 4.0, 1.5]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    blocks = [[make_block(LENGTHS[:2])], [make_block(LENGTHS[2:], first_episode=2)]]
    return write_dataset(tmp_path_factory.mktemp("weights") / "data", blocks)


def ring(data: Dataset) -> LazyTensorStorage:
    storage = LazyTensorStorage(40)
    ReplayBuffer(storage=storage).extend(data[:])
    return storage


def expected(weights: Any, slice_len: int = 1) -> dict[int, float]:
    """The probability of each first row, up to a factor."""
    chances, start = {}, 0
    for length, weight in zip(LENGTHS, weights, strict=True):
        for place in range(length - slice_len + 1):
            chances[start + place] = weight / (length - slice_len + 1)
        start += length
    return chances


@pytest.mark.parametrize("stored", ["dataset", "ring"])
@pytest.mark.parametrize("weights", [WEIGHTS, "length"])
def test_samplers(data: Dataset, stored: str, weights: Any) -> None:
    numbers = LENGTHS if weights == "length" else weights
    storage = data if stored == "dataset" else ring(data)
    for slice_len in (1, 3):
        sampler: Any = RandomSampler(trajectory_weights=weights, seed=1)
        if slice_len > 1:
            sampler = SliceSampler(slice_len=slice_len, trajectory_weights=weights, seed=1)
        buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=300)
        batches = [buffer.sample() for _ in range(20)]
        rows = torch.stack([batch["index"] if stored == "dataset" else _rows(batch) for batch in batches])
        assert drawn_like(rows.reshape(-1, slice_len)[:, 0], expected(numbers, slice_len))
        fresh: Any = pickle.loads(pickle.dumps(sampler))
        fresh.load_state_dict({"draws": sampler.state_dict()["draws"] | {"number": 0}})
        for taken in rows:  # planned together, or one by one
            assert taken.tolist() == fresh.sample(buffer.storage, 300)[0].tolist()


def _rows(batch: Any) -> torch.Tensor:
    episode, step = batch["observation"][:, 0] // 1000, batch["observation"][:, 0] % 1000
    rows: torch.Tensor = torch.tensor(np.cumsum([0, *LENGTHS]))[episode] + step
    return rows.long()


@pytest.mark.parametrize("slice_len", [None, 2])
@pytest.mark.parametrize("kind", ["dataset", "buffer"])
def test_loaders(data: Dataset, kind: str, slice_len: int | None) -> None:
    source = data if kind == "dataset" else ReplayBuffer(storage=ring(data))
    loader = rlx.loader(
        source, 200, slice_len=slice_len, trajectory_weights=WEIGHTS, replacement=True, batches=20, seed=3
    )
    rows = torch.cat([_rows(batch.reshape(-1)) for batch in loader])
    assert drawn_like(rows.reshape(-1, slice_len or 1)[:, 0], expected(WEIGHTS, slice_len or 1))


def test_loaders_of_several_sources(data: Dataset, tmp_path: Path) -> None:
    other = write_dataset(tmp_path / "other", [[make_block([2, 2], first_episode=7)]])
    loader = rlx.loader(
        [data, other],
        200,
        weights=[3, 1],
        trajectory_weights=[WEIGHTS, None],
        replacement=True,
        batches=20,
    )
    batches = list(loader)
    of = torch.cat([batch["collector", "dataset"] for batch in batches])
    index = torch.cat([batch["index"] for batch in batches])
    assert drawn_like(of, {0: 3, 1: 1})
    assert drawn_like(index[of == 0], expected(WEIGHTS))
    assert drawn_like(index[of == 1], dict.fromkeys(range(4), 1))
    by_column = rlx.loader([data, other], 100, trajectory_weights="length", replacement=True, batches=40)
    of = torch.cat([batch["collector", "dataset"] for batch in by_column])
    assert drawn_like(of, {0: 15, 1: 4})


@given(cut=st.integers(0, 5), ranks=st.sampled_from([1, 2]), slice_len=st.sampled_from([None, 2]))
def test_loaders_resume_to_the_bit(data: Dataset, cut: int, ranks: int, slice_len: int | None) -> None:
    options: Any = {"slice_len": slice_len, "trajectory_weights": WEIGHTS, "replacement": True, "batches": 6}
    whole = [batch["index"] for batch in rlx.loader(data, 16, prefetch=0, **options)]
    first = rlx.loader(data, 16, prefetch=0, **options)
    batches = iter(first)
    for _ in range(cut):
        next(batches)
    parts = []
    for rank in range(ranks):
        again = rlx.loader(data, 16, prefetch=0, rank=rank, world_size=ranks, **options)
        again.load_state_dict(first.state_dict())
        parts.append([batch["index"] for batch in again])
    assert [torch.cat(batch).tolist() for batch in zip(*parts, strict=True)] == [b.tolist() for b in whole[cut:]]
    with pytest.raises(SamplingError, match="state of trajectory_weights"):
        rlx.loader(data, 16, **options | {"trajectory_weights": "length"}).load_state_dict(first.state_dict())


def test_a_live_buffer_counts_its_trajectories_anew(data: Dataset) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=RandomSampler(trajectory_weights="length", seed=0))
    buffer.extend(data[:9])
    assert buffer.sample(500)["observation"][:, 0].unique().tolist() == [0, 1, 2, 1000, 2000, 2001, 2002, 2003, 2004]
    buffer.extend(data[9:13])  # over the first two trajectories
    assert {*(buffer.sample(500)["observation"][:, 0] // 1000).tolist()} == {2, 3}
    loader = rlx.loader(buffer, 500, trajectory_weights="length", replacement=True, batches=1)
    assert {*(next(iter(loader))["observation"][:, 0] // 1000).tolist()} == {2, 3}
    buffer.extend(data[13:])
    assert {*(next(iter(loader))["observation"][:, 0] // 1000).tolist()} == {2, 3, 4}


def test_weights_that_do_not_suit(data: Dataset) -> None:
    for weights, problem in (
        ([1.0, 2.0], r"float64\[2\]: expected a column, or a number for each of 5"),
        ([1, 1, -1, 1, 1], "trajectory_weights -1.0: expected finite numbers of at least 0"),
        ([1, 1, np.nan, 1, 1], "trajectory_weights nan: expected finite numbers"),
        ("size", "column 'size' is unknown"),
    ):
        with pytest.raises(OptionError, match=problem):
            RandomSampler(trajectory_weights=weights).sample(ReplayBuffer(storage=data).storage, 3)
        with pytest.raises(OptionError, match=problem):
            rlx.loader(data, 5, trajectory_weights=weights, replacement=True)
    with pytest.raises(SamplingError, match="no trajectory that can be drawn has a weight above 0"):
        rlx.loader(data, 5, slice_len=5, trajectory_weights=WEIGHTS, replacement=True)
    with pytest.raises(SamplingError, match="no trajectory that can be drawn has a weight"):
        ReplayBuffer(storage=data, sampler=SliceSampler(slice_len=5, trajectory_weights=WEIGHTS)).sample(5)
    with pytest.raises(SamplingError, match="expected 'length' or an array"):
        ReplayBuffer(storage=ring(data), sampler=RandomSampler(trajectory_weights="return")).sample(5)
    with pytest.raises(OptionError, match=r"trajectory_weights \[1\]: expected one of 5 trajectories each"):
        ReplayBuffer(storage=ring(data), sampler=RandomSampler(trajectory_weights=[1])).sample(5)
    with pytest.raises(OptionError, match="expected replacement=True"):
        rlx.loader(data, 5, trajectory_weights="length")
    with pytest.raises(OptionError, match="of 1 sources: expected those of 2"):
        rlx.loader([data, data], 5, trajectory_weights=["length"], replacement=True)
    with pytest.raises(ValueError, match="expected none beside trajectory_weights"):
        SliceSampler(slice_len=2, weighting="trajectory", trajectory_weights="length")


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-300, 0.5, 1.0, 3.0, 1e300, 1.7e308]), min_size=1, max_size=8),
    counts=st.data(),
)
def test_only_elements_of_trajectories_with_weights(weights: list[float], counts: st.DataObject) -> None:
    steps = np.array(counts.draw(st.lists(st.integers(0, 3), min_size=len(weights), max_size=len(weights))))
    usable = [n for n, weight in enumerate(weights) if weight and steps[n]]
    if not usable:
        with pytest.raises(SamplingError):
            TrajectoryDraws(np.array(weights), steps)
        return
    draws = TrajectoryDraws(np.array(weights), steps)
    edges = np.array([0.0, 0.3, 0.5, 1 - 2.0**-53])
    owner = np.repeat(np.arange(len(weights)), steps)
    elements = draws.elements(edges, edges[::-1])
    assert {*owner[elements].tolist()} <= {*usable}
    assert owner[elements].tolist() == draws.of(edges).tolist()
