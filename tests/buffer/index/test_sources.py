"""Trajectories of two sources never join, whatever ids they bring."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.slices import SliceSampler
from rlx.buffer.storage.compressed import CompressedStorage
from rlx.buffer.storage.lists import ListStorage
from rlx.buffer.storage.ring import RingStorage
from rlx.buffer.storage.tensors import LazyMemmapStorage, LazyTensorStorage
from rlx.collector import Collector
from tests.buffer.index.sources import Collected, Recorded, check_index

STORAGES: dict[str, Callable[[int, int, Path], RingStorage]] = {
    "list": lambda size, ndim, _: ListStorage(size, ndim=ndim),
    "tensor": lambda size, ndim, _: LazyTensorStorage(size, ndim=ndim),
    "memmap": lambda size, ndim, path: LazyMemmapStorage(size, ndim=ndim, scratch_dir=path, existsok=True),
    "compressed": lambda size, ndim, _: CompressedStorage(size, ndim=ndim),
}
LANES: dict[int, tuple[int, ...]] = {1: (), 2: (3,), 3: (2, 2)}


@pytest.mark.parametrize("name", STORAGES)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    ndim=st.integers(1, 3),
    size=st.integers(4, 60),
    lengths=st.integers(1, 9),
    blind=st.booleans(),
    alike=st.booleans(),
)
def test_no_slice_crosses_from_one_source_into_another(
    name: str, tmp_path: Path, seed: int, ndim: int, size: int, lengths: int, blind: bool, alike: bool
) -> None:
    rng = np.random.default_rng(seed)
    lanes = LANES[ndim]
    image = 1024 if name == "compressed" else 0
    storage = STORAGES[name](size * int(np.prod(lanes, dtype=np.int64)), ndim, tmp_path)
    buffer = ReplayBuffer(storage=storage)
    sources: list[Any] = []
    makers: list[Callable[[int], Any]] = [
        lambda number: Collected(number, lanes, lengths, says_init=True, alike=alike),
        lambda number: Recorded(number, lanes, lengths, rng),
        lambda number: Collected(number, lanes, lengths, says_init=False, alike=alike),
    ][: 1 if blind else 3]  # strangers whose observations are all the same cannot be told apart by anybody
    if blind:
        sources.append(Recorded(0, lanes, lengths, rng))
    for _ in range(int(rng.integers(2, 14))):
        if not sources or rng.random() < 0.3:
            sources.append(makers[rng.integers(len(makers))](len(sources)))
        source = sources[rng.integers(len(sources))]
        buffer.extend(source.take(int(rng.integers(1, min(12, size + 1))), blind=blind, image=image))
        if blind or rng.random() < 0.3:  # what several sources had in common is forgotten if nobody asks
            storage.index().elapsed(np.empty(0, np.int64))
        if rng.random() < 0.1:
            file = io.BytesIO()
            torch.save(buffer.state_dict(), file)
            file.seek(0)
            buffer.load_state_dict(torch.load(file, weights_only=True))
    told = {number for number, source in enumerate(sources) if isinstance(source, Collected) and not blind}
    check_index(storage, storage.index(), complete=told)
    rows = storage.row_at(np.arange(len(storage)))
    found = storage.get(rows)
    starts = storage.index().at_reset(rows)
    for number, source in enumerate(sources):
        if isinstance(source, Collected) and source.says_init:
            mine = found["code"][:, 0].numpy() == number
            assert (starts[mine] == (found["code"][:, 2].numpy() == 0)[mine]).all()


def test_collectors_in_turn_and_one_that_was_shut_down_in_mid_episode() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), sampler=SliceSampler(slice_len=4, seed=0))
    with Collector("CartPole-v1", frames_per_batch=25, total_frames=-1) as first:
        second = Collector("CartPole-v1", frames_per_batch=25, total_frames=-1, seed=1)
        batches = iter(first), iter(second)
        for turn in range(12):
            buffer.extend(next(batches[turn % 2]))
    with second:
        buffer.extend(next(batches[1]))
    slices = buffer.sample(2000).reshape(-1, 4)
    assert (slices["next", "observation"][:, :-1] == slices["observation"][:, 1:]).all()
    starts, lengths = buffer.storage.index().trajectories()
    assert int(lengths.sum()) == len(buffer) == 13 * 25
    is_init = buffer.storage.get(starts)["is_init"].flatten()
    assert is_init.all()  # every piece was put together again
