"""The same dataset, byte for byte, whichever engine makes it and however many workers it has."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from rlx.errors import EngineError, SourceError
from rlx.formats.finding import find_run
from rlx.progress import Progress, Silent
from rlx.store.codec import NONE
from rlx.store.dataset_writer import claimed
from rlx.store.writer import ShardFormat
from rlx.verbs.arguments import Options
from rlx.verbs.ingest import Ingest
from rlx.verbs.report import Report
from rlx.verbs.shard_task import ShardResult, ShardTask, SharedSource, attempt, convert_shard
from tests.conftest import Cli
from tests.contracts.progress import Tally
from tests.gcs_server import GcsServer
from tests.verbs.datasets import check_listed, converted, fetch, quick, shard_trees, tree, write_dopamine, write_rlu

LOCAL_2: dict[str, Any] = {"jobs": 2}
RAY: dict[str, Any] = {"jobs": 2, "engine": "ray"}


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A run of Dopamine's, or of RL Unplugged's."""
    write = {"dopamine": write_dopamine, "rlu": write_rlu}[request.param]
    return write(tmp_path / "files")


@pytest.mark.usefixtures("two_workers_of_ray")
@pytest.mark.parametrize("run", ["dopamine", "rlu"], indirect=True)
@pytest.mark.parametrize("chosen", [LOCAL_2, RAY], ids=["local", "ray"])
def test_convert(run: Path, tmp_path: Path, chosen: dict[str, Any]) -> None:
    wanted = tree(converted(run, tmp_path / "wanted", jobs=1).dataset)
    assert tree(converted(run, tmp_path / "made", **chosen).dataset) == wanted
    again = converted(tmp_path / "wanted", tmp_path / "again", jobs=1, store="memmap")
    assert tree(converted(tmp_path / "made", tmp_path / "too", **chosen, store="memmap").dataset) == tree(again.dataset)


@pytest.mark.usefixtures("two_workers_of_ray")
def test_download(tmp_path: Path) -> None:
    with GcsServer(write_rlu(tmp_path / "files")) as server:
        wanted = tree(fetch(quick(server), tmp_path / "wanted", jobs=1).dataset)
        assert tree(fetch(quick(server), tmp_path / "made", **RAY).dataset) == wanted


