"""What every location promises: a directory, a bucket and a web server answer alike, as far as they can be written."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.files.checksum import FileStat
from rlx.files.location import Location, WritableLocation
from rlx.files.retry import Cancel
from rlx.progress import Silent
from tests.contracts.progress import Tally

LARGE = "shards/00001/observation/c/0/0/0"
FILES = {
    "rlx.json": b"{}\n",
    "shards/00000/zarr.json": b"some",
    LARGE: bytes(range(251)) * 4000,
    "empty": b"",
    "odd names/a b+c%24&ä#?.gz": b"\x1f\x8b not really gzip",
    "Pong/$store$_observation_ckpt.0.gz": b"small",
}
ESCAPES = ["../secret", "a/../../secret", "/etc/passwd", "", ".", "a//b", "a/", "a\\b", "..", "a\0b"]


def put(location: WritableLocation, name: str, content: bytes) -> None:
    """Writes a file in pieces."""
    pieces = (content[start : start + 100_000] for start in range(0, len(content), 100_000))
    location.put(name, pieces, bytes=len(content), crc32c=f"{google_crc32c.value(content):08x}")


def get(location: Location, name: str) -> bytes:
    """A whole file."""
    return location.get(name, max_bytes=2**30)[0]


def write_files(directory: Path) -> None:
    """Writes FILES below a directory."""
    for name, content in FILES.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


class ReadableLocationContract(ABC):
    """A test class of a location inherits this and says how to make one that holds FILES."""

    @pytest.fixture
    @abstractmethod
    def location(self, tmp_path: Path) -> object:
        """The location to test."""

    @pytest.mark.parametrize("name", FILES)
    def test_a_file_by_every_way_to_read_it(self, location: Location, name: str) -> None:
        content = FILES[name]
        assert get(location, name) == content
        assert b"".join(location.stream(name)) == content
        found = location.stat(name)
        assert (found.name, found.bytes) == (name, len(content))
        assert found == location.stat(name)
        assert location.get(name, max_bytes=len(content))[1].etag == found.etag
        assert found.etag

    @pytest.mark.parametrize("name", FILES)
    def test_fetch_copies_it(self, location: Location, name: str, tmp_path: Path) -> None:
        first, again = Tally(), Tally()
        fetched = location.fetch(name, tmp_path / "here", first)
        assert fetched.path == tmp_path / "here" / name
        assert fetched.path.read_bytes() == FILES[name]
        crc32c = f"{google_crc32c.value(FILES[name]):08x}"
        size = len(FILES[name])
        assert (fetched.bytes, fetched.crc32c, fetched.transferred) == (size, crc32c, size)
        found = location.fetch(name, tmp_path / "here", again)
        assert (found.path, found.transferred) == (fetched.path, 0)
        assert first.done == again.done == Counter({"bytes": size})

    def test_fetch_of_what_is_known_already(self, location: Location, tmp_path: Path) -> None:
        content = FILES[LARGE]
        known = FileStat(LARGE, "", bytes=len(content), crc32c=f"{google_crc32c.value(content):08x}")
        path = location.fetch(LARGE, tmp_path, Silent(), expected=known).path
        path.write_bytes(bytes(len(content)))
        assert location.fetch(LARGE, tmp_path, Silent(), expected=known).path.read_bytes() == content
        for other in (replace(known, crc32c="00000000"), replace(known, bytes=7)):
            with pytest.raises(CorruptShardError, match="expected"):
                location.fetch(LARGE, tmp_path / "other", Silent(), expected=other)
        assert not list((tmp_path / "other").rglob("*.partial*"))

    def test_fetch_resumes(self, location: Location, tmp_path: Path) -> None:
        cancel, half = Cancel(), len(FILES[LARGE]) // 2

        class Stops(Tally):
            def advance(self, unit: str, amount: int) -> None:
                super().advance(unit, amount)
                if self.done[unit] >= half:
                    cancel.set()

        known = FileStat(LARGE, "", bytes=2 * half, crc32c=f"{google_crc32c.value(FILES[LARGE]):08x}")
        with suppress(CancelledError):  # a small file may come in one piece
            location.fetch(LARGE, tmp_path, Stops(), expected=known, cancel=cancel)
        left = [path for path in (tmp_path / LARGE).parent.iterdir() if path.suffix != ".json"]
        here = sum(path.stat().st_size for path in left)
        rest = location.fetch(LARGE, tmp_path, Silent(), expected=known)
        assert rest.path.read_bytes() == FILES[LARGE]
        assert rest.transferred == 2 * half - here

    def test_any_range(self, location: Location) -> None:
        content = FILES[LARGE]
        whole = location.stat(LARGE)
        edges = st.integers(0, len(content))

        @settings(max_examples=25, database=None)
        @given(edges, edges)
        def check(one: int, other: int) -> None:
            start, stop = sorted((one, other))
            if start < stop:
                found, stored = location.read(LARGE, start, stop)
                assert found == content[start:stop]
                assert (stored.bytes, stored.etag) == (len(content), whole.etag)
            if start < len(content):
                assert b"".join(location.stream(LARGE, start)) == content[start:]

        check()

    def test_what_is_too_large_is_not_read(self, location: Location) -> None:
        with pytest.raises(SourceError, match="has 4 bytes, expected at most 3"):
            location.get("shards/00000/zarr.json", max_bytes=3)

    @pytest.mark.parametrize("name", ["nothing", "shards/nothing", "shards", "empty/below"])
    def test_what_is_not_there(self, location: Location, name: str, tmp_path: Path) -> None:
        for read in (
            lambda: location.stat(name),
            lambda: get(location, name),
            lambda: location.read(name, 0, 1),
            lambda: list(location.stream(name)),
            lambda: location.fetch(name, tmp_path / "here", Silent()),
        ):
            with pytest.raises(SourceNotFoundError, match="no such file"):
                read()
        assert not (tmp_path / "here").exists()

    @pytest.mark.parametrize("name", ESCAPES)
    def test_names_stay_below_the_location(self, location: Location, name: str, tmp_path: Path) -> None:
        for use in (
            lambda: location.stat(name),
            lambda: get(location, name),
            lambda: location.read(name, 0, 1),
            lambda: list(location.stream(name)),
            lambda: location.fetch(name, tmp_path / "here", Silent()),
        ):
            with pytest.raises(SourceError, match="not a relative path"):
                use()


class LocationContract(ReadableLocationContract):
    """The same for a location that can be written; it has to be empty."""

    @pytest.fixture
    @abstractmethod
    def empty(self, tmp_path: Path) -> object:
        """A location without any file, whose directory or prefix does not even exist."""

    @pytest.fixture
    def location(self, empty: WritableLocation) -> object:
        for name, content in FILES.items():
            put(empty, name, content)
        return empty

    @pytest.mark.parametrize("name", ESCAPES)
    def test_writes_stay_below_the_location(self, location: WritableLocation, name: str) -> None:
        for use in (
            lambda: put(location, name, b"evil"),
            lambda: location.replace(name, b"evil", seen=None),
            lambda: location.delete([name]),
            lambda: list(location.list(name)),
        ):
            with pytest.raises(SourceError, match="not a relative path"):
                use()

    def test_list_tells_every_file_below(self, location: WritableLocation) -> None:
        def names(below: str) -> dict[str, int | None]:
            return {stored.name: stored.bytes for stored in location.list(below)}

        below = {name: len(content) for name, content in FILES.items() if name.startswith("shards/")}
        assert names("shards") == below
        assert names("shards/00001") == {LARGE: len(FILES[LARGE])}
        assert names("nothing") == {}
        assert names("shards/0000") == {}

    def test_put_replaces(self, location: WritableLocation) -> None:
        before = location.stat(LARGE)
        put(location, LARGE, b"less")
        assert get(location, LARGE) == b"less"
        assert location.stat(LARGE).etag != before.etag

    @pytest.mark.parametrize("size", [10, 20_000_000])
    def test_what_pieces_raise_leaves_all_as_it_was(self, location: WritableLocation, size: int) -> None:
        def broken() -> Iterator[bytes]:
            yield bytes(size // 2)
            yield bytes(size // 2)
            raise ArithmeticError("the file is not what it should be")

        for name in ("shards/00000/zarr.json", "new"):
            with pytest.raises(ArithmeticError):
                location.put(name, broken(), bytes=size, crc32c="00000000")
        assert get(location, "shards/00000/zarr.json") == FILES["shards/00000/zarr.json"]
        with pytest.raises(SourceNotFoundError):
            location.stat("new")
        assert {stored.name for stored in location.list("shards")} == {
            name for name in FILES if name.startswith("shards/")
        }

    def test_a_file_of_many_parts(self, empty: WritableLocation) -> None:
        content = bytes(range(256)) * (19_000_000 // 256)
        put(empty, "large", content)
        assert get(empty, "large") == content

    def test_replace_only_what_was_seen(self, empty: WritableLocation) -> None:
        assert empty.replace("rlx.json", b"first", seen=None)
        assert not empty.replace("rlx.json", b"second", seen=None)
        seen = empty.get("rlx.json", max_bytes=99)[1]
        assert empty.replace("rlx.json", b"third", seen=seen)
        assert not empty.replace("rlx.json", b"fourth", seen=seen)
        assert get(empty, "rlx.json") == b"third"

    def test_delete(self, location: WritableLocation) -> None:
        location.delete([])
        location.delete(["rlx.json", "nothing", "shards/00000/zarr.json"])
        with pytest.raises(SourceNotFoundError):
            location.stat("rlx.json")
        assert [stored.name for stored in location.list("shards")] == [LARGE]
        location.delete([LARGE])
        assert list(location.list("shards")) == []
