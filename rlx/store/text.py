"""Text fields of a shard: a number per text, and a table of the distinct texts that these numbers refer to.

A text field ``task`` is three arrays of numbers, which every store already holds and any reader of the store opens:

================  ==============  ==============================================================
array             dtype, rows     value
================  ==============  ==============================================================
``task/codes``    int32, rows     number of the text in the shard's table
``task/offsets``  int64, K + 1    where text k starts in ``utf8``; it ends where the next starts
``task/utf8``     uint8, bytes    the K texts in UTF-8, one after the other
================  ==============  ==============================================================

A repeated text costs 4 bytes per row. Reading a row looks up one code, two offsets and the bytes of its text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError, SchemaMismatchError
from rlx.files.remote_files import AnyPath
from rlx.schema import Field, Role, Schema
from rlx.store.array import ArrayReader, Rows
from rlx.store.codec import NONE

if TYPE_CHECKING:
    from rlx.store.stores import Store

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
