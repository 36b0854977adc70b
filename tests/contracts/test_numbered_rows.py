"""Every format of tables reads the columns that locate a row: shuffled, interleaved, lost and repeated rows."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

from rlx.formats.common.rows import table as row_table
from rlx.formats.common.source import Source
from rlx.formats.mds.layout import Encoding
from rlx.formats.mds.writer import OpenShard
from rlx.testing.source import Trajectory, read
from rlx.verbs.inputs import open_source

Rows = dict[str, NDArray[Any]]
LENGTHS = (5, 1, 7, 4)


def steps(*, after: bool, ends: str = "tx.t") -> Rows:
    """Rows that say where they belong: ``100 * trajectory + t``; perhaps with the observations after them."""
    number = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    time = np.concatenate([np.arange(length) for length in LENGTHS])
    last = time == np.array(LENGTHS)[number] - 1
    seen = (100 * number + time).astype(np.float32)[:, None]
    kinds = np.array([*ends])[number]
    rows = {
        "observation": seen,
        "action": 100 * number + time,
        "next/reward": seen[:, 0] / 2,
        "next/terminated": last & (kinds == "t"),
        "next/truncated": last & (kinds == "x"),
        "collector/traj_ids": number,
    }
    return rows | ({"next/observation": seen + 1} if after else {})


def _arrow(rows: Rows) -> Any:
    return pyarrow.table({name: column.tolist() for name, column in rows.items()})


def _parquet(rows: Rows, path: Path) -> None:
    kinds = {name: pyarrow.from_numpy_dtype(column.dtype) for name, column in rows.items()}
    fields = [(name, pyarrow.list_(kind, 1) if rows[name].ndim > 1 else kind) for name, kind in kinds.items()]
    table = pyarrow.table([pyarrow.array(rows[name].tolist(), kind) for name, kind in fields], [*rows])
    pyarrow.parquet.write_table(table, path, row_group_size=3)


def _lance(rows: Rows, path: Path) -> None:
    lance.write_dataset(_arrow(rows), str(path))


def _npz(rows: Any, path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, **rows)


def _mds(rows: Rows, path: Path) -> None:
    path.mkdir()
    columns = {}
    for name, column in sorted(rows.items()):
        dtype = "uint8" if column.dtype == bool else column.dtype.name
        is_number = column.ndim == 1
        columns[name] = Encoding(dtype if is_number else f"ndarray:{dtype}:1", column.itemsize if is_number else None)
    shard = OpenShard(path, 0, columns)
    for row in range(len(rows["action"])):
        values = {name: rows[name][row].tobytes() for name in columns}
        sizes = [len(values[name]) for name, encoding in columns.items() if encoding.size is None]
        shard.add(np.array(sizes, "<u4").tobytes() + b"".join(values.values()))
    (path / "index.json").write_text(json.dumps({"version": 2, "shards": [shard.finish()]}))


WRITE: Mapping[str, Callable[[Rows, Path], None]] = {"parquet": _parquet, "lance": _lance, "npz": _npz, "mds": _mds}


def opened(format: str, rows: Rows, path: Path) -> tuple[Source, list[Trajectory]]:
    WRITE[format](rows, path)
    source, _ = open_source(path, format)
    return source, [one for shard in source.shards() for one in read(source, shard)]


def told(found: list[Trajectory]) -> list[tuple[list[int], bool, bool, bool]]:
    return [(one["action"].tolist(), bool(one["terminated"][-1]), bool(one["truncated"][-1]), one.cut) for one in found]


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_table, "block_steps", lambda _: 4)
    monkeypatch.setattr(row_table, "batch_rows", lambda _: 2)


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("format", WRITE)
def test_shuffled_rows_are_put_in_order(format: str, after: bool, tmp_path: Path) -> None:
    rows = steps(after=after)
    _, wanted = opened(format, rows, tmp_path / "a")
    numbered = {**rows, "index": np.arange(sum(LENGTHS))}
    order = np.random.default_rng(0).permutation(sum(LENGTHS))
    source, found = opened(format, {name: column[order] for name, column in numbered.items()}, tmp_path / "b")
    assert told(found) == told(wanted)
    assert [one["observation"].tolist() for one in found] == [one["observation"].tolist() for one in wanted]
    assert source.notes["rows_out_of_order"] > 0
    assert not {"gaps", "repeated_rows"} & source.notes.keys()


@pytest.mark.parametrize("locator", ["index", "frame_index", None])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("format", WRITE)
def test_a_log_of_environments_in_turn(format: str, after: bool, locator: str | None, tmp_path: Path) -> None:
    rows = steps(after=after)
    _, wanted = opened(format, rows, tmp_path / "a")
    time = rows["action"] % 100
    in_turn = np.lexsort((rows["collector/traj_ids"], time))
    log = {name: column[in_turn] for name, column in rows.items()}
    log |= {"index": np.arange(len(time))} if locator == "index" else {}
    log |= {"frame_index": time[in_turn]} if locator == "frame_index" else {}
    source, found = opened(format, log, tmp_path / "b")
    assert sorted(told(found)) == sorted(told(wanted))
    assert not {"rows_out_of_order", "gaps", "repeated_rows"} & source.notes.keys()


@pytest.mark.parametrize(("change", "note"), [("lost", "gaps"), ("repeated", "repeated_rows")])
@pytest.mark.parametrize("locator", ["index", "frame_index"])
@pytest.mark.parametrize("format", WRITE)
def test_no_transition_that_never_happened(format: str, locator: str, change: str, note: str, tmp_path: Path) -> None:
    rows = steps(after=False, ends="tttt")
    rows[locator] = np.arange(len(rows["action"])) if locator == "index" else rows["action"] % 100
    kept = np.delete(np.arange(17), 8) if change == "lost" else np.insert(np.arange(17), 8, 8)
    source, found = opened(format, {name: column[kept] for name, column in rows.items()}, tmp_path / "a")
    first, second = [one for one in found if one.episode == 2]
    expected = ([200], [203, 204, 205, 206]) if change == "lost" else ([200, 201], [202, 203, 204, 205, 206])
    assert (first["action"].tolist(), second["action"].tolist()) == expected
    assert (first.cut, second.from_reset) == (True, False)
    assert source.notes[note] == 1
