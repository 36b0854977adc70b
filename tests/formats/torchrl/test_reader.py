"""Directories that TensorDict.memmap wrote, whole and damaged."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.formats.common.rows.ted_run import TedRun
from rlx.formats.torchrl import FORMAT
from rlx.formats.torchrl.reader import open_torchrl
from rlx.testing.source import SourceContract, read

LENGTHS = (3, 1, 5)


def steps(lengths: tuple[int, ...] = LENGTHS) -> TensorDict:
    """Steps that tell where they belong: ``100 * episode + t``."""
    rows = torch.tensor([100 * number + t for number, length in enumerate(lengths) for t in range(length)])
    ends = torch.tensor([t == length - 1 for length in lengths for t in range(length)])[:, None]
    after = {"observation": (rows + 1)[:, None].float(), "reward": (rows / 2)[:, None], "done": ends}
    return TensorDict({"observation": rows[:, None].float(), "action": rows, "next": after}, [len(rows)])


def write(path: Path, ted: TensorDict) -> Path:
    ted.memmap(path)
    return path


class TestTorchRL(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return write(tmp_path / "steps", steps())

    @pytest.fixture
    def source(self, root: Path) -> TedRun:
        return open_torchrl(root)


def test_done_says_where_an_episode_ends(tmp_path: Path) -> None:
    source = open_torchrl(write(tmp_path / "a", steps()))
    assert (source.id, source.schema["reward"].shape, source.schema["observation"].shape) == ("a", (), (1,))
    first, second, third = read(source, 0)
    assert first["observation"][:, 0].tolist() == [0, 1, 2, 3]
    assert (second["reward"].tolist(), second["terminated"].tolist()) == ([50], [True])
    assert (third["observation"][:, 0].tolist(), third.final_recorded) == ([200, 201, 202, 203, 204, 205], True)
    assert [one.episode for one in (first, second, third)] == [0, 1, 2]


def test_environments_side_by_side(tmp_path: Path) -> None:
    """What a collector of two environments delivers, [2, 3]: neither goes on where the other ends."""
    ted = steps((6,))
    ted["next", "observation"][2] = ted["observation"][3]
    ted["next", "done"][5] = False
    found = read(open_torchrl(write(tmp_path / "a", ted.reshape(2, 3))), 0)
    assert [one["observation"][:, 0].tolist() for one in found] == [[0, 1, 2, 3], [3, 4, 5, 6]]


def test_a_storage_that_is_not_full(tmp_path: Path) -> None:
    path = write(tmp_path / "a", steps())
    (path / "storage_metadata.json").write_text(json.dumps({"metadata": {}, "is_pytree": False, "len": 4}))
    assert [one.steps for one in read(open_torchrl(path), 0)] == [3, 1]
    (path / "storage_metadata.json").write_text(json.dumps({"len": 10}))
    with pytest.raises(CorruptShardError, match="len: expected at most 9, found 10"):
        open_torchrl(path)


def test_what_is_no_field_is_left_out(tmp_path: Path) -> None:
    ted = steps()
    ted["two words"] = torch.zeros(9)
    ted["complex"] = torch.zeros(9, dtype=torch.complex64)
    ted["collector", "traj_ids"] = torch.tensor([5] * 3 + [7] + [6] * 5)
    source = open_torchrl(write(tmp_path / "a", ted))
    assert list(source.schema) == ["observation", "action", "reward", "terminated", "truncated"]
    assert list(source.notes["not_taken"]) == ["two words", "complex"]
    assert [one.episode for one in read(source, 0)] == [5, 7, 6]


def leaf(name: str, at: str = "", **change: Any) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        file = path / at / "meta.json"
        described = json.loads(file.read_text())
        described.setdefault(name, {}).update(change)
        file.write_text(json.dumps(described))

    return apply


def file(name: str, content: bytes | None) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        (path / name).unlink()
        if content is not None:
            (path / name).write_bytes(content)

    return apply


def link(path: Path) -> None:
    target = path.parent / "secret"
    (path / "action.memmap").rename(target)
    (path / "action.memmap").symlink_to(target)


def batch(path: Path) -> None:
    file = path / "meta.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "shape": []}))


DAMAGE: dict[str, tuple[Callable[[Path], None], type[SourceError], str]] = {
    "too many rows": (leaf("action", shape=[2**40]), CorruptShardError, r"action: shape: expected \[9\] and the shape"),
    "rows too long": (
        leaf("action", shape=[9, 2**40]),
        CorruptShardError,
        "action: .* expected rows of at most",
    ),
    "rows longer": (
        leaf("action", shape=[9, 2]),
        CorruptShardError,
        r"action.memmap: expected 144 bytes for int64\[9, 2",
    ),
    "flags of no value": (
        leaf("done", at="next", shape=[9, 0]),
        CorruptShardError,
        r"next/done: expected one flag per step, found bool\[0\]",
    ),
    "negative": (leaf("action", shape=[9, -1]), CorruptShardError, "action: shape: expected a list of numbers"),
    "no list": (leaf("action", shape="9"), CorruptShardError, "action: shape: expected a list of numbers"),
    "another type": (leaf("action", dtype="torch.int32"), CorruptShardError, "action.memmap: expected 36 bytes"),
    "a link": (link, CorruptShardError, "action.memmap: leads out of"),
    "no batch": (batch, CorruptShardError, r"shape: expected a batch of steps, found \[\]"),
    "no metadata": (
        file("meta.json", None),
        SourceNotFoundError,
        "meta.json is missing",
    ),
    "no JSON": (file("meta.json", b"{"), CorruptShardError, "meta.json: expected JSON"),
    "deep JSON": (file("meta.json", b"[" * 100_000), CorruptShardError, "meta.json: expected JSON"),
    "no object": (file("meta.json", b"[1]"), CorruptShardError, "meta.json: expected an object"),
    "no file": (file("next/reward.memmap", None), SourceNotFoundError, "next/reward.memmap is missing"),
    "cut off": (file("next/reward.memmap", b"123"), CorruptShardError, "reward.memmap: expected 36 bytes .* found 3"),
    "NaN": (
        file("observation.memmap", b"\xff" * 36),
        CorruptShardError,
        "observation: expected finite numbers, found NaN in",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage(tmp_path: Path, kind: str) -> None:
    damage, error, message = DAMAGE[kind]
    path = write(tmp_path / "a", steps())
    damage(path)
    with pytest.raises(error, match=message + ".*; expected what TensorDict.memmap writes: ") as caught:
        read(open_torchrl(path), 0)
    assert str(path) in str(caught.value)


def test_names_that_lead_out_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a", steps())
    (tmp_path / "secret.memmap").write_bytes(b"123456789")
    leaf("../secret", shape=[9], dtype="torch.uint8")(path)
    source = open_torchrl(path)
    assert list(source.notes["not_taken"]) == ["../secret"]
    assert [one.steps for one in read(source, 0)] == [3, 1, 5]


NAMES = {"reward": "next/reward", "done": "next/terminated"}


@pytest.mark.parametrize("missing", ["reward", "done", "observation", "action"])
def test_a_leaf_is_missing(tmp_path: Path, missing: Any) -> None:
    ted = steps().exclude(missing, ("next", missing))
    with pytest.raises(
        CorruptShardError,
        match=f"{NAMES.get(missing, missing)} is missing, found .*; expected what TensorDict",
    ):
        open_torchrl(write(tmp_path / "a", ted))


def test_which_directories_are_of_steps(tmp_path: Path) -> None:
    assert FORMAT.recognises(write(tmp_path / "a", steps()))
    assert not FORMAT.recognises(write(tmp_path / "b", TensorDict({"weights": torch.zeros(3)}, [])))
    assert not FORMAT.recognises(tmp_path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    """Of a map, a row that is no longer there would be the end of the process."""
    path = write(tmp_path / "a", steps((3, 9_000)))
    source = open_torchrl(path)
    blocks = source.blocks(0, Counter())
    next(blocks)
    (path / "action.memmap").write_bytes(bytes(8 * 3))
    with pytest.raises(CorruptShardError, match="a: action: expected 32,768 bytes from row 3, found"):
        list(blocks)


def test_directories_that_are_too_deep(tmp_path: Path) -> None:
    path = write(tmp_path / "a", steps())
    folder = path
    for _ in range(40):
        meta = json.loads((folder / "meta.json").read_text()) if (folder / "meta.json").is_file() else {}
        (folder / "meta.json").write_text(json.dumps({**meta, "deep": {"type": "TensorDict"}}))
        folder /= "deep"
        folder.mkdir()
    (folder / "meta.json").write_text("{}")
    with pytest.raises(CorruptShardError, match=r"expected directories at most [0-9]+ deep"):
        open_torchrl(path)


def test_no_step(tmp_path: Path) -> None:
    path = write(tmp_path / "a", steps())
    (path / "storage_metadata.json").write_text(json.dumps({"metadata": {}, "is_pytree": False, "len": 0}))
    with pytest.raises(SourceError, match="a has no step"):
        open_torchrl(path)


def test_a_batch_dimension_that_does_not_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "a", steps())
    meta = json.loads((path / "meta.json").read_text())
    meta["action"]["shape"] = [4]
    (path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(CorruptShardError, match=r"action: shape: expected \[9\] and the shape of a step, found \[4\]"):
        open_torchrl(path)
