"""Buffers in other processes: workers of a ``DataLoader`` and plain forks, while the parent goes on."""

import itertools
import multiprocessing
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader, IterableDataset

import rlx
from rlx.buffer import (
    CompressedStorage,
    ConsumingSampler,
    DatasetStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from rlx.buffer.loader import Loader, unchanged
from rlx.buffer.loader_reading import Windows
from rlx.errors import ForkError
from rlx.store.chunk_codec import chunk_codec
from rlx.store.dictionary import zstandard_dictionary
from tests.factories import LARGE, make_block, numbered_dataset, write_dataset
from tests.gcs_server import GcsServer
from tests.kernels import reading

_HANG_S = 240
STEPS = 96
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Batches(IterableDataset[TensorDict]):
    """So many batches of each of some buffers; of none, those that an iteration over it gives."""

    def __init__(self, buffers: list[Any], count: int | None) -> None:
        self.buffers, self.count = buffers, count

    def __iter__(self) -> Iterator[TensorDict]:
        for buffer in self.buffers:
            yield from iter(buffer) if self.count is None else (buffer.sample() for _ in range(self.count))


def loader(buffers: list[Any], count: int | None, method: str = "fork", **options: Any) -> DataLoader[Any]:
    return DataLoader(
        Batches(buffers, count),
        batch_size=None,
        collate_fn=unchanged,
        num_workers=2,
        multiprocessing_context=method,
        timeout=_HANG_S,
        **options,
    )


def steps(count: int = STEPS) -> TensorDict:
    done = torch.arange(1, count + 1) % 8 == 0
    frames = (torch.arange(count) % 7).to(torch.uint8)[:, None].expand(count, 1100)
    place = torch.arange(count) % 8  # so that trajectories do not continue each other
    after = {"place": place + 1, "done": done[:, None]}
    return TensorDict({"action": torch.arange(count), "frames": frames, "place": place, "next": after}, [count])


def memory(sampler: Any = None, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(STEPS), sampler=sampler, batch_size=8, **options)
    buffer.extend(steps())
    return buffer


def compressed() -> ReplayBuffer:
    buffer = ReplayBuffer(storage=CompressedStorage(STEPS), batch_size=8)
    buffer.extend(steps())
    return buffer


def drawn(batches: Any) -> list[tuple[int, ...]]:
    return [tuple(batch["action"].flatten().tolist()) for batch in batches]


SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(seed=0),
    "prioritized": lambda: PrioritizedSampler(STEPS, 0.7, 0.9, seed=0),
    "slices": lambda: SliceSampler(slice_len=4, seed=0),
}


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_workers_draw_batches_of_their_own_in_every_epoch(sampler: str, prefetch: int) -> None:
    buffer = memory(SAMPLERS[sampler](), prefetch=prefetch)
    ours = drawn(buffer.sample() for _ in range(4))  # with prefetch, more are drawn and not given out
    workers = loader([buffer], 8)
    theirs = drawn(workers) + drawn(workers)
    assert len(set(ours + theirs)) == len(ours) + 32
    torch.manual_seed(5)
    again = drawn(workers)
    torch.manual_seed(5)
    assert drawn(workers) == again
    buffer.shutdown()


@pytest.mark.parametrize("storage", [LazyTensorStorage, CompressedStorage, ListStorage])
def test_a_copy_for_another_process_while_a_thread_writes(storage: Callable[[int], Any]) -> None:
    buffer = ReplayBuffer(storage=storage(STEPS), batch_size=STEPS, sampler=SamplerWithoutReplacement())
    buffer.extend(steps())
    with extended(buffer, map(filled, itertools.cycle(range(150, 200)))):
        copies = [bytes(ForkingPickler.dumps(buffer)) for _ in range(30)]
        loaders = [bytes(ForkingPickler.dumps(Loader(buffer, STEPS))) for _ in range(30)]
    assert not any(tensor.is_shared() for tensor in vars(buffer.storage).get("_tensors", {}).values()), "moved"
    batches = [pickle.loads(copy).sample() for copy in copies] + [next(iter(pickle.loads(copy))) for copy in loaders]
    for batch in batches:
        assert (batch["frames"] == batch["frames"][:, :1]).all()
        action = batch["action"]
        assert (batch["frames"][:, 0] == torch.where(action < 150, action % 7, action)).all()


