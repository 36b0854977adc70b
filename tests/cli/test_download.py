import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlx
from rlx.formats.rl_unplugged import GAMES_MISSING
from tests.conftest import SAMPLE_RUN, Cli
from tests.gcs_server import Fault, GcsServer

PROGRAM = [sys.executable, "-c", "from rlx_cli.entry import main; main()"]
FILES = [f"Pong/run_5-0000{shard}-of-00050" for shard in range(3)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GcsServer]:
    shutil.copytree(SAMPLE_RUN, tmp_path / "objects")
    with GcsServer(tmp_path / "objects") as gcs:
        yield gcs


def contents(dataset: Path) -> dict[str, bytes]:
    """Every file of a dataset but the lock."""
    files = (path for path in dataset.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(dataset).as_posix(): path.read_bytes() for path in files}


def test_from_a_server(cli: Cli, home: Path, server: GcsServer) -> None:
    arguments = ("download", "Pong/5", "--source", server.url, "--shards", "0-2", "--jobs", 1)
    result = cli(*arguments)
    assert (result.code, result.err) == (0, "")
    first, second = result.out.splitlines()
    assert first.startswith("Pong/5: 2,491 steps in 6 trajectories, 3 shards, ")
    assert second == str(home / "Pong/5")
    assert not (home / "Pong/5/source").exists()
    result = cli(*arguments, "--json")
    said = json.loads(result.out)
    assert (result.code, said["dataset"], said["shards"], said["skipped_shards"]) == (0, str(home / "Pong/5"), 3, 3)
    assert "3 of them already complete" in cli(*arguments).out


def test_from_a_directory_into_a_directory(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        "download", "Pong/5", "--source", SAMPLE_RUN, "-o", tmp_path / "here", "--jobs", 1, "--store", "memmap"
    )
    assert result.code == 0
    dataset = rlx.open(tmp_path / "here")
    assert (dataset.manifest.store, len(dataset)) == ("memmap", 2491)
    assert dataset.manifest.lineage[0]["command"] == f"rlx download Pong/5 --source {SAMPLE_RUN} --store memmap"


