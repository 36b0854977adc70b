"""A dataset on disk or at a URL: its manifest, its trajectories, and its steps at any index."""

import functools
import logging
import operator
import os
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptDatasetError, DatasetError, FileAccessError, IncompleteDatasetError, SchemaMismatchError
from rlx.files import lock
from rlx.files.disk import is_there
from rlx.files.disk_cache import DiskCache
from rlx.files.remote_files import DEFAULT_CACHE_BYTES, Traffic, local, remote
from rlx.manifest import Manifest, ShardRecord
from rlx.numbers import array_of, check_whole
from rlx.schema import Field, Key, Role, Schema, as_path
from rlx.store.dataset_writer import claimed
from rlx.store.foreign_types import space_of
from rlx.store.layout import JOURNAL, SHARDS, find_dataset
from rlx.store.read_ahead import ReadAhead
from rlx.store.shards import Shards, shard_blocks
from rlx.store.statistics import summary
from rlx.store.step_reader import StepReader
from rlx.store.trajectories import Trajectories
from rlx.store.verification import Kind
from rlx.store.verification import verify as verify_dataset
from rlx.wording import command

if TYPE_CHECKING:
    from gymnasium.spaces import Space
    from tensordict import TensorDict

logger = logging.getLogger(__name__)
_PLURALS = {"step": "steps", "trajectory": "trajectories"}