def test_workers_that_live_on_draw_on(tmp_path: Path) -> None:
    stored = DatasetStorage(numbered_dataset(tmp_path / "data"))
    buffers = [memory(), compressed(), ReplayBuffer(storage=stored, batch_size=8)]
    for buffer in buffers:
        workers = loader([buffer], 5, persistent_workers=True)
        found = drawn(workers) + drawn(workers)
        assert len(found) == len(set(found)) == 20
        del workers


def test_an_ensemble_is_drawn_from_by_every_worker() -> None:
    ensemble = ReplayBufferEnsemble(memory(), memory(), batch_size=8, num_buffer_sampled=2)
    found = drawn(loader([ensemble], 5))
    assert len(found) == len(set(found)) == 10


@pytest.mark.parametrize("is_persistent", [False, True])
def test_without_replacement_workers_share_every_epoch(is_persistent: bool) -> None:
    buffer = memory(SamplerWithoutReplacement(seed=0), prefetch=2)
    buffer.sample()  # the parent's own epoch makes no difference
    workers = loader([buffer], None, persistent_workers=is_persistent)
    epochs = [drawn(workers) for _ in range(3)]
    for epoch in epochs:
        assert sorted(action for batch in epoch for action in batch) == list(range(STEPS))
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 3
    buffer.shutdown()
    del workers


def test_without_replacement_workers_share_the_trajectories() -> None:
    buffer = memory(SliceSamplerWithoutReplacement(slice_len=8, seed=0))
    (epoch, other) = (drawn(loader([buffer], None)) for _ in range(2))
    assert sorted(action for batch in epoch for action in batch) == list(range(STEPS))
    assert epoch != other


def test_the_workers_of_a_rank_share_what_is_the_ranks() -> None:
    found = []
    for rank in range(2):
        buffer = memory(SamplerWithoutReplacement(seed=0).shard(rank, 2))
        found += drawn(loader([buffer], None))
    assert sorted(action for batch in found for action in batch) == list(range(STEPS))


class Available(Batches):
    """How many steps of a buffer a worker may draw, before and after its only batch."""

    def __iter__(self) -> Iterator[Any]:
        (buffer,) = self.buffers
        yield buffer.sampler.available(buffer.storage)
        buffer.sample()
        yield buffer.sampler.available(buffer.storage)


def test_a_worker_counts_its_own_steps_before_it_draws() -> None:
    shared = Available([memory(ConsumingSampler(seed=0))], None)
    workers = DataLoader(shared, None, collate_fn=unchanged, num_workers=2, multiprocessing_context="fork")
    assert sorted(workers) == [STEPS // 2 - 8] * 2 + [STEPS // 2] * 2


class SharedByHand(Batches):
    """Batches of a buffer whose sampler every worker shards itself."""

    def __iter__(self) -> Iterator[TensorDict]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        (buffer,) = self.buffers
        buffer.set_sampler(buffer.sampler.shard(worker.id, worker.num_workers))
        return iter(buffer)


def test_a_shard_that_a_worker_takes_itself_is_not_shared_further() -> None:
    buffer = memory(SamplerWithoutReplacement(seed=0))
    shared = SharedByHand([buffer], None)
    workers = DataLoader(shared, None, collate_fn=unchanged, num_workers=2, multiprocessing_context="fork")
    assert sorted(action for batch in drawn(workers) for action in batch) == list(range(STEPS))


def test_spawned_workers_draw_batches_of_their_own(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        remote, local = rlx.open(url), numbered_dataset(tmp_path / "data")
        buffers = [ReplayBuffer(storage=DatasetStorage(each), batch_size=8) for each in (remote, local)]
        buffers += [memory(), compressed()]
        for buffer in buffers:
            buffer.sample()
        workers = loader(buffers, 3, "spawn", persistent_workers=True)
        found = drawn(workers) + drawn(workers)
        assert len(found) == len(set(found)) == 2 * 2 * 3 * len(buffers)
        del workers


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of a dataset on loopback."""
    numbered_dataset(folder / "served/data")
    with GcsServer(folder / "served") as server:
        yield f"{server.url}/data"


def filled(number: int) -> TensorDict:
    """8 steps that hold nothing but a number."""
    batch = steps(8)
    batch.apply_(lambda leaf: leaf.fill_(number))
    return batch


@contextmanager
def extended(buffer: ReplayBuffer, batches: Iterable[TensorDict]) -> Iterator[None]:
    """While a thread writes batches to the buffer."""
    is_over = threading.Event()

    def extend() -> None:
        for batch in batches:
            if is_over.is_set():
                break
            buffer.extend(batch)

    thread = threading.Thread(target=extend)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def in_fork(function: Callable[[], Any]) -> Any:
    """What a function returns in a forked process, or the error that it raises there."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(function, sender), daemon=True)
    child.start()
    try:
        assert receiver.poll(_HANG_S), "the forked process hangs"
        answer = receiver.recv()
    finally:
        child.kill()
        child.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _answer(function: Callable[[], Any], sender: Any) -> None:
    try:
        answer = function()
    except Exception as exc:
        answer = exc
    sender.send_bytes(pickle.dumps(answer))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_forks_while_a_thread_extends(prefetch: int) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4 * STEPS), batch_size=8, prefetch=prefetch)
    buffer.extend(steps())
    with extended(buffer, itertools.repeat(steps())):
        for _ in range(6):
            buffer.sample()
            assert in_fork(lambda: (len(buffer.sample()), len(buffer.extend(steps(3))))) == (8, 3)
    buffer.shutdown()


