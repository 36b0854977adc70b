"""Writer of shards in a thread, while the next steps are taken."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Self

from rlx.block import Block
from rlx.manifest import ShardRecord
from rlx.store.dictionary import REFERENCE_ROWS
from rlx.store.writer import ShardFormat, train_dictionaries, write_shard

MakeBlock = Callable[[], Block]
# Few, so that steps made faster than they are written do not fill the memory.
_WAITING_BLOCKS = 8
_LOOK_S = 0.1


class _AbandonedError(Exception):
    """The shard is not to be written after all."""


class ShardThread:
    """Writer of one shard at a time; the dictionaries are made from the first rows of the first.

    Leaving the context abandons a shard that is not finished.

    Args:
        shards: how they are written.
        directory: returns a shard's directory by its name; a finished shard is not listed yet.
    """

    def __init__(self, shards: ShardFormat, directory: Callable[[str], Path]) -> None:
        self._format = shards
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, "shard writer")
        self._blocks: Queue[MakeBlock | _AbandonedError | None] = Queue(_WAITING_BLOCKS)
        self._shard: Future[ShardRecord] | None = None
        self._is_left = False

    @property
    def is_open(self) -> bool:
        """Whether a shard has been begun."""
        return self._shard is not None

    def append(self, name: str, make: MakeBlock) -> None:
        """Add a block to the open shard, or begin one of this name; the thread makes the block."""
        if self._shard is None:
            self._shard = self._thread.submit(self._write, name)
        self._put(self._shard, make)

    def finish(self) -> ShardRecord:
        """Return the open shard, whole in its directory."""
        if self._shard is None:
            raise ValueError("no shard is open")
        self._put(self._shard, None)
        record = self._shard.result()
        self._shard = None
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Ctrl-C may have come as the thread began: it runs then, and its shard is unknown.
        self._is_left = True
        if self._shard is not None:
            self._put(self._shard, _AbandonedError(), wants_error=False)
        self._thread.shutdown()

    def _put(
        self, shard: "Future[ShardRecord]", item: MakeBlock | _AbandonedError | None, *, wants_error: bool = True
    ) -> None:
        # Producers that wait for the queue must learn that its consumer has ended.
        while not shard.done():
            try:
                self._blocks.put(item, timeout=_LOOK_S)
            except Full:
                continue
            return
        if wants_error:
            shard.result()

    def _write(self, name: str) -> ShardRecord:
        blocks = self._taken()
        head: list[Block] = []
        if self._format.coded() and not self._format.dictionaries:
            head = _first_rows(blocks)
            self._format = replace(self._format, dictionaries=train_dictionaries(head, self._format))
        return write_shard(self._directory(name), name, self._format, chain(head, blocks))

    def _taken(self) -> Iterator[Block]:
        while (item := self._next()) is not None:
            if isinstance(item, _AbandonedError):
                raise item
            yield item()

    def _next(self) -> MakeBlock | _AbandonedError | None:
        while True:
            try:
                return self._blocks.get(timeout=_LOOK_S)
            except Empty:
                if self._is_left:
                    return _AbandonedError()


def _first_rows(blocks: Iterator[Block]) -> list[Block]:
    head: list[Block] = []
    rows = 0
    for block in blocks:
        head.append(block)
        rows += block.steps
        if rows >= REFERENCE_ROWS:
            break
    return head
