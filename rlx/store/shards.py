"""Opening shards on demand: their arrays, their trajectory tables, and which shard holds which step."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.files.remote_files import AnyPath, RemotePath, each_below
from rlx.fork import on_fork
from rlx.manifest import FileRecord, Manifest
from rlx.schema import Role
from rlx.store.array import ArrayReader
from rlx.store.layout import shard_directory, store_named
from rlx.store.raw_file import check_size
from rlx.store.text import array_names
from rlx.store.trajectories import Trajectories
from rlx.suggestion import command

T = TypeVar("T")

# Memory maps: Linux allows a process 65,530, of which rlx takes a third for one dataset.
MAX_MAPS = 20_000
# Looking at every file that a batch of single steps touches takes a tenth of the time that reading it takes.
CHECK_SHARE = 0.02
_CHECK_S = 0.25
# Files that are looked at in one go, of many.
_CHECKED_AT_ONCE = 64


class Shards:
    """The shards of a dataset. Their arrays are opened when first read; as many as may be mapped stay open.

    Attributes:
        records: the shards that have steps, in order.
        first_step: [len(records) + 1] index of the first step of each, and the number of steps.
        first_row: [len(records) + 1] the same for observations.
        dataset: where they lie.
        is_remote: whether that is at a URL.
    """

    def __init__(self, dataset: AnyPath, manifest: Manifest) -> None:
        self.dataset = dataset
        self.is_remote = isinstance(dataset, RemotePath)
        self.schema = manifest.schema
        self.records = [record for record in manifest.shards if record.steps]
        self._store = store_named(manifest.store)
        steps = np.array([record.steps for record in self.records], np.int64)
        trajectories = np.array([record.trajectories for record in self.records], np.int64)
        self.first_step = np.concatenate([[0], np.cumsum(steps)])
        self.first_row = np.concatenate([[0], np.cumsum(steps + trajectories)])
        self._open: OrderedDict[tuple[int, str], ArrayReader] = OrderedDict()
        self._whole: set[int] = set()  # shards whose files were all there, each of its length
        self._unchecked: list[ArrayReader] = []
        self._renew_lock()
        on_fork(self, Shards._renew_lock)
        self._most_open = max(MAX_MAPS * len(self.schema.fields) // max(len(array_names(self.schema)), 1), 1)
        self._is_cached = False
        self._next_check = 0.0

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def array(self, number: int, name: str) -> ArrayReader:
        """Return the reader of a field of the shard at this place in ``records``.

        Raises:
            CorruptDatasetError: a file of the shard is missing or of another length than the manifest says.
        """
        # Without the lock: a look into a dict is atomic, and this is asked for every shard that a batch touches.
        array = self._open.get((number, name))
        if array is not None:
            return array
        # Nor while it is opened: several that are far away are opened at once.
        opened = self._opened(number, name)
        with self._lock:
            array = self._open.setdefault((number, name), opened)
            while len(self._open) > self._most_open:
                self._open.popitem(last=False)
            return array

    def arrays(self, number: int) -> dict[str, ArrayReader]:
        """Return the readers of all fields of a shard.

        Raises:
            CorruptDatasetError: a file of it is missing or of another length than the manifest says.
        """
        return {name: self.array(number, name) for name in self.schema.fields}

    def each(self, read: Callable[[int], T], numbers: Sequence[int], *, depth: int = 0) -> list[T]:
        """Return the results of a reading function for these shards: in parallel if they are remote.

        Args:
            read: the function.
            numbers: of the shards.
            depth: 1 where the function itself reads many things at once.
        """
        return each_below(self.dataset, read, numbers, depth=depth)

    def check_lengths(self) -> None:
        """Raise CorruptDatasetError if a file of an open shard has been cut: reading past its end kills the process.

        It checks some of them in turn, as often as ``CHECK_SHARE`` of the time allows, and at least every 0.25 seconds.
        """
        began = time.monotonic()
        if began < self._next_check or self.is_remote:
            return
        waiting = self._unchecked or list(self._open.values())
        self._unchecked = waiting[_CHECKED_AT_ONCE:]
        for array in waiting[:_CHECKED_AT_ONCE]:
            array.check_length()
        ended = time.monotonic()
        self._next_check = ended + min((ended - began) / CHECK_SHARE, _CHECK_S)

    def each_field(self, read: Callable[[str], T], numbers: NDArray[np.int64]) -> list[T]:
        """Return the results of a reading function for every field, in these shards: in parallel if they must be
        fetched."""
        if not isinstance(self.dataset, RemotePath):
            return [read(name) for name in self.schema.fields]
        files = self.dataset.files
        before = files.traffic.requests
        if self._is_cached:
            found = [read(name) for name in self.schema.fields]
        else:
            # Opened before, or every field would open them.
            self.each(self.arrays, np.unique(numbers).tolist())
            found = files.at_once(read, list(self.schema.fields), depth=1)
        # A guess for the next call: threads cost as much as reading from the cache.
        self._is_cached = files.traffic.requests == before
        return found

    def _opened(self, number: int, name: str) -> ArrayReader:
        record, field = self.records[number], self.schema[name]
        directory = self._directory(number)
        rows = record.steps + (record.trajectories if field.role == Role.OBSERVATION else 0)
        return self._store.reader(directory, name, field, rows)

    def _directory(self, number: int) -> AnyPath:
        """Return where a shard lies; of one that is here, that its files were all there when it was first needed.

        Others are checked when read.
        """
        directory = shard_directory(self.dataset, self.records[number].name)
        if isinstance(directory, Path) and number not in self._whole:
            self._check(number, directory)
            self._whole.add(number)
        return directory

    def _check(self, number: int, directory: Path) -> None:
        for name, file in self.records[number].files.items():
            try:
                check_size(directory / name, file.bytes)
            except CorruptDatasetError as exc:
                raise CorruptDatasetError(str(exc), hint=command("rlx", "repair", self.dataset)) from exc

    def table(self, number: int) -> Trajectories:
        """Return the trajectory table of one shard."""
        record = self.records[number]
        directory = self._directory(number)
        return Trajectories.load(self._store, directory, record)

    def trajectories(self) -> Trajectories:
        """Return the trajectory table of all shards."""
        return Trajectories.concatenate(self.each(self.table, range(len(self.records)), depth=1))

    def of_steps(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return [n] which shard each of these steps is in."""
        return np.searchsorted(self.first_step, steps, side="right") - 1

    def verify(self, number: int) -> None:
        """Raise CorruptDatasetError unless every byte of a shard is as it was written."""
        record = self.records[number]
        directory = shard_directory(self.dataset, record.name)
        if isinstance(directory, Path):
            self._check(number, directory)
        for name, file in record.files.items():
            found = FileRecord.of(directory / name)
            if found != file:
                message = f"{directory / name} is damaged: crc32c {found.crc32c}, expected {file.crc32c}"
                remedy = (
                    "push a whole copy with --overwrite" if self.is_remote else command("rlx", "repair", self.dataset)
                )
                raise CorruptDatasetError(message, hint=remedy)
