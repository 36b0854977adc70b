from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlx.collector.worker.shard_worker import ShardThread
from rlx.errors import SchemaMismatchError
from rlx.manifest import Manifest
from rlx.store.codec import DEFAULT
from rlx.store.dataset_writer import DatasetWriter, claimed, open_writer
from tests.factories import LARGE, make_block


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[DatasetWriter]:
    described = Manifest("Test/1", "zarr", DEFAULT.to_json(), LARGE)
    with claimed(tmp_path / "set"):
        yield open_writer(tmp_path / "set", described)


def shards(writer: DatasetWriter) -> list[str]:
    return sorted(path.name for path in (writer.path / "shards").iterdir())


def test_blocks_become_shards(writer: DatasetWriter) -> None:
    with ShardThread(writer.format(), writer.partial) as thread:
        for number, name in enumerate(("00000", "00001")):
            for first in range(20):
                thread.append(name, partial(make_block, first_episode=first, schema=LARGE))
            assert thread.is_open
            record = thread.finish()
            assert (record.name, record.steps, thread.is_open) == (name, 160, False)
            writer.commit(record, origin={}, dropped={})
            assert shards(writer) == ["00000", "00001"][: number + 1]
    assert writer.format().dictionaries.keys() == {"observation"}


def test_what_is_not_finished_leaves_nothing(writer: DatasetWriter) -> None:
    with ShardThread(writer.format(), writer.partial) as thread:
        for _ in range(3):
            thread.append("00000", partial(make_block, schema=LARGE))
    assert shards(writer) == []


class Interrupted(ThreadPoolExecutor):
    """Ctrl-C comes as the work has been given to a thread, and before anybody knows of it."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        super().submit(*args, **kwargs)
        raise KeyboardInterrupt


def test_ctrl_c_as_the_thread_begins(writer: DatasetWriter) -> None:
    with ShardThread(writer.format(), writer.partial) as thread:
        thread._thread = Interrupted(1)
        with pytest.raises(KeyboardInterrupt):
            thread.append("00000", partial(make_block, schema=LARGE))
    assert shards(writer) == []


def append_many(thread: ShardThread) -> None:
    for _ in range(100):
        thread.append("00000", partial(make_block, [100]))


def test_an_error_reaches_whoever_appends(writer: DatasetWriter) -> None:
    with ShardThread(writer.format(), writer.partial) as thread:
        with pytest.raises(SchemaMismatchError, match="expected uint16"):
            append_many(thread)
        with pytest.raises(SchemaMismatchError):
            thread.finish()
    assert shards(writer) == []
