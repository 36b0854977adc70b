"""Lance datasets that others wrote, with columns of their own names; whole and damaged."""

import random
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow
import pytest

from rlx.errors import CorruptShardError, OptionError, SourceNotFoundError
from rlx.formats.common.rows.table import TableRun
from rlx.formats.finding import find_run
from rlx.formats.lance import FORMAT
from rlx.formats.lance.reader import open_lance
from rlx.testing.source import SourceContract, read, steps_or_error

LENGTHS = (3, 1, 5)


def steps(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Rows that tell where they belong, ``100 * episode + t``, under names of their own."""
    rows = [100 * number + t for number, length in enumerate(lengths) for t in range(length)]
    ends = [t == length - 1 for length in lengths for t in range(length)]
    return {
        "frame": [[float(row), 0.5] for row in rows],
        "act": rows,
        "r": [row / 2 for row in rows],
        "done": ends,
        "game": ["Pong"] * len(rows),
    }


COLUMNS = {"observation": "frame", "action": "act", "reward": "r", "terminated": "done"}


def write(path: Path, columns: Mapping[str, Any], **how: Any) -> Path:
    lance.write_dataset(pyarrow.table(dict(columns)), str(path), **how)
    return path


class TestLance(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return write(tmp_path / "a.lance", steps(), max_rows_per_file=4)

    @pytest.fixture
    def source(self, root: Path) -> TableRun:
        return open_lance(root, **COLUMNS)

    def test_all_files_are_read(self, source: TableRun) -> None:
        assert len(source.files(0)) == 3
        assert {name.split("/")[0] for name in source.files(0)} == {"data"}


def test_the_columns_are_those_that_the_user_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", steps())
    with pytest.raises(CorruptShardError, match=r"next/reward is missing, found .*; expected a Lance dataset"):
        find_run(path, None)
    source = find_run(path, None, "lance:observation=frame,action=act,reward=r,terminated=done")
    first, second, third = read(source, 0)
    assert first["observation"][:, 0].tolist() == [0, 1, 2, 0]
    assert (first.final_recorded, second["action"].tolist(), third["reward"].tolist()) == (
        False,
        [100],
        [100, 100.5, 101, 101.5, 102],
    )
    assert second["game"].tolist() == ["Pong"]
    assert source.notes == {"format": "Lance"}


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match="pixels is missing, found frame, act, r, done, game"):
        open_lance(write(tmp_path / "a.lance", steps()), **{**COLUMNS, "observation": "pixels"})
    with pytest.raises(
        OptionError, match="`from_` lance has no option 'pixels': expected observation, next_observation"
    ):
        find_run(tmp_path / "a.lance", None, "lance:pixels=frame")


def test_deleted_rows_are_no_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", steps())
    lance.dataset(path).delete("act >= 100 AND act < 200")
    assert [one["action"].tolist() for one in read(open_lance(path, **COLUMNS), 0)] == [
        [0, 1, 2],
        [200, 201, 202, 203, 204],
    ]


def test_data_elsewhere_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", steps())
    copy = tmp_path / "b.lance"
    lance.dataset(path).shallow_clone(str(copy), reference=1)
    with pytest.raises(CorruptShardError, match="expected data below the directory, found elsewhere"):
        open_lance(copy, **COLUMNS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frame": [[1.0]] * 8 + [[1.0, 2.0]]}, "frame: expected lists of 1, found others"),
        ({"frame": [[np.nan, 0.0]] * 9}, "observation: expected finite numbers, found NaN in row 0"),
        ({"act": [*range(8), None]}, "act: expected a value in every row, found 1 nulls"),
        ({"done": ["x"] * 9}, "next/terminated: expected one flag per step, found no numbers"),
        ({"r": [b"x"] * 9}, "next/reward: expected one number per step, found no numbers"),
    ],
)
def test_bad_columns(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match=message + ".*; expected a Lance dataset"):
        read(open_lance(write(tmp_path / "a.lance", {**steps(), **change}), **COLUMNS), 0)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="is missing"):
        open_lance(tmp_path / "a.lance")
    (tmp_path / "a.lance").mkdir()
    assert not FORMAT.recognises(tmp_path / "a.lance")
    with pytest.raises(SourceNotFoundError, match=r"_versions has no \*.manifest"):
        open_lance(tmp_path / "a.lance")


def test_wrong_bytes_are_values_or_a_named_error(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.lance", steps())
    names = [name.relative_to(whole) for name in whole.rglob("*") if name.is_file()]
    dice, found = random.Random(0), Counter[bool]()
    for number in range(300):
        damaged = tmp_path / "b.lance"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(whole, damaged)
        path = damaged / dice.choice(names)
        content = bytearray(path.read_bytes())
        if number % 5 == 0:
            content = content[: dice.randrange(len(content))]
        for _ in range(0 if number % 5 == 0 else dice.choice((1, 3, 20))):
            content[dice.randrange(len(content))] = dice.randrange(256)
        path.write_bytes(content)
        found[isinstance(steps_or_error(lambda path: open_lance(path, **COLUMNS), damaged), int)] += 1
    assert min(found.values()) > 20, found
