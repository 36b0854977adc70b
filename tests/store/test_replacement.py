"""A dataset that is replaced: whenever that is interrupted, the old one is there or the new one, and nothing else."""

import errno
import os
import shutil
from pathlib import Path
from signal import SIGINT, Signals

import pytest

from rlx.block import Block
from rlx.errors import DatasetError
from rlx.manifest import Manifest
from rlx.store.dataset_writer import Claim, claimed
from rlx.store.repair import repair
from rlx.store.verification import verify
from tests.factories import SMALL, make_block, write_dataset
from tests.killed_fork import changes, killed_before
from tests.verbs.datasets import tree

OLD = [[make_block([3, 5])], [make_block([4], first_episode=2)], [make_block([2], first_episode=3)]]
NEW = [[make_block([2, 2], first_episode=7)], [make_block([6], first_episode=9)]]


def write(path: Path, shards: list[list[Block]], planned: int | None = None) -> Path:
    return write_dataset(path, shards, schema=SMALL, store="memmap", codec="none", planned=planned).path


def put(dataset: Path, claim: Claim) -> None:
    """A dataset, where a claim says."""
    shutil.copytree(dataset, claim.place, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The new dataset."""
    return write(tmp_path / "made", NEW)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The first shard of it."""
    return write(tmp_path / "begun", NEW[:1], planned=2)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write(tmp_path / "old", OLD)


def overwrite(path: Path, made: Path) -> None:
    with claimed(path, overwrite=True) as claim:
        put(made, claim)
        claim.finish()


def test_the_new_dataset_has_the_names_and_the_files_that_it_has_alone(old: Path, made: Path) -> None:
    overwrite(old, made)
    assert tree(old) == tree(made)
    assert {entry.name for entry in old.iterdir()} == {".lock", "rlx.json", "shards"}


def test_the_old_dataset_stays_until_the_new_one_is_complete(old: Path, begun: Path) -> None:
    before = tree(old)
    with claimed(old, overwrite=True) as claim:
        assert claim.place != old
        put(begun, claim)
        assert {name: digest for name, digest in tree(old).items() if not name.startswith(".new")} == before
        assert verify(old).leftovers == [".new"]


def test_what_is_listed_of_a_new_dataset_that_was_given_up_is_kept(
    old: Path, made: Path, begun: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        with claimed(old, overwrite=True) as claim:
            put(begun, claim)
            raise KeyboardInterrupt

    before = tree(old)
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert f"{old} is unchanged; finished shards of the new dataset are in {old}/.new" in caplog.text
    assert Manifest.load(old / ".new").missing == ["00001"]
    assert verify(old / ".new").ok
    overwrite(old, made)
    assert tree(old) == tree(made) != before


def test_nothing_is_kept_of_a_new_dataset_without_a_shard(old: Path) -> None:
    def fail() -> None:
        with claimed(old, overwrite=True) as claim:
            (claim.place / "shards/00000.partial").mkdir(parents=True)
            raise KeyboardInterrupt

    before = tree(old)
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert tree(old) == before
    assert not (old / ".new").exists()


def test_a_damaged_dataset_is_replaced(old: Path, made: Path) -> None:
    (old / "rlx.json").write_text("damaged")
    overwrite(old, made)
    assert tree(old) == tree(made)


@pytest.mark.parametrize(
    ("signal", "every"),
    [
        (Signals.SIGKILL, 5),
        (SIGINT, 9),
        pytest.param(Signals.SIGKILL, 1, marks=pytest.mark.soak),
        pytest.param(SIGINT, 1, marks=pytest.mark.soak),
    ],
)
def test_ended_before_a_change_of_files(old: Path, made: Path, tmp_path: Path, signal: Signals, every: int) -> None:
    before, after = tree(old), tree(made)
    counted = _copy(old, tmp_path / "counted")
    count = changes(lambda: overwrite(counted, made))
    found = []
    for change in range(0, count, every):
        path = _copy(old, tmp_path / f"{change}")
        status = killed_before(lambda path=path: overwrite(path, made), change, signal)  # type: ignore[misc]
        assert status in ({-9} if signal is Signals.SIGKILL else {3, 0}), change
        listed = Manifest.load(path)
        is_old = listed == Manifest.load(old)
        assert is_old or listed.steps == Manifest.load(made).steps, change
        assert verify(path).ok, change
        found.append(is_old)
        if change % 2:
            repair(path)
            assert verify(path).ok, change
        else:
            with claimed(path):  # by a command that resumes, which keeps the old dataset or has the new one
                pass
        assert _without_new(path) == (before if is_old else after), change
        overwrite(path, made)
        assert tree(path) == after, change
        assert {entry.name for entry in path.iterdir()} == {".lock", "rlx.json", "shards"}, change
        shutil.rmtree(path)
    assert True in found
    assert False in found


def test_no_hard_links(old: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", link)
    overwrite(old, made)
    assert tree(old) == tree(made)


def test_a_full_disk_at_the_last_step_keeps_both(old: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Manifest.save

    def full(listed: Manifest, path: Path) -> None:
        if path == old:
            raise OSError(errno.ENOSPC, "full")
        save(listed, path)

    before = tree(old)
    monkeypatch.setattr(Manifest, "save", full)
    with pytest.raises(DatasetError):
        overwrite(old, made)
    assert _without_new(old) == before
    assert tree(old / ".new") == tree(made)


def _copy(path: Path, copy: Path) -> Path:
    shutil.copytree(path, copy)
    return copy


def _without_new(path: Path) -> dict[str, str]:
    return {name: digest for name, digest in tree(path).items() if not name.startswith((".new", "rlx.json.partial"))}
