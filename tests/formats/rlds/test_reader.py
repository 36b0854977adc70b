"""A dataset that TensorFlow Datasets wrote (scripts/make_rlds.py), whole and damaged."""

import json
import shutil
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest

from rlx.errors import CorruptShardError, OptionError, SourceError, SourceNotFoundError
from rlx.formats.common.rows import episodes as row_episodes
from rlx.formats.finding import find_run
from rlx.formats.rlds import FORMAT
from rlx.formats.rlds.reader import RLDS, open_rlds
from rlx.schema import Field, Role
from rlx.testing.source import SourceContract, Trajectory, fuzz, merge, read
from scripts.rlu_writer import tf_example, tf_record

GOLDEN = Path(__file__).parents[2] / "golden/rlds"
FILE = "walks-train.tfrecord-00000-of-00001"
_TEXTS, _FLOATS, _INTEGERS = 1, 2, 3
Features = dict[str, tuple[int, list[Any]]]


class TestRLDS(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(row_episodes, "block_steps", lambda _: 4)
        return shutil.copytree(GOLDEN, tmp_path / "walks")

    @pytest.fixture
    def source(self, root: Path) -> RLDS:
        return open_rlds(root)


def test_every_value() -> None:
    source = open_rlds(GOLDEN)
    assert (source.id, source.notes["lossy_jpeg"]) == ("walks", ["observation/photo"])
    assert "not_taken" not in source.notes
    found = read(source, 0)
    with np.load(GOLDEN / "expected.npz") as expected:
        for number, trajectory in enumerate(found):
            for name in source.schema:
                if name in ("terminated", "truncated"):
                    continue
                if name in ("instruction", "discount"):
                    assert set(trajectory[name]) == {"walk" if name == "instruction" else 1}
                    continue
                rows = expected[f"{number}/{name}"]
                wanted = rows if name.startswith("observation") else rows[:-1]
                assert trajectory[name].dtype == (np.int64 if name == "label" else wanted.dtype)
                # JPEG's decoders round differently; everything else is exact.
                tolerance = 8 if name == "observation/photo" else 0
                np.testing.assert_allclose(trajectory[name].astype(float), wanted, rtol=0, atol=tolerance, err_msg=name)
            terminated = expected[f"{number}/is_terminal"][-1]
            assert (trajectory["terminated"][-1], trajectory["truncated"][-1]) == (terminated, not terminated)
    assert [one.episode for one in found] == [10, 11, 12]


def example(steps: int = 3, **change: Any) -> Features:
    """An episode of the dataset that ``described`` describes."""
    flags = {"is_first": [1] + [0] * (steps - 1), "is_last": [0] * (steps - 1) + [1], "is_terminal": [0] * steps}
    features: Features = {f"steps/{name}": (_INTEGERS, values) for name, values in flags.items()}
    features |= {
        "steps/observation": (_FLOATS, [float(number) for number in range(2 * steps)]),
        "steps/action": (_INTEGERS, list(range(steps))),
        "steps/reward": (_FLOATS, [0.5] * steps),
        "steps/raw": (_TEXTS, [struct.pack("<d", number) for number in range(steps)]),
    }
    features |= {f"steps/{name}": value for name, value in change.items()}
    return {name: value for name, value in features.items() if value is not None}


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    return {"tensor": {"dtype": dtype, "encoding": encoding, "shape": {"dimensions": [str(size) for size in shape]}}}


STEP = {
    "observation": tensor("float32", 2),
    "action": tensor("int64"),
    "reward": tensor("float32"),
    "raw": tensor("float64", encoding="bytes"),
    "is_first": tensor("bool"),
    "is_last": tensor("bool"),
    "is_terminal": tensor("bool"),
}


def write(path: Path, examples: list[Features], step: Mapping[str, Any] = STEP, **info: Any) -> Path:
    path.mkdir()
    steps = {"sequence": {"feature": {"featuresDict": {"features": step}}}}
    (path / "features.json").write_text(json.dumps({"featuresDict": {"features": {"steps": steps}}}))
    split = {"name": "train", "shardLengths": [str(len(examples))]}
    described = {"name": "walks", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split], **info}
    (path / "dataset_info.json").write_text(json.dumps(described))
    (path / FILE).write_bytes(b"".join(tf_record(tf_example(one)) for one in examples))
    return path


