"""Where writers put steps."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase

from rlx.buffer.protocol import Rows, Storage
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.writer import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
)
from rlx.errors import SchemaMismatchError


def ranked(ranks: list[float]) -> TensorDict:
    return TensorDict(
        {
            "rank": torch.tensor(ranks, dtype=torch.float32),
            "next": {"done": torch.zeros(len(ranks), 1, dtype=torch.bool)},
        },
        [len(ranks)],
    )


def test_round_robin_goes_round() -> None:
    storage, writer = LazyTensorStorage(5), RoundRobinWriter()
    assert writer.extend(storage, ranked([0, 1, 2])).tolist() == [0, 1, 2]
    assert writer.cursor == 3
    assert writer.extend(storage, ranked([3, 4, 5])).tolist() == [3, 4, 0]
    assert (writer.cursor, writer.state_dict()) == (1, {"cursor": 1})
    storage.empty()
    writer.empty()
    assert writer.extend(storage, ranked([9])).tolist() == [0]


def test_another_writer_goes_on_where_the_storage_stands() -> None:
    storage = LazyTensorStorage(5)
    RoundRobinWriter().extend(storage, ranked([0, 1, 2]))
    assert RoundRobinWriter().extend(storage, ranked([3])).tolist() == [3]


class ListOfSteps(Storage):
    """A storage of one's own that does not say where it stands."""

    def __init__(self, max_size: int) -> None:
        self.max_size, self.ndim = max_size, 1
        self.steps: dict[int, TensorDictBase] = {}
        self.written = 0

    @property
    def lanes(self) -> int:
        return 1

    def __len__(self) -> int:
        return len(self.steps)

    def append(self, steps: TensorDictBase) -> Rows:
        rows = (self.written + np.arange(len(steps))) % self.max_size
        self.written += len(steps)
        self.steps |= dict(zip(rows.tolist(), steps.unbind(0), strict=True))
        return rows


def test_the_row_is_stored_as_index_in_a_storage_of_ones_own() -> None:
    storage: Any = ListOfSteps(5)  # type: ignore[abstract]
    writer = TensorDictRoundRobinWriter()
    for count in (2, 2, 3):
        writer.extend(storage, ranked([0] * count))
    assert {row: int(step["index"]) for row, step in storage.steps.items()} == {row: row for row in range(5)}


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_row_is_stored_as_index(lanes: int) -> None:
    storage, writer = LazyTensorStorage(lanes * 5, ndim=2), TensorDictRoundRobinWriter()
    for count in (2, 2, 4):
        steps = TensorDict({"a": torch.zeros(lanes, count)}, [lanes, count])
        rows = writer.extend(storage, steps)
        assert "index" not in steps.keys()  # noqa: SIM118
        assert storage.get(rows.reshape(-1))["index"].tolist() == rows.reshape(-1).tolist()


def test_a_row_that_is_a_trajectory_has_its_row_as_the_index_of_every_step() -> None:
    storage, writer = LazyTensorStorage(5), TensorDictRoundRobinWriter()
    for expected in ([0, 1], [2, 3], [4, 0]):
        rows = writer.extend(storage, TensorDict({"a": torch.zeros(2, 3)}, [2, 3]))
        assert rows.tolist() == expected
        assert storage.get(rows)["index"].tolist() == [[row] * 3 for row in expected]


def test_an_index_that_is_not_the_writers_own_cursor() -> None:
    storage = LazyTensorStorage(5)
    storage.append(TensorDict({"a": torch.zeros(3), "index": torch.arange(3)}, [3]))
    rows = TensorDictRoundRobinWriter().extend(storage, TensorDict({"a": torch.zeros(4)}, [4]))
    assert rows.tolist() == storage.get(rows)["index"].tolist() == [3, 4, 0, 1]


