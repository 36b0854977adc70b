"""``rlx.open`` and its result: a dataset with the verbs of rlx as methods."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import DatasetError
from rlx.files.disk_cache import DiskCache
from rlx.files.remote_files import DEFAULT_CACHE_BYTES
from rlx.files.urls import check_path, is_url
from rlx.home import cache_home
from rlx.manifest import ShardRecord
from rlx.progress import Progress
from rlx.store import dataset as stored
from rlx.store.statistics import statistics_of, summary
from rlx.store.step_reader import SelectedSteps
from rlx.verbs.arguments import ExportFormat, StrPath
from rlx.verbs.merge import split as split_dataset
from rlx.verbs.preprocess import PreprocessArguments, listed
from rlx.verbs.preprocess import preprocess as preprocess_dataset
from rlx.verbs.sample import sample as sample_datasets
from rlx.wording import command

if TYPE_CHECKING:
    from rlx.verbs.export import ExportReport
    from rlx.verbs.preprocess import StepFunction, Transforms
    from rlx.verbs.sampling import Sample


P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def _signed(verb: Callable[..., Any], *left_out: str) -> Callable[[F], F]:
    """Return a decorator for a method that hands ``**options`` on to a function: its signature names them."""

    def decorate(method: F) -> F:
        own = [
            one
            for one in signature(method).parameters.values()
            if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        ]
        _, *theirs = signature(verb).parameters.values()
        named = {*left_out, *(one.name for one in own)}
        parameters = [*own, *(one for one in theirs if one.name not in named)]
        method.__dict__["__signature__"] = signature(method).replace(parameters=parameters)
        return method

    return decorate


def _like(
    verb: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Return a decorator for a method that hands all its arguments on to a function, also for type checkers."""
    return _signed(verb)


