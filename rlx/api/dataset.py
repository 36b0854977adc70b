"""The result of ``rlx.open``: a dataset with the verbs of rlx as methods."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.api.arguments import Engine, FunctionUnit, SplitUnit, Store
from rlx.api.splitting import split
from rlx.block import Block
from rlx.errors import DatasetError
from rlx.manifest import ShardRecord
from rlx.progress import Progress
from rlx.store import dataset as stored
from rlx.store.selected_steps import SelectedSteps
from rlx.store.statistics import statistics_of, summary
from rlx.suggestion import command

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from rlx.transform.protocol import Learner, Selection, Transform


class Dataset(stored.Dataset):
    """A dataset, opened for reading; ``rlx.open`` returns it and has the same arguments.

    ``len(dataset)`` and indices count steps; iterating yields trajectories. ``dataset[i]``, ``dataset[i:j]`` and
    ``dataset[indices]`` (list, numpy or torch; negative; boolean mask) are TED TensorDicts of batch size [], [j - i]
    and [n], in the order asked for. It can be shared between threads and sent to other processes.

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

    _filters: tuple[str, ...] = ()

    @property
    def _directory(self) -> Path:
        """Where the files are; of a filtered dataset, those of the whole one."""
        return self.path

    def __reduce__(self) -> tuple[object, ...]:
        _, arguments, *_ = super().__reduce__()
        return _reopen, arguments

    def filter(self, expression: str) -> "FilteredDataset":
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
        return FilteredDataset(self, (expression,))

    def split(
        self,
        fractions: Sequence[float],
        *,
        by: SplitUnit = "trajectory",
        seed: int = 0,
        part: int | None = None,
        output: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        jobs: int | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> "list[Dataset]":
        """Split the trajectories into several datasets and return them; the arguments are those of ``rlx.split``.

        Example:
            >>> train, test = rlx.open("cartpole").split([0.8, 0.2], output=["train", "test"])
            >>> len(train) + len(test) == len(rlx.open("cartpole"))
            True
        """
        reports = split(
            self.path,
            fractions,
            by=by,
            seed=seed,
            part=part,
            output=output,
            jobs=jobs,
            overwrite=overwrite,
            progress=progress,
        )
        return [Dataset(report.dataset) for report in reports]

    def preprocess(
        self,
        destination: str | os.PathLike[str],
        fn: "Callable[[TensorDictBase], TensorDictBase] | str | None" = None,
        *,
        transforms: "Sequence[str | Transform | Learner | Selection]" = (),
        per: FunctionUnit = "block",
        chunk_size: int = 1024,
        steps: int | None = None,
        num_workers: int | None = None,
        store: Store = "zarr",
        codec: str | None = None,
        overwrite: bool = False,
        engine: Engine = "local",
        ray_address: str | None = None,
        progress: Progress | None = None,
    ) -> "Dataset":
        """Return this dataset changed by transforms, and then by a function.

        It is what ``rlx preprocess`` writes; where that was interrupted, this goes on. The result does not depend on
        who does the work.

        Args:
            destination: the new dataset's directory.
            fn: what makes new steps of steps, a TED TensorDict: a function, or ``module:name`` or ``file.py:name``. See
                ``rlx.transform.function.Function`` for what it may do.
            transforms: as ``--transform`` takes them, or themselves.
            per: whether ``fn`` gets a ``block`` of steps [n], a whole ``trajectory`` [n], or a ``step`` [].
            chunk_size: steps in a block at most.
            steps: use only the first ``steps`` steps.
            num_workers: processes; one a core by default. 1 is this process.
            store: ``zarr`` or ``memmap``.
            codec: as ``--codec`` takes it; what suits the store by default.
            overwrite: whether to start afresh where there is a dataset.
            engine: ``local`` or ``ray``.
            ray_address: of the Ray cluster.
            progress: receives ``steps``, ``shards``, ``bytes read`` and ``bytes written``.

        Raises:
            TransformError: a transform is unknown, does not suit, or a function fails; names the trajectory.
            DatasetExistsError: the destination was made otherwise, is this dataset, or lies in it.
            PartialError: a worker died; finished shards are kept.
        """
        from rlx.api.preprocessing import preprocess  # noqa: PLC0415  (most datasets are only read)
        from rlx.transform.selections import Filter  # noqa: PLC0415

        preprocess(
            self._directory,
            destination,
            transform=[*map(Filter, self._filters), *transforms],
            fn=fn,
            per=per,
            chunk_size=chunk_size,
            steps=steps,
            num_workers=num_workers,
            engine=engine,
            ray_address=ray_address,
            store=store,
            codec=codec,
            overwrite=overwrite,
            progress=progress,
        )
        return Dataset(destination)


class FilteredDataset(Dataset):
    """The trajectories of a dataset for which conditions hold; steps and trajectories are numbered among them.

    The manifest is that of the whole dataset. ``path`` raises DatasetError, and so do the methods that need files;
    ``preprocess`` writes the dataset first.

    Args:
        whole: the dataset.
        filters: the conditions, each on the trajectories that the ones before left.

    Raises:
        TransformError: a condition does not parse.
    """

    def __init__(self, whole: Dataset, filters: tuple[str, ...]) -> None:
        from rlx.pipeline.transformed import chosen  # noqa: PLC0415  (most datasets are only read)
        from rlx.transform.selections import Filter  # noqa: PLC0415

        kept = chosen(whole, [Filter(text) for text in filters])
        self.__dict__.update(
            {name: value for name, value in whole.__dict__.items() if name not in ("steps", "first_trajectories")}
        )
        self._whole, self._filters, self._kept = whole, filters, kept
        self.steps = SelectedSteps(whole.steps, kept)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._whole, self._filters)

    def __len__(self) -> int:
        return int(self.trajectories.length.sum())

    def __repr__(self) -> str:
        return f"{self._whole!r}.filter({' and '.join(f'({text})' for text in self._filters)!r})"

    @property
    def path(self) -> Path:
        """Raise DatasetError: the files are those of the whole dataset."""
        transforms = [word for text in self._filters for word in ("--transform", f"filter:{text}")]
        raise DatasetError(
            f"{self!r} is not on disk: expected a dataset without a filter",
            hint=f"write it first: {command('rlx', 'preprocess', self.where, 'NEW', *transforms)}",
        )

    @property
    def _directory(self) -> Path:
        return self._whole.path

    @property
    def stats(self) -> dict[str, Any]:
        """Statistics by name, as of the dataset that ``preprocess`` would write; reads all steps."""
        return summary([self._record]) if len(self) else {}

    @cached_property
    def _record(self) -> ShardRecord:
        statistics = statistics_of(self.blocks(), self.trajectories, self.schema)
        return ShardRecord("filtered", len(self), len(self.trajectories), {}, statistics)

    def blocks(self, max_steps: int = 4096) -> Iterator[Block]:
        """Yield the steps in storage order, in blocks of at most ``max_steps``; each shard is verified before.

        Raises:
            CorruptDatasetError: a shard is damaged.
        """
        first = self._whole.first_trajectories
        for shard in range(len(first) - 1):
            kept = self._kept[(first[shard] <= self._kept) & (self._kept < first[shard + 1])]
            if len(kept):
                yield from self._whole.shard_blocks(shard, max_steps, trajectories=kept - first[shard])

    def filter(self, expression: str) -> "FilteredDataset":
        """Return the trajectories of these for which another condition holds."""
        return FilteredDataset(self._whole, (*self._filters, expression))


def _reopen(*arguments: str | Path | int) -> Dataset:
    """Return a dataset in another process, as ``rlx.store.dataset`` reopens it there."""
    path, *cache_bytes = arguments
    return Dataset(path, partial=True, **({"cache_bytes": cache_bytes[0]} if cache_bytes else {}))  # type: ignore[arg-type]
