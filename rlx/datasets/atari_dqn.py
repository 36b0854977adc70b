"""``AtariDQNExperienceReplay``: runs of the DQN Replay Dataset, under TorchRL's name."""

from pathlib import Path
from typing import ClassVar

from rlx.buffer.protocol import Sampler, Writer
from rlx.buffer.replay_buffer import Collate
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.buffer.transform.compose import Transform
from rlx.datasets.base import DatasetExperienceReplay, Download, is_complete
from rlx.errors import DatasetNotFoundError, PartialError
from rlx.formats import rl_unplugged
from rlx.home import home
from rlx.manifest import FILE_NAME, Manifest
from rlx.progress import Silent
from rlx.store.dataset import Dataset
from rlx.store.layout import shard_name
from rlx.verbs.arguments import Options
from rlx.verbs.fetching import download_run
from rlx.verbs.sampling import Sampling, make_sampler


class AtariDQNExperienceReplay(DatasetExperienceReplay):
    """Replay buffer over a run of DQN on an Atari game, 50 million steps; downloads it if necessary.

    Args:
        dataset_id: one of ``available_datasets``, such as ``Pong/5``, or any run of ``source``.
        batch_size: steps in a batch, unless ``sample`` overrides it.
        root: the directory above the datasets, ``$RLX_HOME`` by default.
        download: whether to fetch missing files; "force" fetches all of them again.
        sampler: chooses steps; overrides ``num_slices``, ``slice_len``, ``strict_length``, ``replacement``, ``seed``.
        writer: accepted for compatibility with TorchRL; a dataset cannot be written.
        transform: applied to every batch.
        num_procs: number of processes that convert downloaded files; 0 converts in this process.
        num_slices: slices per batch.
        slice_len: steps per slice; either this or ``num_slices``, or neither for single steps.
        strict_length: whether all slices have the requested length.
        strict_len: another name of ``strict_length``, as in TorchRL.
        replacement: whether steps may be drawn again in the same epoch.
        mp_start_method: accepted for compatibility with TorchRL; workers are always spawned.
        collate_fn: function from the TensorDict [n] of a batch to the batch that is returned.
        pin_memory: whether batches are in page-locked memory.
        prefetch: number of batches to read ahead.
        source: where the run is fetched from: a URL or a directory of RL Unplugged's or Dopamine's layout.
        seed: random seed of the sampler.

    Raises:
        DatasetNotFoundError: the dataset does not exist, and ``download`` is False.
        SourceNotFoundError: the run does not exist.
        ForbiddenError: the server refuses access.
        PartialError: some shards could not be fetched; the others are kept, and another call fetches the rest.

    Attributes:
        available_datasets: the runs that RL Unplugged has.
        dataset: the dataset that is sampled.
        dataset_id: its name.

    Example:
        >>> from rlx.datasets import AtariDQNExperienceReplay
        >>> buffer = AtariDQNExperienceReplay("Pong/5", batch_size=32, root=".", download=False)
        >>> buffer.sample()["observation"].shape
        torch.Size([32, 84, 84])
    """

    available_datasets: ClassVar[list[str]] = [
        f"{game}/{run}" for game in rl_unplugged.GAMES for run in rl_unplugged.RUNS
    ]
    # TorchRL's attribute to use only the first shards.
    _max_runs: ClassVar[int | None] = None

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: str | Path | None = None,
        download: Download = True,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        transform: Transform | None = None,
        num_procs: int = 0,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
        strict_len: bool | None = None,
        replacement: bool = True,
        mp_start_method: str = "spawn",  # noqa: ARG002
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        source: str | None = None,
        seed: int | None = None,
    ) -> None:
        above = home() if root is None else Path(root).expanduser()
        path = above / dataset_id
        if download is False:
            _expect(path, dataset_id)
        elif download == "force" or not is_complete(path):
            self._fetch(dataset_id, path, source=source, num_procs=num_procs, overwrite=download == "force")
        dataset = Dataset(path)
        sampling = Sampling(
            num_slices=num_slices,
            slice_len=slice_len,
            strict_length=strict_length if strict_len is None else strict_len,
            replacement=replacement,
            seed=seed,
        )
        super().__init__(
            dataset,
            dataset_id,
            above,
            storage=DatasetStorage(dataset),
            sampler=make_sampler(sampling) if sampler is None else sampler,
            writer=writer,
            transform=transform,
            batch_size=batch_size,
            prefetch=prefetch,
            pin_memory=pin_memory,
            collate_fn=collate_fn,
        )

    def _fetch(self, dataset_id: str, path: Path, *, source: str | None, num_procs: int, overwrite: bool) -> None:
        shards = None if self._max_runs is None else tuple(range(self._max_runs))
        if not overwrite and (path / FILE_NAME).exists():
            # If only some shards were chosen, the others are not fetched.
            planned = Manifest.load(path).planned
            shards = tuple(int(name) for name in planned if name.isdecimal() and shard_name(int(name)) == name)
        options = Options(
            shards=shards, jobs=max(1, num_procs), overwrite=overwrite, command=f"rlx download {dataset_id}"
        )
        report = download_run(dataset_id, path, options, source=source, layout=None, progress=Silent())
        if report.failures:
            failed = ", ".join(report.failed_shards)
            raise PartialError(
                f"{dataset_id}: shards failed: {failed}; the others are in {path}",
                hint="create the buffer again to resume",
            )


def _expect(path: Path, dataset_id: str) -> None:
    if not (path / FILE_NAME).exists():
        raise DatasetNotFoundError(
            f"no dataset {dataset_id} in {path.parent.parent}, and download=False", hint=f"rlx download {dataset_id}"
        )
