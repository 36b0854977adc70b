"""Rows gathered over all shards by one index are those that each shard's own reader gives."""

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.schema import Role
from rlx.store import shards as shards_module
from rlx.store.dataset import Dataset
from tests.factories import LARGE, make_block, write_dataset

STEPS = 24


def parts(folder: Path, number: int, store: str, codec: str) -> Dataset:
    """Return a dataset of three shards, each with trajectories of 3 and 5 steps."""
    blocks = [[make_block([3, 5], first_episode=6 * number + 2 * shard, schema=LARGE)] for shard in range(3)]
    return write_dataset(folder / f"part{number}", blocks, schema=LARGE, store=store, codec=codec)


@pytest.fixture(scope="module", params=["zarr:zstd-dict", "zarr:zstd", "zarr:lz4", "memmap:none", "merged"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("data")
    if request.param != "merged":
        return parts(folder, 0, *request.param.split(":"))
    # Every part keeps its own dictionary.
    rlx.merge([parts(folder, number, "zarr", "zstd-dict").path for number in range(2)], folder / "merged")
    return Dataset(folder / "merged")


def check(dataset: Dataset, steps: list[int]) -> None:
    """Compare fields at steps with what the reader of each shard gives, one row after the other."""
    reader, found = dataset.steps, np.array(steps, np.int64)
    places = reader.locate(found)
    shards = reader._shards
    for name, (rows, after) in reader.read_all(places).items():
        field = shards.schema[name]
        if name in ("terminated", "truncated"):
            continue
        for i, step in enumerate(steps):
            shard, trajectory = int(places.shard[i]), int(places.trajectory[i])
            local = step - int(shards.first_step[shard])
            if field.role == Role.OBSERVATION:
                local = step + trajectory - int(shards.first_row[shard])
                assert after is not None
                assert np.array_equal(after[i], shards.array(shard, name).read(np.array([local + 1]))[0])
            assert np.array_equal(rows[i], shards.array(shard, name).read(np.array([local]))[0])


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.integers(0, STEPS - 1), max_size=12) | st.builds(range, st.integers(0, 9), st.integers(10, 24))
)
def test_rows_of_all_shards(dataset: Dataset, steps: list[int]) -> None:
    check(dataset, list(steps))


def test_threads_read_while_files_are_closed(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "MAX_MAPS", 3)
    again = Dataset(dataset.path)
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(20):
                check(again, rng.integers(STEPS, size=5).tolist())
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
