"""Datasets with videos that LeRobot recorded (scripts/make_lerobot_videos.py), of versions 3 and 2.1."""

import json
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, MissingExtraError, SourceError
from rlx.formats.common.rows import episodes as row_episodes
from rlx.formats.common.rows import table as row_table
from rlx.formats.lerobot import reader
from rlx.formats.lerobot.reader import LeRobot, open_lerobot
from rlx.formats.lerobot.video import UNUSED, Video, check_samples
from rlx.testing.source import SourceContract, fuzz, merge, read

GOLDEN = Path(__file__).parents[2] / "golden"
CAMERA = "observation.images.top"
V3 = Path(f"videos/{CAMERA}/chunk-000/file-000.mp4")
V2 = Path(f"videos/chunk-000/{CAMERA}/episode_000002.mp4")
LENGTHS = (5, 2, 6)


class Videos(SourceContract):
    version = "lerobot_v3"

    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for module in (reader, row_table):
            monkeypatch.setattr(module, "batch_rows", lambda _: 4)
        monkeypatch.setattr(row_episodes, "block_steps", lambda _: 4)
        return shutil.copytree(GOLDEN / self.version, tmp_path / "filmed")

    @pytest.fixture
    def source(self, root: Path) -> LeRobot:
        return open_lerobot(root)

    def test_every_value_is_that_of_lerobots_reader(self, source: LeRobot) -> None:
        dropped = Counter[str]()
        found = merge(source.blocks(0, dropped), source.schema)
        assert [one.steps for one in found] == list(LENGTHS)
        assert not dropped
        assert source.notes["lossy_video"] == ["observation/images/top"]
        assert "not_taken" not in source.notes
        names = {"observation/images/top": CAMERA, "observation/state": "observation.state", "action": "action"}
        with np.load(GOLDEN / self.version / "expected.npz") as expected:
            for name, column in {**names, "reward": "next.reward"}.items():
                rows = np.concatenate([one[name][: one.steps] for one in found])
                wanted = expected[column]
                np.testing.assert_array_equal(rows, wanted.reshape(rows.shape), err_msg=name)
        assert [one["task"][0] for one in found] == ["push", "pull", "push"]


class TestVersion3(Videos):
    pass


class TestVersion2(Videos):
    version = "lerobot_v2"

    def test_shards_have_several_files(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = read(open_lerobot(root), 0)
        monkeypatch.setattr(row_episodes, "STEPS_PER_SHARD", 6)
        source = open_lerobot(root)
        assert [len(source.files(shard)) for shard in source.shards()] == [4, 2]
        found = [one for shard in source.shards() for one in read(source, shard)]
        assert [one.episode for one in found] == [one.episode for one in whole]
        for one, other in zip(found, whole, strict=True):
            np.testing.assert_array_equal(one["observation/images/top"], other["observation/images/top"])


def copy(tmp_path: Path, version: str = "lerobot_v3") -> Path:
    return shutil.copytree(GOLDEN / version, tmp_path / "filmed")


def film(path: Path, count: int, size: tuple[int, int] = (48, 64), codec: str = "libx264", **options: Any) -> None:
    """A video whose n-th frame is as bright as n, at ten frames a second."""
    with av.open(str(path), "w", format="mp4") as file:
        stream: Any = file.add_stream(codec, rate=10, options=options)
        stream.height, stream.width = size
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, 10)
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(np.full((*size, 3), 10 * number, np.uint8), format="rgb24")
            frame.pts = number
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def brightness(frames: NDArray[np.uint8]) -> list[int]:
    return [round(frame.mean() / 10) for frame in frames]


@pytest.mark.parametrize("options", [{"g": "2"}, {"g": "12", "bf": "3"}, {"g": "250"}])
def test_any_frame_is_found_from_any_other(options: dict[str, Any], tmp_path: Path) -> None:
    film(tmp_path / "a.mp4", 20, **options)
    dropped = Counter[str]()
    with Video(tmp_path / "a.mp4", (48, 64, 3)) as video:
        assert brightness(video.frames([number / 10 for number in range(20)], dropped)) == list(range(20))
        for start in (13, 2, 0, 19, 7):
            video.seek(start / 10)
            assert brightness(video.frames([start / 10], dropped)) == [start]
    assert not dropped


