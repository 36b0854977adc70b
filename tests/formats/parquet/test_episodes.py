"""Parquet files of one row per episode, as JAT's are, written by the library ``datasets``."""

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Pillow

from rlx.errors import CorruptShardError, SourceError
from rlx.formats.finding import find_run
from rlx.formats.parquet.reader import open_parquet
from rlx.testing.source import FileContract, SmallShards, merge, read, steps_or_error, with_wrong_bytes

LENGTHS = (4, 1, 7)


def picture(episode: int, step: int) -> Pillow.Image:
    """Four frames of grey, as JAT stacks them."""
    return Pillow.fromarray(np.full((12, 10, 4), 16 * episode + step, np.uint8), "RGBA")


def write_jat(path: Path, lengths: tuple[int, ...] = LENGTHS) -> Path:
    columns = {
        "image_observations": [
            [picture(number, step) for step in range(count)] for number, count in enumerate(lengths)
        ],
        "discrete_actions": [list(range(count)) for count in lengths],
        "rewards": [[step / 2 for step in range(count)] for count in lengths],
    }
    features = {
        "image_observations": List(Image()),
        "discrete_actions": List(Value("int64")),
        "rewards": List(Value("float32")),
    }
    Dataset.from_dict(columns, Features(features)).to_parquet(str(path), batch_size=2)
    return path


def write(path: Path, **columns: Any) -> Path:
    vectors = {
        "continuous_observations": [[[1.0, 2.0]] * count for count in LENGTHS],
        "continuous_actions": [[[0.5]] * count for count in LENGTHS],
        "rewards": [[0.25] * count for count in LENGTHS],
    }
    kept = {name: column for name, column in {**vectors, **columns}.items() if column is not None}
    pyarrow.parquet.write_table(pyarrow.table(kept), path, row_group_size=2)
    return path


class TestJat(FileContract):
    file, write, open = "train.parquet", staticmethod(write_jat), staticmethod(open_parquet)


class TestVectors(SmallShards, FileContract):
    file, write, open = "train.parquet", staticmethod(write), staticmethod(open_parquet)
    options: ClassVar = {"episode": [0, 1, 2]}


def test_every_row_is_an_episode_without_its_last_outcome(tmp_path: Path) -> None:
    source, dropped = find_run(write_jat(tmp_path / "train.parquet"), None), Counter[str]()
    found = merge(source.blocks(0, dropped), source.schema)
    assert [one["observation"][:, 0, 0, 0].tolist() for one in found] == [[0, 1, 2, 3], [32, 33, 34, 35, 36, 37, 38]]
    assert [one["action"].tolist() for one in found] == [[0, 1, 2], [0, 1, 2, 3, 4, 5]]
    assert found[0]["reward"].tolist() == [0, 0.5, 1]
    assert all(one.from_reset and one.cut and one.final_recorded for one in found)
    assert [one.episode for one in found] == [0, 2]
    assert dropped == {"step_whose_outcome_is_not_recorded": 3}
    assert source.schema["observation"].shape == (12, 10, 4)
    assert source.notes == {
        "format": "Parquet",
        "terminated": "unrecorded",
        "truncation": "unrecorded",
        "steps_without_outcome": 3,
    }


def test_several_observations_and_other_columns(tmp_path: Path) -> None:
    more = {
        "text_observations": [["go"] * count for count in LENGTHS],
        "lives": [[3] * count for count in LENGTHS],
        "name": ["a", "b", "c"],
        "odd": [[1]] * 3,
        "done": [[False] * count for count in LENGTHS],
    }
    source = open_parquet(write(tmp_path / "a.parquet", **more))
    assert {"observation/continuous", "observation/text", "action", "lives"} <= set(source.schema)
    assert read(source, 0)[0]["observation/text"].tolist() == ["go"] * 4
    assert source.notes["not_taken"] == {
        "name": "not one row per step",
        "odd": "not one row per step",
        "done": "means something else in TED",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"continuous_actions": None}, "action is missing"),
        ({"continuous_observations": None}, "observation is missing"),
        ({"continuous_actions": [[[0.5]]] * 3}, "continuous_actions: expected 4 entries in row 0, found 1"),
        ({"continuous_actions": [[[0.5]] * 4, None, [[0.5]] * 7]}, "expected 1 entries in row 1, found 0"),
        ({"rewards": [[np.nan] * count for count in LENGTHS]}, "reward: expected finite numbers, found NaN in row 0"),
        ({"rewards": [[None] * count for count in LENGTHS]}, "reward: expected"),
        ({"rewards": [1.0, 2.0, 3.0]}, "rewards: expected a list per row, found double"),
        (
            {"continuous_observations": [[[1.0, 2.0]] * 3 + [[1.0]], [[1.0, 2.0]], [[1.0, 2.0]] * 7]},
            "continuous_observations: expected lists of 2, found others",
        ),
    ],
)
def test_bad_columns(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match=message + ".*; expected Parquet of one row per episode"):
        read(open_parquet(write(tmp_path / "a.parquet", **change)), 0)


def test_episodes_that_are_added_after_opening(tmp_path: Path) -> None:
    source = open_parquet(write(tmp_path / "a.parquet"))
    more = {"continuous_observations": [[[1.0, 2.0]]] * 4, "continuous_actions": [[[0.5]]] * 4, "rewards": [[0.0]] * 4}
    write(tmp_path / "a.parquet", **more)
    with pytest.raises(CorruptShardError, match=r"a\.parquet: expected 3 episodes, found 4"):
        read(source, 0)


def test_no_steps(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no step"):
        open_parquet(write(tmp_path / "a.parquet", rewards=[[], [], []]))


def test_any_byte_may_be_wrong(tmp_path: Path) -> None:
    whole = write_jat(tmp_path / "a.parquet").read_bytes()
    for damaged in with_wrong_bytes(whole, tmp_path / "b.parquet", range(4, len(whole), 9)):
        steps_or_error(open_parquet, damaged)
