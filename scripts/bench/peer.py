"""The peer: TorchRL's ``AtariDQNExperienceReplay`` on local files, where TorchRL is installed."""

import json
import logging
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


def open_stacking(root: Path, batch_size: int, stack: int) -> Any:
    """Its replay buffer over converted files, with its CatFrames: slices of which it keeps the last step."""
    storage = open_replay(root, batch_size)._storage
    from torchrl.data import ReplayBuffer  # noqa: PLC0415
    from torchrl.envs.transforms import CatFrames, Compose, ExcludeTransform, UnsqueezeTransform  # noqa: PLC0415

    frames = CatFrames(N=stack, dim=-3, in_keys=["observation"], padding="same", reset_key="_reset", done_key="done")
    transform, sampler = frames.make_rb_transform_and_sampler(
        batch_size, trajectories=storage.episodes, cache_values=True
    )
    images = ["observation", ("next", "observation")]
    channel = UnsqueezeTransform(dim=-3, in_keys=images, out_keys=images)
    # It wants flags of shape [n, 1], which the dataset does not give.
    flags = UnsqueezeTransform(dim=-1, in_keys=[("next", "done")], out_keys=[("next", "done")])
    transform = Compose(ExcludeTransform("metadata"), channel, flags, transform)
    # Not AtariDQNExperienceReplay itself, which writes the index of 4 * n steps into a batch of n, and fails.
    return ReplayBuffer(
        storage=storage, sampler=sampler, transform=transform, batch_size=batch_size, collate_fn=lambda steps: steps
    )


def data() -> Any:
    """Its ``torchrl.data``, kept from reporting."""
    warnings.filterwarnings("ignore")
    import torchrl.data  # noqa: PLC0415

    logging.getLogger("torchrl").setLevel(logging.ERROR)  # it reports on stdout
    return torchrl.data


def memory_buffer(capacity: int, num_slices: int | None = None) -> Any:
    """Its buffer in memory, of random steps or of slices between ends."""
    theirs = data()
    sampler = theirs.RandomSampler()
    if num_slices is not None:
        sampler = theirs.SliceSampler(num_slices=num_slices, end_key=("next", "done"), cache_values=True)
    return theirs.TensorDictReplayBuffer(storage=theirs.LazyTensorStorage(capacity), sampler=sampler)


def _halved(steps: Any) -> Any:
    """The resolution of observations halved, of one step or of several."""
    import torch  # noqa: PLC0415

    for key in ("observation", ("next", "observation")):
        frames = steps[key]
        small = torch.nn.functional.avg_pool2d(frames.reshape(-1, 1, *frames.shape[-2:]).float(), 2)
        steps[key] = small.round_().byte().reshape(*frames.shape[:-2], *small.shape[-2:])
    return steps


def preprocess(replay: Any, destination: Path, steps: int, **how: Any) -> None:
    """Halves the resolution of its first steps with its ``preprocess``, whose other arguments are given."""
    replay.preprocess(_halved, num_frames=steps, dest=destination, **how)