class Dataset(stored.Dataset):
    """A dataset opened for reading, as ``rlx.open`` returns it.

    ``len(dataset)`` and indices count steps; iterating yields trajectories. ``dataset[i]``, ``dataset[i:j]`` and
    ``dataset[indices]`` (list, numpy or torch; negative; boolean mask) are TED TensorDicts of batch size [], [j - i]
    and [n], in the order asked for. It can be shared between threads and sent to other processes.

    Of consecutive steps of one trajectory, as ``dataset[i:j]`` and ``trajectory(i)`` give them, ``observation`` and
    ``("next", "observation")`` share memory: what changes one in place changes the other. ``read(index, copy=True)``
    and ``trajectory(i, copy=True)`` give memory of its own to each key, as buffers and loaders do.

    Attributes:
        manifest: name, schema, shards, notes and lineage of the dataset.

    Example:
        >>> import rlx
        >>> dataset = rlx.open("cartpole")
        >>> dataset[:32]["next", "reward"].shape
        torch.Size([32, 1])
        >>> dataset.trajectory(0).batch_size == (dataset.trajectories.length[0],)
        True
        >>> sum(len(trajectory) for trajectory in dataset) == len(dataset)
        True
    """

    @property
    def _directory(self) -> Path:
        """The directory of the files; of a selection, the whole dataset's."""
        return self.path

    @property
    def _transforms(self) -> tuple[str, ...]:
        """Transforms that make a selection of the whole dataset."""
        return ()

    @property
    def _shards_of_trajectories(self) -> NDArray[np.int64]:
        """[N] the number in the name of each trajectory's shard."""
        from rlx.transform.selections import shards  # most datasets are only read

        return shards(self)

    def filter(self, expression: str) -> "SelectedDataset":
        """Return the dataset restricted to the trajectories for which a condition holds; nothing is copied.

        ``preprocess`` writes it; that is ``rlx preprocess --transform filter:EXPRESSION``.

        Args:
            expression: a condition on columns of the trajectory table, such as ``whole and return > 10``.

        Raises:
            TransformError: the expression does not parse.

        Example:
            >>> dataset = rlx.open("cartpole")
            >>> long = dataset.filter("whole and length > 20")
            >>> bool((long.trajectories.length > 20).all())
            True
        """
        from rlx.transform.selections import Filter  # most datasets are only read

        kept = Filter(expression).keeps(self.trajectories, self._shards_of_trajectories)
        return SelectedDataset(self, np.flatnonzero(kept), (expression,))

    def select(self, trajectories: Any) -> "SelectedDataset":
        """Return the dataset of these trajectories, in the order given; nothing is copied.

        ``preprocess`` writes them in storage order.

        Args:
            trajectories: numbers of trajectories (list, numpy or torch; negative ones count from the end), a boolean
                mask, or a slice. A number may be given several times: its steps are then read as those of several
                trajectories.

        Raises:
            IndexError: the dataset has no such trajectory, or these are not numbers of trajectories.

        Example:
            >>> dataset = rlx.open("cartpole")
            >>> some = dataset.select([5, 2])
            >>> bool((some.trajectory(0)["observation"] == dataset.trajectory(5)["observation"]).all())
            True
        """
        kept = stored.normalize(trajectories, len(self.trajectories), "trajectory")
        return SelectedDataset(self, kept, None)

    def top(self, amount: float, by: Any = "return") -> "SelectedDataset":
        """Return the dataset of the trajectories with the largest values, the largest first; nothing is copied.

        Of equal values, those stored earlier come first, so the number of trajectories is exact. NaN comes last.

        Args:
            amount: how many, a whole number of at least 1; or as a ``float`` the fraction of the trajectories, above 0
                and up to 1: rounded down, but at least one.
            by: a column of the trajectory table, such as ``length``, or [N] the values.

        Raises:
            OptionError: ``amount`` is out of range, or ``by`` is neither a column nor a number for each trajectory.

        Example:
            >>> dataset = rlx.open("cartpole")
            >>> dataset.top(3).trajectories.returns.min() >= dataset.trajectories.returns.mean()
            np.True_
            >>> len(dataset.top(0.1).trajectories) == len(dataset.trajectories) // 10
            True
        """
        from rlx.transform.selections import largest  # most datasets are only read

        return self.select(largest(self.trajectories, amount, by))

    @_like(split_dataset)
    def split(self, *arguments: Any, **options: Any) -> "list[Dataset]":
        """Split the trajectories into several datasets and return them; the arguments are those of ``rlx.split``.

        Example:
            >>> train, test = rlx.open("cartpole").split([0.8, 0.2], output=["train", "test"])
            >>> len(train) + len(test) == len(rlx.open("cartpole"))
            True
        """
        reports = split_dataset(self.path, *arguments, **options)
        return [Dataset(report.dataset) for report in reports]

    @_signed(preprocess_dataset, "dry_run")
    def preprocess(
        self,
        destination: StrPath,
        fn: "str | StepFunction | None" = None,
        *,
        transform: "Transforms | None" = None,
        **options: Unpack[PreprocessArguments],
    ) -> "Dataset":
        """Transform the dataset into a new one, and return that; the arguments are those of ``rlx.preprocess``.

        Example:
            >>> small = rlx.open("cartpole").preprocess("small", transform="scale_reward:scale=0.5", num_workers=1)
            >>> small[0]["next", "reward"]
            tensor([0.5000])
        """
        transforms = [*self._transforms, *listed(transform)]
        preprocess_dataset(self._directory, destination, transform=transforms, fn=fn, **options)
        return Dataset(destination)

    @_like(sample_datasets)
    def sample(self, **options: Any) -> "Sample":
        """Draw steps or slices, and return or write them; the arguments are those of ``rlx.sample``.

        Example:
            >>> rlx.open("cartpole").sample(batch_size=32, seed=0).batch["observation"].shape
            torch.Size([32, 4])
        """
        return sample_datasets(self, **options)

    def export(
        self,
        destination: StrPath,
        to: ExportFormat,
        *,
        capacity: int | None = None,
        shards: Iterable[int] | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> "ExportReport":
        """Write the dataset in another project's format, as ``rlx.convert`` does with the same arguments.

        Example:
            >>> rlx.open("cartpole").export("cartpole.hdf5", "d4rl").steps
            1000
        """
        from rlx.verbs.convert import convert

        return convert(
            self.path, destination, to=to, capacity=capacity, shards=shards, overwrite=overwrite, progress=progress
        )


class SelectedDataset(Dataset):
    """Some trajectories of a dataset, in the order of their selection; steps and trajectories are numbered anew.

    The manifest is that of the whole dataset. ``path`` raises DatasetError, and so do the methods that need files;
    ``preprocess`` writes the dataset first.

    Args:
        selected: the dataset that they are selected from; it may be a selection itself.
        kept: [n] numbers of the trajectories there.
        filters: the condition that they were selected by; None without one.
    """

    _whole: Dataset
    _kept: NDArray[np.int64]
    _filters: tuple[str, ...] | None

    def __init__(self, selected: Dataset, kept: NDArray[np.int64], filters: tuple[str, ...] | None) -> None:
        whole = selected
        if isinstance(selected, SelectedDataset):
            whole, kept = selected._whole, selected._kept[kept]
            filters = None if filters is None or selected._filters is None else (*selected._filters, *filters)
        self.__dict__.update(
            {name: value for name, value in whole.__dict__.items() if name not in ("steps", "first_trajectories")}
        )
        self._whole, self._kept, self._filters = whole, kept, filters
        self.steps = SelectedSteps(whole.steps, kept)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._whole, self._kept, self._filters)

    def __len__(self) -> int:
        return int(self.trajectories.length.sum())

    def __repr__(self) -> str:
        if self._filters is None:
            return f"{self._whole!r}.select(<{len(self._kept):,} trajectories>)"
        return f"{self._whole!r}.filter({' and '.join(f'({text})' for text in self._filters)!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def _directory(self) -> Path:
        return self._whole.path

    @property
    def _transforms(self) -> tuple[str, ...]:
        from rlx.transform.selections import numbered  # most datasets are only read

        if self._filters is not None:
            return tuple(f"filter:{text}" for text in self._filters)
        return (f"trajectories:{numbered(self._kept)}",)

    @property
    def _shards_of_trajectories(self) -> NDArray[np.int64]:
        return self._whole._shards_of_trajectories[self._kept]

    @property
    def path(self) -> Path:
        """Raise DatasetError: the files are those of the whole dataset."""
        _ = self._whole.path  # of one at a URL, this error says to pull it first
        written = "write it first: dataset.preprocess('NEW')"
        if self._filters is not None:
            transforms = [word for text in self._transforms for word in ("--transform", text)]
            written += ", or " + command("rlx", "preprocess", self.where, "NEW", *transforms)
        raise DatasetError(f"{self!r} is not on disk: expected a whole dataset", hint=written)

    @property
    def stats(self) -> dict[str, Any]:
        """Statistics by name, those of the dataset that ``preprocess`` would write; reads all steps."""
        return summary([self._record]) if len(self) else {}

    @cached_property
    def _record(self) -> ShardRecord:
        statistics = statistics_of(self.blocks(), self.trajectories, self.schema)
        return ShardRecord("selected", len(self), len(self.trajectories), {}, statistics)

    @property
    def first_trajectories(self) -> NDArray[np.int64]:
        """Raise DatasetError: the trajectories may be those of any shards, in any order."""
        raise DatasetError(f"{self!r} has no shards of its own", hint="write it first: dataset.preprocess('NEW')")

    def blocks(self, max_steps: int = 4096, *, trajectories: NDArray[np.int64] | None = None) -> Iterator[Block]:
        """Yield the steps in their order, in blocks of at most ``max_steps``; verifies each shard first.

        Args:
            trajectories: [n] numbers of those to read, in this order; all by default.

        Raises:
            CorruptDatasetError: a shard is damaged.
        """
        kept = self._kept if trajectories is None else self._kept[trajectories]
        for ascending in np.split(kept, np.flatnonzero(np.diff(kept) <= 0) + 1):
            yield from self._whole.blocks(max_steps, trajectories=ascending)


