import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from rlx.errors import DatasetError, DatasetLockedError, IncompleteDatasetError
from rlx.files import lock
from rlx.files.atomic import whole
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import claimed
from tests.factories import make_block, write_dataset
from tests.killed_fork import changes

HOLDER = """
import sys
from pathlib import Path
from rlx.files import lock
with lock.writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_process_is_told_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "data"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DatasetLockedError, match=f"pid {holder.pid}") as caught, lock.writing(path):
            raise AssertionError("two processes hold one lock")
        assert caught.value.hint is not None
        holder.kill()
    # It dies with its process, and whatever that left does not matter.
    with lock.writing(path):
        assert (path / ".lock").read_text().strip().isdecimal()


def test_a_second_writer_of_this_process_is_not_advised_to_kill_it(tmp_path: Path) -> None:
    with lock.writing(tmp_path / "data"):
        expected = f"being written by this process, pid {os.getpid()}"
        with pytest.raises(DatasetLockedError, match=expected) as caught, lock.writing(tmp_path / "data"):
            raise AssertionError("two hold one lock")
        assert caught.value.hint == "close what writes it, or choose another directory: one for each writer"

        def second() -> None:
            with pytest.raises(DatasetLockedError, match="another process") as caught, lock.writing(tmp_path / "data"):
                raise AssertionError("two hold one lock")
            assert caught.value.hint == "wait for it, or choose another directory: one for each process"

        changes(second)  # in a child of the owner


CLAIMS: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    "lock": lock.writing,
    "dataset": claimed,
    "replacement": partial(claimed, overwrite=True),
    "file": whole,
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("leaves", ["dropped", "closed", "left by an error"])
def test_a_fork_does_not_release_what_its_parent_claims(leaves: str, claim: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    if claim == "replacement":
        write_dataset(path, [[make_block([3])]])
    held = [ExitStack()]
    held[0].enter_context(CLAIMS[claim](path))
    if claim == "dataset":
        (path / "shards").mkdir()

    def child() -> None:
        if leaves == "dropped":
            held.clear()
        elif leaves == "closed":
            with suppress(OSError):  # nothing was written to the file
                held[0].close()
        else:
            with suppress(KeyError), held[0]:
                raise KeyError

    before = sorted(tmp_path.rglob("*"))
    changes(child)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(DatasetLockedError), CLAIMS[claim](path):
        raise AssertionError("the lock was released")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_that_outlives_the_claim_does_not_keep_it(tmp_path: Path) -> None:
    with lock.writing(tmp_path):
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with lock.writing(tmp_path):
            pass
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_a_directory_that_cannot_be_made_is_not_called_locked() -> None:
    with pytest.raises(DatasetError, match=r"/proc/new/data cannot be written: No such file") as caught:
        lock.writing(Path("/proc/new/data")).__enter__()
    assert not isinstance(caught.value, DatasetLockedError)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("old", "make it writable, or use a copy of it in another directory"), ("new", "choose another directory")],
)
def test_the_hint_of_a_directory_that_is_read_only(name: str, hint: str, small_disk: Path) -> None:
    (small_disk / "old").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(DatasetError, match=f"{name} cannot be written: Read-only file system") as caught:
        lock.writing(small_disk / name).__enter__()
    assert caught.value.hint == hint


def test_a_directory_that_came_to_nothing_is_removed(tmp_path: Path) -> None:
    with lock.writing(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with lock.writing(tmp_path / "old"):
        pass
    assert (tmp_path / "old").exists()


def test_a_dataset_that_is_being_written_opens_only_on_request(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", [[make_block([3, 5])]]).path
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(IncompleteDatasetError, match=f"pid {holder.pid}: 1 of 1 shards are complete"):
            Dataset(path)
        assert len(Dataset(path, partial=True)) == 8
        holder.kill()
    assert len(Dataset(path)) == 8


def test_looking_for_a_writer_does_not_keep_one_out(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", [[make_block([3])]]).path
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            assert lock.writer_of(path) in (None, "unknown", str(os.getpid()))
            time.sleep(0.001)

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(look)
        try:
            for _ in range(100):
                with lock.writing(path):
                    pass
        finally:
            stop.set()
        looking.result()
