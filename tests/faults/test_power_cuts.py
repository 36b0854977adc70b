"""The power goes at any moment: what is there afterwards is whole, and what a command has finished is there.

``pytest -m soak tests/faults`` looks at ``$RLX_SOAK_ROUNDS`` moments of every function, 200 where it is not set.
"""

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

import rlx
from rlx.buffer import LazyTensorStorage
from rlx.errors import DatasetNotFoundError, IncompleteDatasetError
from rlx.manifest import FILE_NAME
from rlx.store.verification import verify
from tests.faults.power_cut import KINDS, Disk, changes
from tests.faults.preloaded import Preloaded
from tests.interruption.verbs import FORMATS
from tests.verbs.datasets import tree

ROUNDS = int(os.environ.get("RLX_SOAK_ROUNDS", "200"))
SEED = int(os.environ.get("RLX_SOAK_SEED", "0"))
# What is whole or absent at any moment, by the name of the function: what raises where it is damaged.
Check = Callable[[Path], object]


def a_dataset(path: Path) -> None:
    if (path / FILE_NAME).exists():
        found = verify(path)
        assert found.ok, found.problems


def a_buffer(path: Path) -> None:
    buffer = rlx.ReplayBuffer(storage=LazyTensorStorage(64))
    try:
        buffer.loads(path)
    except (DatasetNotFoundError, IncompleteDatasetError):
        return
    assert len(buffer) == 40


def a_run(path: Path) -> None:
    if path.exists():
        buffer = rlx.ReplayBuffer(storage=LazyTensorStorage(64))
        with rlx.Checkpoint(path, buffer=buffer) as run:
            if step := run.restore():
                assert (run.values, len(buffer)) == ({"number": step}, min(64, 40 + 10 * (step + 1)))


_DATASETS = (
    *("collect", "convert", "convert to memmap", "download", "preprocess", "merge", "merge recoded", "split", "pull"),
    *("overwrite", "record", "save_dataset"),
)
CHECKS: Mapping[str, tuple[str, Check]] = MappingProxyType(
    {
        **dict.fromkeys(_DATASETS, ("out", a_dataset)),
        "push": ("deep/out", a_dataset),
        "dumps": ("deep/out", a_buffer),
        "checkpoint": ("out", a_run),
    }
)
# Not Lance, whose library renames its own files by system calls that no library sees.
EXPORTS = {f"export {name}": out for name, (_, out) in FORMATS.items() if name != "lance"}


def cut(preloaded: Preloaded, work: str, moments: int, seed: str) -> int:
    """Cut the power at some moments of a function, and at its end; return how many states were looked at."""
    recorded = preloaded.directory / "recorded"
    recorded.write_bytes(b"")
    found = preloaded.run(work, CALLS_RECORD=str(recorded))
    assert found["error"] is None, found["trace"]
    made, dice, left = list(changes(recorded)), random.Random(seed), preloaded.directory / "left"
    disk, whole = Disk(preloaded.place), tree(preloaded.place)
    chosen = set(dice.sample(range(len(made)), min(moments, len(made))))
    looked = 0
    for number, change in enumerate(made):
        disk.apply(change)
        for kind in KINDS if number in chosen else ():
            disk.left(left, kind, dice)
            try:
                look(work, left, whole)
            except Exception as error:
                error.add_note(f"{work}: {kind} after change {number} of {len(made)}: {change.kind} {change.path}")
                raise
            looked += 1
    for kind in KINDS:  # it has ended well: all of it is there
        disk.left(left, kind, dice)
        out = EXPORTS[work] if work in EXPORTS else CHECKS[work][0]
        look(work, left, whole)
        at_end = tree(left).items()  # beside it, perhaps, what was removed and comes back
        assert {one for one in whole.items() if one[0].startswith(out)} <= at_end, (work, kind)
    return looked + len(KINDS)


def look(work: str, left: Path, whole: Mapping[str, str]) -> None:
    """Raise unless what is left is whole."""
    if work in CHECKS:
        out, check = CHECKS[work]
        check(left / out)
    elif (left / EXPORTS[work]).exists():
        there = {name: digest for name, digest in tree(left).items() if name.startswith(EXPORTS[work])}
        assert there == {name: digest for name, digest in whole.items() if name.startswith(EXPORTS[work])}


@pytest.mark.parametrize("work", ["collect", "push", "dumps", "checkpoint", "export d4rl", "export torchrl"])
def test_some_moments(work: str, preloaded: Preloaded) -> None:
    assert cut(preloaded, work, 6, work) > len(KINDS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("work", [*CHECKS, *EXPORTS])
def test_many_moments(work: str, preloaded: Preloaded) -> None:
    looked = cut(preloaded, work, ROUNDS, f"{SEED} {work}")
    print(work, looked)  # noqa: T201  (the counts, with -s)
