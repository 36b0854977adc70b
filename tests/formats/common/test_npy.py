"""Arrays in npy files: damaged, as Python 2 wrote them, and read piece by piece."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from rlx.errors import CorruptShardError
from rlx.formats.common.npy import gzipped, read_npy
from tests.dopamine_files import save_npy, write_gz

UINT8 = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }   \n"


def npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "npy array of version"),
        (b"not an array", "npy array of version"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "header of at most 10,000 bytes, found 4,294,967,295"),
        (npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"), "array of numbers"),
        (npy(b"{'descr': '<f3', 'fortran_order': False, 'shape': (1,), }\n"), "a type that numpy knows"),
        (npy(b"__import__('os').abort()\n"), "npy header"),
        (npy(b"(" * 9000), "npy header"),
        (npy(UINT8 % (b"9" * 9000)), "npy header"),
        (npy(UINT8 % b"1000000, 84, 84"), r"found a claim of uint8\[1000000, 84, 84\]"),
        (npy(UINT8 % b"536870912,", random.Random(0).randbytes(600_000)), "an array of at most 268,435,456 bytes"),
        (npy(UINT8 % b"3,", b"12"), "1 more bytes"),
        (npy(UINT8 % b"3,", b"1234"), "trailing data"),
    ],
)
def test_npy_that_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    write_gz(tmp_path / "array.gz", content)
    with pytest.raises(CorruptShardError, match=message) as caught:
        read_npy(tmp_path / "array.gz")
    assert "array.gz" in str(caught.value)


def test_npy_as_python_2_wrote_it(tmp_path: Path) -> None:
    write_gz(tmp_path / "a.gz", npy(UINT8 % b"3L,", b"\1\2\3"))
    assert read_npy(tmp_path / "a.gz").tolist() == [1, 2, 3]


def test_npy_rows_in_pieces(tmp_path: Path) -> None:
    array = np.arange(3 * 200_000, dtype=np.uint16).reshape(200_000, 3)
    save_npy(tmp_path / "a.gz", array)
    with gzipped(tmp_path / "a.gz") as stream:
        assert (stream.shape, stream.dtype) == (array.shape, array.dtype)
        first, later = np.empty((2, 3), np.uint16), np.empty((150_000, 3), np.uint16)
        stream.read_into(first)
        stream.skip_to(49_000)
        stream.read_into(later)
        stream.finish()
    assert np.array_equal(first, array[:2])
    assert np.array_equal(later, array[49_000:199_000])
