"""Which runs there are: on this machine, and where they can be had."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlx import manifest
from rlx.errors import RlxError
from rlx.home import home
from rlx.manifest import Manifest
from rlx.pipeline.local_runs import find_runs
from rlx.source import rl_unplugged
from rlx.source.directory import DirectoryBase
from rlx.source.opening import open_base

_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One run.

    Args:
        id: ``Pong/5``.
        game: ``Pong``; the first part of the id where it is no game's run.
        run: 5; none where the id does not end in a number.
        source: the base it can be had from, or the directory it lies in.
        shards: how many it has.
        local: whether it is a dataset below ``$RLX_HOME``.
        steps: how many it has, where that is known without fetching it.
    """

    id: str
    game: str
    run: int | None
    source: str
    shards: int
    local: bool
    steps: int | None


def local_runs() -> list[CatalogEntry]:
    """The datasets below ``$RLX_HOME``, by id. One whose manifest cannot be read is listed without steps."""
    return sorted((_local(path) for path in _datasets(home(), 0)), key=lambda entry: entry.id)


def remote_runs(source: str | None = None) -> list[CatalogEntry]:
    """The runs that can be downloaded: those of a directory, or by the table of RL Unplugged; no server is asked."""
    here = {entry.id for entry in local_runs()}
    base = open_base(source) if source else None
    if isinstance(base, DirectoryBase):
        found = find_runs(base.root)
        return [_remote(run.id, str(base.root), len(run.shards()), run.id in here) for run in found]
    url = source or rl_unplugged.URL
    return [
        _remote(f"{game}/{run}", url, rl_unplugged.num_shards(game), f"{game}/{run}" in here)
        for game in rl_unplugged.GAMES
        for run in rl_unplugged.RUNS
    ]


def _datasets(directory: Path, depth: int) -> Iterator[Path]:
    if (directory / manifest.FILE_NAME).is_file():
        yield directory
    elif depth < _MAX_DEPTH and directory.is_dir():
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=True):
                yield from _datasets(Path(entry.path), depth + 1)


def _local(path: Path) -> CatalogEntry:
    id = path.relative_to(home()).as_posix()
    try:
        listed = Manifest.load(path)
    except RlxError:
        return CatalogEntry(id, *_split(id), str(path), 0, local=True, steps=None)
    return CatalogEntry(id, *_split(id), str(path), len(listed.shards), local=True, steps=listed.steps)


def _remote(id: str, source: str, shards: int, local: bool) -> CatalogEntry:
    return CatalogEntry(id, *_split(id), source, shards, local=local, steps=None)


def _split(id: str) -> tuple[str, int | None]:
    *parents, last = id.split("/")
    return (parents[0] if parents else last), int(last) if last.isdecimal() else None
