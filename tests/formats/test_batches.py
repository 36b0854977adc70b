import asyncio
import errno
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
import pyarrow as arrow
import pyarrow.parquet
import pytest
import torch
import zarr
from zarr.storage import LocalStore

from rlx.errors import DatasetExistsError, DiskFullError, MissingExtraError, SchemaMismatchError, UnknownFormatError
from rlx.formats.common.batches import Columns, export
from rlx.formats.registry import format_of, formats, writable
from rlx.testing.exporter import Arrays, ExporterContract, batch


class TestNpz(ExporterContract):
    exporter, suffix = formats()["npz"].batches, "npz"

    def read(self, path: Path) -> Arrays:
        with np.load(path, allow_pickle=False) as file:
            return {name: texts(file[name]) for name in file}


class TestPt(ExporterContract):
    exporter, suffix = formats()["pt"].batches, "pt"

    def read(self, path: Path) -> Arrays:
        return flat(torch.load(path, weights_only=True))


class TestH5(ExporterContract):
    exporter, suffix = formats()["h5"].batches, "h5"

    def read(self, path: Path) -> Arrays:
        found: Arrays = {}
        with h5py.File(path) as file:
            file.visititems(
                lambda name, item: found.update({name: h5_rows(item)}) if isinstance(item, h5py.Dataset) else None
            )
        return found


class TestZarr(ExporterContract):
    exporter, suffix = formats()["zarr"].batches, "zarr"

    def read(self, path: Path) -> Arrays:
        group = zarr.open_group(path, mode="r")
        members = group.members(max_depth=None)
        return {name: texts(np.asarray(item[:])) for name, item in members if isinstance(item, zarr.Array)}


class TestParquet(ExporterContract):
    exporter, suffix = formats()["parquet"].batches, "parquet"

    def read(self, path: Path) -> Arrays:
        table = arrow.parquet.read_table(path)
        return {name: column(table[name].combine_chunks()) for name in table.column_names}


class TestJsonl(ExporterContract):
    exporter, suffix = formats()["jsonl"].batches, "jsonl"

    def read(self, path: Path) -> Arrays:
        rows = [flat(json.loads(line)) for line in path.read_text().splitlines()]
        return {name: np.array([row[name] for row in rows], like.dtype) for name, like in batch(1, 0).items()}


def texts(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows, of which texts are objects, however the format has them."""
    return rows.astype(object) if rows.dtype.kind in "UT" else rows


def h5_rows(item: h5py.Dataset) -> np.ndarray[Any, Any]:
    return np.asarray(item.asstr()[:] if h5py.check_string_dtype(item.dtype) else item[:])


def flat(tree: Any, prefix: str = "") -> Arrays:
    if not isinstance(tree, dict):
        if isinstance(tree, torch.Tensor):
            return {prefix[:-1]: tree.numpy()}
        return {prefix[:-1]: np.array(tree, object) if isinstance(tree, list) else tree}
    return {name: leaf for key, child in tree.items() for name, leaf in flat(child, f"{prefix}{key}/").items()}


def column(array: Any) -> np.ndarray[Any, Any]:
    shape = [len(array)]
    while isinstance(array, arrow.FixedSizeListArray):
        shape.append(array.type.list_size)
        array = array.flatten()
    return array.to_numpy(zero_copy_only=False).reshape(shape)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "format"), [("a.npz", "npz"), ("a.HDF5", "h5"), ("a.pth", "pt"), ("x.y.jsonl", "jsonl")]
)
def test_the_suffix_tells_the_format(name: str, format: str) -> None:
    assert format_of(Path(name)) == format


@pytest.mark.parametrize("name", ["a", "a.txt", ".npz"])
def test_a_suffix_that_tells_nothing(name: str) -> None:
    with pytest.raises(UnknownFormatError, match=r"expected a name that ends in \.h5, \.jsonl"):
        format_of(Path(name))


@pytest.mark.parametrize("name", ["npz", "zarr"])
def test_a_directory_of_something_else_stays(name: str, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with pytest.raises(DatasetExistsError, match="is a directory"):
        export([batch(1, 0)], tmp_path / "precious", formats()[name].batches)
    assert (tmp_path / "precious").is_dir()


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="parquet needs pyarrow") as caught:
        export([batch(1, 0)], tmp_path / "a.parquet", formats()["parquet"].batches)
    assert caught.value.hint == "pip install 'rlx[parquet]'"


class FullDisk:
    """Writes as an exporter does on a disk that is full."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:  # noqa: ARG002
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="no room"):
        export([batch(1, 0)], tmp_path / "a.npz", FullDisk())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(writable("batches")))
def test_a_disk_that_fills_up_is_named_and_left_empty(name: str, small_disk: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (600, 60, 60), np.uint8)
    with pytest.raises(DiskFullError, match="no room left"):
        export([{"noise": noise}], small_disk / f"a.{name}", formats()[name].batches)
    assert not list(small_disk.iterdir())


def test_zarr_finishes_all_writes_after_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would go on while the directory is removed, and after the end of the program."""
    write, begun, finished = LocalStore.set, [], []

    async def fail_once(self: LocalStore, key: str, value: Any) -> None:
        begun.append(key)
        if len(begun) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        await asyncio.sleep(0.01)
        await write(self, key, value)
        finished.append(key)

    monkeypatch.setattr(LocalStore, "set", fail_once)
    with pytest.raises(DiskFullError, match="no room left"):
        export([{"noise": np.ones((2_000, 60, 60), np.uint8)}], tmp_path / "a.zarr", formats()["zarr"].batches)
    assert len(finished) == len(begun) - 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(writable("batches")))
def test_rows_without_values_are_written_or_refused_by_name(name: str, tmp_path: Path) -> None:
    columns = {"action": np.zeros(2, "f4"), "info/said": np.zeros((2, 0), "i8")}
    try:
        export([columns], tmp_path / f"a.{name}", formats()[name].batches)
    except SchemaMismatchError as exc:
        assert str(exc) == f"info/said is int64[0], without a value, which {name} cannot hold"  # noqa: PT017
    assert [path.name for path in tmp_path.iterdir()] == ([] if name in ("h5", "parquet") else [f"a.{name}"])


@pytest.mark.parametrize("name", ["npz", "h5"])
def test_a_text_that_a_format_cannot_hold_is_refused_by_name(name: str, tmp_path: Path) -> None:
    said = {"task": np.array(["fine", "ends here\0"], object)}
    with pytest.raises(SchemaMismatchError, match=f"task has a text with a NUL character, which {name} cannot hold"):
        export([said], tmp_path / f"a.{name}", formats()[name].batches)
    assert not list(tmp_path.iterdir())