@pytest.mark.usefixtures("two_workers_of_ray")
def test_commands(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dopamine(tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    for verb in (["convert", "files/Pong/1"], ["download", "Pong/1", "--source", "files", "-o"]):
        made = [f"{verb[0]}-{engine}" for engine in ("local", "ray")]
        for destination in made:
            engine = destination.split("-")[1]
            result = cli(*verb, destination, "--engine", engine, "--jobs", 2, "--json", "--quiet")
            assert (result.code, result.err) == (0, "")
            assert json.loads(result.out)["shards"] == 4
        assert tree(tmp_path / made[0]) == tree(tmp_path / made[1])


def test_what_an_engine_cannot_do(cli: Cli, tmp_path: Path) -> None:
    result = cli("convert", tmp_path, tmp_path / "set", "--ray-address", "auto")
    assert (result.code, "--ray-address requires --engine ray" in result.err) == (2, True)
    result = cli("convert", tmp_path, tmp_path / "set", "--to", "d4rl", "--engine", "ray")
    assert (result.code, "--engine ray requires --to zarr or memmap" in result.err) == (2, True)
    result = cli("convert", tmp_path, tmp_path / "set", "--engine", "spark")
    assert result.code == 2


CLUSTER = """
import logging, ray
ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR)
print(ray.get_runtime_context().gcs_address, flush=True)
input()
"""
RLX = "from rlx_cli.app import main; main()"


def test_a_cluster_of_somebody_else(tmp_path: Path) -> None:
    """Which asks for a token, as Ray's do; nothing but the result is on stdout."""
    run = write_rlu(tmp_path / "files")
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a token of this test's"}
    cluster = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        argv = ["convert", str(run), "made", "--engine", "ray", "--ray-address", address, "--json"]
        made = subprocess.run(
            [sys.executable, "-c", RLX, *argv, "--quiet"], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        del environment["RAY_AUTH_TOKEN"]
        argv[2] = "refused"
        refused = subprocess.run(
            [sys.executable, "-c", RLX, *argv],
            env=environment | {"HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert cluster.poll() is None, "it goes on"
        cluster.communicate("\n")
    assert (made.returncode, made.stderr) == (0, "")
    assert json.loads(made.stdout)["shards"] == 4
    if hasattr(ray.exceptions, "AuthenticationError"):  # older versions have no tokens
        error = json.loads(refused.stdout)["error"]
        assert (refused.returncode, error["type"]) == (1, "EngineError")
        assert error["hint"].startswith("set RAY_AUTH_MODE=token, and copy ~/.ray/auth_token")
    assert shard_trees(tmp_path / "made") == shard_trees(converted(run, tmp_path / "wanted").dataset)


def die_half_way_once(task: ShardTask, progress: Progress) -> ShardResult:
    """Is killed with a shard half written, the first time that anybody writes this one."""
    mark = Path(str(task.root)) / f"tried-{task.name}"
    result = convert_shard(task, progress)
    if not mark.exists():
        mark.touch()
        (task.directory / "rlx-half-written").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return result


@pytest.mark.usefixtures("two_workers_of_ray")
def test_workers_of_ray_are_killed(tmp_path: Path) -> None:
    run = write_dopamine(tmp_path / "files")
    wanted = tree(converted(run, tmp_path / "wanted").dataset)
    tally = Tally()
    report = ingested(run, tmp_path / "made", Options(**RAY, command="rlx convert"), tally)
    assert (report.failures, tally.done["shards"]) == ({}, 4)
    assert tree(tmp_path / "made") == wanted
    assert len(check_listed(tmp_path / "made")) == 4


def ingested(run: Path, destination: Path, options: Options, progress: Progress) -> Report:
    source = find_run(run, None, None)
    with claimed(destination) as claim:
        ingest = Ingest(source, source.root, options, progress, work=die_half_way_once)
        return ingest.run(claim)


@pytest.fixture
def task(tmp_path: Path) -> ShardTask:
    """A shard to be written."""
    source = find_run(write_dopamine(tmp_path / "files"), None, None)
    directory = tmp_path / "shards/00001.7.partial"
    (tmp_path / ".lock").touch()
    return ShardTask(SharedSource(source), None, 1, "00001", directory, ShardFormat(source.schema, "memmap", NONE))


def test_what_earlier_attempts_have_left_is_swept(task: ShardTask) -> None:
    shards = task.directory.parent
    for left in ("00001.7.elsewhere.org-55.partial", "00001.7.elsewhere.org-55.swept", "00002.7.elsewhere-9.partial"):
        (shards / left / "observation").mkdir(parents=True)
    attempt(convert_shard, task, Silent())
    assert sorted(path.name for path in shards.iterdir()) == ["00001.7.partial", "00002.7.elsewhere-9.partial"]


def test_who_is_done_first_decides(task: ShardTask) -> None:
    """A worker that was given up comes to its end before the one that has its task now, and another one after."""

    def overtaken(task: ShardTask, progress: Progress) -> ShardResult:
        convert_shard(replaced, progress)
        return convert_shard(task, progress)

    replaced = task
    first = attempt(convert_shard, task, Silent())
    before = tree(task.directory.parent)
    shutil.rmtree(task.directory)
    assert attempt(overtaken, task, Silent()) == first
    assert tree(task.directory.parent) == before


def test_an_attempt_that_fails_leaves_nothing(task: ShardTask) -> None:
    def failing(task: ShardTask, progress: Progress) -> ShardResult:
        convert_shard(task, progress)
        shutil.rmtree(task.directory)
        raise SourceError("damaged")

    with pytest.raises(SourceError):
        attempt(failing, task, Silent())
    assert list(task.directory.parent.iterdir()) == []


def test_a_machine_that_does_not_see_the_dataset_is_named(task: ShardTask) -> None:
    (task.directory.parents[1] / ".lock").unlink()
    with pytest.raises(EngineError, match=f"^{platform.node()}, a machine of the cluster, does not see ") as error:
        attempt(convert_shard, task, Silent())
    assert error.value.hint is not None
    assert not task.directory.parent.exists()


def test_an_attempt_whose_directory_is_swept_fails(task: ShardTask) -> None:
    def swept(task: ShardTask, progress: Progress) -> ShardResult:
        result = convert_shard(task, progress)
        task.directory.rename(task.directory.with_suffix(".swept"))
        return result

    with pytest.raises(FileNotFoundError):
        attempt(swept, task, Silent())
    assert not task.directory.exists()
