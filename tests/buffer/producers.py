"""Stand-ins for collectors: batches of steps whose observations say which trajectory and which step of it they are."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

# Observations are 1000 * trajectory + step, exact in float32.
LONGEST = 11


class Env:
    """An environment of its own, with episodes of 4 to 11 steps, every other one truncated, and every id used once.

    Args:
        number: which of several.
        count: how many there are, so that no two use an id.
    """

    def __init__(self, number: int, count: int) -> None:
        self.trajectory, self.count, self.step = number, count, 0

    def steps(self, count: int) -> TensorDict:
        """[count] the next steps, as a collector hands them out: episodes go on from one call to the next."""
        rows = [self._advance() for _ in range(count)]
        observation, last, truncated = (torch.tensor(column)[:, None] for column in zip(*rows, strict=True))
        after = {
            "observation": observation.float() + 1,
            "reward": observation.float() % 1000,
            "done": last,
            "terminated": last & ~truncated,
            "truncated": last & truncated,
        }
        return TensorDict(
            {
                "observation": observation.float(),
                "action": torch.arange(count),
                "collector": {"traj_ids": observation[:, 0] // 1000},
                "next": after,
            },
            [count],
        )

    def _advance(self) -> tuple[int, bool, bool]:
        length = 4 + (self.trajectory * 7) % (LONGEST - 3)
        row = (1000 * self.trajectory + self.step, self.step == length - 1, self.trajectory % 2 == 0)
        self.step += 1
        if self.step == length:
            self.trajectory, self.step = self.trajectory + self.count, 0
        return row


def single(batches: int, steps: int) -> Iterator[TensorDictBase]:
    """[T]: one environment."""
    env = Env(0, 1)
    for _ in range(batches):
        yield env.steps(steps)


def parallel(batches: int, steps: int) -> Iterator[TensorDictBase]:
    """[4, T]: four environments in step; also four workers of one environment with ``cat_results="stack"``."""
    envs = [Env(number, 4) for number in range(4)]
    for _ in range(batches):
        yield stack([env.steps(steps) for env in envs])


def parallel_workers(batches: int, steps: int) -> Iterator[TensorDictBase]:
    """[4, 2, T]: four workers of two environments each."""
    envs = [Env(number, 8) for number in range(8)]
    for _ in range(batches):
        yield stack([stack([env.steps(steps) for env in pair]) for pair in zip(envs[::2], envs[1::2], strict=True)])


def asynchronous(batches: int, steps: int, workers: int = 3) -> Iterator[TensorDictBase]:
    """[T]: whichever worker is ready, in no order."""
    rng = np.random.default_rng(0)
    envs = [Env(number, workers) for number in range(workers)]
    for _ in range(batches):
        yield envs[rng.integers(workers)].steps(steps)


def asynchronous_parallel(batches: int, steps: int, workers: int = 3) -> Iterator[TensorDictBase]:
    """[2, T]: the two environments of whichever worker is ready."""
    rng = np.random.default_rng(0)
    envs = [[Env(2 * worker + i, 2 * workers) for i in range(2)] for worker in range(workers)]
    for _ in range(batches):
        yield stack([env.steps(steps) for env in envs[rng.integers(workers)]])


def stack(parts: list[Any]) -> TensorDictBase:
    """[n, ...] of n parts [...]."""
    stacked: Any = torch.stack(parts)
    return cast("TensorDictBase", stacked)


def check_slices(batch: TensorDictBase, slice_len: int) -> None:
    """Asserts that a flat batch of slices holds consecutive steps of one trajectory each, and nothing invented."""
    slices = batch.reshape(-1, slice_len)
    observation = slices["observation"][..., 0]
    steps = torch.arange(slice_len)
    assert (observation == observation[:, :1] + steps).all(), observation
    assert (slices["collector", "traj_ids"] == observation.long() // 1000).all()
    assert (slices["next", "observation"] == slices["observation"] + 1).all()
    assert (slices["next", "reward"] == slices["observation"] % 1000).all()
    trajectory, step = observation.long() // 1000, observation.long() % 1000
    last = step == 3 + (trajectory * 7) % (LONGEST - 3)
    ends = slices["collector", "slice_end"][..., 0]
    assert (slices["next", "terminated"][..., 0] == last & (trajectory % 2 == 1)).all()
    assert ((slices["next", "truncated"][..., 0] & ~ends) == last & (trajectory % 2 == 0)).all()
    assert (slices["next", "done"][..., 0] == last | ends).all()
    assert not ends[:, :-1].any()
    assert (ends[:, -1] == ~last[:, -1]).all()
