"""``MinariExperienceReplay``: a local Minari dataset as a replay buffer, under TorchRL's name."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, NonTensorStack, TensorDictBase

from rlx.buffer.protocol import Keys, Rows, Sampler, Storage, TrajectoryIndex, Writer
from rlx.buffer.replay_buffer import Collate
from rlx.buffer.sampler.steps import RandomSampler
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.buffer.storage.tensors import MappedStorage
from rlx.buffer.transform.compose import Transform
from rlx.datasets.base import DatasetExperienceReplay, Download, is_complete
from rlx.errors import DatasetNotFoundError, SourceNotFoundError
from rlx.files.atomic import whole
from rlx.formats.minari.layout import ID, METADATA
from rlx.formats.minari.reader import find_runs
from rlx.home import home
from rlx.progress import Silent
from rlx.schema import Role, Schema
from rlx.store.dataset import Dataset
from rlx.transform.protocol import as_path, wanted
from rlx.verbs.arguments import Options
from rlx.verbs.convert import convert_files
from rlx.verbs.inputs import Fetched

_EPISODE = "episode"


class MinariExperienceReplay(DatasetExperienceReplay):
    """Replay buffer over a local Minari dataset, with TorchRL's key names: ``episode`` (int64), ``info``, ``next``.

    It is read from ``$MINARI_DATASETS_PATH``, or ``~/.minari/datasets``, and converted once
    into a dataset of rlx below ``root``; values are those of Minari's own reader. Nothing is downloaded: use ``minari
    download`` for missing datasets.

    Args:
        dataset_id: Minari's id of the dataset, such as ``D4RL/door/human-v2``.
        batch_size: steps in a batch, unless ``sample`` overrides it.
        root: the directory above the converted datasets, ``minari`` below ``$RLX_HOME`` by default.
        download: whether to convert a dataset that is not converted yet; "force" converts it again.
        sampler: chooses rows; uniformly by default.
        writer: accepted for compatibility with TorchRL; a dataset cannot be written.
        transform: applied to every batch.
        collate_fn: function from the TensorDict [n] of a batch to the batch that is returned.
        pin_memory: whether batches are in page-locked memory.
        prefetch: number of batches to read ahead.
        split_trajs: whether a row is a whole trajectory, zero-padded to the longest, with ``("collector", "mask")``;
            such rows are stored next to the dataset, as ``<dataset_id>_split``.
        load_from_local_minari: accepted for compatibility with TorchRL; datasets are always read locally.
        seed: random seed of the sampler.

    Raises:
        SourceNotFoundError: Minari has no such local dataset.
        CorruptShardError: its files are damaged.
        DatasetNotFoundError: the dataset is not converted, and ``download`` is False.
        DatasetLockedError: another process is converting or splitting it.

    Example:
        >>> from rlx.datasets import MinariExperienceReplay
        >>> buffer = MinariExperienceReplay("D4RL/door/human-v2", batch_size=32)  # doctest: +SKIP
        >>> buffer.sample()["next", "reward"].shape  # doctest: +SKIP
        torch.Size([32, 1])
    """

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: str | Path | None = None,
        download: Download = True,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
        split_trajs: bool = False,
        load_from_local_minari: bool = True,  # noqa: ARG002
        seed: int | None = None,
    ) -> None:
        if not ID.fullmatch(dataset_id):
            raise SourceNotFoundError(f"dataset {dataset_id!r}: expected a name such as D4RL/door/human-v2")
        above = home() / "minari" if root is None else Path(root).expanduser()
        converted = above / dataset_id
        self._split_path = above / f"{dataset_id}_split" if split_trajs else None
        is_converted = is_complete(converted)
        if download is False and not is_converted:
            raise DatasetNotFoundError(f"no dataset {dataset_id} in {above}, and download=False")
        if download == "force" or not is_converted:
            _convert(dataset_id, converted, overwrite=download == "force")
            if self._split_path is not None and self._split_path.exists():
                shutil.rmtree(self._split_path)
        dataset = Dataset(converted)
        storage: Storage = MinariStorage(dataset)
        if self._split_path is not None:
            _split(dataset, storage, self._split_path)
            storage = SplitStorage(self._split_path, dataset, storage)
        super().__init__(
            dataset,
            dataset_id,
            above,
            storage=storage,
            sampler=RandomSampler(seed=seed) if sampler is None else sampler,
            writer=writer,
            transform=transform,
            batch_size=batch_size,
            prefetch=prefetch,
            pin_memory=pin_memory,
            collate_fn=collate_fn,
        )

    @property
    def data_path(self) -> Path:
        """The directory that steps are read from."""
        return self._split_path or super().data_path

    def delete(self) -> None:
        """Delete the converted dataset, and the split one; Minari's own stays."""
        super().delete()
        if self._split_path is not None:
            shutil.rmtree(self._split_path)


