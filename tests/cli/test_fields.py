"""Every verb hands on every field: what a policy wrote, infos, texts and exact rewards, whatever their names."""

import json
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.block import Block
from rlx.schema import Field, Role, Schema
from rlx.store.dataset import Dataset
from rlx.store.verification import verify
from tests.conftest import Cli
from tests.contracts.store import assert_same_block, blocks_as_one
from tests.factories import TEXT, join, make_block, write_dataset

FIELDS = Schema(
    {
        **TEXT.fields,
        "reward": Field("float64", (), Role.NEXT),
        "action_log_prob": Field("float32", (), Role.STEP),
        "params/loc": Field("float32", (2,), Role.STEP),
        "params/scale": Field("float16", (2,), Role.STEP),
        "info/lives": Field("int64", (), Role.NEXT),
        "info/box": Field("uint8", (2, 3), Role.NEXT),
        "hidden": Field("float32", (4,), Role.NEXT),
    }
)
EXACT = 16777217.1  # a reward that float32 does not hold


def recorded(lengths: list[int], first: int) -> Block:
    block = make_block(lengths, first_episode=first, schema=FIELDS)
    return Block(
        {**block.data, "reward": np.full(block.steps, EXACT)},
        block.lengths,
        block.episodes,
        block.from_reset,
        block.final_recorded,
    )


SHARDS = [[recorded([3, 5, 4], 0)], [recorded([6, 2], 3)]]


@pytest.fixture
def source(tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path / "source", SHARDS, schema=FIELDS)


def whole(path: Path) -> Block:
    dataset = Dataset(path)
    assert dataset.schema == FIELDS
    assert verify(path).ok
    return blocks_as_one(list(dataset.blocks()), FIELDS)


@pytest.mark.parametrize(
    "command",
    [
        ("convert", "SOURCE", "OUT", "--to", "memmap"),
        ("convert", "SOURCE", "OUT", "--codec", "none"),
        ("preprocess", "SOURCE", "OUT", "--transform", "filter:length > 0"),
        ("preprocess", "SOURCE", "OUT", "--fn", "tests.transform.functions:same"),
        ("preprocess", "SOURCE", "OUT", "--transform", "rename:task=goal", "--transform", "rename:goal=task"),
        ("merge", "SOURCE", "-o", "OUT"),
        ("merge", "SOURCE", "-o", "OUT", "--to", "memmap"),
    ],
    ids=lambda command: " ".join(command[:1] + command[3:]),
)
def test_a_verb_that_changes_nothing(cli: Cli, source: Dataset, tmp_path: Path, command: tuple[str, ...]) -> None:
    names = {"SOURCE": source.path, "OUT": tmp_path / "out"}
    result = cli(*(names.get(word, word) for word in command))
    assert result.code == 0, result.err
    assert_same_block(whole(tmp_path / "out"), join([block for shard in SHARDS for block in shard]))


def test_split_and_merge_give_the_same_again(cli: Cli, source: Dataset, tmp_path: Path) -> None:
    parts = [tmp_path / "one", tmp_path / "two"]
    result = cli("split", source.path, "--fractions", "0.5,0.5", "-o", parts[0], "-o", parts[1])
    assert result.code == 0, result.err
    found = {}
    for part in parts:
        dataset = Dataset(part)
        assert (dataset.schema, verify(part).ok) == (FIELDS, True)
        for number, start in enumerate(dataset.trajectories.start.tolist()):
            first = dataset[start]
            found[int(dataset.trajectories.episode[number])] = (first["task"], first["next", "info", "lives"].item())
    assert found == {episode: (f"task {episode}", 1000 * episode) for episode in range(5)}
    assert cli("merge", *parts, "-o", tmp_path / "again").code == 0
    again = Dataset(tmp_path / "again")
    assert (len(again), again.schema, verify(again.path).ok) == (20, FIELDS, True)


def test_every_field_is_listed_sampled_and_shown(cli: Cli, source: Dataset, tmp_path: Path) -> None:
    said = json.loads(cli("inspect", source.path, "--stats", "--trajectories", "--json").out)
    assert {name: (field["dtype"], field["shape"]) for name, field in said["schema"].items()} == {
        name: (field.dtype, list(field.shape)) for name, field in FIELDS.fields.items()
    }
    assert said["stats"]["reward"]["mean"] == pytest.approx(EXACT)
    assert cli("sample", source.path, "--seed", 1, "-o", tmp_path / "steps.npz").code == 0
    with np.load(tmp_path / "steps.npz") as drawn:
        for name in (
            "params/loc",
            "params/scale",
            "action_log_prob",
            "next/info/lives",
            "next/info/box",
            "next/hidden",
        ):
            field = FIELDS[name.removeprefix("next/")]
            assert (str(drawn[name].dtype), drawn[name].shape[1:]) == (field.dtype, field.shape)
        assert drawn["next/reward"].tolist() == [[EXACT]] * 128
        steps = rlx.open(source.path)[drawn["index"]]
        assert drawn["next/info/said"].tolist() == steps["next", "info", "said"]
    for suffix in ("html", "png"):
        result = cli("view", source.path, "-o", tmp_path / f"view.{suffix}")
        assert result.code == 0, result.err
