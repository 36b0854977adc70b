"""What the file system refuses is an error of rlx that names the file, whatever call it refuses, and whoever makes it.

``pytest -m soak tests/faults`` sweeps every function, with ``$RLX_SOAK_ROUNDS`` faults of each kind of call, 12 where
it is not set, chosen by ``$RLX_SOAK_SEED``.
"""

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.preloaded import Fault, Preloaded
from tests.faults.works import READS, WORKS

ROUNDS = int(os.environ.get("RLX_SOAK_ROUNDS", "12"))
SEED = int(os.environ.get("RLX_SOAK_SEED", "0"))
CODES = {
    "close": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "fsync": (errno.EIO, errno.ESTALE, errno.ENOSPC),
    "write": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE),
    "truncate": (errno.EIO,),
    "open": (errno.EMFILE, errno.EIO, errno.ENOSPC),
    "look": (errno.EMFILE, errno.EIO, errno.ESTALE),
    "read": (errno.EIO, errno.ESTALE),
    "unlink": (errno.EIO, errno.EBUSY),
    "rmdir": (errno.ENOTEMPTY, errno.EIO),
    "rename": (errno.EXDEV, errno.EIO, errno.ENOTEMPTY),
    "link": (errno.EMLINK, errno.EXDEV),
    "mkdir": (errno.EMLINK, errno.EIO, errno.ENOSPC),
    "lock": (errno.EIO, errno.ENOLCK),
}
# One of each kind of writer; the sweep has all of them.
SOME = ("collect", "push", "export torchrl", "checkpoint", "dumps", "loads")


def faults(calls: list[str], dice: random.Random, rounds: int) -> Iterator[Fault]:
    """Faults of each kind of call: a single one, and one that does not go away."""
    for call, count in Counter(calls).items():
        for _ in range(rounds):
            yield Fault(call, dice.randrange(count), dice.choice(CODES[call]), dice.random() < 0.5)


def check(preloaded: Preloaded, work: str, below: Path, dice: random.Random, rounds: int) -> Counter[str]:
    """Inject faults; return how the function ended, by the name of the error's class."""
    calls = [call for call, _ in preloaded.calls(work, below=below)]
    ended = Counter[str]()
    for fault in faults(calls, dice, rounds):
        found = preloaded.fail(work, fault, below=below)
        ended[str(found["error"])] += 1
        told = f"{work}, {fault}, of {below}: {found}\n{preloaded.said()}"
        if found["error"] is not None:
            assert found["is_rlx"], told
            assert str(preloaded.directory) in found["message"], told
    return ended


@pytest.mark.parametrize("work", SOME)
def test_some_faults(work: str, preloaded: Preloaded) -> None:
    below = preloaded.data if work == "loads" else preloaded.place
    ended = check(preloaded, work, below, random.Random(work), 1)
    assert set(ended) - {"None"}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("below", ["place", "data"])
@pytest.mark.parametrize("work", WORKS)
def test_every_fault(work: str, below: str, preloaded: Preloaded) -> None:
    ended = check(preloaded, work, preloaded.directory / below, random.Random(f"{SEED} {work} {below}"), ROUNDS)
    print(work, below, dict(ended))  # noqa: T201  (the counts, with -s)


@pytest.fixture(scope="module")
def exported(preloaded: Preloaded) -> Path:
    """Where the files are that ``READS`` reads."""
    assert preloaded.run("prepare exports") == {"error": None}
    return preloaded.data / "exported"


def unreadable(preloaded: Preloaded, work: str, below: Path, dice: random.Random) -> Iterator[tuple[Path, Fault]]:
    """For every file that a function opens or reads, a single fault, and one that does not go away."""
    for (call, path), count in Counter(preloaded.calls(work, below=below)).items():
        if call in ("look", "read"):
            for forever in (True, False):
                yield Path(path), Fault(call, dice.randrange(count), dice.choice(CODES["read"]), forever)


def check_named(preloaded: Preloaded, work: str, path: Path, fault: Fault) -> None:
    """An error that names the file, or none: some are not needed."""
    found = preloaded.fail(work, fault, below=path)
    if found["error"] is not None:
        assert found["is_rlx"], f"{work}, {fault}, of {path}: {found}"
        assert str(path) in found["message"], f"{work}, {fault}, of {path}: {found}"


@pytest.mark.parametrize("work", READS)
def test_a_decoder_that_fails_to_read_names_the_file(work: str, preloaded: Preloaded, exported: Path) -> None:
    dice = random.Random(work)
    faults = list(unreadable(preloaded, work, exported / work.removeprefix("read "), dice))
    for path, fault in dice.sample(faults, 2):
        check_named(preloaded, work, path, fault)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("work", READS)
def test_every_file_that_cannot_be_read_is_named(work: str, preloaded: Preloaded, exported: Path) -> None:
    dice = random.Random(f"{SEED} {work}")
    for path, fault in unreadable(preloaded, work, exported / work.removeprefix("read "), dice):
        check_named(preloaded, work, path, fault)


def test_the_message_says_what_failed(preloaded: Preloaded) -> None:
    """The file and the operation, from a call that names neither."""
    found = preloaded.fail("save_dataset", Fault("fsync", 3, errno.EIO))
    assert (found["error"], found["hint"]) == (
        "FileAccessError",
        "check the disk or the mount, then run the same command again",
    )
    assert f"{preloaded.place}/out/shards/" in found["message"]
    assert found["message"].endswith(" cannot be synced: input/output error")


def test_what_cannot_be_removed_is_said(preloaded: Preloaded) -> None:
    found = preloaded.fail("dumps", Fault("unlink", 0, errno.EIO, forever=True))
    assert "cannot be removed" in found["message"] + preloaded.said(), found