def test_splits_are_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [example(3), example(2)])
    counts = {"train": ["2"], "test": ["1"]}
    change(
        "dataset_info.json",
        lambda info: {**info, "splits": [{"name": name, "shardLengths": lengths} for name, lengths in counts.items()]},
    )(path)
    (path / "walks-test.tfrecord-00000-of-00001").write_bytes(tf_record(tf_example(example(4))))
    source = find_run(path, None)
    found = [one for shard in source.shards() for one in read(source, shard)]
    assert [one["split"].tolist() for one in found] == [["train"] * 2, ["train"], ["test"] * 3]
    assert source.schema["split"] == Field("string", (), Role.STEP)
    only = find_run(path, None, "rlds:split=test")
    assert "split" not in only.schema
    assert [one.steps for one in read(only, 0)] == [3]
    with pytest.raises(SourceError, match="unknown split 'dev', expected one of train, test"):
        find_run(path, None, "rlds:split=dev")


def test_texts(tmp_path: Path) -> None:
    step = {**STEP, "instruction": {"text": {}}, "words": tensor("string", 2), "code": tensor("string")}
    said = ["lift", "", "r\u00e9", "x"]
    features = {
        "instruction": (_TEXTS, [word.encode() for word in said]),
        "words": (_TEXTS, [word.encode() for word in said * 2]),
        "code": (_TEXTS, [b"\xff"] * 4),
    }
    source = open_rlds(write(tmp_path / "a", [example(4, **features)], step))
    (found,) = read(source, 0)
    assert found["instruction"].tolist() == said[:3]
    assert found["words"].tolist() == [["lift", ""], ["r\u00e9", "x"], ["lift", ""]]
    assert source.notes["not_taken"] == {"code": "bytes that are not UTF-8 text"}
    later = example(4, **{**features, "instruction": (_TEXTS, [b"ok", b"\xff\xfe", b"", b""])})
    with pytest.raises(CorruptShardError, match=r"record 1: steps/instruction: expected UTF-8 text, found b.\\xff"):
        read(open_rlds(write(tmp_path / "b", [example(4, **features), later], step)), 0)


def test_what_an_episode_has_beside_its_steps_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [{**example(3), "episode_id": (_TEXTS, [b"one"])}])
    change(
        "features.json",
        lambda one: {
            "featuresDict": {
                "features": {
                    **one["featuresDict"]["features"],
                    "episode_id": {"text": {}},
                    "episode_metadata": {"featuresDict": {"features": {"file_path": {"text": {}}}}},
                }
            }
        },
    )(path)
    assert open_rlds(path).notes["not_taken"] == {
        "episode_metadata/file_path": "not part of any step",
        "episode_id": "not a whole number: episodes are numbered in their order",
    }


def test_an_episode_of_one_row_has_no_step(tmp_path: Path) -> None:
    source = open_rlds(write(tmp_path / "a", [example(1), example(3)]))
    (trajectory,) = read(source, 0)
    assert (trajectory.episode, trajectory["raw"].tolist()) == (1, [0, 1])


NO_FLAG = "expected one flag per step, found none"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": None}, "steps/reward: expected 3 rows, found none"),
        ({"reward": (_FLOATS, [1.0] * 2)}, "steps/reward: expected 3 rows, found 2"),
        ({"reward": (_FLOATS, [1.0, float("nan"), 0.0])}, "steps/reward: expected finite numbers, found NaN in row 1"),
        ({"reward": (_TEXTS, [b"x"] * 3)}, r"steps/reward: expected float32\[\] per step, found 3 texts"),
        ({"observation": (_FLOATS, [1.0] * 7)}, r"steps/observation: expected float32\[2\] per step, found 7 numbers"),
        ({"raw": (_TEXTS, [b"1234"] * 3)}, "steps/raw: expected 8 bytes per step, found 4"),
        ({"raw": (_INTEGERS, [1, 2, 3])}, "steps/raw: expected a text per step, found 3 numbers"),
        ({"is_last": None}, f"steps/is_last: {NO_FLAG}"),
        ({"is_last": (_INTEGERS, [])}, "steps/is_terminal, steps/is_first: expected 0 rows, found 3 and 3"),
        ({"is_last": (_INTEGERS, [1, 0, 1])}, "steps/is_last: expected it at the last step only"),
        ({"is_terminal": (_FLOATS, [0.0, 0.5, 0.0])}, "steps/is_terminal: expected 0 or 1, found 0.5 in row 1"),
        ({"is_terminal": (_INTEGERS, [])}, "steps/is_terminal, steps/is_first: expected 3 rows, found 0 and 3"),
    ],
)
def test_bad_examples(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "a", [example(2), example(3, **change)])
    with pytest.raises(CorruptShardError, match=message + ".*; expected a version of a dataset") as caught:
        read(open_rlds(path), 0)
    assert f"{FILE} is corrupt: record 1: " in str(caught.value)


