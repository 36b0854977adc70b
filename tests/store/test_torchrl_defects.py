"""TorchRL 0.14.1's AtariDQNExperienceReplay returns wrong data in these ways; a dataset of rlx does not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rlx.store.dataset import Dataset
from tests.factories import LARGE, make_block, seen, write_dataset

# Three shards of two episodes each, of 3 and 5 steps; an observation is 1000 * episode + t.
TRUTH = [1000 * episode + t for episode in range(6) for t in range((3, 5)[episode % 2])]
ENDS = [step for step in range(24) if step == 23 or TRUTH[step + 1] % 1000 == 0]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    shards = [[make_block([3, 5], first_episode=2 * shard, schema=LARGE)] for shard in range(3)]
    return write_dataset(tmp_path / "data", shards, schema=LARGE)


def next_seen(dataset: Dataset, steps: list[int]) -> list[int]:
    numbers: list[int] = dataset[steps]["next", "observation"].flatten(1)[:, 0].to(torch.int64).tolist()
    return numbers


def test_c1_rows_come_in_the_order_of_the_indices(dataset: Dataset) -> None:
    steps = [22, 1, 14, 2, 22, 9]
    assert seen(dataset, steps) == [TRUTH[step] for step in steps]
    read = dataset[steps]
    assert read["index"].tolist() == steps
    assert read["action"].tolist() == [TRUTH[step] % 1000 for step in steps]
    assert read["next", "terminated"][:, 0].tolist() == [step in ENDS for step in steps]


@pytest.mark.parametrize("steps", [slice(0, 6), [3], [7, 8], slice(4, 20)], ids=str)
def test_c2_flags_have_one_shape_and_dtype(dataset: Dataset, steps: slice | list[int]) -> None:
    read = dataset[steps]
    count = read.batch_size[0]
    for key in ("done", "terminated", "truncated"):
        assert read[key].shape == read["next", key].shape == (count, 1)
        assert read[key].dtype == read["next", key].dtype == torch.bool
    assert read["next", "reward"].shape == (count, 1)
    assert torch.equal(read["next", "done"], read["next", "terminated"] | read["next", "truncated"])


def test_c3_an_episode_ends_with_its_own_last_step(dataset: Dataset) -> None:
    read = dataset[:]
    ids = read["collector", "traj_ids"]
    assert ids.tolist() == [number // 1000 for number in TRUTH]
    for trajectory in range(6):
        done = read["next", "done"][ids == trajectory, 0].tolist()
        assert done == [False] * (len(done) - 1) + [True]


def test_c5_no_slice_runs_on_from_one_shard_into_the_next(dataset: Dataset) -> None:
    edge = 8  # the first step of the second shard
    across = dataset[edge - 2 : edge + 2]
    assert across["collector", "traj_ids"].tolist() == [1, 1, 2, 2]
    assert across["next", "done"][:, 0].tolist() == [False, True, False, False]
    assert next_seen(dataset, [edge - 1]) == [1005]
    assert len(dataset) == len(TRUTH)


def test_c6_what_follows_the_last_step_is_of_its_own_episode(dataset: Dataset) -> None:
    following = [TRUTH[step] + 1 for step in ENDS]
    assert next_seen(dataset, ENDS) == following
    for step, number in zip(ENDS, following, strict=True):
        # One row or many, alone in its shard or not: the same.
        assert next_seen(dataset, [step]) == [number]
        assert int(dataset[step]["next", "observation"].flatten()[0]) == number
        assert next_seen(dataset, [step, step]) == [number, number]


def test_c7_slices_across_shards_stay_whole_and_in_order(dataset: Dataset) -> None:
    slices = [*range(20, 24), *range(6, 10), *range(14, 18)]
    assert seen(dataset, slices) == [TRUTH[step] for step in slices]
    assert next_seen(dataset, slices) == [TRUTH[step] + 1 for step in slices]


def test_c8_a_missing_shard_moves_no_step(tmp_path: Path) -> None:
    shards = [
        [make_block([3, 5], first_episode=0, schema=LARGE)],
        [],
        [make_block([3, 5], first_episode=4, schema=LARGE)],
    ]
    dataset = write_dataset(tmp_path / "data", shards, schema=LARGE)
    assert seen(dataset, range(16)) == TRUTH[:8] + TRUTH[16:]
    assert dataset.trajectories.episode.tolist() == [0, 1, 4, 5]
    assert dataset.shard_names == ["00000", "00002"]


def test_c15_every_kind_of_index(dataset: Dataset) -> None:
    truth = np.array(TRUTH)
    mask = truth % 1000 == 2
    for index in (np.array([3, -1]), slice(-5, None), slice(20, 2, -3), mask, np.flatnonzero(mask), slice(None)):
        for kind in {type(index): index, torch.Tensor: index}:
            wanted = torch.as_tensor(index) if kind is torch.Tensor and not isinstance(index, slice) else index
            read = dataset[wanted]
            assert read["observation"].flatten(1)[:, 0].to(torch.int64).tolist() == truth[index].tolist()
            assert read["index"].tolist() == np.arange(24)[index].tolist()
    assert int(dataset[-24]["observation"].flatten()[0]) == 0
    assert dataset[-1]["index"].item() == 23
