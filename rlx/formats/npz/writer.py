"""numpy's ``.npz``: of a dataset, one array per field, one row per step, and the table of trajectories; of batches, one
array per column: ``numpy.load(file)["next/reward"]``.
"""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rlx.errors import ExportError
from rlx.formats.common.batches import Columns, gathered, without_nul
from rlx.formats.common.exporter import Experience, Piece, pieces
from rlx.formats.common.npy import header
from rlx.formats.common.provenance import provenance
from rlx.formats.common.rows.ted_fields import ted_paths
from rlx.formats.npz import FINAL, GROUP, SUFFIX, TABLE
from rlx.progress import Progress
from rlx.schema import TEXT, Field, Role, Schema

_COMPRESSION_LEVEL = 1
_COPIED_BYTES = 2**17
_MAX_COMMENT_BYTES = 2**16 - 1
_TEXT_ROWS = 4096


class NpzDatasetExporter:
    """Exporter of ``next/reward`` [S], ``observation`` [S, ...] and the like, and one row per trajectory under
    ``trajectories``.

    An archive is written array by array, but a dataset is read once: the largest array of numbers is written directly,
    the others wait uncompressed in temporary files beside the archive. Texts wait there until the length of the longest
    is known, which numpy gives to all.
    """

    title = "npz"

    def taken(self, schema: Schema) -> Collection[str]:  # noqa: ARG002  (whatever it is)
        """Return an empty list: any name can be used."""
        return []

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost notes and spaces, if they are too long for the comment of an archive."""
        return _commented(experience)[1]

    def owns(self, path: Path) -> bool:
        """Return whether a file is an archive of arrays."""
        if not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        return bool(names) and all(name.endswith(SUFFIX) for name in names)

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the archive."""
        arrays = _arrays(experience)
        numbers = [name for name in arrays if arrays[name].dtype != TEXT]
        largest = max(numbers, key=lambda name: arrays[name].size)
        with (
            ExitStack() as stack,
            zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL) as archive,
        ):
            waiting: dict[str, IO[bytes]] = {
                name: stack.enter_context(tempfile.TemporaryFile(dir=path.parent)) for name in arrays if name != largest
            }
            longest = dict.fromkeys(arrays, 1)
            with _member(archive, largest, arrays[largest]) as member:
                for piece in pieces(experience.blocks(), experience.schema):
                    for name, rows in _rows(experience.schema, piece):
                        if arrays[name].dtype == TEXT:
                            longest[name] = max(longest[name], _keep_texts(waiting[name], name, rows))
                        else:
                            waiting.get(name, member).write(rows.tobytes())
                    progress.advance("steps", piece.steps)
            for name, file in waiting.items():
                file.seek(0)
                if arrays[name].dtype == TEXT:
                    texts = replace(arrays[name], dtype=f"<U{longest[name]}")
                    with _member(archive, name, texts) as member:
                        for rows in _kept_texts(file, texts.dtype):
                            member.write(rows.tobytes())
                else:
                    with _member(archive, name, arrays[name]) as member:
                        shutil.copyfileobj(file, member, _COPIED_BYTES)
                file.close()
            for name, column in _table(experience):
                with _member(archive, name, _Array(column.dtype.name, column.shape)) as member:
                    member.write(column.tobytes())
            archive.comment, _ = _commented(experience)


def _keep_texts(file: IO[bytes], name: str, rows: NDArray[Any]) -> int:
    """Write one text per line as JSON; return the characters of the longest."""
    for text in rows.flat:
        if text.endswith("\0"):
            raise ExportError(f"npz cannot hold a text that ends in NUL, found one in {name}")
        file.write(json.dumps(text).encode() + b"\n")
    return max(map(len, rows.flat), default=1)


def _kept_texts(file: IO[bytes], dtype: str) -> Iterator[NDArray[Any]]:
    while lines := list(islice(file, _TEXT_ROWS)):
        yield np.array([json.loads(line) for line in lines], dtype)


@dataclass(frozen=True, slots=True)
class _Array:
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return Field(self.dtype, self.shape[1:], Role.STEP).row_bytes * self.shape[0]


def _arrays(experience: Experience) -> dict[str, _Array]:
    schema, table = experience.schema, experience.trajectories
    steps = int(table.length.sum())
    arrays = {
        path: _Array(schema[name].dtype, (steps, *schema[name].shape)) for name, path in ted_paths(schema).items()
    }
    for name in schema.names(Role.OBSERVATION):
        arrays[FINAL + name] = _Array(schema[name].dtype, (len(table), *schema[name].shape))
    return arrays


def _rows(schema: Schema, piece: Piece) -> Iterator[tuple[str, NDArray[np.generic]]]:
    for name, path in ted_paths(schema).items():
        yield path, piece.rows(name)
    if piece.is_last:
        for name in schema.names(Role.OBSERVATION):
            yield FINAL + name, piece.next(name)[-1:]


def _table(experience: Experience) -> Iterator[tuple[str, NDArray[np.generic]]]:
    columns = experience.trajectories.columns()
    for name in TABLE:
        yield GROUP + name, columns[name]


@contextmanager
def _member(archive: zipfile.ZipFile, name: str, array: _Array) -> Iterator[IO[bytes]]:
    # Opened by name, a member gets a constant timestamp.
    with archive.open(name + SUFFIX, "w", force_zip64=True) as member:
        member.write(header(array.dtype, array.shape))
        yield member


def _commented(experience: Experience) -> tuple[bytes, list[str]]:
    """Return the comment of the archive, and the losses that do not fit into it."""
    left_out: dict[str, Any] = {}
    losses: list[str] = []
    for key, loss in (("notes", "the notes of the source"), ("schema", "the spaces of the fields")):
        text = json.dumps({**provenance(experience, losses), **left_out}, sort_keys=True).encode()
        if len(text) <= _MAX_COMMENT_BYTES:
            return text, losses
        left_out[key] = {}
        losses.append(f"{loss}: archives have comments of at most {_MAX_COMMENT_BYTES:,} bytes")
    return json.dumps({**provenance(experience, losses), **left_out}, sort_keys=True).encode(), losses


class NpzExporter:
    """Writer of a compressed ``.npz``; holds all rows in memory. Texts are numpy's Unicode strings, all of one
    width."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write one array per column; raises SchemaMismatchError for a text with NUL."""
        columns = gathered(batches)
        arrays: dict[str, Any] = {
            name: without_nul(name, rows, "npz").astype(str) if rows.dtype == object else rows
            for name, rows in columns.items()
        }
        np.savez_compressed(file, **arrays)


DATASETS = NpzDatasetExporter()
BATCHES = NpzExporter()
