"""``kill -9``, Ctrl-C and dead workers at any moment: listed shards stay whole, and the same command ends the same."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

import rlx
from tests.gcs_server import Fault, GcsServer
from tests.verbs.datasets import (
    RLU_NAMES,
    RLU_SHARDS,
    check_listed,
    converted,
    fetch,
    from_directory,
    listed,
    quick,
    tree_from_anywhere,
    wait_until,
    write_dopamine,
    write_rlu,
)
from tests.verbs.processes import child

TRICKLE = Fault(trickle=(500, 0.003))
# One process and two, killed alone and with their group, early and late; the soak tests draw many more.
SEEDS = (0, 1, 2, 3, 4, 12)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_rlu(tmp_path / "files")


@pytest.fixture
def server(files: Path) -> Iterator[GcsServer]:
    with GcsServer(files) as server:
        yield server


def kill_at_random(
    verb: str, source: str, finish: Callable[[Path], object], wanted: dict[str, str], tmp_path: Path, seed: int
) -> int:
    """Kills a verb once, then finishes it; returns how many shards were listed when it died."""
    dice = random.Random(seed)
    destination = tmp_path / f"{verb}-{seed}"
    jobs, whole_group = dice.choice([1, 2]), dice.random() < 0.5
    files = dice.randrange(len(wanted))
    with child(verb, source, destination, jobs) as started:
        wait_until(lambda: count_files(destination) >= files or started.process.poll() is not None)
        time.sleep(dice.choice([0, dice.uniform(0, 0.02)]))
        started.kill(whole_group=whole_group)
        whole = check_listed(destination)
        # At once: workers that were not killed are only just learning that they are alone.
        finish(destination)
    assert tree_from_anywhere(destination) == wanted
    assert set(check_listed(destination)) >= set(whole)
    return len(whole)


def count_files(directory: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(directory))


def kill_downloads(server: GcsServer, tmp_path: Path, seeds: Iterable[int]) -> list[int]:
    wanted = tree_from_anywhere(
        from_directory(server.directory, tmp_path / "undisturbed", shards=list(RLU_SHARDS)).dataset
    )
    server.fault("*", TRICKLE, times=None)
    base = quick(server)
    return [
        kill_at_random("fetch", server.url, lambda path: fetch(base, path, jobs=1), wanted, tmp_path, seed)
        for seed in seeds
    ]


def kill_conversions(source: Path, tmp_path: Path, seeds: Iterable[int]) -> list[int]:
    wanted = tree_from_anywhere(converted(source, tmp_path / "undisturbed").dataset)
    return [
        kill_at_random("converted", str(source), lambda path: converted(source, path), wanted, tmp_path, seed)
        for seed in seeds
    ]


def test_download_is_killed(server: GcsServer, tmp_path: Path) -> None:
    found = kill_downloads(server, tmp_path, SEEDS)
    assert len(set(found)) > 1, "the moments of death differ"


def test_convert_is_killed(tmp_path: Path) -> None:
    found = kill_conversions(write_dopamine(tmp_path / "files"), tmp_path, SEEDS)
    assert len(set(found)) > 1, "the moments of death differ"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_again_and_again(server: GcsServer, tmp_path: Path) -> None:
    kill_downloads(server, tmp_path / "1", range(1000, 1150))
    kill_conversions(write_dopamine(tmp_path / "dopamine"), tmp_path / "2", range(1000, 1150))


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c(server: GcsServer, tmp_path: Path, jobs: int) -> None:
    wanted = tree_from_anywhere(
        from_directory(server.directory, tmp_path / "undisturbed", shards=list(RLU_SHARDS)).dataset
    )
    server.fault(RLU_NAMES[3], Fault(trickle=(10, 0.05)))
    with child("fetch", server.url, tmp_path / "set", jobs) as started:
        wait_until(lambda: len(listed(tmp_path / "set")) >= 2)
        started.signal_group(signal.SIGINT)
        assert started.output() == ("interrupted\n", "")
    assert 2 <= len(check_listed(tmp_path / "set")) < 4
    fetch(quick(server), tmp_path / "set", jobs=jobs)
    assert tree_from_anywhere(tmp_path / "set") == wanted


def test_ctrl_c_while_workers_start(files: Path, tmp_path: Path) -> None:
    interrupted = 0
    for delay in range(0, 6, 2):
        with child("from_directory", str(files), tmp_path / f"{delay}", 2) as started:
            time.sleep(delay * 0.03)
            started.signal_group(signal.SIGINT)
            output = started.output()
            # On a machine that lets this process wait, the other may have finished before the signal.
            if started.process.returncode or output != ("", ""):
                assert output == ("interrupted\n", "")
                interrupted += 1
            else:
                assert listed(tmp_path / f"{delay}") == [f"{shard:05d}" for shard in RLU_SHARDS]
        check_listed(tmp_path / f"{delay}")
    assert interrupted


def test_a_worker_dies(server: GcsServer, tmp_path: Path) -> None:
    wanted = tree_from_anywhere(
        from_directory(server.directory, tmp_path / "undisturbed", shards=list(RLU_SHARDS)).dataset
    )
    server.fault(RLU_NAMES[3], Fault(trickle=(50, 0.05)))
    with child("fetch", server.url, tmp_path / "set", 2) as started:
        wait_until(lambda: len(listed(tmp_path / "set")) >= 2)
        os.kill(started.workers()[0], signal.SIGKILL)
        output, errors = started.output()
    assert output == (
        "PartialError: a worker process died; finished shards are kept; "
        "run the same command again; if memory was short, with `jobs` 1\n"
    )
    assert errors == ""
    assert 2 <= len(check_listed(tmp_path / "set")) < 4
    fetch(quick(server), tmp_path / "set")
    assert tree_from_anywhere(tmp_path / "set") == wanted


def test_workers_die_with_their_parent(server: GcsServer, tmp_path: Path) -> None:
    server.fault(RLU_NAMES[3], Fault(trickle=(10, 0.05)))
    with child("fetch", server.url, tmp_path / "set", 2) as started:
        wait_until(lambda: len(listed(tmp_path / "set")) >= 2)
        workers = started.workers()
        assert workers
        started.kill(whole_group=False)
        wait_until(lambda: not any(is_alive(pid) for pid in workers))


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_second_process_names_the_first(server: GcsServer, tmp_path: Path) -> None:
    server.fault("*", Fault(stall_after=-1), times=None, method="HEAD")
    with child("fetch", server.url, tmp_path / "set", 1) as first:
        wait_until(lambda: (tmp_path / "set/.lock").exists() and (tmp_path / "set/.lock").read_text() != "")
        with child("fetch", server.url, tmp_path / "set", 1) as second:
            output, _ = second.output()
        assert output.startswith("DatasetLockedError: ")
        assert f"pid {first.process.pid};" in output
        first.kill(whole_group=True)
    server.heal()
    assert rlx.open(fetch(quick(server), tmp_path / "set").dataset).manifest.missing == []
