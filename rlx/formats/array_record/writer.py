"""ArrayRecord files of pickled dicts, one per piece of a trajectory, under p(doom)'s keys where they fit."""

import errno
import os
import pickle
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from rlx.formats.array_record import FILE, FINAL, FLAGS, KEYS, LENGTH, SUFFIX, TRAJECTORY, VIDEO
from rlx.formats.common.exporter import Experience, Piece, PieceInfo, small_pieces
from rlx.formats.common.provenance import FILE_NAME, save_provenance
from rlx.formats.common.record_files import array_record
from rlx.progress import Progress
from rlx.schema import Field, Role, Schema

_FILE_BYTES = 2**28
_PROTOCOL = 4  # the default of Python 3.8 to 3.13
_OPTIONS = "group_size:1"
_CHANNELS = frozenset({1, 3, 4})


class ArrayRecordExporter:
    """Exporter to files of about 256 MB before compression, with one record per MiB of a trajectory."""

    title = "ArrayRecord"

    def taken(self, schema: Schema) -> Collection[str]:
        """Return the fields that a record would have under a key of p(doom)'s or of rlx's."""
        return [name for name in schema if name in (LENGTH, TRAJECTORY, *KEYS) or name.startswith(FINAL)]

    def losses(self, experience: Experience) -> Sequence[str]:  # noqa: ARG002  (whatever it is)
        """Return an empty list: the format loses nothing."""
        return []

    def owns(self, path: Path) -> bool:
        """Return whether a directory has ArrayRecord files, and nothing else that rlx did not write."""
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
        return FILE.format(0) in names and all(name == FILE_NAME or name.endswith(SUFFIX) for name in names)

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the directory."""
        path.mkdir(parents=True)
        save_provenance(path, experience, self.losses(experience))
        keys, cut = _keys(experience.schema), experience.trajectories.cut
        for number, pieces in enumerate(_files(experience)):
            with _created(path / FILE.format(number)) as writer:
                for piece in pieces:
                    record = _record(piece, experience.schema, keys, cut=bool(cut[piece.trajectory]))
                    writer.write(pickle.dumps(record, _PROTOCOL))
                    progress.advance("steps", piece.steps)


def _files(experience: Experience) -> Iterator[Iterator[Piece]]:
    pieces = small_pieces(experience.blocks(), experience.schema)
    following = next(pieces, None)

    def of_file(first: Piece) -> Iterator[Piece]:
        nonlocal following
        piece, size = first, 0
        while True:
            size += piece.steps * experience.schema.row_bytes
            yield piece
            following = next(pieces, None)
            if following is None or (following.start == 0 and size >= _FILE_BYTES):
                return
            piece = following

    while following is not None:
        yield of_file(following)


@contextmanager
def _created(path: Path) -> Iterator[Any]:
    """Create a file, closed with the context; failures to write are errors of the operating system."""
    try:
        writer = array_record().ArrayRecordWriter(os.fsencode(path), _OPTIONS)
        try:
            yield writer
        finally:
            writer.close()
    except RuntimeError as exc:  # of the library, with the system's message
        number = next((code for code in (errno.ENOSPC, errno.EDQUOT) if os.strerror(code) in str(exc)), errno.EIO)
        if os.strerror(number) not in str(exc):
            raise
        raise OSError(number, os.strerror(number), str(path)) from exc


def _keys(schema: Schema) -> dict[str, str]:
    """Return the key of every field but the flags: p(doom)'s where it has one."""
    keys = {name: name for name in schema if name not in FLAGS}
    keys |= {name: key for key, name in KEYS.items() if name in keys and key != VIDEO and key not in keys}
    if "observation" in keys and _is_video(schema["observation"]) and VIDEO not in keys:
        keys["observation"] = VIDEO
    return keys


def _is_video(field: Field) -> bool:
    if field.dtype != "uint8" or field.role != Role.OBSERVATION:
        return False
    return len(field.shape) == 2 or (len(field.shape) == 3 and field.shape[-1] in _CHANNELS)


def _record(piece: Piece, schema: Schema, keys: dict[str, str], *, cut: bool) -> dict[str, Any]:
    record: dict[str, Any] = {LENGTH: piece.steps}
    for name, key in keys.items():
        rows = np.ascontiguousarray(piece.rows(name))
        record[key] = rows.tobytes() if key == VIDEO else _plain(rows)
        if schema[name].role == Role.OBSERVATION and piece.is_last:
            record[FINAL + name] = _plain(np.ascontiguousarray(piece.data[name][-1:]))
    record |= {name: np.ascontiguousarray(piece.rows(name)) for name in FLAGS}
    info = {field.name: getattr(piece, field.name) for field in fields(PieceInfo)}
    return {**record, TRAJECTORY: {**info, "cut": cut}}


def _plain(rows: Any) -> Any:
    return rows.reshape(-1).tolist() if rows.dtype == object else rows.copy()


DATASETS = ArrayRecordExporter()