@pytest.mark.parametrize("make", [memory, compressed])
def test_workers_while_a_thread_extends(make: Callable[[], ReplayBuffer]) -> None:
    buffer = make()
    workers = loader([buffer], 4)
    with extended(buffer, itertools.repeat(steps())), warnings.catch_warnings():
        for _ in range(2):
            assert len(set(drawn(workers))) == 8


def test_large_batches_in_a_fork() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4096), batch_size=4096)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        buffer.extend(TensorDict({"observation": torch.zeros(4096, 128)}, [4096]))
        buffer.sample()
        assert in_fork(lambda: len(buffer.sample())) == 4096
    finally:
        torch.set_num_threads(threads)


def test_a_fork_goes_on_with_the_batches_that_were_drawn() -> None:
    buffer = memory(SamplerWithoutReplacement(seed=0), prefetch=3)
    first = drawn([buffer.sample()])
    rest = in_fork(lambda: drawn(buffer.sample() for _ in range(11)))
    assert sorted(np.array(first + rest).flatten()) == list(range(STEPS))
    assert drawn(buffer.sample() for _ in range(11)) == rest
    buffer.shutdown()


class Named(ReplayBuffer):
    """Buffer with a name of its own for its storage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.kept = self.storage


@pytest.mark.parametrize("copied", [deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_copies_of_a_subclass(copied: Callable[[Any], Any]) -> None:
    copy = copied(Named(storage=LazyTensorStorage(STEPS)))
    assert copy.kept is copy.storage


def test_a_part_that_refers_to_its_buffer_cannot_be_copied() -> None:
    buffer = memory()
    buffer.sampler.buffer = buffer  # type: ignore[attr-defined]
    with pytest.raises(pickle.PicklingError, match="recursion"):
        deepcopy(buffer)


def test_a_fork_transforms_planned_batches_once(tmp_path: Path) -> None:
    def doubled(steps: TensorDict) -> TensorDict:
        steps["next", "reward"].mul_(2)
        return steps

    dataset = write_dataset(tmp_path / "data", [[make_block([9])]])
    buffer = ReplayBuffer(storage=dataset, sampler=RandomSampler(seed=0), batch_size=2, prefetch=3, transform=doubled)
    assert {float(buffer.sample()["next", "reward"].max()) for _ in range(3)} == {2}
    buffer.shutdown()  # once all batches ahead are read
    assert in_fork(lambda: {float(buffer.sample()["next", "reward"].max()) for _ in range(5)}) == {2}


SHUFFLES: dict[str, dict[str, Any]] = {
    "steps": {"shuffle": True},
    "blocks": {"shuffle": "blocks", "window": 16},
    "no thread": {"prefetch": 0},
}


@pytest.mark.parametrize(("name", "is_remote"), [*((name, False) for name in SHUFFLES), ("blocks", True)])
def test_an_iteration_of_a_loader_is_refused_in_a_fork(
    name: str, is_remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads read in the parent; another iteration in the child counts for itself."""

    def read_slowly(self: Loader, *arguments: Any) -> Any:
        time.sleep(0.1)  # threads are amid a batch at the fork
        return steps_of(self, *arguments)

    steps_of = Loader._steps
    monkeypatch.setattr(Loader, "_steps", read_slowly)
    with served(tmp_path) as url:
        batches = rlx.loader(url if is_remote else tmp_path / "served/data", batch_size=4, **SHUFFLES[name])
        begun = iter(batches)
        next(begun)
        with pytest.raises(ForkError, match="an iteration of a loader"):
            in_fork(lambda: next(begun))
        if is_remote:
            with pytest.raises(ForkError, match="at a URL"):
                in_fork(lambda: next(iter(batches)))
        else:
            assert len(in_fork(lambda: drawn(batches))) == len(batches)
        assert (batches.epoch, batches.batch) == (0, 1)
        assert len(drawn(begun)) == len(batches) - 1


