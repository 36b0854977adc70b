"""The delivery of remote files: a few ahead, each once, gone when no longer needed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from rlx.errors import SourceNotFoundError
from rlx.files.mirrors import Mirrors
from rlx.formats.dopamine.reader import DopamineLayout
from rlx.formats.rl_unplugged.reader import RLUnpluggedLayout
from rlx.progress import Silent
from rlx.verbs.transfers import Fetching
from tests.gcs_server import Fault, GcsServer
from tests.verbs.datasets import RLU_NAMES, quick, wait_until, write_dopamine, write_rlu

Arrivals = SimpleQueue[tuple[int, BaseException | None]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GcsServer]:
    with GcsServer(write_rlu(tmp_path / "files")) as server:
        yield server


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


def begin(server: GcsServer, here: Path, *, ahead: int = 9, keep: bool = False) -> tuple[Fetching, Arrivals]:
    source = RLUnpluggedLayout("Pong", 5).source(here)
    delivery, arrivals = Fetching(Mirrors([quick(server)]), source, here, Silent(), ahead=ahead, keep=keep), Arrivals()
    delivery.start(range(4), lambda shard, error: arrivals.put((shard, error)))
    return delivery, arrivals


def names(here: Path) -> list[str]:
    return sorted(path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file())


def test_no_more_is_here_than_there_is_room_for(server: GcsServer, here: Path) -> None:
    delivery, arrivals = begin(server, here, ahead=2)
    assert {arrivals.get(), arrivals.get()} == {(0, None), (1, None)}
    assert names(here) == RLU_NAMES[:2]
    delivery.finished(0)
    assert arrivals.get() == (2, None)
    assert names(here) == RLU_NAMES[1:3]
    delivery.stop()
    assert len(server.requests) == 3


def test_files_stay_on_demand(server: GcsServer, here: Path) -> None:
    delivery, arrivals = begin(server, here, keep=True)
    for _ in range(4):
        shard, _ = arrivals.get()
        delivery.finished(shard)
    delivery.stop()
    assert names(here) == RLU_NAMES


def test_an_error_arrives_in_place_of_its_shard(server: GcsServer, here: Path) -> None:
    server.fault(RLU_NAMES[1], Fault(status=404), times=None)
    delivery, arrivals = begin(server, here)
    errors = dict(arrivals.get() for _ in range(4))
    delivery.stop()
    assert [shard for shard, error in errors.items() if error is not None] == [1]
    assert isinstance(errors[1], SourceNotFoundError)


def test_stopping_does_not_wait_for_a_silent_server(server: GcsServer, here: Path) -> None:
    server.fault("*", Fault(stall_after=400), times=None)
    delivery, arrivals = begin(server, here)
    wait_until(lambda: len(names(here)) == 8)
    delivery.stop()
    assert arrivals.empty()
    assert names(here) == sorted([f"{name}.partial{end}" for name in RLU_NAMES for end in ("", ".json")])


def test_a_file_that_two_shards_need_stays_for_the_second(tmp_path: Path, here: Path) -> None:
    with GcsServer(write_dopamine(tmp_path / "files")) as server:
        layout, arrivals = DopamineLayout("Pong", 1), Arrivals()
        index = [name for name in layout.index_files() if (server.directory / name).exists()]
        present = {name: quick(server).fetch(name, here, Silent()) for name in index}
        files = Mirrors([quick(server)])
        delivery = Fetching(files, layout.source(here), here, Silent(), present=present, ahead=9, keep=False)
        delivery.start([0, 1], lambda shard, error: arrivals.put((shard, error)))
        assert {arrivals.get(), arrivals.get()} == {(0, None), (1, None)}
        delivery.finished(0)
        left = sorted(set(names(here)) - set(index))
        assert [name.rpartition("_")[2] for name in left] == ["ckpt.1.gz", "ckpt.2.gz"]
        delivery.finished(1)
        delivery.stop()
        assert names(here) == sorted(index)
        asked = [request.name for request in server.requests if "observation" in request.name]
    assert len(asked) == len(set(asked)) == 3


def test_a_thread_that_cannot_be_started(server: GcsServer, here: Path) -> None:
    source = RLUnpluggedLayout("Pong", 5).source(here)
    delivery, arrivals = Fetching(Mirrors([quick(server)]), source, here, Silent(), ahead=1, keep=False), Arrivals()
    go_on = threading.Event()

    def arrived(shard: int, error: BaseException | None) -> None:
        arrivals.put((shard, error))
        if error is None:
            go_on.wait()  # the next shard needs another thread

    delivery.start(range(2), arrived)
    assert arrivals.get() == (0, None)
    before = threading.stack_size(1 << 47)
    try:
        delivery.finished(0)
        shard, error = arrivals.get(timeout=30)
    finally:
        threading.stack_size(before)
        go_on.set()
        delivery.stop()
    assert (shard, type(error)) == (1, RuntimeError)
