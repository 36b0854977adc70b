"""Datasets at a URL: read as those that lie here, by a fraction of their bytes."""

import multiprocessing
import pickle
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tensordict import TensorDict

import rlx
from rlx.block import Block
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.slices import SliceSampler
from rlx.buffer.sampler.steps import RandomSampler
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.errors import (
    CorruptDatasetError,
    DatasetError,
    DatasetNotFoundError,
    ForbiddenError,
    ForkError,
    MissingExtraError,
    SourceError,
)
from rlx.files.bucket import Bucket
from rlx.files.checksum import FileStat
from rlx.files.disk_cache import PAGE_BYTES
from rlx.files.remote_files import Traffic, small_files
from rlx.progress import Silent
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from rlx.store.layout import listed_files
from rlx.store.shard_file import CRC_BYTES, INDEX_ENTRY_BYTES
from rlx.store.ted import to_rows
from rlx.verbs.push import push
from tests.contracts.store import FAST_DISK, SETTINGS, assert_same_block, blocks_as_one, experiences, oracle
from tests.factories import LARGE, make_block, relist, write_dataset
from tests.gcs_server import Fault, GcsServer

KEYS = ("bytes", "crc32c")
KINDS = [("zarr", "zstd-dict"), ("zarr", "zstd"), ("zarr", "lz4"), ("zarr", "none"), ("memmap", "none")]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=FAST_DISK) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[GcsServer]:
    with GcsServer(folder) as server:
        yield server


def same(one: TensorDict, other: TensorDict) -> bool:
    """Whether two TensorDicts hold the same, to the bit and the dtype."""
    mine, theirs = one.flatten_keys("/"), other.flatten_keys("/")
    keys = set(mine.keys())
    return (
        one.batch_size == other.batch_size
        and keys == set(theirs.keys())
        and all(_same_rows(to_rows(mine.get(key)), to_rows(theirs.get(key))) for key in keys)
    )


def _same_rows(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    equal = np.array_equal(one, other) if one.dtype == object else one.tobytes() == other.tobytes()
    return one.dtype == other.dtype and one.shape == other.shape and equal


@pytest.mark.parametrize(("store", "codec"), KINDS)
def test_any_index_reads_what_the_same_dataset_gives_here(
    store: str, codec: str, server: GcsServer, folder: Path
) -> None:
    @SETTINGS
    @given(experiences(), st.data(), st.sampled_from([0, 3 * PAGE_BYTES, 2**24]))
    def check(experience: tuple[Schema, list[list[Block]]], data: st.DataObject, cache_bytes: int) -> None:
        schema, shards = experience
        shutil.rmtree(folder / "set", ignore_errors=True)
        local = write_dataset(folder / "set", shards, schema=schema, store=store, codec=codec)
        remote = rlx.open(f"{server.url}/set", cache_bytes=cache_bytes)
        total = len(local)
        assert (len(remote), remote.manifest) == (total, local.manifest)
        for _ in range(2):
            picked = data.draw(st.lists(st.integers(-total, total - 1), max_size=20))
            assert same(remote[picked], local[picked])
        cutout = data.draw(st.slices(total))
        assert same(remote[cutout], local[cutout])
        one = data.draw(st.integers(-total, total - 1))
        assert same(remote[one], local[one])
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=total, max_size=total)))
        assert same(remote[mask], local[mask])
        ahead = remote.reading_ahead()
        assert ahead is not None
        steps = np.array(picked, np.int64) % total
        held = ahead[1].hold(steps) if len(steps) else None
        assert same(ahead[0][steps], local[steps])
        assert same(ahead[0][cutout], local[cutout])
        if held is not None:
            held.release()
        assert ahead[1].memory.bytes == 0
        # Not only the same as here: what was written.
        whole = [block for blocks in shards for block in blocks]
        assert remote[one]["next", "reward"].item() == oracle(schema, whole, one % total)["next/reward"]
        for name, column in local.trajectories.columns().items():
            assert np.array_equal(remote.trajectories.columns()[name], column)

    check()