def test_a_fork_while_the_next_window_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child does not wait for a thread that it does not have."""
    is_fetching, may_go_on = threading.Event(), threading.Event()

    def fetch(self: Windows, batches: Sequence[int]) -> Any:
        if batches[0]:
            is_fetching.set()
            assert may_go_on.wait(_HANG_S)
        return fetch_window(self, batches)

    fetch_window = Windows._fetch
    monkeypatch.setattr(Windows, "_fetch", fetch)
    with served(tmp_path) as url:
        batches = rlx.loader(url, batch_size=4, **SHUFFLES["blocks"])
        begun = iter(batches)
        next(begun)
        assert is_fetching.wait(_HANG_S)
        with pytest.raises(ForkError, match="an iteration of a loader"):
            in_fork(lambda: next(begun))
        may_go_on.set()
        assert len(drawn(begun)) == len(batches) - 1


def test_a_fork_while_a_dictionary_is_digested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_digesting, may_go_on = threading.Event(), threading.Event()

    def digest(dictionary: bytes) -> Any:
        is_digesting.set()
        if threading.current_thread() is not threading.main_thread():
            assert may_go_on.wait(_HANG_S)
        return made(dictionary)

    made = zstandard_dictionary
    path = write_dataset(tmp_path / "data", [[make_block([3, 5], schema=LARGE)]], schema=LARGE, codec="zstd-dict").path
    monkeypatch.setattr("rlx.store.chunk_codec.zstandard_dictionary", digest)
    chunk_codec.cache_clear()  # an earlier test may have digested the same dictionary
    with reading("python"):  # the kernel digests by itself
        dataset = rlx.open(path)
        thread = threading.Thread(target=lambda: dataset[:4])
        thread.start()
        assert is_digesting.wait(_HANG_S)
        try:
            assert in_fork(lambda: len(dataset[:4])) == 4
        finally:
            may_go_on.set()
            thread.join()


def test_a_fork_from_within_a_write_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.fork.PATIENCE_S", 0.05)
    inside, may_go_on = threading.Event(), threading.Event()

    class Stalled(LazyTensorStorage):
        def append(self, steps: Any, **_: Any) -> Any:
            rows = super().append(steps)
            inside.set()
            may_go_on.wait(_HANG_S)
            return rows

    buffer = ReplayBuffer(storage=Stalled(STEPS), batch_size=8)
    writer = threading.Thread(target=lambda: buffer.extend(steps()))
    writer.start()
    assert inside.wait(_HANG_S)
    with pytest.raises(ForkError, match="a thread was writing to it") as refused:
        in_fork(buffer.sample)
    assert refused.value.hint
    may_go_on.set()
    writer.join()
    assert len(buffer.sample()) == 8


def test_a_dataset_at_a_url_is_refused_by_name(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        remote = rlx.open(url)
        buffer = ReplayBuffer(storage=DatasetStorage(remote), batch_size=8)
        remote[np.arange(20)]
        buffer.sample()
        for read in (lambda: remote[np.arange(37)], buffer.sample, lambda: rlx.open(url)):
            with pytest.raises(ForkError, match="at a URL"):
                in_fork(read)
        with pytest.raises(ForkError, match="at a URL"):
            drawn(loader([buffer], 4))
        assert len(buffer.sample()) == 8
