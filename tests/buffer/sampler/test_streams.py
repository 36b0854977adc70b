"""Streams: slices that run on into other trajectories, held against a list of trajectories."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.buffer.sampler.slice_starts import SLICE_END
from rlx.buffer.sampler.streams import StreamSampler
from rlx.testing.sampler import ListedStorage, RingedStorage, SamplerContract, episodes, saved
from tests.buffer.sampler.chance import drawn_like
from tests.buffer.sampler.test_slices import rings


class TestStreams(SamplerContract):
    def make(self, **seeding: Any) -> StreamSampler:
        return StreamSampler(slice_len=4, **seeding)


class TestCarriedStreams(SamplerContract):
    def make(self, **seeding: Any) -> StreamSampler:
        return StreamSampler(num_slices=2, carry=True, **seeding)


def check(storage: ListedStorage, rows: list[int], init: list[bool]) -> None:
    """A slice continues in its trajectory, or where that ends, with the first step of another; ``is_init`` says so."""
    for i in range(1, len(rows)):
        (path, place), (before, end) = storage.place[rows[i]], storage.place[rows[i - 1]]
        if end + 1 < len(storage.paths[before]):
            assert (path, place) == (before, end + 1)
            assert not init[i]
        else:
            assert place == 0
            assert init[i]


@given(storage=rings(), slices=st.integers(1, 4), steps=st.integers(1, 30), carry=st.booleans(), seed=st.integers(0, 9))
def test_slices_run_on(storage: ListedStorage, slices: int, steps: int, carry: bool, seed: int) -> None:
    sampler = StreamSampler(slice_len=steps, carry=carry, seed=seed)
    found: list[Any] = []
    for _ in range(3):
        rows, info = sampler.sample(storage, slices * steps)
        init = info["is_init"].reshape(slices, steps)
        assert info["is_init"].shape == (slices * steps, 1)
        found.append((rows.reshape(slices, steps), init))
        assert carry or init[:, 0].all()
        stored = np.array([[storage.steps[row]["end"] != ""] for row in rows.tolist()])
        ends = np.append(info["is_init"][1:, 0], True)
        ends[steps - 1 :: steps] = True
        assert np.array_equal(info[SLICE_END], ends[:, None] & ~stored)
        assert np.array_equal(info["next", "done"], stored | info[SLICE_END])
    every, begins = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
    assert begins[:, 0].all()
    length = 3 * steps if carry else steps
    whole, marks = every.reshape(-1, length).tolist(), begins.reshape(-1, length).tolist()
    for piece, its in zip(whole, marks, strict=True):
        check(storage, piece, its)


@pytest.mark.parametrize("carry", [False, True])
def test_every_step_is_as_likely_at_every_place(carry: bool) -> None:
    storage = episodes(ListedStorage(20), 9, 1, 2, 5)
    sampler = StreamSampler(slice_len=6, carry=carry, seed=1)
    drawn = np.concatenate([sampler.sample(storage, 60)[0].reshape(10, 6) for _ in range(400)])
    for place in (0, 1, 5):
        rows = drawn[:, place]
        assert drawn_like(rows[::17] if carry else rows, dict.fromkeys(storage.steps, 1.0))


@given(data=st.data(), seed=st.integers(0, 9))
def test_streams_over_writes(data: st.DataObject, seed: int) -> None:
    """A stream goes on in a trajectory that grows, and begins anew where what it continued from was overwritten."""
    storage = RingedStorage(12)
    storage.write((0, ""), (0, ""))
    sampler = StreamSampler(num_slices=2, carry=True, seed=seed)
    last: list[Any] = [None, None]
    for time in range(12):
        ends = data.draw(st.lists(st.sampled_from(["", "", "truncated"]), max_size=4))
        written = storage.write(*[(time // 3, end) for end in ends])
        if len(written):
            sampler.extended(storage, written)
        last = [None if row in written else row for row in last]
        rows, info = sampler.sample(storage, 6)
        for lane, (piece, init) in enumerate(zip(rows.reshape(2, 3), info["is_init"].reshape(2, 3), strict=True)):
            begins: list[bool] = init.tolist()
            check(storage, piece.tolist(), begins)
            if last[lane] is None:
                assert init[0]
            else:
                check(storage, [last[lane], piece[0]], [True, init[0]])
            last[lane] = int(piece[-1])


def test_a_state_goes_on_in_the_same_streams() -> None:
    storage = episodes(ListedStorage(40), 9, 2, 5, 14)
    sampler = StreamSampler(slice_len=3, carry=True, seed=1)
    sampler.sample(storage, 12)
    resumed, twin = StreamSampler(slice_len=3, carry=True, seed=9), copy.deepcopy(sampler)
    resumed.load_state_dict(saved(sampler.state_dict()))
    for _ in range(4):
        rows, info = sampler.sample(storage, 12)
        for other in (resumed, twin):
            found, marks = other.sample(storage, 12)
            assert np.array_equal(found, rows)
            assert np.array_equal(marks["is_init"], info["is_init"])


def test_other_slices_begin_anew() -> None:
    storage = episodes(ListedStorage(40), 9, 2, 5, 14)
    sampler = StreamSampler(slice_len=3, carry=True, seed=1)
    sampler.sample(storage, 12)
    assert sampler.sample(storage, 6)[1]["is_init"].reshape(2, 3)[:, 0].all()
    assert sampler.shard(0, 2).sample(storage, 6)[1]["is_init"].reshape(2, 3)[:, 0].all()


@pytest.mark.parametrize("options", [{"slice_len": 3, "pad": "left"}, {"slice_len": 3, "span": 1}, {}])
def test_bad_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"StreamSampler takes no|expected either num_slices or slice_len"):
        StreamSampler(**options)
