"""Transforms that many batches of a loader are planned with give what they give batch by batch."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlx
from rlx.buffer import Compose, FrameStack, Goals, NextAction, Timestep, TrajectoryColumns
from rlx.schema import Field, Role, Schema
from rlx.store.dataset import Dataset
from rlx.store.ted import PlannedBatches
from tests.factories import LARGE, make_block, write_dataset
from tests.kernels import HOW, reading

RECORDED = np.array([True, False, True])


class OtherGoals(Goals):
    """Goals that are not planned, because a subclass may do anything."""


class OtherAction(NextAction):
    """The same of actions."""


class OtherTimestep(Timestep):
    """The same of steps."""


class OtherColumns(TrajectoryColumns):
    """The same of columns."""


@pytest.fixture(scope="module", params=HOW)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    schema = Schema({**LARGE.fields, "noise": Field("float32", (2,), Role.STEP)})
    shards = []
    for shard in range(2):
        block = make_block([3, 5, 9], first_episode=3 * shard, schema=schema)
        seen = block.data["observation"].copy()
        seen[(np.cumsum(block.lengths + 1) - 1)[~RECORDED]] = 0
        data = {**block.data, "observation": seen}
        shards.append([replace(block, data=data, final_recorded=RECORDED)])
    with reading(request.param):
        yield write_dataset(tmp_path_factory.mktemp("data") / "data", shards, schema=schema)


def reached(batch: Any) -> Any:
    return (batch["steps"] == 0).float() - batch["action"].reshape(-1, 1)


Kinds = tuple[type[Goals], type[NextAction], type[Timestep], type[TrajectoryColumns]]
PLANNED: Kinds = (Goals, NextAction, Timestep, TrajectoryColumns)
ALONE: Kinds = (OtherGoals, OtherAction, OtherTimestep, OtherColumns)
MADE: dict[str, Callable[[Kinds], list[Any]]] = {
    "next action": lambda kinds: [kinds[1]()],
    "stacks and columns": lambda kinds: [FrameStack(3), kinds[2](), kinds[3]("return", "whole"), kinds[1]()],
    "stacks of zeros": lambda kinds: [FrameStack(2, "zeros"), kinds[1]()],
    "noise next": lambda kinds: [kinds[1](["action", "noise"], mask="has")],
    "goals": lambda kinds: [kinds[0]({"goal": "observation"}, geometric=0.4, uniform=0.6, steps_key="steps", seed=1)],
    "goals of any": lambda kinds: [kinds[0]({"goal": "observation"}, current=0.5, random=0.5, seed=2)],
    "stacked goals": lambda kinds: [
        FrameStack(3, "zeros"),
        kinds[1](),
        kinds[0](
            {"goal": "observation"},
            geometric=0.3,
            random=0.3,
            uniform=0.4,
            steps_key="steps",
            reward_fn=reached,
            seed=3,
        ),
        kinds[0]({"far": "observation", ("at", "index"): "index", "shaken": "noise"}, uniform=1.0, seed=3),
    ],
    "some keep theirs": lambda kinds: [kinds[0]({"noise": "noise"}, uniform=0.5, seed=4)],
    "goals of a reward": lambda kinds: [kinds[0]({"goal": ("next", "reward")}, uniform=1.0, seed=4)],
    "goals of one key": lambda kinds: [
        kinds[0]({"goal": "observation"}, uniform=1.0, steps_key="steps", seed=4),
        kinds[0]({"other": "observation"}, uniform=1.0, steps_key="steps", seed=4),
    ],
}
HOW_READ: dict[str, dict[str, Any]] = {
    "steps": {"batch_size": 6},
    "replacement": {"batch_size": 6, "replacement": True},
    "slices": {"batch_size": 9, "slice_len": 3},
    "padded": {"batch_size": 12, "slice_len": 4, "pad": "right"},
    "streams": {"batch_size": 12, "slice_len": 4, "stream": True},
    "second rank": {"batch_size": 6, "rank": 1, "world_size": 2},
}


def assert_same(one: Any, other: Any) -> None:
    assert {*one.keys(True, True)} == {*other.keys(True, True)}
    assert one.batch_size == other.batch_size
    for key in one.keys(True, True):
        assert one[key].dtype == other[key].dtype, key
        assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("made", MADE)
def test_planned_batches_are_those_read_one_by_one(dataset: Dataset, made: str) -> None:
    for how in HOW_READ.values():
        check_planned(dataset, made, how)


def check_planned(dataset: Dataset, made: str, how: dict[str, Any]) -> None:
    def loader(kinds: Kinds) -> Any:
        return rlx.loader(dataset, seed=5, transform=Compose(*MADE[made](kinds)), **how)

    expected = [*loader(ALONE)]
    for one, other in zip(loader(PLANNED), expected, strict=True):
        assert_same(one, other)
    resumed = loader(PLANNED)
    resumed.load_state_dict({**resumed.state_dict(), "batch": 1})
    for one, other in zip(resumed, expected[1:], strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(
    "keys",
    [["goal", "action"], ["next", "steps"], [("next", "action")], ["trajectory"], [("trajectory", "length"), "noise"]],
)
def test_keys_of_planned_transforms(dataset: Dataset, keys: list[Any]) -> None:
    def loader(kinds: Kinds) -> Any:
        goals = kinds[0]({"goal": "observation"}, uniform=1.0, steps_key="steps", seed=1)
        made: list[Any] = [FrameStack(2), kinds[1](), kinds[3]("return", "length"), goals]
        return rlx.loader(dataset, seed=5, batch_size=8, transform=Compose(*made), keys=keys)

    for one, other in zip(loader(PLANNED), loader(ALONE), strict=True):
        assert_same(one, other)
    unknown = rlx.loader(dataset, batch_size=8, transform=NextAction(), keys=["unknown"])
    with pytest.raises(KeyError, match="'unknown' is neither stored nor made by a transform"):
        list(unknown)


def test_goals_over_a_selection(dataset: Dataset) -> None:
    chosen = rlx.open(dataset.path).select([4, 1, 2])

    def batches(kinds: Kinds) -> list[Any]:
        return [*rlx.loader(chosen, seed=5, batch_size=6, transform=Compose(*MADE["stacked goals"](kinds)))]

    for one, other in zip(batches(PLANNED), batches(ALONE), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("made", ["next action", "stacks and columns", "goals", "stacked goals"])
def test_batches_are_planned(tmp_path: Path, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema({**LARGE.fields, "noise": Field("float32", (2,), Role.STEP)})
    data = write_dataset(tmp_path / "data", [[make_block([9, 8], schema=schema)]], schema=schema)
    numbers, plan = [], PlannedBatches.read

    def read(batches: PlannedBatches, number: int) -> Any:
        numbers.append(number)
        return plan(batches, number)

    monkeypatch.setattr(PlannedBatches, "read", read)
    assert len([*rlx.loader(data, batch_size=4, transform=Compose(*MADE[made](PLANNED)))]) == len(numbers)
