"""Blocks of remote files in memory, as many as are allowed: those used least recently go first."""

import threading
from collections import OrderedDict

Key = tuple[str, int]


class BlockCache:
    """Blocks by the name of their file and their number in it. It can be shared between threads.

    Args:
        max_bytes: of all blocks together; 0 keeps none.

    Example:
        >>> cache = BlockCache(5)
        >>> cache.put(("a", 0), b"123"), cache.put(("a", 1), b"45"), cache.get(("a", 0))
        (None, None, b'123')
        >>> cache.put(("a", 2), b"6")
        >>> cache.get(("a", 1)) is None, cache.bytes
        (True, 4)
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}, expected 0 or more")
        self.max_bytes = max_bytes
        self.bytes = 0
        self._blocks: OrderedDict[Key, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> bytes | None:
        """The block, if it is here."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def put(self, key: Key, block: bytes) -> None:
        """Keeps a block, and lets go of others until there is room; one that is larger than the cache is not kept."""
        with self._lock:
            self.bytes -= len(self._blocks.pop(key, b""))
            if len(block) > self.max_bytes:
                return
            self._blocks[key] = block
            self.bytes += len(block)
            while self.bytes > self.max_bytes:
                _, oldest = self._blocks.popitem(last=False)
                self.bytes -= len(oldest)
