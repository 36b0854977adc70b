"""No reader takes a number that is neither 0 nor 1 for a flag: the error names it."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rlx.errors import CorruptShardError
from rlx.formats.common.source import Source
from rlx.testing.source import Trajectory, read
from rlx.verbs.inputs import open_source
from tests.array_record_files import changed_records
from tests.bad_files import NAMES, RECORDS
from tests.damage import arrays, at, feature, gz, h5, members
from tests.hdf5_files import replace

Rows = Callable[[Any], Any]
LAST = 22


def with_value(number: float, row: int) -> Rows:
    """Flags as numbers, one of which is this one."""

    def change(rows: Any) -> Any:
        kind = np.int64 if number == int(number) else np.float64
        made = np.array(rows, np.float64 if np.isnan(number) else kind)
        made.reshape(-1)[row] = number
        return made

    return change if number == number else lambda rows: _with_nan(rows, row)


def _with_nan(rows: Any, row: int) -> Any:
    made = np.array(rows, np.float64)
    made.reshape(-1)[row] = np.nan
    return made


def table(name: str, change: Rows) -> Callable[[Any], Any]:
    def changed(rows: Any) -> Any:
        values = change(rows[name].to_pylist())
        return rows.set_column(rows.schema.names.index(name), name, pyarrow.array(values))

    return changed


def parquet(file: str, name: str, change: Rows) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        rows = pyarrow.parquet.read_table(path / file)
        pyarrow.parquet.write_table(table(name, change)(rows), path / file)

    return damage


def lance_column(name: str, change: Rows) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        rows = table(name, change)(lance.dataset(path).to_table())
        lance.write_dataset(rows, str(path), mode="overwrite")

    return damage


def memmap(change: Rows) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        file = path / "next/terminated.memmap"
        rows = change(np.fromfile(file, "?"))
        rows.tofile(file)
        members(lambda one: {"terminated": {**one["terminated"], "dtype": f"torch.{rows.dtype}"}})(
            path / "next/meta.json"
        )

    return damage


def mds(number: int) -> Callable[[Path], object]:
    """Columns of one byte are at the end of a sample, in the order of their names."""

    def damage(path: Path) -> None:
        said = json.loads((path / "index.json").read_bytes())["shards"][0]
        sizes = said["column_sizes"]
        place = said["column_names"].index("next/terminated")
        content = bytearray((path / "shard.00000.mds").read_bytes())
        start = int(np.frombuffer(content, "<u4", said["samples"] + 1, 4)[LAST])
        assert None not in sizes
        content[start + sum(sizes[:place])] = number
        (path / "shard.00000.mds").write_bytes(content)

    return damage


def records(change: Rows) -> Callable[[Path], object]:
    def changed(found: list[dict[str, Any]]) -> None:
        found[4]["terminated"] = change(found[4]["terminated"])

    return at("data_000000.array_record", lambda path: changed_records(path, changed))


def episode(name: str, change: Rows) -> Callable[[Path], object]:
    """The flags of the last episode in an HDF5 file."""
    return h5(lambda file: replace(name, change(file[name][()]))(file))


FLAGS: Mapping[str, Callable[[float], Callable[[Path], object]]] = {
    "minari": lambda number: at("data/main_data.hdf5", episode("episode_4/terminations", with_value(number, 8))),
    "d4rl": lambda number: episode("terminals", with_value(number, LAST)),
    "d4rl timeouts": lambda number: episode("timeouts", with_value(number, LAST)),
    "d4rl table": lambda number: episode("metadata/trajectories/from_reset", with_value(number, 4)),
    "robomimic": lambda number: episode("data/demo_4/dones", with_value(number, 8)),
    "d3rlpy": lambda number: episode("terminated_4", with_value(number, 0)),
    "lerobot": lambda number: parquet("data/chunk-000/file-000.parquet", "next.done", with_value(number, LAST)),
    "lerobot truncated": lambda number: parquet(
        "data/chunk-000/file-000.parquet", "next.truncated", with_value(number, 0)
    ),
    "rlds": lambda number: at(RECORDS, feature("steps/is_terminal", _as_feature(with_value(number, 4)))),
    "rlds first": lambda number: at(RECORDS, feature("steps/is_first", _as_feature(with_value(number, 0)))),
    "torchrl": lambda number: memmap(with_value(number, LAST)),
    "parquet": lambda number: parquet("", "next/terminated", with_value(number, LAST)),
    "parquet cut": lambda number: parquet("", "trajectories/cut", with_value(number, LAST)),
    "npz": lambda number: arrays("next/truncated", with_value(number, LAST)),
    "lance": lambda number: lance_column("next/terminated", with_value(number, LAST)),
    "array_record": lambda number: records(with_value(number, 8)),
}


def _as_feature(change: Rows) -> Rows:
    def changed(rows: Any) -> Any:
        made = change(rows)
        return made.astype(np.float32) if made.dtype.kind == "f" else made

    return changed


def refused(exported: Path, format: str, damage: Callable[[Path], object], place: Path) -> str:
    shutil.copytree(exported / format, place)
    path = place / NAMES.get(format, "a.h5")
    damage(path)
    with pytest.raises(CorruptShardError) as caught:
        read_all(path, format)
    return str(caught.value)


def read_all(path: Path, format: str) -> tuple[Source, list[Trajectory]]:
    source, _ = open_source(path, format)
    return source, [one for shard in source.shards() for one in read(source, shard)]


@pytest.mark.parametrize("number", [float("nan"), 0.5, -1, 2])
@pytest.mark.parametrize("name", FLAGS)
def test_a_number_that_is_no_flag_is_refused_by_name(name: str, number: float, exported: Path, tmp_path: Path) -> None:
    message = refused(exported, name.split()[0], FLAGS[name](number), tmp_path / "in")
    said = "NaN" if number != number else str(number)
    is_typed = name == "minari"  # whose flags have the dtype of their first episode
    assert ("expected bool[], found" if is_typed else f"expected 0 or 1, found {said}") in message


@pytest.mark.parametrize("name", [name for name in FLAGS if name != "minari"])
def test_flags_of_another_dtype_are_flags(name: str, exported: Path, tmp_path: Path) -> None:
    format = name.split()[0]
    shutil.copytree(exported / format, tmp_path / "in")
    path = tmp_path / "in" / NAMES.get(format, "a.h5")
    before, _ = read_all(path, format)
    FLAGS[name](0.0)(path)
    after, found = read_all(path, format)
    assert sum(one.steps for one in found) >= 22
    assert set(after.schema) == set(before.schema)


def test_a_byte_that_is_no_flag_is_refused_by_name(exported: Path, tmp_path: Path) -> None:
    log = at("replay_logs/$store$_terminal_ckpt.0.gz", gz(lambda rows: np.where(rows == 1, 2, 0).astype("u1")))
    assert "expected 0 or 1, found 2" in refused(exported, "dopamine", log, tmp_path / "dopamine")
    assert "next/terminated: expected 0 or 1, found 2 in row 22" in refused(exported, "mds", mds(2), tmp_path / "mds")
    odd = at("next/terminated.memmap", lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\3"))
    message = refused(exported, "torchrl", odd, tmp_path / "torchrl")
    assert "next/terminated: expected 0 or 1, found 3 in row 22" in message
