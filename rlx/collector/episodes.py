"""Episodes put together from the steps of environments that run side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.collector.rollout import Steps
from rlx.collector.space import Arrays

_COLUMNS = ("reward", "terminated", "truncated")


@dataclass(slots=True)
class _Running:
    """An episode so far: the pieces of each field, and where it stands."""

    pieces: list[Arrays] = field(default_factory=list)
    steps: int = 0
    now: Arrays = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Episode:
    """One whole episode: observations [L + 1, ...] and everything else [L, ...], by name of the field."""

    data: Arrays

    @property
    def steps(self) -> int:
        """L, at least 1."""
        return len(self.data["reward"])


class Episodes:
    """Takes steps and gives episodes, in the order in which they end; at one time, by number of the environment.

    Args:
        num_envs: environments.
    """

    def __init__(self, num_envs: int) -> None:
        self._running = [_Running() for _ in range(num_envs)]

    @property
    def running_steps(self) -> int:
        """Steps of the episodes that have not ended."""
        return sum(running.steps for running in self._running)

    def add(self, steps: Steps, limit: int | None = None) -> list[Episode]:
        """The episodes that these steps end.

        Args:
            steps: the next ones.
            limit: how many to take: the earliest, and of those of one time the first environments'.
        """
        counts = steps.counts if limit is None else _first(steps.counts, limit)
        starts = np.zeros_like(counts)
        ended: list[Episode] = []
        for at, env in sorted((at, env) for env, at in steps.final if at < counts[env]):
            running = self._running[env]
            _extend(running, steps, env, int(starts[env]), at + 1)
            running.now = steps.final[env, at]
            ended.append(_close(running))
            self._running[env] = _Running()
            starts[env] = at + 1
        for env, running in enumerate(self._running):
            if counts[env] > starts[env]:
                _extend(running, steps, env, int(starts[env]), int(counts[env]))
                running.now = {name: rows[env, counts[env]].copy() for name, rows in steps.observation.items()}
        return ended

    def cut(self) -> list[Episode]:
        """The episodes that have not ended, truncated where they are, by number of the environment."""
        cut = []
        for running in self._running:
            if running.steps:
                running.pieces[-1]["truncated"][-1] = True
                cut.append(_close(running))
        self._running = [_Running() for _ in self._running]
        return cut


def join(episodes: Sequence[Episode], first: int, stride: int = 1) -> Block:
    """One block of these episodes, numbered from ``first``, every number so much more than the one before."""
    count = len(episodes)
    numbers = np.arange(count, dtype=np.int64) * stride + first
    data = episodes[0].data
    if count > 1:  # one alone, as pictures mostly come, is not copied
        data = {name: np.concatenate([episode.data[name] for episode in episodes]) for name in data}
    lengths = np.array([episode.steps for episode in episodes], np.int64)
    return Block(data, lengths, numbers, np.ones(count, bool), np.ones(count, bool))


def _first(counts: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """[n] how many steps of each environment are among the earliest so many."""
    whole = 0
    while np.minimum(counts, whole + 1).sum() <= limit and whole < counts.max():
        whole += 1
    taken = np.minimum(counts, whole)
    more = np.flatnonzero(counts > whole)[: limit - int(taken.sum())]
    taken[more] += 1
    return taken


def _extend(running: _Running, steps: Steps, env: int, start: int, stop: int) -> None:
    # Copies: a slice would keep the steps of all other environments in memory while the episode runs.
    piece = {name: rows[env, start:stop].copy() for name, rows in (*steps.observation.items(), *steps.action.items())}
    piece |= {name: getattr(steps, name)[env, start:stop].copy() for name in _COLUMNS}
    running.pieces.append(piece)
    running.steps += stop - start


def _close(running: _Running) -> Episode:
    pieces = running.pieces
    data = {}
    for name in pieces[0]:
        rows = [piece[name] for piece in pieces]
        if name in running.now:
            rows.append(running.now[name][None].astype(rows[0].dtype, copy=False))
        data[name] = np.concatenate(rows)
    return Episode(data)
