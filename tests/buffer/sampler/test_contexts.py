"""Contexts: slices that begin, or end, at any step, and are padded where their trajectory has no more steps."""

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.buffer.sampler.slice_starts import MASK, SLICE_END, Pad
from rlx.buffer.sampler.slices import PrioritizedSliceSampler, SliceSampler, SliceSamplerWithoutReplacement
from rlx.testing.sampler import ListedStorage, SamplerContract, episodes
from tests.buffer.sampler.chance import drawn_like
from tests.buffer.sampler.test_slices import rings

PADS: Any = st.sampled_from(["left", "right"])
WEIGHTINGS: Any = st.sampled_from(["step", "trajectory"])
Weighting = Literal["step", "trajectory"]


class TestContexts(SamplerContract):
    def make(self, **seeding: Any) -> SliceSampler:
        return SliceSampler(slice_len=4, pad="right", **seeding)


class TestContextsOncePerStep(SamplerContract):
    def make(self, **seeding: Any) -> SliceSamplerWithoutReplacement:
        return SliceSamplerWithoutReplacement(slice_len=4, pad="left", weighting="step", **seeding)


def context(storage: ListedStorage, row: int, steps: int, pad: Pad) -> tuple[list[int], list[bool]]:
    """The rows of the context that begins, or ends, at a row, and which are real, step by step."""
    path, place = storage.place[row]
    rows = storage.paths[path]
    places = range(place, place + steps) if pad == "right" else range(place - steps + 1, place + 1)
    is_real = [0 <= at < len(rows) for at in places]
    return [rows[min(max(at, 0), len(rows) - 1)] for at in places], is_real


def check(storage: ListedStorage, rows: Any, info: Any, steps: int, pad: Pad) -> list[int]:
    """Contexts are those of brute force, with the marks of their ends; return the steps that they are drawn by."""
    anchors = rows.reshape(-1, steps)[:, 0 if pad == "right" else -1].tolist()
    expected = [context(storage, row, steps, pad) for row in anchors]
    mask = np.array([is_real for _, is_real in expected])
    assert rows.reshape(-1, steps).tolist() == [found for found, _ in expected]
    assert np.array_equal(info[MASK].reshape(-1, steps), mask)
    stored = np.array([[storage.steps[row]["end"] != ""] for row in rows.tolist()])
    first, last = mask.argmax(1)[:, None], steps - 1 - mask[:, ::-1].argmax(1)[:, None]
    added = (np.arange(steps) >= last).reshape(-1, 1) & ~stored
    assert np.array_equal(info[SLICE_END], added)
    assert np.array_equal(info["next", "done"], stored | added)
    begins = np.array([[storage.place[row][1] == 0] for row in rows.tolist()])
    assert np.array_equal(info["is_init"], begins | (np.arange(steps) <= first).reshape(-1, 1))
    return [int(row) for row in anchors]


@given(
    storage=rings(),
    steps=st.integers(1, 6),
    pad=PADS,
    seed=st.integers(0, 9),
    weighting=WEIGHTINGS,
)
def test_contexts_of_any_step(storage: ListedStorage, steps: int, pad: Pad, seed: int, weighting: Weighting) -> None:
    sampler = SliceSampler(slice_len=steps, pad=pad, weighting=weighting, seed=seed)
    for _ in range(3):
        check(storage, *sampler.sample(storage, 5 * steps), steps, pad)


@given(storage=rings(), steps=st.integers(1, 6), pad=PADS, seed=st.integers(0, 9), count=st.integers(1, 7))
def test_an_epoch_has_one_context_of_every_step(
    storage: ListedStorage, steps: int, pad: Pad, seed: int, count: int
) -> None:
    sampler = SliceSamplerWithoutReplacement(slice_len=steps, pad=pad, weighting="step", seed=seed)
    for _ in range(2):
        drawn: list[int] = []
        while not drawn or not sampler.ran_out:
            drawn += check(storage, *sampler.sample(storage, count * steps), steps, pad)
        assert sorted(drawn) == sorted(storage.steps)


@given(storage=rings(), pad=PADS, shuffle=st.booleans())
def test_an_epoch_has_one_context_of_every_trajectory(storage: ListedStorage, pad: Pad, shuffle: bool) -> None:
    sampler = SliceSamplerWithoutReplacement(slice_len=3, pad=pad, shuffle=shuffle, seed=0)
    drawn: list[int] = []
    while not drawn or not sampler.ran_out:
        drawn += check(storage, *sampler.sample(storage, 6), 3, pad)
    paths = [storage.place[row][0] for row in drawn]
    assert sorted(paths) == list(range(len(storage.paths)))
    assert shuffle or paths == sorted(paths)


def test_an_epoch_of_slices_at_every_start() -> None:
    storage = episodes(ListedStorage(40), 5, 2, 7)
    sampler = SliceSamplerWithoutReplacement(slice_len=4, weighting="step", shuffle=False)
    assert sampler.sample(storage, 24)[0].reshape(-1, 4)[:, 0].tolist() == storage.starts(4) == [0, 1, 7, 8, 9, 10]
    assert sampler.ran_out


@pytest.mark.parametrize("pad", ["left", "right"])
@pytest.mark.parametrize("weighting", ["step", "trajectory"])
def test_chances(pad: Pad, weighting: Weighting) -> None:
    storage = episodes(ListedStorage(40, extra=["is_init"]), 9, 2, 5)
    sampler = SliceSampler(slice_len=4, pad=pad, weighting=weighting, seed=1)
    drawn = [row for _ in range(100) for row in check(storage, *sampler.sample(storage, 80), 4, pad)]
    length = {row: len(storage.paths[storage.place[row][0]]) for row in storage.steps}
    assert drawn_like(drawn, {row: 1 if weighting == "step" else 1 / length[row] for row in storage.steps})


@pytest.mark.parametrize("pad", ["left", "right"])
def test_priorities_choose_the_step_of_a_context(pad: Pad) -> None:
    storage = episodes(ListedStorage(16, extra=["is_init"]), 9, 2, 5)
    sampler = PrioritizedSliceSampler(16, 1.0, 1.0, eps=1e-12, slice_len=4, pad=pad, seed=1)
    rows = np.arange(16)
    sampler.extended(storage, rows)
    sampler.update_priority(rows, np.arange(1.0, 17.0))
    drawn = [row for _ in range(100) for row in check(storage, *sampler.sample(storage, 80), 4, pad)]
    assert drawn_like(drawn, {row: row + 1.0 for row in range(16)})


def test_contexts_of_first_steps() -> None:
    storage = episodes(ListedStorage(16), 2, 5)
    sampler = SliceSamplerWithoutReplacement(slice_len=3, pad="right", start_at_reset=True, shuffle=False)
    assert sampler.sample(storage, 6)[0].tolist() == [0, 1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_output": True}, "expected neither pad_output, whole_trajectories nor span"),
        ({"whole_trajectories": True}, "expected neither pad_output"),
        ({"span": (0, 2)}, "expected neither pad_output"),
        ({"pad": "left", "start_at_reset": True}, "expected no start_at_reset"),
        ({"pad": "middle"}, "pad 'middle': expected 'left' or 'right'"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        SliceSampler(slice_len=4, **{"pad": "right", **options})
