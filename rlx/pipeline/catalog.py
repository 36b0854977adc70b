"""Which runs there are: on this machine, and where they can be had."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from rlx.errors import RlxError
from rlx.files.opening import open_source
from rlx.files.retry import RetryPolicy
from rlx.formats.finding import find_runs
from rlx.formats.rl_unplugged import layout as rl_unplugged
from rlx.home import dataset_ids, home
from rlx.manifest import Manifest
from rlx.pipeline.remote_run import present_runs
from rlx.secrets_in_urls import without_secrets
from rlx.store.statistics import Episodes

# A list is wanted now; whoever waits for a run's bytes is more patient.
_FEW_RETRIES = RetryPolicy(attempts=2, first_delay_s=0.5)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A local dataset, or a run that can be downloaded.

    Args:
        id: such as ``Pong/5``.
        game: first part of the id: ``Pong``.
        run: last part of the id if that is a number: 5.
        source: URL or directory that the run can be downloaded from; of a local dataset, its directory.
        shards: number of shards.
        local: whether it is a dataset below ``$RLX_HOME``.
        steps: number of steps; None if unknown, as of downloadable runs.
        asked: whether the source was queried; False for rlx's built-in table.
        episodes: number of whole episodes; None if unknown.
        pieces: number of pieces of episodes; None if unknown.
        mean_return: mean return of whole episodes; None if unknown.
        mean_length: mean steps of whole episodes; None if unknown.
    """

    id: str
    game: str
    run: int | None
    source: str
    shards: int
    local: bool
    steps: int | None
    asked: bool = True
    episodes: int | None = None
    pieces: int | None = None
    mean_return: float | None = None
    mean_length: float | None = None

    def is_of(self, game: str | None) -> bool:
        """Return whether it is a run of this game, in any case; None stands for all games."""
        return game is None or self.game.lower() == game.lower()

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on; unknown episode statistics, as of downloadable runs, are left out."""
        found = asdict(self)
        unknown = [key for key in ("episodes", "pieces", "mean_return", "mean_length") if found[key] is None]
        return {key: value for key, value in found.items() if key not in unknown}


def local_runs() -> list[CatalogEntry]:
    """Return the datasets below ``$RLX_HOME``, by id. One whose manifest cannot be read is listed without steps."""
    return [_local(id) for id in dataset_ids()]


def remote_runs(source: str | None = None, game: str | None = None) -> list[CatalogEntry]:
    """List the runs that can be downloaded.

    A directory is searched and a server is asked for each run's first file. Without a source, no server is asked: the
    entries are rlx's built-in table of RL Unplugged.

    Args:
        source: a URL or a directory.
        game: only this game, in any case.

    Raises:
        SourceNotFoundError: the directory does not exist.
        ForbiddenError: the server refuses all requests.
        DownloadError: the server does not answer.
    """
    here = set(dataset_ids())
    base = open_source(source, retry=_FEW_RETRIES) if source else None
    if base is not None and base.directory is not None:
        runs = [_remote(run.id, base.url, len(run.shards()), run.id in here) for run in find_runs(base.directory)]
        return [entry for entry in runs if entry.is_of(game)]
    table = [
        _remote(
            f"{name}/{run}",
            without_secrets(source or rl_unplugged.URL),
            rl_unplugged.num_shards(name),
            f"{name}/{run}" in here,
        )
        for name in (*rl_unplugged.GAMES, *(rl_unplugged.GAMES_MISSING if base else ()))
        for run in rl_unplugged.RUNS
    ]
    wanted = [entry for entry in table if entry.is_of(game)]
    if base is None:
        return [replace(entry, asked=False) for entry in wanted]
    there = present_runs(base, [(entry.game, entry.run or 0) for entry in wanted])
    return [entry for entry in wanted if (entry.game, entry.run) in there]


def _local(id: str) -> CatalogEntry:
    path = home() / id
    try:
        listed = Manifest.load(path)
        found = Episodes.of(listed.shards)
    except RlxError:
        return CatalogEntry(id, *_split(id), str(path), 0, local=True, steps=None)
    means = [moments.summary()["mean"] if found.whole else None for moments in (found.returns, found.lengths)]
    episodes = (found.whole, found.pieces, *means)
    return CatalogEntry(id, *_split(id), str(path), len(listed.shards), True, listed.steps, True, *episodes)


def _remote(id: str, source: str, shards: int, local: bool) -> CatalogEntry:
    return CatalogEntry(id, *_split(id), source, shards, local=local, steps=None)


def _split(id: str) -> tuple[str, int | None]:
    *parents, last = id.split("/")
    return (parents[0] if parents else last), int(last) if last.isdecimal() else None
