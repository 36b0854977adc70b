"""How much a compressed storage keeps, and that it keeps what was written."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlx.buffer.storage import compressed
from rlx.buffer.storage.compressed import CompressedStorage, FrameLog
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.testing.storage import numbers_of, steps
from tests.kernels import HOW, reading

SHAPE = (64, 64)


def frames_in(storage: CompressedStorage) -> int:
    """How many frames are kept."""
    return len(np.unique(np.concatenate([refs["place"][refs["place"] >= 0] for refs in storage._refs.values()])))


def moving(count: int, start: int = 0) -> torch.Tensor:
    """[count, *SHAPE] a bar that moves over a fixed background."""
    background = torch.from_numpy(np.random.default_rng(0).integers(0, 255, SHAPE, np.uint8))
    frames = background.repeat(count, 1, 1)
    for i in range(count):
        frames[i, (start + i) % SHAPE[0]] = 255
    return frames


def episode(count: int, start: int = 0) -> TensorDict:
    frames = moving(count + 1, start)
    return TensorDict({"observation": frames[:-1], "next": {"observation": frames[1:]}}, [count])


@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_next_is_shared_with_the_observation_that_follows(chunk: int) -> None:
    storage = CompressedStorage(100)
    for first in range(0, 50, chunk):
        storage.append(steps(range(first, min(first + chunk, 50))))
    assert frames_in(storage) == 51


def test_lanes_share_each_with_itself() -> None:
    storage = CompressedStorage(100, ndim=2)
    for first in range(0, 20, 4):
        storage.append(steps(torch.arange(first, first + 4) + torch.tensor([[0], [100]])))
    assert frames_in(storage) == 2 * 21


def test_what_is_not_equal_is_not_shared() -> None:
    storage = CompressedStorage(10)
    written = steps(range(6))
    written["next", "observation"][2, 0, 0] += 1
    storage.append(written)
    found = storage.get(np.arange(6))
    assert torch.equal(found["next", "observation"], written["next", "observation"])
    assert torch.equal(found["observation"], written["observation"])
    assert frames_in(storage) == 8


def test_what_the_ring_overwrites_is_freed() -> None:
    log_bytes = []
    rng = np.random.default_rng(0)
    storage = CompressedStorage(400)
    for _ in range(40):
        noise = torch.from_numpy(rng.integers(0, 255, (101, 64, 64), np.uint8))
        storage.append(TensorDict({"observation": noise[:-1], "next": {"observation": noise[1:]}}, [100]))
        log_bytes.append(storage.nbytes)
    assert max(log_bytes) < 400 * 64 * 64 + 3 * 2**20
    rows = storage.row_at(np.arange(400))
    assert torch.equal(storage.get(rows[-100:])["observation"], noise[:-1])


def test_updates_free_what_they_replace() -> None:
    storage = CompressedStorage(8)
    storage.append(steps(range(8)))
    for number in range(200):
        storage.update(np.array([3]), steps([number]))
    assert numbers_of(storage, np.arange(8)) == [0, 1, 2, 199, 4, 5, 6, 7]
    assert frames_in(storage) == 9 + 2
    storage.empty()
    assert storage._logs["observation",].nbytes == 0


def test_a_dictionary_makes_later_frames_small() -> None:
    storage = CompressedStorage(12_000)
    for start in range(0, 10_000, 500):
        storage.append(episode(500, start))
    size = storage._refs["observation",]["size"]
    assert max(size[1_000], size[9_000]) < size[100] / 10
    rows = np.array([9_999, 3, 4_095, 4_096, 4_097, 9_000, 3, 4])  # written with both, and without one
    for how in HOW:
        with reading(how):
            found = storage.get(rows)
        expected = torch.cat([moving(1, row) for row in rows.tolist()])
        assert torch.equal(found["observation"], expected)
        assert torch.equal(found["next", "observation"], torch.cat([moving(1, row + 1) for row in rows.tolist()]))


def test_images_of_other_kinds() -> None:
    storage = CompressedStorage(10)
    written = TensorDict(
        {
            "observation": {"depth": torch.rand(6, 20, 20), "few": torch.rand(6, 3)},
            "mask": torch.rand(6, 1200) > 0.5,
            "next": {
                "observation": {"depth": torch.rand(6, 20, 20), "few": torch.rand(6, 3)},
                "only": torch.rand(6, 300),
            },
        },
        [6],
    )
    storage.append(written)
    found = storage.get(np.array([5, 2]))
    for key in written.keys(include_nested=True, leaves_only=True):
        assert torch.equal(found[key], written[key][[5, 2]]), key


class Film:
    """Steps of lanes that go through the frames of a film, stand still, or jump."""

    def __init__(self, lanes: tuple[int, ...], rng: np.random.Generator) -> None:
        shape = (int(rng.integers(16, 40)), 65)
        self.frames = np.tile(rng.integers(0, 9, shape, np.uint8), (500, 1, 1))
        self.frames[np.arange(500), np.arange(500) % shape[0]] = np.arange(500, dtype=np.uint16)[:, None] // 2
        self.frames[:100] = rng.integers(0, 255, (100, *shape), np.uint8)
        self.now = np.zeros(lanes, np.int64)
        self.rng = rng

    def steps(self, count: int) -> TensorDict:
        moves = self.rng.integers(0, 2, (*self.now.shape, count)).cumsum(-1)
        after = (self.now[..., None] + moves) % 500
        now = np.concatenate([self.now[..., None], after[..., :-1]], -1)
        now[self.rng.random(now.shape) < 0.1] = self.rng.integers(500)
        self.now = after[..., -1]
        mask = torch.from_numpy(self.rng.integers(0, 2, (*now.shape, 1100), np.uint8))
        here, there = torch.from_numpy(self.frames[now]), torch.from_numpy(self.frames[after])
        return TensorDict({"observation": here, "mask": mask, "next": {"observation": there}}, now.shape)


def users_of(storage: CompressedStorage, key: str) -> Counter[int]:
    """How many rows and lanes refer to a frame of each page."""
    refs = [ref for path, ref in storage._refs.items() if path[-1] == key]
    refs += [latest.refs for path, latest in storage._latest.items() if path == (key,)]
    return Counter(place >> 32 for ref in refs for place in ref["place"].tolist() if place >= 0)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("seed", "lanes"), [(0, ()), (1, (3,)), (2, ()), (3, (5,))])
def test_it_keeps_what_a_storage_of_tensors_keeps(
    how: str, seed: int, lanes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "_PAGE_BYTES", 6_000)
    monkeypatch.setattr(compressed, "_LEARNED", 24)
    rng = np.random.default_rng(seed)
    film, cuts = Film(lanes, rng), Film((), rng)
    cuts.frames = film.frames
    storage, other = CompressedStorage(200, ndim=1 + len(lanes)), LazyTensorStorage(200, ndim=1 + len(lanes))
    with reading(how):
        for _ in range(40):
            match rng.choice(["append", "update", "pickle", "empty"], p=[0.7, 0.23, 0.05, 0.02]):
                case "update" if len(storage):
                    rows = storage.row_at(rng.integers(0, len(storage), 20))
                    written = cuts.steps(len(rows))
                    storage.update(rows, written)
                    other.update(rows, written)
                case "pickle":
                    storage = pickle.loads(pickle.dumps(storage))
                case "empty":
                    storage.empty()
                    other.empty()
                case _:
                    written = film.steps(int(rng.integers(1, 25)))
                    assert (storage.append(written) == other.append(written)).all()
            rows = storage.row_at(rng.permutation(len(storage)))
            found, expected = storage.get(rows), other.get(rows)
            for key in expected.keys(include_nested=True, leaves_only=True):
                assert torch.equal(found[key], expected[key]), key
            for (key,), log in storage._logs.items():
                assert Counter(log._used) == users_of(storage, key)
                assert log._pages.keys() == log._codec_of.keys() == log._used.keys()


def test_frames_larger_than_a_page() -> None:
    log = FrameLog(3 * 2**20, level=1)
    frames = np.random.default_rng(0).integers(0, 255, (3, 3 * 2**20), np.uint8)
    found = log.append([frames])
    assert (log.read(found["place"][[2, 0, 1]], found["size"][[2, 0, 1]]) == frames[[2, 0, 1]]).all()
    log.exchange(np.empty(0, np.int64), found["place"])
    log.append([frames[:1]])
    assert log.nbytes < 2 * 3.1 * 2**20
