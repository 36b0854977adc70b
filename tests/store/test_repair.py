import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlx.errors import DatasetLockedError, DatasetNotFoundError, FileAccessError, IncompleteDatasetError
from rlx.files import lock
from rlx.manifest import Manifest
from rlx.store.dataset import Dataset
from rlx.store.repair import Repair, repair
from rlx.store.verification import Kind, verify
from tests.factories import LARGE, make_block, seen, write_dataset
from tests.privileges import unprivileged

SHARDS = [[make_block([3, 5], first_episode=2 * shard, schema=LARGE)] for shard in range(3)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", SHARDS, schema=LARGE).path


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def bytes_of(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file() and file.name != lock.FILE_NAME)
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def test_a_whole_dataset_is_left_alone(path: Path) -> None:
    before = bytes_of(path)
    assert repair(path) == Repair(path, ["00000", "00001", "00002"], [], [], 0, None)
    assert bytes_of(path) == before


def test_broken_shards_go_and_come_again(path: Path) -> None:
    before = bytes_of(path)
    flip(path / Dataset(path).shard_files(1)[2])
    shutil.rmtree(path / "shards" / "00002" / "trajectories")
    aside = path / ".damaged"
    assert repair(path) == Repair(path, ["00000"], ["00001", "00002"], [], 16, "rlx download Test/1", aside)
    found = verify(path)
    assert (found.ok, found.shards, found.missing_shards) == (True, 1, ["00001", "00002"])
    assert seen(Dataset(path), range(8)) == [0, 1, 2, 1000, 1001, 1002, 1003, 1004]
    write_dataset(path, SHARDS, schema=LARGE)
    assert sorted(entry.name for entry in (aside / "shards").iterdir()) == ["00001", "00002"]
    shutil.rmtree(aside)
    assert bytes_of(path) == before


def test_what_is_damaged_again_lies_beside_what_was(path: Path) -> None:
    whole = bytes_of(path / "shards/00001")
    for _ in range(3):
        flip(path / Dataset(path).shard_files(1)[2])
        assert repair(path).aside == path / ".damaged"
        write_dataset(path, SHARDS, schema=LARGE)
        assert verify(path).ok
    aside = sorted(entry.name for entry in (path / ".damaged/shards").iterdir())
    assert aside == ["00001", "00001.1", "00001.2"]
    assert set(bytes_of(path / ".damaged/shards/00001")) == set(whole)


def test_on_request_it_is_deleted(path: Path) -> None:
    flip(path / Dataset(path).shard_files(1)[2])
    done = repair(path, delete=True)
    assert (done.dropped, done.aside) == (["00001"], None)
    assert not (path / ".damaged").exists()


@pytest.mark.parametrize("name", ["file", "directory", "shard"])
def test_what_cannot_be_read_is_not_dropped(name: str, tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", SHARDS, schema=LARGE).path
    file = path / Dataset(path).shard_files(1)[2]
    flip(path / Dataset(path).shard_files(2)[2])
    before = bytes_of(path / "shards/00001")
    victim = {"file": file, "directory": file.parent, "shard": path / "shards/00001"}[name]
    with unprivileged():
        victim.chmod(0)
        found = verify(path)
        assert {(problem.shard, problem.kind) for problem in found.unreadable} == {("00001", Kind.UNREADABLE)}
        assert all("cannot be read: Permission denied" in problem.problem for problem in found.unreadable)
        assert {problem.shard for problem in found.problems} == {"00001", "00002"}
        done = repair(path)
        assert (done.kept, done.dropped) == (["00000", "00001"], ["00002"])
        assert {problem.shard for problem in done.unreadable} == {"00001"}
        victim.chmod(0o755)
        assert verify(path).ok
    assert bytes_of(path / "shards/00001") == before


def test_a_private_manifest_is_not_damaged(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", SHARDS, schema=LARGE).path
    before = bytes_of(path)
    with unprivileged():
        (path / "rlx.json").chmod(0)
        for use in (verify, repair, Dataset):
            with pytest.raises(FileAccessError, match=r"rlx\.json: permission denied"):
                use(path)
        (path / "rlx.json").chmod(0o644)
    assert bytes_of(path) == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_is_no_damage(number: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk can be made to fail here: the call that would is replaced."""
    failing, plain = path / Dataset(path).shard_files(1)[2], os.open

    def fail(opened: Any, *arguments: Any, **options: Any) -> int:
        if os.fspath(opened) == str(failing):
            raise OSError(number, os.strerror(number), opened)
        return plain(opened, *arguments, **options)

    monkeypatch.setattr(os, "open", fail)
    before = bytes_of(path / "shards/00000")
    (problem,) = verify(path).problems
    assert (problem.kind, problem.problem) == (Kind.UNREADABLE, f"cannot be read: {os.strerror(number)}")
    assert repair(path).dropped == []
    assert bytes_of(path / "shards/00000") == before


def test_a_shard_that_disagrees_with_the_manifest_goes(path: Path) -> None:
    manifest = Manifest.load(path)
    manifest.with_shards([replace(manifest.shards[0], statistics={})]).save(path)
    assert repair(path).dropped == ["00000"]
    assert verify(path).ok


def test_what_is_not_listed_goes(path: Path) -> None:
    (path / "shards" / "00000" / "notes.txt").touch()
    (path / "shards" / "00009.12.partial" / "observation").mkdir(parents=True)
    (path / "shards" / "stray").touch()
    (path / "rlx.json.partial").touch()
    done = repair(path)
    assert done.removed == ["rlx.json.partial", "shards/00009.12.partial", "shards/00000/notes.txt", "shards/stray"]
    assert (done.dropped, done.lost_steps, done.hint) == ([], 0, None)
    assert set(bytes_of(path / ".damaged")) == {"shards/00000/notes.txt", "shards/stray"}
    assert verify(path).ok


def test_links_are_removed_and_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (path / "shards" / "link").symlink_to(tmp_path / "precious")
    assert repair(path).removed == ["shards/link"]
    assert (tmp_path / "precious" / "file").exists()


def test_leftovers_beside_a_broken_shard(path: Path) -> None:
    (path / "rlx.json.partial").touch()
    (path / "shards" / "00001" / "extra").touch()
    flip(path / Dataset(path).shard_files(1)[0])
    assert repair(path).dropped == ["00001"]
    assert verify(path).ok


def test_a_damaged_manifest_is_put_aside(path: Path) -> None:
    before = bytes_of(path)
    flip(path / "rlx.json")
    done = repair(path)
    assert (done.kept, done.dropped, done.lost_steps) == ([], ["00000", "00001", "00002"], None)
    assert done.hint is not None
    assert "rlx.json.damaged" in done.hint
    with pytest.raises(IncompleteDatasetError):
        Dataset(path)
    write_dataset(path, SHARDS, schema=LARGE)
    assert verify(path).ok
    after = bytes_of(path)
    del after["rlx.json.damaged"]
    assert {name for name in after if name.startswith(".damaged/")} == {
        f".damaged/{name}" for name in before if name.startswith("shards/")
    }
    assert {name: after[name] for name in after if not name.startswith(".damaged/")} == before


def test_a_store_that_there_is_not_is_nothing_to_repair(path: Path) -> None:
    replace(Manifest.load(path), store="tape").save(path)
    assert repair(path).removed == []
    assert Manifest.load(path).store == "tape"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        repair(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_not_while_another_process_writes(path: Path) -> None:
    code = "import sys; from pathlib import Path; from rlx.store import repair; repair.repair(Path(sys.argv[1]))"
    with lock.writing(path):
        other = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert DatasetLockedError.__name__ in other.stderr
