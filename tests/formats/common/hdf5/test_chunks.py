"""Chunks that a hostile file made too short or too long, through every filter that libhdf5 has."""

import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlx.errors import CorruptShardError
from rlx.formats.common.hdf5 import chunks as hdf5_chunks
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.schema import Field, Role
from tests.conftest import Cli
from tests.hdf5_files import write_d4rl

ROWS, WIDTH, CHUNK = 1000, 3, 64
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip": {"compression": "gzip"},
    "gzip and shuffle": {"compression": "gzip", "shuffle": True},
    "gzip, shuffle and checksum": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "lzf and shuffle": {"compression": "lzf", "shuffle": True},
    "checksum": {"fletcher32": True},
    "scale-offset": {"scaleoffset": 0},
}


def write(path: Path, filters: dict[str, Any], *, shape: tuple[int, ...] = (ROWS, WIDTH)) -> np.ndarray[Any, Any]:
    rows = np.random.default_rng(0).integers(0, 50, shape).astype("i4")
    with h5py.File(path, "w") as file:
        file.create_dataset("rows", data=rows, chunks=(CHUNK, *shape[1:]), **filters)
    return rows


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (ROWS,), (CHUNK, 2, 2)])
def test_whole_chunks_are_read(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    rows = write(tmp_path / "a.h5", FILTERS[name], shape=shape)
    with hdf5_file.opened(tmp_path / "a.h5") as file:
        found = hdf5_file.numbers(file, "rows")
        for start, stop in ((0, 1), (63, 65), (0, len(rows)), (len(rows) - 1, len(rows)), (5, 5)):
            np.testing.assert_array_equal(hdf5_file.read(found, start, stop), rows[start:stop])


def replaced(path: Path, number: int, content: bytes, mask: int = 0) -> None:
    """Another stored chunk."""
    with h5py.File(path, "r+") as file:
        file["rows"].id.write_direct_chunk((number * CHUNK, 0), content, mask)


def lzf(literals: bytes) -> bytes:
    return b"".join(
        bytes([len(part) - 1]) + part for part in (literals[at : at + 32] for at in range(0, len(literals), 32))
    )


@pytest.mark.parametrize("length", [0, 8, CHUNK * WIDTH * 4 - 1, CHUNK * WIDTH * 4 + 1, 10_000_000])
@pytest.mark.parametrize("name", ["gzip", "gzip and shuffle", "lzf"])
def test_a_chunk_of_another_length_is_refused(name: str, length: int, tmp_path: Path) -> None:
    rows = write(tmp_path / "a.h5", FILTERS[name])
    replaced(tmp_path / "a.h5", 3, lzf(bytes(max(length, 1))) if name == "lzf" else zlib.compress(bytes(length)))
    with hdf5_file.opened(tmp_path / "a.h5") as file:
        found = hdf5_file.numbers(file, "rows")
        np.testing.assert_array_equal(hdf5_file.read(found, 0, 3 * CHUNK), rows[: 3 * CHUNK])
        with pytest.raises(CorruptShardError, match=r"a\.h5: /rows, chunk at \[192, 0\]: expected 768 bytes, found "):
            hdf5_file.read(found, 3 * CHUNK + 5, 3 * CHUNK + 6)
        with pytest.raises(CorruptShardError, match=r"chunk at \[192, 0\]"):
            hdf5_file.read_all(found)


def test_a_chunk_that_is_stored_as_it_is(tmp_path: Path) -> None:
    """The mask says which filters the writer left out."""
    rows = write(tmp_path / "a.h5", FILTERS["gzip"])
    replaced(tmp_path / "a.h5", 0, rows[:CHUNK].tobytes(), mask=1)
    replaced(tmp_path / "a.h5", 1, b"short", mask=1)
    with hdf5_file.opened(tmp_path / "a.h5") as file:
        found = hdf5_file.numbers(file, "rows")
        np.testing.assert_array_equal(hdf5_file.read(found, 0, CHUNK), rows[:CHUNK])
        with pytest.raises(CorruptShardError, match="expected 768 bytes, found 5"):
            hdf5_file.read(found, 0, 2 * CHUNK)


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", FILTERS["gzip"])
    replaced(tmp_path / "a.h5", 0, b"no deflate")
    with (
        hdf5_file.opened(tmp_path / "a.h5") as file,
        pytest.raises(CorruptShardError, match="a chunk is damaged: Error -3"),
    ):
        hdf5_file.read(hdf5_file.numbers(file, "rows"), 0, 1)


def test_rows_too_large_for_a_schema_are_the_fault_of_the_file(tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5")
    with (
        pytest.raises(CorruptShardError, match=r"a\.hdf5: shape .* expected rows of at most"),
        hdf5_file.opened(tmp_path / "a.hdf5"),
    ):
        Field("float32", (2**40,), Role.STEP)


def write_nbit(path: Path, precision: int) -> np.ndarray[Any, Any]:
    """Integers of that many bits."""
    rows = np.random.default_rng(0).integers(0, 50, (ROWS, WIDTH)).astype("i4")
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(precision)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((CHUNK, WIDTH))
    properties.set_filter(h5py.h5z.FILTER_NBIT, h5py.h5z.FLAG_OPTIONAL, ())
    with h5py.File(path, "w") as file:
        made = h5py.h5d.create(file.id, b"rows", kind, h5py.h5s.create_simple(rows.shape), properties)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, rows)
    return rows


@pytest.mark.parametrize("precision", [20, 31, 32])
def test_numbers_of_less_than_whole_bytes(precision: int, tmp_path: Path) -> None:
    rows = write_nbit(tmp_path / "a.h5", precision)
    with hdf5_file.opened(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(hdf5_file.read_all(hdf5_file.numbers(file, "rows")), rows)


@pytest.mark.parametrize("kept", [1, 4, 20, 21, 0.5, 0.98])
@pytest.mark.parametrize("name", ["nbit", "scale-offset"])
def test_packed_numbers_that_are_cut_short(name: str, kept: float, tmp_path: Path) -> None:
    """The library reads beyond their end, or returns memory that nobody has written."""
    if name == "nbit":
        write_nbit(tmp_path / "a.h5", 20)
    else:
        write(tmp_path / "a.h5", FILTERS[name])
    with h5py.File(tmp_path / "a.h5") as file:
        _, chunk = file["rows"].id.read_direct_chunk((0, 0))
    replaced(tmp_path / "a.h5", 0, chunk[: int(kept * len(chunk)) if isinstance(kept, float) else kept])
    with hdf5_file.opened(tmp_path / "a.h5") as file:
        found = hdf5_file.numbers(file, "rows")
        with pytest.raises(CorruptShardError, match=r"chunk at \[0, 0\]: expected 768 bytes, found"):
            hdf5_file.read(found, 0, 1)


@pytest.mark.parametrize("bits", [32, 33, 2**32 - 1])
def test_packed_numbers_of_more_bits_than_there_are(bits: int, tmp_path: Path) -> None:
    write(tmp_path / "a.h5", FILTERS["scale-offset"])
    with h5py.File(tmp_path / "a.h5") as file:
        _, chunk = file["rows"].id.read_direct_chunk((0, 0))
    replaced(tmp_path / "a.h5", 0, bits.to_bytes(4, "little") + chunk[4:])
    with (
        hdf5_file.opened(tmp_path / "a.h5") as file,
        pytest.raises(CorruptShardError, match="expected 768 bytes, found"),
    ):
        hdf5_file.read(hdf5_file.numbers(file, "rows"), 0, 1)


@pytest.mark.skipif(not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP), reason="this HDF5 has no szip")
def test_szip_is_refused(tmp_path: Path) -> None:
    """A short stream of it becomes memory that nobody has written, and nothing says how long a stream is."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("rows", data=np.zeros((CHUNK, 8), "i4"), chunks=(CHUNK, 8), compression="szip")
    with (
        hdf5_file.opened(tmp_path / "a.h5") as file,
        pytest.raises(CorruptShardError, match="filter 'szip' cannot be checked; h5repack -f GZIP=4 writes"),
    ):
        hdf5_file.read(hdf5_file.numbers(file, "rows"), 0, 1)


@pytest.mark.skipif(h5py.version.hdf5_version_tuple < (2, 0), reason="HDF5 before 2.0 does not write such a chunk")
def test_a_bomb_takes_neither_time_nor_memory(cli: Cli, tmp_path: Path) -> None:
    """Half a MB that inflates to half a GB: as a chunk that should be small, and as one that is said to be so large."""
    path = tmp_path / "bomb.hdf5"
    write_d4rl(path, rewards=None)
    deflating = zlib.compressobj(9)
    bomb = b"".join([*(deflating.compress(bytes(2**24)) for _ in range(2**5)), deflating.flush()])
    with h5py.File(path, "r+") as file:
        file.create_dataset("rewards", (12,), "f4", chunks=(12,), compression="gzip").id.write_direct_chunk((0,), bomb)
    tracemalloc.start()
    result = cli("convert", path, tmp_path / "out", "--jobs", 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (result.code, peak < 2**26) == (3, True)
    assert "rewards, chunk at [0]: expected 48 bytes, found" in result.err
    assert len(bomb) < 2**23
    with h5py.File(path, "r+") as file:
        del file["rewards"]
        wide = file.create_dataset("rewards", (12,), "f4", chunks=(2**30 - 1,), maxshape=(None,), compression="gzip")
        wide.id.write_direct_chunk((0,), bomb)
    result = cli("convert", path, tmp_path / "out", "--jobs", 1)
    assert result.code == 3
    assert f"expected at most {hdf5_chunks.MAX_CHUNK_BYTES:,}" in result.err


def test_a_bomb_in_the_outer_of_two_filters(tmp_path: Path) -> None:
    """The inner stream ends after the right number of bytes; what follows it in the outer one only libhdf5 inflates."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((CHUNK,))
        properties.set_deflate(4)
        properties.set_deflate(4)
        h5py.h5d.create(file.id, b"rows", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((2 * CHUNK,)), properties)
        rows = np.arange(2 * CHUNK, dtype="i4")
        inner = [zlib.compress(half.tobytes()) for half in np.split(rows, 2)]
        file["rows"].id.write_direct_chunk((0,), zlib.compress(inner[0]))
        file["rows"].id.write_direct_chunk((CHUNK,), zlib.compress(inner[1] + bytes(2**24)))
    with hdf5_file.opened(tmp_path / "a.h5") as file:
        found = hdf5_file.numbers(file, "rows")
        np.testing.assert_array_equal(hdf5_file.read(found, 0, CHUNK), rows[:CHUNK])
        with pytest.raises(CorruptShardError, match="expected 256 bytes, found more"):
            hdf5_file.read(found, CHUNK, CHUNK + 1)


def test_a_filter_that_nobody_can_check_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((CHUNK,))
        properties.set_filter(h5py.h5z.FILTER_DEFLATE, 0, (4,))
        properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))  # zstd, of a plugin
        h5py.h5d.create(file.id, b"rows", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((ROWS,)), properties)
        for start in range(0, ROWS, CHUNK):
            file["rows"].id.write_direct_chunk((start,), b"x" * 100)
    with (
        hdf5_file.opened(tmp_path / "a.h5") as file,
        pytest.raises(CorruptShardError, match="cannot be checked; h5repack"),
    ):
        hdf5_file.read(hdf5_file.numbers(file, "rows"), 0, 1)


