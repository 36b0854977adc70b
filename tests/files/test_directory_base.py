"""A directory as a base, and which base a source string means."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlx.errors import SourceError, SourceNotFoundError
from rlx.files.base import Base
from rlx.files.directory_base import DirectoryBase
from rlx.files.http import HttpBase
from rlx.files.opening import open_base
from tests.contracts.base import BaseContract


class TestDirectoryBase(BaseContract):
    @pytest.fixture
    def base(self, files: Path) -> Base:
        return open_base(str(files))


def test_a_directory_by_path_or_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "a b%$"
    odd.mkdir()
    assert open_base(str(odd)) == DirectoryBase(odd)
    assert open_base(odd.as_uri()) == DirectoryBase(odd)
    monkeypatch.chdir(tmp_path)
    assert open_base("a b%$") == DirectoryBase(odd)


@pytest.mark.parametrize("source", ["nowhere", "file:///nowhere/at/all"])
def test_no_such_directory(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceNotFoundError, match="no such directory"):
        open_base(source)


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ("https://host/a/b/", "https://host/a/b/"),
        ("HTTP://host/a", "HTTP://host/a"),
        ("gs://bucket", "https://storage.googleapis.com/bucket"),
        ("gs://bucket/$a b/c", "https://storage.googleapis.com/bucket/%24a%20b/c"),
    ],
)
def test_urls(source: str, url: str) -> None:
    assert open_base(source) == HttpBase(url)


@pytest.mark.parametrize("source", ["s3://bucket/a", "ftp://host/a", "file://host/a", "http:///a"])
def test_urls_that_cannot_be_read(source: str) -> None:
    with pytest.raises(SourceError, match="expected"):
        open_base(source)


@pytest.mark.parametrize("source", ["http://", "http://[", "http://host:port/"])
def test_what_is_no_url(source: str) -> None:
    with pytest.raises(SourceError, match="is not a URL"):
        open_base(source)


def test_s3_has_a_way_out() -> None:
    with pytest.raises(SourceError) as caught:
        open_base("s3://bucket/a")
    assert caught.value.hint == "aws s3 sync s3://bucket/a DIR, then give DIR as the source"


def test_a_directory_needs_no_requests(tmp_path: Path) -> None:
    program = f"""
import sys
from rlx.files.opening import open_base
open_base({str(tmp_path)!r})
print("requests" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
