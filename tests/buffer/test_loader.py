import copy
import itertools
import json
import logging
import multiprocessing
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch.utils.data import DataLoader

import rlx
from rlx.block import single
from rlx.buffer import FrameStack, LazyTensorStorage, NStep, ReplayBuffer, unchanged
from rlx.buffer.epoch_order import EpochOrder, Shuffle
from rlx.buffer.loader import Loader
from rlx.buffer.prefetch import Task
from rlx.buffer.storage.step_schema import leaves_of
from rlx.errors import OptionError, SamplingError, SchemaMismatchError, SliceTooLongError, SourceError
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from tests.factories import LARGE, make_block, write_dataset
from tests.gcs_server import GcsServer

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
LENGTHS = (7, 5, 11, 14, 3)
STEPS = sum(LENGTHS)


def make_dataset(path: Path, lengths: tuple[int, ...] = LENGTHS, first: int = 0, dtype: str = "float32") -> Dataset:
    """A dataset of a shard for each trajectory; actions number its steps."""
    shards = []
    for episode, length in enumerate(lengths):
        steps, ends = np.arange(first, first + length), np.zeros(length, bool)
        columns = {
            "observation": np.repeat(np.arange(first, first + length + 1, dtype=dtype)[:, None], 3, 1),
            "action": steps,
            "reward": steps.astype("float32"),
            "terminated": ends,
            "truncated": ends,
        }
        shards.append([single(columns, episode=episode)])
        first += length
    return write_dataset(path, shards, schema=Schema.of((dtype, (3,)), ("int64", ())), codec="zstd")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("data") / "one")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("data") / "two", (4, 9), first=1000)


def actions(batches: Any) -> list[list[int]]:
    return [batch["action"].flatten().tolist() for batch in batches]


OPTIONS: dict[str, dict[str, Any]] = {
    "steps": {},
    "the last batch too": {"drop_last": False},
    "in order": {"shuffle": False},
    "with replacement": {"replacement": True, "batches": 5},
    "blocks": {"shuffle": "blocks", "block": 4, "window": 16},
    "slices": {"slice_len": 2},
    "slices with replacement": {"slice_len": 2, "replacement": True, "batches": 3},
    "blocks of slices": {"slice_len": 2, "shuffle": "blocks", "block": 4, "window": 16},
    "contexts": {"slice_len": 2, "pad": "left"},
    "contexts with replacement": {"slice_len": 2, "pad": "right", "replacement": True, "batches": 3},
    "contexts of trajectories": {"slice_len": 2, "pad": "right", "weighting": "trajectory", "two": True, "batches": 1},
    "contexts in blocks": {"slice_len": 2, "pad": "left", "shuffle": "blocks", "block": 4, "window": 16},
    "streams": {"slice_len": 2, "stream": True},
    "streams of weighted datasets": {"slice_len": 2, "stream": True, "two": True, "weights": [1, 3], "batches": 4},
    "streams in blocks": {"slice_len": 2, "stream": True, "shuffle": "blocks", "block": 4, "window": 16},
    "carried streams": {"slice_len": 2, "stream": True, "carry": True, "two": True},
    "two datasets": {"two": True},
    "weights": {"two": True, "weights": [1, 3], "batches": 9},
    "weights with replacement": {"two": True, "weights": [1, 3], "replacement": True, "batches": 4},
    "two datasets in blocks": {"two": True, "shuffle": "blocks", "block": 4, "window": 16},
}


def made(case: str, dataset: Dataset, other: Dataset, **more: Any) -> Loader:
    options = dict(OPTIONS[case])
    data = [dataset, other] if options.pop("two", False) else dataset
    return Loader(data, **{"batch_size": 8, "prefetch": 0, "seed": 3, **options, **more})


def joined(parts: list[list[list[int]]]) -> list[list[int]]:
    """Return the global batches of those of all ranks."""
    return [[action for part in batch for action in part] for batch in zip(*parts, strict=True)]


@settings(max_examples=25, deadline=None)
@given(case=st.sampled_from(sorted(OPTIONS)), world_size=st.sampled_from([2, 4, 8]), epoch=st.integers(0, 3))
def test_ranks_get_the_batches_of_one_process(
    dataset: Dataset, other: Dataset, case: str, world_size: int, epoch: int
) -> None:
    def of(rank: int, size: int, prefetch: int) -> list[list[int]]:
        how = {"rank": rank, "world_size": size, "prefetch": prefetch, "threads": 2}
        loader = made(case, dataset, other, batch_size=16, **how)
        loader.set_epoch(epoch)
        return actions(loader)

    assert joined([of(rank, world_size, 3) for rank in range(world_size)]) == of(0, 1, 0)


