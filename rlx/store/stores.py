"""The two stores of shards: ``zarr`` (a zarr v3 group) and ``memmap`` (what ``TensorDict.load_memmap`` opens).

zarr-python itself takes no part: one chunk per frame through its pipeline would take minutes per shard. The files are
written and read here, and the tests compare them with zarr-python.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CodecError, CorruptDatasetError, SchemaMismatchError
from rlx.files.disk import reading
from rlx.files.remote_files import AnyPath
from rlx.schema import Field, Role, Schema
from rlx.store.array import ArrayReader, ArrayWriter, Rows
from rlx.store.chunk_codec import ChunkCodec, chunk_codec
from rlx.store.codec import MAX_CHUNK, MIN_ROW_BYTES, NONE, Codec
from rlx.store.dictionary import CODEC_NAME, parse_dictionary
from rlx.store.raw_file import RawFileWriter, raw_length, raw_reader, read_small
from rlx.store.shard_file import ShardFileWriter, shard_reader

META = "meta.json"
# Metadata that tensordict writes beside the fields; it also reads a directory without the last two.
_TENSORDICT = {"shape": [], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}


class _FileArray:
    """Writer of the rows of one field to one file.

    Args:
        describe: writes the metadata of a finished array of this number of rows.
    """

    def __init__(self, file: RawFileWriter | ShardFileWriter, describe: Callable[[int], None]) -> None:
        self._file = file
        self._describe = describe

    def append(self, rows: Rows) -> None:
        self._file.append(rows)

    def finish(self) -> None:
        self._file.close()
        self._describe(self._file.rows)

    def abandon(self) -> None:
        self._file.abandon()


class Store(ABC):
    """Layout of the arrays of a shard on disk. A text field is three arrays of numbers; see ``rlx.store.stores``."""

    def writer(
        self, directory: Path, name: str, field: Field, codec: Codec, dictionary: bytes, threads: int = 1
    ) -> ArrayWriter:
        """Return a writer of one field, compressed by the codec in that number of threads if its rows are large."""
        if field.is_text:
            return TextWriter(self, directory, name, field)
        return self._writer(directory, name, field, codec, dictionary, threads)

    def reader(self, directory: AnyPath, name: str, field: Field, rows: int) -> ArrayReader:
        """Return a reader of one field with ``rows`` rows.

        Raises:
            CorruptDatasetError: a file is missing, too short, or of another layout.
        """
        if field.is_text:
            return TextReader(self, directory, name, field, rows)
        return self._reader(directory, name, field, rows)

    def check(self, directory: AnyPath, name: str, field: Field, rows: int) -> None:
        """Raise CorruptDatasetError unless the metadata of a field match its dtype, its shape and the number of rows;
        of text, every code, offset and byte is checked too.
        """
        if field.is_text:
            TextReader(self, directory, name, field, rows).check(self, directory, name, field)
        else:
            self._check(directory, name, field, rows)

    def length(self, directory: AnyPath, name: str, field: Field) -> int:
        """Return rows that the file of an array of small rows has room for.

        Raises:
            CorruptDatasetError: the file is missing, or holds a part of a row.
        """
        return raw_length(directory / self.small_file(name, field), field)

    @abstractmethod
    def seal(self, directory: Path, names: Sequence[str]) -> None:
        """Write the metadata of a directory of finished arrays."""

    @abstractmethod
    def small_file(self, name: str, field: Field) -> str:
        """Return path of the file with the rows of an array of small rows, below the shard."""

    @abstractmethod
    def _writer(
        self, directory: Path, name: str, field: Field, codec: Codec, dictionary: bytes, threads: int
    ) -> ArrayWriter: ...

    @abstractmethod
    def _reader(self, directory: AnyPath, name: str, field: Field, rows: int) -> ArrayReader: ...

    @abstractmethod
    def _check(self, directory: AnyPath, name: str, field: Field, rows: int) -> None: ...


class MemmapStore(Store):
    """One raw file a field; ``meta.json`` in every directory says dtype and shape as tensordict does."""

    def _writer(
        self,
        directory: Path,
        name: str,
        field: Field,
        codec: Codec,
        dictionary: bytes,
        threads: int,  # noqa: ARG002  (nothing is compressed)
    ) -> ArrayWriter:
        if codec.name != "none" or dictionary:
            raise CodecError(
                f"store memmap does not support codec {codec}", hint="leave `codec` out, or choose the store zarr"
            )

        def describe(rows: int) -> None:
            """Leave the metadata of the field for ``seal``."""
            shape = [rows, *field.shape]
            described = {"device": "cpu", "shape": shape, "dtype": f"torch.{field.dtype}", "is_nested": False}
            meta = directory / f"{name}.{META}"
            meta.parent.mkdir(parents=True, exist_ok=True)
            meta.write_text(json.dumps(described))

        return _FileArray(RawFileWriter(directory / self.small_file(name, field), field), describe)

    def seal(self, directory: Path, names: Sequence[str]) -> None:
        """Merge what the writers left into one ``meta.json`` a directory."""
        fields: dict[Path, dict[str, Any]] = {directory: {}}
        for name in names:
            left = directory / f"{name}.{META}"
            fields.setdefault(left.parent, {})[Path(name).name] = json.loads(left.read_bytes())
            left.unlink()
            for parent in list(Path(name).parents)[:-1]:
                owner = (directory / parent).parent
                fields.setdefault(owner, {})[parent.name] = {"type": "TensorDict"}
        for node, described in fields.items():
            (node / META).write_text(json.dumps({**described, **_TENSORDICT}))

    def _reader(self, directory: AnyPath, name: str, field: Field, rows: int) -> ArrayReader:
        return raw_reader(directory / self.small_file(name, field), field, rows)

    def small_file(self, name: str, field: Field) -> str:  # noqa: ARG002  (all fields are alike)
        """Return path of the file of an array."""
        return f"{name}.memmap"

    def _check(self, directory: AnyPath, name: str, field: Field, rows: int) -> None:
        path = directory.joinpath(*Path(name).parent.parts, META)
        try:
            with reading(path):
                described = json.loads(read_small(path, _MAX_NODE_BYTES))[Path(name).name]
            found = (described["dtype"], described["shape"])
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise CorruptDatasetError(f"{path} is damaged: {type(exc).__name__}: {exc}") from exc
        expected = (f"torch.{field.dtype}", [rows, *field.shape])
        if found != expected:
            raise CorruptDatasetError(f"{path}: {name}: found {found}, expected {expected}")


NODE = "zarr.json"
_MAX_NODE_BYTES = 128 * 2**20
_GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


class ZarrStore(Store):
    """Arrays of zarr v3: large rows in an indexed shard file, small ones in a single chunk that can be mapped."""

    def _writer(
        self, directory: Path, name: str, field: Field, codec: Codec, dictionary: bytes, threads: int
    ) -> ArrayWriter:
        node = directory / name
        node.mkdir(parents=True)
        path = node.joinpath(*_chunk_key(field))
        if field.row_bytes < MIN_ROW_BYTES:
            return _FileArray(RawFileWriter(path, field), partial(_describe_plain, node, field))
        chunks = chunk_codec(codec, codec.chunk * field.row_bytes, dictionary)
        file = ShardFileWriter(path, field, chunks, codec.chunk, threads)
        return _FileArray(file, partial(_describe_sharded, node, field, chunks, codec.chunk))

    def seal(self, directory: Path, names: Sequence[str]) -> None:
        """Mark the directory, and those between it and its arrays, as groups."""
        groups = {directory} | {directory / parent for name in names for parent in Path(name).parents}
        for group in sorted(groups):
            _write_node(group, _GROUP)

    def _reader(self, directory: AnyPath, name: str, field: Field, rows: int) -> ArrayReader:
        node = directory / name
        path = node.joinpath(*_chunk_key(field))
        if field.row_bytes < MIN_ROW_BYTES:
            return raw_reader(path, field, rows)
        chunk, codec = _parse_sharding(node / NODE, _read_node(node, field, rows), field)
        return shard_reader(path, field, codec, chunk=chunk, rows=rows)

    def small_file(self, name: str, field: Field) -> str:
        """Return path of the only chunk of an array of small rows."""
        return "/".join([name, *_chunk_key(field)])

    def _check(self, directory: AnyPath, name: str, field: Field, rows: int) -> None:
        _read_node(directory / name, field, rows)


def _describe_plain(node: Path, field: Field, rows: int) -> None:
    """Write the metadata of an array in one chunk without compression."""
    _write_node(node, _array(field, rows, max(rows, 1), [_bytes_codec(field)]))


def _describe_sharded(node: Path, field: Field, codec: ChunkCodec, chunk: int, rows: int) -> None:
    """Write the metadata of an array in one shard file of compressed chunks."""
    sharding = {
        "chunk_shape": [chunk, *field.shape],
        "codecs": [_bytes_codec(field), *codec.metadata()],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "index_location": "end",
    }
    outer = max(-(-rows // chunk), 1) * chunk
    _write_node(node, _array(field, rows, outer, [{"name": "sharding_indexed", "configuration": sharding}]))


def _chunk_key(field: Field) -> list[str]:
    return ["c", *["0"] * (1 + len(field.shape))]


def _bytes_codec(field: Field) -> dict[str, Any]:
    if field.dtype in {"bool", "int8", "uint8"}:
        return {"name": "bytes"}
    return {"name": "bytes", "configuration": {"endian": "little"}}


def _array(field: Field, rows: int, chunk_rows: int, codecs: list[dict[str, Any]]) -> dict[str, Any]:
    fill: Any = False if field.dtype == "bool" else 0.0 if "float" in field.dtype else 0
    chunk_shape = [chunk_rows, *(max(n, 1) for n in field.shape)]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, *field.shape],
        "data_type": field.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": {},
    }


def _write_node(node: Path, described: Mapping[str, Any]) -> None:
    (node / NODE).write_text(json.dumps(described, indent=1))


def _read_node(node: AnyPath, field: Field, rows: int) -> Mapping[str, Any]:
    path = node / NODE
    try:
        with reading(path):
            described: Mapping[str, Any] = json.loads(read_small(path, _MAX_NODE_BYTES))
        found = (described["data_type"], described["shape"])
        if found != (field.dtype, [rows, *field.shape]):
            raise CorruptDatasetError(f"{path}: found {found}, expected {(field.dtype, [rows, *field.shape])}")
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise CorruptDatasetError(f"{path} is damaged: {type(exc).__name__}: {exc}") from exc
    return described


def _parse_sharding(path: AnyPath, described: Mapping[str, Any], field: Field) -> tuple[int, ChunkCodec]:
    try:
        (outer,) = described["codecs"]
        if outer["name"] != "sharding_indexed":
            raise CorruptDatasetError(f"{path}: codec {outer['name']!r}, expected sharding_indexed")
        shape, codecs = outer["configuration"]["chunk_shape"], outer["configuration"]["codecs"]
        if not isinstance(shape[0], int) or not 1 <= shape[0] <= MAX_CHUNK or shape[1:] != list(field.shape):
            raise CorruptDatasetError(f"{path}: chunks of shape {shape}, expected {[MAX_CHUNK, *field.shape]} at most")
        return shape[0], _parse_codec(codecs, shape[0] * field.row_bytes)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise CorruptDatasetError(f"{path} is damaged: {type(exc).__name__}: {exc}") from exc


def _parse_codec(codecs: Sequence[Mapping[str, Any]], chunk_bytes: int) -> ChunkCodec:
    names = [codec["name"] for codec in codecs]
    match names:
        case ["bytes"]:
            return chunk_codec(Codec("none", 0, 1), chunk_bytes)
        case ["bytes", "zstd"]:
            return chunk_codec(Codec("zstd", 0, 1), chunk_bytes)
        case ["bytes", "numcodecs.lz4"]:
            return chunk_codec(Codec("lz4", 1, 1), chunk_bytes)
        case ["bytes", name] if name == CODEC_NAME:
            level, dictionary = parse_dictionary(codecs[1]["configuration"])
            return chunk_codec(Codec("zstd-dict", level, 1), chunk_bytes, dictionary)
    raise CorruptDatasetError(f"codecs {names} of an array are unknown: expected bytes and zstd, lz4 or {CODEC_NAME}")


def read_dictionary(directory: Path, name: str) -> bytes:
    """Return the dictionary that a field of a shard was compressed against."""
    path = directory / name / NODE
    try:
        with reading(path):
            described = json.loads(read_small(path, _MAX_NODE_BYTES))
        inner = described["codecs"][0]["configuration"]["codecs"]
        return parse_dictionary(inner[1]["configuration"])[1] if inner[1]["name"] == CODEC_NAME else b""
    except (ValueError, KeyError, IndexError, TypeError) as exc:
        raise CorruptDatasetError(f"{path} is damaged: {type(exc).__name__}: {exc}") from exc


STORES: MappingProxyType[str, Store] = MappingProxyType({"zarr": ZarrStore(), "memmap": MemmapStore()})


def store_named(name: str) -> Store:
    """Return the store that a manifest names."""
    try:
        return STORES[name]
    except KeyError as exc:
        raise CorruptDatasetError(f"store {name!r:.80} is unknown: expected one of {', '.join(STORES)}") from exc


# Texts that a writer recognises when they come again. An older one is written once more: memory stays bounded.
KNOWN_TEXTS = 2**16
_OFFSET = Field("int64", (), Role.STEP)
_BYTE = Field("uint8", (), Role.STEP)
_LONG_TEXT = 64  # characters; a longer text is recognised by its digest
_PIECE_TEXTS = 256
_PIECE_ROWS = 2**16


def array_names(schema: Schema) -> list[str]:
    """Return names of the arrays that hold the fields of a schema.

    Example:
        >>> fields = {**Schema.of(("float32", (2,)), ("int64", ())).fields, "task": Field("string", (), Role.STEP)}
        >>> array_names(Schema(fields))[-4:]
        ['truncated', 'task/codes', 'task/offsets', 'task/utf8']
    """
    return [array for name, field in schema.fields.items() for array in (_parts(name) if field.is_text else [name])]


def _parts(name: str) -> list[str]:
    return [f"{name}/codes", f"{name}/offsets", f"{name}/utf8"]


class TextWriter:
    """Writer of texts: a code per text, and each new text into the table of the shard."""

    def __init__(self, store: Store, directory: Path, name: str, field: Field) -> None:
        self._name = name
        parts = zip(_parts(name), (_codes(field), _OFFSET, _BYTE), strict=True)
        self._codes, self._offsets, self._utf8 = (
            store.writer(directory, array, part, NONE, b"") for array, part in parts
        )
        self._known: OrderedDict[str | bytes, int] = OrderedDict()
        self._texts = 0
        self._end = 0
        self._offsets.append(np.zeros(1, np.int64))

    def append(self, rows: Rows) -> None:
        """Add [n, *shape] texts."""
        new: list[bytes] = []
        codes = np.array([self._code(text, new) for text in rows.reshape(-1).tolist()], np.int32)
        self._codes.append(codes.reshape(rows.shape))
        if new:
            ends = self._end + np.cumsum([len(text) for text in new], dtype=np.int64)
            self._end = int(ends[-1])
            self._offsets.append(ends)
            self._utf8.append(np.frombuffer(b"".join(new), np.uint8))

    def _code(self, text: str, new: list[bytes]) -> int:
        """Return number of a text in the table, to whose end it is added if the writer does not know it."""
        encoded = self._encoded(text) if len(text) > _LONG_TEXT else None
        key = text if encoded is None else blake2b(encoded, digest_size=16).digest()
        code = self._known.get(key)
        if code is not None:
            self._known.move_to_end(key)
            return code
        new.append(self._encoded(text) if encoded is None else encoded)
        code = self._known[key] = self._texts
        self._texts += 1
        if len(self._known) > KNOWN_TEXTS:
            self._known.popitem(last=False)
        return code

    def _encoded(self, text: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError as exc:
            bad = f"{text[exc.start]!r} at {exc.start:,}"
            raise SchemaMismatchError(f"{self._name}: a text with {bad} cannot be stored: expected Unicode") from exc

    def finish(self) -> None:
        """Close the files."""
        for array in (self._codes, self._offsets, self._utf8):
            array.finish()

    def abandon(self) -> None:
        """Close the files as they are."""
        for array in (self._codes, self._offsets, self._utf8):
            array.abandon()


class TextReader(ArrayReader):
    """Reader of texts; equal texts in one result are one object."""

    def __init__(self, store: Store, directory: AnyPath, name: str, field: Field, rows: int) -> None:
        codes, offsets, utf8 = _parts(name)
        self._path = directory / name
        self._rows = rows
        self._codes = store.reader(directory, codes, _codes(field), rows)
        # A file cannot claim more texts, or longer ones, than it has bytes for.
        length = store.length(directory, offsets, _OFFSET)
        if not length:
            raise CorruptDatasetError(f"{self._path}/offsets is damaged: expected at least one offset")
        self.texts = length - 1
        self._offsets = store.reader(directory, offsets, _OFFSET, length)
        self.bytes = int(self._offsets.read_range(self.texts, length)[0])
        if self.bytes < 0:
            raise CorruptDatasetError(f"{self._path}/offsets is damaged: its texts end at {self.bytes:,}")
        self._utf8 = store.reader(directory, utf8, _BYTE, self.bytes)

    def read(self, rows: NDArray[np.int64]) -> Rows:
        """Return the texts at these rows."""
        return self._look_up(self._codes.read(rows))

    def read_range(self, start: int, stop: int) -> Rows:
        """Return the texts from start to stop."""
        return self._look_up(self._codes.read_range(start, stop))

    def read_runs(self, runs: Sequence[tuple[int, int]]) -> Rows:
        """Return the texts of these runs of rows."""
        return self._look_up(self._codes.read_runs(runs))

    def release(self) -> None:
        """Release the memory of rows read."""
        for array in (self._codes, self._offsets, self._utf8):
            array.release()

    def check_length(self) -> None:
        """Raise CorruptDatasetError if a file has been cut since it was opened."""
        for array in (self._codes, self._offsets, self._utf8):
            array.check_length()

    def check(self, store: Store, directory: AnyPath, name: str, field: Field) -> None:
        """Raise CorruptDatasetError unless the metadata match, every row refers to a text, and every text is UTF-8."""
        lengths = (self._rows, self.texts + 1, self.bytes)
        for array, part, length in zip(_parts(name), (_codes(field), _OFFSET, _BYTE), lengths, strict=True):
            store.check(directory, array, part, length)
        for start in range(0, self._rows, _PIECE_ROWS):
            self._check_codes(self._codes.read_range(start, min(start + _PIECE_ROWS, self._rows)))
        for start in range(0, self.texts, _PIECE_TEXTS):
            self._decoded(np.arange(start, min(start + _PIECE_TEXTS, self.texts)))

    def _look_up(self, codes: Rows) -> Rows:
        self._check_codes(codes)
        distinct, inverse = np.unique(codes, return_inverse=True)
        texts = np.empty(len(distinct), object)
        texts[:] = self._decoded(distinct.astype(np.int64))
        return texts[inverse].reshape(codes.shape)

    def _check_codes(self, codes: NDArray[Any]) -> None:
        if codes.size and not 0 <= codes.min() <= codes.max() < self.texts:
            found = f"text {codes.min() if codes.min() < 0 else codes.max()}"
            raise CorruptDatasetError(f"{self._path}/codes is damaged: {found}, expected one of {self.texts:,} texts")

    def _decoded(self, codes: NDArray[np.int64]) -> list[str]:
        """Return the texts [n] of these codes, distinct and ascending."""
        if not len(codes):
            return []
        offsets = self._offsets.read_runs([(code, code + 2) for code in codes.tolist()]).reshape(-1, 2)
        bounds = [(int(start), int(stop)) for start, stop in offsets]
        end = 0
        for start, stop in bounds:
            # In ascending order, so that together they are no longer than the file.
            if not end <= start <= stop <= self.bytes:
                raise CorruptDatasetError(f"{self._path}/offsets is damaged: a text from {start:,} to {stop:,}")
            end = stop
        joined = self._utf8.read_runs(bounds).tobytes()
        texts, start = [], 0
        for first, last in bounds:
            stop = start + last - first
            try:
                texts.append(joined[start:stop].decode())
            except UnicodeDecodeError as exc:
                raise CorruptDatasetError(f"{self._path}/utf8 is damaged: {exc}") from exc
            start = stop
        return texts


def _codes(field: Field) -> Field:
    return Field("int32", field.shape, field.role)