def test_steps_larger_than_any(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [example(2)], {**STEP, "observation": tensor("float32", 10**6, 10**6)})
    with pytest.raises(
        CorruptShardError,
        match=r"features.json: steps/observation shape \(1000000, 1000000\): expected rows of at most",
    ):
        open_rlds(path)


def test_pictures_of_another_size(tmp_path: Path) -> None:
    image = {"image": {"dtype": "uint8", "shape": {"dimensions": ["8", "8", "3"]}}}
    grey = (GOLDEN / FILE).read_bytes()
    start = grey.index(b"\x89PNG")
    png = grey[start : grey.index(b"IEND", start) + 8]
    for picture, message in (
        (png, "expected a picture of .8, 8, 3., found"),
        (b"GIF89a", "expected a PNG, a JPEG or a WebP"),
        (png[:40], "expected a picture of .8, 8, 3., found"),
        (b"\xff\xd8\xff\xe0\x00\x04abcd", "expected a JPEG, found no header of a frame"),
    ):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        episode = example(2, observation=(_TEXTS, [picture] * 2))
        path = write(tmp_path / "a", [episode], {**STEP, "observation": image})
        with pytest.raises(CorruptShardError, match=f"record 0: steps/observation: step 0: {message}"):
            read(open_rlds(path), 0)


