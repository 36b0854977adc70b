"""Rows gathered over all shards by one index are those that each shard's own reader gives."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rlx
from rlx.schema import Role
from rlx.store import shards as shards_module
from rlx.store.dataset import Dataset
from rlx.store.step_reader import Padding, Stack
from rlx.store.ted import PlannedBatches, read_ted
from tests.factories import LARGE, make_block, write_dataset
from tests.kernels import HOW, reading

STEPS = 24


def parts(folder: Path, number: int, store: str, codec: str) -> Dataset:
    """Return a dataset of three shards, each with trajectories of 3 and 5 steps."""
    blocks = [[make_block([3, 5], first_episode=6 * number + 2 * shard, schema=LARGE)] for shard in range(3)]
    return write_dataset(folder / f"part{number}", blocks, schema=LARGE, store=store, codec=codec)


@pytest.fixture(
    scope="module",
    params=[
        *(f"zarr:zstd-dict:{how}" for how in HOW),
        "zarr:zstd:python",
        "zarr:lz4:python",
        *(f"memmap:none:{how}" for how in HOW),
        *(f"merged:-:{how}" for how in HOW),
    ],
)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    folder = tmp_path_factory.mktemp("data")
    store, codec, how = request.param.split(":")
    with reading(how):
        if store != "merged":
            yield parts(folder, 0, store, codec)
            return
        # Every part keeps its own dictionary.
        rlx.merge([parts(folder, number, "zarr", "zstd-dict").path for number in range(2)], folder / "merged")
        yield Dataset(folder / "merged")


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
@example(steps=[])
def test_rows_of_all_shards(dataset: Dataset, steps: list[int]) -> None:
    check(dataset, list(steps))


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.integers(0, STEPS - 1), max_size=12),
    k=st.integers(1, 5),
    padding=st.sampled_from(["repeat", "zeros"]),
)
def test_stacks_are_the_rows_before(dataset: Dataset, steps: list[int], k: int, padding: Padding) -> None:
    reader, found = dataset.steps, np.array(steps, np.int64)
    stacks, after = reader.read_stacks("observation", reader.locate(found), Stack(k, padding))
    assert stacks.shape == after.shape == (len(steps), k, 20, 30)
    first = reader.start[reader.start.searchsorted(found, side="right") - 1]
    for i, (step, start) in enumerate(zip(steps, first, strict=True)):
        back = [max(start, step - k + 1 + place) for place in range(k)]
        now, then = reader.read_observations("observation", reader.locate(np.array(back)))
        if padding == "zeros":
            now[: max(0, k - 1 - (step - start))] = 0
        assert np.array_equal(stacks[i], now)
        assert np.array_equal(after[i, -1], then[-1])
        if k > 1:
            assert np.array_equal(after[i, :-1], stacks[i, 1:])


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
@pytest.mark.parametrize("stack", [None, Stack(3), Stack(3, "zeros")])
@pytest.mark.parametrize("expression", [None, "length > 3"])
@pytest.mark.parametrize("are_slices", [False, True])
def test_planned_batches_are_those_read_one_by_one(
    dataset: Dataset, shape: tuple[int, ...], stack: Stack | None, expression: str | None, are_slices: bool
) -> None:
    chosen = rlx.open(dataset.path)
    chosen = chosen if expression is None else chosen.filter(expression)
    stacks = None if stack is None else {"observation": stack}
    steps = np.random.default_rng(0 if stack is None else stack.k).integers(len(chosen), size=(4, *shape))
    steps.reshape(4, -1)[0] = np.arange(6)
    if are_slices:
        table = chosen.trajectories
        fits = np.flatnonzero(table.length >= 3)
        start = table.start[fits] + table.length[fits] - 3  # up to the last step
        steps = (start[np.arange(8) % len(fits), None] + np.arange(3)).reshape(steps.shape)
    planned = PlannedBatches(chosen.steps, chosen.schema, steps, stacks)
    for number in (0, 3, 1, 2):
        found, expected = (
            planned.read(number),
            read_ted(chosen.steps, chosen.schema, steps[number].reshape(-1), stacks).reshape(shape),
        )
        assert found.batch_size == expected.batch_size
        assert [*found.keys(True, True)] == [*expected.keys(True, True)]
        for key in expected.keys(True, True):
            assert found[key].dtype == expected[key].dtype
            assert torch.equal(found[key], expected[key])


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