class MinariStorage(DatasetStorage):
    """A dataset's steps, each with the number of its ``episode`` in Minari's file."""

    def has(self, key: NestedKey) -> bool:
        """Return whether every step has this leaf."""
        return as_path(key) == (_EPISODE,) or super().has(key)

    def get(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows, in the order asked for."""
        stored = None if keys is None else [key for key in keys if as_path(key) != (_EPISODE,)]
        steps = super().get(rows, stored)
        if wanted(_EPISODE, keys):
            trajectory = self.dataset.steps.locate(rows).trajectory
            steps.set(_EPISODE, torch.from_numpy(self.dataset.trajectories.episode[trajectory]))
        return steps

    def index(self, traj_key: Any = None, end_key: Any = None) -> TrajectoryIndex:
        """Return which steps follow each other; an episode is a trajectory."""
        return super().index(None if traj_key is not None and as_path(traj_key) == (_EPISODE,) else traj_key, end_key)


class SplitStorage(MappedStorage):
    """Padded trajectories [T] in memory-mapped files; texts, which those cannot hold, come from the dataset.

    Args:
        path: the directory of the files.
        dataset: the dataset of the trajectories.
        steps: storage of its steps.
    """

    def __init__(self, path: Path, dataset: Dataset, steps: Storage) -> None:
        super().__init__(path)
        self._steps = steps
        self._starts, self._lengths = dataset.trajectories.start, dataset.trajectories.length
        self._of_steps = frozenset(_text_paths(dataset.schema))

    def has(self, key: NestedKey) -> bool:
        """Return whether every trajectory has this leaf."""
        return as_path(key) in self._of_steps or super().has(key)

    def get(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the trajectories [n, T] at these rows, in the order asked for."""
        found = super().get(rows, None if keys is None else [key for key in keys if as_path(key) not in self._of_steps])
        longest = int(self._lengths.max())
        for text in sorted(self._of_steps):
            if wanted(text, keys):
                texts: list[Any] = [self._padded(row, text, longest) for row in rows.tolist()]
                found.set(text, NonTensorStack.from_list(texts))
        return found

    def _padded(self, row: int, text: tuple[str, ...], longest: int) -> list[str]:
        start, length = int(self._starts[row]), int(self._lengths[row])
        words: list[str] = self._steps.get(np.arange(start, start + length), [text])[text]
        return [*words, *[""] * (longest - length)]


def _text_paths(schema: Schema) -> Iterator[tuple[str, ...]]:
    """Yield paths in TED of the texts of a step."""
    for name, field in schema.fields.items():
        if field.is_text:
            parts = tuple(name.split("/"))
            yield from [parts] if field.role != Role.NEXT else []
            yield from [("next", *parts)] if field.role != Role.STEP else []


def datasets_path() -> Path:
    """Return where Minari keeps its datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets").expanduser()


def _convert(dataset_id: str, destination: Path, *, overwrite: bool) -> None:
    source = datasets_path() / dataset_id
    if not (source / "data" / METADATA).is_file():
        raise SourceNotFoundError(f"Minari has no dataset {dataset_id} in {datasets_path()}", hint=_hint(dataset_id))
    options = Options(jobs=1, overwrite=overwrite, command=f"rlx convert {dataset_id} --from minari")
    report = convert_files(Fetched(source), destination, options, source_format="minari", progress=Silent())
    for error in report.failures.values():
        raise error


def _hint(dataset_id: str) -> str:
    here = ", ".join(run.id for run in find_runs(datasets_path()))
    return f"minari download {dataset_id}" + (f"; here are {here}" if here else "")


def _split(dataset: Dataset, storage: Storage, directory: Path) -> None:
    """Write trajectories [N, T], T the steps of the longest; holds only one in memory."""
    if directory.exists():
        return
    table = dataset.trajectories
    texts = list(_text_paths(dataset.schema))  # mapped files do not hold them: SplitStorage reads them
    first = _masked(storage, 0, 1).exclude(*texts)[0]
    with whole(directory) as partial:
        padded = first.expand(len(table), int(table.length.max())).memmap_like(partial)
        for number, (start, length) in enumerate(zip(table.start.tolist(), table.length.tolist(), strict=True)):
            padded[number, :length] = _masked(storage, start, length).exclude(*texts)


def _masked(storage: Storage, start: int, length: int) -> TensorDictBase:
    steps = storage.get(torch.arange(start, start + length).numpy())
    return steps.set(("collector", "mask"), torch.ones(length, dtype=torch.bool))
