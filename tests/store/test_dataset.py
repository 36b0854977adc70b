import gc
import multiprocessing
import os
import pickle
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlx
from rlx.errors import CorruptDatasetError, DatasetNotFoundError
from rlx.store import shards
from rlx.store.dataset import Dataset
from tests.factories import LARGE, make_block, seen, write_dataset

# Two trajectories of 3 and 5 steps a shard, three shards: steps 0 to 23.
TRUTH = [1000 * episode + t for episode in range(6) for t in range((3, 5)[episode % 2])]


@pytest.fixture(params=["zarr", "memmap"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    codec = "zstd-dict" if request.param == "zarr" else "none"
    blocks = [[make_block([3, 5], first_episode=2 * shard, schema=LARGE)] for shard in range(3)]
    return write_dataset(tmp_path / "data", blocks, schema=LARGE, store=request.param, codec=codec)


def test_repr_says_what_it_is(dataset: Dataset) -> None:
    assert repr(dataset) == f"Dataset('Test/1', steps=24, trajectories=6, path='{dataset.path}')"


def test_it_is_opened_by_id(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_HOME", str(tmp_path))
    assert len(rlx.open("data")) == len(dataset)
    with pytest.raises(DatasetNotFoundError):
        rlx.open("nothing/1")


BAD = [24, -25, [0, 24], [True, False], np.zeros((2, 2), int), [0.5], "observation", None, True, 1.0]
BAD += [np.array([2**64 - 1], np.uint64), torch.zeros(2, 2, dtype=torch.int64), [[0], [1]], ...]


@pytest.mark.parametrize("index", BAD, ids=str)
def test_an_index_that_means_no_step(dataset: Dataset, index: object) -> None:
    with pytest.raises(IndexError):
        dataset[index]


@pytest.mark.parametrize("key", ["observation", ("next", "reward")], ids=str)
def test_a_key_is_refused_with_what_reads_it(dataset: Dataset, key: str | tuple[str, ...]) -> None:
    with pytest.raises(IndexError, match=re.escape(f"dataset[:][{key!r}] is a key of all steps")):
        dataset[key]
    assert len(dataset[:][key]) == len(dataset)


def test_what_is_read_belongs_to_the_reader(dataset: Dataset) -> None:
    for index in (slice(0, 3), [0, 2], 1):
        read = dataset[index]
        for name in read.flatten_keys("/").keys():  # noqa: SIM118
            read[tuple(name.split("/"))].fill_(1)
    assert seen(dataset, range(24)) == TRUTH


def test_more_shards_than_may_be_open(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_MAPS", 1)
    for steps in ([0, 23, 9, 1, 22, 10], [23, 0, 8]):
        assert seen(dataset, steps) == [TRUTH[step] for step in steps]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts the descriptors of Linux")
def test_open_files_hold_no_descriptors(dataset: Dataset) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert seen(dataset, range(24)) == TRUTH
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads the maps of Linux")
def test_maps_go_with_their_dataset(dataset: Dataset) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(dataset.path))

    opened = rlx.open(dataset.path)
    assert seen(opened, range(24)) == TRUTH
    assert mapped() > 0
    del opened
    gc.collect()
    assert mapped() == 0


def test_threads_share_a_dataset(dataset: Dataset) -> None:
    wrong: list[object] = []
    begin = threading.Barrier(8)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        begin.wait()
        for _ in range(40):
            steps = rng.integers(0, 24, rng.integers(1, 40)).tolist()
            if seen(dataset, steps) != [TRUTH[step] for step in steps]:
                wrong.append(steps)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_pickling_takes_the_path_along(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(Dataset("data"))
    assert len(pickled) < 1000
    monkeypatch.chdir("/")
    assert seen(pickle.loads(pickled), [9]) == [TRUTH[9]]
    assert len(dataset) == 24


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("dataset", "method"), [("zarr", "fork"), ("memmap", "fork"), ("zarr", "spawn")], indirect=["dataset"]
)
def test_other_processes_read_it(dataset: Dataset, method: str) -> None:
    steps = [23, 0, 5, 5, 11]
    assert seen(dataset, steps) == [TRUTH[step] for step in steps]
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(seen, (dataset, steps)) == [TRUTH[step] for step in steps]


def test_blocks_need_a_size(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="max_steps is 0"):
        next(dataset.blocks(0))


def test_blocks_are_verified(dataset: Dataset) -> None:
    path = dataset.path / dataset.shard_files(1)[0]
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    blocks = dataset.blocks()
    assert next(blocks).episodes.tolist() == [0, 1]
    with pytest.raises(CorruptDatasetError, match="is damaged: crc32c"):
        next(blocks)
    with pytest.raises(CorruptDatasetError, match="has crc32c"):
        rlx.open(dataset.path, verify=True)


def test_opening_looks_at_every_file_once(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {str(file) for file in (dataset.path / "shards").rglob("*") if file.is_file()}
    looks: Counter[str] = Counter()
    stat = os.stat

    def counted(path: Any, **options: Any) -> os.stat_result:
        looks[os.fspath(path)] += 1
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", counted)
    opened = Dataset(dataset.path)
    opened[np.arange(len(opened))]
    # The metadata of an array are small: its length is looked at once more before it is read.
    assert set(looks) >= files
    assert {looks[file] for file in files if not file.endswith("observation/zarr.json")} == {1}


def test_steps_by_a_list_of_numbers(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", [[make_block((3, 5))]])
    steps = dataset.__getitems__([0, 4, 4])
    assert [int(step["action"]) for step in steps] == dataset[[0, 4, 4]]["action"].tolist()


@pytest.mark.parametrize("name", ["observation", "reward"])
@pytest.mark.parametrize("kept", [0, 3])
def test_files_that_are_cut_off_are_named(name: str, kept: int, dataset: Dataset) -> None:
    for file in (dataset.path / "shards" / "00001").rglob("*"):
        if file.is_file() and name in str(file.relative_to(dataset.path)) and file.suffix != ".json":
            os.truncate(file, min(kept, file.stat().st_size))
    with pytest.raises(CorruptDatasetError, match=f"00001/{name}.* ({kept} bytes, expected|is empty, expected)"):
        Dataset(dataset.path)[:]
