from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlx.block import Block
from rlx.schema import Role
from rlx.store.dataset import Dataset
from tests.factories import LARGE, make_block, write_dataset


@pytest.fixture(scope="module", params=["zarr", "memmap", "zstd:chunk=4"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    store, codec = {"zarr": ("zarr", "zstd-dict"), "memmap": ("memmap", "none")}.get(
        request.param, ("zarr", request.param)
    )
    shards = [[make_block((3, 5, 1, 7, 2), schema=LARGE)]]
    return write_dataset(tmp_path_factory.mktemp("d") / "d", shards, schema=LARGE, store=store, codec=codec)


def rows_of(dataset: Dataset, chosen: list[int], steps: int | None) -> tuple[list[int], list[int], list[int]]:
    """Observations, actions and lengths of some trajectories, one step at a time."""
    table = dataset.trajectories
    observations, actions, lengths = [], [], []
    left = 10**9 if steps is None else steps
    for number in chosen:
        length = min(int(table.length[number]), left)
        left -= length
        if length:
            lengths.append(length)
            observations += [1000 * number + t for t in range(length + 1)]
            actions += list(range(length))
    return observations, actions, lengths


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(0, 4)), st.integers(1, 20), st.none() | st.integers(0, 20))
def test_some_trajectories(dataset: Dataset, chosen: set[int], max_steps: int, steps: int | None) -> None:
    numbers = np.array(sorted(chosen), np.int64)
    blocks = list(dataset.shard_blocks(0, max_steps, trajectories=numbers, steps=steps))
    observations, actions, lengths = rows_of(dataset, sorted(chosen), steps)
    for block in blocks:
        block.check(LARGE)
        assert 1 <= block.steps <= max_steps
    assert [int(row[0, 0]) for block in blocks for row in block.data["observation"]] == observations
    assert [int(row) for block in blocks for row in block.data["action"]] == actions
    assert joined_lengths(blocks) == lengths
    assert all(block.final_recorded.all() for block in blocks)


def joined_lengths(blocks: list[Block]) -> list[int]:
    lengths: list[int] = []
    is_open = False
    for block in blocks:
        for length in block.lengths.tolist():
            if is_open:
                lengths[-1] += length
            else:
                lengths.append(length)
            is_open = False
        is_open = block.is_open
    assert not is_open
    return lengths


def test_a_cut_trajectory_has_no_flags_and_its_final_observation(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", [[make_block((4,))]])
    (block,) = dataset.shard_blocks(0, 4096, steps=2)
    assert block.data["observation"][:, 0].tolist() == [0, 1, 2]
    assert not block.data["terminated"].any()
    assert (block.lengths.tolist(), block.is_open, block.closed) == ([2], False, 1)
    assert block.data[dataset.schema.names(Role.OBSERVATION)[0]].shape[0] == 3
