"""Checkpoints of the parts of a buffer, each alone: a storage with its steps, a sampler, a writer, or several."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlx.buffer.checkpoint import files_of, load, save
from rlx.buffer.snapshot import blocks, describe_storage, in_lanes, keeps_rows, rows_and_steps
from rlx.errors import SchemaMismatchError


class SavedState(ABC):
    """A part that writes its ``state_dict`` to a directory: a sampler, or a writer.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from rlx.buffer import RandomSampler
        >>> sampler, other = RandomSampler(seed=7), RandomSampler()
        >>> with TemporaryDirectory() as directory:
        ...     sampler.dumps(directory)
        ...     other.loads(directory)
        >>> other.seed
        7
    """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return numbers, lists and tensors."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from such a state."""

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a directory, in place of the checkpoint that may be there.

        Raises:
            DatasetExistsError: the directory holds something else.
        """
        save(Path(path), {"part": _kind(self), "state": self.state_dict()})

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint that ``dumps`` wrote.

        Raises:
            DatasetNotFoundError: the directory holds no checkpoint.
            FormatVersionError: another format version wrote it.
            CorruptDatasetError: the checkpoint is damaged.
            SchemaMismatchError: another kind of part wrote it.
        """
        written, _ = load(Path(path))
        check_part(written, path, _kind(self))
        self.load_state_dict(written["state"])


class SavedSteps:
    """A storage that writes its steps to a directory, compressed.

    Example:
        >>> import torch
        >>> from tempfile import TemporaryDirectory
        >>> from tensordict import TensorDict
        >>> from rlx.buffer import LazyTensorStorage, ListStorage
        >>> storage, other = ListStorage(10), LazyTensorStorage(100)
        >>> rows = storage.append(TensorDict({"action": torch.arange(3)}, [3]))
        >>> with TemporaryDirectory() as directory:
        ...     storage.dumps(directory)
        ...     other.loads(directory)
        >>> other[:]["action"]
        tensor([0, 1, 2])
    """

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the steps to a directory, in place of the checkpoint that may be there.

        Raises:
            DatasetExistsError: the directory holds something else.
        """
        storage: Any = self
        save(Path(path), {"part": "a storage", "state": describe_storage(storage)}, blocks(storage))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Hold the steps of a checkpoint that ``dumps`` of any storage wrote, and no others.

        In a storage of the same ``max_size`` they have the rows that they had; in a larger one the oldest come first.

        Raises:
            DatasetNotFoundError: the directory holds no checkpoint.
            FormatVersionError: another format version wrote it.
            CorruptDatasetError: the checkpoint is damaged; the storage may be left empty.
            SchemaMismatchError: another kind of part wrote it, it has other dimensions, or more steps than fit.
        """
        storage: Any = self
        written, steps = load(Path(path))
        check_part(written, path, "a storage")
        state = written["state"]
        if keeps_rows(state, storage):
            storage.restore(state["storage"], rows_and_steps(state, steps))
            return
        storage.empty()
        for block in in_lanes(state, steps):
            storage.append(block)

    dump = dumps
    load = loads
    save = dumps


class Saved(Protocol):
    """Whatever can be written to a directory."""

    def dumps(self, path: str | os.PathLike[str], /) -> None:
        """Write it."""

    def loads(self, path: str | os.PathLike[str], /) -> None:
        """Restore the written state."""


class SavedTogether(ABC):
    """Several parts that are written to one directory: all of them, or none."""

    @abstractmethod
    def _saved_parts(self) -> Sequence[Saved]:
        """Return the parts."""

    def _own_state(self) -> dict[str, Any]:
        """Return what else there is to keep."""
        return {}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (most have none)
        """Continue from what else was kept."""

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write all parts to a directory, in place of the checkpoint that may be there.

        Raises:
            DatasetExistsError: the directory holds something else.
        """
        parts = self._saved_parts()

        def write(directory: Path) -> None:
            for number, part in enumerate(parts):
                part.dumps(directory / str(number))

        state = {"part": _kind(self), "count": len(parts), "state": self._own_state()}
        save(Path(path), state, write_beside=write)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Become what ``dumps`` wrote, part by part.

        Raises:
            DatasetNotFoundError: the directory holds no checkpoint.
            FormatVersionError: another format version wrote it.
            CorruptDatasetError: the checkpoint is damaged.
            SchemaMismatchError: it is one of another number of parts, or of parts of another kind.
        """
        written, _ = load(Path(path))
        check_part(written, path, _kind(self))
        parts = self._saved_parts()
        if written["count"] != len(parts):
            raise SchemaMismatchError(
                f"{os.fspath(path)} is a checkpoint of {written['count']} parts, not {len(parts)}"
            )
        directory = files_of(Path(path))
        for number, part in enumerate(parts):
            part.loads(directory / str(number))
        self._load_own_state(written["state"])

    dump = dumps
    load = loads
    save = dumps


def _kind(part: object) -> str:
    return type(part).__name__


def check_part(state: Mapping[str, Any], path: str | os.PathLike[str], expected: str) -> None:
    """Raise SchemaMismatchError unless the state of a checkpoint is of this part, or of "a buffer"."""
    found = state.get("part", "a buffer")
    if found != expected:
        raise SchemaMismatchError(f"{os.fspath(path)} is a checkpoint of {found}, expected one of {expected}")
