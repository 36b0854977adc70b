import gzip
import random
import struct
import tracemalloc
from pathlib import Path

import google_crc32c
import pytest

from rlx.errors import CorruptShardError, SourceNotFoundError
from rlx.formats.common.record_files import masked, records
from scripts.rlu_writer import tf_record

DATA = [b"", b"one", random.Random(0).randbytes(3_000_000), b"last"]


def write(path: Path, stream: bytes) -> Path:
    path.write_bytes(gzip.compress(stream, compresslevel=1, mtime=0))
    return path


def header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked(google_crc32c.value(packed)))


def test_gives_every_record(tmp_path: Path) -> None:
    assert list(records(write(tmp_path / "a", b"".join(map(tf_record, DATA))))) == DATA


def test_reads_an_uncompressed_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"".join(map(tf_record, DATA)))
    assert list(records(tmp_path / "a")) == DATA


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="absent"):
        list(records(tmp_path / "absent"))
    with pytest.raises(SourceNotFoundError):
        list(records(tmp_path))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(gzip.compress(tf_record(b"one")) + b"tail", "record 0: .*gzip", id="garbage behind the gzip"),
        pytest.param(gzip.compress(tf_record(b"one") + b"tail"), "record 1: header", id="garbage behind the records"),
        pytest.param(gzip.compress(tf_record(b"one")[:-1]), "record 0: checksum: expected 4", id="record cut off"),
        pytest.param(gzip.compress(tf_record(b"one"))[:-1], "record 0: .*gzip", id="gzip cut off"),
        pytest.param(b"hello, I am no TFRecord", "record 0: masked crc32c of its length", id="something else"),
        pytest.param(gzip.compress(tf_record(b"one").replace(b"one", b"two")), "crc32c of its data", id="other data"),
        pytest.param(gzip.compress(header(1 << 62)), "record 0: length: expected at most", id="huge length"),
        pytest.param(gzip.compress(header(100) + b"x"), "expected 100 more bytes, found 1", id="length too long"),
    ],
)
def test_corrupt(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "run_5-00003-of-00050"
    path.write_bytes(content)
    with pytest.raises(CorruptShardError, match=rf"{path.name} .*{problem}"):
        list(records(path))


def test_a_claimed_length_allocates_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a", header(500_000_000) + random.Random(0).randbytes(600_000))
    tracemalloc.start()
    with pytest.raises(CorruptShardError):
        list(records(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_damage_is_always_noticed(tmp_path: Path) -> None:
    rng = random.Random(7)
    data = [rng.randbytes(rng.randrange(200)) for _ in range(8)]
    whole = gzip.compress(b"".join(map(tf_record, data)), mtime=0)
    path = tmp_path / "a"
    noticed = 0
    for case in range(600):
        damaged = bytearray(whole)
        if case % 3:
            bit = rng.randrange(len(whole) * 8)
            damaged[bit // 8] ^= 1 << (bit % 8)
        else:
            del damaged[rng.randrange(len(whole)) :]
        path.write_bytes(damaged)
        try:
            # The gzip header's time and system mean nothing.
            assert list(records(path)) == data
        except CorruptShardError:
            noticed += 1
    assert noticed > 500