@pytest.mark.parametrize(("store", "codec"), KINDS)
def test_blocks_are_those_of_the_same_dataset_here(store: str, codec: str, server: GcsServer, folder: Path) -> None:
    shutil.rmtree(folder / "set", ignore_errors=True)
    blocks = [[make_block((40, 1, 7), schema=LARGE)], [make_block((9,), first_episode=3, schema=LARGE)]]
    local = write_dataset(folder / "set", blocks, schema=LARGE, store=store, codec=codec)
    remote = rlx.open(f"{server.url}/set", verify=True)
    for max_steps in (5, 4096):
        found = blocks_as_one(list(remote.blocks(max_steps)), LARGE)
        assert_same_block(found, blocks_as_one(list(local.blocks(max_steps)), LARGE))


@pytest.fixture
def large(folder: Path) -> Dataset:
    """Two shards of pictures, half a megabyte each, with indices of several pages."""
    shutil.rmtree(folder / "large", ignore_errors=True)
    rng = np.random.default_rng(0)
    shards = []
    for number in range(2):
        block = make_block([300] * 10, first_episode=10 * number, schema=LARGE)
        noise = rng.integers(0, 2**16, (len(block.data["observation"]), 20, 10), dtype=np.uint16)
        block.data["observation"][:, :, :10] = noise
        shards.append([block])
    return write_dataset(folder / "large", shards, schema=LARGE, codec="zstd-dict")


def test_one_transition_costs_a_fraction_of_its_shard(large: Dataset, server: GcsServer) -> None:
    remote = rlx.open(f"{server.url}/large")
    assert remote.traffic == Traffic(0, 0)
    table = len(remote.trajectories) and remote.traffic
    assert isinstance(table, Traffic)
    assert table.requests == 2 * 8
    asked = len(server.requests)
    assert same(remote[1234], large[1234])
    shard = large.manifest.shards[0]
    spent = remote.traffic.bytes - table.bytes
    assert shard.bytes > 1_000_000
    # One page of actions, one of rewards, one of the index, one or two of frames; and zarr.json, with its dictionary.
    described = shard.files["observation/zarr.json"].bytes
    assert spent - described <= 5 * PAGE_BYTES < shard.bytes / 10
    got = [request for request in server.requests[asked:] if request.method == "GET"]
    assert len(got) == remote.traffic.requests - table.requests <= 7
    assert all(request.range for request in got)
    before = remote.traffic
    assert same(remote[[1234, 1234]], large[[1234, 1234]])
    assert remote.traffic == before


@pytest.mark.parametrize("kind", ["whole", "damaged", "cut", "forbidden", "endless"])
def test_small_files_come_together(kind: str, large: Dataset, server: GcsServer) -> None:
    files = listed_files(large.manifest)
    name, names = small_files(*({name: getattr(file, key) for name, file in files.items()} for key in KEYS))
    content = bytearray(b"".join((large.path / name).read_bytes() for name in names))
    content[5] ^= kind == "damaged"
    (large.path / name).write_bytes(content[: -1 if kind == "cut" else None])
    if kind in ("forbidden", "endless"):
        fault = Fault(status=403) if kind == "forbidden" else Fault(ignore_range=True, headers={"Content-Length": None})
        server.fault(f"large/{name}", fault)
    remote = rlx.open(f"{server.url}/large")
    for column, rows in large.trajectories.columns().items():
        assert np.array_equal(remote.trajectories.columns()[column], rows)
    assert remote.traffic.requests == {"whole": 1, "damaged": 2}.get(kind, remote.traffic.requests)
    assert same(remote[[5, 4000]], large[[5, 4000]])