class Dataset:
    """A dataset opened for reading. It can be shared between threads and sent to other processes.

    ``len(dataset)`` and indices count steps; iterating yields trajectories. ``dataset[i]``, ``dataset[i:j]`` and
    ``dataset[indices]`` (list, numpy or torch; negative; boolean mask) are TED TensorDicts of batch size [], [j - i]
    and [n], in the order asked for. Observations that the source did not record are zeros (see
    ``trajectories.final_recorded``).

    Of consecutive steps of one trajectory, as ``dataset[i:j]`` and ``trajectory(i)`` give them, ``observation`` and
    ``("next", "observation")`` share memory: what changes one in place changes the other. ``read(index, copy=True)``
    and ``trajectory(i, copy=True)`` give memory of its own to each key, as buffers and loaders do.

    Args:
        path: the dataset's directory, its id below ``$RLX_HOME``, or a URL: ``s3://``, ``gs://``, ``az://``,
            ``hf://`` or ``http(s)://``. Reads from a URL fetch only what they need.
        verify: check every file against the manifest first. Reads skip checksums, and notice only damage that cannot
            be decoded.
        partial: open a dataset that another process is still writing, with the shards that are complete.
        cache_bytes: size of the cache of a URL, in bytes of memory.
        disk_cache: a second cache of URLs, on the local disk.

    Raises:
        DatasetNotFoundError: the dataset does not exist.
        IncompleteDatasetError: another process is writing it, or it has no manifest yet.
        CorruptDatasetError: the manifest is damaged, or with ``verify`` any file.
        FileAccessError: a file exists but cannot be read.
        ForbiddenError: the server of a URL refuses access.
        DownloadError: fetching from a URL failed after all retries.
        MissingExtraError: a URL needs obstore, which is not installed.

    Attributes:
        manifest: name, schema, shards, notes and lineage of the dataset.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify: bool = False,
        partial: bool = False,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        disk_cache: DiskCache | None = None,
    ) -> None:
        self._root, self.manifest = find_dataset(path, cache_bytes=cache_bytes, disk=disk_cache)
        here = local(self._root)
        if here is not None and not partial:
            if writer := lock.writer_of(here):
                raise _being_written(here, self.manifest, writer)
            if is_there(here / JOURNAL):
                self.manifest = _with_journaled(here, self.manifest)
        self._shards = Shards(self._root, self.manifest)
        if verify:
            self._check()

    def __reduce__(self) -> tuple[object, ...]:
        # In another process, too: the sender chose to read it, complete or not.
        options: dict[str, Any] = {"partial": True}
        if (far := remote(self._root)) is None:
            return functools.partial(type(self), **options), (self.path.absolute(),)
        options |= {"cache_bytes": far.files.cache_bytes, "disk_cache": far.files.disk}
        return functools.partial(type(self), **options), (str(far),)

    def __len__(self) -> int:
        return int(self._shards.first_step[-1])

    def __repr__(self) -> str:
        here = self.manifest
        return (
            f"Dataset({here.id!r}, steps={here.steps:,}, trajectories={here.trajectories:,}, path={str(self._root)!r})"
        )

    def __fspath__(self) -> str:
        """Return the directory or the URL, so that functions of paths accept an open dataset."""
        return self.where

    def _check(self) -> None:
        if self.is_remote:
            for number in range(len(self._shards.records)):
                self._shards.verify(number)
        elif problems := verify_dataset(self.path).problems:
            first = problems[0]
            where = "/".join(part for part in (first.shard, first.file) if part)
            if first.kind is Kind.UNREADABLE:
                raise FileAccessError(f"{self._root}: {where} {first.problem}")
            raise CorruptDatasetError(
                f"{self._root} is damaged: {where}: {first.problem}", hint=command("rlx", "repair", self._root)
            )

    @property
    def path(self) -> Path:
        """The dataset's directory.

        Raises:
            DatasetError: the dataset is at a URL, and so read-only.
        """
        if (here := local(self._root)) is not None:
            return here
        raise DatasetError(
            f"{self._root} is not on this machine: expected a directory or an id",
            hint=command("rlx", "pull", self._root),
        )

    @property
    def where(self) -> str:
        """The dataset's directory, or its URL."""
        return str(self._root)

    @property
    def is_remote(self) -> bool:
        """Whether the dataset is at a URL."""
        return remote(self._root) is not None

    @property
    def schema(self) -> Schema:
        """Schema of a step."""
        return self.manifest.schema

    @cached_property
    def steps(self) -> StepReader:
        """Reader of fields of steps as numpy arrays."""
        return StepReader(self._shards)

    def reading_ahead(self) -> tuple[Self, ReadAhead] | None:
        """Return the dataset, read through pages that can be pinned in memory, and the reader that pins them.

        None if it is not at a URL, or too large for the address space.
        """
        if (far := remote(self._root)) is None:
            return None
        try:
            ahead = ReadAhead(far, self.manifest, self.steps)
        except OSError:
            return None
        same = copy(self)
        same.steps = ahead.steps
        return same, ahead

    @property
    def trajectories(self) -> Trajectories:
        """The table of all trajectories."""
        return self.steps.trajectories

    @property
    def stats(self) -> dict[str, Any]:
        """Statistics by name, as ``rlx inspect --stats --json`` prints them; reads only the manifest.

        ``return``, ``length``, ``reward`` and the observations have ``min``, ``max``, ``mean`` and ``std``, which are
        None without data. Of a vector of 512 dimensions at most, and of a picture with channels, each is a list, of one
        number for each dimension or channel (of a dataset that rlx 0.1.0 wrote: one number for all). Observations are
        those that steps begin with; of a kilobyte or more, those of every sixteenth step. ``return`` and ``length`` are
        of whole episodes, ``trajectory_return`` and ``trajectory_length`` of all trajectories. ``action`` has
        ``counts`` by action where actions are few integers.

        Example:
            >>> rlx.open("Pong/5").stats["reward"]["min"], len(rlx.open("cartpole").stats["observation"]["mean"])
            (-1.0, 4)
        """
        return summary(self.shard_records)

    @property
    def observation_space(self) -> "Space[Any]":
        """Gymnasium space of ``observation``; a ``Dict`` of all observations if none has that name.

        If the source did not declare the space of a field, it is the range of its dtype.

        Raises:
            MissingExtraError: gymnasium is not installed.
        """
        observations = {name: self.schema[name] for name in self.schema.names(Role.OBSERVATION)}
        if any(name.split("/")[0] == "observation" for name in observations):
            return space_of(observations, "observation")
        return space_of({f"observation/{name}": field for name, field in observations.items()}, "observation")

    @property
    def action_space(self) -> "Space[Any]":
        """Gymnasium space of ``action``.

        If the source did not declare it, and actions are few integers, it ends at the largest action of the data.

        Raises:
            SchemaMismatchError: no field is named ``action``.
            MissingExtraError: gymnasium is not installed.

        Example:
            >>> rlx.open("Pong/5").action_space
            Discrete(6)
        """
        fields = dict(self.schema.fields)
        if "action" in fields and fields["action"].space is None and (count := self._largest_action()) is not None:
            fields["action"] = replace(fields["action"], space={"type": "Discrete", "n": count + 1})
        try:
            return space_of(fields, "action")
        except KeyError as exc:
            raise SchemaMismatchError(f"{self.where} has no action: its fields are {', '.join(fields)}") from exc

    @property
    def num_actions(self) -> int:
        """Number of discrete actions; see ``action_space``.

        Raises:
            SchemaMismatchError: actions are not discrete, or their number is unknown.

        Example:
            >>> rlx.open("Pong/5").num_actions
            6
        """
        field = self.schema.fields.get("action")
        declared = (field.space if field is not None else None) or {}
        if declared.get("type") == "Discrete":
            return int(declared["n"])
        largest = None if field is None or declared else self._largest_action()
        if largest is None:
            found = "no action" if field is None else f"{field.dtype}{list(field.shape)} of space {dict(declared)}"
            raise SchemaMismatchError(f"{self.where}: expected discrete actions, found {found:.200}")
        return largest + 1

    def _largest_action(self) -> int | None:
        """Return the largest action that was taken, if actions are few integers, none of them negative."""
        counts = self.stats.get("action", {}).get("counts")
        actions = [int(action) for action in counts or ()]
        return max(actions) if actions and min(actions) >= 0 else None

    def trajectory(self, number: int, keys: Sequence[Key] | None = None, *, copy: bool = False) -> "TensorDict":
        """Return the steps of a trajectory, a TED TensorDict [T].

        ``observation`` and ``("next", "observation")`` share memory, unless ``copy`` is set.

        Args:
            number: the trajectory, in storage order; negative numbers count from the end.
            keys: keys to read, as ``get`` takes them; all by default.
            copy: whether each key has memory of its own.

        Raises:
            IndexError: the dataset has no such trajectory.
            OptionError: number is not a whole number.

        Example:
            >>> rlx.open("Pong/5").trajectory(0)["next", "reward"].sum()
            tensor(-21.)
        """
        table, count = self.trajectories, len(self.trajectories)
        place = check_whole("trajectory", number, None)
        if not -count <= place < count:
            raise IndexError(f"trajectory {place} is out of range for {count:,} trajectories")
        start = int(self.steps.start[place])
        return self.get(slice(start, start + int(table.length[place])), keys, copy=copy)

    def __iter__(self) -> "Iterator[TensorDict]":
        """Yield the trajectories in storage order, each a TED TensorDict [T]."""
        for number in range(len(self.trajectories)):
            yield self.trajectory(number)

    def __getitem__(self, index: Any) -> "TensorDict":
        return self.get(index)

    def get(self, index: Any, keys: Sequence[Key] | None = None, *, copy: bool = False) -> "TensorDict":
        """Return the steps at an index as ``dataset[index]`` does, with these keys only.

        Args:
            index: a step, a slice, or a 1-d list, array or tensor of steps or of booleans.
            keys: TED keys to read, each a leaf or a group such as ``"next"``; all by default. Others are neither read
                nor decoded.
            copy: whether each key has memory of its own; otherwise ``observation`` and ``("next", "observation")`` of
                consecutive steps of one trajectory share memory.

        Raises:
            IndexError: no such step.
            KeyError: a key that is not stored.

        Example:
            >>> sorted(rlx.open("cartpole").get([3, 1], keys=["observation", "action"]).keys())
            ['action', 'observation']
            >>> steps = rlx.open("cartpole").get(slice(0, 8), copy=True)
            >>> before = steps["next", "observation"].clone()
            >>> _ = steps["observation"].zero_()
            >>> bool((steps["next", "observation"] == before).all())
            True
        """
        from rlx.store.ted import read_ted  # torch takes seconds to import; blocks do without

        if isinstance(index, str) or (isinstance(index, tuple) and index and isinstance(index[0], str)):
            raise IndexError(f"index {index!r}: expected step numbers; dataset[:][{index!r}] is a key of all steps")
        paths = None if keys is None else [as_path(key) for key in keys]
        if isinstance(index, slice) or not _is_integer(index):
            return read_ted(self.steps, self.schema, normalize(index, len(self)), keys=paths, shared=not copy)
        return read_ted(self.steps, self.schema, normalize([operator.index(index)], len(self)), keys=paths)[0]

    def __getitems__(self, indices: list[int]) -> "list[TensorDict]":
        """Return one TensorDict per index; ``torch.utils.data.DataLoader`` reads a batch by this."""
        return list(self.get(indices, copy=True).unbind(0))

    def blocks(self, max_steps: int = 4096, *, trajectories: NDArray[np.int64] | None = None) -> Iterator[Block]:
        """Yield the steps in storage order, in blocks of at most ``max_steps``; verifies each shard first.

        Args:
            trajectories: [n] numbers of those to read, ascending; all by default.

        Raises:
            CorruptDatasetError: a shard is damaged.
        """
        for number, (first, stop) in enumerate(pairwise(self.first_trajectories.tolist())):
            here = None
            if trajectories is not None:
                here = trajectories[slice(*trajectories.searchsorted((first, stop)))] - first
            if here is None or len(here):
                yield from self.shard_blocks(number, max_steps, trajectories=here)

    @property
    def traffic(self) -> Traffic:
        """The bytes and requests fetched so far; 0 for a local dataset."""
        return Traffic() if (far := remote(self._root)) is None else far.files.traffic

    @property
    def shard_names(self) -> list[str]:
        """Names of the shards that have steps, in order."""
        return [record.name for record in self._shards.records]

    @property
    def shard_records(self) -> list[ShardRecord]:
        """The manifest's records of the shards that have steps, in order."""
        return self._shards.records

    @cached_property
    def first_trajectories(self) -> NDArray[np.int64]:
        """[n + 1] number of the first trajectory of each shard that has steps; then the number of all trajectories."""
        return np.cumsum([0, *(record.trajectories for record in self._shards.records)])

    def shard_files(self, number: int) -> list[str]:
        """Return paths of a shard's files below the dataset's directory."""
        record = self._shards.records[number]
        return [f"{SHARDS}/{record.name}/{name}" for name in record.files]

    def shard_table(self, number: int) -> Trajectories:
        """Return the table of the trajectories of one shard."""
        return self._shards.table(number)

    def shard_blocks(
        self,
        number: int,
        max_steps: int = 4096,
        *,
        trajectories: NDArray[np.int64] | None = None,
        steps: int | None = None,
    ) -> Iterator[Block]:
        """Yield the steps of one shard in blocks, after verifying it.

        Args:
            number: position of the shard among those that have steps.
            max_steps: maximum number of steps per block.
            trajectories: [n] positions in the shard, ascending; only these are decoded. All by default.
            steps: maximum number of steps in all; the last trajectory is cut there.

        Raises:
            CorruptDatasetError: it is damaged.
        """
        self._shards.verify(number)
        yield from shard_blocks(self._shards, number, max_steps, trajectories=trajectories, steps=steps)