def test_an_immutable_dataset_is_not_written() -> None:
    storage = LazyTensorStorage(5)
    with pytest.raises(TypeError, match="read-only"):
        ImmutableDatasetWriter().extend(storage, ranked([1]))
    with pytest.raises(TypeError, match="read-only"):
        ImmutableDatasetWriter().empty()


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=12), min_size=1, max_size=6), st.integers(1, 8))
def test_the_highest_are_kept(writes: list[list[int]], max_size: int) -> None:
    storage, writer = LazyTensorStorage(max_size), TensorDictMaxValueWriter("rank")
    kept: list[int] = []
    for ranks in writes:
        rows = writer.extend(storage, ranked([float(rank) for rank in ranks]))
        kept = sorted([*kept, *ranks], reverse=True)[:max_size]
        stored = storage.get(np.arange(len(storage)))["rank"].tolist()
        assert sorted(stored, reverse=True) == kept
        assert [stored[row] for row, rank in zip(rows.tolist(), ranks, strict=True) if row >= 0] == [
            rank for row, rank in zip(rows.tolist(), ranks, strict=True) if row >= 0
        ]
        assert len(set(rows[rows >= 0].tolist())) == (rows >= 0).sum()


def test_what_took_the_place_of_another_is_no_part_of_its_trajectory() -> None:
    storage, writer = LazyTensorStorage(6), TensorDictMaxValueWriter("rank")
    writer.extend(storage, ranked([5, 6, 0, 7, 8, 9]))
    assert writer.extend(storage, ranked([1, 10, 2])).tolist() == [-1, 2, -1]
    assert storage.index().trajectories()[1].tolist() == [2, 1, 3]


def test_ranks_are_restored() -> None:
    storage, writer = LazyTensorStorage(3), TensorDictMaxValueWriter("rank")
    writer.extend(storage, ranked([3, 1, 2]))
    file = io.BytesIO()
    torch.save(writer.state_dict(), file)
    file.seek(0)
    other = TensorDictMaxValueWriter("rank")
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.extend(storage, ranked([1.5])).tolist() == [1]


def test_steps_without_a_rank() -> None:
    with pytest.raises(SchemaMismatchError, match="'rank' is missing"):
        TensorDictMaxValueWriter("rank").extend(LazyTensorStorage(3), ranked([1]).exclude("rank"))
    with pytest.raises(SchemaMismatchError, match="cannot rank"):
        TensorDictMaxValueWriter("rank").extend(LazyTensorStorage(3, ndim=2), ranked([1])[None])


def test_ranks_of_several_numbers_are_added_up() -> None:
    storage, writer = LazyTensorStorage(2), TensorDictMaxValueWriter()
    rewards = torch.tensor([[[1.0, 1.0]], [[5.0, -9.0]], [[0.0, 1.0]]])
    rows = writer.extend(storage, TensorDict({"next": {"reward": rewards}}, [3]))
    assert rows.tolist() == [0, -1, 1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("reduction", ["sum", "max", "min", "median", "mean"])
def test_several_ranks_of_a_step_are_reduced_as_in_torchrl(reduction: Any) -> None:
    peers = pytest.importorskip("torchrl.data", reason="torchrl is not installed")
    ranks = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    steps = TensorDict({"number": torch.arange(30), "rank": ranks}, [30])
    kept = []
    for buffers, storage, writer in (
        (peers.ReplayBuffer, peers.LazyTensorStorage(8), peers.TensorDictMaxValueWriter("rank", reduction)),
        (ReplayBuffer, LazyTensorStorage(8), TensorDictMaxValueWriter("rank", reduction)),
    ):
        buffer = buffers(storage=storage, writer=writer, batch_size=2)
        for start in (0, 10, 20):
            buffer.extend(steps[start : start + 10].clone())
        kept.append(sorted(buffer[:]["number"].tolist()))
    assert kept[0] == kept[1]


def test_a_reduction_is_one_of_five() -> None:
    with pytest.raises(ValueError, match="reduction 'last': expected one of sum, max, min, median, mean"):
        TensorDictMaxValueWriter("rank", "last")  # type: ignore[arg-type]


def test_ranks_are_forgotten_with_the_steps() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter("rank"))
    buffer.extend(ranked([5, 6]))
    buffer.empty()
    buffer.extend(ranked([1, 2]))
    assert buffer[:]["rank"].tolist() == [1, 2]
