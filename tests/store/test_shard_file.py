"""The files of the zarr store, as others read them."""

import base64
import json
import sys
import threading
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zarr
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tensordict import TensorDict

from rlx.errors import CodecError, CorruptDatasetError
from rlx.schema import Field, Role
from rlx.store import shard_file
from rlx.store.chunk_codec import ZstdChunks, chunk_codec
from rlx.store.codec import Codec
from rlx.store.dictionary import (
    dictionary_metadata,
    parse_dictionary,
    trained_dictionary,
)
from rlx.store.shard_file import ShardFileReader, ShardFileWriter
from rlx.store.zarr_codec import ZstdDictCodec
from tests.factories import LARGE, join, make_block, write_dataset

CODECS = ["zstd-dict", "zstd", "zstd:chunk=1", "zstd:chunk=3,level=1", "lz4", "lz4:chunk=1", "none"]
FULL = b"\x37\xa4\x30\xec"
FIELD = Field("int16", (24, 32), Role.OBSERVATION)


def frames(count: int, seed: int = 0) -> NDArray[np.int16]:
    """Pictures [count, 24, 32] with a background they share."""
    rng = np.random.default_rng(seed)
    background = np.random.default_rng(99).integers(-9, 9, (24, 32))
    pictures: NDArray[np.int16] = np.repeat(background[None], count, axis=0).astype("int16")
    pictures[:, :3] = rng.integers(-300, 300, (count, 3, 32))
    return pictures


def write(path: Path, rows: NDArray[np.generic], text: str, threads: int = 1) -> ShardFileReader:
    codec = Codec.parse(text)
    dictionary = trained_dictionary([rows], FIELD.row_bytes, codec.level) if codec.name == "zstd-dict" else b""
    chunks = chunk_codec(codec, codec.chunk * FIELD.row_bytes, dictionary)
    writer = ShardFileWriter(path, FIELD, chunks, codec.chunk, threads)
    for start in range(0, len(rows), 5):
        writer.append(rows[start : start + 5])
    writer.close()
    return ShardFileReader(path, FIELD, chunks, chunk=codec.chunk, rows=len(rows))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 40])
def test_rows_come_back(tmp_path: Path, codec: str, count: int) -> None:
    rows = frames(count)
    reader = write(tmp_path / "file", rows, codec)
    picked = np.random.default_rng(3).integers(0, count, 30)
    assert np.array_equal(reader.read(picked), rows[picked])
    assert np.array_equal(reader.read_range(0, count), rows)
    for start in range(count):
        assert np.array_equal(reader.read_range(start, count), rows[start:])
        assert np.array_equal(reader.read_range(start, start), rows[:0])


@pytest.mark.parametrize("codec", CODECS)
def test_threads_write_the_same_bytes(tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_file, "_PART_BYTES", 2 * FIELD.row_bytes)
    monkeypatch.setattr(shard_file, "_WAITING_PARTS", 1)
    rows = frames(100)
    for threads in (1, 3):
        write(tmp_path / str(threads), rows, codec, threads)
    assert (tmp_path / "3").read_bytes() == (tmp_path / "1").read_bytes()


class Failing:
    """A codec that fails, on a thread of its own."""

    chunk_bytes = FIELD.row_bytes

    def encode(self, rows: NDArray[np.uint8]) -> list[bytes]:  # noqa: ARG002
        assert threading.current_thread() is not threading.main_thread()
        raise MemoryError("no room")

    def decode(self, chunks: object) -> NDArray[np.uint8]:
        raise NotImplementedError

    def metadata(self) -> list[dict[str, Any]]:
        return []


def test_the_error_of_a_thread_is_raised(tmp_path: Path) -> None:
    writer = ShardFileWriter(tmp_path / "file", FIELD, Failing(), 1, threads=2)
    writer.append(frames(3))
    with pytest.raises(MemoryError, match="no room"):
        writer.close()
    writer.abandon()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encode")]


def test_the_index_ends_in_its_checksum(tmp_path: Path) -> None:
    reader = write(tmp_path / "file", frames(9), "zstd:chunk=2")
    raw = (tmp_path / "file").read_bytes()
    index = raw[-(5 * 16 + 4) : -4]
    assert int.from_bytes(raw[-4:], "little") == google_crc32c.value(index)
    entries = np.frombuffer(index, "<u8").reshape(5, 2)
    assert np.array_equal(entries, reader.index)
    assert entries[0, 0] == 0
    assert np.array_equal(entries[1:, 0], entries[:-1].sum(axis=1))
    assert entries[-1].sum() == len(raw) - len(index) - 4


