"""Dopamine's ring buffer and the logging of it, row by row, for files whose every row is known.

Written from Dopamine's code and not from rlx's: rows go into slot ``add_count % capacity``, an episode's
first ``add`` writes the padding before it, the buffer is logged after an ``add`` that leaves ``add_count %
capacity == capacity - 1``, and at the end of training once more, with the cursor in place of add_count.
"""

import gzip
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

PADDING = (-1, -1)
End = Literal["terminal", "timeout", "running"]


@dataclass(frozen=True)
class Episode:
    """T rows; ``quiet`` ones have action 0 and reward 0, as padding has."""

    length: int
    end: End = "terminal"
    quiet: frozenset[int] = frozenset()


@dataclass
class Ring:
    """A replay buffer that logs itself; ``journal[row]`` says what a row of the run is: (episode, step) or
    PADDING."""

    folder: Path
    capacity: int
    shape: tuple[int, ...] = (2, 2)
    stack: int = 4
    horizon: int = 1
    has_episode_ends: bool = False
    journal: list[tuple[int, int]] = field(default_factory=list)
    logged: list[list[int]] = field(default_factory=list)
    """Rows of the run that each file holds, by suffix."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # As numpy.empty leaves it: anything but zeros.
        self.observation = np.full((self.capacity, *self.shape), 0xAB, np.uint8)
        self.action = np.full(self.capacity, -1493209637, np.int32)
        self.reward = np.full(self.capacity, 2.7643969e-17, np.float32)
        self.terminal = np.full(self.capacity, 0xAB, np.uint8)

    def run(self, episodes: Iterable[Episode]) -> None:
        """Plays episodes and ends the training."""
        for number, episode in enumerate(episodes):
            for step in range(episode.length):
                is_last = step == episode.length - 1
                if step == 0:
                    for _ in range(self.stack - 1):
                        self._write(PADDING, 0, 0.0, 0)
                action, reward = (0, 0.0) if step in episode.quiet else row_values(len(self.journal))
                terminal = int(is_last and episode.end == "terminal")
                self._write((number, step), action, reward, terminal)
                if len(self.journal) % self.capacity == self.capacity - 1:
                    self._log(len(self.journal))
        self._log(len(self.journal) % self.capacity)

    def _write(self, what: tuple[int, int], action: int, reward: float, terminal: int) -> None:
        row = len(self.journal)
        slot = row % self.capacity
        self.observation[slot] = 0 if what == PADDING else frame(row, self.shape)
        self.action[slot], self.reward[slot], self.terminal[slot] = action, reward, terminal
        self.journal.append(what)

    def _log(self, add_count: int) -> None:
        rows, suffix = len(self.journal), len(self.logged)
        cursor = rows % self.capacity
        invalid = (cursor - self.horizon + np.arange(self.stack + self.horizon)) % self.capacity
        self.save("$store$_observation", suffix, self.observation)
        self.save("$store$_action", suffix, self.action)
        self.save("$store$_reward", suffix, self.reward)
        self.save("$store$_terminal", suffix, self.terminal)
        self.save("add_count", suffix, np.array(add_count))
        self.save("invalid_range", suffix, invalid)
        if self.has_episode_ends:
            write_gz(self.folder / f"episode_end_indices_ckpt.{suffix}.gz", b"a pickle that must not be opened")
        self.logged.append(list(range(max(rows - self.capacity, 0), rows)))

    def save(self, name: str, suffix: int, array: NDArray[Any]) -> None:
        """Writes one file."""
        save_npy(self.folder / f"{name}_ckpt.{suffix}.gz", array)


def row_values(row: int) -> tuple[int, float]:
    """Action and reward of a row of the run: never the same for two rows near each other."""
    return row + 1, (row % 201 - 100) / 100


def frame(row: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The observation of a row of the run: its number, so that a row that is out of place shows."""
    number = np.frombuffer(np.array(row + 1, "<u4").tobytes(), np.uint8)
    return np.resize(number, shape)


def save_npy(path: Path, array: NDArray[Any], *, allow_pickle: bool = False) -> None:
    """A gzipped npy file, the same bytes each time."""
    npy = io.BytesIO()
    np.save(npy, array, allow_pickle=allow_pickle)
    write_gz(path, npy.getvalue())


def write_gz(path: Path, content: bytes) -> None:
    """A gzip file, the same bytes each time."""
    path.write_bytes(gzip.compress(content, compresslevel=6, mtime=0))


def remove_suffix(folder: Path, suffix: int) -> None:
    """Removes all files of a suffix, as if they had never been downloaded."""
    for path in folder.glob(f"*_ckpt.{suffix}.gz"):
        path.unlink()
