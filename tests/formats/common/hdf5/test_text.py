"""Rows of text as they are read without HDF5's own heap code, against h5py."""

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlx.errors import CorruptShardError
from rlx.formats.common.hdf5.file import (
    TextRows,
    _messages,
    attribute,
    attributes,
    integer,
    leaves,
    names,
    text_attribute,
    texts,
)

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


@pytest.mark.parametrize("how", [{}, {"libver": "latest"}, {"track_order": True}])
def test_attributes_of_text(how: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", **how) as file:
        for number in range(5):
            file.attrs[f"word {number}"] = f"r\u00e9sum\u00e9 {number}" * 40
        file.attrs["many"], file.attrs["number"] = ["a", "", "bc"], 5
    whole = path.read_bytes()
    with h5py.File(path) as file:
        assert all(
            text_attribute(file, name) == attribute(file, name) == file.attrs[name]
            for name in [f"word {number}" for number in range(5)]
        )
        assert attribute(file, "many").tolist() == ["a", "", "bc"]
        assert (attribute(file, "number"), integer(file, "number"), attribute(file, "none")) == (5, 5, None)
        with pytest.raises(CorruptShardError, match=r"none \(an attribute\) is missing or damaged: no such attribute"):
            integer(file, "none")
    heap = whole.index(b"GCOL")
    for place in (heap, heap + 16, heap + 25, heap + 31):
        path.write_bytes(whole[:place] + b"\x7f" + whole[place + 1 :])
        with h5py.File(path) as file:
            for read in (attribute, integer):
                with pytest.raises(CorruptShardError, match=r"a\.h5.*an attribute"):
                    read(file, "word 0")


def test_attributes_that_the_library_reads_as_well(tmp_path: Path) -> None:
    """Text with a NUL ends there, and files of other layouts than usual are left to the library."""
    path, user, sizes = tmp_path / "a.h5", tmp_path / "user.h5", h5py.h5p.create(h5py.h5p.FILE_CREATE)
    with h5py.File(path, "w") as file:
        file.attrs["nothing"], file.attrs["word"], file["word"] = h5py.Empty(h5py.string_dtype()), "abXcd", "abXcd"
    path.write_bytes(path.read_bytes().replace(b"abXcd", b"ab\0cd"))
    with h5py.File(path) as file:
        assert attribute(file, "word") == file.attrs["word"] == "ab"
        assert file["word"][()].decode() == texts(file, "word")[0] == "ab"
        assert attribute(file, "nothing") == file.attrs["nothing"]
    with h5py.File(user, "w", userblock_size=512) as file:
        file.attrs["word"] = "there"
    user.write_bytes(b"\xff" * 512 + user.read_bytes()[512:])
    sizes.set_sizes(4, 4)
    with h5py.File(h5py.h5f.create(bytes(tmp_path / "four.h5"), fcpl=sizes)) as file:
        file.attrs["word"] = "there"
    for each in (user, tmp_path / "four.h5"):
        with h5py.File(each) as file:
            assert attribute(file, "word") == "there"


def test_a_header_that_leads_to_itself() -> None:
    head = b"OHDR\2\0\x14" + b"\x10\x10\0\0" + (3).to_bytes(8, "little") + (7).to_bytes(8, "little")
    with pytest.raises(ValueError, match="object header"):
        list(_messages(BytesIO(head), 0))


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


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        ({"userblock_size": 512}, {}, "user block"),
        ({}, {"chunks": (2,), "compression": "lzf"}, "a filter of number 32000"),
    ],
)
def test_references_that_are_not_read(
    how: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w", **how) as file:
        file.create_dataset("words", data=["one", "two", "three"], dtype=h5py.string_dtype(), **options)
    with (
        h5py.File(tmp_path / "a.h5") as file,
        TextRows(file["words"]) as rows,
        pytest.raises(CorruptShardError, match=message),
    ):
        rows.read(0, 3)


def test_references_past_the_end_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("words", data=["one"] * 50, dtype=h5py.string_dtype())
        place = file["words"].id.get_offset()
    with h5py.File(path) as file, TextRows(file["words"]) as rows:
        os.truncate(path, place + 100)
        with pytest.raises(CorruptShardError, match="past the end"):
            rows.read(0, 50)


def test_only_so_many_heaps_stay_in_memory(tmp_path: Path) -> None:
    words = [f"{number:03}" * 4000 for number in range(40)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("words", data=words, dtype=h5py.string_dtype())
    with h5py.File(tmp_path / "a.h5") as file, TextRows(file["words"]) as rows:
        assert rows.read(0, 40).tolist() == words
        assert rows.read(0, 1).tolist() == words[:1]


@pytest.mark.parametrize("others", [(), ("data",)])
def test_names_that_are_not_text(others: tuple[str, ...], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in (b"dat\xa6", *others):
            file.require_group("group").create_group(name)
            file.attrs[name] = 1
    with h5py.File(tmp_path / "a.h5") as file:
        for read, *arguments in ((names, file["group"]), (leaves, file, "group"), (attributes, file)):
            with pytest.raises(CorruptShardError, match=r"the name b'dat\\xa6' is not UTF-8"):
                read(*arguments)
