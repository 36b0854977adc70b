"""Parquet files that others wrote, whole and damaged."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceError
from rlx.formats.finding import find_run
from rlx.formats.parquet import FORMAT
from rlx.formats.parquet.reader import open_parquet
from rlx.testing.source import (
    FileContract,
    SmallShards,
    SourceContract,
    read,
    same,
    steps_or_error,
    with_wrong_bytes,
)

Columns = dict[str, Any]
LENGTHS = (3, 1, 5)


def steps(lengths: tuple[int, ...] = LENGTHS) -> Columns:
    """Rows that tell where they belong, as lists of Python: ``100 * episode + t``."""
    rows = [100 * number + t for number, length in enumerate(lengths) for t in range(length)]
    ends = [t == length - 1 for length in lengths for t in range(length)]
    return {
        "observation": [[float(row), 0.5] for row in rows],
        "action": rows,
        "next/reward": [row / 2 for row in rows],
        "next/terminated": ends,
        "next/truncated": [False] * len(rows),
    }


def write(path: Path, columns: Columns, **how: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **how)
    return path


def with_next(columns: Columns) -> Columns:
    after = [[first + 1, second] for first, second in columns["observation"]]
    return {**columns, "next/observation": after}


class TestParquet(FileContract):
    file, write, open = "steps.parquet", staticmethod(write), staticmethod(open_parquet)
    options: ClassVar = {"columns": with_next(steps()), "row_group_size": 4}


def test_lists_of_any_length_that_are_all_as_long(tmp_path: Path) -> None:
    source = open_parquet(write(tmp_path / "a.parquet", steps()))
    assert source.schema["observation"].shape == (2,)
    first, second, third = read(source, 0)
    assert first["observation"][:, 0].tolist() == [0, 1, 2, 0]
    assert not first.final_recorded
    assert third["reward"].tolist() == [100, 100.5, 101, 101.5, 102]
    assert second["action"].tolist() == [100]


def test_what_was_seen_next_stands_in_every_row(tmp_path: Path) -> None:
    first, _, third = read(open_parquet(write(tmp_path / "a.parquet", with_next(steps()))), 0)
    assert first["observation"][:, 0].tolist() == [0, 1, 2, 3]
    assert (third["observation"][:, 0].tolist(), third.final_recorded) == ([200, 201, 202, 203, 204, 205], True)


@pytest.mark.parametrize("group", [1, 2, 100])
def test_steps_that_do_not_follow_each_other_are_trajectories_of_their_own(tmp_path: Path, group: int) -> None:
    columns = with_next(steps((4,)))
    shuffled = {name: [rows[number] for number in (2, 0, 1, 3)] for name, rows in columns.items()}
    found = read(open_parquet(write(tmp_path / "a.parquet", shuffled, row_group_size=group)), 0)
    assert [one["observation"][:, 0].tolist() for one in found] == [[2, 3], [0, 1, 2], [3, 4]]
    assert [one["terminated"].tolist() for one in found] == [[False], [False, False], [True]]


def test_the_numbers_of_trajectories_and_done_alone(tmp_path: Path) -> None:
    columns = steps()
    columns["next/done"] = columns.pop("next/terminated")
    columns["collector/traj_ids"] = [7, 7, 7, 8, 9, 9, 9, 4, 4]
    columns["note"] = [b"a"] * 9
    source = open_parquet(write(tmp_path / "a.parquet", columns))
    found = read(source, 0)
    assert [one.episode for one in found] == [7, 8, 9, 4]
    assert [one.steps for one in found] == [3, 1, 2, 2]
    assert [one["terminated"][-1] for one in found] == [True, True, False, True]
    assert list(source.notes["not_taken"]) == ["note"]


def test_a_schema_of_a_batch_that_rlx_wrote(tmp_path: Path) -> None:
    columns = {**with_next(steps()), "next/reward": [[1.0]] * 9, "done": [[False]] * 9, "index": list(range(9))}
    source = open_parquet(write(tmp_path / "a.parquet", columns))
    assert list(source.schema) == ["observation", "action", "reward", "terminated", "truncated"]
    assert [one.steps for one in read(source, 0)] == [3, 1, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"next/reward": None}, "next/reward is missing"),
        ({"next/terminated": None}, "next/terminated is missing"),
        ({"observation": None}, "observation is missing"),
        ({"action": None}, "action is missing"),
        ({"observation": [b"x"] * 9}, "observation: neither numbers nor text"),
        ({"next/reward": ["x"] * 9}, "next/reward: expected one number per step, found no numbers"),
        ({"next/reward": [[1.0, 2.0]] * 9}, "reward: expected one number per step"),
        (
            {
                "observation/a": [1.0] * 9,
                "observation/b": [1.0] * 9,
                "observation": None,
                "next/observation/b": [1.0] * 9,
            },
            "next/observation/a is missing",
        ),
        ({"next/observation": [[1.0]] * 9}, "next/observation: expected .* as observation, found"),
        ({"observation": [[1.0, 2.0]] * 8 + [[1.0]]}, "observation: expected lists of 2, found others"),
        ({"observation": [[1.0, 2.0]] * 8 + [None]}, "observation: expected a value in every row, found 1 nulls"),
        (
            {"observation": [[1.0, 2.0]] * 8 + [[1.0, None]]},
            "observation: expected a value in every row, found 1 nulls",
        ),
        (
            {"observation": [[1.0, 2.0]] * 8 + [[1.0, float("nan")]]},
            "observation: expected finite numbers, found NaN in row 8",
        ),
        ({"action": [1] * 8 + [None]}, "action: expected a value in every row, found 1 nulls"),
        ({"next/terminated": ["no"] * 9}, "next/terminated: expected one flag per step, found no numbers"),
        ({"next/truncated": [[0, 1]] * 9}, r"next/truncated: expected one flag per step, found int64\[2\]"),
        ({"collector/traj_ids": [[]] * 9}, r"collector/traj_ids: expected one number per step"),
        ({"next/terminated": [False] * 8 + [None]}, "next/terminated: expected a value in every row, found 1 nulls"),
    ],
)
def test_bad_columns(tmp_path: Path, change: Columns, message: str) -> None:
    columns = {name: column for name, column in {**steps(), **change}.items() if column is not None}
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(
        CorruptShardError, match=message + ".*; expected Parquet of one row per step: columns"
    ) as caught:
        read(open_parquet(path), 0)
    assert str(path) in str(caught.value)


def test_texts_in_any_encoding(tmp_path: Path) -> None:
    words = ["left", "", "r\u00e9"] * 3
    columns = {**steps(), "observation/mission": words, "observation/place": steps()["observation"]}
    del columns["observation"]
    columns["task"] = pyarrow.array(words).dictionary_encode()
    columns["next/info/said"] = pyarrow.array(words, pyarrow.large_string())
    columns["pair"] = [[word, "x"] for word in words]
    source = open_parquet(write(tmp_path / "a.parquet", columns))
    fields = {name: (field.dtype, field.shape, field.role) for name, field in source.schema.fields.items()}
    assert fields["task"] == ("string", (), "step")
    assert fields["info/said"] == ("string", (), "next")
    assert fields["pair"] == ("string", (2,), "step")
    assert fields["observation/mission"] == ("string", (), "observation")
    found = read(source, 0)
    for name in ("task", "info/said"):
        assert np.concatenate([one[name] for one in found]).tolist() == words
    assert found[0]["observation/mission"].tolist() == [*words[:3], ""]
    assert found[0]["pair"].tolist() == [[word, "x"] for word in words[:3]]
    assert "not_taken" not in source.notes


def test_a_text_of_many_rows_is_read_once(tmp_path: Path) -> None:
    """A small file can repeat a long text in every row: decoded row by row it would fill the memory."""
    columns = {**steps(), "task": ["x" * 2**20] * len(steps()["action"])}
    path = write(tmp_path / "a.parquet", columns, compression="zstd")
    assert path.stat().st_size < 2**14
    assert len({id(text) for one in read(open_parquet(path), 0) for text in one["task"]}) == 1


def test_columns_without_a_value_of_one_shape_in_every_row(tmp_path: Path) -> None:
    columns = {**steps(), "ragged": [[1.0] * (1 + row % 2) for row in range(9)], "gaps": [*range(8), None]}
    columns |= {"pairs": [[1, 2]] * 8 + [[1, None]], "even": [[1, 2]] * 9, "next/gaps": [*"abcdefgh", None]}
    source = open_parquet(write(tmp_path / "a.parquet", columns))
    assert source.notes["not_taken"] == {
        "ragged": "expected lists of 1, found others",
        "gaps": "expected a value in every row, found 1 nulls",
        "pairs": "expected a value in every row, found 1 nulls",
        "next/gaps": "expected a value in every row, found 1 nulls",
    }
    assert source.schema["even"].shape == (2,)
    assert [one.steps for one in read(source, 0)] == [3, 1, 5]


def test_no_steps(tmp_path: Path) -> None:
    empty: dict[str, NDArray[Any]] = {name: np.empty(0) for name in steps()}
    with pytest.raises(SourceError, match="has no step"):
        open_parquet(write(tmp_path / "a.parquet", empty))


def test_any_byte_may_be_wrong(tmp_path: Path) -> None:
    """Whatever is damaged is an error that names the file, or steps that fit the schema."""
    whole = write(tmp_path / "a.parquet", with_next(steps())).read_bytes()
    for damaged in with_wrong_bytes(whole, tmp_path / "b.parquet", range(4, len(whole), 7)):
        steps_or_error(open_parquet, damaged)


def test_what_is_no_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1, or is it?")
    assert FORMAT.recognises(path)
    with pytest.raises(CorruptShardError, match=r"a\.parquet is damaged"):
        open_parquet(path)
    path.write_bytes(b"none")
    assert not FORMAT.recognises(path)
    assert not FORMAT.recognises(tmp_path)


def series(path: Path, rows: list[int], name: str = "train-{:05d}-of-{:05d}.parquet") -> Path:
    """Files of some rows each, as the library ``datasets`` splits a table."""
    path.mkdir()
    start = 0
    for number, count in enumerate(rows):
        steps = list(range(start, start + count))
        table = pyarrow.table(
            {
                "observation": [[float(step)] for step in steps],
                "action": steps,
                "next/reward": [step / 2 for step in steps],
                "next/done": [step % 5 == 4 for step in steps],
            }
        )
        pyarrow.parquet.write_table(table, path / name.format(number, len(rows)), row_group_size=2)
        start += count
    return path


class TestSeries(SmallShards, SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return series(tmp_path / "a", [7, 1, 12])

    @pytest.fixture
    def source(self, root: Path) -> Any:
        return open_parquet(root)


def test_several_files_are_one_source_in_order(tmp_path: Path) -> None:
    one = find_run(series(tmp_path / "one", [20]), None)
    found = find_run(series(tmp_path / "several", [7, 1, 12]), None)
    assert same(
        [each for shard in found.shards() for each in read(found, shard)],
        [each for shard in one.shards() for each in read(one, shard)],
    )
    assert found.id == "several"
    assert list(found.files(0)) == [f"train-0000{number}-of-00003.parquet" for number in range(3)]


def test_files_below_data_and_of_the_hubs_conversion(tmp_path: Path) -> None:
    series(tmp_path / "data", [4, 6], "{:04d}.parquet")
    assert sum(one.steps for one in read(open_parquet(tmp_path), 0)) == 10


@pytest.mark.parametrize(
    "name",
    ["part-{:05d}-1a2b-c000.snappy.parquet", "part.{}.parquet", "part-{}.parquet", "steps_{}.parquet", "{}.parquet"],
)
def test_parts_are_read_in_the_order_of_their_numbers(name: str, tmp_path: Path) -> None:
    one = read(open_parquet(series(tmp_path / "one", [24])), 0)
    parts = open_parquet(series(tmp_path / "several", [2] * 12, name))
    assert same(read(parts, 0), one)
    stem = name.format(11).removesuffix(".parquet")
    assert sum(each.steps for each in read(open_parquet(tmp_path / "several", stem), 0)) <= 2


def test_columns_of_one_name(tmp_path: Path) -> None:
    path = series(tmp_path / "a", [10], "a.parquet") / "a.parquet"
    table = pyarrow.parquet.read_table(path)
    for name in ("note", "note", "mood"):
        table = table.append_column(name, pyarrow.array(range(10)))
    pyarrow.parquet.write_table(table, path)
    source = open_parquet(path)
    assert source.notes["not_taken"] == {"note": "several columns have this name"}
    assert "mood" in source.schema
    pyarrow.parquet.write_table(table.append_column("next/reward", pyarrow.array([1.0] * 10)), path)
    with pytest.raises(CorruptShardError, match="next/reward: expected one column, found 2"):
        open_parquet(path)
    # A column that an option names as one that there is already.
    pyarrow.parquet.write_table(table.append_column("r", pyarrow.array([1.0] * 10)), path)
    with pytest.raises(CorruptShardError, match="next/reward: expected one column, found 2"):
        open_parquet(path, reward="r")


def test_splits_have_to_be_chosen(tmp_path: Path) -> None:
    path = series(tmp_path / "a", [4, 6])
    series(tmp_path / "b", [9], "test-00000-of-00001.parquet")
    (tmp_path / "b/test-00000-of-00001.parquet").rename(path / "test-00000-of-00001.parquet")
    with pytest.raises(SourceError, match="several splits: test, train; expected Parquet") as raised:
        find_run(path, None)
    assert raised.value.hint == "`from_` parquet:split=test"
    assert sum(one.steps for one in read(find_run(path, None, "parquet:split=train"), 0)) == 10
    with pytest.raises(SourceError, match="has no split dev, found test, train"):
        open_parquet(path, "dev")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: (path / "train-00001-of-00003.parquet").unlink(), "number 1 of 3 files is missing"),
        (
            lambda path: (path / "train-00002-of-00003.parquet").rename(path / "train-00001-of-00002.parquet"),
            "expected one series of numbered files",
        ),
        (
            lambda path: pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), path / "train-00001-of-00003.parquet"),
            "00001-of-00003.parquet: expected the columns of train-00000-of-00003.parquet, .* found x",
        ),
        (lambda path: [file.unlink() for file in path.iterdir()], "has no .*parquet"),
        (
            lambda path: pyarrow.parquet.write_table(
                pyarrow.table({"observation": [[1.0]], "action": ["x"], "next/reward": [0.5], "next/done": [True]}),
                path / "train-00001-of-00003.parquet",
            ),
            "00001-of-00003.parquet: action: expected int64, found string",
        ),
    ],
)
def test_bad_series(change: Any, message: str, tmp_path: Path) -> None:
    path = series(tmp_path / "a", [7, 1, 12])
    change(path)
    with pytest.raises(SourceError, match=message):
        read(open_parquet(path), 0)
