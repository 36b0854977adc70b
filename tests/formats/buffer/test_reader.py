"""Replay buffers that rlx dumped."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rlx import open as open_dataset
from rlx.buffer import ReplayBuffer
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.errors import CorruptShardError, SourceError
from rlx.files.sealed import UNCHECKED
from rlx.formats.buffer import FORMAT
from rlx.formats.buffer.reader import open_buffer
from rlx.formats.common.rows.ted_run import TedRun
from rlx.formats.finding import find_run
from rlx.testing.source import SourceContract, read
from tests.damage import rewrite
from tests.formats.torchrl.test_storages import Steps, environments, episodes, told


def dumped(path: Path, steps: Steps, *, capacity: int, ndim: int = 1) -> Path:
    buffer = ReplayBuffer(storage=LazyTensorStorage(capacity, ndim=ndim))
    buffer.extend(steps)
    buffer.dumps(path)
    return path


class TestBuffer(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return dumped(tmp_path / "buffer", environments(1)[0].steps(50), capacity=100)

    @pytest.fixture
    def source(self, root: Path) -> TedRun:
        return open_buffer(root)


@pytest.mark.parametrize("capacity", [200, 100])
def test_one_lane(tmp_path: Path, capacity: int) -> None:
    (lane,) = environments(1)
    steps = lane.steps(130)
    path = dumped(tmp_path / "buffer", steps, capacity=capacity)
    assert FORMAT.recognises(path)
    source = find_run(path, None)
    assert source.notes["format"] == "rlx's replay buffer"
    assert [told(one) for one in read(source, 0)] == episodes([steps], skipped=max(0, 130 - capacity))


@pytest.mark.parametrize("capacity", [400, 200])
def test_lanes(tmp_path: Path, capacity: int) -> None:
    lanes: list[Steps] = [one.steps(130) for one in environments(2)]
    source = open_buffer(dumped(tmp_path / "buffer", torch.stack(lanes), capacity=capacity, ndim=2))
    expected = episodes(lanes, skipped=max(0, 130 - capacity // 2))
    assert [told(one)[:3] for one in read(source, 0)] == [piece[:3] for piece in expected]


def test_a_buffer_without_steps_of_an_environment(tmp_path: Path) -> None:
    path = dumped(tmp_path / "buffer", TensorDict({"x": torch.zeros(3)}, [3]), capacity=10)
    with pytest.raises(CorruptShardError, match=r"next/reward is missing, found .*; expected what rlx's"):
        open_buffer(path)


def test_a_buffer_that_was_converted(cli: Any, tmp_path: Path) -> None:
    (lane,) = environments(1)
    steps = lane.steps(60)
    path = dumped(tmp_path / "buffer", steps, capacity=100)
    assert cli("convert", path, tmp_path / "data").code == 0
    found = open_dataset(tmp_path / "data")[:]
    for key in ("observation", "action", ("next", "observation"), ("next", "reward"), ("next", "terminated")):
        assert torch.equal(found[key], steps[key])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"version": 3}, "format version 3, expected 2"),
        ({"format": "other"}, "expected format 'rlx.buffer', found 'other'"),
        ({"files": "../secret"}, "is damaged: files '../secret'"),
        ({"blocks": [{"steps": 2**40, "bytes": [1] * 8}]}, "expected 1 bytes, found"),
        ({"blocks": [{"steps": 0, "bytes": [1] * 8}]}, "a block without steps"),
        ({"blocks": [{"steps": 50}]}, "is damaged: KeyError"),
        ({"leaves": None}, "is damaged: TypeError"),
    ],
)
def test_damage(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    path = dumped(tmp_path / "buffer", environments(1)[0].steps(50), capacity=100)
    rewrite(path / "buffer.json", **entries)
    with pytest.raises(SourceError, match=message):
        read(open_buffer(path), 0)


def test_the_state_is_no_code(tmp_path: Path) -> None:
    path = dumped(tmp_path / "buffer", environments(1)[0].steps(50), capacity=100)
    (state,) = path.glob("*/state.pt")
    state.write_bytes(b"cos\nsystem\n(S'touch /tmp/bad'\ntR.")
    with pytest.raises(CorruptShardError, match=r"state\.pt is damaged"):
        open_buffer(path)


def test_a_state_whose_pickle_ends_at_once(tmp_path: Path) -> None:
    path = dumped(tmp_path / "buffer", environments(1)[0].steps(50), capacity=100)
    rewrite(path / "buffer.json", version=UNCHECKED)
    (state,) = path.rglob("state.pt")
    with zipfile.ZipFile(state) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(state, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, b"\x80\x02." if name.endswith("data.pkl") else content)
    with pytest.raises(CorruptShardError, match=r"state\.pt is damaged: pop from empty list"):
        open_buffer(path)


def test_a_manifest_that_is_damaged_is_no_buffer(tmp_path: Path) -> None:
    path = dumped(tmp_path / "buffer", environments(1)[0].steps(5), capacity=10)
    (path / "buffer.json").write_text("{")
    assert not FORMAT.recognises(path)
    assert not FORMAT.recognises(tmp_path)


def test_a_buffer_without_steps(tmp_path: Path) -> None:
    path = dumped(tmp_path / "buffer", environments(1)[0].steps(5), capacity=10)
    rewrite(path / "buffer.json", blocks=[])
    with pytest.raises(SourceError, match="buffer has no step"):
        open_buffer(path)


def test_steps_of_half_a_lane(tmp_path: Path) -> None:
    lanes: Any = torch.stack([one.steps(6) for one in environments(2)])
    path = dumped(tmp_path / "buffer", lanes, capacity=20, ndim=2)
    (block,) = json.loads((path / "buffer.json").read_text())["blocks"]
    rewrite(path / "buffer.json", blocks=[{**block, "steps": block["steps"] - 1}])
    with pytest.raises(CorruptShardError, match="blocks: expected multiples of 2 steps"):
        open_buffer(path)
