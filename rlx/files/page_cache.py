"""Pages of remote files in memory, as many as are allowed: those used least recently go first."""

import threading
from collections import OrderedDict

Key = tuple[str, int]


class PageCache:
    """Pages by the name of their file and their number in it. It can be shared between threads.

    Args:
        max_bytes: of all pages together; 0 keeps none.

    Example:
        >>> cache = PageCache(5)
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
        self._pages: OrderedDict[Key, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> bytes | None:
        """Return the page, if it is here."""
        with self._lock:
            page = self._pages.get(key)
            if page is not None:
                self._pages.move_to_end(key)
            return page

    def put(self, key: Key, page: bytes) -> None:
        """Keep a page, and let go of others until there is room; one that is larger than the cache is not kept."""
        with self._lock:
            self.bytes -= len(self._pages.pop(key, b""))
            if len(page) > self.max_bytes:
                return
            self._pages[key] = page
            self.bytes += len(page)
            while self.bytes > self.max_bytes:
                _, oldest = self._pages.popitem(last=False)
                self.bytes -= len(oldest)
