"""Tests of batches that are read ahead, and of the lock of readers and writers."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from rlx.buffer.prefetch import ReadWriteLock
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.prioritized import PrioritizedSampler
from rlx.buffer.sampler.slices import SliceSampler
from rlx.buffer.sampler.steps import RandomSampler, SamplerWithoutReplacement
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.transform import NStep
from rlx.errors import SamplingError
from tests.buffer import producers

SAMPLERS: dict[str, Any] = {
    "random": lambda: RandomSampler(seed=3),
    "without replacement": lambda: SamplerWithoutReplacement(seed=3),
    "prioritized": lambda: PrioritizedSampler(64, 0.7, 0.9, seed=3),
    "slices": lambda: SliceSampler(slice_len=3, seed=3),
}


def buffer(prefetch: int, sampler: Any, **arguments: Any) -> ReplayBuffer:
    made = ReplayBuffer(storage=LazyTensorStorage(64), sampler=sampler, batch_size=6, prefetch=prefetch, **arguments)
    for batch in producers.asynchronous(8, 10):
        made.extend(batch)
    return made


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_batches_in_the_same_order(sampler: str) -> None:
    plain, ahead = buffer(0, SAMPLERS[sampler]()), buffer(3, SAMPLERS[sampler]())
    for _ in range(40):
        expected, found = plain.sample(), ahead.sample()
        assert (expected == found).all()
    ahead.shutdown()


def test_reading_overlaps() -> None:
    inside, calls = threading.Barrier(2, timeout=30), itertools.count()

    def collate(batch: TensorDictBase) -> TensorDictBase:
        if next(calls) < 2:
            inside.wait()  # until two are in here at once
        return batch

    made = buffer(3, RandomSampler(seed=0), collate_fn=collate)
    for _ in range(3):
        made.sample()
    assert not inside.broken
    made.shutdown()


def test_a_batch_whose_rows_were_overwritten_is_read_again() -> None:
    made = buffer(4, RandomSampler(seed=3))
    made.sample()
    for late in list(producers.asynchronous(30, 10))[-7:]:
        made.extend(late)
        batch, info = made.sample(return_info=True)
        assert (batch == made[info["index"]]).all()
    made[0:64] = made[0:64].set("action", torch.full((64,), 99))
    assert all((made.sample()["action"] == 99).all() for _ in range(10))
    made.shutdown()


def test_a_batch_is_read_again_where_a_step_after_its_own_changed() -> None:
    made = buffer(4, RandomSampler(seed=3), transform=NStep(3, 1.0))
    made.sample()
    stored = made.storage.get(np.arange(64))
    for row in range(0, 64, 2):
        made[[row]] = stored[[row]].set(("next", "reward"), torch.full((1, 1), 1000.0))
        batch, info = made.sample(return_info=True)
        assert (batch == made[info["index"]]).all()
    made.shutdown()


def test_slices_are_drawn_again_where_others_lie_now() -> None:
    made = buffer(4, SliceSampler(slice_len=3, seed=3))
    made.sample()
    for batch in producers.asynchronous(30, 10):
        made.extend(batch)
        for _ in range(2):
            producers.check_slices(made.sample(), 3)
    made.shutdown()


@pytest.mark.parametrize("how", ["state", "pickle", "transform"])
def test_draws_of_slices_that_were_overwritten_are_not_passed_on(how: str) -> None:
    made = other = buffer(4, SliceSampler(slice_len=3, seed=3))
    made.sample()
    for batch in producers.asynchronous(9, 10):
        made.extend(batch)
    if how == "state":
        other = ReplayBuffer(storage=LazyTensorStorage(64), sampler=SliceSampler(slice_len=3), batch_size=6)
        other.load_state_dict(made.state_dict())
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(made))
    else:
        other.append_transform(lambda batch: batch)
    for _ in range(6):
        producers.check_slices(other.sample(), 3)
    made.shutdown()
    other.shutdown()


def test_after_emptying_nothing_old_comes() -> None:
    made = buffer(4, SamplerWithoutReplacement(seed=3))
    made.sample()
    made.empty()
    with pytest.raises(SamplingError):
        made.sample()
    made.extend(next(producers.single(1, 3)))
    assert all(set(made.sample()["observation"].flatten().tolist()) <= {0.0, 1.0, 2.0} for _ in range(5))
    made.shutdown()


def test_no_batch_is_lost_or_comes_twice_whoever_takes_it() -> None:
    made = ReplayBuffer(
        storage=LazyTensorStorage(400), sampler=SamplerWithoutReplacement(seed=0), batch_size=4, prefetch=3
    )
    made.extend(TensorDict({"a": torch.arange(400)}, [400]))
    taken: list[list[int]] = [[], []]

    def take(mine: list[int]) -> None:
        for _ in range(50):
            mine.extend(made.sample()["a"].tolist())

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.shutdown()
    assert sorted(taken[0] + taken[1]) == list(range(400))


def test_an_error_in_a_thread_comes_out_of_one_sample() -> None:
    calls = itertools.count()

    def fail_once(batch: TensorDictBase) -> TensorDictBase:
        if next(calls) == 1:
            raise ZeroDivisionError("in a thread")
        return batch

    made = buffer(1, RandomSampler(seed=0), collate_fn=fail_once)
    errors: list[str] = []
    for _ in range(4):  # two threads read, so which of the first two samples fails is a matter of chance
        try:
            assert len(made.sample()) == 6
        except ZeroDivisionError as exc:
            errors.append(str(exc))
    made.shutdown()
    assert errors == ["in a thread"]


def test_no_thread_outlives_the_buffer() -> None:
    others = set(threading.enumerate())

    def threads() -> set[threading.Thread]:
        return set(threading.enumerate()) - others

    made = buffer(2, RandomSampler(seed=0))
    made.sample()
    assert threads()
    made.shutdown()
    assert not threads()
    made.sample()
    assert threads()
    del made
    for thread in threads():
        # What is being read holds the buffer until it is done, so one collection may come too early.
        while thread.is_alive():
            gc.collect()
            thread.join(timeout=0.1)


def test_iteration_ends_with_the_epoch() -> None:
    made = ReplayBuffer(
        storage=LazyTensorStorage(10), sampler=SamplerWithoutReplacement(seed=0), batch_size=3, prefetch=4
    )
    made.extend(TensorDict({"a": torch.arange(10)}, [10]))
    for _ in range(3):
        assert sorted(np.concatenate([batch["a"].numpy() for batch in made]).tolist()) == list(range(10))
    made.shutdown()


def test_readers_are_in_together() -> None:
    lock, both = ReadWriteLock(), threading.Barrier(2, timeout=20)

    def read() -> None:
        with lock.read():
            both.wait()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken


def test_a_writer_is_alone() -> None:
    lock, value, torn = ReadWriteLock(), [0, 0], []

    def write() -> None:
        for _ in range(200):
            with lock.write():
                value[0] += 1
                value[1] += 1

    def read() -> None:
        for _ in range(200):
            with lock.read():
                if value[0] != value[1]:
                    torn.append(tuple(value))

    threads = [threading.Thread(target=target) for target in (write, write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value == [400, 400]
    assert not torn


def test_an_error_inside_releases_it() -> None:
    lock = ReadWriteLock()
    for side in (lock.read, lock.write):
        with pytest.raises(ZeroDivisionError), side():
            _ = 1 / 0
    with lock.write():
        pass
