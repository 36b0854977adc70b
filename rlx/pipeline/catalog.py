"""Runs that there are: below ``$RLX_HOME``, in directories and on servers."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rlx.errors import DatasetNotFoundError, ForbiddenError, RlxError, SourceError, SourceNotFoundError
from rlx.files.checksum import FetchedFile, FileStat
from rlx.files.hub import datasets_of, organisation_of
from rlx.files.location import Location
from rlx.files.opening import open_location, open_source
from rlx.files.retry import RetryPolicy
from rlx.files.urls import HUB
from rlx.formats.common.source import Layout
from rlx.formats.dopamine.reader import DopamineLayout
from rlx.formats.finding import find_runs
from rlx.formats.rl_unplugged import layout as rl_unplugged
from rlx.formats.rl_unplugged.layout import GAMES, shard_file
from rlx.formats.rl_unplugged.reader import RLUnpluggedLayout
from rlx.home import dataset_ids, home
from rlx.manifest import Manifest
from rlx.progress import Silent
from rlx.store.layout import read_manifest
from rlx.store.statistics import Episodes
from rlx.wording import without_secrets

_REQUESTS = 8
R = TypeVar("R")
logger = logging.getLogger(__name__)
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
    if (organisation := organisation_of(source or "")) is not None:
        return [entry for entry in _pushed(organisation, here) if entry.is_of(game)]
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


def _pushed(organisation: str, here: Collection[str]) -> list[CatalogEntry]:
    """Return the datasets that rlx has pushed to an organisation of the hub."""
    entries = []
    for dataset in datasets_of(organisation):
        url = f"{HUB}{dataset.id}"
        try:
            manifest = read_manifest(open_location(url, retry=_FEW_RETRIES))
        except (DatasetNotFoundError, ForbiddenError) as exc:  # others of its datasets can be read
            logger.warning("%s", exc)
            continue
        entries.append(_described(manifest, url, local=manifest.id in here))
    return entries


def _local(id: str) -> CatalogEntry:
    path = home() / id
    try:
        listed = replace(Manifest.load(path), id=id)  # as the directory is named
        return _described(listed, str(path), local=True)
    except RlxError:
        return CatalogEntry(id, *_split(id), str(path), 0, local=True, steps=None)


def _described(listed: Manifest, source: str, *, local: bool) -> CatalogEntry:
    found = Episodes.of(listed.shards)
    means = [moments.summary()["mean"] if found.whole else None for moments in (found.returns, found.lengths)]
    episodes = (found.whole, found.pieces, *means)
    split = _split(listed.id)
    return CatalogEntry(listed.id, *split, source, len(listed.shards), local, listed.steps, True, *episodes)


def _remote(id: str, source: str, shards: int, local: bool) -> CatalogEntry:
    return CatalogEntry(id, *_split(id), source, shards, local=local, steps=None)


def _split(id: str) -> tuple[str, int | None]:
    *parents, last = id.split("/")
    return (parents[0] if parents else last), int(last) if last.isdecimal() else None


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """One run on a server.

    Args:
        base: where its files lie.
        layout: how they are named.
        growth: bytes of a dataset in the default codec for each byte of the files, as measured, rounded up.
    """

    base: Location
    layout: Layout
    growth: float

    def fetch_index(self, directory: Path) -> dict[str, FetchedFile]:
        """Fetch the small files that the run is planned from; return those that there are, by name.

        Raises:
            SourceNotFoundError: none of them exists.
            SourceError: one cannot be fetched, so the files of the run are unknown.
        """
        answers = _each(lambda name: self.base.fetch(name, directory, Silent()), self.layout.index_files())
        for answer in answers.values():
            if isinstance(answer, SourceError) and not isinstance(answer, SourceNotFoundError):
                raise answer
        return _given(answers)

    def stats(self, names: Sequence[str]) -> dict[str, FileStat]:
        """Return the server's metadata of files; files for which it fails are left out.

        Raises:
            SourceError: it fails for all of them: they do not exist, or access is denied.
        """
        return _given(_each(self.base.stat, names))


def _each(ask: Callable[[str], R], names: Sequence[str]) -> dict[str, R | SourceError]:
    """Answer or errors by name; several are asked for at once."""

    def answer(name: str) -> R | SourceError:
        try:
            return ask(name)
        except SourceError as exc:
            return exc

    with ThreadPoolExecutor(_REQUESTS) as requests:
        return dict(zip(names, requests.map(answer, names), strict=True))


def _given(answers: Mapping[str, R | SourceError]) -> dict[str, R]:
    """Return the answers that are no errors; raises the first error if all are."""
    given = {name: answer for name, answer in answers.items() if not isinstance(answer, SourceError)}
    errors = [answer for answer in answers.values() if isinstance(answer, SourceError)]
    if errors and not given:
        raise errors[0]
    return given


def find_remote(base: Location, game: str, run: int, layout: str | None) -> RemoteRun:
    """Return the run on a server, whose layout is found out where it is not given.

    Raises:
        SourceNotFoundError: the layout is RL Unplugged's, and has no such run.
        ForbiddenError: RL Unplugged has no such run, and the server refuses to tell of another layout.
    """
    refusal: ForbiddenError | None = None
    for prefix in () if layout == "rlu" else ("", "dqn/"):
        dopamine = RemoteRun(base, DopamineLayout(game, run, prefix), 2.5)
        try:
            base.stat(dopamine.layout.index_files()[0])
        except SourceNotFoundError:
            continue
        except ForbiddenError as exc:
            refusal = exc  # no answer yet: a server that forbids to list may forbid what it lacks
        else:
            return dopamine
    if layout == "dopamine":
        return RemoteRun(base, DopamineLayout(game, run), 2.5)
    try:
        return RemoteRun(base, RLUnpluggedLayout(game, run), 0.5)
    except SourceNotFoundError as exc:
        raise refusal or exc from None


def present_runs(base: Location, runs: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return which of these runs, each a game and a number, a server has: it is asked for the first file of each.

    Raises:
        SourceError: the server does not answer, or refuses every request.
    """
    published = [(game, run) for game, run in runs if game in GAMES]
    ways: list[dict[str, tuple[str, int]]] = [{shard_file(game, run, 0): (game, run) for game, run in published}]
    for prefix in ("", "dqn/"):
        ways.append({DopamineLayout(game, run, prefix).index_files()[0]: (game, run) for game, run in runs})
    refusal: ForbiddenError | None = None
    for files in filter(None, ways):
        answers = _each(base.stat, [next(iter(files))])  # one first: a dead host is not asked hundreds of times
        for error in answers.values():
            if isinstance(error, SourceError) and not isinstance(error, SourceNotFoundError | ForbiddenError):
                raise error
        answers |= _each(base.stat, list(files)[1:])
        if found := {files[name] for name, answer in answers.items() if not isinstance(answer, SourceError)}:
            return found
        refusal = next((error for error in answers.values() if isinstance(error, ForbiddenError)), refusal)
    if refusal is not None:
        raise refusal
    return set()