@settings(max_examples=25, deadline=None)
@given(
    case=st.sampled_from(sorted(OPTIONS)),
    before=st.sampled_from([1, 2, 4]),
    after=st.sampled_from([1, 2, 4]),
    data=st.data(),
)
def test_a_state_resumes_with_any_number_of_ranks(
    dataset: Dataset, other: Dataset, case: str, before: int, after: int, data: st.DataObject
) -> None:
    expected = made(case, dataset, other)
    epochs = [actions(expected), actions(expected)]
    stop = data.draw(st.integers(0, len(epochs[0])))
    states = []
    for rank in range(before):
        loader = made(case, dataset, other, rank=rank, world_size=before, prefetch=2)
        batches = iter(loader)
        for _ in range(stop):
            next(batches)
        states.append(json.loads(json.dumps(loader.state_dict())))
    resumed = [made(case, dataset, other, rank=rank, world_size=after) for rank in range(after)]
    for loader in resumed:
        loader.load_state_dict(states[0])
    rest = epochs[0][stop:] if stop < len(epochs[0]) else epochs[1]
    assert joined([actions(loader) for loader in resumed]) == rest
    assert states == [states[0]] * before


@pytest.mark.parametrize(
    ("case", "workers", "method"),
    [
        ("steps", 4, "fork"),
        ("blocks of slices", 2, "fork"),
        ("weights", 1, "fork"),
        ("steps", 2, "spawn"),
        ("contexts", 2, "fork"),
        ("carried streams", 2, "fork"),
        ("streams", 1, "spawn"),
    ],
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_of_a_data_loader_give_the_same_batches(
    dataset: Dataset, other: Dataset, case: str, workers: int, method: str
) -> None:
    loader = made(case, dataset, other)
    context = multiprocessing.get_context(method)
    batches = DataLoader(
        loader, batch_size=None, collate_fn=unchanged, num_workers=workers, multiprocessing_context=context
    )
    loader.set_epoch(2)
    assert len(batches) == len(loader)
    found = actions(batches)
    alone = made(case, dataset, other)
    alone.set_epoch(2)
    assert found == actions(alone)
    with pytest.raises(SamplingError, match="the position is unknown: workers of a DataLoader read this epoch"):
        loader.state_dict()
    state = loader.state_dict(batches=1)
    if method == "fork":
        loader.load_state_dict(state)
        assert actions(batches) == found[1:]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_begin_the_next_epoch_after_the_end_of_one(dataset: Dataset) -> None:
    loader = Loader(dataset, 8)
    epochs = [actions(loader), actions(loader)]
    loader.set_epoch(0)
    list(loader)
    batches = DataLoader(loader, batch_size=None, collate_fn=unchanged, num_workers=2)
    assert actions(batches) == epochs[1]


def test_only_the_last_iteration_moves_the_position(dataset: Dataset) -> None:
    loader = Loader(dataset, 8)
    epochs = [actions(loader) for _ in range(4)]
    loader.set_epoch(0)
    older = iter(loader)
    begun = [next(older) for _ in range(3)]
    next(iter(loader))
    begun.append(next(older))
    assert (loader.epoch, loader.batch) == (1, 1)
    assert actions(begun) == epochs[0][:4]
    loader.set_epoch(3)
    next(older)
    assert (loader.epoch, loader.batch) == (3, 0)
    assert actions(loader) == epochs[3]


def test_threads_iterate_over_whole_epochs(dataset: Dataset) -> None:
    expected = Loader(dataset, 8)
    epochs = [actions(expected) for _ in range(12)]
    loader = Loader(dataset, 8)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: actions(loader), range(12)))
    assert sorted(found) == sorted(epochs)


@pytest.mark.parametrize("made_by", [lambda loader: loader, copy.copy, copy.deepcopy])
def test_a_fork_between_two_batches_of_another_thread(dataset: Dataset, made_by: Callable[[Loader], Loader]) -> None:
    loader = made_by(Loader(dataset, 8, prefetch=0))
    with loader._position._lock:  # as while another thread counts a batch
        process = multiprocessing.get_context("fork").Process(target=list, args=(loader,))
        process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0