def change(name: str, apply: Callable[[Any], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        file = path / name
        file.write_text(json.dumps(apply(json.loads(file.read_text()))))

    return damage


def split(**values: Any) -> Callable[[Path], None]:
    return change("dataset_info.json", lambda info: {**info, "splits": [{**info["splits"][0], **values}]})


DAMAGE: dict[str, tuple[Callable[[Path], None], type[SourceError], str]] = {
    "no info": (
        lambda path: (path / "dataset_info.json").unlink(),
        SourceNotFoundError,
        "dataset_info.json is missing",
    ),
    "no features": (lambda path: (path / "features.json").unlink(), SourceNotFoundError, "features.json is missing"),
    "no file": (lambda path: (path / FILE).unlink(), SourceNotFoundError, FILE),
    "no JSON": (
        lambda path: (path / "features.json").write_text("{"),
        CorruptShardError,
        "features.json: expected JSON",
    ),  # type: ignore[dict-item]
    "an episode's field is no feature": (
        change("features.json", lambda said: said["featuresDict"]["features"].update(other=1.5) or said),
        CorruptShardError,
        "expected a FeaturesDict with steps.*found none: TypeError",
    ),
    "no steps": (change("features.json", lambda _: {}), CorruptShardError, "expected a FeaturesDict with steps"),
    "another file format": (
        change("dataset_info.json", lambda info: {**info, "fileFormat": "riegeli"}),
        SourceError,
        "fileFormat: expected tfrecord or array_record, found 'riegeli'",
    ),
    "no splits": (change("dataset_info.json", lambda _: {}), CorruptShardError, "expected splits with name"),
    "no episodes": (split(shardLengths=[]), SourceError, "has no episode"),
    "many shards": (split(shardLengths=["1"] * 100_001), CorruptShardError, "shardLengths"),
    "negative": (split(shardLengths=["-1"]), CorruptShardError, "shardLengths"),
    "fewer episodes than listed": (
        split(shardLengths=["2"]),
        CorruptShardError,
        "expected 2 episodes as in dataset_info.json, found 1",
    ),
    "a path that leaves": (split(name="../../secret"), SourceError, "is not a relative path below its location"),
    "a template that leaves": (split(filepathTemplate="/etc/passwd"), SourceError, "is not a relative path below"),
    "a template that reaches in": (split(filepathTemplate="{SPLIT.__class__}"), CorruptShardError, "filepathTemplate"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage(tmp_path: Path, kind: str) -> None:
    damage, error, message = DAMAGE[kind]
    path = write(tmp_path / "a", [example()])
    damage(path)
    with pytest.raises(error, match=message + ".*; expected a version of a dataset of TensorFlow Datasets: "):
        read(open_rlds(path), 0)


@pytest.mark.parametrize("missing", ["is_first", "is_last", "is_terminal", "reward", "observation", "action"])
def test_a_feature_is_missing(tmp_path: Path, missing: str) -> None:
    step = {name: feature for name, feature in STEP.items() if name != missing}
    with pytest.raises(
        CorruptShardError, match=rf"features\.json: steps/{missing} is missing, found .*; expected a version"
    ):
        open_rlds(write(tmp_path / "a", [example()], step))


def test_which_directories_are_rlds(tmp_path: Path) -> None:
    assert FORMAT.recognises(GOLDEN)
    assert not FORMAT.recognises(tmp_path)


KINDS = GOLDEN.with_name("rlds_kinds")
KINDS_FILE = "kinds-train.array_record-00000-of-00001"


class TestArrayRecord(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return shutil.copytree(KINDS, tmp_path / "kinds")

    @pytest.fixture
    def source(self, root: Path) -> RLDS:
        return open_rlds(root)


def test_bfloat16_deep_pictures_and_compressed_tensors_in_array_record() -> None:
    source = open_rlds(KINDS)
    assert "not_taken" not in source.notes
    found = read(source, 0)
    with np.load(KINDS / "expected.npz") as expected:
        for name in expected:
            rows = np.concatenate([one[f"observation/{name}"] for one in found])
            assert rows.dtype == expected[name].dtype
            np.testing.assert_array_equal(rows, expected[name], err_msg=name)
    assert [one["action"].tolist() for one in found] == [[0, 1, 2], [0]]


def test_only_some_files_are_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [example(3), example(2)], splits=[{"name": "train", "shardLengths": ["2", "5", "1"]}])
    (path / FILE).rename(path / "walks-train.tfrecord-00000-of-00003")
    (path / "walks-train.tfrecord-00002-of-00003").write_bytes(tf_record(tf_example(example(4))))
    source = find_run(path, None, "rlds:files=*-0000[02]-of-*")
    found = [one for shard in source.shards() for one in read(source, shard)]
    assert [one.steps for one in found] == [2, 1, 3]
    with pytest.raises(SourceNotFoundError, match="00001-of-00003 does not exist"):
        read(find_run(path, None), 1)
    with pytest.raises(SourceError, match="no file is called x, found names such as walks-train"):
        open_rlds(path, files="x")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (zlib.compress(struct.pack("<3H", 0x3F80, 0x4000, 0xC000)), None),
        (b"xyz", "steps/brief: expected bytes compressed with zlib, found"),
        (zlib.compress(bytes(6))[:-5], "steps/brief: expected 6 bytes per step, found 6 before they end|compressed"),
        (zlib.compress(bytes(5)), "steps/brief: expected 6 bytes per step, found 5"),
        (zlib.compress(bytes(2**24)), "steps/brief: expected 6 bytes per step, found 7"),
    ],
)
def test_compressed_tensors(value: bytes, message: str | None, tmp_path: Path) -> None:
    step = {**STEP, "brief": tensor("bfloat16", 3, encoding="zlib")}
    path = write(tmp_path / "a", [example(3, brief=(_TEXTS, [value] * 3))], step)
    if message is None:
        assert read(open_rlds(path), 0)[0]["brief"].tolist() == [[1, 2, -2]] * 2
        return
    with pytest.raises(CorruptShardError, match=message):
        read(open_rlds(path), 0)


def test_a_deep_picture_of_another_depth(tmp_path: Path) -> None:
    described = {"image": {"shape": {"dimensions": ["2", "2", "1"]}, "dtype": "uint16", "encodingFormat": "png"}}
    picture = bytes(imagecodecs.png_encode(np.zeros((2, 2), np.uint8)))
    path = write(tmp_path / "a", [example(3, depth=(_TEXTS, [picture] * 3))], {**STEP, "depth": described})
    with pytest.raises(CorruptShardError, match="expected a PNG of 16 bits a channel, found depth 8"):
        read(open_rlds(path), 0)


FUZZED = [(GOLDEN, FILE), (KINDS, KINDS_FILE), (GOLDEN, "features.json"), (GOLDEN, "dataset_info.json")]


@pytest.mark.parametrize(("golden", "file"), FUZZED)
def test_wrong_bytes_are_values_or_a_named_error(golden: Path, file: str, tmp_path: Path) -> None:
    path = shutil.copytree(golden, tmp_path / "a")
    assert fuzz(open_rlds, path, [path / file], range(60))["error"] > 10


@pytest.mark.soak
@pytest.mark.parametrize(("golden", "file"), FUZZED)
def test_thousands_of_wrong_bytes(golden: Path, file: str, tmp_path: Path) -> None:
    path = shutil.copytree(golden, tmp_path / "a")
    fuzz(open_rlds, path, [path / file], range(60, 2_060))


def read_counted(source: RLDS) -> tuple[list[Trajectory], Counter[str]]:
    dropped = Counter[str]()
    return merge(source.blocks(0, dropped), source.schema), dropped


def test_what_the_last_row_has_besides_its_observation_is_counted_or_a_step(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a", [example(3), example(3, reward=(_FLOATS, [1.0, 1.0, 0.0]), action=(_INTEGERS, [1, 1, 0]))]
    )
    found, dropped = read_counted(open_rlds(path))
    assert [one.steps for one in found] == [2, 2]
    assert dropped == {"action_in_the_last_row": 1, "reward_in_the_last_row": 1}
    found, dropped = read_counted(open_rlds(path, last="step"))
    assert [one["reward"].tolist() for one in found] == [[0.5, 0.5, 0.5], [1.0, 1.0, 0.0]]
    assert [(one["truncated"][-1], one.cut, one.final_recorded) for one in found] == [(True, False, False)] * 2
    assert not dropped
    with pytest.raises(OptionError, match="last=row: expected observation or step"):
        open_rlds(path, last="row")


def test_a_first_row_in_mid_episode_begins_another(tmp_path: Path) -> None:
    zeros = {"reward": (_FLOATS, [1.0, 0.0, 1.0, 1.0, 0.0]), "action": (_INTEGERS, [1, 0, 1, 1, 0])}
    flags = {"is_first": (_INTEGERS, [1, 0, 1, 0, 0]), "is_terminal": (_INTEGERS, [0, 1, 0, 0, 0])}
    found, dropped = read_counted(open_rlds(write(tmp_path / "a", [example(5, **zeros, **flags)])))
    assert [one["observation"][:, 0].tolist() for one in found] == [[0, 2], [4, 6, 8]]
    assert [(one["terminated"][-1], one.from_reset, one.cut) for one in found] == [
        (True, True, False),
        (False, True, False),
    ]
    assert dropped == {"is_first_in_mid_episode": 1}


def test_a_terminal_flag_in_mid_episode_is_counted(tmp_path: Path) -> None:
    quiet = {"reward": (_FLOATS, [0.0] * 4), "action": (_INTEGERS, [0] * 4)}
    path = write(tmp_path / "a", [example(4, **quiet, is_terminal=(_INTEGERS, [0, 1, 0, 1]))])
    (one,), dropped = read_counted(open_rlds(path))
    assert one["terminated"].tolist() == [False, False, True]
    assert dropped == {"is_terminal_in_mid_episode": 1}


def test_an_episode_whose_last_row_is_not_marked_is_cut(tmp_path: Path) -> None:
    (one,), _ = read_counted(open_rlds(write(tmp_path / "a", [example(3, is_last=(_INTEGERS, [0, 0, 0]))])))
    assert (one["truncated"].tolist(), one.cut) == ([False, True], True)


def test_numbers_beyond_the_dtype_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [example(3, action=(_INTEGERS, [0, 2**40, 0]))])
    described = (path / "features.json").read_text()
    (path / "features.json").write_text(described.replace("int64", "int32"))
    with pytest.raises(CorruptShardError, match=r"steps/action: expected int32.*, found 1099511627776"):
        read(open_rlds(path), 0)
