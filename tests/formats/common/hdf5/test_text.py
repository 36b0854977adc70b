"""Rows of text as they are read without HDF5's own heap code, against h5py."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlx.errors import CorruptShardError
from rlx.formats.common.hdf5.text import TextRows, texts

WORDS = np.array(["", "left", "r\u00e9sum\u00e9", "x" * 5000, "left"] * 4, object)
LAYOUTS: dict[str, dict[str, Any]] = {
    "in one piece": {},
    "in chunks": {"chunks": (3,), "maxshape": (None,)},
    "gzipped": {"chunks": (7,), "compression": "gzip", "shuffle": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(20,), (10, 2)])
def test_any_rows_are_what_h5py_reads(layout: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    how = dict(LAYOUTS[layout])
    for name in ("chunks", "maxshape"):
        if name in how and len(shape) == 2:
            how[name] = (*how[name], 1 if name == "chunks" else 2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("words", data=WORDS.reshape(shape), dtype=h5py.string_dtype(), **how)
    with h5py.File(tmp_path / "a.h5") as file, TextRows(file["words"]) as rows:
        wanted = np.array([word.decode() for word in file["words"][()].reshape(-1)], object).reshape(shape)
        for start in range(shape[0]):
            for stop in range(start, shape[0] + 1):
                np.testing.assert_array_equal(rows.read(start, stop), wanted[start:stop])


def test_texts_of_one_length_and_one_text(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["words"], file["word"] = np.array([b"ab", b"c"], "S3"), "hello"
    with h5py.File(tmp_path / "a.h5") as file:
        assert (texts(file, "words"), texts(file, "word")) == (["ab", "c"], ["hello"])


def test_rows_that_nobody_wrote_are_empty(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("words", (6,), h5py.string_dtype(), chunks=(2,))[3] = "there"
    with h5py.File(tmp_path / "a.h5") as file, TextRows(file["words"]) as rows:
        assert rows.read(0, 6).tolist() == ["", "", "", "there", "", ""]


def test_every_byte_of_a_heap_may_be_wrong(tmp_path: Path) -> None:
    """Whatever is damaged is an error that names the dataset, or texts."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("words", data=["one", "two", "three"], dtype=h5py.string_dtype())
    whole = path.read_bytes()
    heap = whole.index(b"GCOL")
    for place in [*range(heap, heap + 120), *range(len(whole) - 64, len(whole))]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            with h5py.File(path) as file:
                assert all(isinstance(word, str) for word in texts(file, "words"))
        except CorruptShardError as exc:
            assert "/words is damaged" in str(exc)  # noqa: PT017


def test_a_chunk_that_is_too_large_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("words", (2**34,), h5py.string_dtype(), chunks=(2**26,))
    with (
        h5py.File(tmp_path / "a.h5") as file,
        TextRows(file["words"]) as rows,
        pytest.raises(CorruptShardError, match="chunks of 1,073,741,824 bytes, expected at most 536,870,912"),
    ):
        rows.read(0, 6)
