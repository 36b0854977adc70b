"""The protocol of other projects' files: how a source describes itself, and how it is read.

Every reader raises SourceNotFoundError if a file is missing, FileAccessError if it cannot be read, and
CorruptShardError, which names the file, if a part is missing, damaged, of an unexpected type or length, or has NaN or
infinity where numbers must be finite.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rlx.block import Block
from rlx.errors import CorruptShardError
from rlx.files.disk import file_error, opened_file, refusal
from rlx.schema import Schema
from rlx.store.dictionary import Beginning

# The longest block a source makes: 29 MB of Atari frames, so that a worker's memory does not depend on the episode's.
MAX_BLOCK_STEPS = 4096
_MAX_BLOCK_BYTES = 32 * 2**20
_MAX_BATCH_BYTES = 2**20
_ID = re.compile(r"[A-Za-z0-9][\w.-]*")


class MalformedError(ValueError):
    """Bytes are malformed; callers that know the file raise CorruptShardError with this message."""


@contextmanager
def damage(place: object, *failures: type[Exception]) -> Iterator[None]:
    """Translate a library's errors for a damaged file to CorruptShardError, which names the file.

    Raises:
        FileAccessError: the file cannot be read, whatever it holds.
    """
    try:
        yield
    except failures as exc:
        if (refused := refusal(exc)) is not None:
            raise file_error(refused, str(place), "read") from exc
        reason = str(exc).partition("\n")[0][:200] or type(exc).__name__
        raise CorruptShardError(f"{place} is damaged: {reason}") from exc


class Described(Protocol):
    """The metadata that sources and datasets have."""

    @property
    def id(self) -> str:
        """Name of the run or dataset: ``Pong/5``."""

    @property
    def schema(self) -> Schema:
        """Schema of a step."""

    @property
    def notes(self) -> Mapping[str, Any]:
        """Notes for users on what the data do not show: clipped rewards, unrecorded truncation."""


class Source(Described, Protocol):
    """One run of logged experience in local files, read shard by shard. It can be pickled to another process."""

    def shards(self) -> Sequence[int]:
        """Return the numbers of the shards that can be read, ascending."""

    def files(self, shard: int) -> Sequence[str]:
        """Return the names, below the source's root, of the files that a shard is read from."""

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of one shard in time order; no trajectory crosses shards.

        Args:
            shard: one of ``shards()``.
            dropped: receives how many rows of the source were left out, by reason.

        Raises:
            SourceNotFoundError: a file is missing.
            CorruptShardError: a file is damaged; names it, with the expected and the found value.
        """


@runtime_checkable
class SkimmedSource(Protocol):
    """A source that can decode single rows, so that a few of many cost little."""

    def skim(self, shard: int) -> Iterator[Beginning]:
        """Yield the steps of one shard as ``blocks`` does, with rows that are decoded when indexed.

        Has only fields of several numbers per row. Raises as ``blocks``; a damaged row raises when indexed.
        """


@runtime_checkable
class PlannedSource(Protocol):
    """A source whose episodes share files, so that damage costs all of a shard; it knows what that is."""

    def planned(self, shard: int) -> tuple[int, int]:
        """Return how many episodes and how many steps a shard has, as far as its index tells."""


class Layout(Protocol):
    """Names of the files of one run below a directory or a URL."""

    def index_files(self) -> Sequence[str]:
        """Return small files that must be local before ``source`` can plan; those that the base lacks are left out."""

    def source(self, root: Path) -> Source:
        """Return the run below a local directory, which has the index files; others may still be missing."""


def block_steps(schema: Schema) -> int:
    """Return the maximum steps of a block: ``MAX_BLOCK_STEPS``, or as many as fit into 32 MiB.

    Example:
        >>> block_steps(Schema.of(observation=("uint8", (210, 160, 3)), action=("int64", ())))
        332
    """
    return max(1, min(MAX_BLOCK_STEPS, _MAX_BLOCK_BYTES // schema.row_bytes))


def batch_rows(schema: Schema) -> int:
    """Return the rows of a batch whose processing needs several times their size: those of a block, or 1 MiB.

    That is so where blocks are joined from batches, where rows are compared with the next, and for Parquet's lists.
    """
    return max(1, min(MAX_BLOCK_STEPS, _MAX_BATCH_BYTES // schema.row_bytes))


def begins_with(path: Path, signature: bytes) -> bool:
    """Return whether a path is a file that begins with these bytes."""
    if not path.is_file():
        return False
    with opened_file(path) as file:
        return file.read(len(signature)) == signature


class EpisodeGroups:
    """A source whose shards are groups of whole episodes, about 100,000 steps each.

    Attributes:
        first_episodes: index of the first episode of every shard, and the number of episodes.
    """

    __slots__ = ()
    first_episodes: tuple[int, ...]

    def shards(self) -> Sequence[int]:
        """Return the numbers of the groups."""
        return range(len(self.first_episodes) - 1)


@dataclass(frozen=True, slots=True)
class OneFile:
    """A source in one file.

    Args:
        root: directory of the file.
        file_name: its name there.
    """

    root: Path
    file_name: str

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.root / self.file_name

    @property
    def id(self) -> str:
        """Id made of the file's name."""
        return id_of(self.path)

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002  (one file has all shards)
        """Return the one file."""
        return [self.file_name]


def id_of(path: Path) -> str:
    """Return the id of a dataset that only its path names.

    In the cache of huggingface_hub, whose directories are named by commits, it is the repository's name.

    Example:
        >>> id_of(Path("expert.hdf5")), id_of(Path("hub/datasets--lerobot--pusht/snapshots/1f2e"))
        ('expert', 'pusht')
    """
    *_, cached, below, _ = ("", "", "", *path.parts)
    name = cached.split("--")[-1] if below == "snapshots" and cached.startswith("datasets--") else path.stem
    return name if _ID.fullmatch(name) else "dataset"
