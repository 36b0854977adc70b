"""The available runs: below ``$RLX_HOME``, in directories and on servers."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rlx.errors import DownloadError, ForbiddenError, RlxError, SourceError, SourceNotFoundError
from rlx.files.checksum import FetchedFile, FileStat
from rlx.files.location import Location
from rlx.files.mirrors import Mirrors
from rlx.files.opening import open_location, open_source
from rlx.files.retry import RetryPolicy
from rlx.files.urls import HUB, TAG, organisation_of
from rlx.formats import rl_unplugged
from rlx.formats.common.source import Layout
from rlx.formats.dopamine.reader import DopamineLayout
from rlx.formats.finding import find_runs
from rlx.formats.rl_unplugged import GAMES, shard_file
from rlx.formats.rl_unplugged.reader import RLUnpluggedLayout
from rlx.home import dataset_ids, datasets_below, home
from rlx.manifest import FILE_NAME
from rlx.progress import Silent
from rlx.store.layout import read_manifest
from rlx.store.summary import DatasetSummary
from rlx.verbs.hosted_datasets import HOSTS, listed
from rlx.verbs.sources import DEFAULTS, Base, Place
from rlx.wording import without_secrets

_REQUESTS = 8
RL_UNPLUGGED = "rlu"
R = TypeVar("R")
logger = logging.getLogger(__name__)
# A list should come soon; a download may wait longer.
_FEW_RETRIES = RetryPolicy(attempts=2, first_delay_s=0.5)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A local dataset, or a run that can be downloaded.

    Args:
        id: such as ``Pong/5``.
        game: first part of the id: ``Pong``.
        run: last part of the id if that is a number: 5.
        source: URL or directory that the run can be downloaded from; of a local dataset, its directory.
        shards: number of shards; None if unknown.
        local: whether it is a dataset on this machine, or there is one of this id below ``$RLX_HOME``.
        steps: number of steps; None if unknown, as of downloadable runs.
        asked: whether the source was queried; False for rlx's built-in table.
        episodes: number of whole episodes; None if unknown.
        pieces: number of pieces of episodes; None if unknown.
        mean_return: mean return of whole episodes; None if unknown.
        mean_length: mean steps of whole episodes; None if unknown.
        version: that ``rlx push`` has noted, or None.
    """

    id: str
    game: str
    run: int | None
    source: str
    shards: int | None
    local: bool
    steps: int | None
    asked: bool = True
    episodes: int | None = None
    pieces: int | None = None
    mean_return: float | None = None
    mean_length: float | None = None
    version: str | None = None

    def is_of(self, game: str | None, search: str | None = None) -> bool:
        """Return whether it is a run of this game and has this text in its id, in any case; None matches all."""
        is_game = game is None or _plain(self.game) == _plain(game)
        return is_game and (search is None or search.lower() in self.id.lower())

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on; unknown episode statistics, as of downloadable runs, are left out."""
        found = {name: getattr(self, name) for name in self.__slots__}
        unknown = [key for key in ("episodes", "pieces", "mean_return", "mean_length", "version") if found[key] is None]
        return {key: value for key, value in found.items() if key not in unknown}


def local_runs() -> list[CatalogEntry]:
    """Return the datasets below ``$RLX_HOME``, by id. One whose manifest cannot be read is listed without steps."""
    below = home()
    return [_local(id, below / id) for id in dataset_ids()]


def _plain(game: str) -> str:
    """Return a game as every project would write it: ALE's ``ChopperCommand`` is Minari's ``choppercommand``."""
    return game.lower().replace("-", "").replace("_", "")


def remote_runs(source: str | None = None, game: str | None = None, search: str | None = None) -> list[CatalogEntry]:
    """List the runs that can be downloaded.

    A directory is searched and a server is asked for each run's first file. Without a source, no server is asked: the
    entries are rlx's built-in table of RL Unplugged.

    Args:
        source: a URL or a directory; or the name of a project: ``rlu``, ``minari``, ``lerobot`` or ``hf``.
        game: only this game, in any case.
        search: only names with this text, in any case; of ``hf``, what its own search finds.
    """
    here = set(dataset_ids())
    if source is not None and source in HOSTS:
        found = listed(source, search or (game if source == "hf" else None))
        entries = [CatalogEntry(str(one), one.game, None, one.url, None, one.id in here, None) for one in found]
        return [entry for entry in entries if game is None or _plain(game) in _plain(entry.id)]
    entries = _runs_at(None if source == RL_UNPLUGGED else source, game, here)
    return [entry for entry in entries if entry.is_of(game, search)]


def _runs_at(source: str | None, game: str | None, here: Collection[str]) -> list[CatalogEntry]:
    if source is not None and source.startswith(HUB) and (pushed := _pushed(source)) is not None:
        return _described_at(pushed, here)
    base = open_source(source, retry=_FEW_RETRIES) if source else None
    if base is not None and base.directory is not None:
        runs = find_runs(base.directory)
        return [
            *_datasets_in(base.directory),
            *(_remote(run.id, base.url, len(run.shards()), run.id in here) for run in runs),
        ]
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


def _pushed(url: str) -> list[str] | None:
    """Return the URLs of rlx's datasets of an organisation, or in a repository; None for one of other files."""
    # Listing a directory should not load the HTTP libraries.
    from rlx.files.hub import Hub
    from rlx.files.hub_api import repositories

    if (organisation := organisation_of(url)) is not None:
        return [f"{HUB}{dataset}" for dataset in repositories(author=organisation, tag=TAG)]
    end = f"/{FILE_NAME}"
    files = [f"{url}/{file.name}" for file in Hub(url, retry=_FEW_RETRIES).list()]
    return [file.removesuffix(end) for file in files if file.endswith(end)] or None


