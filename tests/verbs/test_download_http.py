"""``download`` from a server that fails in every way at once: the same bytes, or the right error and nothing lost."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlx
from rlx.errors import (
    CorruptShardError,
    DatasetLockedError,
    DatasetNotFoundError,
    DiskFullError,
    DownloadError,
    ForbiddenError,
    SourceNotFoundError,
)
from rlx.files.http import HttpFiles
from rlx.progress import Silent
from rlx.store.codec import Codec
from rlx.store.dataset_writer import claimed
from rlx.verbs.arguments import Options
from rlx.verbs.fetching import download_from, download_run, plan_run
from rlx.verbs.report import Report
from rlx.verbs.sources import Base
from tests.contracts.progress import Tally
from tests.gcs_server import Fault, GcsServer
from tests.verbs.datasets import (
    QUICK,
    RLU_NAMES,
    RLU_SHARDS,
    check_listed,
    fetch,
    from_directory,
    quick,
    shard_trees,
    trajectories,
    tree,
    tree_from_anywhere,
    write_dopamine,
    write_rlu,
)

WRONG_HASH = {"x-goog-hash": "crc32c=AAAAAA==\nmd5=AAAAAAAAAAAAAAAAAAAAAA=="}
GONE = Fault(status=404)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_rlu(tmp_path / "files")


@pytest.fixture
def server(files: Path) -> Iterator[GcsServer]:
    with GcsServer(files) as server:
        yield server


@pytest.fixture
def undisturbed(files: Path, tmp_path: Path) -> dict[str, str]:
    """The dataset as it comes from the directory."""
    return tree_from_anywhere(from_directory(files, tmp_path / "undisturbed", shards=list(RLU_SHARDS)).dataset)


def gets(server: GcsServer, name: str) -> int:
    return sum(request.method == "GET" and request.name == name for request in server.requests)


def test_the_same_bytes_as_from_a_directory(server: GcsServer, undisturbed: dict[str, str], tmp_path: Path) -> None:
    for jobs in (1, 2):
        report = fetch(quick(server), tmp_path / f"{jobs}", jobs=jobs)
        assert not report.failures
        assert tree_from_anywhere(report.dataset) == undisturbed
    assert [gets(server, name) for name in RLU_NAMES] == [2] * 4


def test_everything_goes_wrong_at_once(
    server: GcsServer, files: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    final = (files / RLU_NAMES[2]).read_bytes()
    (files / RLU_NAMES[2]).write_bytes(final[::-1])  # until the transfer is broken off
    faults = {
        "*": [Fault(status=503), Fault(cut_after=0)],
        RLU_NAMES[0]: [Fault(cut_after=700), Fault(ignore_range=True, cut_after=900), Fault(status=500)],
        RLU_NAMES[1]: [Fault(headers=WRONG_HASH), Fault(status=429, headers={"Retry-After": "1"})],
        RLU_NAMES[2]: [Fault(cut_after=500, replace_with=final), Fault(reset=True, cut_after=300)],
        RLU_NAMES[3]: [Fault(stall_after=400), Fault(stall_after=-1), Fault(cut_after=600, reset=True)],
    }
    for pattern, planned in faults.items():
        for fault in planned:
            server.fault(pattern, fault)
    server.fault("*", Fault(status=503), method="HEAD", times=2)
    tally = Tally()
    base = quick(server, read_timeout_s=0.2)
    report = download_with(base, tmp_path / "set", tally)
    assert not report.failures
    assert tree_from_anywhere(report.dataset) == undisturbed
    assert len(server.requests) >= 4 + 2 + sum(map(len, faults.values())) + 4
    assert tally.done["shards"] == tally.expected["shards"] == 4
    assert tally.done["steps"] == report.steps
    assert tally.done["bytes"] >= tally.expected["bytes"]


def download_with(base: HttpFiles, destination: Path, progress: Tally) -> Report:
    options = Options(jobs=2, shards=list(RLU_SHARDS), command="rlx download")
    return download_from([(Base(base.url), base)], "Pong/5", destination, options, progress=progress)


@pytest.mark.parametrize("layout", [None, "rlu", "dopamine"])
@pytest.mark.parametrize("status", [401, 403])
def test_forbidden(server: GcsServer, tmp_path: Path, layout: str | None, status: int) -> None:
    server.fault("*", Fault(status=status), times=None, method="*")
    options = Options(jobs=2)
    with pytest.raises(ForbiddenError, match=f"access denied .HTTP {status}"):
        download_run("Pong/5", tmp_path / "set", options, source=server.url, layout=layout, progress=Silent())
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("run", ["Pong/5", "Venture/1"])
@pytest.mark.parametrize("below", ["", "/dqn"])
def test_the_closed_bucket(tmp_path: Path, run: str, below: str) -> None:
    (tmp_path / "files").mkdir()
    with GcsServer(tmp_path / "files", bucket="atari-replay-datasets") as server:
        server.fault("*", Fault(status=403), times=None, method="*")
        with pytest.raises(ForbiddenError, match=r"closed in April 2025 \(pytorch/rl#3113\)") as raised:
            fetch(quick(server, below), tmp_path / "set", run)
    assert raised.value.hint == "the same experience from RL Unplugged: rlx download Pong/5"
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("layout", [None, "rlu", "dopamine"])
def test_nothing_there(server: GcsServer, tmp_path: Path, layout: str | None) -> None:
    options = Options(jobs=2)
    with pytest.raises(SourceNotFoundError, match=r"no such file \(HTTP 404\)"):
        download_run("Pong/4", tmp_path / "set", options, source=server.url, layout=layout, progress=Silent())
    assert not (tmp_path / "set").exists()


def test_a_game_that_rl_unplugged_lacks(server: GcsServer, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="RL Unplugged lacks Venture"):
        fetch(quick(server), tmp_path / "set", "Venture/1")
    assert not (tmp_path / "set").exists()


def test_a_server_that_is_down(server: GcsServer, tmp_path: Path) -> None:
    server.fault("*", Fault(status=503), times=None, method="*")
    with pytest.raises(DownloadError, match="503"):
        fetch(quick(server), tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param(Fault(status=404), SourceNotFoundError, id="missing"),
        pytest.param(Fault(status=403), ForbiddenError, id="forbidden"),
        pytest.param(Fault(headers=WRONG_HASH), CorruptShardError, id="wrong hash"),
        pytest.param(Fault(cut_after=0), DownloadError, id="broken line"),
        pytest.param(Fault(stall_after=-1), DownloadError, id="silent"),
    ],
)
def test_one_shard_fails_and_the_others_do_not(
    server: GcsServer,
    undisturbed: dict[str, str],
    tmp_path: Path,
    fault: Fault,
    error: type[Exception],
    jobs: int,
) -> None:
    server.fault(RLU_NAMES[1], fault, times=None)
    failed = fetch(quick(server, read_timeout_s=0.05), tmp_path / "set", jobs=jobs)
    assert failed.failed_shards == ["00001"]
    assert type(failed.failures["00001"]) is error
    assert RLU_NAMES[1] in str(failed.failures["00001"])
    assert check_listed(failed.dataset) == ["00000", "00002", "00003"]
    assert rlx.open(failed.dataset).manifest.missing == ["00001"]
    server.heal()
    again = fetch(quick(server), tmp_path / "set", jobs=jobs)
    assert (again.failed_shards, again.skipped_shards) == ([], 3)
    assert tree_from_anywhere(again.dataset) == undisturbed
    assert [gets(server, RLU_NAMES[shard]) for shard in (0, 2, 3)] == [1, 1, 1]


def test_a_shard_that_is_corrupt_at_its_source(
    server: GcsServer, files: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    whole = (files / RLU_NAMES[2]).read_bytes()
    (files / RLU_NAMES[2]).write_bytes(whole[:-100])
    failed = fetch(quick(server), tmp_path / "set")
    assert failed.failed_shards == ["00002"]
    assert isinstance(failed.failures["00002"], CorruptShardError)
    assert check_listed(failed.dataset) == ["00000", "00001", "00003"]
    assert not (failed.dataset / "source" / RLU_NAMES[2]).exists()
    (files / RLU_NAMES[2]).write_bytes(whole)
    assert tree_from_anywhere(fetch(quick(server), tmp_path / "set").dataset) == undisturbed


def test_the_first_shard_is_late(server: GcsServer, undisturbed: dict[str, str], tmp_path: Path) -> None:
    """The dictionary is made from the first shard, however late it arrives."""
    server.fault(RLU_NAMES[0], Fault(trickle=(200, 0.01)))
    assert tree_from_anywhere(fetch(quick(server), tmp_path / "set").dataset) == undisturbed


def test_the_first_shard_never_comes(server: GcsServer, files: Path, tmp_path: Path) -> None:
    """The others do without its dictionary; the values are the same."""
    server.fault(RLU_NAMES[0], GONE, times=None)
    failed = fetch(quick(server), tmp_path / "set")
    assert check_listed(failed.dataset) == ["00001", "00002", "00003"]
    server.heal()
    fetch(quick(server), tmp_path / "set")
    found = [one["observation"].tobytes() for one in trajectories(tmp_path / "set")]
    undisturbed = trajectories(from_directory(files, tmp_path / "undisturbed").dataset)
    assert found == [one["observation"].tobytes() for one in undisturbed]


def test_all_shards_fail(server: GcsServer, tmp_path: Path) -> None:
    server.fault("*", Fault(cut_after=0), times=None)
    report = fetch(quick(server), tmp_path / "set")
    assert report.failed_shards == ["00000", "00001", "00002", "00003"]
    with pytest.raises(DatasetNotFoundError):
        rlx.open(tmp_path / "set")


class TestRawFiles:
    def test_they_go_with_the_commit(self, server: GcsServer, tmp_path: Path) -> None:
        server.fault(RLU_NAMES[3], GONE, times=None)
        report = fetch(quick(server), tmp_path / "set")
        assert report.failed_shards == ["00003"]
        assert not [path for path in (report.dataset / "source").rglob("*") if path.is_file()]

    def test_the_directory_goes_at_the_end(self, server: GcsServer, tmp_path: Path) -> None:
        report = fetch(quick(server), tmp_path / "set")
        assert sorted(path.name for path in report.dataset.iterdir()) == [".lock", "rlx.json", "shards"]

    def test_they_stay_on_demand(self, server: GcsServer, files: Path, tmp_path: Path) -> None:
        report = fetch(quick(server), tmp_path / "set", keep_source=True)
        assert tree(report.dataset / "source") == tree(files)

    def test_what_is_here_in_part_is_not_fetched_twice(
        self, server: GcsServer, undisturbed: dict[str, str], tmp_path: Path
    ) -> None:
        server.fault(RLU_NAMES[2], Fault(cut_after=1000))
        server.fault(RLU_NAMES[2], Fault(cut_after=0), times=QUICK.attempts - 1)
        assert fetch(quick(server), tmp_path / "set").failed_shards == ["00002"]
        assert plan_states(server, tmp_path / "set") == ["done", "done", "partial", "done"]
        assert tree_from_anywhere(fetch(quick(server), tmp_path / "set").dataset) == undisturbed
        assert server.requests[-1].range == "bytes=1000-"


def plan_states(server: GcsServer, destination: Path) -> list[str]:
    options = Options(shards=list(RLU_SHARDS))
    before = tree(destination) if destination.exists() else None
    plan = plan_run("Pong/5", destination, options, source=server.url, layout=None)
    assert [file.url for file in plan] == [f"{server.url}/{name}" for name in RLU_NAMES]
    assert [file.bytes for file in plan] == [(server.directory / name).stat().st_size for name in RLU_NAMES]
    assert all(file.crc32c for file in plan)
    assert (tree(destination) if destination.exists() else None) == before
    return [file.state for file in plan]


class TestPlan:
    def test_nothing_is_here(self, server: GcsServer, tmp_path: Path) -> None:
        assert plan_states(server, tmp_path / "set") == ["missing"] * 4
        assert not (tmp_path / "set").exists()

    def test_some_is_here(self, server: GcsServer, tmp_path: Path) -> None:
        fetch(quick(server), tmp_path / "set", shards=[1])
        fetched = tmp_path / "set/source" / RLU_NAMES[3]
        fetched.parent.mkdir(parents=True)
        fetched.write_bytes((server.directory / RLU_NAMES[3]).read_bytes())
        assert plan_states(server, tmp_path / "set") == ["missing", "done", "missing", "present"]

    def test_of_a_dopamine_run(self, tmp_path: Path) -> None:
        with GcsServer(write_dopamine(tmp_path / "files")) as server:
            options = Options(shards=[1])
            plan = plan_run("Pong/1", tmp_path / "set", options, source=server.url, layout=None)
            assert not (tmp_path / "set").exists()
            assert sum("observation" in file.url for file in plan) == 2
            assert {file.state for file in plan} == {"missing"}


class TestDopamine:
    @pytest.mark.parametrize(("prefix", "below"), [("", ""), ("dqn/", ""), ("dqn/", "/dqn")])
    def test_the_same_bytes_as_from_a_directory(self, prefix: str, below: str, tmp_path: Path) -> None:
        files = write_dopamine(tmp_path / "files", prefix=prefix)
        undisturbed = from_directory(files / prefix, tmp_path / "undisturbed", "Pong/1")
        with GcsServer(files) as server:
            report = fetch(quick(server, below), tmp_path / "set", "Pong/1")
            assert not report.failures
            fetched = [request.name for request in server.requests if request.method == "GET" and request.status == 200]
        assert len(fetched) == len(set(fetched)), "a file that two shards need is fetched once"
        assert same_but_for_origin(report.dataset, undisturbed.dataset)
        assert not (report.dataset / "source").exists()

    def test_a_subset_fetches_what_its_last_episode_needs(self, tmp_path: Path) -> None:
        with GcsServer(write_dopamine(tmp_path / "files")) as server:
            report = fetch(quick(server), tmp_path / "set", "Pong/1", shards=[1])
            fetched = {request.name for request in server.requests if "observation" in request.name}
            assert {name.rpartition("_")[2] for name in fetched} == {"ckpt.1.gz", "ckpt.2.gz"}
            assert check_listed(report.dataset) == ["00001"]
            fetch(quick(server), tmp_path / "set", "Pong/1")
        whole = from_directory(tmp_path / "files", tmp_path / "undisturbed", "Pong/1")
        found = [one["observation"].tobytes() for one in trajectories(report.dataset)]
        assert found == [one["observation"].tobytes() for one in trajectories(whole.dataset)]

    def test_an_observation_file_fails(self, tmp_path: Path) -> None:
        files = write_dopamine(tmp_path / "files")
        with GcsServer(files) as server:
            fetch(quick(server), tmp_path / "undisturbed", "Pong/1")
            server.fault("*observation_ckpt.2.gz", GONE, times=None)
            failed = fetch(quick(server), tmp_path / "set", "Pong/1")
            # The last episode of shard 1 goes on in file 2.
            assert failed.failed_shards == ["00001", "00002"]
            assert check_listed(failed.dataset) == ["00000", "00003"]
            server.heal()
            assert not fetch(quick(server), tmp_path / "set", "Pong/1").failures
        assert tree(tmp_path / "set") == tree(tmp_path / "undisturbed")

    def test_a_small_array_that_cannot_be_had_stops_it(self, tmp_path: Path) -> None:
        """Without it nobody knows where episodes lie."""
        with GcsServer(write_dopamine(tmp_path / "files")) as server:
            server.fault("*terminal_ckpt.2.gz", Fault(status=503), times=None)
            with pytest.raises(DownloadError, match=r"terminal_ckpt\.2\.gz"):
                fetch(quick(server), tmp_path / "set", "Pong/1")
            server.heal()
            assert not fetch(quick(server), tmp_path / "set", "Pong/1").failures


def same_but_for_origin(one: Path, other: Path) -> bool:
    """Equal shards; the names of the source's files may differ by the ``dqn/`` before them."""
    return shard_trees(one) == shard_trees(other) and [s.steps for s in rlx.open(one).manifest.shards] == [
        s.steps for s in rlx.open(other).manifest.shards
    ]


