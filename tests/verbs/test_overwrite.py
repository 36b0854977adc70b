"""``--overwrite`` of every command: the old dataset stays until the new one is complete, whenever it is interrupted."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT, SIGKILL
from typing import Any

import pytest

import rlx
from rlx.errors import RlxError
from rlx.manifest import Manifest
from rlx.store.verification import verify
from tests.factories import SMALL, make_block, write_dataset
from tests.killed_fork import changes, killed_before
from tests.verbs.datasets import RLU_NAMES, from_directory, tree, write_rlu

Verb = Callable[[Path], object]
ROUNDS = 6


def write(path: Path, *lengths: list[int]) -> Path:
    shards = [[make_block(shard, first_episode=10 * number)] for number, shard in enumerate(lengths)]
    return write_dataset(path, shards, schema=SMALL, store="memmap", codec="none").path


def make_verbs(directory: Path) -> dict[str, Verb]:
    """What each command writes into a directory that holds a dataset."""
    data, other = write(directory / "data", [3, 5], [4], [2, 2]), write(directory / "other", [6])

    def split(path: Path, **options: Any) -> object:
        return rlx.split(data, [0.5], output=[path], **options)

    return {
        "convert": lambda path: rlx.convert(data, path, jobs=1, overwrite=True),
        "merge": lambda path: rlx.merge([data, other], path, jobs=1, overwrite=True),
        "pull": lambda path: rlx.pull(str(data), path, jobs=1, overwrite=True),
        "preprocess": lambda path: rlx.preprocess(data, path, transform="clip_reward", num_workers=1, overwrite=True),
        "split": lambda path: split(path, jobs=1, overwrite=True),
        "collect": lambda path: rlx.collect(
            "CartPole-v1", output=path, steps=60, shard_steps=20, envs=1, store="memmap", overwrite=True
        ),
    }


@pytest.fixture(params=["convert", "merge", "pull", "preprocess", "split", "collect"])
def verb(request: pytest.FixtureRequest, tmp_path: Path) -> Verb:
    made: Verb = make_verbs(tmp_path)[request.param]
    return made


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write(tmp_path / "old", [7, 1], [2])


def kill(verb: Verb, old: Path, tmp_path: Path, rounds: int | None) -> list[bool]:
    """Kill a command, or interrupt it; returns whether the old dataset was there then."""
    verb(_copy(old, tmp_path / "whole"))
    wanted = tree(tmp_path / "whole")
    counted = _copy(old, tmp_path / "counted")
    count, dice, found = changes(lambda: verb(counted)), random.Random(7), []
    moments = range(count) if rounds is None else sorted(dice.sample(range(count), rounds))
    for moment in moments:
        path = _copy(old, tmp_path / f"{moment}")
        killed_before(lambda path=path: verb(path), moment, dice.choice([SIGKILL, SIGINT]))  # type: ignore[misc]
        assert verify(path).ok, moment
        listed = Manifest.load(path)
        found.append(listed == Manifest.load(old))
        assert found[-1] or listed.steps == Manifest.load(tmp_path / "whole").steps, moment
        verb(path)
        assert _shards(tree(path)) == _shards(wanted), moment
        assert {entry.name for entry in path.iterdir()} == {".lock", "rlx.json", "shards"}, moment
        shutil.rmtree(path)
    return found


def test_killed(verb: Verb, old: Path, tmp_path: Path) -> None:
    assert True in kill(verb, old, tmp_path, ROUNDS)


@pytest.mark.soak
def test_killed_at_every_change_of_files(verb: Verb, old: Path, tmp_path: Path) -> None:
    found = kill(verb, old, tmp_path, None)
    print(f"the old dataset {sum(found)} times, the new one {len(found) - sum(found)} times")  # noqa: T201
    assert True in found
    assert False in found


def test_what_it_writes_is_what_it_writes_elsewhere(verb: Verb, old: Path, tmp_path: Path) -> None:
    verb(old)
    verb(tmp_path / "elsewhere")
    assert _shards(tree(old)) == _shards(tree(tmp_path / "elsewhere"))


def test_a_failed_shard_keeps_the_old_dataset(old: Path, tmp_path: Path) -> None:
    data, files = write(tmp_path / "data", [3, 5], [4]), write_rlu(tmp_path / "files")
    next((data / "shards/00001").rglob("*.memmap")).write_bytes(b"")
    (files / RLU_NAMES[1]).write_bytes(b"damaged")
    before = tree(old)
    reports = rlx.pull(str(data), old, jobs=1, overwrite=True), from_directory(files, old, overwrite=True)
    for report, complete in zip(reports, (1, 3), strict=True):
        assert report.failed_shards == ["00001"]
        assert (report.dataset, report.shards) == (old / ".new", complete)
        assert isinstance(report.error, RlxError)
        assert {name: digest for name, digest in tree(old).items() if not name.startswith((".new", "source"))} == before
    assert report.error is not None
    assert report.error.hint == f"{old} is unchanged; run the same command again to replace it"


def _copy(path: Path, copy: Path) -> Path:
    return Path(shutil.copytree(path, copy))


def _shards(files: dict[str, str]) -> dict[str, str]:
    """The files of shards: a manifest of collected steps may name other versions."""
    return {name: digest for name, digest in files.items() if name.startswith("shards/")}
