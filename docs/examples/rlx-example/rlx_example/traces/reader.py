"""Reading traces: T + 1 observations, T actions and rewards, and whether the last step was terminal."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlx.block import Block, single
from rlx.errors import CorruptShardError, SourceNotFoundError
from rlx.formats.common.source import id_of
from rlx.schema import Schema


@dataclass(frozen=True)
class Traces:
    """One file; each of its lines is an episode."""

    path: Path
    schema: Schema
    episodes: int
    notes: Mapping[str, Any] = field(default_factory=lambda: {"format": "traces"})

    @property
    def id(self) -> str:
        """Name of the file."""
        return id_of(self.path)

    @property
    def root(self) -> Path:
        """The directory of the file."""
        return self.path.parent

    def shards(self) -> Sequence[int]:
        """Return the only shard."""
        return (0,)

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002
        """Return the only file."""
        return (self.path.name,)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:  # noqa: ARG002
        """Yield the episodes."""
        found = 0
        for number, trace in enumerate(_lines(self.path)):
            found, block = found + 1, _block(trace, number, self.path)
            if block.data["observation"].shape[1:] != self.schema["observation"].shape:
                raise CorruptShardError(f"{self.path}: line {number + 1} has observations of another shape")
            yield block
        if found != self.episodes:
            raise CorruptShardError(f"{self.path}: expected {self.episodes} lines, found {found}")


def open_traces(path: Path) -> Traces:
    """Return the dataset in a file."""
    path = path.absolute()
    blocks = [_block(trace, number, path) for number, trace in enumerate(_lines(path))]
    if not blocks:
        raise CorruptShardError(f"{path} has no line")
    shape = blocks[0].data["observation"].shape[1:]
    return Traces(path, Schema.of(observation=("float32", shape), action=("int64", ())), len(blocks))


def _lines(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line if line.endswith(b"\n") else b"")
                except ValueError as exc:
                    raise CorruptShardError(f"{path}: line {number} is damaged: {exc}") from exc
    except FileNotFoundError as exc:
        raise SourceNotFoundError(f"{path} is missing") from exc


def _block(trace: Any, number: int, path: Path) -> Block:
    try:
        observations = np.array(trace["observations"], np.float32)
        actions, rewards = np.array(trace["actions"], np.int64), np.array(trace["rewards"], np.float32)
        ends = np.arange(1, len(rewards) + 1) == len(rewards)
        is_terminal = bool(trace["is_terminal"])
    except (KeyError, TypeError, ValueError) as exc:
        raise CorruptShardError(f"{path}: line {number + 1} is damaged: {exc!r}") from exc
    if not len(observations) - 1 == len(actions) == len(rewards) > 0:
        raise CorruptShardError(f"{path}: line {number + 1}: expected T + 1 observations, T actions and T rewards")
    columns = {"observation": observations, "action": actions, "reward": rewards}
    return single({**columns, "terminated": ends & is_terminal, "truncated": ends & (not is_terminal)}, episode=number)
