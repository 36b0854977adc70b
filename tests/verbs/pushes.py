"""Datasets to push, what lies at a location then, and what happens in the middle."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlx.errors import SourceNotFoundError
from rlx.files import lock
from rlx.files.location import WritableLocation
from rlx.files.opening import open_location
from rlx.progress import Silent
from rlx.store.layout import CLAIM
from rlx.verbs.push import push
from rlx.verbs.transfers import TransferReport, transfer
from tests.factories import LARGE, make_block, write_dataset


def write(path: Path, shards: int, *, planned: int = 3, first_episode: int = 0) -> Path:
    blocks = [[make_block((3, 5), first_episode=first_episode + 2 * n, schema=LARGE)] for n in range(shards)]
    return write_dataset(path, blocks, schema=LARGE, planned=planned).path


def sent(dataset: Path, url: str, *, overwrite: bool = False) -> TransferReport:
    return push(dataset, url, overwrite=overwrite, progress=Silent())


def content(location: WritableLocation) -> dict[str, bytes]:
    """Every file at a location, less the copies of small files."""
    names = [stored.name for stored in location.list("shards") if not stored.name.startswith("shards/small.")]
    found = {name: location.get(name, max_bytes=2**30)[0] for name in names}
    try:
        found["rlx.json"] = location.get("rlx.json", max_bytes=2**30)[0]
    except SourceNotFoundError:
        return found
    return found


def files(dataset: Path) -> dict[str, bytes]:
    """Every file of a dataset."""
    return {
        path.relative_to(dataset).as_posix(): path.read_bytes()
        for path in dataset.rglob("*")
        if path.is_file() and path.name != lock.FILE_NAME
    }


def is_claimed(url: str) -> bool:
    try:
        return bool(open_location(url).stat(CLAIM))
    except SourceNotFoundError:
        return False


def stop_after(files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when that many files have been reported."""

    def stopped(items: Sequence[str], move: Any, *, jobs: int) -> Generator[Any, None, None]:
        for number, moved in enumerate(transfer(items, move, jobs=jobs)):
            if number == files:
                raise KeyboardInterrupt
            yield moved

    monkeypatch.setattr("rlx.verbs.sending.transfer", stopped)


class During:
    """A progress that does something when the push has begun, and before it sends anything."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def expect(self, unit: str, amount: int) -> None:  # noqa: ARG002
        self._action()

    def advance(self, unit: str, amount: int) -> None: ...
