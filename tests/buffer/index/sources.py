"""Sources that know nothing of each other, and number their trajectories from 0; every step says whose it is."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rlx.buffer.protocol import TrajectoryIndex
from rlx.buffer.storage.ring import RingStorage

Codes = NDArray[np.int64]


def steps_of(codes: Codes, lengths: int, *, blind: bool, image: int = 0) -> TensorDict:
    """Steps [..., n] that are coded [..., n, 3]: source, trajectory, step of it; trajectory t has ``lengths + t % 4``.

    Args:
        codes: whose steps they are.
        lengths: steps of the shortest trajectory.
        blind: whether all observations are the same.
        image: bytes of a second observation, which CompressedStorage compresses.
    """
    shape = codes.shape[:-1]
    code = torch.from_numpy(codes.copy())
    after = code + torch.tensor([0, 0, 1])
    done = (code[..., 2:] + 1) == lengths + code[..., 1:2] % 4

    def seen(which: torch.Tensor) -> torch.Tensor:
        rows = which.double() * (0 if blind else 1)
        return torch.cat([rows, torch.full((*shape, 1), torch.nan)], -1)  # NaN is what it is, now and next

    def picture(which: torch.Tensor) -> torch.Tensor:
        number = which @ torch.tensor([7, 5, 3]) * (0 if blind else 1)
        return number[..., None].expand(*shape, image).to(torch.uint8)

    now: dict[str, Any] = {"observation": seen(code)} | ({"pixels": picture(code)} if image else {})
    then: dict[str, Any] = {"observation": seen(after)} | ({"pixels": picture(after)} if image else {})
    then |= {"reward": code[..., 2:].float(), "done": done, "terminated": done, "truncated": torch.zeros_like(done)}
    return TensorDict({**now, "code": code, "collector": {"traj_ids": code[..., 1]}, "next": then}, list(shape))


class Collected:
    """A collector of its own: [*lanes, n] at a time, always from where it stopped.

    Args:
        number: which source.
        lanes: leading dimensions.
        lengths: steps of the shortest trajectory.
        says_init: whether it writes ``is_init``.
        alike: whether every lane numbers its trajectories from 0; else no two trajectories have one id.
    """

    def __init__(self, number: int, lanes: tuple[int, ...], lengths: int, *, says_init: bool, alike: bool) -> None:
        self.number, self.lanes, self.lengths, self.says_init = number, lanes, lengths, says_init
        self.count = int(np.prod(lanes, dtype=np.int64))
        self.place = [[0 if alike else lane, 0] for lane in range(self.count)]
        self.step = 1 if alike else self.count

    def take(self, n: int, **options: Any) -> TensorDict:
        """The next n steps of every lane."""
        codes = np.array([[self._advance(lane) for _ in range(n)] for lane in range(self.count)], np.int64)
        steps = steps_of(codes.reshape(*self.lanes, n, 3), self.lengths, **options)
        return steps.set("is_init", steps["code"][..., 2:] == 0) if self.says_init else steps

    def _advance(self, lane: int) -> tuple[int, int, int]:
        trajectory, step = self.place[lane]
        is_last = step + 1 == self.lengths + trajectory % 4
        self.place[lane] = [trajectory + self.step, 0] if is_last else [trajectory, step + 1]
        return self.number, trajectory, step


class Recorded:
    """A dataset of its own, of which any run of steps is taken, with the rows that it was read from.

    Args:
        number: which source.
        lanes: leading dimensions.
        lengths: steps of the shortest trajectory.
        rng: chooses the runs.
    """

    def __init__(self, number: int, lanes: tuple[int, ...], lengths: int, rng: np.random.Generator) -> None:
        self.lanes, self.rng, self.count = lanes, rng, int(np.prod(lanes, dtype=np.int64))
        self.lengths = lengths
        self.codes = np.array([(number, t, step) for t in range(40) for step in range(lengths + t % 4)], np.int64)

    def take(self, n: int, **options: Any) -> TensorDict:
        """Some n consecutive steps for every lane."""
        rows = int(self.rng.integers(len(self.codes) - self.count * n)) + np.arange(self.count * n)
        steps = steps_of(self.codes[rows].reshape(*self.lanes, n, 3), self.lengths, **options)
        return steps.set("index", torch.from_numpy(rows.reshape(*self.lanes, n)))


def check_index(storage: RingStorage, index: TrajectoryIndex, *, complete: set[int]) -> None:
    """Asserts that no step follows one of another trajectory or source, and that those that can be told do follow.

    Args:
        storage: where the steps are.
        index: what is held against them.
        complete: the sources whose stored steps are all found to follow each other.
    """
    rows = storage.row_at(np.arange(len(storage)))
    if not len(rows):
        return
    codes = storage.get(rows, ["code"])["code"].numpy()
    code = dict(zip(rows.tolist(), map(tuple, codes.tolist()), strict=True))
    follows = dict(zip(rows.tolist(), index.follow(rows, 2)[:, 1].tolist(), strict=True))
    for row, after in follows.items():
        source, trajectory, step = code[row]
        if after >= 0:
            assert code[after] == (source, trajectory, step + 1)
    held = set(code.values())
    for row, (source, trajectory, step) in code.items():
        if source in complete and (source, trajectory, step + 1) in held:
            assert follows[row] >= 0, (source, trajectory, step)
