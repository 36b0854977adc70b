"""``download`` from directories: every run of the samples, in every store, with any number of jobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rlx
from rlx.errors import DatasetExistsError, DatasetLockedError, SourceNotFoundError
from rlx.files.opening import open_location
from rlx.formats.rl_unplugged import shard_file
from rlx.formats.rl_unplugged.reader import find_runs
from rlx.progress import Silent
from rlx.store.codec import Codec
from rlx.store.dataset_writer import claimed
from rlx.testing.source import same
from rlx.verbs.arguments import Options
from rlx.verbs.fetching import download_run, plan_run
from tests.contracts.location import put
from tests.verbs.datasets import (
    RLU_NAMES,
    RLU_SHARDS,
    SAMPLE_RUN,
    SHARED,
    expected,
    from_directory,
    of_source,
    shard_trees,
    ted_digests,
    trajectories,
    tree,
    tree_from_anywhere,
    write_dopamine,
    write_rlu,
)

STORES = ["zarr", "memmap"]
RUNS = [
    ("rl_unplugged", "Pong/5"),
    ("rl_unplugged", "SpaceInvaders/1"),
    ("rl_unplugged", "Gravitar/2"),
    ("dqn", "Pong/1"),
    ("dqn", "Breakout/2"),
    ("dqn", "Pong/3"),
]
needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="no directory shared/ beside the clone")


def expected_episodes(layout: str, run: str) -> list[dict[str, object]]:
    if layout == "dqn":
        return expected(layout)[run]
    game, number = run.split("/")
    files = sorted(name for name in expected(layout) if name.startswith(f"{game}/run_{number}-"))
    return [{key: episode[key] for key in KEYS} for name in files for episode in expected(layout)[name]]


KEYS = ("steps", "clipped_return", "obs_sha256", "action_sha256", "reward_sha256")


@needs_samples
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(("layout", "run"), RUNS)
def test_every_episode_of_the_samples(layout: str, run: str, store: str, tmp_path: Path) -> None:
    one = from_directory(SHARED / layout, tmp_path / "one", run, store=store, jobs=1)
    two = from_directory(SHARED / layout, tmp_path / "two", run, store=store, jobs=2)
    assert not one.failures
    assert tree(one.dataset) == tree(two.dataset)
    found = list(ted_digests(one.dataset, "<i4" if layout == "dqn" else "<i8"))
    wanted = expected_episodes(layout, run)
    if run == "Pong/3":
        # A lap of the ring was never logged. Lost are the end of episode 4, episodes 5 to 9, and nothing else.
        assert {**found[4], "steps": 789} != wanted[4]
        assert (found[4]["steps"], wanted[4]["steps"]) == (779, 789)
        found, wanted = found[:4] + found[5:], wanted[:4] + wanted[10:]
        assert rlx.open(one.dataset).manifest.notes["steps_lost_before_shards"] == [1]
    assert found == wanted


@pytest.mark.parametrize("store", STORES)
def test_every_episode_of_the_sample_run(store: str, tmp_path: Path) -> None:
    one = from_directory(SAMPLE_RUN, tmp_path / "one", store=store, jobs=1)
    two = from_directory(SAMPLE_RUN, tmp_path / "two", store=store, jobs=2)
    assert tree(one.dataset) == tree(two.dataset)
    assert same(trajectories(one.dataset), of_source(find_runs(SAMPLE_RUN)[0]))
    assert (one.shards, one.skipped_shards, one.failed_shards) == (3, 0, [])


def test_the_report(tmp_path: Path) -> None:
    report = from_directory(write_rlu(tmp_path / "files") / "../files", tmp_path / "set")
    manifest = rlx.open(report.dataset).manifest
    assert manifest.notes["origin"] == str(tmp_path / "files")  # wherever it is resumed from, one origin
    assert report.to_json() | {"seconds": 0, "steps_per_second": 0} == {
        "dataset": str(tmp_path / "set"),
        "id": "Pong/5",
        "store": "zarr",
        "shards": 4,
        "steps": 125,
        "trajectories": 7,
        "bytes": manifest.bytes,
        "seconds": 0,
        "steps_per_second": 0,
        "skipped_shards": 0,
        "not_taken": {},
        "failed_shards": [],
    }
    assert [dict(shard.dropped) for shard in manifest.shards][2] == {"terminal_filler": 2, "cut": 1}
    name = shard_file("Pong", 5, 3)
    origin = manifest.shards[3].origin
    assert (origin["source"], origin["shard"], list(origin["files"])) == ("Pong/5", 3, [name])
    assert origin["files"][name]["bytes"] == (tmp_path / "files" / name).stat().st_size


def test_again_writes_nothing(tmp_path: Path) -> None:
    files = write_rlu(tmp_path / "files")
    first = from_directory(files, tmp_path / "set")
    before = tree(first.dataset)
    again = from_directory(files, tmp_path / "set")
    assert (again.skipped_shards, again.steps_written, again.steps) == (4, 0, first.steps)
    assert tree(again.dataset) == before


def test_shards_one_after_the_other_are_the_whole(tmp_path: Path) -> None:
    files = write_rlu(tmp_path / "files")
    whole = from_directory(files, tmp_path / "whole")
    from_directory(files, tmp_path / "set", shards=[0])
    assert rlx.open(tmp_path / "set").manifest.planned == ["00000"]
    from_directory(files, tmp_path / "set", shards=[3, 1])
    last = from_directory(files, tmp_path / "set")
    assert last.skipped_shards == 3
    assert tree(last.dataset) == tree(whole.dataset)


def test_no_such_shard(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="Pong/5 has no shard 4: expected one of 0-3"):
        from_directory(write_rlu(tmp_path / "files"), tmp_path / "set", shards=[1, 4])
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("run", ["Pong", "Pong/x", "../Pong/5", "Pong/5/1", "", "/5"])
def test_names_that_are_no_run(run: str, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="expected GAME/NUMBER"):
        from_directory(tmp_path, tmp_path / "set", run)


def test_a_run_that_the_directory_lacks(tmp_path: Path) -> None:
    files = write_rlu(tmp_path / "files")
    with pytest.raises(SourceNotFoundError, match=r"no run Pong/4 in .*files; found Pong/5"):
        from_directory(files, tmp_path / "set", "Pong/4")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceNotFoundError, match=r"no run found in .*empty: expected files such as"):
        from_directory(tmp_path / "empty", tmp_path / "set")


def test_a_second_process_is_refused_at_once(tmp_path: Path) -> None:
    with claimed(tmp_path / "set"), pytest.raises(DatasetLockedError, match=f"pid {os.getpid()}"):
        from_directory(write_rlu(tmp_path / "files"), tmp_path / "set")


def test_a_directory_that_is_no_dataset_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(DatasetExistsError, match=r"holds thesis\.tex"):
            from_directory(write_rlu(tmp_path / "files"), tmp_path / "set", overwrite=overwrite)
    assert tree(tmp_path / "set").keys() == {"thesis.tex"}


def test_overwriting_starts_afresh(tmp_path: Path) -> None:
    files = write_rlu(tmp_path / "files")
    from_directory(files, tmp_path / "set", store="memmap")
    report = from_directory(files, tmp_path / "set", overwrite=True)
    assert report.store == "zarr"
    assert shard_trees(report.dataset) == shard_trees(from_directory(files, tmp_path / "other").dataset)


def test_another_codec_is_refused_on_resume(tmp_path: Path) -> None:
    files = write_rlu(tmp_path / "files")
    from_directory(files, tmp_path / "set", shards=[0])
    with pytest.raises(DatasetExistsError, match=r"its codec is .*zstd-dict") as raised:
        from_directory(files, tmp_path / "set", codec=Codec.parse("zstd"))
    assert raised.value.hint is not None
    assert "`overwrite`" in raised.value.hint


class TestPlan:
    def test_of_a_directory(self, tmp_path: Path) -> None:
        files = write_rlu(tmp_path / "files")
        from_directory(files, tmp_path / "set", shards=[1])
        before = tree(tmp_path / "set")
        plan = plan_run("Pong/5", tmp_path / "set", Options(), source=str(files), layout=None)
        assert [file.state for file in plan] == ["present", "done", "present", "present"]
        assert plan[0].url == str(files / shard_file("Pong", 5, 0))
        assert plan[0].bytes == (files / shard_file("Pong", 5, 0)).stat().st_size
        assert tree(tmp_path / "set") == before

    def test_nothing_is_made(self, tmp_path: Path) -> None:
        files = write_dopamine(tmp_path / "files")
        plan = plan_run("Pong/1", tmp_path / "set", Options(shards=[1]), source=str(files), layout=None)
        # The last episode of file 1 goes on in file 2.
        assert sum("$store$_observation" in file.url for file in plan) == 2
        assert not (tmp_path / "set").exists()


def test_a_run_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    files = write_rlu(tmp_path / "files")
    wanted = from_directory(files, tmp_path / "wanted", shards=list(RLU_SHARDS)).dataset
    for name in RLU_NAMES:
        put(open_location(f"{bucket}/runs"), name, (files / name).read_bytes())
    source, options = f"{bucket}/runs", Options(jobs=1, command="rlx download", shards=list(RLU_SHARDS))
    planned = plan_run("Pong/5", tmp_path / "set", options, source=source, layout=None)
    assert [(file.url, file.state) for file in planned] == [(f"{source}/{name}", "missing") for name in RLU_NAMES]
    report = download_run("Pong/5", tmp_path / "set", options, source=source, layout=None, progress=Silent())
    assert not report.failures
    assert tree_from_anywhere(report.dataset) == tree_from_anywhere(wanted)
