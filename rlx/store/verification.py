"""Whether a dataset at rest is what its manifest says, to the last bit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isclose
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx import manifest
from rlx.errors import CorruptDatasetError, FileAccessError
from rlx.files.atomic import PARTIAL
from rlx.files.remote_files import AnyPath, each_below, local
from rlx.manifest import FileRecord, Manifest, ShardRecord
from rlx.progress import Progress, receiver
from rlx.schema import Field, Role, Schema
from rlx.store.layout import NEW, SHARDS, SWEPT, find_dataset, shard_directory, small_copies
from rlx.store.statistics import WHOLE, table_statistics
from rlx.store.stores import Store, store_named
from rlx.store.trajectories import COLUMNS, GROUP, Trajectories, columns_in
from rlx.store.writer import sum_rewards

UNLISTED = "is not listed in the manifest"


class Kind(StrEnum):
    """The kind of problem with a file."""

    DAMAGED = "damaged"  # it was read, and is wrong, or it is missing
    UNLISTED = "unlisted"  # it is not part of the dataset
    UNREADABLE = "unreadable"  # it exists, but cannot be checked


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference between a dataset and its manifest.

    Args:
        shard: name of the shard; none where it is not in one.
        file: path of the file below the shard's directory, or else below the dataset's; none for a shard whose files
            are complete but contradict the manifest.
        problem: a description.
        kind: damaged, unlisted or unreadable.
    """

    shard: str | None
    file: str | None
    problem: str
    kind: Kind = Kind.DAMAGED


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification.

    Args:
        shards: number of shards that the manifest lists.
        files: number of their files.
        bytes: size of their files.
        problems: everything that is wrong or cannot be read.
        missing_shards: requested shards that have not been written yet; not a problem.
        leftovers: paths below the dataset of incomplete files of interrupted commands; not a problem.
    """

    shards: int
    files: int
    bytes: int
    problems: Sequence[Problem]
    missing_shards: Sequence[str]
    leftovers: Sequence[str]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, and everything could be read."""
        return not self.problems

    @property
    def unreadable(self) -> list[Problem]:
        """The problems of files that cannot be read, and so may or may not be damaged."""
        return [problem for problem in self.problems if problem.kind is Kind.UNREADABLE]

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        return {"ok": self.ok, **asdict(self)}


def verify(path: str | Path, *, progress: Progress | None = None) -> Verification:
    """Read every byte of a dataset and compare it with the manifest.

    Of a dataset at a URL it fetches the listed files; unlisted ones are not looked for.

    Args:
        path: the dataset's directory, its id, or a URL.
    """
    progress = receiver(progress)
    try:
        dataset, listed = find_dataset(path)
        store = store_named(listed.store)
    except CorruptDatasetError as exc:
        return Verification(0, 0, 0, [Problem(None, manifest.FILE_NAME, str(exc))], [], [])
    progress.expect("bytes", listed.bytes)
    problems, leftovers = ([], []) if (here := local(dataset)) is None else unlisted_files(here, listed)
    for record in listed.shards:
        problems += _shard_problems(shard_directory(dataset, record.name), store, listed.schema, record, progress)
    files = sum(len(record.files) for record in listed.shards)
    return Verification(len(listed.shards), files, listed.bytes, problems, listed.missing, leftovers)


def unlisted_files(dataset: Path, listed: Manifest) -> tuple[list[Problem], list[str]]:
    """Return files that the manifest does not list: foreign ones, and partial output of interrupted commands."""
    leftovers = [entry.name for entry in dataset.glob(f"{manifest.FILE_NAME}*{PARTIAL}")]
    leftovers += [name for name in (NEW, SWEPT) if (dataset / name).exists()]
    problems = []
    try:
        entries = sorted((dataset / SHARDS).iterdir())
    except FileNotFoundError:
        entries = []
    except OSError as exc:
        problems.append(_unreadable(None, SHARDS, exc))
        entries = []
    records = listed.by_name
    for entry in entries:
        if (record := records.get(entry.name)) is not None:
            there = {path.relative_to(entry).as_posix() for path in entry.rglob("*") if not path.is_dir()}
            for name in sorted(there - set(record.files)):
                if name.endswith(PARTIAL):
                    leftovers.append(f"{SHARDS}/{entry.name}/{name}")
                else:
                    problems.append(Problem(entry.name, name, UNLISTED, Kind.UNLISTED))
        elif entry.is_dir() and not entry.is_symlink():
            leftovers.append(f"{SHARDS}/{entry.name}")  # a shard on its way, or one that was to be listed next
        elif entry.name.startswith("small.") and not entry.is_symlink():  # downloaded with the rest of a bucket
            leftovers += {f"{SHARDS}/{entry.name}"} - {small_copies(listed)[0]}
        else:
            problems.append(Problem(None, f"{SHARDS}/{entry.name}", UNLISTED, Kind.UNLISTED))
    return problems, leftovers


