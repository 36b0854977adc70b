"""A run whose files lie on a server: their layout, and their metadata before they are fetched."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rlx.errors import ForbiddenError, SourceError, SourceNotFoundError
from rlx.files.checksum import FetchedFile, FileStat
from rlx.files.location import Location
from rlx.formats.common.source import Layout
from rlx.formats.dopamine.reader import DopamineLayout
from rlx.formats.rl_unplugged.layout import GAMES, shard_file
from rlx.formats.rl_unplugged.reader import RLUnpluggedLayout
from rlx.progress import Silent

_REQUESTS = 8
R = TypeVar("R")


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
