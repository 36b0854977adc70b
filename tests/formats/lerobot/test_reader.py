"""A dataset that LeRobot recorded (scripts/make_lerobot.py), whole and damaged."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.formats.common.rows import episodes as row_episodes
from rlx.formats.common.rows import table as row_table
from rlx.formats.lerobot import FORMAT, reader
from rlx.formats.lerobot.reader import LeRobot, open_lerobot
from rlx.schema import Field, Role
from rlx.testing.source import SourceContract, merge, read

GOLDEN = Path(__file__).parents[2] / "golden/lerobot"
DATA, EPISODES = Path("data/chunk-000/file-000.parquet"), Path("meta/episodes/chunk-000/file-000.parquet")
INFO = Path("meta/info.json")
Change = Callable[[Any], Any]


class TestLeRobot(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for module in (reader, row_table):
            monkeypatch.setattr(module, "batch_rows", lambda _: 4)
        monkeypatch.setattr(row_episodes, "block_steps", lambda _: 4)
        return shutil.copytree(GOLDEN, tmp_path / "walks")

    @pytest.fixture
    def source(self, root: Path) -> LeRobot:
        return open_lerobot(root)


def test_every_value() -> None:
    source, dropped = open_lerobot(GOLDEN), Counter[str]()
    found = merge(source.blocks(0, dropped), source.schema)
    names = {"observation/images/top": "observation.images.top", "reward": "next.reward", "success": "next.success"}
    names |= {"observation/state": "observation.state", "observation/grid": "observation.grid", "action": "action"}
    assert set(source.schema) == {*names, "task", "terminated", "truncated"}
    assert [one["task"].tolist() for one in found] == [["push"] * one.steps for one in found[:1]] + [
        ["pull"] * found[1].steps,
        ["push"] * found[2].steps,
    ]
    assert source.notes["lerobot"]["fps"] == 10
    assert source.notes["lerobot"]["features"]["observation.state"] == {
        "field": "observation/state",
        "names": ["x", "y", "z"],
    }
    assert "not_taken" not in source.notes
    with np.load(GOLDEN / "expected.npz") as expected:
        for trajectory, first, length in zip(found, (0, 4, 6), (4, 2, 6), strict=True):
            for name, column in names.items():
                wanted = expected[column][first : first + length]
                wanted = wanted[:, 0] if column.startswith("next.") else wanted
                assert trajectory[name].dtype == wanted.dtype
                np.testing.assert_array_equal(trajectory[name][:length], wanted, err_msg=name)
    assert [(one["terminated"][-1], one["truncated"][-1], one.final_recorded) for one in found] == [(1, 0, 0)] * 3
    assert not dropped


def copy(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN, tmp_path / "walks")


def info(change: Change) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        described = json.loads((path / INFO).read_text())
        (path / INFO).write_text(json.dumps(change(described)))

    return damage


def feature(name: str, **values: Any) -> Callable[[Path], None]:
    def change(described: Any) -> Any:
        described["features"][name] = {**described["features"].get(name, {}), **values}
        return described

    return info(change)


def without(*names: str) -> Callable[[Path], None]:
    """As if these features had never been recorded."""

    def damage(path: Path) -> None:
        info(lambda one: {**one, "features": {k: v for k, v in one["features"].items() if k not in names}})(path)
        table = pyarrow.parquet.read_table(path / DATA)
        pyarrow.parquet.write_table(table.drop_columns(list(names)), path / DATA)

    return damage


def column(file: Path, name: str, change: Change) -> Callable[[Path], None]:
    """A file with another column, or without it where the change gives none."""

    def damage(path: Path) -> None:
        table = pyarrow.parquet.read_table(path / file)
        place, values = table.schema.names.index(name), change(table[name].to_pylist())
        if values is None:
            table = table.remove_column(place)
        else:
            kind = table.schema.field(name).type
            table = table.set_column(place, name, pyarrow.array(values, kind if len(values) == len(table) else None))
        pyarrow.parquet.write_table(table, path / file)

    return damage


def row(number: int, value: Any) -> Change:
    def change(values: list[Any]) -> list[Any]:
        return [*values[:number], value, *values[number + 1 :]]

    return change


def test_a_truncated_episode_keeps_its_last_step(tmp_path: Path) -> None:
    path = copy(tmp_path)
    feature("next.truncated", dtype="bool", shape=[1])(path)
    table = pyarrow.parquet.read_table(path / DATA)
    truncated = pyarrow.array([number == 3 for number in range(12)])
    pyarrow.parquet.write_table(table.append_column("next.truncated", truncated), path / DATA)
    source, dropped = open_lerobot(path), Counter[str]()
    first, *_ = merge(source.blocks(0, dropped), source.schema)
    ending = (first.steps, first["terminated"][-1], first["truncated"][-1], first.final_recorded)
    assert ending == (4, False, True, False)
    assert not dropped
    assert source.notes["truncations_without_final_observation"] == 1


def test_a_robot_has_no_rewards(tmp_path: Path) -> None:
    """As most datasets of LeRobot: neither rewards nor ends are recorded, and nobody invents them."""
    path = copy(tmp_path)
    without("next.reward", "next.done", "next.success", "observation.images.top", "observation.grid")(path)
    source = open_lerobot(path)
    assert list(source.schema) == ["observation", "action", "task", "reward", "terminated", "truncated"]
    assert (source.notes["rewards"], source.notes["terminated"]) == ("unrecorded: zeros", "unrecorded")
    found = read(source, 0)
    assert [one.steps for one in found] == [3, 1, 5]
    assert not any(one[name].any() for one in found for name in ("reward", "terminated"))
    assert all(one["truncated"][-1] and one.cut for one in found)


def test_pictures_that_went_through_jpeg_are_said_to_be_lossy(tmp_path: Path) -> None:
    path = copy(tmp_path)
    with np.load(GOLDEN / "expected.npz") as expected:
        frames = expected["observation.images.top"]
    files = [{"bytes": bytes(imagecodecs.jpeg8_encode(frame, level=100)), "path": None} for frame in frames]
    assert "lossy_jpeg" not in open_lerobot(path).notes
    column(DATA, "observation.images.top", lambda _: files)(path)
    source = open_lerobot(path)
    assert source.notes["lossy_jpeg"] == ["observation/images/top"]
    decoded = [imagecodecs.jpeg8_decode(bytes(one["bytes"] or b"")) for one in files[:4]]
    np.testing.assert_array_equal(read(source, 0)[0]["observation/images/top"][:4], decoded)


def add_column(path: Path, file: Path, name: str, values: list[Any]) -> None:
    table = pyarrow.parquet.read_table(path / file)
    pyarrow.parquet.write_table(table.append_column(name, pyarrow.array(values)), path / file)


def test_times_that_are_not_even_are_a_field(tmp_path: Path) -> None:
    path = copy(tmp_path)
    column(DATA, "timestamp", lambda times: [time + 0.01 for time in times])(path)
    source = open_lerobot(path)
    assert source.schema["timestamp"] == Field("float32", (), Role.STEP)
    np.testing.assert_allclose(read(source, 0)[1]["timestamp"], [0.01, 0.11][: read(source, 0)[1].steps])


def test_columns_that_nothing_tells_of_are_named(tmp_path: Path) -> None:
    path = copy(tmp_path)
    add_column(path, DATA, "extra", [1] * 12)
    add_column(path, EPISODES, "weather", ["dry"] * 3)
    info(lambda one: {**one, "robot_type": "arm", "huge": "x" * 20_000})(path)
    source = open_lerobot(path)
    assert source.notes["not_taken"] == {
        "extra": "not among the features of meta/info.json",
        "meta/episodes: weather": "not part of any step",
        "meta/info.json: huge": "not part of any step",
    }
    assert source.notes["lerobot"]["robot_type"] == "arm"


def test_without_a_table_of_tasks(tmp_path: Path) -> None:
    path = copy(tmp_path)
    (path / "meta/tasks.parquet").unlink()
    source = open_lerobot(path)
    assert "task" not in source.schema
    assert source.notes["not_taken"] == {"task_index": "meta/tasks.parquet is missing"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (column(DATA, "task_index", row(5, 7)), "task_index: expected the number of a task, found 7"),
        (column(Path("meta/tasks.parquet"), "task_index", lambda _: None), "task_index is missing"),
        (
            column(Path("meta/tasks.parquet"), "__index_level_0__", row(0, None)),
            "expected a value in every row, found 1 null",
        ),
    ],
)
def test_damaged_tasks(change: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    path = copy(tmp_path)
    change(path)
    with pytest.raises(CorruptShardError, match=message):
        read(open_lerobot(path), 0)


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    path = copy(tmp_path)
    feature("observation.images.side", dtype="video", shape=[48, 64, 3], info={"is_depth_map": True})(path)
    feature("words", dtype="binary", shape=[1])(path)
    assert open_lerobot(path).notes["not_taken"] == {
        "observation.images.side": "a video of depths, which rlx does not read",
        "words": "neither numbers nor text",
    }
    for name in ("observation.images.top", "observation.state", "observation.grid"):
        feature(name, dtype="binary", shape=[1])(path)
    with pytest.raises(SourceError, match=r"observation is missing; not taken are observation.state .*side"):
        open_lerobot(path)


DAMAGE: dict[str, tuple[Callable[[Path], Any], type[SourceError], str]] = {
    "no info": (
        lambda path: (path / INFO).unlink(),
        SourceNotFoundError,
        "info.json is missing",
    ),
    "no JSON": (lambda path: (path / INFO).write_text("{"), CorruptShardError, "info.json: expected JSON"),
    "another version": (
        info(lambda one: {**one, "codebase_version": "v1.6"}),
        SourceError,
        "expected v2.0, v2.1 or v3.0, found 'v1.6'",
    ),
    "no version": (info(lambda _: {}), SourceError, "codebase_version: expected v2.0, v2.1 or v3.0, found None"),
    "fewer episodes than said": (
        info(lambda one: {**one, "total_episodes": 4}),
        CorruptShardError,
        "total_episodes: expected 3 as meta/episodes lists, found 4",
    ),
    "no number of frames": (
        info(lambda one: {**one, "total_frames": None}),
        CorruptShardError,
        "total_frames: expected 12 as meta/episodes lists, found None",
    ),
    "no features": (
        info(lambda one: {**one, "features": None}),
        CorruptShardError,
        "features: expected dtype and shape",
    ),
    "a shape of words": (feature("action", shape=["x"]), CorruptShardError, "features: expected dtype and shape"),
    "a flat image": (feature("observation.images.top", shape=[3]), CorruptShardError, "shape .3. of image"),
    "another dtype": (feature("action", dtype="float64"), CorruptShardError, "action: expected float64, found float32"),
    "another shape": (feature("action", shape=[3]), CorruptShardError, "action: expected lists of 3"),
    "a huge shape": (feature("action", shape=[2**40]), CorruptShardError, "features: expected dtype and shape"),
    "another picture": (
        feature("observation.images.top", shape=[12, 11, 3]),
        CorruptShardError,
        "observation.images.top: expected a picture of .12, 11, 3., found .12, 10, 3.",
    ),
    "a huge picture": (
        feature("observation.images.top", shape=[10**6, 10**6, 3]),
        CorruptShardError,
        r"info.json: features: expected dtype and shape of each, .*shape \(1000000, 1000000, 3\): expected rows of",
    ),
    "a path that leaves": (
        info(lambda one: {**one, "data_path": "../{chunk_index:03d}/{file_index:03d}.parquet"}),
        SourceError,
        "is not a relative path below its location",
    ),
    "an absolute path": (info(lambda one: {**one, "data_path": "/etc/passwd"}), SourceError, "is not a relative path"),
    "a path that reaches in": (
        info(lambda one: {**one, "data_path": "{chunk_index.__class__}"}),
        CorruptShardError,
        "data_path: expected data/chunk-",
    ),
    "a path of any width": (
        info(lambda one: {**one, "data_path": "{chunk_index:099999999d}"}),
        CorruptShardError,
        "data_path: expected data/chunk-",
    ),
    "no episodes": (lambda path: (path / EPISODES).unlink(), SourceError, "meta/episodes has no .*parquet"),
    "no data": (lambda path: (path / DATA).unlink(), SourceNotFoundError, "file-000.parquet is missing"),
    "data cut off": (lambda path: (path / DATA).write_bytes(b"PAR1"), CorruptShardError, "file-000.parquet is damaged"),
    "no length": (
        column(EPISODES, "length", lambda _: None),
        CorruptShardError,
        "length is missing",
    ),
    "no steps": (
        column(EPISODES, "length", row(0, 0)),
        CorruptShardError,
        "expected 8 rows as in its episodes, found 12",
    ),
    "a gap": (
        column(EPISODES, "episode_index", row(1, 7)),
        CorruptShardError,
        "expected 0, 1, 2 and so on, found .0, 7, 2.",
    ),
    "lengths of null": (
        column(EPISODES, "length", row(0, None)),
        CorruptShardError,
        "length: expected a value in every row, found 1 null",
    ),
    "too long": (
        column(EPISODES, "length", row(0, 5)),
        CorruptShardError,
        "expected 13 rows as in its episodes, found 12",
    ),
    "longer than any file": (
        column(EPISODES, "length", row(0, 2**39)),
        CorruptShardError,
        "expected 549,755,813,896 rows as in its episodes, found 12",
    ),
    "out of order": (
        column(DATA, "episode_index", row(3, 1)),
        CorruptShardError,
        "expected as many rows of every episode as listed",
    ),
    "no column": (column(DATA, "next.done", lambda _: None), CorruptShardError, "next.done is missing"),
    "no action": (column(DATA, "action", lambda _: None), CorruptShardError, "action is missing"),
    "no number": (
        column(DATA, "action", row(2, None)),
        CorruptShardError,
        "action: expected a value in every row, found 1 null",
    ),
    "NaN": (
        column(DATA, "next.reward", row(2, float("nan"))),
        CorruptShardError,
        "expected finite numbers, found NaN in row 2",
    ),
    "no picture": (
        column(DATA, "observation.images.top", row(1, {"bytes": None, "path": "/etc/passwd"})),
        CorruptShardError,
        "observation.images.top: expected a picture's file in every row, found .'bytes': None",
    ),
    "no PNG": (
        column(DATA, "observation.images.top", row(1, {"bytes": b"GIF89a", "path": None})),
        CorruptShardError,
        "observation.images.top: expected a PNG, a JPEG or a WebP, found",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage(tmp_path: Path, kind: str) -> None:
    damage, error, message = DAMAGE[kind]
    path = copy(tmp_path)
    damage(path)
    with pytest.raises(error, match=message + ".*; expected LeRobot's layout, v3.0: "):
        read(open_lerobot(path), 0)


def test_which_directories_are_lerobots(tmp_path: Path) -> None:
    assert FORMAT.recognises(GOLDEN)
    assert not FORMAT.recognises(tmp_path)