def _with_journaled(path: Path, manifest: Manifest) -> Manifest:
    """Return the manifest with the episodes that an interrupted recording left in a journal."""
    try:
        with claimed(path):
            return Manifest.load(path)
    except (DatasetError, OSError) as exc:
        logger.warning("%s: finished episodes of an interrupted recording are not in its shards yet: %s", path, exc)
        return manifest


def _being_written(path: Path, manifest: Manifest, writer: str) -> IncompleteDatasetError:
    whole, planned = len(manifest.shards), len(manifest.shards) + len(manifest.missing)
    return IncompleteDatasetError(
        f"{path} is being written by pid {writer}: {whole} of {planned} shards are complete",
        hint=f"wait for it, or open its complete shards: rlx.open({str(path)!r}, partial=True)",
    )


def _is_integer(index: Any) -> bool:
    if isinstance(index, bool | np.bool_):
        raise IndexError(f"index {index!r}: expected an integer, a slice or a 1-d array, found a bool")
    return hasattr(index, "__index__") and not (hasattr(index, "ndim") and index.ndim > 0)


def cast_hint(datasets: Sequence[Dataset]) -> str | None:
    """Return the command that casts fields of one of two datasets to the dtypes of the other.

    None unless only dtypes differ in fields of both, and one of two dtypes holds all values of the other.
    """
    for one, other in pairwise(datasets):
        pairs = {name: (field, other.schema[name]) for name, field in one.schema.fields.items() if name in other.schema}
        pairs = {name: (field, its) for name, (field, its) in pairs.items() if field.dtype != its.dtype}
        if not pairs or any(replace(field, dtype=its.dtype) != its for field, its in pairs.values()):
            continue
        for changed, place in ((one, 0), (other, 1)):
            dtypes = {name: (pair[1 - place], pair[place]) for name, pair in pairs.items()}
            casts = [f"{name}={wide.dtype}" for name, (wide, narrow) in dtypes.items() if _holds(wide, narrow)]
            if len(casts) == len(pairs):
                return command("rlx", "preprocess", changed.path, "NEW", "--transform", f"cast:{','.join(casts)}")
    return None


