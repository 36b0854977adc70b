"""A dataset that was preprocessed holds what sampling makes of the original with the transform of the same job."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlx
from rlx import buffer
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.schema import Field, Role, Schema
from rlx.store.dataset import Dataset
from rlx.transform.registry import TRANSFORMS as TRANSFORMS_BY_NAME
from rlx.transform.registry import described, parse
from tests.factories import SMALL, make_block, write_dataset

TRANSFORMS = (
    "clip_reward:low=-0.5,high=2",
    "sign_reward",
    "scale_reward:scale=0.3,loc=1",
    "to_float:scale=7",
    "n_step:n=1,gamma=0.9",
    "n_step:n=3,gamma=0.9",
    "n_step:n=7,gamma=0.97",
    "n_step:n=400",
    "return_to_go:gamma=0.97",
    "return_to_go:gamma=0,key=extra/sum",
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Trajectories of one step and of hundreds, whose rewards are no round numbers."""
    block = make_block([4, 300, 1, 65, 64, 9])
    rng = np.random.default_rng(0)
    reward = rng.normal(size=block.steps).astype(np.float32)
    data = {**block.data, "reward": reward, "lives": np.arange(block.steps)}
    block = replace(block, data=data, final_recorded=np.ones(6, bool))
    schema = Schema({**SMALL.fields, "lives": Field("int64", (), Role.NEXT)})
    return write_dataset(tmp_path_factory.mktemp("like") / "d", [[block]], schema=schema)


@pytest.mark.parametrize("text", TRANSFORMS)
def test_preprocessed_as_sampled(text: str, dataset: Dataset, tmp_path: Path) -> None:
    transform: Any = parse(text)
    rlx.preprocess(dataset.path, tmp_path / "made", transform=transform, num_workers=1)
    stored = Dataset(tmp_path / "made")[:]
    sampled = ReplayBuffer(storage=DatasetStorage(dataset), transform=transform)[:]
    # Returns are summed in blocks that begin at the first step of a batch.
    rtol, atol = (1e-5, 1e-5) if text.startswith("return_to_go") else (0.0, 0.0)
    keys: Any = sampled.keys(True, True)
    assert set(keys) == set(stored.keys(True, True))
    for key in keys:
        if key not in ("index", ("collector", "traj_ids")):  # n_step numbers every transition as a trajectory
            torch.testing.assert_close(stored.get(key), sampled.get(key), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ["NStep", "RewardClip", "RewardSign", "ReturnToGo", "ToFloat"])
def test_buffers_and_datasets_have_one_transform(name: str) -> None:
    kind = getattr(buffer, name)
    assert issubclass(kind, tuple(TRANSFORMS_BY_NAME.values()))
    assert described(kind()) == next(name for name, known in TRANSFORMS_BY_NAME.items() if issubclass(kind, known))