def test_no_field_waits_for_another(large: Dataset, server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = rlx.open(f"{server.url}/large")
    assert len(remote.trajectories) == 20
    waiting: list[str] = []
    read, steps = Bucket.read, threading.Barrier(3, timeout=5)

    def together(self: Bucket, name: str, start: int, stop: int) -> tuple[bytes, FileStat]:
        waiting.append(name)
        if len(waiting) in (2, 3, 4):  # behind that of zarr.json: the index of the frames, actions and rewards
            steps.wait()
        return read(self, name, start, stop)

    monkeypatch.setattr(Bucket, "read", together)
    assert same(remote[1234], large[1234])
    assert {name.split("/")[2] for name in waiting[1:4]} == {"observation", "action", "reward"}
    assert same(remote[1234], large[1234])


def test_a_slice_comes_by_few_requests(large: Dataset, server: GcsServer) -> None:
    remote = rlx.open(f"{server.url}/large")
    before = (len(remote.trajectories), remote.traffic)[1]
    assert same(remote[600:664], large[600:664])
    frames = sum(file.bytes for name, file in large.manifest.shards[0].files.items() if "/c/" in name) // 3000 * 65
    assert remote.traffic.requests - before.requests <= 6
    assert remote.traffic.bytes - before.bytes <= frames + 6 * PAGE_BYTES + _described(large)


def _described(dataset: Dataset) -> int:
    return dataset.manifest.shards[0].files["observation/zarr.json"].bytes


def test_a_batch_of_several_shards(large: Dataset, server: GcsServer) -> None:
    remote = rlx.open(f"{server.url}/large", cache_bytes=0)
    steps = np.random.default_rng(0).integers(0, len(large), 128)
    assert same(remote[steps], large[steps])
    before = remote.traffic
    assert same(remote[steps], large[steps])
    assert remote.traffic.requests > before.requests


def test_the_cache_is_bounded(large: Dataset, server: GcsServer) -> None:
    remote = rlx.open(f"{server.url}/large", cache_bytes=10 * PAGE_BYTES)
    assert same(remote[:], large[:])
    assert remote._root.files._cache.bytes <= 10 * PAGE_BYTES  # type: ignore[union-attr]
    assert remote.traffic.bytes < 1.2 * large.manifest.bytes


def test_buffers_sample_from_it_as_from_one_here(large: Dataset, server: GcsServer) -> None:
    remote = rlx.open(f"{server.url}/large")
    for make in (lambda: RandomSampler(seed=3), lambda: SliceSampler(slice_len=16, seed=3)):
        here, there = (
            ReplayBuffer(storage=DatasetStorage(dataset), sampler=make(), batch_size=64) for dataset in (large, remote)
        )
        for _ in range(3):
            assert same(there.sample(), here.sample())


def test_it_can_be_sent_to_another_process(large: Dataset, server: GcsServer) -> None:
    remote = rlx.open(f"{server.url}/large", cache_bytes=12345)
    copied = pickle.loads(pickle.dumps(remote))
    assert same(copied[7], large[7])
    assert copied._root.files.cache_bytes == 12345


@pytest.mark.parametrize("kind", ["bucket", "container"])
def test_in_a_bucket(pong: Path, kind: str, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue(kind)
    push(pong, f"{bucket}/pong", progress=Silent())
    local, remote = rlx.open(pong), rlx.open(f"{bucket}/pong/", verify=True)
    steps = np.random.default_rng(0).integers(0, len(local), 40)
    assert same(remote[steps], local[steps])
    assert same(remote[700:764], local[700:764])
    assert repr(remote) == repr(local).replace(str(pong), f"{bucket}/pong")
    assert (remote.traffic.requests > 0, local.traffic) == (True, Traffic())


def test_a_file_url_is_a_path(pong: Path) -> None:
    assert rlx.open(pong.as_uri()).path == pong


def test_what_needs_a_directory_says_so(large: Dataset, server: GcsServer) -> None:
    del large
    remote = rlx.open(f"{server.url}/large")
    with pytest.raises(DatasetError, match="is not on this machine") as failed:
        _ = remote.path
    assert failed.value.hint == f"rlx pull {server.url}/large"


def test_datasets_that_cannot_be_had(server: GcsServer, large: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    del large
    with pytest.raises(DatasetNotFoundError, match=r"no dataset at .*/nothing: expected rlx\.json in it"):
        rlx.open(f"{server.url}/nothing")
    server.fault("large/rlx.json", Fault(status=403))
    with pytest.raises(ForbiddenError):
        rlx.open(f"{server.url}/large")
    with pytest.raises(SourceError, match="hdfs:// is not supported"):
        rlx.open("hdfs://cluster/set")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError):
        rlx.open(f"{server.url}/large")


def test_a_damaged_index_is_not_believed(large: Dataset, server: GcsServer) -> None:
    path = large.path / "shards/00000/observation/c/0/0/0"
    rows = large.manifest.shards[0].steps + large.manifest.shards[0].trajectories
    content = bytearray(path.read_bytes())
    start = len(content) - CRC_BYTES - rows * INDEX_ENTRY_BYTES
    content[start : start + 16] = (0).to_bytes(8, "little") + (10**6).to_bytes(8, "little")
    content[start + 16 : start + 32] = (2**63).to_bytes(8, "little") + (100).to_bytes(8, "little")
    content[start + 64 : start + 72] = (0).to_bytes(8, "little")
    path.write_bytes(content)
    remote = rlx.open(f"{server.url}/large")
    before = (remote[2999], remote.traffic)[1]
    for step in (0, 1, 4):
        with pytest.raises(CorruptDatasetError, match=r"observation/c/0/0/0 is damaged|decoded|compressed"):
            remote[step]
    found = remote.reading_ahead()
    assert found is not None
    far, ahead = found
    for step in (0, 1):
        held = ahead.hold(np.array([step]))
        assert ahead.memory.bytes < 300_000
        with pytest.raises(CorruptDatasetError, match=r"decoded|compressed"):
            far[step]
        held.release()
    assert remote.traffic.bytes - before.bytes < 500_000


def test_an_interrupted_release_leaves_nobody_waiting(
    large: Dataset, server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rlx.open(f"{server.url}/large").reading_ahead()
    assert found is not None
    far, ahead = found

    def interrupt() -> None:
        raise KeyboardInterrupt

    held = ahead.hold(np.arange(4))
    with ahead.reading(np.arange(4), ["action"]), monkeypatch.context() as patch:
        patch.setattr(ahead._lock, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            held.release()
    assert not ahead._is_dropping
    ahead.hold(np.arange(9)).release()
    assert same(far[:9], large[:9])


def test_a_flipped_bit_is_found_by_verify(large: Dataset, server: GcsServer) -> None:
    path = large.path / "shards/00001/action/c/0"
    content = bytearray(path.read_bytes())
    content[9] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptDatasetError, match=r"shards/00001/action/c/0 is damaged: crc32c") as failed:
        rlx.open(f"{server.url}/large", verify=True)
    assert failed.value.hint == "push a whole copy with `overwrite`"
    with pytest.raises(CorruptDatasetError):
        list(rlx.open(f"{server.url}/large").blocks())


@pytest.mark.parametrize("cut", [1, 10**5])
def test_a_truncated_file(cut: int, large: Dataset, server: GcsServer) -> None:
    fifth = large[5]
    for name in ("observation/c/0/0/0", "action/c/0"):
        path = large.path / "shards/00001" / name
        path.write_bytes(path.read_bytes()[:-cut])
    remote = rlx.open(f"{server.url}/large")
    assert same(remote[5], fifth)
    with pytest.raises(CorruptDatasetError, match=r"/c/0.* has .* bytes, expected"):
        remote[4000]


def test_a_manifest_that_lies_about_lengths(large: Dataset, server: GcsServer) -> None:
    path = large.path / "shards/00000/action/c/0"
    path.write_bytes(path.read_bytes()[:-8])
    relist(large.path)
    with pytest.raises(CorruptDatasetError, match=r"action/c/0 has 23,992 bytes, expected 24,000"):
        rlx.open(f"{server.url}/large")[0]


def test_after_a_fork_it_is_refused(large: Dataset, server: GcsServer) -> None:
    del large
    remote = rlx.open(f"{server.url}/large")
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_first, args=(remote, sender))
    child.start()
    assert receiver.poll(20)
    assert "multiprocessing_context" in receiver.recv()
    child.join()


def _first(remote: Dataset, sender: "multiprocessing.connection.Connection") -> None:
    try:
        remote[0]
    except ForkError as exc:
        sender.send(exc.hint)