def _holds(wide: Field, narrow: Field) -> bool:
    return not (wide.is_text or narrow.is_text) and np.promote_types(wide.dtype, narrow.dtype) == wide.dtype


def normalize(index: Any, length: int, unit: Literal["step", "trajectory"] = "step") -> NDArray[np.int64]:
    """Return [n] steps or trajectories that an index means, all in 0 to length.

    Args:
        index: a slice, or a 1-d list, array or tensor of integers (negative ones count from the end) or booleans.
        unit: name of what the numbers count, for messages.
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(length), dtype=np.int64)
    steps = array_of(index)
    if steps.ndim != 1:
        raise IndexError(f"index of {steps.ndim} dimensions: expected an integer, a slice or a 1-d array")
    if steps.dtype == bool:
        if len(steps) != length:
            raise IndexError(f"boolean mask of {len(steps)} {_PLURALS[unit]}: expected {length}")
        return np.flatnonzero(steps)
    if len(steps) and steps.dtype.kind not in "iu":
        raise IndexError(f"index of dtype {steps.dtype}: expected integers or booleans")
    if len(steps):
        low, high = int(steps.min()), int(steps.max())
        if low < -length or high >= length:
            bad = high if high >= length else low
            raise IndexError(f"{unit} {bad} is out of range: the dataset has {length} {_PLURALS[unit]}")
    wide = steps.astype(np.int64)
    return np.where(wide < 0, wide + length, wide)
