"""Gymnasium spaces of datasets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import rlx
from rlx.collector.environment.space import schema_of
from rlx.errors import SchemaMismatchError
from rlx.schema import Field, Role, Schema
from rlx.store.foreign_types import in_words, space_of
from tests.factories import collected, make_block, write_dataset

_SPACES = [
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.Box(-1.0, 2.0, (3,), np.float32),
    spaces.Box(np.array([0, -5]), np.array([1, 7]), dtype=np.int16),
    spaces.Box(0, 255, (84, 84), np.uint8),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiBinary(3),
    spaces.Text(8, min_length=1, charset="abc"),
    spaces.Dict(goal=spaces.Box(0, 1, (2,)), door=spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(1)])),
]


@pytest.mark.parametrize("space", _SPACES, ids=str)
def test_the_space_of_an_environment_comes_back(space: spaces.Space[object]) -> None:
    fields = schema_of(space, space).fields
    assert space_of(fields, "observation") == space
    assert space_of(fields, "action") == space


def test_a_space_that_nobody_declared_holds_all_values_of_the_dtype() -> None:
    def space(dtype: str, shape: tuple[int, ...] = ()) -> spaces.Space[object]:
        return space_of({"x": Field(dtype, shape, Role.STEP)}, "x")

    assert space("uint8", (2,)) == spaces.Box(0, 255, (2,), np.uint8)
    assert space("float32", (2,)) == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    flags = space("bool", (2,))
    assert flags.dtype == np.bool_
    assert np.array([True, False]) in flags
    assert "anything, really" in space("string")
    assert ("a", "b") in space("string", (2,))
    with pytest.raises(KeyError, match="'y'"):
        space_of({"x": Field("bool", (), Role.STEP)}, "y")
    with pytest.raises(SchemaMismatchError, match="x: gymnasium has no space"):
        space_of({"x": Field("int64", (), Role.STEP, {"type": "Discrete", "n": 0})}, "x")


def test_the_spaces_of_a_collected_dataset(tmp_path: Path) -> None:
    collected("CartPole-v1", tmp_path / "cartpole", steps=50)
    data, env = rlx.open(tmp_path / "cartpole"), gymnasium.make("CartPole-v1")
    assert data.action_space == env.action_space
    assert data.num_actions == 2
    assert data.observation_space.shape == env.observation_space.shape
    assert all(observation in data.observation_space for observation in data[:]["observation"].numpy())


def test_actions_without_a_declared_space_are_counted(pong: Path) -> None:
    data = rlx.open(pong)
    assert data.schema["action"].space is None
    assert data.action_space == spaces.Discrete(6)
    assert data.num_actions == 6 == int(data[:]["action"].max()) + 1


def test_the_number_of_continuous_actions_is_refused(tmp_path: Path) -> None:
    schema = Schema.of(observation=("float32", (3,)), action=("float32", ()))
    data = write_dataset(tmp_path / "a", [[make_block([4], schema=schema)]], schema=schema)
    assert data.action_space == spaces.Box(-np.inf, np.inf, (), np.float32)
    with pytest.raises(SchemaMismatchError, match=r"expected discrete actions, found float32\[\]"):
        _ = data.num_actions
    renamed = {"observation": "pixels", "reward": "reward", "terminated": "terminated", "truncated": "truncated"}
    block, fields = make_block([4], schema=schema), {new: schema[name] for name, new in renamed.items()}
    block = replace(block, data={new: block.data[name] for name, new in renamed.items()})
    bare = write_dataset(tmp_path / "b", [[block]], schema=Schema(fields))
    assert bare.observation_space == spaces.Dict(pixels=spaces.Box(-np.inf, np.inf, (3,), np.float32))
    with pytest.raises(SchemaMismatchError, match="no action: its fields are pixels, reward"):
        _ = bare.action_space
    with pytest.raises(SchemaMismatchError, match="found no action"):
        _ = bare.num_actions


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (None, ""),
        ({"type": "Discrete", "n": 6, "start": 2}, "2 to 7"),
        ({"type": "MultiDiscrete", "nvec": [[2, 3], [4, 5]]}, "below 2, 3, 4, 5"),
        ({"type": "MultiBinary", "n": 4}, "0 or 1"),
        ({"type": "Text", "max_length": 9}, "text of at most 9 characters"),
        ({"type": "Box", "low": [0, None], "high": None}, "0 or more"),
        ({"type": "Box", "low": None, "high": [2.5, 1.0]}, "in all, 2.5 or less"),
        ({"type": "Box", "low": -1.0, "high": 1.0}, "-1 to 1"),
        ({"type": "Box"}, "any number"),
        ({"type": "Graph"}, "Graph"),
    ],
)
def test_spaces_in_words(space: dict[str, Any] | None, words: str) -> None:
    assert in_words(space) == words
