"""p(doom)'s ArrayRecord files, and other records of arrays; damage, and pickles that are never opened."""

import os
import pickle
import random
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import CorruptShardError, SourceError
from rlx.formats.array_record import FORMAT
from rlx.formats.array_record.reader import ArrayRecords, open_array_record
from rlx.formats.array_record.record import parse
from rlx.formats.common.source import MalformedError
from rlx.formats.finding import find_run
from rlx.schema import Role
from rlx.testing.source import SourceContract, merge, read, steps_or_error
from tests.array_record_files import CHUNK, pieces, read_records, write_records

LENGTHS = (7, 5, 3)


def write(root: Path, *files: Any) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number, records in enumerate(files):
        write_records(root / f"data_{number:04}.array_record", records)
    return root


class TestArrayRecords(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return write(tmp_path, pieces(LENGTHS), pieces((6, 2)))

    @pytest.fixture
    def source(self, root: Path) -> ArrayRecords:
        return open_array_record(root)


class TestOneFile(TestArrayRecords):
    @pytest.fixture
    def source(self, root: Path) -> ArrayRecords:
        return open_array_record(root / "data_0001.array_record")

    def test_id(self, source: ArrayRecords) -> None:
        assert (source.id, source.shards(), source.files(0)) == ("data_0001", range(1), ["data_0001.array_record"])


def test_every_piece_is_a_trajectory_without_its_last_outcome(tmp_path: Path) -> None:
    """Whether a piece continues the one before is not recorded, nor what followed its last action."""
    source, dropped = find_run(write(tmp_path / "train", pieces(LENGTHS)), None), Counter[str]()
    found = merge(source.blocks(0, dropped), source.schema)
    assert [one["observation"][:, 0, 0].tolist() for one in found] == [
        [0, 1, 2, 3, 4], [5, 6], [16, 17, 18, 19, 20], [32, 33, 34],
    ]  # fmt: skip
    assert [one["action"].tolist() for one in found] == [[0, 1, 2, 3], [1], [0, 1, 2, 3], [0, 1]]
    assert all(one.cut and one.final_recorded and not one.from_reset for one in found)
    assert [one.episode for one in found] == [0, 1, 2, 3]
    assert dropped == {"step_whose_outcome_is_not_recorded": 4}
    assert (source.id, source.schema["action"].dtype) == ("train", "int8")
    assert source.notes == {
        "format": "ArrayRecord",
        "rewards": "unrecorded: zeros",
        "terminated": "unrecorded",
        "truncation": "unrecorded",
        "steps_without_outcome": 4,
    }


def test_p_dooms_metadata_name_the_environment_and_the_actions(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text('{"env": "ALE/Breakout-v5", "num_actions": 4, "num_episodes_train": 2}')
    source = open_array_record(write(tmp_path / "train", pieces(LENGTHS)))
    assert source.notes["environment"] == "ALE/Breakout-v5"
    assert source.schema["action"].space == {"type": "Discrete", "n": 4}


def test_rewards_and_other_arrays_are_fields(tmp_path: Path) -> None:
    more: dict[str, Callable[[int], Any]] = {
        "rewards": lambda count: np.arange(count, dtype=np.float32)[:, None],
        "lives": np.arange,
        "said": lambda count: ["left"] * count,
        "path": lambda _: "a.mp4",
        "odd": lambda count: np.arange(count + 1),
        "none": lambda _: None,
    }
    source = open_array_record(write(tmp_path, pieces(LENGTHS, more=more)))
    (first, *_) = read(source, 0)
    assert (first["reward"].tolist(), first["lives"].tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert (first["said"].tolist(), source.schema["lives"].role) == (["left"] * 4, Role.STEP)
    assert source.notes["not_taken"] == {
        "path": "neither numbers nor text",
        "odd": "not one row per step",
        "none": "neither numbers nor text",
    }


def test_flags_end_trajectories(tmp_path: Path) -> None:
    ends: dict[str, Callable[[int], Any]] = {
        "terminated": lambda count: np.arange(count) == 1,
        "truncated": lambda count: np.arange(count) == 3,
    }
    source, dropped = open_array_record(write(tmp_path, pieces((5,), more=ends))), Counter[str]()
    first, second = merge(source.blocks(0, dropped), source.schema)
    assert (first["terminated"].tolist(), first.final_recorded) == ([False, True], False)
    assert (second["truncated"].tolist(), second.cut, second.from_reset) == ([False, True], False, True)
    assert not second.final_recorded
    # The one row of the last piece.
    assert dropped == {"step_whose_outcome_is_not_recorded": 1}
    assert source.notes["steps_without_outcome"] == 1


@pytest.mark.parametrize("flags", [{"terminated"}, {"truncated"}, {"terminated", "truncated"}])
def test_the_notes_are_of_what_is_read(flags: set[str], tmp_path: Path) -> None:
    ends: dict[str, Callable[[int], Any]] = {
        "terminated": lambda count: np.arange(count) == 1,
        "truncated": lambda count: np.arange(count) == count - 1,
    }
    ends = {flag: ends[flag] for flag in flags}
    source, dropped = open_array_record(write(tmp_path, pieces((5, 4, 1), more=ends))), Counter[str]()
    found = merge(source.blocks(0, dropped), source.schema)
    unseen = sum(bool(one["truncated"][-1] and not one.cut) for one in found)
    assert source.notes.get("truncations_without_final_observation", 0) == unseen
    assert source.notes.get("steps_without_outcome", 0) == dropped["step_whose_outcome_is_not_recorded"]
    assert sum(one.steps for one in found) == 10 - dropped["step_whose_outcome_is_not_recorded"]


@pytest.mark.parametrize(
    ("shape", "options", "found"),
    [
        ((84, 84), {}, (84, 84)),
        ((64, 64, 3), {}, (64, 64, 3)),
        ((8, 6), {"width": 6}, (8, 6)),
        ((8, 6, 3), {"height": 8, "channels": 3}, (8, 6, 3)),
        ((8, 6, 3), {"height": 8, "width": 6, "channels": 3}, (8, 6, 3)),
        ((8, 8, 4), {"channels": 4}, (8, 8, 4)),
    ],
)
def test_frames(shape: tuple[int, ...], options: dict[str, int], found: tuple[int, ...], tmp_path: Path) -> None:
    source = open_array_record(write(tmp_path, pieces((4,), shape)), **options)
    assert source.schema["observation"].shape == found
    assert read(source, 0)[0]["observation"].shape == (4, *found)


def test_frames_of_an_unknown_shape_need_options(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match="expected square frames of 1 or 3 channels, found 56 bytes a frame"
    ) as caught:
        open_array_record(write(tmp_path, pieces((4,), (8, 7))))
    assert caught.value.hint == "`from_` array_record:height=H,width=W,channels=C"


def test_which_paths_are_recognised(tmp_path: Path) -> None:
    assert FORMAT.recognises(write(tmp_path / "a", pieces((4,))))
    assert FORMAT.recognises(tmp_path / "a/data_0000.array_record")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/x.array_record").write_bytes(b"other")
    assert not FORMAT.recognises(tmp_path / "b")
    with pytest.raises(SourceError, match=r"has no file named \*.array_record"):
        open_array_record((tmp_path / "b").parent)


class Bomb:
    """Unpickling it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_no_object_is_unpickled(tmp_path: Path) -> None:
    records = [{**record, "author": Bomb(tmp_path / "burst")} for record in pieces(LENGTHS)]
    with pytest.raises(CorruptShardError, match=r"record 0: expected a pickled dict .*: an object of posix.mkdir"):
        open_array_record(write(tmp_path, records))
    assert not (tmp_path / "burst").exists()


VALUES = {
    "numbers": {"a": 3, "b": -(2**31), "c": 2**80, "d": 1.5, "e": True, "f": None, "g": 70_000, "h": 300},
    "texts": {"a": "", "b": "r\u00e9" * 200, "c": ["x", "y"], "d": ("x", 1, 2, 3), "e": ()},
    "bytes": {"a": b"", "b": bytes(300), "c": bytes(70_000)},
    "nested": {"rlx": {"a": 1, "b": {"c": []}}},
    "shared": {"a": (text := "one"), "b": text, "c": [text, text]},
}


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_that_were_pickled(name: str, protocol: int) -> None:
    assert parse(pickle.dumps(VALUES[name], protocol)) == VALUES[name]


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("dtype", ["?", "i1", "<i8", ">i4", "u2", "<f2", ">f8", "f4"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 3, 4)])
def test_arrays_are_those_that_were_pickled(shape: tuple[int, ...], dtype: str, protocol: int) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    found = parse(pickle.dumps({"a": array, "b": np.asfortranarray(array), "c": array}, protocol))
    for key in "abc":
        np.testing.assert_array_equal(found[key], array)
        assert found[key].dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_scalars_and_arrays_of_other_types(protocol: int) -> None:
    others = {"a": np.float32(0.5), "b": np.array(["x"]), "c": np.array([None]), "d": np.datetime64("2026-01-01")}
    found = parse(pickle.dumps(others, protocol))
    assert (found["a"], found["b"], found["c"], found["d"]) == (0.5, None, None, None)


@pytest.mark.parametrize("value", [[1], {1: 2}, 3, {"a": object()}, {"a": {1, 2}}, {"a": range(3)}])
def test_other_pickles_are_refused(value: Any) -> None:
    with pytest.raises(MalformedError):
        parse(pickle.dumps(value))


DEEP = b")" + b"\x85" * 300_000  # a tuple in a tuple in a tuple
SHARED = b"()\x94" + b"".join(bytes([*b"h", n, *b"h", n, 0x86, 0x94]) for n in range(60)) + b"t"  # 2**60 tuples
UINT8 = b"cnumpy\ndtype\n\x8c\x02u1\x85R"


@pytest.mark.parametrize("nested", [DEEP, SHARED], ids=["deep", "shared"])
@pytest.mark.parametrize(
    "item",
    [
        b"%sK\x01",
        b"\x8c\x01a\x8c\x05numpy%s\x93",
        b"\x8c\x01a%s\x8c\x05dtype\x93",
        b"\x8c\x01acnumpy._core.numeric\n_frombuffer\n(C\x00" + UINT8 + b"%s\x8c\x01CtR",
        b"\x8c\x0fsequence_length%s",
        b"\x8c\x0fsequence_lengthK\x01\x8c\x03rlx}\x8c\ntrajectory%ss",
    ],
    ids=["key", "name", "module", "shape", "length", "piece"],
)
def test_nested_values_neither_crash_nor_hang(item: bytes, nested: bytes, tmp_path: Path) -> None:
    record = b"\x80\x04}(" + item % nested + b"u."
    root = write(tmp_path, [*pieces(LENGTHS), record])
    with pytest.raises(CorruptShardError, match=r"record [1-9]: "):
        read(open_array_record(root), 0)


def test_a_pickle_that_is_cut_off_or_changed_is_a_dict_or_refused() -> None:
    whole = pickle.dumps({"a": np.arange(300), "b": "text", "c": 70_000, "d": b"x" * 300, "e": [1.5, None, True]})
    dice, found = random.Random(0), Counter[str]()
    for number in range(2000):
        content = bytearray(whole[: dice.randrange(len(whole))] if number % 4 == 0 else whole)
        for _ in range(0 if number % 4 == 0 else dice.choice((1, 1, 4))):
            place = dice.randrange(min(220, len(content))) if dice.random() < 0.8 else dice.randrange(len(content))
            content[place] = dice.randrange(256)
        try:
            found[type(parse(bytes(content))).__name__] += 1
        except MalformedError:
            found["error"] += 1
    assert set(found) == {"dict", "error"}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"sequence_length": 2, "actions": np.zeros(2, "i1")}], "record 0: observation is missing"),
        ([{"sequence_length": 2, "raw_video": bytes(128)}], "record 0: action is missing"),
        ([{"raw_video": bytes(64), "actions": np.zeros(1, "i1")}], "sequence_length: expected a number of steps"),
        (
            [{"sequence_length": 3, "raw_video": bytes(64), "actions": np.zeros(3)}],
            "raw_video: expected bytes of 3",
        ),
        ([{"sequence_length": 2**40, "raw_video": bytes(64)}], "sequence_length: expected a number of steps"),
        ([b"\x80\x04N."], "record 0: expected a pickled dict with names as keys"),
        ([b""], "record 0: expected a pickled dict"),
        ([*pieces((4,)), {"sequence_length": 2}], r"record 1: raw_video: expected uint8\[2, 8, 8\], found NoneType"),
        (
            [*pieces((4,)), {**pieces((4,))[0], "actions": np.zeros(3, "i1")}],
            r"record 1: actions: expected int8\[4\], found int8\[3\]",
        ),
        ([*pieces((4,)), {**pieces((4,))[0], "raw_video": bytes(3)}], "record 1: raw_video: expected uint8"),
    ],
)
def test_records_that_are_of_no_steps(records: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match=message + ".*; expected ArrayRecord files"):
        read(open_array_record(write(tmp_path, records)), 0)


def test_claims_of_chunks_are_checked_before_they_are_decoded(tmp_path: Path) -> None:
    path = write(tmp_path, pieces(LENGTHS)) / "data_0000.array_record"
    content = bytearray(path.read_bytes())
    header = 64  # of the first chunk after the file's signature
    struct.pack_into("<Q", content, header + 32, 2**40)
    path.write_bytes(content)
    with pytest.raises(CorruptShardError, match=r"records of at most 536,870,912, found .* with 1,099,511,627,776"):
        open_array_record(path)
    struct.pack_into("<Q", content, header + 8, 2**40)
    path.write_bytes(content)
    with pytest.raises(CorruptShardError, match="expected a chunk of at most"):
        open_array_record(path)


def test_chunks_across_blocks(tmp_path: Path) -> None:
    """Every 64 KiB a header interrupts the chunks, and the headers of chunks."""
    dice = random.Random(0)
    for number in range(20):
        lengths = [dice.randrange(1, 30) for _ in range(12)]
        videos = [dice.randbytes(length * 4096) for length in lengths]
        whole = [
            {"raw_video": video, "sequence_length": length, "actions": np.zeros(length)}
            for video, length in zip(videos, lengths, strict=True)
        ]
        path = write(tmp_path / str(number), whole) / "data_0000.array_record"
        assert sum(one.steps for one in read(open_array_record(path), 0)) == sum(lengths) - len(lengths)
        assert [record["raw_video"] for record in read_records(path)] == videos


def test_wrong_bytes_are_values_or_a_named_error(tmp_path: Path) -> None:
    path = write(tmp_path, pieces((CHUNK * 3,), (32, 32))) / "data_0000.array_record"
    content, dice, found = path.read_bytes(), random.Random(0), Counter[bool]()
    filled = [place for place in range(len(content)) if content[place]]
    for number in range(600):
        damaged = bytearray(content[: dice.randrange(len(content))] if number % 5 == 0 else content)
        for _ in range(0 if number % 5 == 0 else dice.choice((1, 3, 20))):
            damaged[dice.choice(filled)] = dice.randrange(256)
        path.write_bytes(damaged)
        found[isinstance(steps_or_error(open_array_record, path), int)] += 1
    assert found[False] > 400, found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x06N.", "a later protocol than 5"),
        (b"\x80\x04K\x01\x86.", "a tuple of too few values"),
        (b"\x80\x04})K\x01s.", "a key of several values"),
        (b"\x80\x04K\x01K\x02a.", "items of a int"),
        (b"\x80\x04cnumpy\nndarray\n)R.", "call ndarray: not a function"),
        (b"\x80\x04cnumpy\nndarray\nNb.", "a state of call ndarray"),
    ],
)
def test_pickles_that_mean_nothing(content: bytes, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        parse(content)


def test_flags_of_another_shape(tmp_path: Path) -> None:
    records = pieces(LENGTHS, more={"terminated": lambda count: np.zeros(count + 1, bool)})
    with pytest.raises(CorruptShardError, match=r"record 0: terminated: expected one flag per step, found bool\[6\]"):
        read(open_array_record(write(tmp_path, records)), 0)


def test_a_file_without_records(tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match=r"data_0000\.array_record has no record"):
        open_array_record(write(tmp_path, []))
