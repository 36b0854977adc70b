"""The cache of pages on the local disk: bounded, shared between processes, and never wrong."""

import multiprocessing
import os
import pickle
import random
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.errors import CorruptDatasetError, FileAccessError
from rlx.files import disk_cache
from rlx.files.checksum import FileStat
from rlx.files.disk_cache import FILE_NAME, PAGE_BYTES, DiskCache, key_of
from rlx.files.opening import open_location
from rlx.files.remote_files import RemoteFiles, Traffic, small_files

SIZE = 4096 + 2 * 16 * (PAGE_BYTES + 32)


def page_of(number: int) -> bytes:
    return random.Random(number).randbytes(1 + number * 997 % PAGE_BYTES)


@settings(max_examples=30, deadline=None)
@given(numbers=st.lists(st.integers(0, 60), max_size=80), data=st.data())
def test_a_page_is_absent_or_right(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    cache = DiskCache(folder, SIZE)
    for number in numbers:
        found = cache.get(key_of(number), None)
        assert found in (None, page_of(number))
        if found is None:
            cache.put(key_of(number), page_of(number), "v")
        if data.draw(st.integers(0, 9)) == 0:  # damage
            with (folder / FILE_NAME).open("r+b") as file:
                file.seek(data.draw(st.integers(4096, SIZE - 9)))
                file.write(bytes(8))
    assert (folder / FILE_NAME).stat().st_size <= SIZE
    again = DiskCache(folder, SIZE)
    assert all(again.get(key_of(number), None) in (None, page_of(number)) for number in range(61))


def test_pages_outlive_the_process_and_versions_do_not(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, SIZE)
    cache.put(key_of(1), b"one", "old")
    again = pickle.loads(pickle.dumps(DiskCache(tmp_path, SIZE)))
    assert [again.get(key_of(1), version) for version in ("old", None, "new")] == [b"one", b"one", None]
    cache.put(key_of(1), b"ONE", "new")
    assert [again.get(key_of(1), version) for version in ("old", None, "new")] == [None, b"ONE", b"ONE"]


def test_another_size_or_file_is_an_empty_cache(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, SIZE)
    cache.put(key_of(1), b"one", None)
    larger = DiskCache(tmp_path, 2 * SIZE)
    assert larger.get(key_of(1), None) is None
    assert cache.get(key_of(1), None) == b"one"  # who has the old file open goes on with it
    (tmp_path / FILE_NAME).write_bytes(b"anything")
    assert DiskCache(tmp_path, SIZE).get(key_of(1), None) is None
    with pytest.raises(ValueError, match="a disk cache of 1000 bytes"):
        DiskCache(tmp_path, 1000)
    (tmp_path / "file").touch()
    with pytest.raises(FileAccessError):
        DiskCache(tmp_path / "file" / "below", SIZE)


def test_a_scan_of_more_than_fits_leaves_most_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache(tmp_path, SIZE)

    def present(numbers: range) -> int:
        return sum(cache.get(key_of(number), None) is not None for number in numbers)

    for number in range(320):
        cache.put(key_of(number), b"page", None)
    kept = present(range(320))
    assert kept == 4 * 8
    for number in range(1000, 1032):
        cache.put(key_of(number), b"page", None)
    assert present(range(320)) > kept - 10
    now = disk_cache._now()
    monkeypatch.setattr(disk_cache, "_now", lambda: now + 2 * disk_cache._RECENT_MINUTES)
    for number in range(2000, 2320):
        cache.put(key_of(number), b"page", None)
    assert present(range(320)) < 5


def test_a_full_disk_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(tmp_path, SIZE)
    cache.put(key_of(1), b"one", None)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    cache.put(key_of(2), b"two", None)
    cache.put(key_of(3), b"three", None)
    assert "cannot be written" in caplog.text
    assert caplog.text.count("No space left") == 1
    assert [cache.get(key_of(number), None) for number in (1, 2)] == [b"one", None]


def _fill(folder: Path, seed: int) -> int:
    cache, rng, hits = DiskCache(folder, SIZE), random.Random(seed), 0
    for _ in range(400):
        number = rng.randrange(40)
        found = cache.get(key_of(number), None)
        assert found in (None, page_of(number))
        hits += found is not None
        cache.put(key_of(number), page_of(number), None)
    return hits


def test_processes_share_it(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert sum(pool.starmap(_fill, [(tmp_path, seed) for seed in range(2)])) > 100


def test_remote_files_are_read_from_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    content = random.Random(0).randbytes(3 * PAGE_BYTES + 5)
    (tmp_path / "there/a").write_bytes(content)

    def opened(checksum: str = "00000000") -> RemoteFiles:
        disk = DiskCache(tmp_path / "cache", 8 * SIZE)
        return RemoteFiles(open_location(tmp_path / "there"), {"a": len(content)}, 0, disk, {"a": checksum})

    first = opened()
    assert bytes(first.pieces("a", [(0, len(content))])[0]) == content
    assert first.traffic == Traffic(1, len(content))
    second = opened()
    assert bytes(second.pieces("a", [(0, len(content))])[0]) == content
    assert second.traffic == Traffic()
    replaced = opened("11111111")
    assert bytes(replaced.pieces("a", [(0, 9)])[0]) == content[:9]
    assert replaced.traffic.requests == 1


@pytest.mark.parametrize("is_tagged", [True, False])
def test_pages_of_an_older_file_are_noticed_and_left(is_tagged: bool, tmp_path: Path) -> None:
    """A server may answer with a file of the same length that it had before."""
    length = 20 * PAGE_BYTES

    class Server:
        url = "https://host/set"

        def __init__(self, letter: bytes) -> None:
            self._letter = letter

        def read(self, name: str, start: int, stop: int) -> tuple[bytes, FileStat]:
            etag = f'"{self._letter!r}"' if is_tagged or self._letter == b"o" else None
            return self._letter * (stop - start), FileStat(name, name, bytes=length, etag=etag)

    def opened(letter: bytes) -> RemoteFiles:
        disk = DiskCache(tmp_path, 8 * SIZE)
        return RemoteFiles(Server(letter), {"a": length}, 0, disk)  # type: ignore[arg-type]

    assert bytes(opened(b"o").pieces("a", [(0, 3)])[0]) == b"ooo"
    second = opened(b"n")
    assert bytes(second.pieces("a", [(0, 3)])[0]) == b"ooo"  # nothing was asked yet
    for _ in range(2):
        with pytest.raises(CorruptDatasetError, match="has changed"):
            second.pieces("a", [(10 * PAGE_BYTES, 11 * PAGE_BYTES)])
    assert bytes(opened(b"n").pieces("a", [(0, 3)])[0]) == b"nnn"
    assert opened(b"n").traffic == Traffic()


def test_copies_of_small_files_that_are_cached_in_part(tmp_path: Path) -> None:
    content = {name: random.Random(name).randbytes(30_000) for name in "abcd"}
    lengths = {name: len(one) for name, one in content.items()}
    checksums = {name: f"{google_crc32c.value(one):08x}" for name, one in content.items()}
    together, names = small_files(lengths, checksums)
    (tmp_path / "shards").mkdir()
    (tmp_path / together).write_bytes(b"".join(content[name] for name in names))

    def opened() -> RemoteFiles:
        disk = DiskCache(tmp_path / "cache", 8 * SIZE)
        return RemoteFiles(open_location(tmp_path), {**lengths, together: 120_000}, 2**20, disk, checksums)

    assert [number for _, number, _ in opened().fetch([(together, [3])])] == [3]
    second = RemoteFiles(open_location(tmp_path), lengths, 2**20, opened().disk, checksums)
    assert {name: bytes(second.pieces(name, [(0, 30_000)])[0]) for name in names} == content
    assert second.traffic.requests == 1
