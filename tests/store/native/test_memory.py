"""Memory of rows is used again, but never while anybody can see it."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.store.native import memory
from rlx.store.native.memory import empty_rows


def test_it_is_used_again_when_nobody_refers_to_it() -> None:
    memory._blocks.clear()
    first = empty_rows(40, 7056)
    first[:] = 1
    place = first.__array_interface__["data"][0]
    part = torch.from_numpy(first).view(4, 10, 84, 84)[1:2]
    del first
    gc.collect()
    assert memory._blocks[-1].owner() is not None
    other = empty_rows(40, 7056)
    other[:] = 2
    assert bool((part == 1).all())
    del part
    gc.collect()
    again = empty_rows(39, 7056)  # as much, rounded
    assert again.__array_interface__["data"][0] == place
    assert again.shape == (39, 7056)
    assert (other == 2).all()


def test_little_is_kept() -> None:
    memory._blocks.clear()
    rows = [empty_rows(40 + 40 * n, 7056) for n in range(20)] + [empty_rows(10, 10), empty_rows(10_000, 7056)]
    del rows
    gc.collect()
    assert len(memory._blocks) == 16
    rows = [empty_rows(9_000, 7056) for _ in range(3)]
    assert len(memory._blocks) == 2, "64 MB each, of 128 MiB in all"
    assert len({place.__array_interface__["data"][0] for place in rows}) == 3


def test_threads_get_memory_of_their_own() -> None:
    wrong = []

    def use(number: int) -> None:
        for _ in range(200):
            rows = empty_rows(20, 7056)
            rows[:] = number
            wrong.extend([number] if (np.asarray(rows) != number).any() else [])

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_thread_gets_back_what_it_had() -> None:
    """And not what another thread used later, which is in the cache of another core."""
    memory._blocks.clear()
    mine, place = used()
    with ThreadPoolExecutor(1) as pool:
        theirs, their_place = pool.submit(used).result()
        del mine, theirs
        gc.collect()
        for _ in range(3):
            assert used()[1] == place
            assert pool.submit(lambda: used()[1]).result() == their_place
    assert len(memory._blocks) == 2
    rest = [used() for _ in range(2)]
    assert [found for _, found in rest] == [place, their_place], "a page fault costs more"


def used() -> tuple[NDArray[np.uint8], int]:
    rows = empty_rows(20, 7056)
    return rows, rows.__array_interface__["data"][0]
