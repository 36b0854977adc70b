"""LeRobot's rows by their columns: frame_index puts them in order, and flags in mid-episode are kept."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rlx.formats.lerobot.reader import open_lerobot
from rlx.testing.source import Trajectory, read

GOLDEN = Path(__file__).parents[2] / "golden/lerobot"
DATA, EPISODES = Path("data/chunk-000/file-000.parquet"), Path("meta/episodes/chunk-000/file-000.parquet")
LENGTHS = (4, 2, 6)


def copy(tmp_path: Path, rows: list[int], **columns: list[Any]) -> Path:
    """A dataset of these rows, and perhaps with other columns."""
    path = shutil.copytree(GOLDEN, tmp_path / "walks")
    table = pyarrow.parquet.read_table(path / DATA).take(pyarrow.array(rows))
    for name, values in columns.items():
        place = table.schema.names.index(name.replace("__", "."))
        table = table.set_column(place, name.replace("__", "."), pyarrow.array(values))
    pyarrow.parquet.write_table(table, path / DATA)
    return path


def same(one: list[Trajectory], other: list[Trajectory]) -> bool:
    return all((a[name].tolist() == b[name].tolist()) for a, b in zip(one, other, strict=True) for name in a.parts)


@pytest.mark.parametrize(
    "rows", [[0, 2, 1, 3, *range(4, 12)], [0, 4, 1, 6, 2, 5, 3, *range(7, 12)], [*reversed(range(12))]]
)
def test_rows_are_put_in_order(rows: list[int], tmp_path: Path) -> None:
    source = open_lerobot(copy(tmp_path, rows))
    assert same(read(source, 0), read(open_lerobot(GOLDEN), 0))
    assert source.notes["rows_out_of_order"] > 0
    assert "gaps" not in source.notes


@pytest.mark.parametrize(("frames", "gaps", "repeated"), [([0, 1, 2, 4, 5, 6], 1, 0), ([0, 1, 2, 2, 3, 4], 0, 1)])
def test_a_missing_or_repeated_frame_ends_a_piece(frames: list[int], gaps: int, repeated: int, tmp_path: Path) -> None:
    source = open_lerobot(copy(tmp_path, [*range(12)], frame_index=[*range(4), *range(2), *frames]))
    whole = read(open_lerobot(GOLDEN), 0)[2]
    _, _, first, second = read(source, 0)
    assert (source.notes.get("gaps", 0), source.notes.get("repeated_rows", 0)) == (gaps, repeated)
    # The outcome of the last row before the gap is not known.
    assert (first.steps, first.cut, first.from_reset, second.steps, second.from_reset) == (2, True, True, 3, False)
    names = ("action", "reward", "terminated")
    for name in names:
        np.testing.assert_array_equal(second[name], whole[name][3:])
    assert first.episode == second.episode == 2
    assert source.notes["steps_without_outcome"] == 1


def test_flags_before_the_end_are_a_field(tmp_path: Path) -> None:
    done = [row in (1, 3, 5, 11) for row in range(12)]
    source = open_lerobot(copy(tmp_path, [*range(12)], next__done=done))
    found = read(source, 0)
    assert [one.steps for one in found] == list(LENGTHS)
    assert [flag for one in found for flag in one["dones"].tolist()] == done
    assert [one["terminated"].sum() for one in found] == [1, 1, 1]
    assert source.notes["flags_before_the_end"] == {"next.done": 1}


def test_an_episode_without_a_step_is_counted(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN, tmp_path / "walks")
    table = pyarrow.parquet.read_table(path / EPISODES)
    empty = {**table.slice(2, 1).to_pylist()[0], "episode_index": 3, "length": 0}
    pyarrow.parquet.write_table(
        pyarrow.concat_tables([table, pyarrow.Table.from_pylist([empty], table.schema)]), path / EPISODES
    )
    info = json.loads((path / "meta/info.json").read_text())
    (path / "meta/info.json").write_text(json.dumps({**info, "total_episodes": 4}))
    source = open_lerobot(path)
    assert same(read(source, 0), read(open_lerobot(GOLDEN), 0))
    assert source.notes["episodes_without_step"] == 1
