"""Datasets made of others by the library."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import rlx
from rlx.errors import TransformError
from rlx.transform.images import Resize
from tests.transform import functions


def test_transforms_and_a_function(pong: Path, tmp_path: Path) -> None:
    data = rlx.open(pong)
    offset = 5

    def function(steps: Any) -> Any:
        return steps.set("score", steps["next", "reward"][:, 0] + offset)

    made = data.preprocess(
        tmp_path / "made", function, transforms=["filter:length > 100", Resize(42, 42)], steps=300, num_workers=1
    )
    assert isinstance(made, rlx.Dataset)
    assert len(made) == 300
    long = torch.from_numpy(data.trajectories.length > 100).nonzero().flatten()
    first = data[int(data.trajectories.start[long[0]])]
    assert made[0]["score"] == first["next", "reward"][0] + 5
    assert made[0]["observation"].shape == (42, 42)
    assert made.manifest.lineage[-1]["recipe"]["transforms"][:2] == ["filter:length > 100", "resize:height=42,width=42"]


def test_a_function_of_this_process_by_workers(pong: Path, tmp_path: Path) -> None:
    data = rlx.open(pong)
    factor = 3
    made = data.preprocess(
        tmp_path / "made", lambda steps: steps.set("action", steps["action"] * factor), num_workers=2, codec="lz4"
    )
    assert torch.equal(made[:]["action"], data[:]["action"] * 3)
    assert made.manifest.codec["name"] == "lz4"


def test_a_function_by_its_name(pong: Path, tmp_path: Path) -> None:
    data = rlx.open(pong)
    name = f"{functions.__name__}:without_every_third"
    made = data.preprocess(tmp_path / "made", name, per="trajectory", num_workers=1, store="memmap")
    assert len(made) == sum(1 for step in range(len(data)) if step % 3 != 2)
    with pytest.raises(TransformError, match="is unknown: did you mean resize"):
        data.preprocess(tmp_path / "other", transforms=["resise"])


def test_it_is_still_one_after_a_journey(pong: Path) -> None:
    data = rlx.open(pong)
    assert type(data) is rlx.Dataset
    assert type(pickle.loads(pickle.dumps(data))) is rlx.Dataset