def test_a_second_process_is_refused_before_anything_is_asked(server: GcsServer, tmp_path: Path) -> None:
    with claimed(tmp_path / "set"), pytest.raises(DatasetLockedError, match="pid"):
        fetch(quick(server), tmp_path / "set")
    assert server.requests == []


def test_nothing_is_overwritten_for_a_source_that_fails(server: GcsServer, tmp_path: Path) -> None:
    report = fetch(quick(server), tmp_path / "set")
    before = tree(report.dataset)
    for status in (403, 404, 503):
        server.fault("*", Fault(status=status), times=None, method="*")
        with pytest.raises((ForbiddenError, SourceNotFoundError, DownloadError)):
            fetch(quick(server), tmp_path / "set", overwrite=True)
        assert tree(report.dataset) == before
        server.heal()
    fetch(quick(server), tmp_path / "set", overwrite=True, store="memmap")
    assert rlx.open(report.dataset).manifest.store == "memmap"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


class TestFullDisk:
    def test_room_is_asked_for_first(self, tmp_path: Path, small_disk: Path) -> None:
        (tmp_path / "files/Pong").mkdir(parents=True)
        for name in RLU_NAMES:
            (tmp_path / "files" / name).write_bytes(bytes(100_000))
        with GcsServer(tmp_path / "files") as server:
            with pytest.raises(DiskFullError, match=r"expected about 600,000 bytes free, found 2\d\d,\d{3}") as raised:
                fetch(quick(server), small_disk / "set")
            assert raised.value.hint is not None
            assert "`shards`" in raised.value.hint
            assert not [request for request in server.requests if request.method == "GET"]
        assert not (small_disk / "set").exists()

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_it_fills_up_half_way(self, tmp_path: Path, small_disk: Path, jobs: int) -> None:
        files = write_rlu(tmp_path / "files")
        raw = Codec.parse("none")  # 7 kB a frame, where a compressed file promised less
        undisturbed = from_directory(files, tmp_path / "undisturbed", shards=list(RLU_SHARDS), codec=raw)
        with GcsServer(files) as server:
            with pytest.raises(DiskFullError, match="no room"):
                fetch(quick(server), small_disk / "set", jobs=jobs, codec=raw)
            listed = check_listed(small_disk / "set")
            assert len(listed) < 4
            subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
            report = fetch(quick(server), small_disk / "set", jobs=jobs, codec=raw)
        assert report.skipped_shards == len(listed)
        assert tree_from_anywhere(report.dataset) == tree_from_anywhere(undisturbed.dataset)

    def test_it_is_full_of_other_things(self, tmp_path: Path, small_disk: Path) -> None:
        files = write_rlu(tmp_path / "files")
        subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
        ballast = small_disk / "ballast"
        from_directory(files, small_disk / "set", shards=[0])
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 4096))
        with pytest.raises(DiskFullError, match="no room left on the disk") as raised:
            from_directory(files, small_disk / "set")
        assert raised.value.hint == "free some space, or inodes (df -i), and run the command again"
        assert "00000" in check_listed(small_disk / "set")
        ballast.unlink()
        report = from_directory(files, small_disk / "set")
        assert shard_trees(report.dataset) == shard_trees(from_directory(files, tmp_path / "whole").dataset)


