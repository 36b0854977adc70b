"""The peer: TorchRL's ``AtariDQNExperienceReplay`` on local files, where TorchRL is installed."""

import json
import multiprocessing
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# One of the ids that it accepts; it names its directories by it.
RUN_ID = "Pong/1"


def is_installed() -> bool:
    """Whether there is a peer to compare with."""
    return find_spec("torchrl") is not None


def _replay_class() -> Any:
    warnings.filterwarnings("ignore")
    from torchrl.data.datasets import AtariDQNExperienceReplay  # noqa: PLC0415

    return AtariDQNExperienceReplay


def convert(logs: Path, root: Path, processes: int) -> None:
    """Turns every file of a ``replay_logs`` into its format, by its own function and in its own kind of pool."""
    replay = _replay_class()
    files = replay._list_runs(logs)
    tasks = [(root / RUN_ID / str(number), files, number) for number in files]
    if processes == 1:
        for task in tasks:
            replay._preproc_run(*task)
    else:
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            pool.starmap(replay._preproc_run, tasks)
    # What it writes itself when its download is done.
    (root / RUN_ID / "processed.json").write_text(json.dumps({"processed": None}))


def open_replay(root: Path, batch_size: int, num_slices: int | None = None) -> Any:
    """Its replay buffer over converted files."""
    return _replay_class()(RUN_ID, batch_size, root=root, num_slices=num_slices)


def read(replay: Any, indices: "torch.Tensor") -> Any:
    """The rows of its storage at these indices, without a sampler."""
    return replay._storage.get(indices)