def test_a_copy_has_its_own_position(dataset: Dataset) -> None:
    loader = Loader(dataset, 8)
    copied = copy.copy(loader)
    next(iter(copied))
    assert (loader.batch, copied.batch) == (0, 1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_that_persist_follow_a_copied_loader(dataset: Dataset, copied: Callable[[Loader], Loader]) -> None:
    loader, alone = copied(Loader(dataset, 8)), Loader(dataset, 8)
    batches = DataLoader(
        loader,
        batch_size=None,
        collate_fn=unchanged,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=multiprocessing.get_context("fork"),
    )
    for epoch in range(3):
        loader.set_epoch(epoch)
        alone.set_epoch(epoch)
        assert actions(batches) == actions(alone)
    loader.set_epoch(3)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (3, 0)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_that_read_an_epoch_again_say_so(dataset: Dataset, persistent: bool, tmp_path: Path) -> None:
    log = tmp_path / "log"  # which forked workers write, too
    logging.getLogger("rlx").addHandler(handler := logging.FileHandler(log))
    loader = Loader(dataset, 8)
    batches = DataLoader(
        loader,
        batch_size=None,
        collate_fn=unchanged,
        num_workers=2,
        persistent_workers=persistent,
        multiprocessing_context=multiprocessing.get_context("fork"),
    )
    first = actions(batches)
    loader.set_epoch(1)
    assert actions(batches) != first
    assert log.read_text() == ""
    actions(batches)
    assert log.read_text() == "epoch 1 is read again, in the same order: call set_epoch before each\n"
    logging.getLogger("rlx").removeHandler(handler)
    handler.close()


def test_workers_do_not_copy_to_a_device(dataset: Dataset) -> None:
    batches = DataLoader(Loader(dataset, 8, device="meta"), batch_size=None, collate_fn=unchanged, num_workers=1)
    with pytest.raises(OptionError, match="workers of a DataLoader give batches on the CPU"):
        next(iter(batches))


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="this machine has no GPU that torch can use")
@pytest.mark.parametrize(("prefetch", "threads"), [(0, 1), (2, 1), (6, 4)])
def test_batches_on_a_gpu_are_those_in_memory(pong: Path, prefetch: int, threads: int) -> None:
    options: dict[str, Any] = {"transform": FrameStack(4), "prefetch": prefetch, "threads": threads}
    gpu = torch.accelerator.current_accelerator()
    assert gpu is not None
    on_gpu, here = Loader(pong, 32, device=gpu, **options), Loader(pong, 32, **options)
    kept = []
    for batch, expected in zip(on_gpu, here, strict=True):
        assert {leaf.device.type for leaf in leaves_of(batch).values()} == {gpu.type}
        # The memory of the batch itself is free for the next ones before the GPU has made this copy.
        kept.append((batch.clone(), expected))
    for batch, expected in kept:
        assert (batch.cpu() == expected).all()


def test_an_epoch_has_every_step_once_and_the_next_another_order(dataset: Dataset) -> None:
    loader = Loader(dataset, 8, drop_last=False)
    first, second = ([step for batch in actions(loader) for step in batch] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(STEPS))
    assert first != second
    assert loader.epoch == 1
    assert loader.waited > 0


def test_abandoning_an_epoch_begins_the_next_one(dataset: Dataset) -> None:
    loader, again = Loader(dataset, 8), Loader(dataset, 8)
    next(iter(loader))
    assert actions(loader) == [actions(again), actions(again)][1]


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    block=st.integers(1, 12),
    blocks=st.integers(1, 5),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
