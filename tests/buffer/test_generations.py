"""A priority that arrives after its step was overwritten is left out and counted, in every storage."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rlx.buffer import (
    CompressedStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

STORAGES = [CompressedStorage, LazyMemmapStorage, LazyTensorStorage, ListStorage]


def steps(start: int, count: int, lanes: int = 1) -> TensorDict:
    number = torch.arange(start, start + count).expand(lanes, count)
    made = TensorDict({"number": number, "next": {"reward": number[..., None].float()}}, [lanes, count])
    return made if lanes > 1 else made[0]


def full(kind: Any = TensorDictReplayBuffer, storage: Any = LazyTensorStorage, **options: Any) -> Any:
    """A buffer of 10 rows that are all written once."""
    buffer = kind(
        storage=storage(10), sampler=PrioritizedSampler(10, alpha=1.0, beta=0.0, seed=0), batch_size=30, **options
    )
    buffer.extend(steps(0, 10))
    return buffer


def as_tensordict(buffer: Any, batch: TensorDict, info: dict[Any, Any]) -> None:  # noqa: ARG001
    buffer.update_tensordict_priority(batch.set("td_error", torch.full((30,), 1e9)))


def as_copy(buffer: Any, batch: TensorDict, info: dict[Any, Any]) -> None:
    as_tensordict(buffer, batch.clone(), info)


def as_index(buffer: Any, batch: TensorDict, info: dict[Any, Any]) -> None:  # noqa: ARG001
    buffer.update_priority(batch["index"], torch.full((30,), 1e9))


def as_info(buffer: Any, batch: TensorDict, info: dict[Any, Any]) -> None:  # noqa: ARG001
    buffer.update_priority(info["index"], 1e9)


def as_generation(buffer: Any, batch: TensorDict, info: dict[Any, Any]) -> None:  # noqa: ARG001
    buffer.update_priority(info["index"].tolist(), torch.full((30,), 1e9), info["index_generation"].tolist())


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("update", [as_tensordict, as_copy, as_index, as_info, as_generation])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_late_priority_is_left_out(storage: Any, update: Any, prefetch: int) -> None:
    tracks = update in (as_copy, as_generation)
    buffer = full(storage=storage, prefetch=prefetch, writer=RoundRobinWriter(track_generations=tracks))
    buffer.sample()
    batch, info = buffer.sample(return_info=True)
    assert ("index_generation" in batch) == ("index_generation" in info) == tracks
    written = buffer.extend(steps(10, 4))
    buffer.sample()
    update(buffer, batch, info)
    assert buffer.stale_priorities == int((info["index"] < 4).sum()) > 0
    assert set(buffer.sample(200)["number"].tolist()) <= set(range(4, 10))  # which have almost all of the priority
    buffer.update_priority(written, 1e18)  # rows alone mean the present steps
    assert set(buffer.sample(200)["number"].tolist()) == set(range(10, 14))


def test_what_is_read_again_has_the_generation_of_what_is_there() -> None:
    """Batches that were read ahead and overwritten meanwhile hold the new steps."""
    buffer = full(prefetch=3)
    buffer.sample()
    buffer.extend(steps(10, 10))
    for _ in range(3):
        batch = buffer.sample()
        assert (batch["number"] >= 10).all()
        buffer.update_priority(batch["index"], 1.0)
    assert buffer.stale_priorities == 0


@pytest.mark.parametrize("what", ["empty", "load", "loads"])
def test_steps_of_another_content(what: str, tmp_path: Path) -> None:
    buffer = full()
    batch = buffer.sample()
    if what == "empty":
        buffer.empty()
        buffer.extend(steps(0, 10))
    elif what == "load":
        buffer.load_state_dict(copy.deepcopy(buffer.state_dict()))
    else:
        buffer.dumps(tmp_path / "saved")
        buffer.loads(tmp_path / "saved")
    buffer.update_priority(batch["index"], 5.0)
    assert buffer.stale_priorities == 30
    buffer.update_priority(buffer.sample()["index"], 5.0)
    assert buffer.stale_priorities == 30


def test_steps_that_are_changed_in_place_stay_the_same() -> None:
    buffer = full()
    batch = buffer.sample()
    buffer[:4] = steps(20, 4)
    buffer.update_priority(batch["index"], 5.0)
    assert buffer.stale_priorities == 0


def test_steps_that_replace_lower_ones() -> None:
    buffer = full(writer=TensorDictMaxValueWriter())
    batch = buffer.sample()
    rows = buffer.extend(steps(4, 4))  # of rank 4 to 7: they displace the lowest
    placed = rows[rows >= 0]
    assert len(placed)
    buffer.update_priority(batch["index"], 5.0)
    assert buffer.stale_priorities == int(torch.isin(batch["index"], placed).sum()) > 0


def test_slices_and_lanes() -> None:
    sampler = PrioritizedSliceSampler(20, 1.0, 0.0, slice_len=2, seed=0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20, ndim=2), sampler=sampler, batch_size=40)
    made = steps(0, 10, 2)
    made["next", "done"] = torch.zeros(2, 10, 1, dtype=torch.bool)
    buffer.extend(made)
    batch = buffer.sample()
    buffer.extend(made[:, :3])
    buffer.update_tensordict_priority(batch.set("td_error", torch.ones(40, 1)))
    assert buffer.stale_priorities == int((batch["index"] % 10 < 3).sum()) > 0


def test_rows_that_are_trajectories() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4),
        sampler=PrioritizedSampler(4, 1.0, 0.0, seed=0),
        writer=RoundRobinWriter(track_generations=True),
        batch_size=8,
    )
    buffer.extend(steps(0, 3, 4))
    batch = buffer.sample()
    assert batch["index_generation"].shape == (8, 3)
    buffer.extend(steps(0, 3, 2))
    buffer.update_tensordict_priority(batch.set("td_error", torch.ones(8, 3, 1)))
    assert buffer.stale_priorities == int((batch["index"][:, 0] < 2).sum()) > 0


@pytest.mark.parametrize("writer", [RoundRobinWriter, TensorDictRoundRobinWriter])
@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_any_sampler_may_track_them(writer: Any, kind: Any) -> None:
    buffer = kind(
        storage=LazyTensorStorage(4),
        sampler=SamplerWithoutReplacement(shuffle=False),
        writer=writer(track_generations=True),
        batch_size=4,
    )
    found = []
    for start in range(0, 12, 2):
        buffer.extend(steps(start, 2))
        batch, info = buffer.sample(return_info=True)
        assert torch.equal(batch["index_generation"], info["index_generation"])
        found.append(dict(zip(batch["index"].tolist(), batch["index_generation"].tolist(), strict=True)))
    assert found[1] == {0: 0, 1: 0, 2: 0, 3: 0}
    assert found[4] == {0: 2, 1: 2, 2: 1, 3: 1}


def test_wrong_numbers_of_generations() -> None:
    with pytest.raises(ValueError, match="expected 3 generations, found 2"):
        full().update_priority([0, 1, 2], 1.0, [0, 0])


@given(
    events=st.lists(
        st.one_of(st.integers(1, 25), st.lists(st.integers(0, 4), min_size=1, max_size=3), st.just("empty")),
        max_size=12,
    ),
    lanes=st.integers(1, 2),
)
def test_no_two_steps_of_a_row_have_the_same(events: list[Any], lanes: int) -> None:
    storage = LazyTensorStorage(5 * lanes, ndim=1 if lanes == 1 else 2)
    storage.append(steps(0, 1, lanes))
    seen, number = Counter[tuple[int, int]](), np.zeros(5 * lanes, np.int64)
    for event in [*events, 1]:
        if event == "empty":
            storage.empty()
            assert (storage.generations_of(np.arange(5 * lanes)) == -1).all()
            storage.append(steps(0, 1, lanes))
            written = np.arange(lanes) * 5
        elif isinstance(event, int):
            written = np.unique(storage.append(steps(0, event, lanes)))
        else:
            written = np.unique(np.array(event))
            written = written[storage.generations_of(written) >= 0]
            storage.replace(written, steps(0, len(written)))
        before, number = number.copy(), storage.generations_of(np.arange(5 * lanes))
        seen.update((row, int(number[row])) for row in written.tolist())
        kept = np.setdiff1d(np.flatnonzero(number >= 0), written)
        assert event == "empty" or (number[kept] == before[kept]).all()
    assert max(seen.values()) == 1