def test_frames_of_no_step_are_counted(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4", 10)
    dropped = Counter[str]()
    with Video(tmp_path / "a.mp4", (48, 64, 3)) as video:
        assert brightness(video.frames([0, 0.2, 0.2, 0.5], dropped)) == [0, 2, 2, 5]
        assert dropped[UNUSED] == 3
        video.skip_to(0.8, dropped)
        assert dropped[UNUSED] == 5
        with pytest.raises(CorruptShardError, match=r"a.mp4: expected a frame at 1.0000 s, found the end of the video"):
            video.frames([1.0], dropped)


def test_a_longer_video_than_its_episode(tmp_path: Path) -> None:
    path = copy(tmp_path, "lerobot_v2")
    film(path / V2, 8)
    source, dropped = open_lerobot(path), Counter[str]()
    assert [one.steps for one in merge(source.blocks(0, dropped), source.schema)] == list(LENGTHS)
    assert dropped == {UNUSED: 2}


def info(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        described = json.loads((path / "meta/info.json").read_text())
        (path / "meta/info.json").write_text(json.dumps({**described, **change(described)}))

    return damage


def feature(**said: Any) -> Callable[[Path], None]:
    return info(lambda one: {"features": {**one["features"], CAMERA: {**one["features"][CAMERA], **said}}})


def replaced(file: Path, old: bytes, new: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = (path / file).read_bytes()
        assert old in content
        (path / file).write_bytes(content.replace(old, new))

    return damage


def claimed_samples(path: Path) -> None:
    """The table of frames says that there are two thousand million of a byte each."""
    content = bytearray((path / V3).read_bytes())
    at = content.index(b"stsz")
    content[at + 8 : at + 16] = struct.pack(">II", 1, 2**31)
    (path / V3).write_bytes(content)


def place(column: str, value: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        file = path / "meta/episodes/chunk-000/file-000.parquet"
        table, name = pyarrow.parquet.read_table(file), f"videos/{CAMERA}/{column}"
        values = pyarrow.array(
            [value if isinstance(value, str) else one for one in table[name].to_pylist()[:2]] + [value]
        )
        pyarrow.parquet.write_table(table.set_column(table.schema.names.index(name), name, values), file)

    return damage


def text(name: str, content: str) -> Callable[[Path], None]:
    return lambda path: (path / "meta" / name).write_text(content)  # type: ignore[return-value]


def episodes(*lines: Any) -> Callable[[Path], None]:
    return text("episodes.jsonl", "\n".join(map(json.dumps, lines)))


DAMAGE: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "fewer frames": (
        "v3",
        lambda path: film(path / V3, 12),
        r"file-000.mp4: expected a frame at 1.2\d* s, found the end",
    ),
    "another rate": ("v3", info(lambda _: {"fps": 0}), "fps: expected frames per second, found 0"),
    "smaller": ("v3", lambda path: film(path / V3, 13, (32, 64)), r"expected frames of \[48, 64\], found \[32, 64\]"),
    "larger": ("v3", lambda path: film(path / V3, 13, (480, 640)), "file-000.mp4"),
    "another codec": (
        "v3",
        lambda path: film(path / V3, 13, codec="mpeg4"),
        "a codec of av1, .*, found mpeg4",
    ),
    "no video": ("v3", lambda path: (path / V3).write_bytes(b"RIFF" * 100), "file-000.mp4 is damaged: expected a box"),
    "a playlist": (
        "v3",
        lambda path: (path / V3).write_text("#EXTM3U\n/etc/passwd\n"),
        "file-000.mp4 is damaged: expected a box",
    ),
    "fragments": ("v3", replaced(V3, b"udta", b"moof"), "one table of frames, found moof"),
    "no table of frames": ("v3", replaced(V3, b"stsz", b"stsx"), "expected an MP4 file, found no stsz box"),
    "too many frames": ("v3", claimed_samples, "frames, found 2,147,483,648 claimed"),
    "a start beyond the end": ("v3", place("from_timestamp", 7.5), "expected a frame at 7.5000 s, found the end"),
    "a start that is no number": ("v3", place("from_timestamp", float("nan")), "seconds from the start .* found nan"),
    "a start of words": ("v3", place("from_timestamp", "x"), "expected seconds"),
    "another file": ("v3", place("file_index", 3), "file-003.mp4 is missing"),
    "a path that leaves": ("v3", info(lambda _: {"video_path": "../{video_key}.mp4"}), "not a relative path"),
    "a path that reaches in": ("v3", info(lambda _: {"video_path": "{video_key.x}"}), "video_path: expected videos/"),
    "a width of words": ("v3", info(lambda _: {"video_path": "{video_key:03d}"}), "video_path: expected videos/"),
    "a shape of two": ("v3", feature(shape=[48, 64]), r"shape \[48, 64\] of video"),
    "a huge shape": ("v3", feature(shape=[10**6, 10**6, 3]), "expected rows of"),
    "no list": ("v2", lambda path: (path / "meta/episodes.jsonl").unlink(), "episodes.jsonl is missing"),
    "no JSON": ("v2", text("episodes.jsonl", "{"), "episodes.jsonl: line 1: expected JSON"),
    "deep JSON": ("v2", text("episodes.jsonl", "[" * 100_000), "episodes.jsonl: line 1: expected JSON"),
    "no object": ("v2", episodes([1]), "line 1: expected an object"),
    "no length": ("v2", episodes({"episode_index": 0}), "expected episode_index and length, found 0 and None"),
    "a gap": ("v2", episodes({"episode_index": 1, "length": 5}), "expected 0, 1, 2 and so on"),
    "no step": ("v2", episodes({"episode_index": 0, "length": 0}), "expected 0 rows as in its episodes, found 5"),
    "chunks of none": ("v2", info(lambda _: {"chunks_size": 0}), "chunks_size: expected a number of files, found 0"),
    "fewer episodes": (
        "v2",
        episodes({"episode_index": 0, "length": 5}),
        "total_episodes: expected 1 as meta/episodes.jsonl lists, found 3",
    ),
    "no task": ("v2", text("tasks.jsonl", '{"task_index": 0}'), "tasks.jsonl: expected task_index and task"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage(kind: str, tmp_path: Path) -> None:
    version, damage, message = DAMAGE[kind]
    path = copy(tmp_path, f"lerobot_{version}")
    damage(path)
    with pytest.raises(SourceError, match=message):
        read(open_lerobot(path), 0)


def test_channels_may_come_first(tmp_path: Path) -> None:
    path = copy(tmp_path)
    feature(shape=[3, 48, 64], names=["channels", "height", "width"])(path)
    source = open_lerobot(path)
    assert source.schema["observation/images/top"].shape == (48, 64, 3)
    assert [one.steps for one in read(source, 0)] == list(LENGTHS)


def test_keys_of_episodes_that_nothing_reads_are_named(tmp_path: Path) -> None:
    path = copy(tmp_path, "lerobot_v2")
    lines = [{"episode_index": number, "length": length} for number, length in enumerate(LENGTHS)]
    episodes(*lines[:2], {**lines[2], "weather": "dry"})(path)
    (path / "meta/tasks.jsonl").unlink()
    assert open_lerobot(path).notes["not_taken"] == {
        "task_index": "meta/tasks.jsonl is missing",
        "meta/episodes.jsonl: weather": "not part of any step",
    }


def test_without_pyav(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match="LeRobot's videos need PyAV") as raised:
        open_lerobot(copy(tmp_path))
    assert raised.value.hint == "pip install 'rlx[lerobot]'"


FUZZED = [("lerobot_v3", V3), ("lerobot_v2", V2)]


@pytest.mark.parametrize(("version", "file"), FUZZED)
def test_a_damaged_video_is_an_error_or_frames(version: str, file: Path, tmp_path: Path) -> None:
    path = copy(tmp_path, version)
    found = fuzz(open_lerobot, path, [path / file], range(40))
    assert found["error"] > 10


@pytest.mark.soak
@pytest.mark.parametrize(("version", "file"), FUZZED)
def test_two_thousand_damaged_videos(version: str, file: Path, tmp_path: Path) -> None:
    path = copy(tmp_path, version)
    fuzz(open_lerobot, path, [path / file], range(40, 2_040))


def _box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_box(b"free", b"") * 10_001, "expected at most 10,000 MP4 boxes, found more"),
        (_box(b"stsz", b"1234"), "is damaged: expected a table of samples, found 4 bytes"),
        (struct.pack(">I4sQ", 1, b"mdat", 99), "expected a box of at most 16 bytes at byte 0, found 99"),
    ],
)
def test_boxes_that_claim_too_much(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(CorruptShardError, match=message):
        check_samples(tmp_path / "a.mp4")


def test_a_file_of_sound_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=44100, layout="mono")
        frame = av.AudioFrame(format="fltp", layout="mono", samples=1024)
        frame.sample_rate, frame.pts, frame.time_base = 44100, 0, Fraction(1, 44100)
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)
    with pytest.raises(CorruptShardError, match="expected a video, found none"):
        Video(path, (8, 8, 3))
