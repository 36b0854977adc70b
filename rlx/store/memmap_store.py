"""The ``memmap`` store: every shard a directory that ``TensorDict.load_memmap`` opens, uncompressed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlx.errors import CodecError, CorruptDatasetError
from rlx.files.disk import reading
from rlx.files.remote_files import AnyPath
from rlx.schema import Field
from rlx.store.array import ArrayReader, ArrayWriter, Rows
from rlx.store.codec import Codec
from rlx.store.raw_file import RawFileWriter, raw_length, raw_reader

META = "meta.json"
# Metadata that tensordict writes beside the fields; it also reads a directory without the last two.
_TENSORDICT = {"shape": [], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}


class MemmapStore:
    """One raw file a field; ``meta.json`` in every directory says dtype and shape as tensordict does."""

    name = "memmap"

    def writer(self, directory: Path, name: str, field: Field, codec: Codec, dictionary: bytes) -> ArrayWriter:
        """Return a writer of one field.

        Raises:
            CodecError: a codec was asked for; this store has none.
        """
        if codec.name != "none" or dictionary:
            raise CodecError(
                f"store memmap does not support codec {codec}", hint="leave --codec out, or choose the store zarr"
            )
        return _MemmapWriter(directory, name, field)

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

    def reader(self, directory: AnyPath, name: str, field: Field, rows: int) -> ArrayReader:
        """Return a reader of one field."""
        return raw_reader(directory / f"{name}.memmap", field, rows)

    def length(self, directory: AnyPath, name: str, field: Field) -> int:
        """Return rows that the file of an array has room for."""
        return raw_length(directory / f"{name}.memmap", field)

    def check(self, directory: AnyPath, name: str, field: Field, rows: int) -> None:
        """Compare ``meta.json`` with the expected metadata."""
        path = directory.joinpath(*Path(name).parent.parts, META)
        try:
            with reading(path):
                described = json.loads(path.read_bytes())[Path(name).name]
            found = (described["dtype"], described["shape"])
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise CorruptDatasetError(f"{path} is damaged: {type(exc).__name__}: {exc}") from exc
        expected = (f"torch.{field.dtype}", [rows, *field.shape])
        if found != expected:
            raise CorruptDatasetError(f"{path}: {name}: found {found}, expected {expected}")


class _MemmapWriter:
    """Writer that appends the rows of one field to its file and leaves its metadata for ``seal``."""

    def __init__(self, directory: Path, name: str, field: Field) -> None:
        self._meta = directory / f"{name}.{META}"
        self._field = field
        self._file = RawFileWriter(directory / f"{name}.memmap", field)

    def append(self, rows: Rows) -> None:
        self._file.append(rows)

    def abandon(self) -> None:
        self._file.abandon()

    def finish(self) -> None:
        self._file.close()
        shape = [self._file.rows, *self._field.shape]
        described = {"device": "cpu", "shape": shape, "dtype": f"torch.{self._field.dtype}", "is_nested": False}
        self._meta.parent.mkdir(parents=True, exist_ok=True)
        self._meta.write_text(json.dumps(described))