def test_several_runs_lie_below_the_directory(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "source/Pong"
    source.mkdir(parents=True)
    for run in (4, 5):
        shutil.copy(SAMPLE_RUN / FILES[0], source / f"run_{run}-00000-of-00050")
    arguments = ("--source", source.parent, "-o", tmp_path / "runs", "--jobs", 1, "--json")
    said = json.loads(cli("download", "Pong/4", "Pong/5", *arguments).out)
    assert [report["id"] for report in said] == ["Pong/4", "Pong/5"]
    assert [report["dataset"] for report in said] == [str(tmp_path / "runs/Pong/4"), str(tmp_path / "runs/Pong/5")]


def test_dry_run_tells_the_files(cli: Cli, home: Path, server: GcsServer) -> None:
    arguments = ("download", "Pong/5", "--source", server.url, "--jobs", 1)
    assert cli(*arguments, "--shards", "1").code == 0
    result = cli(*arguments, "--shards", "0-2", "--dry-run", "--json")
    assert (result.code, result.err) == (0, "")
    said = json.loads(result.out)
    sizes = [(SAMPLE_RUN / file).stat().st_size for file in FILES]
    assert [(file["url"], file["bytes"], file["state"]) for file in said["files"]] == [
        (f"{server.url}/{FILES[0]}", sizes[0], "missing"),
        (f"{server.url}/{FILES[1]}", sizes[1], "done"),
        (f"{server.url}/{FILES[2]}", sizes[2], "missing"),
    ]
    assert all(len(file["crc32c"]) == 8 for file in said["files"])
    assert said["bytes"] == sum(sizes)
    lines = cli(*arguments, "--shards", "0-2", "--dry-run").out.splitlines()
    assert lines[0].split() == ["state", "size", "crc32c", "file"]
    assert lines[2].split()[0] == "done"
    assert lines[-1].startswith("3 files, ")
    assert [shard.name for shard in rlx.open(home / "Pong/5").manifest.shards] == ["00001"]


def test_a_forbidden_bucket(cli: Cli, home: Path, server: GcsServer) -> None:
    server.fault("*", Fault(status=403), times=None, method="*")
    result = cli("download", "Pong/5", "--source", server.url, "--json")
    assert result.code == 4
    assert json.loads(result.out)["error"]["type"] == "ForbiddenError"
    assert not (home / "Pong/5").exists()


def test_a_shard_that_the_server_lacks_fails_alone(cli: Cli, server: GcsServer) -> None:
    result = cli("download", "Pong/5", "--source", server.url, "--shards", "0,3", "--jobs", 1, "--json")
    assert result.code == 6
    said = json.loads(result.out)
    assert (said["shards"], said["failed_shards"], said["error"]["type"]) == (1, ["00003"], "PartialError")


def test_a_warning_that_nobody_reads_ends_the_download(cli: Cli, server: GcsServer, tmp_path: Path) -> None:
    """The thread of a transfer prints it: what that raises must reach the thread that waits for shards."""
    shutil.copytree(SAMPLE_RUN, tmp_path / "mirror")
    (tmp_path / "mirror" / FILES[1]).unlink()
    reader, stderr = os.pipe()
    os.close(reader)
    run = ["download", "Pong/5", "--shards", "0-2", "--jobs", "1"]
    with GcsServer(tmp_path / "mirror") as mirror:
        done = subprocess.run(
            [*PROGRAM, *run],
            env={**os.environ, "RLX_SOURCES": f"{mirror.url} {server.url}"},
            stdout=subprocess.PIPE,
            stderr=stderr,
            check=False,
            timeout=60,
        )
    os.close(stderr)
    assert (done.returncode, done.stdout) == (141, b"")
    assert cli(*run, "--source", server.url).code == 0  # resumed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((GAMES_MISSING[-1] + "/1", "--layout", "rlu"), 5, f"error: RL Unplugged lacks {GAMES_MISSING[-1]}"),
        (("Pnog/5", "--layout", "rlu"), 5, "error: RL Unplugged has no game 'Pnog'"),
        (("Pong/9", "--layout", "rlu"), 5, "error: Pong has no run 9, expected 1 to 5"),
        (("Pong",), 5, "error: run 'Pong': expected GAME/NUMBER, such as Pong/5"),
        (("../../etc/5",), 5, "error: run '../../etc/5'"),
        (("Pong/5", "--layout", "lerobot"), 2, "error: invalid value for '--layout'"),
        (("Pong/5", "--store", "sqlite"), 2, "error: invalid value for '--store'"),
        ((), 2, "error: missing argument"),
    ],
)
def test_what_cannot_be(cli: Cli, home: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = cli("download", *arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(message)
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_secrets_stay_out_of_the_lineage(cli: Cli, home: Path, server: GcsServer) -> None:
    source = server.url.replace("http://", "http://me:secret@")
    assert cli("download", "Pong/5", "--source", f"{source}?token=secret", "--shards", "0", "--jobs", 1).code == 0
    assert b"secret" not in (home / "Pong/5/rlx.json").read_bytes()


@pytest.mark.parametrize(
    ("jobs", "number"), [(1, signal.SIGINT), (2, signal.SIGINT), (2, signal.SIGTERM), (2, signal.SIGHUP)]
)
def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(
    home: Path, server: GcsServer, jobs: int, number: signal.Signals, cli: Cli, tmp_path: Path
) -> None:
    run = ["download", "Pong/5", "--source", server.url, "--shards", "0-2"]
    arguments = [*run, "--jobs", str(jobs), "--json", "--quiet"]
    server.fault(FILES[2], Fault(stall_after=1000), times=None)
    process = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (home / "Pong/5/rlx.json").exists() or len(rlx.open(home / "Pong/5", partial=True).manifest.shards) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    # As a terminal does: to every process of the group.
    os.killpg(process.pid, number)
    out, err = process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert err.splitlines() == [
        f"error: interrupted; 2 of 3 shards are finished and kept in {home}/Pong/5",
        "hint: run the same command again to resume",
    ]
    assert json.loads(out)["error"]["type"] == "InterruptedWorkError"
    server.heal()
    result = cli(*arguments)
    assert (result.code, json.loads(result.out)["skipped_shards"]) == (0, 2)
    undisturbed = tmp_path / "undisturbed"
    assert cli(*arguments, "-o", undisturbed).code == 0
    assert contents(undisturbed) == contents(home / "Pong/5")
