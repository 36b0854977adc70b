"""Adds to a file of another project a key that its format does not know: of every kind, a function a format.

The files are those that rlx writes of the sample ``vectors``, episodes of 4, 1, 7, 2 and 9 steps; Dopamine's are of
pictures, and RL Unplugged's are written by the tests.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import lance
import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rlx.formats.common.record_files import records
from rlx.formats.common.tf_example import parse_example
from rlx.formats.mds.layout import Encoding
from rlx.formats.mds.reader import Shard
from rlx.formats.mds.writer import OpenShard
from scripts.rlu_writer import tf_example, tf_record
from tests.array_record_files import changed_records
from tests.dopamine_files import save_npy

Values = NDArray[Any]
LENGTHS = (4, 1, 7, 2, 9)
STEPS = sum(LENGTHS)
_TEXTS, _FLOATS, _INTEGERS = 1, 2, 3
_WORDS = np.array(["lift", "", "r\u00e9"], object)
# Values of STEPS rows, or of others.
KINDS: Mapping[str, Values] = {
    "numbers": np.arange(STEPS),
    "vectors": np.arange(2.0 * STEPS).reshape(STEPS, 2),
    "no numbers": np.zeros((STEPS, 0), np.float32),
    "texts": _WORDS[np.arange(STEPS) % 3],
    "complex": np.full(STEPS, 1j),
    "other rows": np.arange(STEPS + 3),
    "one value": np.array(2.5),
}


def _episodes(values: Values) -> Iterator[tuple[int, Values]]:
    """What each episode gets; where there are more rows than steps, the last of an episode is there three times."""
    for number, (start, length) in enumerate(zip(np.cumsum((0, *LENGTHS)), LENGTHS, strict=False)):
        rows = values if not values.ndim else values[start : start + length]
        yield number, np.concatenate([rows, rows[-1:], rows[-1:]]) if values.ndim and len(values) > STEPS else rows


def _write(file: h5py.File, path: str, values: Values) -> None:
    file.create_dataset(path, data=values, dtype=h5py.string_dtype() if values.dtype == object else None)


def _minari(path: Path, key: str, values: Values) -> None:
    with h5py.File(path / "data/main_data.hdf5", "a") as file:
        for number, rows in _episodes(values):
            _write(file, f"episode_{number}/{key}", rows)


def _d4rl(path: Path, key: str, values: Values) -> None:
    with h5py.File(path, "a") as file:
        _write(file, key, values)


def _robomimic(path: Path, key: str, values: Values) -> None:
    with h5py.File(path, "a") as file:
        for number, rows in _episodes(values):
            _write(file, f"data/demo_{number}/{key}", rows)


def _d3rlpy(path: Path, key: str, values: Values) -> None:
    with h5py.File(path, "a") as file:
        columns = [*file["columns"][()], key.encode()]
        del file["columns"]
        file.create_dataset("columns", data=columns, dtype=h5py.string_dtype())
        for number, rows in _episodes(values):
            _write(file, f"{key}_{number}", rows)


def _lerobot(path: Path, key: str, values: Values) -> None:
    info = json.loads((path / "meta/info.json").read_text())
    dtype = {"O": "string", "c": "complex128"}.get(values.dtype.kind, values.dtype.name)
    info["features"][key] = {"dtype": dtype, "shape": list(values.shape[1:]) or [1], "names": None}
    (path / "meta/info.json").write_text(json.dumps(info))
    _parquet(path / "data/chunk-000/file-000.parquet", key, values)


def _parquet(path: Path, key: str, values: Values) -> None:
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.append_column(key, _arrow(values)), path)


def _arrow(values: Values) -> Any:
    rows = [bytes(16)] * STEPS if values.dtype.kind == "c" else values.tolist()
    return pyarrow.array(rows, None if values.size else pyarrow.list_(pyarrow.float32()))


def _rlds(path: Path, key: str, values: Values) -> None:
    described = json.loads((path / "features.json").read_text())
    steps = described["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    *groups, name = key.split("/")
    for group in groups:
        steps = steps.setdefault(group, {"featuresDict": {"features": {}}})["featuresDict"]["features"]
    dtype = {"O": "string", "c": "complex128"}.get(values.dtype.kind, values.dtype.name)
    shape = {"dimensions": [str(size) for size in values.shape[1:]]}
    encoding = "bytes" if dtype == "float64" else "none"
    steps[name] = {"tensor": {"dtype": dtype, "shape": shape, "encoding": encoding}}
    (path / "features.json").write_text(json.dumps(described))
    (file,) = path.glob("*.tfrecord-*")
    made = []
    for record, (_, rows) in zip(list(records(file)), _episodes(values), strict=True):
        rows = np.concatenate([rows, rows[-1:]])
        texts = [row.tobytes() for row in rows] if dtype in ("float64", "complex128") else None
        texts = [row.encode() for row in rows] if dtype == "string" else texts
        added = (
            (_FLOATS if not rows.size else _INTEGERS, rows.reshape(-1).tolist()) if texts is None else (_TEXTS, texts)
        )
        made.append(tf_record(tf_example({**_features(parse_example(record)), f"steps/{key}": added})))
    file.write_bytes(b"".join(made))


def _features(parsed: Mapping[str, Any]) -> dict[str, tuple[int, list[Any]]]:
    kinds = {np.dtype("f4"): _FLOATS, np.dtype("i8"): _INTEGERS}
    return {
        name: (kinds[values.dtype], values.tolist())
        if isinstance(values, np.ndarray)
        else (_TEXTS, [*map(bytes, values)])
        for name, values in parsed.items()
    }


def _torchrl(path: Path, key: str, values: Values) -> None:
    steps = TensorDict.load_memmap(path).clone()
    provenance = (path / "provenance.json").read_text()
    steps.set(tuple(key.split("/")), values.tolist() if values.dtype == object else torch.tensor(values))
    steps.memmap(path)
    (path / "provenance.json").write_text(provenance)


def _npz(path: Path, key: str, values: Values) -> None:
    with np.load(path) as file:
        held = dict(file)
    held[key] = values.astype(str) if values.dtype == object else values
    np.savez(path, **held)


def _lance(path: Path, key: str, values: Values) -> None:
    table = lance.dataset(path).to_table().append_column(key, _arrow(values))
    lance.write_dataset(table, str(path), mode="overwrite")


def _mds(path: Path, key: str, values: Values) -> None:
    index = json.loads((path / "index.json").read_text())
    (said,) = index["shards"]
    columns = {
        name: Encoding(text, size)
        for name, text, size in zip(said["column_names"], said["column_encodings"], said["column_sizes"], strict=True)
    }
    kinds = {"numbers": "int64", "vectors": "ndarray:float64:2", "texts": "str", "complex": "bytes"}
    kinds |= {"no numbers": "ndarray:float32:0"}
    (kind,) = (name for name in kinds if KINDS[name] is values)
    with Shard(path / "shard.00000.mds", STEPS, said["raw_data"]["bytes"], list(columns.values())) as shard:
        samples = [dict(zip(columns, shard.values(row), strict=True)) for row in range(STEPS)]
    (path / "shard.00000.mds").unlink()
    columns = dict(sorted({**columns, key: Encoding(kinds[kind], None)}.items()))
    written = OpenShard(path, 0, columns)
    for row, sample in enumerate(samples):
        added = {**sample, key: values[row].encode() if kind == "texts" else values[row].tobytes()}
        sizes = [len(added[name]) for name, encoding in columns.items() if encoding.size is None]
        written.add(np.array(sizes, "<u4").tobytes() + b"".join(added[name] for name in columns))
    (path / "index.json").write_text(json.dumps({**index, "shards": [written.finish()]}))


def _array_record(path: Path, key: str, values: Values) -> None:
    def add(records: list[dict[str, Any]]) -> None:
        for record, (_, rows) in zip(records, _episodes(values), strict=True):
            record[key] = rows.tolist() if rows.dtype == object else rows

    changed_records(path / "data_000000.array_record", add)


def _dopamine(path: Path, key: str, values: Values) -> None:
    for file in (path / "replay_logs").glob("$store$_reward_ckpt.*.gz"):
        with gzip.open(file) as opened:
            rows = len(np.load(opened))
        shape = (rows + 3 if len(np.atleast_1d(values)) > STEPS else rows, *values.shape[1:])
        filled = np.resize(values, shape) if values.ndim else values
        save_npy(file.with_name(file.name.replace("reward", key)), filled, allow_pickle=True)


ADD: Mapping[str, Callable[[Path, str, Values], None]] = {
    "minari": _minari,
    "d4rl": _d4rl,
    "robomimic": _robomimic,
    "d3rlpy": _d3rlpy,
    "dopamine": _dopamine,
    "lerobot": _lerobot,
    "rlds": _rlds,
    "torchrl": _torchrl,
    "parquet": _parquet,
    "npz": _npz,
    "array_record": _array_record,
    "lance": _lance,
    "mds": _mds,
}
# Kinds that a format has no way to hold.
IMPOSSIBLE: Mapping[str, frozenset[str]] = {
    "lerobot": frozenset({"other rows", "one value"}),
    "rlds": frozenset({"other rows", "one value"}),
    "torchrl": frozenset({"other rows", "one value"}),
    "parquet": frozenset({"other rows", "one value"}),
    "lance": frozenset({"other rows", "one value"}),
    "mds": frozenset({"other rows", "one value"}),
}