def test_what_an_index_claims_is_not_allocated(tmp_path: Path) -> None:
    reader = write(tmp_path / "file", frames(40), "zstd:chunk=1")
    reader.index = reader.index.copy()
    reader.index[:] = (0, len(reader.file))
    with pytest.raises(CorruptDatasetError, match="chunks of more than"):
        reader.read(np.arange(0, 40, 2))
    with pytest.raises(CorruptDatasetError, match="longer than"):
        reader.codec.decode([reader.file] * 30)


@pytest.mark.parametrize("codec", ["zstd-dict", "zstd:chunk=1", "lz4:chunk=1", "none"])
def test_a_chunk_of_another_size(codec: str) -> None:
    parsed = Codec.parse(codec)
    dictionary = bytes(range(256)) if parsed.name == "zstd-dict" else b""
    short, right = (chunk_codec(parsed, size, dictionary) for size in (100, 2000))
    rows = np.zeros((3, 100), np.uint8)
    with pytest.raises(CorruptDatasetError):
        right.decode(short.encode(rows))
    with pytest.raises(CorruptDatasetError):
        short.decode(right.encode(np.zeros((3, 2000), np.uint8)))
    with pytest.raises(CorruptDatasetError):
        short.decode([b"", b"x", b"\xff" * 99])


def test_frames_compress_against_the_others_of_their_run(tmp_path: Path) -> None:
    noise = np.random.default_rng(5).integers(0, 2**15, (1, 24, 32)).astype("int16").repeat(64, axis=0)
    write(tmp_path / "alone", noise, "zstd:chunk=1,level=6")
    write(tmp_path / "together", noise, "zstd-dict")
    assert (tmp_path / "together").stat().st_size * 10 < (tmp_path / "alone").stat().st_size


def raw_dictionary(rows: NDArray[Any]) -> bytes:
    """Return 64 of the rows, evenly spaced: a dictionary without entropy tables."""
    return rows[np.linspace(0, len(rows) - 1, 64).astype(np.int64)].tobytes()


@pytest.mark.parametrize("kind", ["raw", "full"])
def test_dictionary_in_metadata(kind: str) -> None:
    if kind == "raw":
        dictionary = raw_dictionary(frames(100))
        assert len(dictionary) == 64 * FIELD.row_bytes
    else:
        pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
        dictionary = trained_dictionary([frames(100)], FIELD.row_bytes, 6)
        assert dictionary.endswith(raw_dictionary(frames(100)))
        assert dictionary.startswith(FULL)
    metadata = json.loads(json.dumps(dictionary_metadata(6, dictionary)))
    assert metadata["name"] == "rlx.zstd_dict"
    assert parse_dictionary(metadata["configuration"]) == (6, dictionary)
    assert ZstdDictCodec.from_dict(metadata) == ZstdDictCodec(6, dictionary)


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"level": 6},
        {"level": "6", "dictionary": ""},
        {"level": 99, "dictionary": ""},
        {"level": 6, "dictionary": "é"},
        {"level": 6, "dictionary": 5},
        {"level": 6, "dictionary": "AAAA"},
        # A zstd header that claims 2**63 bytes.
        {"level": 6, "dictionary": "KLUv/eAAAAAAAAAAgAEAAA=="},
        # A dictionary without entropy tables where they are promised.
        {"level": 6, "full_dictionary": "KLUv/SABCQAAAA=="},
    ],
    ids=str,
)
def test_a_damaged_dictionary(configuration: dict[str, Any]) -> None:
    with pytest.raises(CorruptDatasetError, match=r"rlx\.zstd_dict"):
        parse_dictionary(configuration)


def test_entropy_tables_make_frames_smaller() -> None:
    pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    rows = frames(300)
    later = rows[200:].reshape(100, -1).view(np.uint8)
    sizes = {}
    for dictionary in (raw_dictionary(rows[:200]), trained_dictionary([rows[:200]], FIELD.row_bytes, 6)):
        codec = ZstdChunks(FIELD.row_bytes, 6, dictionary)
        encoded = codec.encode(later)
        plain = zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(dictionary))
        assert b"".join(map(plain.decompress, encoded)) == codec.decode(encoded).tobytes() == later.tobytes()
        sizes[dictionary.startswith(FULL)] = sum(map(len, encoded))
    assert sizes[True] < sizes[False]


@pytest.mark.parametrize("rows", [frames(5), frames(70), np.zeros((300, 24, 32), "int16")], ids=["5", "70", "zeros"])
def test_a_short_or_uniform_run_has_a_dictionary_too(rows: NDArray[np.int16]) -> None:
    codec = ZstdChunks(FIELD.row_bytes, 6, trained_dictionary([rows], FIELD.row_bytes, 6))
    raw = rows.reshape(len(rows), -1).view(np.uint8)
    assert np.array_equal(codec.decode(codec.encode(raw)), raw)