def open(
    path: StrPath,
    *,
    verify: bool = False,
    partial: bool = False,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    disk_cache_bytes: int = 0,
    disk_cache: StrPath | None = None,
) -> Dataset:
    """Open a dataset for reading.

    Args:
        path: the dataset's directory, its id below ``$RLX_HOME``, or a URL: ``s3://``, ``gs://``, ``az://``,
            ``hf://`` or ``http(s)://``. Reads from a URL fetch only what they need.
        verify: check every file against the manifest first. Reads skip checksums.
        partial: open a dataset that another process is still writing, with the shards that are complete.
        cache_bytes: size of the cache of a URL, in bytes of memory.
        disk_cache_bytes: size of a second cache of URLs, on the local disk; 0 for none. It outlives the process, and
            processes share it.
        disk_cache: directory of that cache; ``$XDG_CACHE_HOME/rlx`` or ``~/.cache/rlx`` by default. Another size
            empties it.

    Raises:
        DatasetNotFoundError: path has no dataset.
        IncompleteDatasetError: the dataset has no manifest yet: a process is writing it, or was interrupted.
        CorruptDatasetError: the manifest is damaged, or with ``verify`` any file.
        FormatVersionError: a newer rlx wrote it.
        FileAccessError: a file exists but cannot be read.
        ForbiddenError: the server of a URL refuses access.
        DownloadError: fetching from a URL failed after all retries.
        MissingExtraError: a URL needs obstore, which is not installed.

    Example:
        >>> dataset = rlx.open("Pong/5")
        >>> dataset[:128]["next", "reward"].shape
        torch.Size([128, 1])
    """
    disk = None
    if disk_cache_bytes and is_url(path):
        given = cache_home() if disk_cache is None else Path(check_path("disk_cache", disk_cache, "a directory"))
        disk = DiskCache(given.expanduser(), disk_cache_bytes)
    return Dataset(path, verify=verify, partial=partial, cache_bytes=cache_bytes, disk_cache=disk)
