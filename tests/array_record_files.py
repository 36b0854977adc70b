"""ArrayRecord files as p(doom)'s scripts write them: pickled dicts of pieces of episodes, a group each."""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python import array_record_module as module

Record = Mapping[str, Any]
CHUNK = 5


def write_records(path: Path, records: Iterable[Record | bytes], protocol: int = 4) -> Path:
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record if isinstance(record, bytes) else pickle.dumps(record, protocol))
    writer.close()
    return path


def read_records(path: Path) -> list[dict[str, Any]]:
    reader = module.ArrayRecordReader(str(path))
    return [pickle.loads(record) for record in reader.read_all()]


def changed_records(path: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """The file with other records: the change gets them, and changes them in place or gives others."""
    records = read_records(path)
    write_records(path, change(records) or records)


def pieces(
    lengths: Iterable[int], shape: tuple[int, ...] = (8, 8), more: Mapping[str, Callable[[int], Any]] | None = None
) -> Sequence[Record]:
    """The pieces of episodes, whose frames say where they belong: ``16 * episode + t``."""
    records: list[Record] = []
    for episode, length in enumerate(lengths):
        frames = np.stack([np.full(shape, 16 * episode + t, np.uint8) for t in range(length)])
        actions = np.arange(length, dtype=np.int8) % 4
        for start in range(0, length, CHUNK):
            some = slice(start, start + CHUNK)
            count = len(actions[some])
            record = {"raw_video": frames[some].tobytes(), "sequence_length": count, "actions": actions[some]}
            records.append({**record, **{name: make(count) for name, make in (more or {}).items()}})
    return records