_COUNTS_OPENS = """
import collections, os, sys
opens = collections.Counter()
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str | os.PathLike) and (arguments[1] or "").startswith("r"):
        opens[os.fspath(arguments[0]).rpartition("/")[2]] += 1
from pathlib import Path
from tests.verbs.datasets import QUICK, RLU_NAMES, fetch
from rlx.files.http import HttpFiles
if __name__ == "__main__":
    sys.addaudithook(hook)
    report = fetch(HttpFiles(sys.argv[1], retry=QUICK), Path(sys.argv[2]))
    assert not report.failures
    print([opens[name.rpartition("/")[2]] for name in RLU_NAMES])
"""


def test_a_fetched_file_is_read_once(server: GcsServer, undisturbed: dict[str, str], tmp_path: Path) -> None:
    """Its checksum is that of the bytes as they arrived; the first file is read twice, once for the dictionary."""
    counting = [sys.executable, "-c", _COUNTS_OPENS, server.url, str(tmp_path / "set")]
    done = subprocess.run(counting, capture_output=True, text=True, check=True)
    assert done.stdout == "[2, 1, 1, 1]\n"
    assert tree_from_anywhere(tmp_path / "set") == undisturbed
    assert rlx.open(tmp_path / "set").manifest.shards[0].origin["files"][RLU_NAMES[0]]["crc32c"]