def _shard_problems(
    directory: AnyPath, store: Store, schema: Schema, record: ShardRecord, progress: Progress
) -> list[Problem]:
    def problem_of(name: str) -> Problem | None:
        try:
            problem = _file_problem(directory / name, record.files[name])
            found = None if problem is None else Problem(record.name, name, problem)
        except OSError as exc:
            found = _unreadable(record.name, name, exc)
        except FileAccessError as exc:  # the disk failed while it was read
            found = Problem(record.name, name, str(exc), Kind.UNREADABLE)
        progress.advance("bytes", record.files[name].bytes)
        return found

    problems = [problem for problem in each_below(directory, problem_of, list(record.files)) if problem is not None]
    if not problems:  # else what the files say is not worth a look
        try:
            _check_contents(directory, store, schema, record)
        except CorruptDatasetError as exc:
            problems.append(Problem(record.name, None, str(exc)))
        except FileAccessError as exc:
            problems.append(Problem(record.name, None, str(exc), Kind.UNREADABLE))
    return problems


def _unreadable(shard: str | None, file: str, exc: OSError) -> Problem:
    return Problem(shard, file, f"cannot be read: {exc.strerror}", Kind.UNREADABLE)


def _file_problem(path: AnyPath, expected: FileRecord) -> str | None:
    """Return the problem with a file, or None; raises OSError if it cannot be read."""
    try:
        # From Python 3.14 on, is_file() is False if a directory above may not be searched.
        if (here := local(path)) is not None and not S_ISREG(here.stat().st_mode):
            return "is missing"
        found = FileRecord.of(path)
    except (FileNotFoundError, NotADirectoryError, CorruptDatasetError):
        return "is missing"
    if found.bytes != expected.bytes:
        return f"has {found.bytes:,} bytes, expected {expected.bytes:,}"
    return None if found == expected else f"has crc32c {found.crc32c}, expected {expected.crc32c}"


def _check_contents(directory: AnyPath, store: Store, schema: Schema, record: ShardRecord) -> None:
    for name, field, rows in _arrays(schema, record):
        store.check(directory, name, field, rows)
        store.reader(directory, name, field, rows)
    table = Trajectories.load(store, directory, record)

    def stored(name: str) -> NDArray[np.generic]:
        return store.reader(directory, name, schema[name], record.steps).read_range(0, record.steps)

    last = np.cumsum(table.length) - 1
    for name, ended in (("terminated", table.terminated), ("truncated", table.truncated)):
        if not np.array_equal(np.flatnonzero(stored(name)), last[ended]):
            raise CorruptDatasetError(f"its steps that are {name} differ from its table of trajectories")
    returns = sum_rewards(stored("reward"), table.length)
    if not np.allclose(returns, table.returns, rtol=1e-6, atol=1e-6, equal_nan=True):
        raise CorruptDatasetError("the returns in its table of trajectories are not the sums of its rewards")
    for key, expected in table_statistics(table.returns, table.length, table.whole).items():
        if key in WHOLE and key not in record.statistics:
            continue
        if not _agree(record.statistics.get(key), expected):
            raise CorruptDatasetError(f"the manifest's statistics of {key} differ from its table of trajectories")


def _arrays(schema: Schema, record: ShardRecord) -> Iterator[tuple[str, Field, int]]:
    for name, field in schema.fields.items():
        yield name, field, record.steps + (record.trajectories if field.role == Role.OBSERVATION else 0)
    for column in columns_in(record):
        yield f"{GROUP}/{column}", COLUMNS[column], record.trajectories


def _agree(said: Any, found: Mapping[str, Any]) -> bool:
    """Return whether moments are equal, up to rounding: another machine may have summed in another order."""
    if not isinstance(said, Mapping) or set(said) != set(found):
        return False
    scale = found["count"] * max(abs(found.get("min", 0)), abs(found.get("max", 0)), 1)
    return all(_close(said[key], value, 1e-9 * scale) for key, value in found.items())


def _close(said: Any, found: float | None, tolerance: float) -> bool:
    if said is None or found is None:
        return said is found
    return isinstance(said, int | float) and isclose(said, found, rel_tol=1e-9, abs_tol=tolerance)
