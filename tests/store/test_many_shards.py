"""Operations counted on datasets of several sizes: none grows faster than the number of shards."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx.manifest import Manifest
from rlx.manifest_values import indented
from rlx.progress import Silent
from rlx.store import dataset_writer
from rlx.store.layout import shard_directory, shard_name
from rlx.store.stores import store_named
from rlx.store.trajectories import Trajectories
from rlx.store.writer import link_shard
from tests.factories import LARGE, make_block, write_dataset
from tests.rlu_files import write_run

_opened: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None and "/data" in str(arguments[0]):
        _opened.append(str(arguments[0]))


sys.addaudithook(_audit)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """List the files below a directory whose name begins with ``data`` that are opened in this context."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


def write_many(path: Path, shards: int, **options: Any) -> Path:
    """Write a dataset of equal shards."""
    first = write_dataset(path, [[make_block([3, 5], schema=LARGE)]], schema=LARGE, **options)
    (record,) = first.manifest.shards
    for number in range(1, shards):
        link_shard(path / "shards" / "00000", record.files, shard_directory(path, shard_name(number)), Silent())
    names = [shard_name(number) for number in range(shards)]
    manifest = replace(first.manifest.with_shards([replace(record, name=name) for name in names]), planned=names)
    manifest.save(path)
    return path


def _read(path: Path, _: Path) -> None:
    dataset = rlx.open(path)
    dataset[:: len(dataset) // 4]


def _collect(path: Path, out: Path) -> None:
    steps = 10 * len(rlx.open(path).shard_records)
    rlx.collect("CartPole-v1", output=out / "data-new", envs=1, steps=steps, shard_steps=10)


def _download(path: Path, out: Path) -> None:
    shards = range(len(rlx.open(path).shard_records))
    write_run(out / "data-source", "Pong", 1, {shard: [3] for shard in shards})
    rlx.download("Pong/1", source=out / "data-source", output=out / "data-new", jobs=1)


VERBS: dict[str, Callable[[Path, Path], object]] = {
    "open and read": _read,
    "inspect": lambda path, _: rlx.inspect(path),
    "verify": lambda path, _: rlx.verify(path),
    "merge": lambda path, out: rlx.merge([path, path.with_name("data-other")], out / "data", jobs=1),
    "split": lambda path, out: rlx.split(path, [0.5, 0.5], by="shard", output=[out / "data-1", out / "data-2"], jobs=1),
    "preprocess": lambda path, out: rlx.preprocess(path, out / "data-new", transform="clip_reward", num_workers=1),
    "push": lambda path, out: rlx.push(path, out / "data-new", jobs=1),
    "collect": _collect,
    "download": _download,
}


@pytest.mark.parametrize("verb", VERBS)
def test_operations_grow_with_the_shards(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves: list[int] = []
    save = Manifest.save

    def counted(self: Manifest, dataset: Path) -> None:
        saves.append(len(self.shards))
        save(self, dataset)

    opened, written = [], []
    for shards in (8, 16, 32):
        folder = tmp_path / str(shards)
        folder.mkdir()
        write_many(folder / "data-one", shards)
        write_many(folder / "data-other", shards)
        with monkeypatch.context() as patch, opened_files() as files:
            patch.setattr(Manifest, "save", counted)
            # Nothing is listed before the end because time has passed, so that the count is the same on every machine.
            patch.setattr(dataset_writer, "CHEAP_LISTING_S", -1.0)
            patch.setattr(dataset_writer, "LISTING_SHARE", 1e-9)
            saves.clear()
            VERBS[verb](folder / "data-one", folder)
        opened.append(len(files))
        written.append(len(saves))
    once, twice = opened[1] - opened[0], opened[2] - opened[1]
    assert twice <= 2.2 * max(once, 1), opened
    assert written[2] == written[0], "manifests are written as often for few shards as for many"


@pytest.mark.parametrize("store", ["zarr", "memmap"])
def test_tables_are_read_at_once_as_they_are_one_by_one(store: str, tmp_path: Path) -> None:
    blocks = [[make_block([3, 5], schema=LARGE)], [make_block([4], first_episode=2, schema=LARGE)]]
    codec = "none" if store == "memmap" else "zstd-dict"
    dataset = write_dataset(tmp_path / "data", blocks, schema=LARGE, store=store, codec=codec)
    records = dataset.manifest.shards
    found = Trajectories.load_all(
        store_named(store), [str(shard_directory(dataset.path, record.name)) for record in records], records
    )
    slow = Trajectories.concatenate([dataset.shard_table(number) for number in range(len(records))])
    assert found is not None
    for name, column in slow.columns().items():
        assert found.columns()[name].dtype == column.dtype
        assert np.array_equal(found.columns()[name], column)
    (dataset.path / "shards" / "00001" / dataset_file(store)).write_bytes(b"")
    assert (
        Trajectories.load_all(
            store_named(store), [str(shard_directory(dataset.path, record.name)) for record in records], records
        )
        is None
    )


def dataset_file(store: str) -> str:
    return "trajectories/length.memmap" if store == "memmap" else "trajectories/length/c/0"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def test_indented_json_holds_numbers_of_numpy() -> None:
    value = {"seed": np.int64(3), "size": np.uint8(4), "share": np.float64(0.5), "half": np.float32(0.25)}
    assert json.loads(indented(value)) == {"seed": 3, "size": 4, "share": 0.5, "half": 0.25}


@given(JSON)
def test_indented_json_is_that_of_the_standard_library(value: Any) -> None:
    assert indented(value) == json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)


def test_a_manifest_is_encoded_as_by_the_standard_library(tmp_path: Path) -> None:
    manifest = Manifest.load(write_many(tmp_path / "data", 3))
    body = json.loads(manifest.encode())
    crc = body.pop("crc32c")
    plain = json.dumps(body, indent=1, ensure_ascii=False).encode()[:-2]
    assert manifest.encode() == plain + b',\n "crc32c": "%s"\n}\n' % crc.encode()
    assert Manifest.parse(manifest.encode(), "x") == manifest
