"""Tables of the hub that rlx knows by their columns: gymrec's, and frames without rewards."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from rlx.errors import CorruptShardError, SourceError
from rlx.formats.common.rows import episodes as row_episodes
from rlx.formats.common.rows import table as table_module
from rlx.formats.finding import find_run
from rlx.formats.parquet.reader import open_parquet
from rlx.testing.source import FileContract, fuzz, read
from tests.formats.parquet.test_episodes import write_jat

LENGTHS, ENDS = (3, 1, 5), "tx."  # terminated, truncated, stopped by the collector
Rows = dict[str, list[Any]]


def webp(number: int) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(np.full((12, 10, 3), number, np.uint8)).save(file, "WEBP", lossless=True)
    return {"bytes": file.getvalue(), "path": None}


def rows() -> Rows:
    names = ("episode_id", "step_index", "observations", "actions", "rewards", "terminations", "truncations", "infos")
    found: Rows = {name: [] for name in (*names, "env_id")}
    for episode, (length, end) in enumerate(zip(LENGTHS, ENDS, strict=True)):
        for step in range(length + 1):
            is_final, is_last = step == length, step == length - 1
            values = (step, step / 2, is_last and end == "t", is_last and end == "x", "{}")
            for name, value in zip(names[3:], values, strict=True):
                found[name].append(None if is_final else value)
            found["episode_id"].append(f"e{episode}")
            found["step_index"].append(step)
            found["observations"].append(webp(16 * episode + step))
            found["env_id"].append("Breakout")
    return found


def write(path: Path, change: Callable[[Rows], Any] = lambda _: None, group: int = 4) -> Path:
    found = rows()
    change(found)
    pyarrow.parquet.write_table(pyarrow.table(found), path, row_group_size=group)
    return path


class TestGymrec(FileContract):
    file, write, open = "train.parquet", staticmethod(write), staticmethod(open_parquet)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_every_row_but_the_last_is_a_step(
    group: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "batch_rows", lambda _: size)
    monkeypatch.setattr(row_episodes, "STEPS_PER_SHARD", 1)
    source = find_run(write(tmp_path / "train.parquet", group=group), None)
    assert len(source.shards()) == 3
    found = [one for shard in source.shards() for one in read(source, shard)]
    for episode, (one, length) in enumerate(zip(found, LENGTHS, strict=True)):
        assert one["observation"][:, 0, 0, 0].tolist() == [16 * episode + step for step in range(length + 1)]
        assert one["action"].tolist() == list(range(length))
        assert one["reward"].tolist() == [step / 2 for step in range(length)]
        assert one["infos"].tolist() == ["{}"] * length
    ends = [(bool(one["terminated"][-1]), bool(one["truncated"][-1]), one.cut) for one in found]
    assert ends == [(True, False, False), (False, True, False), (False, True, True)]
    assert all(one.final_recorded for one in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found["rewards"].__setitem__(1, None), "rewards|next/reward: expected a value in every row"),
        (lambda found: found["observations"].__setitem__(3, None), ""),
        (
            lambda found: found["observations"].__setitem__(3, {"bytes": b"RIFF0000WEBPjunk", "path": None}),
            "train.parquet: observations|observation: expected a WebP",
        ),
    ],
)
def test_damage(change: Callable[[Rows], Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", change)
    if message:
        with pytest.raises(CorruptShardError, match=message):
            read(open_parquet(path), 0)
    else:
        found = read(open_parquet(path), 0)
        assert [(one.steps, one.final_recorded) for one in found] == [(3, False), (1, True), (5, True)]


@pytest.mark.parametrize("write", [write, write_jat])
def test_wrong_bytes_are_values_or_a_named_error(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet")
    assert fuzz(open_parquet, path, [path], range(100))["error"] > 10


@pytest.mark.soak
@pytest.mark.parametrize("write", [write, write_jat])
def test_thousands_of_wrong_bytes(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet")
    fuzz(open_parquet, path, [path], range(100, 2_100))


def test_no_step_at_all(tmp_path: Path) -> None:
    def no_action(found: Rows) -> None:
        found["actions"] = [None] * len(found["actions"])

    with pytest.raises(SourceError, match="has no step"):
        open_parquet(write(tmp_path / "train.parquet", no_action))


def test_frames_without_rewards(tmp_path: Path) -> None:
    """As in blanchon/atari_parquet."""
    table = {
        "image": [webp(number) for number in range(7)],
        "episode": [0, 0, 0, 0, 1, 1, 1],
        "frame_index": [0, 1, 2, 3, 0, 1, 2],
        "action": list(range(7)),
    }
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "breakout-00000-of-00001.parquet", row_group_size=2)
    source = find_run(tmp_path, None)
    assert (source.notes["rewards"], source.notes["terminated"]) == ("unrecorded: zeros", "unrecorded")
    assert source.notes["steps_without_outcome"] == 2
    first, second = read(source, 0)
    assert first["observation"][:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert second["action"].tolist() == [4, 5]
    assert (first["reward"].tolist(), first["frame_index"].tolist(), first.cut) == ([0] * 3, [0, 1, 2], True)