def test_blocks_are_a_permutation_and_windows_hold_whole_blocks(
    counts: list[int], block: int, blocks: int, seed: int, epoch: int
) -> None:
    window = block * blocks
    order = EpochOrder(tuple(counts), seed, "blocks", block=block, window=window)
    found = order.elements(epoch, 0, order.total)
    assert sorted(found.tolist()) == list(range(order.total))
    for start in range(0, order.total, window):
        assert len(np.unique(found[start : start + window] // block)) <= blocks + 2


@settings(max_examples=10, deadline=None)
@given(weights=st.lists(st.floats(0.1, 5), min_size=2, max_size=3), seed=st.integers(0, 5))
def test_weights_are_shares_of_every_round(weights: list[float], seed: int) -> None:
    counts = (100, 7, 1000)[: len(weights)]
    order = EpochOrder(counts, seed, weights=tuple(weights))
    part, element = order.located(order.elements(0, 0, 1 << 16))
    shares = np.bincount(part, minlength=len(weights)) / (1 << 16)
    assert np.allclose(shares, np.array(weights) / sum(weights), atol=1e-4)
    for number, count in enumerate(counts):
        times = np.bincount(element[part == number], minlength=count)
        assert times.max() - times.min() <= 1


@settings(max_examples=20, deadline=None)
@given(
    counts=st.lists(st.integers(1, 3000), min_size=1, max_size=3),
    start=st.integers(0, 150_000),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
)
def test_with_weights_a_dataset_starts_over_when_it_is_exhausted(
    counts: list[int], start: int, shuffle: bool, seed: int
) -> None:
    order = EpochOrder(tuple(counts), seed, shuffle, weights=tuple(range(1, len(counts) + 1)))
    drawn = order.elements(1, 0, start + 5000)
    assert np.array_equal(order.elements(1, start, start + 5000), drawn[start:])
    part, element = order.located(drawn)
    for number, count in enumerate(counts):
        own = element[part == number]
        cycles = own[: len(own) // count * count].reshape(-1, count)
        assert np.array_equal(np.sort(cycles, 1), np.tile(np.arange(count), (len(cycles), 1)))
        if not shuffle:
            assert np.array_equal(own, np.arange(len(own)) % count)


def test_slices_are_steps_of_one_trajectory(dataset: Dataset) -> None:
    loader = Loader(dataset, 8, slice_len=4, drop_last=False, seed=1)
    assert loader.left_out == 1
    seen = set()
    for _ in range(12):
        starts = []
        for batch in loader:
            assert batch.batch_size[1] == 4
            assert (batch["action"].diff(dim=1) == 1).all()
            assert (batch["collector", "traj_ids"].diff(dim=1) == 0).all()
            starts += batch["action"][:, 0].tolist()
        assert len(starts) == sum(length // 4 for length in LENGTHS)
        seen.update(starts)
    assert len(seen) > len(starts)


@pytest.mark.parametrize("slice_len", [None, 8])
def test_leaves_share_no_memory(pong: Path, slice_len: int | None) -> None:
    batches = list(itertools.islice(Loader(rlx.open(pong), 32, slice_len=slice_len), 3))
    leaves = [leaf for batch in batches for leaf in batch.values(include_nested=True, leaves_only=True)]
    assert all(leaf.is_contiguous() for leaf in leaves)
    for first, second in itertools.combinations(leaves, 2):
        assert not np.shares_memory(first.numpy(), second.numpy())


def test_it_reads_what_a_buffer_reads(dataset: Dataset) -> None:
    for transform in (FrameStack(3), NStep(2, 0.5), rlx.buffer.Compose(FrameStack(2), NStep(2), lambda steps: steps)):
        buffer = ReplayBuffer(storage=dataset, transform=transform)
        for batch in Loader(dataset, 6, transform=transform):
            expected = buffer[batch["index"]]
            assert (batch == expected).all()
    for batch in Loader(buffer, 6):
        assert (batch == buffer[batch["index"]]).all()


def test_steps_of_a_buffer_in_memory() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(TensorDict({"b": torch.arange(14)}, [14]))
    found = [step for batch in Loader(buffer, 5, device="cpu") for step in batch["b"].tolist()]
    assert sorted(found) == list(range(4, 14))


def written(first: int, *lengths: int) -> TensorDict:
    """Trajectories; an action is 100 times the number of its own, plus that of the step."""
    parts = []
    for trajectory, length in enumerate(lengths, first):
        action = torch.arange(length) + 100 * trajectory
        done = (torch.arange(length) == length - 1)[:, None]
        parts.append(TensorDict({"action": action, "next": {"action": action + 1, "done": done}}, [length]))
    return torch.cat(parts)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("slice_len", [None, 3])
def test_an_epoch_has_what_the_buffer_holds_when_it_begins(slice_len: int | None) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(written(1, 6, 6))
    loader = Loader(buffer, 3, slice_len=slice_len, shuffle=False)
    assert len(loader) == len(list(loader)) == 4
    for is_emptied, lengths in ((True, (3, 9)), (False, (1, 4, 6)), (True, (7, 7))):
        if is_emptied:
            buffer.empty()
        buffer.extend(written(5, *lengths))
        fresh = Loader(buffer, 3, slice_len=slice_len, shuffle=False)
        assert len(loader) == len(fresh)
        assert actions(loader) == actions(fresh)
    buffer.empty()
    for _ in range(2):
        with pytest.raises(SamplingError, match="have no steps"):
            next(iter(loader))


def test_a_write_neither_reorders_an_epoch_nor_continues_a_finished_one() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(40))
    buffer.extend(written(1, 20))
    loader = Loader(buffer, 2, seed=0)
    batches = iter(loader)
    seen = next(batches)["action"].tolist()
    buffer.extend(written(2, 20))
    assert len(loader) == 10  # of the epoch that runs
    seen += [action for batch in batches for action in batch["action"].tolist()]
    assert sorted(seen) == (torch.arange(20) + 100).tolist()

    resumed = Loader(buffer, 2, seed=0)
    resumed.load_state_dict({**resumed.state_dict(), "epoch": 0, "batch": len(resumed)})
    buffer.empty()
    buffer.extend(written(1, 36))
    assert len({action for batch in resumed for action in batch["action"].tolist()}) == 36


def test_datasets_that_differ(dataset: Dataset, tmp_path: Path) -> None:
    odd = make_dataset(tmp_path / "odd", (8,), dtype="float64")
    with pytest.raises(SchemaMismatchError, match="observation differs between datasets"):
        list(Loader([dataset, odd], 8))


def test_the_number_of_each_dataset_is_in_the_batch(dataset: Dataset, other: Dataset) -> None:
    for slice_len in (None, 3):
        for batch in Loader([dataset, other], 6, slice_len=slice_len):
            assert torch.equal(batch["collector", "dataset"], (batch["action"] >= 1000).long())


def test_ranks_of_torchrun(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = Loader(dataset, 8)
    assert (loader.rank, loader.world_size) == (1, 2)
    assert {len(batch) for batch in loader} == {4}


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_half_of_what_torchrun_sets_is_refused(dataset: Dataset, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "3")
    with pytest.raises(OptionError, match="expected both, and 0 <= rank < world_size"):
        Loader(dataset, 8)


BAD: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "batch_size 0: expected at least 1": ({"batch_size": 0}, OptionError),
    "batch_size '8': expected a whole": ({"batch_size": "8"}, OptionError),
    "slice_len 0: expected": ({"slice_len": 0}, OptionError),
    "block -5: expected": ({"block": -5}, OptionError),
    "window 0: expected": ({"window": 0}, OptionError),
    "batches 0: expected": ({"batches": 0}, OptionError),
    "seed 'a': expected": ({"seed": "a"}, OptionError),
    "expected a multiple of 6": ({"batch_size": 8, "slice_len": 3, "rank": 0, "world_size": 2}, OptionError),
    "0 <= rank < world_size": ({"rank": 2, "world_size": 2}, OptionError),
    "expected both": ({"rank": 0}, OptionError),
    "seed None: expected a whole": ({"seed": None}, OptionError),
    "rank '0': expected a whole": ({"rank": "0", "world_size": "1"}, OptionError),
    "world_size 1.0: expected a whole": ({"rank": 0, "world_size": 1.0}, OptionError),
    "excludes weights": ({"shuffle": "blocks", "replacement": True}, OptionError),
    "excludes replacement": ({"shuffle": False, "replacement": True}, OptionError),
    "weights 'x': expected a number": ({"weights": ["x"]}, OptionError),
    "weights 5: expected a list": ({"weights": 5}, OptionError),
    "expected True, False": ({"shuffle": "some"}, OptionError),
    "expected 1 numbers": ({"weights": [1, 2]}, OptionError),
    "prefetch -1": ({"prefetch": -1}, OptionError),
    "batches 99: expected 1 to 5": ({"batches": 99}, OptionError),
    "fewer than the 12 ranks": ({"batch_size": 36, "drop_last": False, "rank": 0, "world_size": 12}, OptionError),
    "less than a batch of 64": ({"batch_size": 64}, SamplingError),
    "pad 'middle': expected": ({"slice_len": 4, "pad": "middle"}, OptionError),
    "weighting 'steps': expected": ({"slice_len": 4, "weighting": "steps"}, OptionError),
    "pad, weighting and stream require": ({"pad": "left"}, OptionError),
    "stream excludes pad": ({"slice_len": 4, "pad": "left", "stream": True}, OptionError),
    "carry requires": ({"slice_len": 4, "carry": True}, OptionError),
    "carry excludes": ({"slice_len": 4, "stream": True, "carry": True, "replacement": True}, OptionError),
    "weighting='trajectory' excludes": ({"slice_len": 4, "weighting": "trajectory", "replacement": True}, OptionError),
    "all trajectories together have 40": ({"batch_size": 50, "slice_len": 50, "stream": True}, SliceTooLongError),
    "the longest of 5 trajectories has 14": ({"batch_size": 30, "slice_len": 15}, SliceTooLongError),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments(dataset: Dataset, message: str) -> None:
    arguments, error = BAD[message]
    with pytest.raises(error, match=message):
        Loader(dataset, **{"batch_size": 8, **arguments})


def test_bad_sources_and_states(dataset: Dataset) -> None:
    with pytest.raises(SamplingError, match="no steps"):
        Loader(ReplayBuffer(), 1)
    with pytest.raises(OptionError, match=r"number 1 is below 1/65,536 of their sum"):
        Loader([dataset, dataset], 8, weights=[1.0, 1e-6])
    assert len(Loader([dataset, dataset], 8, weights=[1.0, 1e-6], replacement=True)) == 10
    with pytest.raises(OptionError, match="belongs to the buffer"):
        Loader(ReplayBuffer(storage=dataset), 1, transform=FrameStack(2))
    with pytest.raises(SamplingError, match="state of elements_per_batch 8, the loader has 4"):
        Loader(dataset, 4).load_state_dict(Loader(dataset, 8).state_dict())
    with pytest.raises(SamplingError, match="state without batch, elements, elements_per_batch, epoch, seed"):
        Loader(dataset, 4).load_state_dict({})
    state = Loader(dataset, 4).state_dict()
    with pytest.raises(SamplingError, match="state of batch -1: expected at least 0"):
        Loader(dataset, 4).load_state_dict({**state, "batch": -1})
    with pytest.raises(SamplingError, match=r"state of epoch 1\.5: expected a whole number"):
        Loader(dataset, 4).load_state_dict({**state, "epoch": 1.5})
    for epoch in (1.5, "a", -1):
        with pytest.raises(OptionError, match=f"epoch {epoch!r}: expected"):
            Loader(dataset, 4).set_epoch(epoch)  # type: ignore[arg-type]


def test_whole_numbers_may_be_those_of_numpy(dataset: Dataset) -> None:
    number: Any = np.int64
    loader = Loader(dataset, number(8), seed=number(3), threads=number(2), slice_len=number(2), batches=number(3))
    alone = Loader(dataset, 8, seed=3, slice_len=2, batches=3)
    assert actions(loader) == actions(alone)
    assert json.loads(json.dumps(loader.state_dict(number(2)))) == alone.state_dict(2)


def test_a_state_of_another_dataset_of_equal_size_is_refused(tmp_path: Path, dataset: Dataset) -> None:
    state = json.loads(json.dumps(Loader(dataset, 8).state_dict(batches=1)))
    rlx.convert(dataset.path, tmp_path / "copy", to="zarr", codec="none")
    copy = Loader(tmp_path / "copy", 8)
    copy.load_state_dict(state)
    assert copy.batch == 1
    lengths = dataset.trajectories.length.tolist()
    with pytest.raises(SamplingError, match=r"state of checksums \[\d+\], the loader has \[\d+\]"):
        Loader(make_dataset(tmp_path / "other", tuple(lengths[::-1])), 8).load_state_dict(state)


def test_a_state_of_longer_slices_is_refused(tmp_path: Path) -> None:
    even = make_dataset(tmp_path / "even", (6,) * 12)  # 12 slices of either length
    state = Loader(even, 12, slice_len=4).state_dict(batches=1)
    with pytest.raises(SamplingError, match="state of slice_len 4, the loader has 6"):
        Loader(even, 18, slice_len=6).load_state_dict(state)


def test_ranks_share_whole_batches_whatever_remains(dataset: Dataset) -> None:
    # The rest of 4 steps is less than the 36 ranks, but none asks for it.
    loader = Loader(dataset, 36, drop_last=False, batches=1, rank=0, world_size=36)
    assert [len(batch) for batch in loader] == [1]


BLOCKS = {"shuffle": "blocks", "block": 4, "window": 16}
ORDERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "shuffle True": ({}, {"shuffle": False}),
    "shuffle blocks": (BLOCKS, {}),
    "block 4": (BLOCKS, {**BLOCKS, "block": 8}),
    "window 16": (BLOCKS, {**BLOCKS, "window": 24}),
    "replacement True": ({"replacement": True}, {}),
    "pad left": ({"slice_len": 2, "pad": "left"}, {"slice_len": 2, "weighting": "step", "pad": "right"}),
    "weighting step": ({"slice_len": 1, "weighting": "step"}, {"slice_len": 1}),
    "carry True": ({"slice_len": 2, "stream": True, "carry": True}, {"slice_len": 2, "stream": True}),
    r"weights \[1.0, 3.0\]": ({"weights": [1, 3], "batches": 5}, {}),
}


@pytest.mark.parametrize("message", ORDERS)
def test_a_state_of_another_order_is_refused(dataset: Dataset, other: Dataset, message: str) -> None:
    before, after = ORDERS[message]
    state = json.loads(json.dumps(Loader([dataset, other], 8, **before).state_dict(batches=2)))
    loader = Loader([dataset, other], 8, **after)
    with pytest.raises(SamplingError, match=f"state of {message}, the loader has"):
        loader.load_state_dict(state)
    # Of an older version, which kept fewer options.
    loader.load_state_dict({key: state[key] for key in ("epoch", "batch", "seed", "elements", "elements_per_batch")})
    assert loader.batch == 2


def test_blocks_that_are_not_used_are_not_compared(dataset: Dataset) -> None:
    Loader(dataset, 8, block=4).load_state_dict(Loader(dataset, 8, block=8, window=16).state_dict())


@pytest.mark.parametrize("options", [{}, {"slice_len": 2}], ids=["steps", "slices"])
@pytest.mark.parametrize("shuffle", [True, False, "blocks"])
def test_a_change_of_a_batch_changes_no_other(tmp_path: Path, options: dict[str, Any], shuffle: Shuffle) -> None:
    # In order, the batches that are planned together are one run of steps; the last ones are read one by one.
    data = make_dataset(tmp_path / "long", (75,))
    loader = Loader(data, 4, shuffle=shuffle, drop_last=False, prefetch=0, **options)
    expected = [batch.clone() for batch in loader]
    kept = []
    for _ in range(2):
        loader.set_epoch(0)
        for batch, before in zip(loader, expected, strict=True):
            assert (batch == before).all()
            for leaf in leaves_of(batch).values():
                leaf.fill_(99)
            kept.append(batch)
    memory = [leaf.untyped_storage().nbytes() for leaf in leaves_of(kept[0]).values()]
    assert max(memory) < 200  # not that of other batches


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of 4 MB that does not compress, in two shards."""
    rng = np.random.default_rng(0)
    block = make_block([300] * 5, schema=LARGE)
    block.data["observation"][:] = rng.integers(0, 2**16, block.data["observation"].shape, dtype=np.uint16)
    return write_dataset(tmp_path_factory.mktemp("far") / "large", [[block], [block]], schema=LARGE, codec="zstd")


@pytest.fixture(scope="module")
def server(large: Dataset) -> Iterator[GcsServer]:
    with GcsServer(large.path.parent) as server:
        yield server


def test_blocks_need_few_requests(large: Dataset, server: GcsServer) -> None:
    requests = {}
    for shuffle in (True, "blocks"):
        far = rlx.open(f"{server.url}/large", cache_bytes=1 << 20)
        options: dict[str, Any] = {"shuffle": shuffle, "block": 100, "window": 1000, "seed": 1}
        for batch, local in zip(Loader(far, 100, **options), Loader(large, 100, **options), strict=True):
            assert (batch == local).all()
        requests[shuffle] = far.traffic.requests
    assert requests["blocks"] * 5 < requests[True]


FAR: dict[str, dict[str, Any]] = {
    "a window of one batch, one rank of two": {"window": 64, "rank": 1, "world_size": 2},
    "slices": {"slice_len": 16, "window": 500},
    "contexts": {"slice_len": 16, "window": 500, "pad": "left"},
    "streams": {"slice_len": 16, "window": 500, "stream": True},
    "stacks": {"transform": FrameStack(4), "window": 300},
    "n steps": {"transform": NStep(40), "window": 500, "block": 50},
    "threads": {"prefetch": 6, "threads": 4, "window": 200},
}


@pytest.mark.parametrize("case", FAR)
def test_steps_far_away_are_those_here_and_are_dropped(case: str, large: Dataset, server: GcsServer) -> None:
    options = {"block": 100, "seed": 2, "shuffle": "blocks", **FAR[case]}
    far = rlx.open(f"{server.url}/large", cache_bytes=1 << 20).filter("id != 3")
    here = rlx.open(large.path).filter("id != 3")
    loader, local = Loader(far, 64, **options), Loader(here, 64, **options)
    for _ in range(2):
        for batch, expected in zip(loader, local, strict=True):
            assert (batch == expected).all()
            memory = loader._parts[0]._ahead.memory  # type: ignore[union-attr]
            assert memory.bytes < 0.9 * far.manifest.bytes
        assert memory.bytes == 0
    half = iter(loader)
    next(half)
    del half
    assert memory.bytes == 0


@given(
    first=st.integers(0, 40),
    batches=st.integers(1, 60),
    stride=st.integers(1, 4),
    window=st.integers(1, 20),
)
def test_batches_planned_together_are_of_one_window(
    dataset: Dataset, first: int, batches: int, stride: int, window: int
) -> None:
    loader = Loader(dataset, 1, window=window)
    loader._at_once = 5
    numbers = range(first, first + batches, stride)
    groups = {number: loader._group(number, numbers) for number in numbers}
    for number, group in groups.items():
        assert number in group
        assert len(group) <= 5
        assert group[0] // window == group[-1] // window
        assert all(groups[other] == group for other in group)
    together = -(-window // (5 * stride)) * (batches // window + 2)  # as few as windows and strides allow
    assert len(set(groups.values())) <= together


def test_a_window_that_fails_holds_nothing(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    far = [rlx.open(f"{server.url}/large") for _ in range(2)]
    loader = Loader(far, 64, shuffle="blocks", block=100, window=500, prefetch=0)

    def fail(*_: Any) -> None:
        raise SourceError("gone")

    monkeypatch.setattr(loader._parts[1], "hold", fail)
    with pytest.raises(SourceError, match="gone"):
        list(loader)
    memory = loader._parts[0]._ahead.memory  # type: ignore[union-attr]
    assert memory.bytes == 0


def test_every_block_is_fetched_once_however_narrow_the_windows(large: Dataset, server: GcsServer) -> None:
    requests = []
    ahead: list[dict[str, Any]] = [{"prefetch": 0}, {}, {"prefetch": 16, "threads": 4}]
    for options in ahead:
        far = rlx.open(f"{server.url}/large", cache_bytes=0)
        loader = Loader(far, 32, shuffle="blocks", block=32, window=64, **options)
        for batch, expected in zip(loader, Loader(large, 32, shuffle="blocks", block=32, window=64), strict=True):
            assert (batch == expected).all()
        requests.append(far.traffic.requests)
    assert max(requests) < 1.2 * min(requests)  # blocks of two windows may share a page


def test_an_iteration_may_outlive_the_interpreter(large: Dataset, server: GcsServer) -> None:  # noqa: ARG001
    program = (
        f"import rlx\nloader = rlx.loader({server.url + '/large'!r}, 32, shuffle='blocks', block=32, window=64)\n"
        "batches = iter(loader)\nprint(next(batches).batch_size)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert (ended.stdout, ended.stderr) == ("torch.Size([32])\n", "")


def test_whoever_waits_makes_a_batch() -> None:
    begun, release = threading.Event(), threading.Event()

    def first() -> int:
        begun.set()
        release.wait(30)
        return threading.get_ident()

    with ThreadPoolExecutor(1) as pool:
        running = Task(first, pool)
        begun.wait(30)
        queued = [Task(threading.get_ident, pool) for _ in range(2)]
        assert queued[0].result([queued[1]]) == threading.get_ident()
        release.set()
        assert running.result(queued) != threading.get_ident()
        failing = Task(lambda: 1 // 0, pool)
        with pytest.raises(ZeroDivisionError):
            failing.result([])
