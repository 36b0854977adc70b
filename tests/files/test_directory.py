"""A plain directory as a location."""

import os
from pathlib import Path

import pytest

from rlx.errors import DownloadError, FileAccessError, ForbiddenError, SourceError
from rlx.files.location import Location
from rlx.files.opening import open_location
from tests.contracts.location import LARGE, LocationContract, put


class TestDirectory(LocationContract):
    @pytest.fixture
    def empty(self, tmp_path: Path) -> Location:
        return open_location(tmp_path / "share/data set")


def test_by_path_or_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / "a b%$"
    for meant in (
        odd,
        str(odd),
        odd.as_uri(),
        "a b%$",
        f"file://localhost{odd}".replace(" ", "%20").replace("%$", "%25$"),
    ):
        assert open_location(meant).url == str(odd)


def test_half_written_files_are_not_listed(tmp_path: Path) -> None:
    location = open_location(tmp_path)
    put(location, LARGE, b"whole")
    (tmp_path / LARGE).with_name("0.1-2.partial").write_bytes(b"half")
    assert [stored.name for stored in location.list("shards")] == [LARGE]


def test_delete_leaves_no_empty_directories_and_no_others(tmp_path: Path) -> None:
    location = open_location(tmp_path / "set")
    put(location, "shards/00000/a/b", b"1")
    put(location, "shards/00001/a/b", b"1")
    location.delete(["shards/00000/a/b"])
    assert [path.name for path in (tmp_path / "set/shards").iterdir()] == ["00001"]
    location.delete(["shards/00001/a/b"])
    assert list((tmp_path / "set").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    location = open_location(tmp_path)
    put(location, "a", b"1")
    (tmp_path / "a").chmod(0)
    with pytest.raises(ForbiddenError, match="access denied"):
        location.get("a", max_bytes=9)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match="cannot be made: "):
        put(open_location(tmp_path / "file"), "a/b", b"1")


def test_a_file_where_a_directory_has_its_name(tmp_path: Path) -> None:
    location = open_location(tmp_path)
    put(location, "a/b", b"1")
    with pytest.raises(FileAccessError, match=r"a is a directory: expected a file"):
        put(location, "a", b"1")
    assert [stored.name for stored in location.list("a")] == ["a/b"]


def test_incomplete_files_of_a_killed_writer_are_swept(tmp_path: Path) -> None:
    location = open_location(tmp_path)
    assert repr(location) == f"Directory({str(tmp_path)!r})"
    put(location, LARGE, b"whole")
    half, link = (tmp_path / LARGE).with_name("0.1-2.partial"), tmp_path / "link.partial"
    half.write_bytes(b"half")
    link.symlink_to(tmp_path / LARGE)
    location.sweep("shards")
    assert not half.exists()
    assert link.is_symlink()
    assert [stored.name for stored in location.list("shards")] == [LARGE]


def test_names_that_no_file_system_has(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be encoded for this file system"):
        open_location(tmp_path).stat("a\ud800")
