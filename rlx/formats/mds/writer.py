"""MDS: one sample per step with the observation after it, columns by TED path, pictures as PNG."""

import json
import struct
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from shutil import copyfileobj
from typing import Any

import numpy as np

from rlx.errors import ExportError
from rlx.formats.common.exporter import Experience, Piece, check_values, common_losses, left_out, small_pieces
from rlx.formats.common.fields import missing_field
from rlx.formats.common.pictures import Arranged, as_pictures, encode
from rlx.formats.common.provenance import FILE_NAME, save_provenance
from rlx.formats.common.rows.ted_fields import INDEX as STEP_INDEX
from rlx.formats.common.rows.ted_fields import LOCATIONS, locations, ted_paths
from rlx.formats.mds.layout import INDEX, SHARD, VERSION, Encoding, encoding_of
from rlx.progress import Progress
from rlx.schema import Field, Role, Schema

_SHARD_BYTES = 2**26  # the default of streaming's own writer
_SHARD_SAMPLES = 50_000
_LOCATIONS = {STEP_INDEX: Field("int64", (), Role.STEP), **LOCATIONS}
_NUMBER_BYTES = struct.Struct("<I")


class MdsExporter:
    """Exporter of every field; samples are shuffled, so each has the observation after its step too."""

    title = "MDS"
    notes_empty = True

    def taken(self, schema: Schema) -> Collection[str]:  # noqa: ARG002  (whatever it is)
        """Return an empty list: any name can be used."""
        return []

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost marks of unrecorded final observations, fields, and shapes of pictures."""
        schema = experience.schema
        check_values(self.title, schema)
        columns = _columns(schema)
        held = {name: schema[name] for name, path in ted_paths(schema).items() if path in columns}
        if (missing := missing_field(held)) is not None:
            names = [name for name in schema if name not in held]
            raise ExportError(f"MDS holds numbers and single texts, found no such {missing}, only {', '.join(names)}")
        losses = common_losses(experience, starts=False)
        losses += left_out([name for name in schema if name not in held])
        pictures = {name: _picture(schema[name]) for name in schema.names(Role.OBSERVATION)}
        return losses + [loss for name, one in pictures.items() if one for loss in one.loss(name, schema[name])]

    def owns(self, path: Path) -> bool:
        """Return whether a directory has an MDS dataset, and nothing else that rlx did not write."""
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
        return INDEX in names and all(name in (INDEX, FILE_NAME) or name.endswith(".mds") for name in names)

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the directory; the index last."""
        path.mkdir(parents=True)
        columns = dict(sorted(_columns(experience.schema).items()))
        shards: list[dict[str, Any]] = []
        shard = OpenShard(path, 0, columns)
        try:
            for piece, samples in _samples(experience, columns):
                for sample in samples:
                    if shard.is_full:
                        shards.append(shard.finish())
                        shard = OpenShard(path, len(shards), columns)
                    shard.add(sample)
                progress.advance("steps", piece.steps)
            shards.append(shard.finish())
        finally:
            shard.close()
        save_provenance(path, experience, self.losses(experience))
        (path / INDEX).write_text(json.dumps({"version": VERSION, "shards": shards}, sort_keys=True), encoding="utf-8")


class OpenShard:
    """A shard that is being written: samples go to a temporary file first, as their offsets precede them."""

    def __init__(self, directory: Path, number: int, columns: Mapping[str, Encoding]) -> None:
        self._path = directory / SHARD.format(number)
        self._samples = self._path.with_suffix(".samples").open("w+b")
        self._sizes = array("I")
        self._bytes = 0
        encodings = columns.values()
        self._config = {
            "version": VERSION,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": _SHARD_BYTES,
            "column_names": list(columns),
            "column_encodings": [encoding.text for encoding in encodings],
            "column_sizes": [encoding.size for encoding in encodings],
        }

    @property
    def is_full(self) -> bool:
        """Whether the next sample goes into another shard."""
        return self._bytes >= _SHARD_BYTES or len(self._sizes) >= _SHARD_SAMPLES

    def add(self, sample: bytes) -> None:
        """Add a sample."""
        self._samples.write(sample)
        self._sizes.append(len(sample))
        self._bytes += len(sample)

    def close(self) -> None:
        """Close the file of samples, written or not."""
        self._samples.close()

    def finish(self) -> dict[str, Any]:
        """Write the shard; return its entry in the index."""
        config = json.dumps(self._config, sort_keys=True).encode()
        count = len(self._sizes)
        places = np.cumsum([0, *self._sizes]) + _NUMBER_BYTES.size * (count + 2) + len(config)
        with self._path.open("xb") as file:
            file.write(_NUMBER_BYTES.pack(count) + places.astype("<u4").tobytes() + config)
            self._samples.seek(0)
            copyfileobj(self._samples, file)
            size = file.tell()
        self._samples.close()
        self._path.with_suffix(".samples").unlink()
        raw = {"basename": self._path.name, "bytes": size, "hashes": {}}
        return {**self._config, "raw_data": raw, "zip_data": None, "samples": count}


def _samples(experience: Experience, columns: Mapping[str, Encoding]) -> Iterator[tuple[Piece, Iterator[bytes]]]:
    index = 0
    for piece in small_pieces(experience.blocks(), experience.schema):
        yield piece, _encoded(experience, piece, columns, index)
        index += piece.steps


def _encoded(experience: Experience, piece: Piece, columns: Mapping[str, Encoding], index: int) -> Iterator[bytes]:
    schema, places = experience.schema, locations(experience, piece)
    values = {path: _bytes(rows) for path, rows in places.items()}
    values[STEP_INDEX] = _bytes(np.arange(index, index + piece.steps))
    for name, path in ted_paths(schema).items():
        if path in columns:
            values[path] = _bytes(piece.rows(name), _picture(schema[name]))
            if schema[name].role == Role.OBSERVATION:
                values[f"next/{name}"] = _bytes(piece.next(name), _picture(schema[name]))
    free = [place for place, encoding in enumerate(columns.values()) if encoding.size is None]
    for sample in zip(*(values[path] for path in columns), strict=True):
        yield b"".join([*(_NUMBER_BYTES.pack(len(sample[place])) for place in free), *sample])


def _bytes(rows: Any, arranged: Arranged | None = None) -> Iterator[bytes]:
    if arranged is not None:
        return encode(arranged.arrange(rows))
    if rows.dtype == object:
        return (text.encode() for text in rows)
    return (row.tobytes() for row in np.ascontiguousarray(rows))


def _columns(schema: Schema) -> dict[str, Encoding]:
    columns = {path: encoding_of(field, is_picture=False) for path, field in _LOCATIONS.items()}
    for name, path in ted_paths(schema).items():
        field = schema[name]
        if path in _LOCATIONS or (field.is_text and field.shape):
            continue
        columns[path] = encoding_of(field, is_picture=_picture(field) is not None)
        if field.role == Role.OBSERVATION:
            columns[f"next/{name}"] = columns[path]
    return columns


def _picture(field: Field) -> Arranged | None:
    return as_pictures(field) if field.role == Role.OBSERVATION else None


DATASETS = MdsExporter()