def _described_at(urls: Sequence[str], here: Collection[str]) -> list[CatalogEntry]:
    entries = []
    for url in urls:
        try:
            manifest = read_manifest(open_location(url, retry=_FEW_RETRIES))
        except RlxError as exc:  # others of its datasets can be read
            logger.warning("%s", exc)
            continue
        entries.append(_described(manifest.id, DatasetSummary.of(manifest), url, local=manifest.id in here))
    return entries


def _datasets_in(directory: Path) -> Iterator[CatalogEntry]:
    for below in datasets_below(directory):
        path = directory / below
        try:
            yield _described(
                directory.name if below == "." else below, DatasetSummary.load(path), str(path), local=True
            )
        except RlxError as exc:  # others can be read
            logger.warning("%s", exc)


def _local(id: str, path: Path) -> CatalogEntry:
    try:
        return _described(id, DatasetSummary.load(path), str(path), local=True)
    except RlxError:
        return CatalogEntry(id, *_split(id), str(path), 0, local=True, steps=None)


def _described(id: str, summary: DatasetSummary, source: str, *, local: bool) -> CatalogEntry:
    found = summary.episodes.summary()
    return CatalogEntry(
        id,
        *_split(id),
        source,
        summary.shards,
        local,
        summary.steps,
        episodes=found["whole"],
        pieces=found["pieces"],
        mean_return=found["mean_return"],
        mean_length=found["mean_length"],
        version=summary.version,
    )


def _remote(id: str, source: str, shards: int, local: bool) -> CatalogEntry:
    return CatalogEntry(id, *_split(id), source, shards, local=local, steps=None)


def _split(id: str) -> tuple[str, int | None]:
    *parents, last = id.split("/")
    return (parents[0] if parents else last), int(last) if last.isdecimal() else None


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """One run on a server, or on several that have the same files.

    Args:
        growth: bytes of a dataset in the default codec for each byte of the files, as measured, rounded up.
    """

    base: Mirrors
    layout: Layout
    growth: float

    def fetch_index(self, directory: Path) -> dict[str, FetchedFile]:
        """Fetch the small files that the run is planned from; return the existing ones by name."""
        answers = _each(lambda name: self.base.fetch(name, directory, Silent()), self.layout.index_files())
        for answer in answers.values():
            if isinstance(answer, SourceError) and not isinstance(answer, SourceNotFoundError):
                raise answer
        return _given(answers)

    def stats(self, names: Sequence[str]) -> dict[str, FileStat]:
        """Return the server's metadata of files; files for which it fails are left out."""
        return _given(_each(self.base.stat, names))


def _each(ask: Callable[[str], R], names: Sequence[str]) -> dict[str, R | SourceError]:
    """Answer or errors by name; several are asked for at once, and only two of a server that does not answer."""

    def answer(name: str) -> R | SourceError:
        try:
            return ask(name)
        except SourceError as exc:
            return exc

    def answers(some: Sequence[str]) -> dict[str, R | SourceError]:
        with ThreadPoolExecutor(_REQUESTS) as requests:
            return dict(zip(some, requests.map(answer, some), strict=True))

    first = answers(names[:2])  # one could be the only file that the server fails to read
    is_silent = len(first) == 2 and all(isinstance(found, DownloadError) for found in first.values())
    return first if is_silent else first | answers(names[2:])


def _given(answers: Mapping[str, R | SourceError]) -> dict[str, R]:
    """Return the answers that are no errors; raises the first error if all are."""
    given = {name: answer for name, answer in answers.items() if not isinstance(answer, SourceError)}
    errors = [answer for answer in answers.values() if isinstance(answer, SourceError)]
    if errors and not given:
        raise errors[0]
    return given


def find_remote(places: Sequence[Place], game: str, run: int) -> Iterator[RemoteRun]:
    """Yield the run as the first base has it, with all bases that have the same files; then as others have it.

    Args:
        places: the bases, each with its location or the error of opening it.
    """
    found: dict[Layout, list[tuple[Base, Location]]] = {}
    errors: list[RlxError] = []
    for base, location in places:
        try:
            if isinstance(location, RlxError):
                raise location
            found.setdefault(_layout(location, base, game, run), []).append((base, location))
        except RlxError as exc:
            errors.append(exc)
    if not found:
        try:
            raise errors[0]
        finally:
            del errors  # which would keep this frame, the error and its connection alive in a circle
    for error in errors:
        logger.warning("%s", error)
    for layout, alike in found.items():
        # However it was configured: the checksums of the published copy decide.
        originals = {default.address for default in DEFAULTS}
        published = [location for base, location in alike if base.address.rstrip("/") in originals]
        mirrors = Mirrors([location for _, location in alike], trusted=published)
        yield RemoteRun(mirrors, layout, 2.5 if isinstance(layout, DopamineLayout) else 0.5)


def _layout(location: Location, base: Base, game: str, run: int) -> Layout:
    """Return how a base names the files of a run, which is found out where it is not given."""
    refusal: ForbiddenError | None = None
    for prefix in () if base.layout == "rlu" else ("", "dqn/"):
        dopamine = DopamineLayout(game, run, prefix)
        try:
            location.stat(dopamine.index_files()[0])
        except SourceNotFoundError:
            continue
        except ForbiddenError as exc:
            refusal = exc  # no answer yet: a server that forbids to list may forbid what it lacks
        else:
            return dopamine
    if base.layout == "dopamine":
        return DopamineLayout(game, run)
    try:
        return RLUnpluggedLayout(game, run, base.is_ordered)
    except SourceNotFoundError as exc:
        raise refusal or exc from None


def present_runs(base: Location, runs: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return which of these runs, each a game and a number, a server has: it is asked for the first file of each."""
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