def fill(path: Path, written: int, **said: Any) -> None:
    """Ten rows a chunk, of which only some are written."""
    with h5py.File(path, "w") as file:
        chunks = said.pop("chunks", (10,))
        file.create_dataset("rows", (100,), "f4", chunks=chunks, **said)[:written] = 7


@pytest.mark.parametrize(("written", "found"), [(0, "100 values, found none"), (10, "10 chunks, found 1"), (90, "9")])
@pytest.mark.parametrize("said", [{}, {"maxshape": (None,)}, {"compression": "gzip"}])
def test_chunks_that_were_never_written_are_refused(
    written: int, found: str, said: dict[str, Any], tmp_path: Path
) -> None:
    fill(tmp_path / "a.h5", written, **said)
    with (
        hdf5_file.opened(tmp_path / "a.h5") as file,
        pytest.raises(CorruptShardError, match=f"/rows: .*{found} stored"),
    ):
        hdf5_file.numbers(file, "rows")


@pytest.mark.parametrize("value", [0, 3.5])
@pytest.mark.parametrize("chunks", [(10,), None])
def test_a_declared_value_fills_what_was_not_written(value: float, chunks: Any, tmp_path: Path) -> None:
    written = 0 if chunks is None else 20
    fill(tmp_path / "a.h5", written, chunks=chunks, fillvalue=value)
    with hdf5_file.opened(tmp_path / "a.h5") as file:
        rows = hdf5_file.read(hdf5_file.numbers(file, "rows"), 0, 100)
    assert rows.tolist() == [7.0] * written + [value] * (100 - written)


def test_a_declared_value_fills_no_array_of_any_size(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("rows", (10**15,), "f4", chunks=(10,), fillvalue=1)
    with hdf5_file.opened(tmp_path / "a.h5") as file, pytest.raises(CorruptShardError, match="found none stored"):
        hdf5_file.numbers(file, "rows")
