"""Gradlab's trajectories: transitions, episodes and frames in tables of their own, as its exporter writes them."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, Features, Image, Value, load_dataset
from PIL import Image as Pictures

from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.formats.common.rows import episodes as row_episodes
from rlx.formats.common.rows import table as table_module
from rlx.formats.finding import find_run
from rlx.formats.parquet.reader import open_parquet
from rlx.testing.source import SourceContract, fuzz, read

# Numbers of the frames of each episode: the initial one, then the successor of each step. Frame 7 is in all of them.
EPISODES = {3: [7, 40, 41, 7], 4: [7, 42], 9: [7, 7, 43]}
ENDS = {3: (True, False), 4: (False, True), 9: (False, False)}  # terminated, truncated; the last was stopped
STATUS = {3: "complete", 4: "complete", 9: "incomplete"}
_NUMBERS = ("step", "source_frame_id", "successor_frame_id", "policy_decision_id", "configured_frame_skip")
_REWARDS = ("policy_reward", "native_reward", "task_reward", "temperature")
_TEXTS = ("session_id", "action_selection_mode", "selected_action_json", "effective_action_json", "native_action_json")
TRANSITIONS = pyarrow.schema(
    [(name, pyarrow.int64()) for name in ("episode_id", *_NUMBERS, "elapsed_native_frames")]
    + [(name, pyarrow.bool_()) for name in ("terminated", "truncated", "native_game_over", "task_terminated")]
    + [(name, pyarrow.float64()) for name in _REWARDS]
    + [(name, pyarrow.string()) for name in (*_TEXTS, "record_json")]
    + [("brick_grid", pyarrow.list_(pyarrow.list_(pyarrow.int8(), 2), 3))]
)
Rows = list[dict[str, Any]]
Change = Callable[[dict[str, Rows]], Any]


def webp(number: int) -> bytes:
    file = io.BytesIO()
    Pictures.fromarray(np.full((21, 16, 3), number, np.uint8)).save(file, "WEBP", lossless=True)
    return file.getvalue()


def transition(episode: int, step: int) -> dict[str, Any]:
    frames = EPISODES[episode]
    is_last = step == len(frames) - 2
    terminated, truncated = (is_last and end for end in ENDS[episode])
    return {
        "episode_id": episode,
        "step": step,
        "source_frame_id": frames[step],
        "successor_frame_id": frames[step + 1],
        "policy_decision_id": step,
        "configured_frame_skip": 2,
        "terminated": terminated,
        "truncated": truncated,
        "native_game_over": terminated,
        "policy_reward": step / 4,
        "native_reward": float(episode + step),
        "session_id": "s",
        "action_selection_mode": "stochastic",
        "selected_action_json": json.dumps(step + 1),
        "effective_action_json": json.dumps(step),
        "native_action_json": json.dumps(step % 3),
        "record_json": "{}",
        "brick_grid": [[step, 1]] * 3,
    }


def tables() -> dict[str, Rows]:
    ids = sorted({id for frames in EPISODES.values() for id in frames})
    return {
        "transitions": [
            transition(episode, step) for episode, frames in EPISODES.items() for step in range(len(frames) - 1)
        ],
        "episodes": [
            {"episode_id": episode, "initial_frame_id": frames[0], "length": len(frames) - 1, "status": STATUS[episode]}
            for episode, frames in EPISODES.items()
        ],
        "frames": [{"frame_id": id, "sha256": "", "image": {"bytes": webp(id), "path": None}} for id in ids],
    }


def write(path: Path, change: Change = lambda _: None, split: str = "train", files: int = 2, group: int = 2) -> Path:
    found = tables()
    change(found)
    places = {"transitions": split, "episodes": split, "frames": "assets"}
    for kind, rows in found.items():
        directory = path / kind / places[kind]
        directory.mkdir(parents=True, exist_ok=True)
        half = len(rows) // files + 1
        for number in range(files):
            part = rows[number * half : (number + 1) * half]
            file = directory / f"{number:05}.parquet"
            if kind == "transitions":
                table = pyarrow.Table.from_pylist(part, schema=TRANSITIONS)
                pyarrow.parquet.write_table(table, file, compression="zstd", row_group_size=group)
            elif kind == "frames":
                features = Features({"frame_id": Value("int64"), "sha256": Value("string"), "image": Image()})
                Dataset.from_list(part, features=features).to_parquet(str(file), batch_size=group)
            elif number == 0:
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    session = path / "sessions" / "metadata"
    session.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({"session_id": ["s"], "record_json": ["{}"]}), session / "00000.parquet")
    return path


class TestJoined(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return write(tmp_path / "gradlab")

    @pytest.fixture
    def source(self, root: Path) -> Any:
        return open_parquet(root)


@pytest.mark.parametrize("group", [1, 2, 3, 100])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_frames_are_joined_by_number(group: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "batch_rows", lambda _: size)
    monkeypatch.setattr(row_episodes, "STEPS_PER_SHARD", 1)
    source = find_run(write(tmp_path / "gradlab", group=group), None)
    found = [one for shard in source.shards() for one in read(source, shard)]
    assert len(source.shards()) == len(found) == 3
    for (episode, frames), one in zip(EPISODES.items(), found, strict=True):
        steps = range(len(frames) - 1)
        assert one["observation"][:, 0, 0, 0].tolist() == frames
        assert one["action"].tolist() == [step % 3 for step in steps]
        assert one["reward"].tolist() == [episode + step for step in steps]
        assert one["selected_action_json"].tolist() == [str(step + 1) for step in steps]
        assert one["brick_grid"].shape == (len(steps), 3, 2)
        ends = bool(one["terminated"][-1]), one.episode, one.from_reset, one.final_recorded, one.cut
        assert ends == (ENDS[episode][0], episode, True, True, STATUS[episode] == "incomplete")
    assert source.schema["observation"].shape == (21, 16, 3)


def test_as_the_library_datasets_joins_them(tmp_path: Path) -> None:
    path = write(tmp_path / "gradlab")
    loaded = {
        kind: load_dataset(
            "parquet", data_files=str(path / kind / "*" / "*.parquet"), split="train", cache_dir=str(tmp_path / "cache")
        )
        for kind in ("transitions", "frames")
    }
    pictures = {row["frame_id"]: np.asarray(row["image"]) for row in loaded["frames"]}
    found = np.concatenate([one["observation"][:-1] for one in read(open_parquet(path), 0)])
    assert np.array_equal(found, [pictures[row["source_frame_id"]] for row in loaded["transitions"]])


def test_what_is_not_taken_is_named(tmp_path: Path) -> None:
    reasons = open_parquet(write(tmp_path / "gradlab")).notes["not_taken"]
    assert {"sessions", "task_reward", "temperature", "task_terminated", "elapsed_native_frames"} <= reasons.keys()


def test_all_files_are_those_of_a_shard(tmp_path: Path) -> None:
    source = open_parquet(write(tmp_path / "gradlab"))
    assert {name.split("/")[0] for name in source.files(0)} == {"transitions", "episodes", "frames"}
    assert all((source.root / name).is_file() for name in source.files(0))


def test_splits(tmp_path: Path) -> None:
    write(write(tmp_path / "gradlab"), split="heldout")
    with pytest.raises(SourceError, match="several splits: heldout, train"):
        find_run(tmp_path / "gradlab", None)
    assert find_run(tmp_path / "gradlab", None, "parquet:split=heldout").notes["format"] == "Parquet"


def shuffle(found: dict[str, Rows]) -> None:
    found["transitions"].sort(key=lambda row: row["step"])


def lose(found: dict[str, Rows]) -> None:
    del found["transitions"][4:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shuffle, "expected the steps of each episode in order, from 0 on"),
        (lambda found: found["transitions"].pop(1), "expected the steps of each episode in order"),
        (lose, "expected 6 steps of its episodes, found 4"),
        (lambda found: found["frames"].pop(2), "frames/assets.* has no frame_id 41"),
        (lambda found: found["frames"].pop(), "frames/assets.* has no frame_id 43"),
        (
            lambda found: found["transitions"][1].update(native_action_json="no"),
            "is damaged: Failed to parse string: 'no'",
        ),
        (lambda found: found["transitions"][1].update(native_action_json=None), "expected a value in every row"),
        (lambda found: found["transitions"][1].update(source_frame_id=None), "has no frame_id -1"),
        (lambda found: found["transitions"][1].update(step=None), "is damaged"),
        (lambda found: found["frames"][1]["image"].update(bytes=b"RIFF0000WEBPjunk"), "expected a WebP"),
    ],
)
def test_damage(change: Change, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "gradlab", change)
    with pytest.raises(CorruptShardError, match=message):
        read(open_parquet(path), 0)


@pytest.mark.parametrize("kind", ["frames", "episodes"])
def test_a_missing_table(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "gradlab")
    for file in path.glob(f"{kind}/*/*.parquet"):
        file.unlink()
    with pytest.raises(SourceNotFoundError, match=rf"gradlab/{kind}/\w+ has no \*.parquet; expected gradlab's"):
        open_parquet(path)


def test_wrong_bytes_are_values_or_a_named_error(tmp_path: Path) -> None:
    path = write(tmp_path / "gradlab")
    files = [*path.glob("transitions/*/*"), *path.glob("frames/*/*"), *path.glob("episodes/*/*")]
    assert fuzz(open_parquet, path, files, range(100))["error"] > 10


def test_statistics_that_are_cut_short_are_not_asked_for(tmp_path: Path) -> None:
    """Asked for them, pyarrow ends the process."""
    marker = b"abcdefgh"

    def mark(found: dict[str, Rows]) -> None:
        for row in found["transitions"]:
            row["elapsed_native_frames"] = int.from_bytes(marker, "little")

    path = write(tmp_path / "gradlab", mark, files=1)
    (file,) = path.glob("transitions/*/*")
    # Length and bytes of the last row group's minimum; then flags of Thrift, in place of what is cut off.
    before, after = b"\x18\x08" + marker, b"\x18\x05" + marker[:5] + b"\x11" * 3
    whole, place = file.read_bytes(), file.read_bytes().rindex(before)
    file.write_bytes(whole[:place] + after + whole[place + len(before) :])
    found = np.concatenate([one["elapsed_native_frames"] for one in read(open_parquet(path), 0)])
    assert (found == int.from_bytes(marker, "little")).all()


@pytest.mark.soak
def test_thousands_of_wrong_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "gradlab")
    files = [*path.glob("transitions/*/*"), *path.glob("frames/*/*"), *path.glob("episodes/*/*")]
    fuzz(open_parquet, path, files, range(100, 2_100))
