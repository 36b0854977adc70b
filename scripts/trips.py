"""Functions that a call enters on its way through the package: what a reader has to open to follow it.

python -m scripts.trips

Counted are the distinct Python functions of ``rlx`` that the calling thread enters, by file and qualified name, with
lambdas and comprehensions (from Python 3.12 on, a list comprehension is no function of its own, and counts are lower).
``files`` is the number of files that hold them, ``depth`` the most of them on the stack at once. A trip is made twice
before it counts, which leaves out imports and what is checked or indexed at the first call. Then 100 calls count
together, as some calls prepare what later ones use: a dataset's batches are drawn 64 at a time. The rows of TorchRL
count its own functions, without those of tensordict.

``BOUNDS`` has the most functions that ``tests/test_trips.py`` allows; lower it where a trip becomes shorter.
"""

import gc
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from tensordict import TensorDict

import rlx
from rlx import buffer
from rlx.store.dataset import Dataset
from scripts.bench import peer, timing

BOUNDS = {
    "extend 100 steps in memory": 27,
    "sample 32 in memory": 34,
    "slices in memory": 80,
    "sample 32 of a dataset": 85,
    "slices of a dataset": 114,
    "a trajectory of a dataset": 41,
}
_RUN = Path(__file__).parent / "sample_run"
_WARMUP, _CALLS = 2, 100
_CAPACITY, _EPISODE, _WRITTEN, _BATCH, _SLICE = 1000, 50, 100, 32, 8


@dataclass(frozen=True, slots=True)
class Trip:
    """What a call enters: functions, their files, and the most functions on the stack at once."""

    functions: int
    files: int
    depth: int


def measured(call: Callable[[], object], package: Path) -> Trip:
    """What calls enter of the functions whose files are below a directory."""
    home = f"{package}/"
    entered: set[tuple[str, str]] = set()
    depth = deepest = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth, deepest
        code = frame.f_code
        if not code.co_filename.startswith(home):
            return
        if event == "call":
            entered.add((code.co_filename, code.co_qualname))
            depth += 1
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    for _ in range(_WARMUP):
        call()
    gc.collect()
    gc.disable()  # it would call what belongs to objects of others
    sys.setprofile(note)
    try:
        for _ in range(_CALLS):
            call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return Trip(len(entered), len({file for file, _ in entered}), deepest)


def steps() -> TensorDict:
    """Steps [100] of whole trajectories, with an observation of four numbers."""
    observations = torch.arange(4.0 * (_WRITTEN + 1)).reshape(-1, 4)
    done = (torch.arange(1, _WRITTEN + 1) % _EPISODE == 0)[:, None]
    after = {
        "observation": observations[1:],
        "reward": torch.ones(_WRITTEN, 1),
        "terminated": done,
        "truncated": torch.zeros_like(done),
        "done": done.clone(),
    }
    return TensorDict(
        {"observation": observations[:-1], "action": torch.zeros(_WRITTEN, dtype=torch.int64), "next": after},
        [_WRITTEN],
    )


def filled(library: Any, sampler: Any) -> Any:
    """A full buffer of rlx's or TorchRL's."""
    storage = library.LazyTensorStorage(_CAPACITY)
    made = library.ReplayBuffer(storage=storage, sampler=sampler, batch_size=_BATCH)
    for _ in range(_CAPACITY // _WRITTEN):
        made.extend(steps())
    return made


def trips(data: Dataset) -> dict[str, Callable[[], object]]:
    """The trips of ``BOUNDS``, those of a dataset over this one."""
    memory, written = filled(buffer, buffer.RandomSampler(seed=0)), steps()
    return {
        "extend 100 steps in memory": lambda: memory.extend(written),
        "sample 32 in memory": memory.sample,
        "slices in memory": filled(buffer, buffer.SliceSampler(slice_len=_SLICE, seed=0)).sample,
        "sample 32 of a dataset": buffer.ReplayBuffer(
            storage=data, sampler=buffer.RandomSampler(seed=0), batch_size=_BATCH
        ).sample,
        "slices of a dataset": buffer.ReplayBuffer(
            storage=data, sampler=buffer.SliceSampler(slice_len=_SLICE, seed=0), batch_size=_BATCH
        ).sample,
        "a trajectory of a dataset": lambda: data.trajectory(1),
    }


def trips_of_torchrl() -> dict[str, Callable[[], object]]:
    """The trips in memory, through TorchRL."""
    theirs = peer.data()
    memory, written = filled(theirs, theirs.RandomSampler()), steps()
    slices = theirs.SliceSampler(slice_len=_SLICE, end_key=("next", "done"))
    return {
        "extend 100 steps in memory": lambda: memory.extend(written),
        "sample 32 in memory": memory.sample,
        "slices in memory": filled(theirs, slices).sample,
    }


def main() -> None:
    """Prints the table."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        rlx.convert(_RUN, Path(folder) / "dataset", jobs=1)
        for name, call in trips(rlx.open(Path(folder) / "dataset")).items():
            found[name] = asdict(measured(call, Path(rlx.__file__).parent)) | {"bound": BOUNDS[name]}
    if peer.is_installed():
        package = Path(peer.data().__file__).parents[1]
        for name, call in trips_of_torchrl().items():
            found[f"TorchRL: {name}"] = asdict(measured(call, package)) | {"bound": None}
    print(timing.grid(found))


if __name__ == "__main__":
    main()