def test_a_frame_that_begins_like_entropy_tables() -> None:
    rows = frames(20)
    rows.view(np.uint8).reshape(20, -1)[0, :4] = np.frombuffer(FULL, np.uint8)
    plain = zstandard.ZstdCompressionDict(rows.tobytes(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    frame = zstandard.ZstdCompressor(level=6, dict_data=plain).compress(rows[7].tobytes())
    packed = base64.b64encode(zstandard.ZstdCompressor().compress(rows.tobytes())).decode()
    _, dictionary = parse_dictionary({"level": 6, "dictionary": packed})
    assert ZstdChunks(FIELD.row_bytes, 6, dictionary).decode([frame]).tobytes() == rows[7].tobytes()


def arrays(group: zarr.Group) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for name, member in group.members(max_depth=None):
        if isinstance(member, zarr.Array):
            found[name] = np.asarray(member[...])
    return found


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
@pytest.mark.parametrize("codec", CODECS)
def test_plain_zarr_reads_every_array(tmp_path: Path, codec: str) -> None:
    block = make_block([3, 5, 11], schema=LARGE)
    dataset = write_dataset(tmp_path / "data", [[block]], schema=LARGE, codec=codec)
    group = zarr.open_group(str(dataset.path / "shards" / "00000"), mode="r")
    found = arrays(group)
    table = {f"trajectories/{name}": column for name, column in dataset.trajectories.columns().items()}
    expected = {**block.data, **table}
    assert set(found) == set(expected)
    for name, column in expected.items():
        assert found[name].dtype == column.dtype
        assert np.array_equal(found[name], column), name


def test_zarr_writes_with_the_frame_codec_too(tmp_path: Path) -> None:
    rows = frames(20)
    codec = ZstdDictCodec(6, trained_dictionary([rows], FIELD.row_bytes, 6))
    array = zarr.create_array(
        str(tmp_path / "array"), shape=rows.shape, chunks=(1, 24, 32), dtype="int16", compressors=[codec]
    )
    array[...] = rows
    assert np.array_equal(np.asarray(zarr.open_array(str(tmp_path / "array"), mode="r")[...]), rows)


@pytest.mark.parametrize("codec", ["zstd", "zstd:chunk=1", "zstd:chunk=32", "none"])
def test_tensorstore_reads_the_standard_codecs(tmp_path: Path, codec: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    block = make_block([3, 5, 11], schema=LARGE)
    dataset = write_dataset(tmp_path / "data", [[block]], schema=LARGE, codec=codec)
    for name, column in block.data.items():
        path = str(dataset.path / "shards" / "00000" / name)
        array = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}).result()
        assert np.array_equal(array.read().result(), column), name


def test_tensordict_reads_a_memmap_shard(tmp_path: Path) -> None:
    blocks = [make_block([3, 5], schema=LARGE), make_block([4], first_episode=2, schema=LARGE)]
    dataset = write_dataset(tmp_path / "data", [blocks], schema=LARGE, store="memmap", codec="none")
    loaded = TensorDict.load_memmap(dataset.path / "shards" / "00000")
    for name, column in join(blocks).data.items():
        assert np.array_equal(loaded[name].numpy(), column), name
    for name, column in dataset.trajectories.columns().items():
        assert np.array_equal(loaded["trajectories", name].numpy(), column), name


def test_memmap_has_no_codec(tmp_path: Path) -> None:
    with pytest.raises(CodecError, match="store memmap does not support codec zstd") as raised:
        write_dataset(tmp_path / "data", [[make_block(schema=LARGE)]], schema=LARGE, store="memmap", codec="zstd")
    assert raised.value.hint == "leave `codec` out, or choose the store zarr"


@pytest.mark.parametrize(
    "text", ["gzip", "zstd:level=23", "zstd:chunk=0", "zstd-dict:chunk=2", "zstd:x=1", "zstd:level=-1"]
)
def test_codecs_that_there_are_not(text: str) -> None:
    with pytest.raises(CodecError, match="expected"):
        Codec.parse(text)


@given(lengths=st.lists(st.integers(0, 9000), max_size=5))
def test_a_dictionary_does_not_depend_on_how_its_rows_are_cut(lengths: list[int]) -> None:
    rows = np.arange(2 * sum(lengths), dtype=np.uint16).reshape(-1, 2)
    parts = np.split(rows, np.cumsum(lengths[:-1])) if lengths else []
    assert trained_dictionary(parts, 4, 6) == trained_dictionary([rows], 4, 6)
