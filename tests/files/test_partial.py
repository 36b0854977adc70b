"""Which bytes of a file that has partly arrived are trusted."""

import json
from pathlib import Path

import google_crc32c
import pytest

from rlx.files.checksum import FileStat
from rlx.files.partial import Partial

CONTENT = bytes(range(100))
CRC32C = f"{google_crc32c.value(CONTENT):08x}"


def began(path: Path, *, crc32c: str | None = None) -> Partial:
    partial = Partial(path)
    partial.restart(FileStat("a", "http://host/a", bytes=len(CONTENT), etag='"1"', crc32c=crc32c))
    partial.append(CONTENT[:60])
    return partial


def test_bytes_without_a_checksum_are_trusted_once_they_are_synced(tmp_path: Path) -> None:
    partial = began(tmp_path / "a")
    with Partial(tmp_path / "a") as other:  # as if the first one's process had been killed
        assert other.offset == 0
    with began(tmp_path / "b"):
        pass
    (tmp_path / "b.partial").write_bytes(CONTENT[:60] + bytes(10))  # that much a power cut may add
    with Partial(tmp_path / "b") as other:
        assert other.offset == 60
        other.append(CONTENT[60:])
        other.finish()
    assert (tmp_path / "b").read_bytes() == CONTENT
    partial.discard()


def test_bytes_with_a_checksum_are_compared_with_it(tmp_path: Path) -> None:
    partial = began(tmp_path / "a", crc32c=CRC32C)
    with Partial(tmp_path / "a") as other:
        assert other.offset == 60
        other.append(CONTENT[60:])
        other.finish()
    assert (tmp_path / "a").read_bytes() == CONTENT
    partial.close()


@pytest.mark.parametrize("synced", [-1, "x", None, [], 10**9])
def test_a_damaged_number_of_synced_bytes_is_no_number_of_bytes(synced: object, tmp_path: Path) -> None:
    with began(tmp_path / "a"):
        pass
    described = json.loads((tmp_path / "a.partial.json").read_text())
    (tmp_path / "a.partial.json").write_text(json.dumps({**described, "synced": synced}))
    with Partial(tmp_path / "a") as other:
        assert other.offset == (60 if synced == 10**9 else 0)
