"""Files of which only the pages that are needed are fetched, and the cache that keeps them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.errors import CorruptDatasetError
from rlx.files import remote_files
from rlx.files.disk_cache import PAGE_BYTES
from rlx.files.opening import open_location
from rlx.files.remote_files import PageCache, RemoteFiles, Traffic

CONTENT = {"a": bytes(range(256)) * 9, "b/c": bytes(range(255, -1, -1)) * 3 + b"end", "empty": b""}
LARGE = bytes(range(251)) * 4000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A location that holds CONTENT and LARGE."""
    for name, content in {**CONTENT, "large": LARGE}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages so small that everything happens within a few bytes."""
    monkeypatch.setattr(remote_files, "PAGE_BYTES", 7)
    monkeypatch.setattr(remote_files, "_MAX_RUN", 5)


def opened(folder: Path, cache_bytes: int = 2**20) -> RemoteFiles:
    lengths = {name: len(content) for name, content in {**CONTENT, "large": LARGE}.items()}
    return RemoteFiles(open_location(folder), lengths, cache_bytes)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("cache_bytes", [0, 20, 100, 2**20])
def test_any_ranges_are_the_bytes_of_the_file(folder: Path, cache_bytes: int) -> None:
    files = opened(folder, cache_bytes)
    edge = st.integers(0, 2600)
    calls = st.lists(st.tuples(st.sampled_from(sorted(CONTENT)), st.lists(st.tuples(edge, edge), max_size=6)))

    @settings(database=None)
    @given(calls)
    def check(calls: list[tuple[str, list[tuple[int, int]]]]) -> None:
        for name, ranges in calls:
            found = files.pieces(name, ranges)
            assert [bytes(piece) for piece in found] == [CONTENT[name][start:stop] for start, stop in ranges]
            assert files._cache.bytes <= cache_bytes

    check()


def test_one_byte_costs_one_block(folder: Path) -> None:
    files = opened(folder)
    assert bytes(files.pieces("large", [(500_000, 500_001)])[0]) == LARGE[500_000:500_001]
    assert files.traffic == Traffic(1, PAGE_BYTES)
    files.pieces("large", [(500_000, 500_001), (500_002, 500_009)])
    assert files.traffic == Traffic(1, PAGE_BYTES)


def test_what_lies_close_together_comes_by_one_request(folder: Path) -> None:
    files = opened(folder)
    files.pieces("large", [(0, 1), (3 * PAGE_BYTES, 3 * PAGE_BYTES + 1), (700_000, 700_001)])
    assert files.traffic == Traffic(2, 5 * PAGE_BYTES)


def test_the_end_of_a_file_is_no_whole_block(folder: Path) -> None:
    files = opened(folder)
    assert bytes(files.pieces("large", [(len(LARGE) - 3, len(LARGE) + 100)])[0]) == LARGE[-3:]
    assert files.traffic == Traffic(1, len(LARGE) % PAGE_BYTES)


def test_long_ranges_are_fetched_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "_MAX_RUN", 4)
    files = opened(folder)
    assert bytes(files.pieces("large", [(0, len(LARGE))])[0]) == LARGE
    pages = -(-len(LARGE) // PAGE_BYTES)
    assert files.traffic == Traffic(-(-pages // 4), len(LARGE))


def test_nothing_is_asked_for_nothing(folder: Path) -> None:
    files = opened(folder)
    found = files.pieces("large", [(5, 5), (9, 3), (10**9, 10**10), (2**64, 2**65)])
    assert [bytes(piece) for piece in found] == [b""] * 4
    assert files.pieces("large", []) == []
    assert bytes(files.pieces("empty", [(0, 10)])[0]) == b""
    assert files.traffic == Traffic(0, 0)


def test_a_read_that_is_larger_than_the_cache_fetches_every_block_once(folder: Path) -> None:
    files = opened(folder, cache_bytes=3 * PAGE_BYTES)
    assert bytes(files.pieces("large", [(0, len(LARGE))])[0]) == LARGE
    assert files.traffic.bytes == len(LARGE)


def test_the_cache_keeps_what_was_used_last() -> None:
    cache = PageCache(30)
    for number in range(3):
        cache.put(("a", number), bytes(10))
    assert cache.get(("a", 0)) is not None
    cache.put(("b", 0), bytes(10))
    assert [cache.get(("a", number)) is None for number in range(3)] == [False, True, False]
    cache.put(("b", 0), bytes(25))
    assert (cache.bytes, cache.get(("a", 0))) == (25, None)
    cache.put(("c", 0), bytes(31))
    assert (cache.bytes, cache.get(("c", 0))) == (25, None)
    with pytest.raises(ValueError, match="max_bytes is -1"):
        PageCache(-1)


@pytest.mark.usefixtures("small_pages")
def test_threads_share_it(folder: Path) -> None:
    files = opened(folder, cache_bytes=200)
    start = threading.Barrier(8)

    def read(number: int) -> bool:
        start.wait()
        ranges = [(first, first + 100) for first in range(number, 2000, 37)]
        found = files.pieces("a", ranges)
        return [bytes(piece) for piece in found] == [CONTENT["a"][first:stop] for first, stop in ranges]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    assert files._cache.bytes <= 200


def test_a_file_that_is_gone(folder: Path) -> None:
    files = opened(folder)
    (folder / "large").unlink()
    for read in (lambda: files.pieces("large", [(0, 1)]), lambda: list(files.stream("large"))):
        with pytest.raises(CorruptDatasetError, match=r"/large is missing: expected 1,004,000 bytes"):
            read()
    with pytest.raises(CorruptDatasetError, match="the manifest lists no such file"):
        files.pieces("unlisted", [(0, 1)])


@pytest.mark.parametrize("size", [10, 999_999, 1_004_001])
def test_a_file_of_another_length(folder: Path, size: int) -> None:
    files = opened(folder)
    (folder / "large").write_bytes((LARGE + b"x")[:size])
    with pytest.raises(CorruptDatasetError, match=f"/large has {size:,} bytes, expected 1,004,000"):
        files.pieces("large", [(1_003_000, 1_003_010)])


def test_a_file_that_changes_while_it_is_read(folder: Path) -> None:
    files = opened(folder)
    files.pieces("large", [(0, 10)])
    (folder / "large").write_bytes(bytes(len(LARGE)))
    assert bytes(files.pieces("large", [(0, 10)])[0]) == LARGE[:10]
    with pytest.raises(CorruptDatasetError, match="has changed since it was first read") as failed:
        files.pieces("large", [(600_000, 600_010)])
    assert failed.value.hint == "open the dataset again"


def test_a_stream_is_the_whole_file_past_the_cache(folder: Path) -> None:
    files = opened(folder)
    assert b"".join(files.stream("large")) == LARGE
    assert files.traffic == Traffic(1, len(LARGE))
    assert files._cache.bytes == 0


def test_items_at_once_in_their_order(folder: Path) -> None:
    files = opened(folder)
    assert files.at_once(lambda name: bytes(files.pieces(name, [(0, 3)])[0]), ["b/c", "a", "a"]) == [
        CONTENT["b/c"][:3],
        CONTENT["a"][:3],
        CONTENT["a"][:3],
    ]
    with pytest.raises(CorruptDatasetError):
        files.at_once(lambda name: files.pieces(name, [(0, 3)]), ["a", "unlisted"])


def test_a_length_that_cannot_be_is_not_believed(folder: Path) -> None:
    files = RemoteFiles(open_location(folder), {"large": 2**60, "gone": 2**60}, 2**20)
    with pytest.raises(CorruptDatasetError, match=f"/large has 1,004,000 bytes, expected {2**60:,}"):
        files.pieces("large", [(0, 2**60)])
    with pytest.raises(CorruptDatasetError, match="/gone is missing"):
        files.pieces("gone", [(0, 2**60)])
