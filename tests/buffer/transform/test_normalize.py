"""Normalization of batches agrees with that of datasets, and with means worked out by hand."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rlx
from rlx.buffer import FrameStack, Normalize, ReplayBuffer
from rlx.errors import TransformError
from rlx.manifest import Manifest
from rlx.schema import Field, Role, Schema
from rlx.store.dataset import Dataset
from rlx.store.statistics import Moments
from tests.factories import make_block, write_dataset

SCHEMA = Schema.of(observation=("float32", (3,)), action=("float32", (2,)))
PICTURES = Schema(
    {
        "observation/camera": Field("uint8", (3, 6, 5), Role.OBSERVATION),
        "observation/depth": Field("float64", (6, 5), Role.OBSERVATION),
        **{name: field for name, field in SCHEMA.fields.items() if name != "observation"},
    }
)


def write(path: Path, schema: Schema = SCHEMA) -> Dataset:
    block, random = make_block((30, 50), schema=schema), np.random.default_rng(0)
    for name, field in schema.fields.items():
        if field.role == Role.OBSERVATION or name == "action":
            scale = np.arange(1, 1 + field.shape[0]).reshape(-1, *[1] * (len(field.shape) - 1))
            rows = random.normal(100, 10, (len(block.data[name]), *field.shape)) * scale / field.shape[0]
            block.data[name] = rows.astype(field.dtype)  # type: ignore[index]
    return write_dataset(path, [[block]], schema=schema)


@pytest.mark.parametrize("schema", [SCHEMA, PICTURES])
def test_batches_are_normalized_as_the_dataset_is(tmp_path: Path, schema: Schema) -> None:
    data = write(tmp_path / "data", schema)
    rlx.preprocess(data.path, tmp_path / "normal", transform="normalize", num_workers=1)
    expected = rlx.open(tmp_path / "normal")[:]
    found = ReplayBuffer(storage=data, transform=Normalize(data))[:]
    loaded = next(iter(rlx.loader(data, len(data), shuffle=False, transform=Normalize(data.path))))
    for name in schema.names(Role.OBSERVATION):
        path = tuple(name.split("/"))
        for key in (path, ("next", *path)):
            torch.testing.assert_close(found[key], expected[key])
            assert torch.equal(found[key], loaded[key])
        parts = found[path].transpose(0, 1).flatten(1) if schema[name].shape[0] == 3 else found[path].reshape(1, -1)
        torch.testing.assert_close(parts.mean(1), torch.zeros(len(parts)).to(parts), atol=1e-4, rtol=0)
        torch.testing.assert_close(parts.std(1, correction=0), torch.ones(len(parts)).to(parts), atol=1e-4, rtol=0)


def test_stacks_and_vectors_of_actions(tmp_path: Path) -> None:
    data = write(tmp_path / "data")
    transforms = FrameStack(4), Normalize(data, keys=["observation", "action"])
    buffer = ReplayBuffer(storage=data, transform=transforms[0]).append_transform(transforms[1])
    plain = data[:]
    found = buffer[:]
    last = (plain["observation"] - plain["observation"].mean(0)) / plain["observation"].std(0, correction=0)
    torch.testing.assert_close(found["observation"][:, -1], last, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found["action"].std(0, correction=0), torch.ones(2), atol=1e-4, rtol=0)


def test_given_numbers() -> None:
    batch = TensorDict(
        {"a": {"b": torch.tensor([[1, 2], [3, 6]])}, "next": {"a": {"b": torch.ones(2, 2).double()}}}, [2]
    )
    found = Normalize({("a", "b"): {"mean": torch.tensor([1.0, 2.0]), "std": [2, 0]}}, eps=0.5)(batch)
    assert found["a", "b"].tolist() == [[0.0, 0.0], [1.0, 8.0]]
    assert found["a", "b"].dtype == torch.float32
    assert found["next", "a", "b"].tolist() == [[0.0, -2.0]] * 2
    assert found["next", "a", "b"].dtype == torch.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"a": {"mean": 0}},), "a has no mean and std"),
        (({"a": {"mean": 0, "std": 1}}, ["b"]), "b has no mean and std"),
        (({}, (), 0), "eps is 0"),
        (({}, (), -1), "eps is -1"),
    ],
)
def test_what_is_missing(arguments: Any, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        Normalize(*arguments)


def test_fields_without_a_mean(tmp_path: Path) -> None:
    data = write(tmp_path / "data")
    with pytest.raises(TransformError, match="the manifest has no mean of terminated"):
        Normalize(data, ["terminated"])
    with pytest.raises(TransformError, match="unknown field 'pixels'"):
        Normalize(data, "pixels")


def test_a_manifest_of_rlx_0_1_0_has_one_number_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write(tmp_path / "data")
    rows = np.concatenate([block.data["observation"] for block in data.blocks()])
    (shard,) = data.manifest.shards
    joint = {**shard.statistics, "observation": Moments.of(rows).to_json()}
    replace(data.manifest, shards=[replace(shard, statistics=joint)]).save(data.path)
    old = rlx.open(data.path)
    assert Manifest.load(data.path).shards[0].statistics["observation"]["count"] == rows.size
    assert old.stats["observation"]["mean"] == pytest.approx(rows.mean())
    with caplog.at_level(logging.WARNING):
        found = ReplayBuffer(storage=old, transform=Normalize(old))[:]["observation"]
    assert "observation has one mean for all its 3 parts, as rlx 0.1.0 wrote it" in caplog.text
    torch.testing.assert_close(found, (old[:]["observation"] - rows.mean()) / rows.std(), rtol=1e-4, atol=1e-4)
    rlx.preprocess(old.path, tmp_path / "copy", transform="scale_reward:scale=1", num_workers=1)
    assert len(rlx.open(tmp_path / "copy").stats["observation"]["mean"]) == 3
