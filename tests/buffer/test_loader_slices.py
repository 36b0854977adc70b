"""Contexts and streams of a loader, held against brute force: trajectory by trajectory, step by step."""

from collections import Counter
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase

import rlx
from rlx.buffer import LazyTensorStorage, ReplayBuffer
from rlx.buffer.loader import Loader
from rlx.buffer.loader_reading import concatenated

INIT, SLICE_END = "is_init", ("collector", "slice_end")
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def buffer_of(lengths: list[int], *, ends: list[bool] | None = None, extra: bool = False) -> ReplayBuffer:
    """A buffer of trajectories of these lengths, whose actions number its steps; it has no ``is_init`` but extra."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(sum(lengths)))
    first = 0
    for number, length in enumerate(lengths):
        at = torch.arange(length)
        done = ((at == length - 1) & (ends is None or ends[number]))[:, None]
        after = {"observation": at + first + 1, "reward": at[:, None].float(), "done": done, "terminated": done}
        steps = {
            "observation": at + first,
            "action": at + first,
            "collector": {"traj_ids": torch.full((length,), number)},
            "next": {**after, "truncated": torch.zeros_like(done)},
        }
        if extra:
            steps[INIT] = (at == 0)[:, None]
        buffer.extend(TensorDict(steps, [length]))
        first += length
    return buffer


def place_of(lengths: list[int]) -> list[tuple[int, int]]:
    """The trajectory and the place in it of every step."""
    return [(number, at) for number, length in enumerate(lengths) for at in range(length)]


def check_context(steps: TensorDictBase, lengths: list[int], pad: Literal["left", "right"]) -> int:
    """A context has what brute force finds around the step that it is drawn by; return that step."""
    action, mask = steps["action"].tolist(), steps["collector", "mask"].tolist()
    step = action[0 if pad == "right" else -1]
    number, at = place_of(lengths)[step]
    places = range(at, at + len(action)) if pad == "right" else range(at - len(action) + 1, at + 1)
    first = step - at
    assert mask == [0 <= place < lengths[number] for place in places]
    assert action == [first + min(max(place, 0), lengths[number] - 1) for place in places]
    return int(step)


@settings(max_examples=40, deadline=None)
@given(
    lengths=LENGTHS,
    slice_len=st.integers(1, 6),
    count=st.integers(1, 5),
    pad=st.sampled_from(["left", "right"]),
    weighting=st.sampled_from(["step", "trajectory", None]),
    shuffle=st.booleans(),
)
def test_an_epoch_of_contexts(
    lengths: list[int], slice_len: int, count: int, pad: Any, weighting: Any, shuffle: bool
) -> None:
    how = {"pad": pad, "weighting": weighting, "shuffle": shuffle, "drop_last": False, "prefetch": 0}
    loader = Loader(buffer_of(lengths), count * slice_len, slice_len=slice_len, **how)
    assert loader.left_out == 0
    for _ in range(2):
        steps = [check_context(row, lengths, pad) for batch in loader for row in batch]
        if weighting != "trajectory":
            assert sorted(steps) == list(range(sum(lengths)))
        else:
            assert sorted(place_of(lengths)[step][0] for step in steps) == list(range(len(lengths)))
        if not shuffle:
            last = np.cumsum(lengths) - 1
            first = {"right": last - lengths + 1, "left": last}[pad].tolist()
            assert steps == (first if weighting == "trajectory" else list(range(sum(lengths))))


def test_one_context_of_a_trajectory_is_any_of_its() -> None:
    loader = Loader(buffer_of([6]), 4, slice_len=4, pad="left", weighting="trajectory", prefetch=0)
    drawn = Counter(int(batch["action"][0, -1]) for _ in range(120) for batch in loader)
    assert sorted(drawn) == list(range(6))
    assert min(drawn.values()) > 5


def test_slices_at_every_start() -> None:
    loader = Loader(buffer_of([5, 2, 7]), 4, slice_len=4, weighting="step", shuffle=False, prefetch=0)
    assert [batch["action"][0, 0].item() for batch in loader] == [0, 1, 7, 8, 9, 10]


def check_stream(steps: TensorDictBase, lengths: list[int], ends: list[bool], *, begins: bool) -> None:
    """A slice of a stream continues in its trajectory, or with the first step of another one."""
    action, init = steps["action"].tolist(), steps[INIT].flatten().tolist()
    places = [place_of(lengths)[step] for step in action]
    last = [at == lengths[number] - 1 for number, at in places]
    assert init == [at == 0 or (begins and i == 0) for i, (_, at) in enumerate(places)]
    for i in range(1, len(action)):
        assert places[i][1] == 0 if last[i - 1] else action[i] == action[i - 1] + 1
    for i, (number, _) in enumerate(places):
        assert steps["next", "done"][i].item() == last[i]
        assert steps["next", "truncated"][i].item() == (last[i] and not ends[number])
        assert steps[SLICE_END][i].item() == (last[i] and not ends[number])


@settings(max_examples=40, deadline=None)
@given(
    cases=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=8),
    slice_len=st.integers(1, 12),
    count=st.integers(1, 3),
    shuffle=st.booleans(),
    extra=st.booleans(),
    replacement=st.booleans(),
)
def test_an_epoch_of_streams(
    cases: list[tuple[int, bool]], slice_len: int, count: int, shuffle: bool, extra: bool, replacement: bool
) -> None:
    lengths, ends = [list(column) for column in zip(*cases, strict=True)]
    total, slice_len = sum(lengths), min(slice_len, sum(lengths))
    how: dict[str, Any] = {"shuffle": shuffle or replacement, "replacement": replacement, "prefetch": 0}
    how |= {"batches": 5} if replacement else {"drop_last": False}
    buffer = buffer_of(lengths, ends=ends, extra=extra)
    loader = Loader(buffer, count * slice_len, slice_len=slice_len, stream=True, **how)
    for _ in range(2):
        rows = [row for batch in loader for row in batch]
        for row in rows:
            check_stream(row, lengths, ends, begins=True)
        drawn = Counter(step for row in rows for step in row["action"].tolist())
        if not replacement:
            assert len(rows) == total // slice_len
            assert max(drawn.values()) == 1
        if not shuffle and not replacement:
            assert list(drawn) == list(range(len(drawn)))


@settings(max_examples=40, deadline=None)
@given(
    cases=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=3, max_size=8),
    more=st.lists(st.integers(1, 9), max_size=3),
    count=st.integers(1, 3),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_carried_streams(
    cases: list[tuple[int, bool]], more: list[int], count: int, shuffle: bool, data: st.DataObject
) -> None:
    lengths, ends = [list(column) for column in zip(*cases, strict=True)]
    slice_len = data.draw(st.integers(1, sum(lengths) // count))
    if sum(more) < slice_len:
        more = []
    sources = [buffer_of(lengths, ends=ends), *([buffer_of(more)] if more else [])]
    how: dict[str, Any] = {"shuffle": shuffle, "prefetch": 0}
    loader = Loader(sources, count * slice_len, slice_len=slice_len, stream=True, carry=True, **how)
    for _ in range(2):
        batches = list(loader)
        drawn: Counter[tuple[int, int]] = Counter()
        for lane in range(count):
            source = [batch["collector", "dataset"][lane, 0].item() if more else 0 for batch in batches]
            for number in set(source):
                mine = [batch[lane] for batch, its in zip(batches, source, strict=True) if its == number]
                here = (lengths, ends) if number == 0 else (more, [True] * len(more))
                check_stream(concatenated(mine), *here, begins=True)
                drawn.update((number, step) for row in mine for step in row["action"].tolist())
        assert max(drawn.values()) == 1


def test_ranks_carry_their_own_streams() -> None:
    buffer = buffer_of([5, 9, 2, 8, 8])
    how: dict[str, Any] = {"slice_len": 2, "stream": True, "carry": True, "prefetch": 0}
    whole = list(Loader(buffer, 8, **how))
    parts = [list(Loader(buffer, 8, rank=rank, world_size=2, **how)) for rank in range(2)]
    for number, batch in enumerate(whole):
        assert (concatenated([part[number] for part in parts]) == batch).all()
    assert whole[0][INIT][:, 0].all()
    assert not all(batch[INIT][:, 0].all() for batch in whole[1:])


@pytest.mark.parametrize("how", [{"pad": "left"}, {"stream": True}, {"stream": True, "carry": True}])
def test_batches_of_a_dataset_are_those_of_memory(how: dict[str, Any], tmp_path: Any) -> None:
    """Planned batches, which a dataset has, have the marks of those that are read one by one."""
    buffer = buffer_of([5, 9, 2, 8, 8])
    buffer.save_dataset(tmp_path / "data")
    here = Loader(buffer, 8, slice_len=4, prefetch=0, **how)
    there = Loader(rlx.open(tmp_path / "data"), 8, slice_len=4, prefetch=0, **how)
    for one, other in zip(here, there, strict=True):
        keys: Any = one.keys(True, True)
        assert all((one[key] == other[key]).all() for key in keys)
