"""Steps with others before and after them, beside a slow and obvious reading."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NestedKey
from torch.utils.data import DataLoader

import rlx
from rlx.errors import OptionError, SchemaMismatchError
from rlx.integrations.lerobot import TimeWindows
from rlx.schema import TEXT, Field, Role, Schema
from rlx.testing.dataset_exporter import random_block
from tests.factories import numbered_dataset, write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> rlx.Dataset:
    path = tmp_path_factory.mktemp("windows") / "data"
    numbered_dataset(path, (4, 1, 7))
    return rlx.open(path)


@settings(max_examples=30, deadline=None)
@given(offsets=st.lists(st.integers(-9, 9), min_size=1, max_size=4), step=st.integers(-12, 11))
def test_times_outside_of_the_trajectory_are_padded(dataset: rlx.Dataset, offsets: list[int], step: int) -> None:
    deltas: dict[NestedKey, list[float]] = {
        "observation": [offset / 30 for offset in offsets],
        ("next", "reward"): [0.0],
    }
    found = TimeWindows(dataset, deltas, fps=30)[step]
    row = step % len(dataset)
    ids = dataset[:]["collector", "traj_ids"].flatten()
    same = np.flatnonzero(ids == ids[row])
    for place, offset in enumerate(offsets):
        nearest = min(same, key=lambda other: abs(other - row - offset))
        assert torch.equal(found["observation"][place], dataset[int(nearest)]["observation"])
        assert bool(found["observation_is_pad"][place]) == (row + offset not in same)
    assert torch.equal(found["next.reward"][0], dataset[row]["next", "reward"])
    assert torch.equal(found["action"], dataset[row]["action"])


def test_a_dataloader_batches_windows(dataset: rlx.Dataset) -> None:
    windows = TimeWindows(dataset, {"action": [0.0, 0.5]}, fps=2)
    batch = next(iter(DataLoader(windows, batch_size=5)))
    assert batch["action"].shape[:2] == (5, 2)
    assert torch.equal(batch["action"][3], torch.stack([windows[3]["action"][0], windows[3]["action"][1]]))
    assert len(windows) == len(dataset)


def test_the_indices_of_the_caller_stay(dataset: rlx.Dataset) -> None:
    indices = np.array([-1, 3])
    last, _ = TimeWindows(dataset, {}, fps=10).__getitems__(indices)  # type: ignore[arg-type]
    assert torch.equal(last["observation"], dataset[-1]["observation"])
    assert indices.tolist() == [-1, 3]


def test_texts_come_along(tmp_path: Path) -> None:
    schema = Schema.of(observation=("float32", (2,)), action=("int64", ()))
    schema = Schema({**schema.fields, "task": Field(TEXT, (), Role.STEP)})
    write_dataset(tmp_path / "data", [[random_block(schema)]], schema=schema)
    windows, steps = TimeWindows(tmp_path / "data", {"action": [0.0]}, fps=1), rlx.open(tmp_path / "data")
    assert [windows[row]["task"] for row in range(3)] == [steps[row]["task"] for row in range(3)]
    assert len(next(iter(DataLoader(windows, batch_size=3)))["task"]) == 3
    with pytest.raises(OptionError, match="task, a text"):
        TimeWindows(tmp_path / "data", {"task": [0.0]}, fps=1)


def test_wrong_times_and_keys_are_named(dataset: rlx.Dataset) -> None:
    with pytest.raises(OptionError, match=r"0\.05 s: expected a multiple of 1/10 s"):
        TimeWindows(dataset, {"action": [0.1, 0.05]}, fps=10)
    with pytest.raises(SchemaMismatchError, match=r"no observation\.state"):
        TimeWindows(dataset, {("observation", "state"): [0.0]}, fps=10)
    with pytest.raises(IndexError, match="step 12 is out of range for 12 steps"):
        TimeWindows(dataset, {}, fps=10).__getitems__([3, 12])
