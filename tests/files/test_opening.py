"""Which location a source means."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlx.errors import SourceError, SourceNotFoundError
from rlx.files.http import HttpFiles
from rlx.files.opening import open_source


def test_a_directory_by_path_or_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "a b%$"
    odd.mkdir()
    monkeypatch.chdir(tmp_path)
    for source in (str(odd), odd.as_uri(), "a b%$"):
        assert open_source(source).directory == odd


@pytest.mark.parametrize("source", ["nowhere", "file:///nowhere/at/all"])
def test_no_such_directory(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceNotFoundError, match="no such directory"):
        open_source(source)


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
    assert open_source(source) == HttpFiles(url)


@pytest.mark.parametrize("source", ["ftp://host/a", "file://host/a", "http:///a"])
def test_urls_that_cannot_be_read(source: str) -> None:
    with pytest.raises(SourceError, match="expected"):
        open_source(source)


@pytest.mark.parametrize("source", ["http://", "http://[", "http://host:port/"])
def test_what_is_no_url(source: str) -> None:
    with pytest.raises(SourceError, match="is not a URL"):
        open_source(source)


def test_a_directory_needs_no_requests(tmp_path: Path) -> None:
    program = f"""
import sys
from rlx.files.opening import open_source
open_source({str(tmp_path)!r})
print("requests" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
